/* The helpers of the suites themselves: a helper that lies makes every test that leans on it worthless. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/file.h"
#include "support/gate.h"
#include "support/logcap.h"
#include "support/proc.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vc/mem.h"

Test(support, tmpdir_is_empty_own_and_gone_with_all_below_it)
{
    vt_tmpdir_t dir, other;
    struct stat st;
    char kept[512];
    vt_tmpdir_create(&dir);
    vt_tmpdir_create(&other);
    cr_assert(strcmp(dir.path, other.path) != 0);
    vt_file_write(vt_tmpdir_path(&other, "kept"), "x", 1);
    cr_assert_eq(mkdir(vt_tmpdir_path(&dir, "a"), 0700), 0);
    vt_file_write(vt_tmpdir_path(&dir, "a/b"), "y", 1);
    cr_assert_eq(symlink(other.path, vt_tmpdir_path(&dir, "link")), 0);
    strcpy(kept, vt_tmpdir_path(&other, "kept"));
    char path[256];
    strcpy(path, dir.path);
    vt_tmpdir_remove(&dir);
    vt_tmpdir_remove(&dir); /* harmless */
    cr_assert_eq(stat(path, &st), -1);
    cr_assert_eq(stat(kept, &st), 0, "links are not followed");
    vt_tmpdir_remove(&other);
}

Test(support, file_is_read_back_whole)
{
    vt_tmpdir_t dir;
    size_t n;
    vt_tmpdir_create(&dir);
    for (size_t want = 4000; want < 13000; want += 4096 - 4000) {
        uint8_t *data = vc_calloc(want, 1);
        memset(data, (int)want, want);
        vt_file_write(vt_tmpdir_path(&dir, "f"), data, want);
        uint8_t *back = vt_file_read(vt_tmpdir_path(&dir, "f"), &n);
        cr_assert_eq(n, want);
        cr_assert_arr_eq(back, data, n);
        cr_assert_eq(back[n], 0);
        vc_free(data);
        vc_free(back);
    }
    vt_tmpdir_remove(&dir);
}

Test(support, log_capture_sees_lines_of_its_level_only)
{
    vt_logcap_start(VC_LOG_INFO);
    vc_log_info("store", "recovered objects=%d", 12);
    vc_log_debug("store", "unseen");
    cr_assert(vt_logcap_has("info store: recovered objects=12"));
    cr_assert_not(vt_logcap_has("unseen"));
    cr_assert_eq(vt_logcap_count(VC_LOG_INFO), 1u);
    cr_assert_not_null(strstr(vt_logcap_text(), "objects=12"));
    vt_logcap_stop();
    cr_assert_not(vt_logcap_has("recovered"));
}

static const char *const env_args[] = {
    "-c", "echo one; echo two; echo three >&2; echo \"v=$VERICACHE_X m=$VERICACHE_MODEL\"", NULL};

Test(support, program_output_is_waited_for_line_by_line)
{
    static const char *const env[] = {"VERICACHE_X=7", NULL};
    char line[64];
    setenv("VERICACHE_MODEL", "leaks", 1);
    vt_proc_t *proc = vt_proc_start("/bin/sh", env_args, env);
    cr_assert(vt_proc_wait_line(proc, "tw", 10000, line, sizeof(line)));
    cr_assert_str_eq(line, "two");
    cr_assert_not(vt_proc_wait_line(proc, "one", 10000, NULL, 0), "passed already, and the program ends");
    cr_assert_eq(vt_proc_wait_exit(proc, 10000), 0);
    char *all = vt_proc_output(proc);
    cr_assert_str_eq(all, "one\ntwo\nthree\nv=7 m=\n");
    vc_free(all);
    vt_proc_end(proc);
}

Test(support, program_is_killed_and_reports_how_it_ended)
{
    static const char *const args[] = {"-c", "echo up; exec tail -f /dev/null", NULL};
    vt_proc_t *proc = vt_proc_start("/bin/sh", args, NULL);
    cr_assert(vt_proc_wait_line(proc, "up", 10000, NULL, 0));
    cr_assert_eq(vt_proc_wait_exit(proc, 0), -1);
    vt_proc_signal(proc, SIGTERM);
    cr_assert_eq(vt_proc_wait_exit(proc, 10000), 128 + SIGTERM);
    vt_proc_end(proc);
    proc = vt_proc_start("/bin/sh", args, NULL);
    pid_t pid = vt_proc_pid(proc);
    cr_assert(vt_proc_wait_line(proc, "up", 10000, NULL, 0));
    vt_proc_end(proc);
    cr_assert_eq(kill(pid, 0), -1);
}

Test(support, exit_code_and_output_of_a_run_are_returned)
{
    static const char *const args[] = {"-c", "printf partial; exit 65", NULL};
    char *output;
    cr_assert_eq(vt_proc_run("/bin/sh", args, NULL, 10000, &output), 65);
    cr_assert_str_eq(output, "partial");
    vc_free(output);
    cr_assert_eq(vt_proc_run("/nonexistent/program", NULL, NULL, 10000, NULL), 127);
    cr_assert(vt_proc_exists("test_support"));
    cr_assert_not(vt_proc_exists("no-such-program"));
}

Test(support, free_ports_are_ports) { cr_assert_gt(vt_free_port(), 1023); }

static int tcp_socket(bool listens, unsigned *port_p)
{
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)*port_p), .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listens)
        cr_assert(bind(fd, (struct sockaddr *)&at, size) == 0 && listen(fd, 4) == 0);
    else
        cr_assert_eq(connect(fd, (struct sockaddr *)&at, size), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    *port_p = ntohs(at.sin_port);
    return fd;
}

Test(support, a_held_gate_lets_the_server_speak_and_keeps_the_client_waiting)
{
    unsigned port = 0;
    char c = 0;
    int listener = tcp_socket(true, &port);
    vt_gate_t *gate = vt_gate_start(port);
    port = vt_gate_port(gate);
    vt_gate_hold(gate);
    int client = tcp_socket(false, &port), server = accept(listener, NULL, NULL);
    cr_assert_eq(send(client, "a", 1, 0), 1);
    cr_assert_eq(send(server, "b", 1, 0), 1);
    cr_assert_eq(recv(client, &c, 1, 0), 1);
    cr_assert_eq(c, 'b');
    cr_assert(vt_gate_wait_held(gate, 1, 60), "the byte has come as far as the gate");
    cr_assert_eq(recv(server, &c, 1, MSG_DONTWAIT), -1);
    vt_gate_open(gate);
    cr_assert_eq(recv(server, &c, 1, 0), 1);
    cr_assert_eq(c, 'a');
    shutdown(client, SHUT_WR);
    cr_assert_eq(recv(server, &c, 1, 0), 0, "the end comes through");
    vt_gate_stop(gate);
    cr_assert_eq(recv(client, &c, 1, 0), 0);
    close(client);
    close(server);
    close(listener);
}
