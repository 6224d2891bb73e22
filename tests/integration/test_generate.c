/*
 * `vericache-node generate` as a program: text and JSON, exit codes and one sentence for what is wrong, an interrupt,
 * and output that does not depend on how it was made.
 */
#include <jansson.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kernels/team.h"
#include "support/file.h"
#include "support/proc.h"
#include "support/tiny_model.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vc/mem.h"

#define TIMEOUT_MS 60000u
static vt_tmpdir_t dir;
static char model[512];

static bool setup(void)
{
    if (!vt_proc_exists("vericache-node")) {
        printf("skipped: vericache-node is not built\n");
        return false;
    }
    vt_tmpdir_create(&dir);
    snprintf(model, sizeof model, "%s", vt_tmpdir_path(&dir, "tiny.gguf"));
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    gguf_image_t image = tiny_model_build(&o);
    cr_assert(gguf_image_write(&image, model));
    gguf_image_free(&image);
    return true;
}
#define SETUP()                                          \
    do {                                                 \
        if (!setup()) {                                  \
            cr_skip_test("vericache-node is not built"); \
            return;                                      \
        }                                                \
    } while (0)

/* "generate --model M --threads 1" and up to 14 arguments more, of which a number of threads wins; NULL ends them. */
static int generate(char **out_p, ...)
{
    const char *args[20] = {"generate", "--model", model, "--threads", "1"};
    va_list ap;
    va_start(ap, out_p);
    for (int i = 5; i < 19 && (args[i] = va_arg(ap, const char *)); i++)
        ;
    va_end(ap);
    return vt_proc_run("vericache-node", args, NULL, TIMEOUT_MS, out_p);
}

static json_t *generate_json(const char *a, const char *b, const char *c, const char *d)
{
    char *out;
    int rc = generate(&out, "--json", "--max-tokens", "20", "--prompt", "the user is in and out of the system", a, b, c,
                      d, NULL);
    cr_assert_eq(rc, 0, "%s", out);
    json_error_t je;
    const char *at = strchr(out, '{'); /* a line on threads before it, where there is one processor only */
    json_t *o = at != NULL ? json_loads(at, 0, &je) : NULL;
    cr_assert(o != NULL, "%s", out);
    vc_free(out);
    return o;
}

static const char *field(const json_t *o, const char *name) { return json_string_value(json_object_get(o, name)); }

Test(generate, json_tells_text_tokens_and_digests_that_do_not_depend_on_the_way)
{
    SETUP();
    json_t *plain = generate_json("--draft-length", "0", "--threads", "1");
    cr_assert_eq(json_array_size(json_object_get(plain, "tokens")), 20);
    cr_assert_str_eq(field(plain, "finish"), "length");
    cr_assert_str_eq(field(plain, "mode"), "solo");
    cr_assert_eq(strlen(field(plain, "logits_digest")), 64);
    cr_assert_gt(strlen(field(plain, "text")), 0);
    const char *ways[][4] = {{"--draft-length", "3", "--isa", "scalar"},
                             {"--draft-length", "8", "--compressor", "noise:eps=0.5"},
                             {"--draft-length", "auto", "--compressor", "kivi:bits=2,group=16,residual=0"},
                             {"--draft-length=2", "--threads=2", "--compressor=none", "--compress-tokens=64"}};
    for (size_t i = 0; i < VC_ARRAY_LEN(ways); i++) {
        json_t *o = generate_json(ways[i][0], ways[i][1], ways[i][2], ways[i][3]);
        const char *same[] = {"text", "finish", "logits_digest", "kv_digest"};
        for (size_t k = 0; k < VC_ARRAY_LEN(same); k++)
            cr_assert_str_eq(field(plain, same[k]), field(o, same[k]), "%s of way %zu", same[k], i);
        cr_assert(json_equal(json_object_get(plain, "tokens"), json_object_get(o, "tokens")));
        json_decref(o);
    }
    json_decref(plain);
    vt_tmpdir_remove(&dir);
}

/* A prompt of many blocks in a file; static storage. */
static const char *long_prompt(void)
{
    const char *path = vt_tmpdir_path(&dir, "long.txt");
    FILE *f = fopen(path, "w");
    cr_assert(f != NULL);
    for (int i = 0; i < 40; i++)
        fprintf(f, "%d: the user is in and out of the system, %x\n", i, i * 7919);
    cr_assert_eq(fclose(f), 0);
    return path;
}

static json_t *generate_long(const char *path, const char *a, const char *b, const char *c, const char *d)
{
    char *out;
    int rc = generate(&out, "--json", "--max-tokens", "40", "--prompt-file", path, a, b, c, d, NULL);
    cr_assert_eq(rc, 0, "%s", out);
    json_error_t je;
    json_t *o = json_loads(out, 0, &je);
    cr_assert(o != NULL, "%s in %s", je.text, out);
    vc_free(out);
    return o;
}

static json_int_t number(const json_t *o, const char *name) { return json_integer_value(json_object_get(o, name)); }

Test(generate, full_kv_in_a_file_gives_the_text_of_full_kv_in_memory)
{
    SETUP();
    const char *path = long_prompt();
    json_t *plain = generate_long(path, "--draft-length=0", NULL, NULL, NULL);
    cr_assert_eq(number(plain, "kv_ram_bytes"), 0);
    const char *ways[][3] = {{"--draft-length=0", NULL, NULL},
                             {"--draft-length=5", "--compressor=rot:bits=4", "--threads=1"},
                             {"--draft-length=7", "--compressor=snapkv:keep=0.25,window=32", NULL},
                             {"--draft-length=auto", "--compressor=kivi:bits=4,group=16", "--isa=scalar"},
                             {"--draft-length=3", "--compressor=kvzip", "--compress-tokens=512"}};
    for (size_t i = 0; i < VC_ARRAY_LEN(ways); i++) {
        json_t *o = generate_long(path, "--kv-ram=400KB", ways[i][0], ways[i][1], ways[i][2]);
        const char *same[] = {"text", "finish", "logits_digest", "kv_digest"};
        for (size_t k = 0; k < VC_ARRAY_LEN(same); k++)
            cr_assert_str_eq(field(plain, same[k]), field(o, same[k]), "%s of way %zu", same[k], i);
        cr_assert_gt(number(o, "kv_ram_bytes"), 0, "way %zu", i);
        cr_assert_leq(number(o, "kv_ram_bytes"), 400000);
        cr_assert_gt(number(o, "kv_written_bytes"), 0);
        cr_assert_gt(number(o, "kv_read_bytes"), 10 * number(o, "kv_written_bytes") / 2, "way %zu", i);
        json_decref(o);
    }
    json_t *roomy = generate_long(path, "--kv-ram=1GB", "--draft-length=0", NULL, NULL);
    cr_assert_eq(number(roomy, "kv_ram_bytes"), 0, "nothing is written where everything fits");
    json_decref(roomy);
    json_decref(plain);
    vt_tmpdir_remove(&dir);
}

Test(generate, a_slow_tier_that_cannot_be_made_is_told_in_a_sentence)
{
    SETUP();
    const char *path = long_prompt();
    char *out;
    cr_assert_eq(generate(&out, "--prompt-file", path, "--kv-ram=20KB", NULL), 64, "%s", out);
    cr_assert(strstr(out, "--kv-ram 19.53KiB is too little"), "%s", out);
    char advice[32], flag[48];
    cr_assert_eq(sscanf(strstr(out, "need "), "need %*[^:]: --kv-ram %31s would do", advice), 1, "%s", out);
    vc_free(out);
    snprintf(flag, sizeof flag, "--kv-ram=%s", advice);
    cr_assert_eq(generate(&out, "--prompt-file", path, flag, NULL), 0, "%s", out);
    vc_free(out);
    cr_assert_eq(
        generate(&out, "--prompt-file", path, "--kv-ram=400KB", "--max-tokens=40", "--kv-dir=/nonexistent/x", NULL), 64,
        "%s", out);
    cr_assert(strstr(out, "/nonexistent/x"), "%s", out);
    vc_free(out);
    cr_assert_eq(
        generate(&out, "--prompt-file", path, "--kv-ram=400KB", "--model=/nonexistent", "--kv-dir=/dev/null", NULL), 64,
        "%s", out);
    cr_assert(strstr(out, "--kv-dir: cannot make") && strstr(out, "/dev/null"), "before the model is read: %s", out);
    vc_free(out);
    struct rlimit old, small; /* stands for a full disk; the child inherits it */
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){100000, old.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = generate(&out, "--prompt-file", path, "--kv-ram=400KB", "--max-tokens=40", "--kv-dir", dir.path, NULL);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    cr_assert_eq(rc, 73, "%s", out);
    cr_assert(strstr(out, "no room for") && strstr(out, dir.path), "%s", out);
    vc_free(out);
    cr_assert_eq(generate(&out, "--prompt-file", path, "--kv-ram=400KB", "--draft-length=4", NULL), 64);
    cr_assert(strstr(out, "--compressor"), "%s", out);
    vc_free(out);
    cr_assert_eq(generate(&out, "--prompt-file", path, "--kv-ram=400KB", "--verifier=127.0.0.1:1", NULL), 64);
    cr_assert(strstr(out, "--kv-ram"), "%s", out);
    vc_free(out);
    vt_tmpdir_remove(&dir);
}

Test(generate, text_on_stdout_is_the_text_of_the_json)
{
    SETUP();
    json_t *o = generate_json(NULL, NULL, NULL, NULL);
    char *out, want[2048];
    cr_assert_eq(generate(&out, "--max-tokens", "20", "the user is in and out of the system", NULL), 0);
    snprintf(want, sizeof want, "%s\n", field(o, "text"));
    cr_assert_str_eq(out, want);
    vc_free(out);
    json_decref(o);
    vt_tmpdir_remove(&dir);
}

Test(generate, a_prompt_file_equals_the_prompt_and_seeds_repeat)
{
    SETUP();
    const char *path = vt_tmpdir_path(&dir, "prompt.txt");
    char *a, *b, *c;
    vt_file_write(path, "in the end", 10);
    cr_assert_eq(generate(&a, "--max-tokens", "12", "--temperature", "1", "--seed", "5", "in the end", NULL), 0);
    cr_assert_eq(generate(&b, "--max-tokens", "12", "--temperature", "1", "--seed", "5", "--prompt-file", path, NULL),
                 0);
    cr_assert_eq(generate(&c, "--max-tokens", "12", "--temperature", "1", "--seed", "6", "in the end", NULL), 0);
    cr_assert_str_eq(a, b);
    cr_assert(strcmp(a, c) != 0);
    vc_free(a);
    vc_free(b);
    vc_free(c);
    vt_tmpdir_remove(&dir);
}

Test(generate, several_stop_strings_and_raw_prompts)
{
    SETUP();
    char *full, *cut, stop[2] = {0}, *at;
    cr_assert_eq(generate(&full, "--raw", "--max-tokens", "30", "the user", NULL), 0);
    cr_assert_gt(strlen(full), 8);
    stop[0] = full[5];
    cr_assert_eq(generate(&cut, "--raw", "--max-tokens", "30", "--stop", "@@@", "--stop", stop, "the user", NULL), 0);
    at = strchr(full, stop[0]);
    cr_assert_eq(strlen(cut), (size_t)(at - full) + 1); /* and the newline behind it */
    cr_assert_eq(strncmp(full, cut, (size_t)(at - full)), 0);
    vc_free(full);
    vc_free(cut);
    vt_tmpdir_remove(&dir);
}

Test(generate, texts_on_the_command_line_may_have_line_ends)
{
    SETUP();
    char *given, *read;
    const char *path = vt_tmpdir_path(&dir, "prompt.txt");
    vt_file_write(path, "the user\n\tis in", 15);
    cr_assert_eq(generate(&read, "--raw", "--prompt-file", path, NULL), 0, "%s", read);
    cr_assert_eq(generate(&given, "--raw", "--prompt=the user\n\tis in", "--stop", "@\n\t@", NULL), 0, "%s", given);
    cr_assert_str_eq(given, read);
    vc_free(given);
    vc_free(read);
    vt_tmpdir_remove(&dir);
}

Test(generate, a_place_for_results_is_checked_before_the_model_is_read)
{
    SETUP();
    char *out;
    const char *kept = vt_tmpdir_path(&dir, "kept.json"), *none = vt_tmpdir_path(&dir, "none.json");
    vt_file_write(kept, "{}", 2);
    cr_assert_eq(generate(&out, "--model=/nowhere", "--result-file=/nowhere/x", "a", NULL), 64, "%s", out);
    cr_assert(strstr(out, "/nowhere/x"), "%s", out);
    vc_free(out);
    const char *const files[] = {kept, none};
    for (size_t i = 0; i < VC_ARRAY_LEN(files); i++) {
        cr_assert_eq(generate(&out, "--model=/nowhere", "--result-file", files[i], "a", NULL), 64, "%s", out);
        cr_assert(strstr(out, "/nowhere'"), "%s", out);
        vc_free(out);
    }
    size_t n;
    uint8_t *text = vt_file_read(kept, &n);
    cr_assert(n == 2 && memcmp(text, "{}", 2) == 0, "a run that fails leaves the last result");
    cr_assert_neq(access(none, F_OK), 0, "and no empty file");
    vc_free(text);
    vt_tmpdir_remove(&dir);
}

Test(generate, threads_beyond_the_processors_are_left_out_with_one_warning)
{
    SETUP();
    const uint32_t processors = node_team_processors();
    char *out, *two = NULL;
    json_error_t je;
    cr_assert_eq(generate(&out, "--json", "--max-tokens", "8", "--threads", "256", "the user is in", NULL), 0);
    cr_assert_eq(generate(&two, "--json", "--max-tokens", "8", "--threads", "1", "the user is in", NULL), 0);
    const char *at = strchr(out, '{');
    json_t *many = at != NULL ? json_loads(at, 0, &je) : NULL, *one = json_loads(two, 0, &je);
    cr_assert(many != NULL && one != NULL, "%s in %s", je.text, out);
    if (processors < 256) {
        cr_assert(strstr(out, "warn node: more threads than processors"), "%s", out);
        cr_assert_eq(strchr(out, '\n') + 1, at, "one line of warning: %s", out);
    }
    cr_assert_eq(json_integer_value(json_object_get(many, "threads")), VC_MIN(processors, 256u));
    cr_assert_str_eq(field(many, "logits_digest"), field(one, "logits_digest"));
    json_decref(many);
    json_decref(one);
    vc_free(out);
    vc_free(two);
    vt_tmpdir_remove(&dir);
}

Test(generate, where_nobody_names_a_number_threads_are_the_processors_and_sixteen_at_most)
{
    SETUP();
    const char *args[] = {"generate", "--model", model, "--json", "--max-tokens", "2", "the user", NULL};
    char *out;
    json_error_t je;
    cr_assert_eq(vt_proc_run("vericache-node", args, NULL, TIMEOUT_MS, &out), 0, "%s", out);
    json_t *o = json_loads(out, 0, &je); /* no warning before it */
    cr_assert(o != NULL, "%s in %s", je.text, out);
    cr_assert_eq(json_integer_value(json_object_get(o, "threads")), VC_MIN(node_team_processors(), 16u));
    json_decref(o);
    vc_free(out);
    vt_tmpdir_remove(&dir);
}

static void expect_error(int rc, const char *sentence, const char *a, const char *b, const char *c)
{
    char *out;
    int got = generate(&out, a, b, c, NULL);
    cr_assert_eq(got, rc, "exit code %d: %s", got, out);
    cr_assert(strstr(out, sentence), "'%s' is not in '%s'", sentence, out);
    const char *newline = strchr(out, '\n');
    cr_assert(newline && newline[1] == 0, "one line: '%s'", out);
    vc_free(out);
}

Test(generate, wrong_arguments_end_with_one_sentence_and_exit_code_64)
{
    SETUP();
    expect_error(64, "--no-such-flag", "--no-such-flag", "1", "x");
    expect_error(64, "--mirostat", "--mirostat", "2", "x");
    expect_error(64, "no prompt", NULL, NULL, NULL);
    expect_error(64, "further argument", "one", "two", NULL);
    expect_error(64, "--draft-length", "--draft-length", "many", "x");
    expect_error(64, "--draft-length", "--draft-length", "256", "x");
    expect_error(64, "max-tokens", "--max-tokens", "0", "x");
    expect_error(64, "zip", "--compressor", "zip:level=9", "x");
    expect_error(64, "temperature", "--temperature", "0.0001", "x");
    expect_error(64, "top-p 0 is not above 0, up to 1", "--top-p", "0", "x");
    expect_error(64, "--raw", "--raw", "--system=be nice", "x");
    expect_error(64, "stop string", "--stop", "", "x");
    expect_error(64, "isa", "--isa", "sse9", "x");
    static const char *const idle[][4] = {
        {"--kv-dir does nothing", "--kv-dir=/var/tmp"},
        {"--compress-tokens does nothing", "--compress-tokens=64"},
        {"--calibration does nothing", "--calibration=/var/tmp"},
        {"--data-plane does nothing", "--data-plane"},
        {"--tail does nothing", "--tail=own", "--server=127.0.0.1:1"},
        {"--tail does nothing", "--tail=own", "--verifier=127.0.0.1:1"},
        {"--compressor does nothing", "--compressor=none", "--server=127.0.0.1:1"},
        {"--compressor does nothing", "--compressor=none", "--draft-length=0"},
        {"--draft-length does nothing", "--draft-length=4", "--verifier=127.0.0.1:1"},
        {"--source does nothing", "--source=suffix", "--draft-length=0"},
        {"--source does nothing", "--source=none", "--draft-length=0"},
        {"--chat does nothing", "--chat", "--raw"},
    };
    for (size_t i = 0; i < VC_ARRAY_LEN(idle); i++)
        expect_error(64, idle[i][0], "a prompt", idle[i][1], idle[i][2]);
    vt_tmpdir_remove(&dir);
}

Test(generate, missing_and_damaged_files_are_named)
{
    SETUP();
    char *out;
    const char *args[] = {"generate", "--model", "/nowhere/model.gguf", "x", NULL};
    cr_assert_neq(vt_proc_run("vericache-node", args, NULL, TIMEOUT_MS, &out), 0);
    cr_assert_not_null(strstr(out, "/nowhere/model.gguf"));
    vc_free(out);
    const char *path = vt_tmpdir_path(&dir, "bad.gguf");
    vt_file_write(path, "GGUF but not really", 19);
    args[2] = path;
    int rc = vt_proc_run("vericache-node", args, NULL, TIMEOUT_MS, &out);
    cr_assert(rc == 64 || rc == 65, "exit code %d: %s", rc, out);
    cr_assert_not_null(strstr(out, path));
    vc_free(out);
    args[2] = "";
    cr_assert_eq(vt_proc_run("vericache-node", args, NULL, TIMEOUT_MS, &out), 64, "%s", out);
    vc_free(out);
    cr_assert_neq(generate(&out, "--prompt-file", "/nowhere/prompt", NULL), 0);
    cr_assert_not_null(strstr(out, "/nowhere/prompt"));
    vc_free(out);
    vt_tmpdir_remove(&dir);
}

Test(generate, a_prompt_that_fills_the_context_is_refused)
{
    SETUP();
    char *out;
    int rc = generate(&out, "--raw", "--context", "4", "a long prompt of more than four tokens", NULL);
    cr_assert_eq(rc, 64, "%d %s", rc, out);
    cr_assert(strstr(out, "more than 3 tokens") && strstr(out, "context of 4"), "%s", out);
    vc_free(out);
    vt_tmpdir_remove(&dir);
}

Test(generate, help_and_print_config_succeed)
{
    SETUP();
    char *out;
    cr_assert_eq(generate(&out, "--help", NULL), 0);
    cr_assert_not_null(strstr(out, "--draft-length"));
    vc_free(out);
    cr_assert_eq(generate(&out, "--print-config", "x", NULL), 0);
    cr_assert_not_null(strstr(out, "draft-length"));
    vc_free(out);
    vt_tmpdir_remove(&dir);
}

Test(generate, an_interrupt_ends_it_cleanly_with_what_is_there)
{
    SETUP();
    const char *args[] = {"generate", "--model",          model,   "--max-tokens", "3900",  "--draft-length",
                          "0",        "--log-level=info", "--isa", "scalar",       "--raw", "go",
                          NULL};
    vt_proc_t *p = vt_proc_start("vericache-node", args, NULL);
    cr_assert(vt_proc_wait_line(p, "model loaded", TIMEOUT_MS, NULL, 0)); /* the handler is older than this line */
    vt_proc_signal(p, SIGINT);
    cr_assert_eq(vt_proc_wait_exit(p, TIMEOUT_MS), 130);
    char *out = vt_proc_output(p);
    cr_assert_not_null(strstr(out, "interrupted"));
    vc_free(out);
    vt_proc_end(p);
    vt_tmpdir_remove(&dir);
}
