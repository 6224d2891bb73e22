/*
 * `vericache-node tokenize` as a user meets it: ids and pieces, JSON, chat, and one sentence with the right exit code
 * for whatever is wrong.
 */
#include <jansson.h>
#include <string.h>

#include "support/file.h"
#include "support/proc.h"
#include "support/tiny_model.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vc/mem.h"

typedef struct {
    vt_tmpdir_t dir;
    char model[300];
} fixture_t;

static void set_up(fixture_t *f)
{
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    o.n_layer = 1;
    gguf_image_t image = tiny_model_build(&o);
    vt_tmpdir_create(&f->dir);
    snprintf(f->model, sizeof(f->model), "%s", vt_tmpdir_path(&f->dir, "tiny.gguf"));
    cr_assert(gguf_image_write(&image, f->model));
    gguf_image_free(&image);
}

/* Runs `vericache-node args...`; the output is the caller's. */
static char *run(const char *const *args, const char *const *env, int want_rc)
{
    char *output = NULL;
    const int rc = vt_proc_run("vericache-node", args, env, 60000, &output);
    cr_assert_eq(rc, want_rc, "exit code %d: %s", rc, output);
    return output;
}

static void expect(const char *const *args, const char *const *env, int want_rc, const char *word)
{
    char *output = run(args, env, want_rc);
    cr_assert_not_null(strstr(output, word), "no '%s' in: %s", word, output);
    vc_free(output);
}

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

Test(tokenize, shows_ids_and_pieces_of_an_argument_and_of_a_file)
{
    fixture_t f;
    set_up(&f);
    const char *file = vt_tmpdir_path(&f.dir, "text");
    vt_file_write(file, "x\n\xff", 3);
    expect(ARGS("tokenize", "--model", f.model, " the"), NULL, 0, "\" the\"");
    expect(ARGS("tokenize", "--model", f.model, "--file", file), NULL, 0, "\"\\xff\"");
    expect(ARGS("tokenize", "--model", f.model, "--file", file), NULL, 0, "3 tokens");
    expect(ARGS("tokenize", "--model", f.model, "<|im_end|>"), NULL, 0, "9 tokens");
    expect(ARGS("tokenize", "--model", f.model, "--special", "<|im_end|>"), NULL, 0, "  special");
    vt_tmpdir_remove(&f.dir);
}

Test(tokenize, json_holds_the_chat_turns)
{
    fixture_t f;
    set_up(&f);
    char *output = run(ARGS("tokenize", "--model", f.model, "--json", "--chat", "--system", "s", "hi\xff"), NULL, 0);
    json_error_t error;
    json_t *j = json_loads(output, JSON_DISABLE_EOF_CHECK, &error);
    cr_assert_not_null(j, "%s in %s", error.text, output);
    const json_t *ids = json_object_get(j, "ids"), *pieces = json_object_get(j, "pieces");
    const size_t n = (size_t)json_integer_value(json_object_get(j, "n"));
    cr_assert(json_array_size(ids) == n && json_array_size(pieces) == n);
    cr_assert_eq(json_integer_value(json_array_get(ids, 0)), TINY_ID_IM_START);
    cr_assert_str_eq(json_string_value(json_array_get(pieces, 0)), "<|im_start|>");
    size_t n_hex = 0, n_ends = 0;
    for (size_t i = 0; i < n; i++) {
        n_hex += json_is_object(json_array_get(pieces, i));
        n_ends += json_integer_value(json_array_get(ids, i)) == TINY_ID_IM_END;
    }
    cr_assert(n_hex == 1 && n_ends == 2);
    json_decref(j);
    vc_free(output);
    vt_tmpdir_remove(&f.dir);
}

Test(tokenize, takes_the_model_from_the_environment_and_passes_other_variables_over)
{
    fixture_t f;
    char model[400];
    set_up(&f);
    snprintf(model, sizeof(model), "VERICACHE_MODEL=%s", f.model);
    expect(ARGS("tokenize", "the"), ARGS(model, "VERICACHE_SERVER=127.0.0.1:1"), 0, "2 tokens");
    vt_tmpdir_remove(&f.dir);
}

Test(tokenize, says_in_one_line_what_is_wrong)
{
    fixture_t f;
    set_up(&f);
    const char *damaged = vt_tmpdir_path(&f.dir, "damaged.gguf");
    size_t n;
    uint8_t *bytes = vt_file_read(f.model, &n);
    vt_file_write(damaged, bytes, n / 2);
    vc_free(bytes);
    expect(ARGS("tokenize", "--model", f.model, "--bogus", "x"), NULL, 64, "--bogus");
    expect(ARGS("tokenize", "--model", f.model, "two", "texts"), NULL, 64, "one text");
    expect(ARGS("tokenize", "--model", f.model, "--file", "/x", "text"), NULL, 64, "both");
    expect(ARGS("tokenize", "x"), NULL, 64, "--model");
    expect(ARGS("tokenize", "--model", "/no/such/file", "x"), NULL, 64, "/no/such/file");
    expect(ARGS("tokenize", "--model", f.model, "--file", "/no/such/text"), NULL, 64, "/no/such/text");
    expect(ARGS("tokenize", "--model", damaged, "x"), NULL, 65, "past the end");
    expect(ARGS("no-such-command"), NULL, 64, "no-such-command");
    expect(ARGS("--help"), NULL, 0, "tokenize");
    expect(ARGS("tokenize", "--help"), NULL, 0, "special");
    expect(ARGS("--version"), NULL, 0, "vericache-node ");
    vt_tmpdir_remove(&f.dir);
}
