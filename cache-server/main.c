/* vericache-server: arguments and signals. `vericache-server verify` is the offline check (verify.h). */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config.h"
#include "server.h"
#include "vc/log.h"
#include "verify.h"

#define DRAIN_LOOK_MS 20u

/* Blocked in every thread from the start: the main thread collects them with sigwait. */
static void block_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    pthread_sigmask(SIG_BLOCK, set, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* ulimit -f: a failed write with its sentence, not a dead process */
}

/* Until nothing is out any more or the grace period is over; a second signal ends it. */
static void drain(cs_server_t *server, const sigset_t *signals, uint64_t grace_ms)
{
    const struct timespec look = {.tv_nsec = DRAIN_LOOK_MS * 1000000};
    cs_server_drain(server);
    for (uint64_t ms = 0; ms < grace_ms && !cs_server_is_drained(server); ms += DRAIN_LOOK_MS)
        if (sigtimedwait(signals, NULL, &look) > 0) {
            cs_server_end_grace(server);
            return;
        }
}

VC_LOG_HOLD_STREAMS;

int main(int argc, char **argv)
{
    sigset_t signals;
    vc_err_t err = {0};
    cs_config_t config;
    cs_server_t *server = NULL;
    int got = 0;
    if (argc > 1 && strcmp(argv[1], "verify") == 0)
        return cs_verify_main(argc - 1, argv + 1, stdout, stderr);
    block_signals(&signals);
    vc_status_t st = cs_config_load(&config, argc, argv, environ, &err);
    if (st != VC_OK) {
        fprintf(stderr, "vericache-server: %s\n", err.msg);
        return vc_status_exit_code(st);
    }
    if (config.show_only) {
        cs_config_free(&config);
        return 0;
    }
    vc_log_set_level((vc_log_level_t)config.log_level);
    st = cs_server_start(&config, &server, &err);
    if (st == VC_OK) {
        while (sigwait(&signals, &got) != 0)
            ;
        vc_log_info("server", "stopping signal=%s", got == SIGTERM ? "TERM" : "INT");
        drain(server, &signals, config.grace_ms);
        cs_server_stop(server);
        vc_log_info("server", "stopped");
    } else {
        fprintf(stderr, "vericache-server: %s\n", err.msg);
    }
    cs_config_free(&config);
    return vc_status_exit_code(st);
}
