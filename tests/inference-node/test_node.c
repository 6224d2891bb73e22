/* A node as it is opened from a file: what happens to the file afterwards does not reach it. */
#include "node.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "role/prompt.h"
#include "support/file.h"
#include "support/tiny_model.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vc/mem.h"

typedef struct {
    uint32_t *ids, n;
    float *logits;
} answer_t;

static void ask(node_t *node, answer_t *a)
{
    static const char question[] = "the user is in the house and the others are out";
    const node_prompt_t prompt = {.text = question, .bytes = sizeof(question) - 1};
    node_kv_dims_t dims;
    node_kv_t kv;
    vc_err_t err = {0};
    cr_assert_eq(node_prompt_encode(node->tok, &prompt, false, 0, &a->ids, &a->n, &err), VC_OK, "%s", err.msg);
    a->logits = vc_calloc(node_engine_info(node->engine)->n_vocab, sizeof *a->logits);
    node_engine_kv_dims(node->engine, &dims);
    cr_assert(a->logits != NULL && node_kv_init(&kv, &dims, NULL) == VC_OK);
    cr_assert_eq(node_prefill(node->engine, &kv, a->ids, a->n, a->logits, NULL, &err), VC_OK, "%s", err.msg);
    node_kv_fini(&kv);
}

static void expect_equal(const answer_t *a, const answer_t *b, size_t n_vocab)
{
    cr_assert_eq(a->n, b->n);
    cr_assert_eq(memcmp(a->ids, b->ids, a->n * sizeof *a->ids), 0);
    cr_assert_eq(memcmp(a->logits, b->logits, n_vocab * sizeof *a->logits), 0);
}

static void free_answer(answer_t *a)
{
    vc_free(a->ids);
    vc_free(a->logits);
}

Test(node, goes_on_when_its_model_file_is_overwritten_and_cut_short)
{
    vt_tmpdir_t dir;
    char path[512];
    tiny_model_opts_t opts;
    node_opts_t o;
    node_t *node;
    vc_err_t err = {0};
    answer_t before, overwritten, cut;
    vt_tmpdir_create(&dir);
    snprintf(path, sizeof path, "%s", vt_tmpdir_path(&dir, "model.gguf"));
    tiny_model_opts_default(&opts);
    gguf_image_t image = tiny_model_build(&opts);
    cr_assert(gguf_image_write(&image, path));
    node_opts_default(&o);
    o.model_path = path;
    cr_assert_eq(node_open(&o, &node, &err), VC_OK, "%s", err.msg);
    const size_t n_vocab = node_engine_info(node->engine)->n_vocab;
    ask(node, &before);

    uint8_t *other = vc_calloc(image.bytes, 1);
    FILE *f = fopen(path, "r+b"); /* in place: the same inode */
    cr_assert(other != NULL && f != NULL && fwrite(other, 1, image.bytes, f) == image.bytes && fclose(f) == 0);
    ask(node, &overwritten);
    cr_assert_eq(truncate(path, 0), 0);
    ask(node, &cut);

    expect_equal(&before, &overwritten, n_vocab);
    expect_equal(&before, &cut, n_vocab);
    free_answer(&before);
    free_answer(&overwritten);
    free_answer(&cut);
    vc_free(other);
    node_close(node);
    gguf_image_free(&image);
    vt_tmpdir_remove(&dir);
}
