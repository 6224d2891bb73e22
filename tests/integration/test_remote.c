/*
 * The remote path as processes: recompute, full fetch and draft/verify give the same tokens and the same logits,
 * whatever is killed, damaged or missing in between.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "support/file.h"
#include "support/remote_cluster.h"
#include "support/vc_test.h"
#include "vc/mem.h"

#define KIVI "kivi:bits=4"
/* Still under way when something happens to it; sanitized programs take three times as long for a token. */
#define LONG_ANSWER (VT_EVERY > 1 ? "500" : "1200")
#define LONGER_ANSWER "1200" /* than a copy takes on a slow way */

static const char *const recompute[] = {"--draft-length", "0", "--max-tokens", "60", NULL};

static bool programs_missing(void)
{
    return !vt_proc_exists("vericache-server") || !vt_proc_exists("vericache-node") || !vt_proc_exists("vericachectl");
}

#define NEED_PROGRAMS()                                 \
    do {                                                \
        if (programs_missing())                         \
            cr_skip_test("the programs are not built"); \
    } while (0)

/* For tests that need the compressed copy, however short the answer. */
static void start_behind_gate(remote_cluster_t *c)
{
    remote_cluster_start(c);
    char model[512];
    snprintf(model, sizeof(model), "%s", vt_tmpdir_path(&c->dir, "model.gguf"));
    remote_cluster_start_gate(c);
    remote_cluster_start_verify(c, model);
}

Test(remote, recompute_full_fetch_and_vericache_give_the_same_bits)
{
    NEED_PROGRAMS();
    remote_cluster_t c;
    start_behind_gate(&c);
    remote_cluster_register(&c, KIVI ";snapkv:keep=0.25;snapkv:keep=0.5,window=32;noise:eps=0.3;none");
    json_t *base = remote_cluster_generate(&c, recompute);
    const char *full[] = {"--server", c.server_address, "--draft-length", "0", "--max-tokens", "60", NULL};
    json_t *fetched = remote_cluster_generate(&c, full);
    remote_cluster_assert_same(base, fetched, "full fetch");
    cr_assert_gt(remote_int(fetched, "prefix_blocks"), 3);
    cr_assert_lt(remote_int(fetched, "computed_tokens"), 128);
    static const char *const specs[] = {KIVI, "snapkv:keep=0.25", "snapkv:keep=0.5,window=32", "noise:eps=0.3", "none"};
    static const char *const tails[] = {"own", "verified"};
    for (size_t i = 0; i < VC_ARRAY_LEN(specs) * 2; i++) {
        const char *flags[] = {"--server",
                               c.server_address,
                               "--verifier",
                               c.verify_address,
                               "--compressor",
                               specs[i / 2],
                               "--tail",
                               tails[i % 2],
                               "--max-tokens",
                               "60",
                               "--draft-length",
                               "4",
                               NULL};
        json_t *ours = remote_cluster_generate_after_copy(&c, flags);
        remote_cluster_assert_same(base, ours, specs[i / 2]);
        cr_assert_gt(remote_int(ours, "prefix_blocks"), 3, "%s was not fetched", specs[i / 2]);
        cr_assert_gt(remote_int(ours, "fast_bytes"), 0);
        cr_assert_eq(remote_int(ours, "recoveries"), 0);
        if (strcmp(specs[i / 2], "none") == 0) /* drafts from the same KV: every one that is looked at is right */
            cr_assert_eq(remote_int(ours, "accepted"), remote_int(ours, "drafted"));
        json_decref(ours);
    }
    cr_assert_gt(remote_cluster_stat(&c, "hit_blocks_full"), 0);
    cr_assert_gt(remote_cluster_stat(&c, "hit_blocks_compressed"), 0);
    json_decref(base);
    json_decref(fetched);
    remote_cluster_stop(&c);
}

Test(remote, sampled_text_is_the_same_as_well)
{
    NEED_PROGRAMS();
    remote_cluster_t c;
    remote_cluster_start(&c);
    remote_cluster_register(&c, KIVI);
    const char *alone[] = {"--temperature", "0.9", "--top-p", "0.95", "--seed", "7", "--max-tokens", "60", NULL};
    json_t *base = remote_cluster_generate(&c, alone);
    const char *flags[] = {"--temperature", "0.9", "--top-p",  "0.95",           "--seed",     "7",
                           "--max-tokens",  "60",  "--server", c.server_address, "--verifier", c.verify_address,
                           "--compressor",  KIVI,  NULL};
    json_t *ours = remote_cluster_generate(&c, flags);
    remote_cluster_assert_same(base, ours, "sampled");
    json_decref(base);
    json_decref(ours);
    remote_cluster_stop(&c);
}

static bool has_note(const json_t *result, const char *text)
{
    size_t i;
    json_t *note;
    json_array_foreach(json_object_get(result, "notes"), i, note)
    {
        if (strstr(json_string_value(note), text) != NULL)
            return true;
    }
    return false;
}

/* The copy is looked up and fetched by a thread of its own, while the committed tokens grow the array of tokens. */
Test(remote, tokens_are_committed_while_the_copy_is_still_on_its_way)
{
    NEED_PROGRAMS();
    if (!vt_proc_exists("vericache-relay"))
        cr_skip_test("the relay is not built");
    remote_cluster_t c;
    char line[256], far[64];
    remote_cluster_start(&c);
    remote_cluster_register(&c, KIVI);
    const char *args[] = {"--target", c.server_address, "--delay-ms", "300", NULL};
    vt_proc_t *relay = vt_proc_start("vericache-relay", args, NULL);
    cr_assert(vt_proc_wait_line(relay, "listening port=", 10000, line, sizeof(line)));
    snprintf(far, sizeof(far), "127.0.0.1:%s", strstr(line, "port=") + 5);
    const char *alone[] = {"--draft-length", "0", "--max-tokens", LONGER_ANSWER, NULL};
    json_t *base = remote_cluster_generate(&c, alone);
    const char *flags[] = {"--server",     far,           "--verifier", c.verify_address, "--compressor", KIVI,
                           "--max-tokens", LONGER_ANSWER, NULL};
    json_t *ours = remote_cluster_generate(&c, flags);
    remote_cluster_assert_same(base, ours, "far from the server");
    cr_assert_gt(remote_int(ours, "prefix_blocks"), 3, "the copy did not come");
    json_decref(base);
    json_decref(ours);
    vt_proc_end(relay);
    remote_cluster_stop(&c);
}

/* A copy that takes long on its way: the answer does not wait for it, neither does the end of the program. */
Test(remote, an_answer_that_is_over_does_not_wait_for_the_copy)
{
    NEED_PROGRAMS();
    if (!vt_proc_exists("vericache-relay"))
        cr_skip_test("the relay is not built");
    remote_cluster_t c;
    char line[256], far[64];
    remote_cluster_start(&c);
    remote_cluster_register(&c, KIVI);
    const char *args[] = {"--target", c.server_address, "--rate", "64kbit", "--buffer", "4096", NULL};
    vt_proc_t *relay = vt_proc_start("vericache-relay", args, NULL);
    cr_assert(vt_proc_wait_line(relay, "listening port=", 10000, line, sizeof(line)));
    snprintf(far, sizeof(far), "127.0.0.1:%s", strstr(line, "port=") + 5);
    json_t *base = remote_cluster_generate(&c, recompute);
    const char *flags[] = {"--server",     far,  "--verifier", c.verify_address, "--compressor", KIVI,
                           "--max-tokens", "60", NULL};
    json_t *ours = remote_cluster_generate(&c, flags);
    remote_cluster_assert_same(base, ours, "without the copy");
    cr_assert(has_note(ours, "over before"), "the copy came");
    json_decref(base);
    json_decref(ours);
    vt_proc_end(relay);
    remote_cluster_stop(&c);
}

Test(remote, the_longest_drafts_do_not_end_drafting)
{
    NEED_PROGRAMS();
    remote_cluster_t c;
    remote_cluster_start(&c);
    remote_cluster_register(&c, KIVI);
    const char *alone[] = {"--draft-length", "0", "--max-tokens", LONG_ANSWER, NULL};
    json_t *base = remote_cluster_generate(&c, alone);
    const char *flags[] = {"--server", c.server_address, "--verifier", c.verify_address, "--compressor",
                           KIVI,       "--max-tokens",   LONG_ANSWER,  "--draft-length", "64",
                           NULL};
    json_t *ours = remote_cluster_generate(&c, flags);
    remote_cluster_assert_same(base, ours, "drafts of 64");
    cr_assert(!has_note(ours, "drafting ended"), "the drafter gave up");
    json_decref(base);
    json_decref(ours);
    remote_cluster_stop(&c);
}

Test(remote, the_verify_node_stores_what_a_request_computed)
{
    NEED_PROGRAMS();
    remote_cluster_t c;
    start_behind_gate(&c);
    const char *flags[] = {"--server", c.server_address, "--verifier", c.verify_address, "--max-tokens", "60", NULL};
    json_t *first = remote_cluster_generate_after_copy(&c, flags);
    cr_assert_eq(remote_int(first, "prefix_blocks"), 0, "nothing was registered");
    cr_assert(vt_proc_wait_line(c.verify, "stored objects=", 60000, NULL, 0), "the verify node stored nothing");
    json_t *second = remote_cluster_generate_after_copy(&c, flags);
    cr_assert_gt(remote_int(second, "prefix_blocks"), 3, "the second request found nothing");
    remote_cluster_assert_same(first, second, "cold and warm");
    json_decref(first);
    json_decref(second);
    remote_cluster_stop(&c);
}

/* Disturbs a long generation once its first text is out. Returns its result. */
typedef void (*disturb_fn)(remote_cluster_t *c);
static json_t *generate_disturbed(remote_cluster_t *c, const char *verifiers, disturb_fn disturb)
{
    const char *flags[] = {
        "--server",  c->server_address, "--verifier", verifiers,     "--compressor", KIVI, "--max-tokens",
        LONG_ANSWER, "--draft-length",  "4",          "--log-level", "info",         NULL};
    vt_proc_t *run = remote_cluster_generate_start(c, flags);
    cr_assert(vt_proc_wait_line(run, "verify node opened", 60000, NULL, 0));
    disturb(c);
    int rc = vt_proc_wait_exit(run, 120000);
    char *out = vt_proc_output(run);
    cr_assert_eq(rc, 0, "generate exits %d: %.2000s", rc, out);
    vc_free(out);
    vt_proc_end(run);
    return remote_cluster_result(c);
}

static void kill_verify(remote_cluster_t *c) { vt_proc_signal(c->verify, SIGKILL); }
/* Stops like any service: what runs gets the grace period, then is cancelled. */
static void stop_verify(remote_cluster_t *c) { vt_proc_signal(c->verify, SIGTERM); }
static void kill_server(remote_cluster_t *c) { vt_proc_signal(c->server, SIGKILL); }
static void kill_both(remote_cluster_t *c)
{
    kill_verify(c);
    kill_server(c);
}

static void check_disturbed(disturb_fn disturb, bool loses_verifier)
{
    NEED_PROGRAMS();
    remote_cluster_t c;
    remote_cluster_start(&c);
    remote_cluster_register(&c, KIVI);
    const char *alone[] = {"--draft-length", "0", "--max-tokens", LONG_ANSWER, NULL};
    json_t *base = remote_cluster_generate(&c, alone);
    json_t *ours = generate_disturbed(&c, c.verify_address, disturb);
    remote_cluster_assert_same(base, ours, "after a loss");
    if (loses_verifier)
        cr_assert_gt(remote_int(ours, "recoveries"), 0, "the generation was over before the verify node died");
    json_decref(base);
    json_decref(ours);
    remote_cluster_stop(&c);
}

Test(remote, a_second_verify_node_goes_on_where_the_first_one_died)
{
    NEED_PROGRAMS();
    remote_cluster_t c;
    remote_cluster_start(&c);
    remote_cluster_register(&c, KIVI);
    remote_cluster_t second = c;
    char model[512], both[200];
    second.verify = NULL;
    second.verify_port = 0;
    snprintf(model, sizeof(model), "%s", vt_tmpdir_path(&c.dir, "model.gguf"));
    remote_cluster_start_verify(&second, model);
    snprintf(both, sizeof(both), "%s,%s", c.verify_address, second.verify_address);
    const char *alone[] = {"--draft-length", "0", "--max-tokens", LONG_ANSWER, NULL};
    json_t *base = remote_cluster_generate(&c, alone);
    json_t *ours = generate_disturbed(&c, both, kill_verify);
    remote_cluster_assert_same(base, ours, "with a second verify node");
    cr_assert_eq(remote_int(ours, "recoveries"), 1, "one loss, and the second node has it all");
    cr_assert(vt_proc_wait_line(second.verify, "opened ", 10000, NULL, 0));
    json_decref(base);
    json_decref(ours);
    vt_proc_end(second.verify);
    remote_cluster_stop(&c);
}

Test(remote, a_verify_node_killed_in_the_middle_is_made_up_for) { check_disturbed(kill_verify, true); }
Test(remote, a_verify_node_stopped_in_the_middle_is_made_up_for) { check_disturbed(stop_verify, true); }
Test(remote, a_server_killed_in_the_middle_is_not_noticed_in_the_text) { check_disturbed(kill_server, false); }
Test(remote, both_killed_in_the_middle_leave_the_same_text) { check_disturbed(kill_both, true); }

Test(remote, with_nobody_there_the_node_computes_by_itself)
{
    NEED_PROGRAMS();
    remote_cluster_t c;
    remote_cluster_start(&c);
    json_t *base = remote_cluster_generate(&c, recompute);
    kill_both(&c);
    const char *flags[] = {"--server", c.server_address, "--verifier", c.verify_address, "--max-tokens", "60", NULL};
    json_t *ours = remote_cluster_generate(&c, flags);
    remote_cluster_assert_same(base, ours, "alone");
    cr_assert_gt(json_array_size(json_object_get(ours, "notes")), 0u);
    json_decref(base);
    json_decref(ours);
    remote_cluster_stop(&c);
}

Test(remote, another_model_at_the_verify_node_is_one_clear_error)
{
    NEED_PROGRAMS();
    remote_cluster_t c;
    remote_cluster_start(&c);
    char other[512];
    snprintf(other, sizeof(other), "%s", vt_tmpdir_path(&c.dir, "other.gguf"));
    remote_cluster_start_verify(&c, other);
    const char *flags[] = {"--verifier", c.verify_address, "--max-tokens", "60", NULL};
    vt_proc_t *run = remote_cluster_generate_start(&c, flags);
    int rc = vt_proc_wait_exit(run, 120000);
    char *out = vt_proc_output(run);
    cr_assert_eq(rc, 65, "exit code %d: %s", rc, out);
    cr_assert_not_null(strstr(out, "another model"), "%s", out);
    vc_free(out);
    vt_proc_end(run);
    remote_cluster_stop(&c);
}

/* Every segment byte that holds KV is fair game; one in the middle of the largest segment file lies inside a record. */
static void flip_byte_in_segments(remote_cluster_t *c)
{
    char command[1024];
    snprintf(command, sizeof(command),
             "for f in %s/segments/*.seg; do printf '\\377' | dd of=$f bs=1 seek=20000 conv=notrunc status=none; done",
             vt_tmpdir_path(&c->dir, "data"));
    const char *args[] = {"-c", command, NULL};
    cr_assert_eq(vt_proc_run("/bin/sh", args, NULL, 10000, NULL), 0);
}

Test(remote, a_flipped_byte_on_disk_is_counted_never_used_and_the_answer_is_right)
{
    NEED_PROGRAMS();
    remote_cluster_t c;
    remote_cluster_start(&c);
    remote_cluster_register(&c, KIVI);
    json_t *base = remote_cluster_generate(&c, recompute);
    vt_proc_signal(c.server, SIGTERM);
    cr_assert_eq(vt_proc_wait_exit(c.server, 60000), 0);
    flip_byte_in_segments(&c);
    remote_cluster_start_server(&c);
    const char *flags[] = {"--server", c.server_address, "--verifier", c.verify_address, "--max-tokens", "60", NULL};
    json_t *ours = remote_cluster_generate(&c, flags);
    remote_cluster_assert_same(base, ours, "with a damaged record");
    cr_assert_gt(remote_cluster_stat(&c, "corrupt_disk"), 0);
    json_decref(base);
    json_decref(ours);
    remote_cluster_stop(&c);
}
