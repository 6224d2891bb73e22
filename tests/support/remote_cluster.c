/* Processes of the remote tests. */
#include "support/remote_cluster.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "support/file.h"
#include "support/tiny_model.h"
#include "support/vc_test.h"
#include "vc/mem.h"

#define START_MS 60000
#define RUN_MS 120000
#define FLAGS_MAX 40u       /* of a generation */
#define DOCUMENT_BYTES 3000 /* several hundred tokens of the small model's vocabulary */

static unsigned read_port(remote_cluster_t *c, const char *file)
{
    uint8_t *text = vt_file_read(vt_tmpdir_path(&c->dir, file), NULL);
    unsigned port = 0;
    if (sscanf((const char *)text, "%u", &port) != 1 || port == 0)
        vt_die("%s holds no port", file);
    vc_free(text);
    return port;
}

void remote_cluster_start_server(remote_cluster_t *c)
{
    char listen[64], port_file[512], data[512];
    snprintf(listen, sizeof(listen), "127.0.0.1:%u", c->server_port);
    snprintf(port_file, sizeof(port_file), "%s", vt_tmpdir_path(&c->dir, "server.port"));
    snprintf(data, sizeof(data), "%s", vt_tmpdir_path(&c->dir, "data"));
    const char *args[] = {"--listen", listen, "--data-dir", data, "--port-file", port_file, "--capacity", "2GiB", NULL};
    vt_proc_end(c->server);
    c->server = vt_proc_start("vericache-server", args, NULL);
    if (!vt_proc_wait_line(c->server, "ready ", START_MS, NULL, 0)) {
        char *out = vt_proc_output(c->server);
        vt_die("vericache-server did not start: %s", out);
    }
    c->server_port = read_port(c, "server.port");
    snprintf(c->server_address, sizeof(c->server_address), "127.0.0.1:%u", c->server_port);
    if (c->gate == NULL)
        memcpy(c->verify_server, c->server_address, sizeof(c->verify_server));
}

void remote_cluster_start_verify(remote_cluster_t *c, const char *model)
{
    char listen[64], port_file[512];
    snprintf(listen, sizeof(listen), "127.0.0.1:%u", c->verify_port);
    snprintf(port_file, sizeof(port_file), "%s", vt_tmpdir_path(&c->dir, "verify.port"));
    const char *args[] = {
        "serve",          "--role",      "verify",  "--model",   model, "--listen",   listen, "--server",
        c->verify_server, "--port-file", port_file, "--threads", "1",   "--grace-ms", "0",    NULL};
    vt_proc_end(c->verify);
    c->verify = vt_proc_start("vericache-node", args, NULL);
    if (!vt_proc_wait_line(c->verify, "ready ", START_MS, NULL, 0)) {
        char *out = vt_proc_output(c->verify);
        vt_die("the verify node did not start: %s", out);
    }
    c->verify_port = read_port(c, "verify.port");
    snprintf(c->verify_address, sizeof(c->verify_address), "127.0.0.1:%u", c->verify_port);
}

void remote_cluster_start_gate(remote_cluster_t *c)
{
    c->gate = vt_gate_start(c->server_port);
    snprintf(c->verify_server, sizeof(c->verify_server), "127.0.0.1:%u", vt_gate_port(c->gate));
}

static void write_model(remote_cluster_t *c, const char *name, uint32_t seed)
{
    tiny_model_opts_t opts;
    tiny_model_opts_default(&opts);
    opts.seed = seed;
    opts.context = 4096;
    gguf_image_t image = tiny_model_build(&opts);
    if (!gguf_image_write(&image, vt_tmpdir_path(&c->dir, name)))
        vt_die("cannot write %s", name);
    gguf_image_free(&image);
}

/* Text whose words vary, so that blocks differ. */
static void write_document(remote_cluster_t *c)
{
    static const char *const words[] = {"the",    "cache", "holds", "keys",  "and",
                                        "values", "of",    "every", "layer", "twice"};
    char text[DOCUMENT_BYTES + 64];
    size_t n = 0;
    for (uint32_t i = 0, x = 12345; n < DOCUMENT_BYTES; i++) {
        x = x * 1664525u + 1013904223u;
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s", words[(x >> 16) % 10], i % 11 == 10 ? ".\n" : " ");
    }
    vt_file_write(vt_tmpdir_path(&c->dir, "document.txt"), text, n);
    const char *question = "\nWhat does the cache hold?";
    memcpy(text + n, question, strlen(question));
    vt_file_write(vt_tmpdir_path(&c->dir, "prompt.txt"), text, n + strlen(question));
}

void remote_cluster_write_files(remote_cluster_t *c)
{
    write_model(c, "model.gguf", 1);
    write_model(c, "other.gguf", 2);
    write_document(c);
}

void remote_cluster_start(remote_cluster_t *c)
{
    memset(c, 0, sizeof(*c));
    vt_tmpdir_create(&c->dir);
    remote_cluster_write_files(c);
    remote_cluster_start_server(c);
    char model[512];
    snprintf(model, sizeof(model), "%s", vt_tmpdir_path(&c->dir, "model.gguf"));
    remote_cluster_start_verify(c, model);
}

void remote_cluster_stop(remote_cluster_t *c)
{
    vt_proc_end(c->verify);
    vt_proc_end(c->server);
    vt_gate_stop(c->gate);
    vt_tmpdir_remove(&c->dir);
}

void remote_cluster_register(remote_cluster_t *c, const char *compressors)
{
    char model[512], document[512], *out = NULL;
    snprintf(model, sizeof(model), "%s", vt_tmpdir_path(&c->dir, "model.gguf"));
    snprintf(document, sizeof(document), "%s", vt_tmpdir_path(&c->dir, "document.txt"));
    const char *args[] = {"register",  "--model",   model, "--server", c->server_address, "--compressor",
                          compressors, "--threads", "1",   "--json",   document,          NULL};
    int rc = vt_proc_run("vericache-node", args, NULL, RUN_MS, &out);
    cr_assert_eq(rc, 0, "register exits %d: %s", rc, out);
    vc_free(out);
}

vt_proc_t *remote_cluster_generate_start(remote_cluster_t *c, const char *const *flags)
{
    char model[512], prompt[512], result[512];
    snprintf(model, sizeof(model), "%s", vt_tmpdir_path(&c->dir, "model.gguf"));
    snprintf(prompt, sizeof(prompt), "%s", vt_tmpdir_path(&c->dir, "prompt.txt"));
    snprintf(result, sizeof(result), "%s", vt_tmpdir_path(&c->dir, "result.json"));
    const char *args[9 + FLAGS_MAX + 1] = {"generate", "--model",   model, "--prompt-file", prompt, "--result-file",
                                           result,     "--threads", "1"};
    size_t n = 9;
    while (*flags != NULL && n < 9 + FLAGS_MAX)
        args[n++] = *flags++;
    remove(result);
    return vt_proc_start("vericache-node", args, NULL);
}

json_t *remote_cluster_result(remote_cluster_t *c)
{
    json_error_t error;
    json_t *result = json_load_file(vt_tmpdir_path(&c->dir, "result.json"), 0, &error);
    cr_assert_not_null(result, "no result: %s", error.text);
    return result;
}

static json_t *finish(remote_cluster_t *c, vt_proc_t *run)
{
    int rc = vt_proc_wait_exit(run, RUN_MS);
    char *out = vt_proc_output(run);
    cr_assert_eq(rc, 0, "generate exits %d: %s", rc, out);
    vc_free(out);
    vt_proc_end(run);
    return remote_cluster_result(c);
}

json_t *remote_cluster_generate(remote_cluster_t *c, const char *const *flags)
{
    return finish(c, remote_cluster_generate_start(c, flags));
}

json_t *remote_cluster_generate_after_copy(remote_cluster_t *c, const char *const *flags)
{
    const char *args[FLAGS_MAX + 1] = {"--log-level", "info"};
    for (size_t n = 2; *flags != NULL && n < FLAGS_MAX; n++)
        args[n] = *flags++;
    vt_gate_hold(c->gate);
    vt_proc_t *run = remote_cluster_generate_start(c, args);
    (void)vt_proc_wait_line(run, "compressed copy", RUN_MS, NULL, 0); /* of one that ended before, the end says why */
    vt_gate_open(c->gate);
    return finish(c, run);
}

void remote_cluster_assert_same(const json_t *a, const json_t *b, const char *what)
{
    static const char *const keys[] = {"tokens", "logits_digest", "finish", "text"};
    (void)what; /* the plain runner tells places, not sentences */
    for (size_t i = 0; i < VC_ARRAY_LEN(keys); i++)
        cr_assert(json_equal(json_object_get(a, keys[i]), json_object_get(b, keys[i])), "%s: %s differs", what,
                  keys[i]);
}

double remote_cluster_stat(remote_cluster_t *c, const char *name)
{
    const char *args[] = {"stats", "--json", "--server", c->server_address, NULL};
    char *out = NULL;
    int rc = vt_proc_run("vericachectl", args, NULL, RUN_MS, &out);
    cr_assert_eq(rc, 0, "vericachectl exits %d: %s", rc, out);
    json_t *stats = json_loads(out, 0, NULL);
    cr_assert(json_is_number(json_object_get(stats, name)), "no stat %s in %s", name, out);
    double value = json_number_value(json_object_get(stats, name));
    json_decref(stats);
    vc_free(out);
    return value;
}

long long remote_int(const json_t *result, const char *name)
{
    cr_assert(json_is_number(json_object_get(result, name)), "the result has no %s", name);
    return (long long)json_number_value(json_object_get(result, name));
}
