/* Start and stop of the server that a bench loads. */
#include "server_process.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"

#define MOST_ARGS 24
#define NAP_MS 20
#define TRIES 1500 /* half a minute */

static void find_program(char *path, size_t cap)
{
    char self[2048];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash == NULL)
        bench_fail("cannot tell where this program lies");
    *slash = '\0';
    snprintf(path, cap, "%s/../cache-server/vericache-server", self);
    if (access(path, X_OK) != 0)
        bench_fail("%s is not built", path);
}

static void run_server(const char *program, const char *ports, const char *const *args)
{
    char flag[4300];
    const char *argv[MOST_ARGS + 4] = {program, "--listen=127.0.0.1:0", flag};
    snprintf(flag, sizeof(flag), "--port-file=%s", ports);
    for (int i = 0; i < MOST_ARGS && args[i] != NULL; i++)
        argv[3 + i] = args[i];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execv(program, (char *const *)(uintptr_t)argv);
    _exit(127);
}

void bench_server_start(bench_server_t *s, const char *const *args)
{
    char ports[4200];
    const struct timespec nap = {.tv_nsec = NAP_MS * 1000000};
    find_program(s->program, sizeof(s->program));
    snprintf(ports, sizeof(ports), "%s/ports", bench_tmpdir());
    fflush(stdout);
    s->pid = fork();
    if (s->pid == 0)
        run_server(s->program, ports, args);
    for (int i = 0; access(ports, R_OK) != 0; i++) { /* written when it is ready, all at once */
        if (s->pid < 0 || i == TRIES || waitpid(s->pid, NULL, WNOHANG) != 0)
            bench_fail("the server does not start");
        nanosleep(&nap, NULL);
    }
    FILE *f = fopen(ports, "re");
    if (f == NULL || fscanf(f, "%*d listen=%63s", s->address) != 1)
        bench_fail("the port file cannot be read");
    fclose(f);
    unlink(ports); /* for the next one */
}

int bench_server_stop(bench_server_t *s)
{
    int status = 0;
    kill(s->pid, SIGTERM);
    if (waitpid(s->pid, &status, 0) != s->pid)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
