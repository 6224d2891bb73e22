/*
 * A verify node whose streams have more full KV than memory for it: with --kv-dir they go on in files and commit the
 * bits of one process alone, fetched prefix, lost file and stored blocks included.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "support/remote_cluster.h"
#include "support/tiny_model.h"
#include "support/vc_test.h"
#include "vc/mem.h"

#define KIVI "kivi:bits=4"
#define N_NEW "80"
enum { N_LAYER = 6 };

static const char *const alone[] = {"--draft-length", "0", "--max-tokens", N_NEW, NULL};

/* A deeper model than the other tests': two layers leave nothing to stream. */
static void start_cluster(remote_cluster_t *c)
{
    if (!vt_proc_exists("vericache-server") || !vt_proc_exists("vericache-node") || !vt_proc_exists("vericachectl"))
        cr_skip_test("the programs are not built");
    memset(c, 0, sizeof *c);
    vt_tmpdir_create(&c->dir);
    remote_cluster_write_files(c);
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    o.n_layer = N_LAYER;
    o.context = 4096;
    gguf_image_t image = tiny_model_build(&o);
    cr_assert(gguf_image_write(&image, vt_tmpdir_path(&c->dir, "model.gguf")));
    gguf_image_free(&image);
    remote_cluster_start_server(c);
    remote_cluster_register(c, KIVI);
}

/* A verify node with so much memory for each of two streams; kv_dir NULL: and no files. */
static void start_verify(remote_cluster_t *c, const char *kv_ram, const char *kv_dir)
{
    char model[512], port_file[512];
    unsigned port = vt_free_port();
    snprintf(model, sizeof model, "%s", vt_tmpdir_path(&c->dir, "model.gguf"));
    snprintf(port_file, sizeof port_file, "%s", vt_tmpdir_path(&c->dir, "verify.port"));
    snprintf(c->verify_address, sizeof c->verify_address, "127.0.0.1:%u", port);
    const char *args[] = {"serve",
                          "--role",
                          "verify",
                          "--model",
                          model,
                          "--listen",
                          c->verify_address,
                          "--server",
                          c->verify_server,
                          "--port-file",
                          port_file,
                          "--threads",
                          "2",
                          "--grace-ms",
                          "0",
                          "--max-draft",
                          "16",
                          "--kv-ram",
                          kv_ram,
                          "--streams",
                          "2",
                          kv_dir ? "--kv-dir" : NULL,
                          kv_dir,
                          NULL};
    vt_proc_end(c->verify);
    c->verify = vt_proc_start("vericache-node", args, NULL);
    cr_assert(vt_proc_wait_line(c->verify, "ready ", 60000, NULL, 0), "%s", vt_proc_output(c->verify));
}

static json_t *draft_and_verify(remote_cluster_t *c, const char *tail)
{
    const char *flags[] = {"--server",
                           c->server_address,
                           "--verifier",
                           c->verify_address,
                           "--compressor",
                           KIVI,
                           "--tail",
                           tail,
                           "--max-tokens",
                           N_NEW,
                           "--draft-length",
                           "4",
                           NULL};
    return c->gate ? remote_cluster_generate_after_copy(c, flags) : remote_cluster_generate(c, flags);
}

/* Blocks in the file when the next stream was opened. */
static unsigned blocks_in_file(remote_cluster_t *c)
{
    char line[512];
    unsigned n = 0;
    cr_assert(vt_proc_wait_line(c->verify, "blocks_in_file=", 10000, line, sizeof line));
    cr_assert_eq(sscanf(strstr(line, "blocks_in_file="), "blocks_in_file=%u", &n), 1);
    return n;
}

Test(remote_slow, streams_beyond_their_memory_go_on_in_files_and_commit_the_same_bits)
{
    remote_cluster_t c;
    start_cluster(&c);
    json_t *base = remote_cluster_generate(&c, alone);
    remote_cluster_start_gate(&c); /* else 80 tokens are committed before the first draft now and then */
    start_verify(&c, "2MB", c.dir.path);
    static const char *const tails[] = {"own", "verified"};
    for (size_t i = 0; i < VC_ARRAY_LEN(tails); i++) {
        json_t *ours = draft_and_verify(&c, tails[i]);
        remote_cluster_assert_same(base, ours, tails[i]);
        cr_assert_eq(remote_int(ours, "recoveries"), 0);
        cr_assert_gt(remote_int(ours, "drafted"), 0);
        cr_assert_gt(blocks_in_file(&c), 0);
        json_decref(ours);
    }
    json_decref(base);
    remote_cluster_stop(&c);
}

/* The answer's blocks are in the file when they are stored; whoever comes next fetches them. */
Test(remote_slow, blocks_in_files_are_stored_at_the_end)
{
    remote_cluster_t c;
    start_cluster(&c);
    static const char *const longer[] = {"--draft-length", "0", "--max-tokens", "300", NULL};
    json_t *base = remote_cluster_generate(&c, longer);
    start_verify(&c, "2MB", c.dir.path);
    const char *flags[] = {
        "--server", c.server_address, "--verifier", c.verify_address, "--compressor", KIVI, "--max-tokens", "300",
        NULL};
    json_t *ours = remote_cluster_generate(&c, flags);
    remote_cluster_assert_same(base, ours, "first");
    char line[512];
    unsigned stored = 0;
    cr_assert(vt_proc_wait_line(c.verify, "stored objects=", 10000, line, sizeof line));
    cr_assert_eq(sscanf(strstr(line, "objects="), "objects=%u", &stored), 1);
    cr_assert_gt(stored, 4, "full and compressed copies of the answer's blocks");
    json_decref(ours);
    json_decref(base);
    remote_cluster_stop(&c);
}

/* Every file of the node that lies in the folder, which has no name any more. */
static unsigned shorten_files(pid_t pid, const char *dir)
{
    char folder[64], path[PATH_MAX], target[PATH_MAX];
    unsigned n = 0;
    snprintf(folder, sizeof folder, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(folder);
    cr_assert_not_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        ssize_t len = readlink(path, target, sizeof target - 1);
        target[len > 0 ? len : 0] = '\0';
        if (strncmp(target, dir, strlen(dir)) == 0 && strstr(target, "(deleted)") && truncate(path, 4096) == 0)
            n++;
    }
    closedir(d);
    return n;
}

Test(remote_slow, a_file_that_is_lost_in_the_middle_is_made_up_for)
{
    remote_cluster_t c;
    start_cluster(&c);
    const char *n_tokens = VT_EVERY > 1 ? "700" : "1500"; /* still under way when the file is lost */
    const char *const longer[] = {"--draft-length", "0", "--max-tokens", n_tokens, NULL};
    json_t *base = remote_cluster_generate(&c, longer);
    start_verify(&c, "3MB", c.dir.path);
    const char *flags[] = {"--server",     c.server_address, "--verifier", c.verify_address, "--compressor", KIVI,
                           "--max-tokens", n_tokens,         NULL};
    vt_proc_t *draft = remote_cluster_generate_start(&c, flags);
    cr_assert_gt(blocks_in_file(&c), 0);
    cr_assert_gt(shorten_files(vt_proc_pid(c.verify), c.dir.path), 0);
    cr_assert_eq(vt_proc_wait_exit(draft, 60000), 0, "%s", vt_proc_output(draft));
    json_t *ours = remote_cluster_result(&c);
    remote_cluster_assert_same(base, ours, "after the file was lost");
    cr_assert_gt(remote_int(ours, "recoveries"), 0);
    cr_assert(vt_proc_wait_line(c.verify, "the file ends before", 10000, NULL, 0));
    json_decref(ours);
    json_decref(base);
    vt_proc_end(draft);
    remote_cluster_stop(&c);
}

Test(remote_slow, too_little_memory_is_told_and_the_answer_comes_all_the_same)
{
    remote_cluster_t c;
    start_cluster(&c);
    json_t *base = remote_cluster_generate(&c, alone);
    static const struct {
        const char *ram, *sentence;
        bool files;
    } ways[] = {{"1200KB", "more than all of --kv-ram 1.144MiB", false},
                {"1MiB", "--kv-ram 1MiB is 512KiB for each of --streams 2", true}};
    for (size_t i = 0; i < VC_ARRAY_LEN(ways); i++) {
        start_verify(&c, ways[i].ram, ways[i].files ? c.dir.path : NULL);
        json_t *ours = draft_and_verify(&c, "own");
        remote_cluster_assert_same(base, ours, ways[i].sentence);
        cr_assert_eq(remote_int(ours, "recoveries"), 1, "nobody asks again who has never enough for a request");
        const char *note = json_string_value(json_array_get(json_object_get(ours, "notes"), 0));
        cr_assert(note && strstr(note, "refused after 0 tokens"), "%s", note);
        cr_assert(vt_proc_wait_line(c.verify, ways[i].sentence, 10000, NULL, 0), "%s", vt_proc_output(c.verify));
        json_decref(ours);
    }
    json_decref(base);
    remote_cluster_stop(&c);
}

/* A limit on the size of files stands for a full disk: the node lives on, and others go on by themselves. */
Test(remote_slow, a_disk_without_room_is_told_and_the_answer_comes_all_the_same)
{
    remote_cluster_t c;
    struct rlimit old, small;
    start_cluster(&c);
    json_t *base = remote_cluster_generate(&c, alone);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){100000, old.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    start_verify(&c, "2MB", c.dir.path);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    json_t *ours = draft_and_verify(&c, "own");
    remote_cluster_assert_same(base, ours, "no room");
    cr_assert(vt_proc_wait_line(c.verify, "no room for", 10000, NULL, 0), "%s", vt_proc_output(c.verify));
    vt_proc_signal(c.verify, SIGTERM);
    cr_assert_eq(vt_proc_wait_exit(c.verify, 10000), 0, "%s", vt_proc_output(c.verify));
    json_decref(ours);
    json_decref(base);
    remote_cluster_stop(&c);
}

Test(remote_slow, a_folder_that_takes_no_files_is_told_at_the_start)
{
    if (!vt_proc_exists("vericache-node"))
        cr_skip_test("the programs are not built");
    static const char *const folders[] = {"/nonexistent/x", "/dev/null"};
    for (size_t i = 0; i < VC_ARRAY_LEN(folders); i++) {
        char *out = NULL;
        const char *args[] = {"serve", "--model", "/nonexistent/model", "--kv-dir", folders[i], NULL};
        cr_assert_eq(vt_proc_run("vericache-node", args, NULL, 60000, &out), 64, "%s", out);
        cr_assert(strstr(out, "--kv-dir") && strstr(out, folders[i]), "%s", out);
        vc_free(out);
    }
}

Test(remote_slow, options_that_need_a_server_are_refused_without_one)
{
    if (!vt_proc_exists("vericache-node"))
        cr_skip_test("the programs are not built");
    static const char *const flags[] = {"--store", "--data-plane", "--calibration=/var/tmp"};
    for (size_t i = 0; i < VC_ARRAY_LEN(flags); i++) {
        char *out = NULL;
        const char *args[] = {"serve", "--model", "/nonexistent/model", flags[i], NULL};
        cr_assert_eq(vt_proc_run("vericache-node", args, NULL, 60000, &out), 64, "%s", out);
        cr_assert(strstr(out, "does nothing here") && strstr(out, "--server"), "%s", out);
        vc_free(out);
    }
}
