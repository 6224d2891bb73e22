/*
 * What a hostile or broken surrounding does to the programs: damaged models, impossible arguments, full or read-only
 * disks, missing catalog files, garbage at every port, stopped peers. Each case owes one clear sentence with the right
 * exit code, or the same answer by another way; never a crash, a hang, or anything lost.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/file.h"
#include "support/remote_cluster.h"
#include "support/tiny_model.h"
#include "support/vc_test.h"
#include "vc/bytes.h"
#include "vc/clock.h"
#include "vc/mem.h"

#define WAIT_MS 60000
#define KIVI "kivi:bits=4"
#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void need_programs(void)
{
    if (!vt_proc_exists("vericache-server") || !vt_proc_exists("vericache-node") || !vt_proc_exists("vericachectl"))
        cr_skip_test("the programs are not built");
}

/* What the program said about itself in the one line that names it. */
static void expect_sentence(const char *out, const char *program, const char *needle)
{
    const char *line = strstr(out, program);
    cr_assert_not_null(line, "no sentence of %s in: %.600s", program, out);
    size_t n = strcspn(line, "\n");
    cr_assert_null(memmem(line + n, strlen(line + n), program, strlen(program)), "two sentences: %.600s", out);
    cr_assert_not_null(memmem(line, n, needle, strlen(needle)), "no \"%s\" in: %.600s", needle, out);
}

static void expect(const char *program, const char *const *args, int code, const char *needle)
{
    char *out = NULL, name[64];
    int rc = vt_proc_run(program, args, NULL, WAIT_MS, &out);
    cr_assert_eq(rc, code, "%s %s exits with %d instead of %d: %.600s", program, args[0], rc, code, out);
    snprintf(name, sizeof(name), "%s%s", program, strcmp(program, "vericache-node") == 0 ? " " : ": ");
    expect_sentence(out, name, needle);
    vc_free(out);
}

/* The command of a shell, where a test needs limits or redirections; %s is the program's path. */
static int shell(const char *folder, const char *program, const char *format, char **out_p)
{
    char path[2048], command[8192];
    snprintf(path, sizeof(path), "%s/%s/%s", VC_BIN_DIR, folder, program);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(command, sizeof(command), format, path);
#pragma GCC diagnostic pop
    return vt_proc_run("/bin/sh", ARGS("-c", command), NULL, WAIT_MS, out_p);
}

static void make_model(vt_tmpdir_t *dir, char path[512], gguf_image_t *image_p)
{
    tiny_model_opts_t opts;
    tiny_model_opts_default(&opts);
    *image_p = tiny_model_build(&opts);
    snprintf(path, 512, "%s", vt_tmpdir_path(dir, "model.gguf"));
    cr_assert(gguf_image_write(image_p, path));
}

/* ---- models ---- */

static void expect_all_refuse(const char *model, const char *document, int code)
{
    const char *const server = "127.0.0.1:1";
    expect("vericache-node", ARGS("generate", "--model", model, "--max-tokens", "2", "hi"), code, model);
    expect("vericache-node", ARGS("tokenize", "--model", model, "hi"), code, model);
    expect("vericache-node", ARGS("register", "--model", model, "--server", server, document), code, model);
    expect("vericache-node", ARGS("serve", "--model", model, "--listen", "127.0.0.1:0", "--log-level", "error"), code,
           model);
}

Test(failures, every_command_refuses_a_damaged_model_with_one_sentence)
{
    need_programs();
    vt_tmpdir_t dir;
    char model[512], bad[512], document[512];
    gguf_image_t image;
    vt_tmpdir_create(&dir);
    make_model(&dir, model, &image);
    snprintf(bad, sizeof(bad), "%s", vt_tmpdir_path(&dir, "bad.gguf"));
    snprintf(document, sizeof(document), "%s", vt_tmpdir_path(&dir, "document.txt"));
    vt_file_write(document, "text", 4);
    const size_t cuts[] = {3, 4, 23, 24, 100, 5000, image.bytes / 2, image.bytes - 1};
    for (size_t i = 0; i < VC_ARRAY_LEN(cuts); i++) {
        vt_file_write(bad, image.data, cuts[i]);
        expect_all_refuse(bad, document, 65);
    }
    /* magic, version, tensor count, metadata count, length of the first key */
    const size_t fields[] = {0, 4, 8, 16, 24};
    uint8_t *copy = vc_memdup(image.data, image.bytes);
    cr_assert_not_null(copy);
    for (size_t i = 0; i < VC_ARRAY_LEN(fields); i++) {
        memset(copy + fields[i], 0xff, i < 2 ? 4 : 8);
        vt_file_write(bad, copy, image.bytes);
        expect_all_refuse(bad, document, i == 1 ? 64 : 65); /* another version is no damage */
        memcpy(copy, image.data, 64);
    }
    vc_free(copy);
    gguf_image_free(&image);
    vt_tmpdir_remove(&dir);
}

Test(failures, a_model_with_random_damage_is_refused_or_runs)
{
    need_programs();
    vt_tmpdir_t dir;
    char model[512];
    gguf_image_t image;
    uint32_t x = 2463534242u;
    vt_tmpdir_create(&dir);
    make_model(&dir, model, &image);
    for (int i = 0; i < 24; i++) {
        uint8_t *copy = vc_memdup(image.data, image.bytes);
        for (int k = 0; k < 6; k++) {
            x ^= x << 13, x ^= x >> 17, x ^= x << 5;
            copy[x % (k < 4 ? 2000 : image.bytes)] ^= (uint8_t)(1u << (x >> 29));
        }
        vt_file_write(model, copy, image.bytes);
        vc_free(copy);
        char *out = NULL;
        int rc = vt_proc_run("vericache-node",
                             ARGS("generate", "--model", model, "--threads", "1", "--max-tokens", "2", "hi"), NULL,
                             WAIT_MS, &out);
        cr_assert(rc == 0 || rc == 65 || rc == 64, "case %d: exit code %d: %.1000s", i, rc, out);
        if (rc != 0)
            expect_sentence(out, "vericache-node generate: ", "");
        vc_free(out);
    }
    gguf_image_free(&image);
    vt_tmpdir_remove(&dir);
}

/* ---- arguments, files, ports ---- */

Test(failures, a_folder_where_a_text_belongs_is_one_sentence)
{
    need_programs();
    vt_tmpdir_t dir;
    char model[512];
    gguf_image_t image;
    vt_tmpdir_create(&dir);
    make_model(&dir, model, &image);
    const char *folder = vt_tmpdir_path(&dir, "");
    expect("vericache-node", ARGS("generate", "--model", model, "--prompt-file", folder), 64, "Is a directory");
    expect("vericache-node", ARGS("generate", "--model", model, "--server", "127.0.0.1:1", "--prompt-file", folder), 64,
           "Is a directory");
    expect("vericache-node", ARGS("register", "--model", model, folder), 64, "Is a directory");
    expect("vericache-node", ARGS("tokenize", "--model", model, "--file", folder), 64, "Is a directory");
    expect("vericache-node", ARGS("generate", "--model", folder, "hi"), 65, "not a regular file");
    expect("vericache-node", ARGS("generate", "--model", "/no/such/model", "hi"), 64, "/no/such/model");
    expect("vericache-node",
           ARGS("generate", "--model", model, "--max-tokens", "1", "--result-file", "/no/such/place", "hi"), 64,
           "/no/such/place");
    gguf_image_free(&image);
    vt_tmpdir_remove(&dir);
}

Test(failures, a_place_where_no_calibration_can_lie_is_told_before_anything_is_learned)
{
    need_programs();
    vt_tmpdir_t dir;
    char model[512], text[512], place[512], words[16384];
    gguf_image_t image;
    vt_tmpdir_create(&dir);
    make_model(&dir, model, &image);
    snprintf(text, sizeof(text), "%s", vt_tmpdir_path(&dir, "text.txt"));
    snprintf(place, sizeof(place), "%s", vt_tmpdir_path(&dir, "none/there"));
    for (size_t i = 0; i < sizeof(words); i++)
        words[i] = (char)(i % 4 == 3 ? ' ' : 'a' + i * 7 % 26);
    vt_file_write(text, words, sizeof(words));
    expect("vericache-node", ARGS("calibrate", "--model", model, "--calibration", text, "--method", "rotatekv", text),
           64, "Not a directory");
    expect("vericache-node", ARGS("calibrate", "--model", model, "--calibration", place, "--method", "rotatekv", text),
           64, "No such file");
    gguf_image_free(&image);
    vt_tmpdir_remove(&dir);
}

Test(failures, folders_above_the_data_directory_are_not_made)
{
    need_programs();
    vt_tmpdir_t dir;
    vt_tmpdir_create(&dir);
    expect("vericache-server", ARGS("--data-dir", vt_tmpdir_path(&dir, "disk/data"), "--listen", "127.0.0.1:0"), 64,
           "the folder that it is to be made in is not there");
    cr_assert_neq(access(vt_tmpdir_path(&dir, "disk"), F_OK), 0);
    vt_tmpdir_remove(&dir);
}

Test(failures, addresses_are_checked_before_anything_is_touched)
{
    need_programs();
    vt_tmpdir_t dir;
    vt_tmpdir_create(&dir);
    const char *data = vt_tmpdir_path(&dir, "data"), *high = "127.0.0.1:99999";
    expect("vericache-server", ARGS("--data-dir", data, "--listen", high), 64, "65535");
    expect("vericache-server", ARGS("--data-dir", data, "--listen", "127.0.0.1:http"), 64, "HOST:PORT");
    expect("vericache-server", ARGS("--data-dir", data, "--data-listen", high), 64, "65535");
    expect("vericache-server", ARGS("--data-dir", data, "--data-listen", "here"), 64, "HOST:PORT");
    expect("vericache-server", ARGS("--data-dir", data, "--data-listen", "0.0.0.0:0"), 64, "--trust-data-network");
    cr_assert_neq(access(data, F_OK), 0, "a refused server made its data directory");
    const char *const none = "/no/such/model";
    expect("vericache-node", ARGS("serve", "--model", none, "--listen", high), 64, "65535");
    expect("vericache-node", ARGS("serve", "--model", none, "--server", "here"), 64, "--server");
    expect("vericachectl", ARGS("stats", "--server", high), 64, "65535");
    vt_tmpdir_remove(&dir);
}

Test(failures, output_that_cannot_be_written_is_no_success)
{
    need_programs();
    vt_tmpdir_t dir;
    char model[512], command[1024], *out = NULL;
    gguf_image_t image;
    vt_tmpdir_create(&dir);
    make_model(&dir, model, &image);
    snprintf(command, sizeof(command), "exec %%s generate --model %s --max-tokens 2 --json hi >/dev/full", model);
    cr_assert_eq(shell("inference-node", "vericache-node", command, &out), 74, "%s", out);
    expect_sentence(out, "vericache-node generate: ", "No space left");
    vc_free(out);
    snprintf(command, sizeof(command), "exec %%s tokenize --model %s --json hi >/dev/full", model);
    cr_assert_eq(shell("inference-node", "vericache-node", command, &out), 74, "%s", out);
    vc_free(out);
    cr_assert_eq(shell("cache-server", "vericachectl", "exec %s --print-config >/dev/full", &out), 74, "%s", out);
    expect_sentence(out, "vericachectl: ", "No space left");
    vc_free(out);
    gguf_image_free(&image);
    vt_tmpdir_remove(&dir);
}

/* A listening socket of our own. Returns it; *port_p is where. */
static int occupy(unsigned *port_p)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&at, len) == 0 && listen(fd, 1) == 0 &&
              getsockname(fd, (struct sockaddr *)&at, &len) == 0);
    *port_p = ntohs(at.sin_port);
    return fd;
}

Test(failures, busy_ports_are_named)
{
    need_programs();
    vt_tmpdir_t dir;
    char model[512], address[64];
    unsigned port;
    gguf_image_t image;
    vt_tmpdir_create(&dir);
    make_model(&dir, model, &image);
    int fd = occupy(&port);
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    expect("vericache-node", ARGS("serve", "--model", model, "--listen", address, "--log-level", "error"), 69,
           "the port is in use");
    expect("vericache-server",
           ARGS("--data-dir", vt_tmpdir_path(&dir, "data"), "--capacity", "128MiB", "--ballast", "16MiB", "--listen",
                "127.0.0.1:0", "--data-listen", address),
           69, "in use");
    close(fd);
    gguf_image_free(&image);
    vt_tmpdir_remove(&dir);
}

Test(failures, too_few_open_files_are_refused_at_start)
{
    need_programs();
    char *out = NULL;
    cr_assert_eq(shell("cache-server", "vericache-server",
                       "ulimit -n 40; exec %s --data-dir /tmp/never --listen 127.0.0.1:0", &out),
                 75, "%s", out);
    expect_sentence(out, "vericache-server: ", "open files");
    vc_free(out);
}

/* ---- disks ---- */

/* A mount namespace of this test's own, which ends with it. */
static void mount_or_skip(const char *at, unsigned mib)
{
    char options[32];
    snprintf(options, sizeof(options), "size=%um", mib);
    mkdir(at, 0700);
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", at, "tmpfs", 0, options) != 0)
        cr_skip_test("mounting a small file system is not permitted here");
}

static void fill(const char *path)
{
    static uint8_t zeros[1 << 16];
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    cr_assert_geq(fd, 0);
    while (write(fd, zeros, sizeof(zeros)) > 0)
        ;
    while (write(fd, zeros, 4096) > 0)
        ;
    close(fd);
}

static void expect_served(remote_cluster_t *c, const json_t *base)
{
    const char *const flags[] = {"--server", c->server_address, "--draft-length", "0", "--max-tokens", "20", NULL};
    json_t *again = remote_cluster_generate(c, flags);
    remote_cluster_assert_same(base, again, "from the store");
    cr_assert_gt(remote_int(again, "prefix_blocks"), 3, "what was stored is not served");
    json_decref(again);
}

static void register_other(remote_cluster_t *c, int code, const char *needle)
{
    char other[512], model[512];
    snprintf(other, sizeof(other), "%s", vt_tmpdir_path(&c->dir, "other.gguf"));
    snprintf(model, sizeof(model), "%s", vt_tmpdir_path(&c->dir, "document.txt"));
    expect("vericache-node", ARGS("register", "--model", other, "--server", c->server_address, model), code, needle);
}

Test(failures, a_full_disk_refuses_writes_and_serves_what_is_there)
{
    need_programs();
    remote_cluster_t c = {0};
    vt_tmpdir_create(&c.dir);
    char disk[512], filler[512];
    snprintf(disk, sizeof(disk), "%s", vt_tmpdir_path(&c.dir, "data"));
    snprintf(filler, sizeof(filler), "%s", vt_tmpdir_path(&c.dir, "data/filler"));
    mount_or_skip(disk, 200); /* a tenth of the capacity that the server is started with */
    remote_cluster_write_files(&c);
    remote_cluster_start_server(&c);
    remote_cluster_register(&c, KIVI);
    json_t *base = remote_cluster_generate(&c, ARGS("--draft-length", "0", "--max-tokens", "20"));
    fill(filler);
    register_other(&c, 73, "full");
    expect_served(&c, base);
    vt_proc_signal(c.server, SIGKILL);
    cr_assert_eq(vt_proc_wait_exit(c.server, WAIT_MS), 128 + SIGKILL);
    fill(filler);
    remote_cluster_start_server(&c); /* nothing is free any more */
    expect_served(&c, base);
    register_other(&c, 73, "read-only");
    vt_proc_signal(c.server, SIGTERM);
    cr_assert_eq(vt_proc_wait_exit(c.server, WAIT_MS), 0);
    expect("vericache-server", ARGS("--data-dir", vt_tmpdir_path(&c.dir, "data/new"), "--listen", "127.0.0.1:0"), 73,
           "full");
    cr_assert_eq(unlink(filler), 0);
    remote_cluster_start_server(&c);
    expect_served(&c, base);
    json_decref(base);
    vt_proc_end(c.server);
    umount2(disk, MNT_DETACH);
    vt_tmpdir_remove(&c.dir);
}

Test(failures, a_read_only_directory_is_served_and_takes_nothing)
{
    need_programs();
    remote_cluster_t c = {0};
    vt_tmpdir_create(&c.dir);
    char disk[512];
    snprintf(disk, sizeof(disk), "%s", vt_tmpdir_path(&c.dir, "data"));
    mount_or_skip(disk, 200);
    remote_cluster_write_files(&c);
    remote_cluster_start_server(&c);
    remote_cluster_register(&c, KIVI);
    json_t *base = remote_cluster_generate(&c, ARGS("--draft-length", "0", "--max-tokens", "20"));
    vt_proc_signal(c.server, SIGTERM);
    cr_assert_eq(vt_proc_wait_exit(c.server, WAIT_MS), 0);
    cr_assert_eq(mount(NULL, disk, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    remote_cluster_start_server(&c);
    expect_served(&c, base);
    register_other(&c, 73, "read-only");
    vt_proc_signal(c.server, SIGTERM);
    cr_assert_eq(vt_proc_wait_exit(c.server, WAIT_MS), 0);
    expect("vericache-server", ARGS("--data-dir", vt_tmpdir_path(&c.dir, "data/new"), "--listen", "127.0.0.1:0"), 73,
           "Read-only");
    json_decref(base);
    vt_proc_end(c.server);
    umount2(disk, MNT_DETACH);
    vt_tmpdir_remove(&c.dir);
}

Test(failures, a_catalog_without_one_of_its_files_is_made_anew_and_serves_what_was_stored)
{
    need_programs();
    remote_cluster_t c = {0};
    vt_tmpdir_create(&c.dir);
    remote_cluster_write_files(&c);
    remote_cluster_start_server(&c);
    remote_cluster_register(&c, KIVI);
    double objects = remote_cluster_stat(&c, "objects_full"), copies = remote_cluster_stat(&c, "objects_compressed");
    cr_assert_gt(objects, 0);
    cr_assert_gt(copies, 0);
    vt_proc_signal(c.server, SIGKILL);
    cr_assert_eq(vt_proc_wait_exit(c.server, WAIT_MS), 128 + SIGKILL);
    char command[1024];
    snprintf(command, sizeof(command), "rm %s/MANIFEST-*", vt_tmpdir_path(&c.dir, "data/catalog"));
    cr_assert_eq(vt_proc_run("/bin/sh", ARGS("-c", command), NULL, WAIT_MS, NULL), 0);
    remote_cluster_start_server(&c);
    cr_assert_eq(remote_cluster_stat(&c, "objects_full"), objects);
    cr_assert_eq(remote_cluster_stat(&c, "objects_compressed"), copies);
    cr_assert_eq(remote_cluster_stat(&c, "rebuilt_objects"), objects + copies);
    cr_assert_eq(remote_cluster_stat(&c, "corrupt_disk"), 0);
    vt_proc_end(c.server);
    vt_tmpdir_remove(&c.dir);
}

/* ---- peers ---- */

/* Sends bytes that belong to no protocol. False when nobody listens any more. */
static bool throw_garbage(unsigned port, uint32_t seed)
{
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    uint8_t junk[4096];
    for (size_t i = 0; i < sizeof(junk); i++) {
        seed = seed * 1664525u + 1013904223u;
        junk[i] = seed % 3 == 0 ? 0xff : (uint8_t)(seed >> 24);
    }
    if (seed % 2 == 0)
        memcpy(junk, preface, sizeof(preface) - 1);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool there = connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0;
    if (there)
        (void)send(fd, junk, 16 + seed % (sizeof(junk) - 16), MSG_NOSIGNAL);
    close(fd);
    return there;
}

static unsigned data_port(remote_cluster_t *c)
{
    uint8_t *text = vt_file_read(vt_tmpdir_path(&c->dir, "server.port"), NULL);
    const char *at = strstr((const char *)text, "data=127.0.0.1:");
    unsigned port = 0;
    cr_assert(at != NULL && sscanf(at + 15, "%u", &port) == 1, "%s", text);
    vc_free(text);
    return port;
}

static void expect_answer(remote_cluster_t *c, const json_t *base, const char *what)
{
    json_t *ours = remote_cluster_generate(
        c, ARGS("--server", c->server_address, "--verifier", c->verify_address, "--max-tokens", "20"));
    remote_cluster_assert_same(base, ours, what);
    json_decref(ours);
}

Test(failures, garbage_at_the_ucx_port_loses_nothing_and_clients_fall_back)
{
    need_programs();
    remote_cluster_t c;
    remote_cluster_start(&c);
    remote_cluster_register(&c, KIVI);
    json_t *base = remote_cluster_generate(&c, ARGS("--draft-length", "0", "--max-tokens", "20"));
    double n_full = remote_cluster_stat(&c, "objects_full"), n_comp = remote_cluster_stat(&c, "objects_compressed");
    unsigned port = data_port(&c);
    for (uint32_t i = 0; i < 40 && throw_garbage(port, i); i++)
        ;
    expect_answer(&c, base, "after garbage at the data plane"); /* whether or not the server still runs */
    if (vt_proc_wait_exit(c.server, 0) < 0)
        vt_proc_signal(c.server, SIGKILL);
    vt_proc_wait_exit(c.server, WAIT_MS);
    remote_cluster_start_server(&c);
    /* not equal: the verify node may have stored the blocks of the answer above */
    cr_assert_geq(remote_cluster_stat(&c, "objects_full"), n_full);
    cr_assert_geq(remote_cluster_stat(&c, "objects_compressed"), n_comp);
    expect_served(&c, base);
    cr_assert_eq(remote_cluster_stat(&c, "corrupt_disk"), 0);
    json_decref(base);
    remote_cluster_stop(&c);
}

Test(failures, garbage_at_the_grpc_ports_harms_nobody)
{
    need_programs();
    remote_cluster_t c;
    remote_cluster_start(&c);
    remote_cluster_register(&c, KIVI);
    json_t *base = remote_cluster_generate(&c, ARGS("--draft-length", "0", "--max-tokens", "20"));
    for (uint32_t i = 0; i < 40; i++) {
        cr_assert(throw_garbage(c.server_port, i), "the server is gone");
        cr_assert(throw_garbage(c.verify_port, i), "the verify node is gone");
    }
    expect_answer(&c, base, "after garbage at the gRPC ports");
    cr_assert_gt(remote_cluster_stat(&c, "hit_blocks_full"), 0);
    cr_assert_eq(vt_proc_wait_exit(c.server, 0), -1);
    cr_assert_eq(vt_proc_wait_exit(c.verify, 0), -1);
    json_decref(base);
    remote_cluster_stop(&c);
}

/* The verify node stores what an answer computed after its end, and an upload that was begun while the server stood
 * still is nobody's until its deadline. */
static void expect_ends(remote_cluster_t *c, const char *gauge)
{
    uint64_t deadline_us = vc_clock_now_us(vc_clock_system()) + 2 * WAIT_MS * 1000ull;
    while (remote_cluster_stat(c, gauge) != 0)
        cr_assert_lt(vc_clock_now_us(vc_clock_system()), deadline_us, "%s never comes to 0", gauge);
}

Test(failures, a_stopped_server_and_a_stopped_verify_node_are_worked_around)
{
    need_programs();
    remote_cluster_t c;
    remote_cluster_start(&c);
    remote_cluster_register(&c, KIVI);
    json_t *base = remote_cluster_generate(&c, ARGS("--draft-length", "0", "--max-tokens", "20"));
    vt_proc_signal(c.server, SIGSTOP); /* the kernel still takes connections for it */
    expect_answer(&c, base, "with a stopped server");
    expect("vericachectl", ARGS("health", "--server", c.server_address), 69, c.server_address);
    vt_proc_signal(c.verify, SIGSTOP);
    expect_answer(&c, base, "with both stopped");
    vt_proc_signal(c.server, SIGCONT);
    vt_proc_signal(c.verify, SIGCONT);
    expect_answer(&c, base, "with both back");
    expect_ends(&c, "uploads_open");
    expect_ends(&c, "data_pins_held");
    json_decref(base);
    remote_cluster_stop(&c);
}
