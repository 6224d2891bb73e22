/*
 * Peers that nobody wants, as a process of their own: connections that say hello and then nothing, one that asks for
 * everything and reads nothing, and one that sends a malformed message, is thrown out, and comes again. They cost the
 * server attention, not this machine its processor: they sleep nearly all of the time.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dataplane_parts.h"
#include "vc/frame.h"
#include "vc/mem.h"
#include "vc/ucx.h"

#define IDLE 40
#define NAP_NS 20000000 /* between two malformed messages */

typedef struct stranger {
    vc_ucx_t *ucx;
    vc_ucx_ep_t *ep;
    vc_ucx_op_t op;
    size_t header_bytes;
    uint8_t header[VC_FRAME_MAX];
    int n_messages, n_lost;
} stranger_t;

static void on_sent(void *arg, vc_status_t status)
{
    (void)arg;
    (void)status;
}

static void on_lost(void *arg, vc_ucx_ep_t *ep, vc_status_t status)
{
    (void)ep;
    (void)status;
    ((stranger_t *)arg)->n_lost++;
}

/* Keeps every payload without reading it. */
static bool on_message(void *arg, const vc_ucx_msg_t *msg)
{
    ((stranger_t *)arg)->n_messages++;
    return msg->desc != NULL;
}

static void say(stranger_t *s, const vc_frame_t *frame)
{
    s->op = (vc_ucx_op_t){.done = on_sent, .arg = s};
    s->header_bytes = vc_frame_encode(frame, s->header);
    (void)vc_ucx_send(s->ep, s->header, s->header_bytes, NULL, 0, &s->op);
}

static bool come(stranger_t *s, const char *address)
{
    memset(s, 0, sizeof(*s));
    vc_ucx_opts_t opts = {.address = address, .rndv_threshold = 512u << 10};
    if (vc_ucx_open(&opts, &s->ucx, NULL) != VC_OK)
        return false;
    vc_ucx_set_handler(s->ucx, on_message, s);
    if (vc_ucx_connect(s->ucx, on_lost, s, &s->ep, NULL) != VC_OK)
        return false;
    say(s, &(vc_frame_t){.type = VC_FRAME_HELLO, .max_record_bytes = 4u << 20});
    while (s->n_messages == 0 && s->n_lost == 0)
        vc_ucx_wait(s->ucx, 100);
    return s->n_lost == 0;
}

/* One that is thrown out, and again and again. */
static void misbehave(const char *address)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    for (;;) {
        stranger_t s;
        if (come(&s, address)) {
            say(&s, &(vc_frame_t){.type = VC_FRAME_HELLO, .max_record_bytes = 4u << 20}); /* a second one */
            for (int i = 0; i < 100 && s.n_lost == 0; i++)
                vc_ucx_wait(s.ucx, 10);
        }
        vc_ucx_close(s.ucx);
        nanosleep(&nap, NULL);
    }
}

static void play(const char *address, const vc_data_lease_t *lease, uint32_t n_blocks, int ready_fd)
{
    static stranger_t idle[IDLE], greedy;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < IDLE; i++)
        if (!come(&idle[i], address))
            _exit(1);
    if (!come(&greedy, address))
        _exit(1);
    vc_frame_t f = {.type = VC_FRAME_FETCH, .request = 1, .boot_id = lease->boot_id, .lease_id = lease->lease_id};
    memcpy(f.token, lease->token, sizeof(f.token));
    f.n = n_blocks;
    f.credits = 64;
    say(&greedy, &f);
    for (int i = 0; i < 200 && greedy.n_messages < 2; i++)
        vc_ucx_wait(greedy.ucx, 10);
    if (write(ready_fd, "r", 1) != 1)
        _exit(1);
    misbehave(address);
}

/* UCX does not survive a fork, so the strangers' process runs this program anew. */
void hostile_main(void)
{
    vc_data_lease_t lease = {.boot_id = strtoull(bench_option("boot", "0"), NULL, 16),
                             .lease_id = strtoull(bench_option("lease", "0"), NULL, 16)};
    const char *hex = bench_option("token", "");
    for (size_t i = 0; i < sizeof(lease.token) && strlen(hex) == 2 * sizeof(lease.token); i++) {
        unsigned byte = 0;
        if (sscanf(hex + 2 * i, "%2x", &byte) == 1)
            lease.token[i] = (uint8_t)byte;
    }
    play(bench_option("hostile", ""), &lease, (uint32_t)atoi(bench_option("blocks", "1")), 3);
}

pid_t hostile_start(const server_t *s, const vc_data_lease_t *lease)
{
    char boot[24], id[24], token[40], blocks[16], ready;
    int fd[2];
    snprintf(boot, sizeof(boot), "%llx", (unsigned long long)lease->boot_id);
    snprintf(id, sizeof(id), "%llx", (unsigned long long)lease->lease_id);
    snprintf(blocks, sizeof(blocks), "%u", s->n_blocks);
    for (size_t i = 0; i < sizeof(lease->token); i++)
        snprintf(token + 2 * i, 3, "%02x", lease->token[i]);
    char *argv[] = {"/proc/self/exe",
                    "--hostile",
                    (char *)(uintptr_t)cs_dataplane_address(s->dp),
                    "--boot",
                    boot,
                    "--lease",
                    id,
                    "--token",
                    token,
                    "--blocks",
                    blocks,
                    NULL};
    if (pipe(fd) != 0)
        bench_fail("no pipe");
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        if (dup2(fd[1], 3) != 3 || freopen("/dev/null", "w", stdout) == NULL)
            _exit(127);
        execv(argv[0], argv);
        _exit(127);
    }
    close(fd[1]);
    if (pid < 0 || read(fd[0], &ready, 1) != 1)
        bench_fail("the hostile peers do not come up");
    close(fd[0]);
    return pid;
}

void hostile_stop(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}
