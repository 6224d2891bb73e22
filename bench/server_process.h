/* vericache-server as a child process of a bench, from the same build. */
#ifndef BENCH_SERVER_PROCESS_H
#define BENCH_SERVER_PROCESS_H

#include <sys/types.h>

typedef struct bench_server {
    pid_t pid;
    char program[4096]; /* its path */
    char address[64];   /* of the control plane */
} bench_server_t;

/* args: its flags, NULL at the end; --listen and --port-file are ours. Returns when it is ready and ends the bench when
 * it does not come up. Before this process starts any thread; the server is killed with it. */
void bench_server_start(bench_server_t *server, const char *const *args);
/* SIGTERM, then its exit code, or 128 + the signal that ended it. */
int bench_server_stop(bench_server_t *server);

#endif
