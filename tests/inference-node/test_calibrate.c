/*
 * `vericache-node calibrate` from texts to a blob, and a node that binds specs to it: once loaded it is kept, and what
 * is missing, damaged or unsuited is told in one sentence.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "node.h"
#include "role/cmd.h"
#include "support/file.h"
#include "support/tiny_model.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vc/mem.h"

typedef struct place {
    vt_tmpdir_t dir;
    char model[300], text[300], blob[300];
} place_t;

static void place_open(place_t *p, size_t text_bytes)
{
    tiny_model_opts_t opts;
    tiny_model_opts_default(&opts);
    opts.context = 1024;
    gguf_image_t image = tiny_model_build(&opts);
    vt_tmpdir_create(&p->dir);
    snprintf(p->model, sizeof(p->model), "%s", vt_tmpdir_path(&p->dir, "tiny.gguf"));
    snprintf(p->text, sizeof(p->text), "%s", vt_tmpdir_path(&p->dir, "text"));
    snprintf(p->blob, sizeof(p->blob), "%s", vt_tmpdir_path(&p->dir, "tiny.kvquant.vcal"));
    vt_file_write(p->model, image.data, image.bytes);
    gguf_image_free(&image);
    char *text = vc_alloc(text_bytes);
    for (size_t i = 0; i < text_bytes; i++)
        text[i] = (char)('!' + (i * 7 + i / 3 + i * i / 11) % 90);
    vt_file_write(p->text, text, text_bytes);
    vc_free(text);
}

static int calibrate(const place_t *p, const char *method, const char *dir)
{
    char *argv[] = {"calibrate",
                    "--model",
                    (char *)p->model,
                    "--method",
                    (char *)method,
                    "--calibration",
                    (char *)dir,
                    "--limit-tokens",
                    "2100",
                    "--threads",
                    "1",
                    (char *)p->text,
                    NULL};
    return node_cmd_calibrate((int)VC_ARRAY_LEN(argv) - 1, argv);
}

static node_t *open_node(const place_t *p, const char *dir)
{
    node_opts_t opts;
    node_t *node;
    vc_err_t err = {0};
    node_opts_default(&opts);
    opts.model_path = p->model;
    opts.calib_dir = dir;
    opts.engine.n_threads = 1;
    cr_assert_eq(node_open(&opts, &node, &err), VC_OK, "%s", err.msg);
    return node;
}

static vc_status_t bind_to(node_t *node, const char *text, node_spec_t *spec, vc_err_t *err)
{
    cr_assert_eq(node_spec_parse(text, spec, NULL), VC_OK);
    return node_bind_spec(node, spec, err);
}

Test(calibrate, a_spec_is_bound_to_the_blob_that_the_command_made)
{
    place_t p;
    node_spec_t a, b, other, plain;
    vc_err_t err = {0};
    place_open(&p, 8000);
    cr_assert_eq(calibrate(&p, "kvquant", ""), 0);
    cr_assert_eq(access(p.blob, R_OK), 0);
    node_t *node = open_node(&p, NULL);
    cr_assert_eq(bind_to(node, "kvquant", &a, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(unlink(p.blob), 0); /* once loaded it is kept */
    cr_assert_eq(bind_to(node, "kvquant:bits=2", &b, &err), VC_OK, "%s", err.msg);
    cr_assert(a.calib == b.calib && a.calib != NULL);
    cr_assert(memcmp(&a.id, &b.id, sizeof(a.id)) != 0);
    cr_assert_eq(node_spec_parse("kvquant", &plain, NULL), VC_OK);
    cr_assert(memcmp(&a.id, &plain.id, sizeof(a.id)) != 0, "the blob is part of the id");
    cr_assert_eq(bind_to(node, "kvquant:outliers=0.03", &other, &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "calibrate --method kvquant:bits=4,outliers=0.03,"), "%s", err.msg);
    cr_assert_eq(bind_to(node, "kvquant:levels=nf", &other, &err), VC_OK);
    cr_assert(other.calib == NULL);
    cr_assert_eq(bind_to(node, "rot", &other, &err), VC_OK);
    cr_assert(other.calib == NULL);
    node_close(node);
    vt_tmpdir_remove(&p.dir);
}

Test(calibrate, a_missing_blob_is_named_with_the_command_that_makes_it)
{
    place_t p;
    node_spec_t spec;
    vc_err_t err = {0};
    char want[400];
    place_open(&p, 100);
    node_t *node = open_node(&p, "/some/where");
    cr_assert_eq(bind_to(node, "kvquant", &spec, &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "/some/where/tiny.kvquant.vcal"), "%s", err.msg);
    snprintf(want, sizeof(want), "vericache-node calibrate --model %s --calibration /some/where --method kvquant",
             p.model);
    cr_assert_not_null(strstr(err.msg, want), "%s", err.msg);
    node_close(node);
    vt_tmpdir_remove(&p.dir);
}

Test(calibrate, a_damaged_blob_is_refused_and_named)
{
    place_t p;
    node_spec_t spec;
    vc_err_t err = {0};
    size_t n;
    place_open(&p, 8000);
    cr_assert_eq(calibrate(&p, "kvquant", p.dir.path), 0);
    uint8_t *bytes = vt_file_read(p.blob, &n);
    bytes[n / 2] ^= 1;
    vt_file_write(p.blob, bytes, n);
    vc_free(bytes);
    node_t *node = open_node(&p, NULL);
    cr_assert_eq(bind_to(node, "kvquant", &spec, &err), VC_ERR_CORRUPT);
    cr_assert_not_null(strstr(err.msg, p.blob), "%s", err.msg);
    node_close(node);
    vt_tmpdir_remove(&p.dir);
}

Test(calibrate, too_little_text_and_methods_without_a_calibration_are_wrong_arguments)
{
    place_t p;
    place_open(&p, 300);
    cr_assert_eq(calibrate(&p, "kvquant", ""), 64);
    cr_assert_eq(calibrate(&p, "rot", ""), 64);
    cr_assert_eq(calibrate(&p, "kvquant;nonesuch", ""), 64);
    cr_assert_neq(access(p.blob, F_OK), 0);
    vt_tmpdir_remove(&p.dir);
}
