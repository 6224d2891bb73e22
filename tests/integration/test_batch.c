/*
 * `vericache-node batch` as a program: a line of results for each line of requests, whatever is wrong with others; one
 * sentence for what is wrong; the same answers as `generate` gives, in memory and from the slow tier; an interrupt.
 */
#include <jansson.h>
#include <signal.h>
#include <string.h>

#include "support/file.h"
#include "support/proc.h"
#include "support/tiny_model.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vc/mem.h"

#define TIMEOUT_MS 60000u
enum { MAX_LINES = 32 };
static vt_tmpdir_t dir;
static char model[512], requests[512], results[512];

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static bool setup(void)
{
    if (!vt_proc_exists("vericache-node"))
        return false;
    vt_tmpdir_create(&dir);
    snprintf(model, sizeof model, "%s", vt_tmpdir_path(&dir, "tiny.gguf"));
    snprintf(requests, sizeof requests, "%s", vt_tmpdir_path(&dir, "requests.jsonl"));
    snprintf(results, sizeof results, "%s", vt_tmpdir_path(&dir, "results.jsonl"));
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

/* Runs the requests on one thread, with up to eight arguments more; results by line number in got, NULL where there is
 * none. */
static int run(json_t **got, const char *const *more, char **out_p)
{
    const char *args[20] = {"batch", "--model", model, "--requests", requests, "--out", results, "--threads", "1"};
    for (int i = 0; more && more[i]; i++)
        args[9 + i] = more[i];
    memset(got, 0, MAX_LINES * sizeof *got);
    int rc = vt_proc_run("vericache-node", args, NULL, TIMEOUT_MS, out_p);
    FILE *f = fopen(results, "r");
    json_t *line;
    for (json_error_t e; f && (line = json_loadf(f, JSON_DISABLE_EOF_CHECK, &e)) != NULL;) {
        const json_t *id = json_object_get(line, "id");
        json_int_t n = json_is_integer(id) ? json_integer_value(id) : json_integer_value(json_object_get(line, "line"));
        cr_assert(n > 0 && n < MAX_LINES && got[n] == NULL, "one line of results a request");
        got[n] = line;
    }
    if (f)
        fclose(f);
    return rc;
}

static void free_results(json_t **got)
{
    for (int i = 0; i < MAX_LINES; i++)
        json_decref(got[i]);
}

static const char *text_of(const json_t *o, const char *name) { return json_string_value(json_object_get(o, name)); }

#define WIDE                                                                                                           \
    "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9" \
    "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"

Test(batch, each_wrong_line_gets_one_sentence_and_the_others_their_text)
{
    SETUP();
    static const struct {
        const char *line, *error; /* NULL: it is good */
    } cases[] = {
        {"{\"id\": 1, \"prompt\": \"the user\", \"max_tokens\": 5}", NULL},
        {"{\"id\": 2, \"prompt\": 7}", "prompt is no string"},
        {"{\"id\": 3, \"prompt\": \"a\", \"max_tokens\": 0}", "max_tokens"},
        {"{\"id\": 4, \"prompt\": \"a\", \"temprature\": 1}", "no field 'temprature'"},
        {"{\"id\": 5, \"prompt\": \"a\", \"top_p\": 2}", "top-p"},
        {"{\"id\": 6, \"prompt\": \"a\", \"temperature\": \"hot\"}", "temperature is no number"},
        {"{\"id\": 7, \"prompt\": \"a\", \"seed\": -1}", "seed"},
        {"{\"id\": 8, \"prompt\": \"a\", \"stop\": [\"x\", \"\"]}", "stop string"},
        {"{\"id\": 9}", "no prompt"},
        {"{\"id\": 10, \"prompt\": \"a\", \"raw\": 1}", "raw is neither"},
        {"[1, 2]", "no JSON object"},
        {"{\"prompt\": \"unfinished", "no JSON object"},
        {"{\"id\": {}, \"prompt\": \"a\"}", "id is neither"},
        {"{\"id\": 14, \"prompt\": \"a\", \"prompt\": \"b\"}", "duplicate"},
        {"{\"id\": 15, \"prompt\": \"a\", \"raw\": true, \"system\": \"be kind\"}", "system"},
        {"", NULL},
        {"{\"id\": 17, \"prompt\": \"in and out\", \"max_tokens\": 9, \"temperature\": 1, \"seed\": 3}", NULL},
        /* the name is cut within a character where the sentence quotes it */
        {"{\"id\": 18, \"prompt\": \"a\", \"x" WIDE WIDE WIDE "\": 1}", "no field 'x"},
        {"{\"id\": 19, \"prompt\": \"a\", \"source\": \"index\"}", "source is neither"},
        {"{\"id\": 20, \"prompt\": \"a\", \"source\": \"none\", \"max_tokens\": 3}", NULL},
    };
    char all[4096] = "", *out;
    for (size_t i = 0; i < VC_ARRAY_LEN(cases); i++) {
        strcat(all, cases[i].line);
        strcat(all, i + 1 < VC_ARRAY_LEN(cases) ? "\n" : "");
    }
    write_text(requests, all);
    json_t *got[MAX_LINES];
    cr_assert_eq(run(got, NULL, &out), 65, "%s", out);
    cr_assert_neq(strstr(out, "16 requests failed"), NULL, "%s", out);
    for (size_t i = 0; i < VC_ARRAY_LEN(cases); i++) {
        const json_t *o = got[i + 1];
        if (!cases[i].line[0])
            cr_assert_eq(o, NULL);
        else if (cases[i].error == NULL)
            cr_assert(text_of(o, "text") && !text_of(o, "error"), "line %zu", i + 1);
        else
            cr_assert(text_of(o, "error") && strstr(text_of(o, "error"), cases[i].error), "line %zu: %s", i + 1,
                      text_of(o, "error"));
    }
    cr_assert_eq(json_array_size(json_object_get(got[17], "tokens")), 9);
    free_results(got);
    vc_free(out);
    vt_tmpdir_remove(&dir);
}

Test(batch, a_line_beyond_64_mib_is_told_once_and_the_others_get_their_text)
{
    SETUP();
    static const char first[] = "{\"prompt\": \"the user\", \"max_tokens\": 5}\n", last[] = "\n{\"prompt\": \"in\"}";
    FILE *f = fopen(requests, "w");
    cr_assert(f && fputs(first, f) >= 0 && fseek(f, (64 << 20) + 1, SEEK_CUR) == 0 && fputs(last, f) >= 0);
    cr_assert_eq(fclose(f), 0);
    json_t *got[MAX_LINES];
    char *out;
    cr_assert_eq(run(got, NULL, &out), 65, "%s", out);
    cr_assert_neq(strstr(out, "1 request failed, see its line"), NULL, "%s", out);
    cr_assert_not_null(text_of(got[1], "text"));
    cr_assert_neq(strstr(text_of(got[2], "error"), "is longer than"), NULL);
    cr_assert_not_null(text_of(got[3], "text"));
    free_results(got);
    vc_free(out);
    vt_tmpdir_remove(&dir);
}

Test(batch, a_requests_own_source_is_refused_where_there_are_no_drafts)
{
    SETUP();
    static const char *const none[] = {"--draft-length", "0", NULL};
    write_text(requests, "{\"prompt\": \"the user\", \"max_tokens\": 3, \"source\": \"suffix\"}\n"
                         "{\"prompt\": \"the user\", \"max_tokens\": 3, \"source\": \"none\"}\n"
                         "{\"prompt\": \"the user\", \"max_tokens\": 3}\n");
    json_t *got[MAX_LINES];
    char *out;
    cr_assert_eq(run(got, none, &out), 65, "%s", out);
    for (uint32_t i = 1; i <= 2; i++)
        cr_assert(text_of(got[i], "error") && strstr(text_of(got[i], "error"), "source does nothing here"), "%u", i);
    cr_assert_not_null(text_of(got[3], "text"));
    free_results(got);
    vc_free(out);
    vt_tmpdir_remove(&dir);
}

Test(batch, stats_tell_no_rate_where_nothing_was_streamed)
{
    SETUP();
    static const char *const tier[] = {"--kv-ram", "600KiB", "--stats", NULL};
    write_text(requests, "{\"prompt\": \"the user\", \"max_tokens\": 3}\n");
    json_t *got[MAX_LINES];
    char *out;
    cr_assert_eq(run(got, tier, &out), 0, "%s", out);
    cr_assert_neq(strstr(out, "1 request, 0 failed; 3 tokens in "), NULL, "%s", out);
    cr_assert_neq(strstr(out, "no full KV streamed"), NULL, "%s", out);
    cr_assert_eq(strstr(out, "GB/s"), NULL, "%s", out);
    free_results(got);
    vc_free(out);
    vt_tmpdir_remove(&dir);
}

Test(batch, a_prompt_beyond_the_context_is_refused_without_a_count_of_all_of_it)
{
    SETUP();
    FILE *f = fopen(requests, "w");
    cr_assert(f);
    for (int line = 0; line < 2; line++) { /* words, and one word */
        fprintf(f, "{\"raw\": true, \"prompt\": \"");
        for (int i = 0; i < 60000; i++)
            fputs(line == 0 ? "in " : "abc", f);
        fprintf(f, "\"}\n");
    }
    cr_assert_eq(fclose(f), 0);
    json_t *got[MAX_LINES];
    char *out;
    cr_assert_eq(run(got, (const char *const[]){"--context", "100", NULL}, &out), 65, "%s", out);
    for (int i = 1; i <= 2; i++)
        cr_assert_str_eq(text_of(got[i], "error"),
                         "the prompt has more than 99 tokens, which leaves no room in a context of 100");
    free_results(got);
    vc_free(out);
    vt_tmpdir_remove(&dir);
}

/* Prompts of several lengths, sampled and greedy. */
static void write_requests(uint32_t n, uint32_t words)
{
    FILE *f = fopen(requests, "w");
    cr_assert(f);
    for (uint32_t i = 1; i <= n; i++) {
        fprintf(f, "{\"id\": %u, \"raw\": true, \"max_tokens\": %u, \"temperature\": %u, \"seed\": %u, \"prompt\": \"",
                i, 10 + 3 * i, i % 2, i);
        for (uint32_t w = 0; w < words + 40 * i; w++)
            fprintf(f, "%c%s", 'a' + (char)((w * i + w / 7) % 26), w % 5 == 4 ? " " : "");
        fprintf(f, "\"}\n");
    }
    cr_assert_eq(fclose(f), 0);
}

Test(batch, answers_do_not_depend_on_how_the_batch_was_run)
{
    SETUP();
    static const char *const ways[][12] = {
        {"--draft-length", "0", "--max-running", "1", NULL},
        {"--draft-length", "0", "--max-running", "3", NULL},
        {"--draft-length", "auto", "--prompt-rows", "5", NULL},
        {"--source", "none", "--max-running", "2", NULL},
        {"--draft-length", "7", "--schedule", "lockstep", NULL},
        {"--draft-length", "5", "--kv-ram", "600KiB", "--context", "1024", "--max-running", "2", NULL},
        {"--draft-length", "4", "--kv-ram", "900KiB", "--hold", "1MiB", "--context", "1024", "--schedule", "lockstep",
         NULL},
        {"--draft-length", "3", "--kv-ram", "600KiB", "--hold", "1000TiB", "--context", "1024", "--max-running", "2",
         NULL},
    };
    json_t *base[MAX_LINES], *got[MAX_LINES];
    write_requests(6, 400);
    for (size_t w = 0; w < VC_ARRAY_LEN(ways); w++) {
        char *out;
        int rc = run(w ? got : base, ways[w], &out);
        cr_assert_eq(rc, 0, "way %zu: %s", w, out);
        vc_free(out);
        for (uint32_t i = 1; w && i <= 6; i++) {
            cr_assert_str_eq(text_of(got[i], "text"), text_of(base[i], "text"), "way %zu, request %u", w, i);
            cr_assert_str_eq(text_of(got[i], "logits_digest"), text_of(base[i], "logits_digest"));
            cr_assert_str_eq(text_of(got[i], "finish"), "length");
        }
        if (w)
            free_results(got);
    }
    free_results(base);
    vt_tmpdir_remove(&dir);
}

Test(batch, wrong_options_are_one_sentence)
{
    SETUP();
    static const struct {
        const char *args[8], *sentence;
        int rc;
    } cases[] = {
        {{"--draft-length", "many"}, "neither auto nor a number", 64},
        {{"--hold", "1MiB"}, "--hold does nothing here: it is read with --kv-ram", 64},
        {{"--kv-dir", "/var/tmp"}, "--kv-dir does nothing here: it is read with --kv-ram", 64},
        {{"--calibration", "/var/tmp", "--compressor", ""}, "--calibration does nothing here", 64},
        {{"--compressor", "none", "--draft-length", "0"}, "--compressor does nothing here", 64},
        {{"--source", "suffix", "--draft-length", "0"}, "--source does nothing here", 64},
        {{"--source", "none", "--draft-length", "0"}, "--source does nothing here", 64},
        {{"--kv-ram", "600KiB", "--kv-dir", "/nonexistent/x"}, "--kv-dir: cannot make a file for full KV in", 64},
        {{"--kv-ram", "600KiB", "--kv-dir", "/dev/null"}, "--kv-dir: cannot make a file for full KV in", 64},
        {{"--source", "index"}, "source", 64},
        {{"--schedule", "random"}, "schedule", 64},
        {{"--compressor", "zip"}, "zip", 64},
        {{"--kv-ram", "1KiB"}, "--kv-ram 1KiB is 256 for each of --max-running 4", 65},
        {{"--kv-ram", "600KiB", "--hold", "8KiB"}, "--hold 8KiB is too little", 64},
        {{"--requests", "/nonexistent/file"}, "/nonexistent/file", 64},
        {{"extra"}, "'extra' is no option", 64},
        {{"--out", requests}, "is the file of requests", 64},
    };
    write_text(requests, "{\"prompt\": \"a\"}\n");
    for (size_t i = 0; i < VC_ARRAY_LEN(cases); i++) {
        char *out;
        json_t *got[MAX_LINES];
        int rc = run(got, cases[i].args, &out);
        cr_assert_eq(rc, cases[i].rc, "case %zu: exit code %d: %s", i, rc, out);
        if (got[1] == NULL)
            cr_assert_neq(strstr(out, cases[i].sentence), NULL, "case %zu: %s", i, out);
        else
            cr_assert_neq(strstr(text_of(got[1], "error"), cases[i].sentence), NULL, "%s", text_of(got[1], "error"));
        free_results(got);
        vc_free(out);
    }
    vt_tmpdir_remove(&dir);
}

Test(batch, what_would_do_for_memory_does)
{
    SETUP();
    write_requests(1, 600);
    json_t *got[MAX_LINES];
    char *out, ram[32], hold[32];
    const char *few[] = {"--kv-ram", "100KiB", "--max-running", "3", NULL};
    cr_assert_eq(run(got, few, &out), 65, "%s", out);
    const char *error = text_of(got[1], "error");
    cr_assert(error && strstr(error, "--kv-ram 100KiB is 33.33KiB for each of --max-running 3"), "%s", error);
    cr_assert_eq(sscanf(strstr(error, "need "), "need %*[^:]: --kv-ram %31s would do", ram), 1, "%s", error);
    free_results(got);
    vc_free(out);
    const char *less[] = {"--kv-ram", ram, "--max-running", "3", "--hold", "8KiB", NULL};
    cr_assert_eq(run(got, less, &out), 64, "%s", out);
    cr_assert_eq(sscanf(strstr(out, "one pass"), "one pass: --hold %31s would do", hold), 1, "%s", out);
    vc_free(out);
    const char *enough[] = {"--kv-ram", ram, "--max-running", "3", "--hold", hold, NULL};
    cr_assert_eq(run(got, enough, &out), 0, "%s", out);
    cr_assert_not_null(text_of(got[1], "text"));
    free_results(got);
    vc_free(out);
    vt_tmpdir_remove(&dir);
}

Test(batch, an_interrupt_ends_it_between_two_passes_with_a_line_for_what_was_under_way)
{
    SETUP();
    write_text(requests, "{\"prompt\": \"the user is\", \"max_tokens\": 3}\n"
                         "{\"prompt\": \"the user is in\", \"max_tokens\": 4000}\n");
    const char *args[] = {"batch", "--model", model, "--requests", requests, "--threads", "1", NULL};
    vt_proc_t *p = vt_proc_start("vericache-node", args, NULL);
    cr_assert(vt_proc_wait_line(p, "\"finish\":\"length\"", TIMEOUT_MS, NULL, 0));
    vt_proc_signal(p, SIGINT);
    cr_assert_eq(vt_proc_wait_exit(p, TIMEOUT_MS), 130);
    char *out = vt_proc_output(p);
    cr_assert_neq(strstr(out, "\"error\":\"cancelled\""), NULL, "%s", out);
    cr_assert_neq(strstr(out, "vericache-node batch: interrupted"), NULL, "%s", out);
    vc_free(out);
    vt_proc_end(p);
    vt_tmpdir_remove(&dir);
}

/* The number of a closed stream must not become that of the next file: requests would be read from it. */
Test(batch, a_closed_standard_stream_is_an_error_and_nobody_waits_for_it)
{
    SETUP();
    static const struct {
        const char *redirect, *sentence;
        int rc;
    } cases[] = {{"<&-", "cannot read -: Bad file descriptor", 74}, {"<\"$2\" >&-", "cannot write the results", 74}};
    write_text(requests, "{\"prompt\": \"the user\", \"max_tokens\": 2}\n");
    for (size_t i = 0; i < VC_ARRAY_LEN(cases); i++) {
        char line[128], *out;
        snprintf(line, sizeof line, "\"$0\" batch --model \"$1\" %s", cases[i].redirect);
        const char *args[] = {"-c", line, VC_BIN_DIR "/inference-node/vericache-node", model, requests, NULL};
        int rc = vt_proc_run("/bin/sh", args, NULL, TIMEOUT_MS, &out);
        cr_assert_eq(rc, cases[i].rc, "exit code %d: %s", rc, out);
        cr_assert_neq(strstr(out, cases[i].sentence), NULL, "%s", out);
        vc_free(out);
    }
    vt_tmpdir_remove(&dir);
}
