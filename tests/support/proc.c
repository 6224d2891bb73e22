/* Programs started by tests: spawn, collect output, wait, kill. */
#include "support/proc.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/file.h"
#include "vc/mem.h"

struct vt_proc {
    pid_t pid;
    int pidfd, out_fd;
    pthread_t reader;
    pthread_mutex_t lock; /* guards what follows, up to closed */
    pthread_cond_t grown;
    char *text;
    size_t used, cap;
    bool closed;   /* the child and its children have closed their output */
    size_t passed; /* wait_line looks from here on */
    bool reaped;
    int exit_code;
};

/* Machines differ, and sanitized programs take several times as long; deadlines are for broken ones only. */
enum { PATIENCE = 3 };

static void path_of(const char *program, char *path, size_t cap)
{
    static const char *const dirs[] = {"cache-server", "inference-node", "bench", "tests"};
    snprintf(path, cap, "%s", program);
    for (size_t i = 0; strchr(program, '/') == NULL && i < VC_ARRAY_LEN(dirs); i++) {
        snprintf(path, cap, "%s/%s/%s", VC_BIN_DIR, dirs[i], program);
        if (access(path, X_OK) == 0)
            return;
    }
}

bool vt_proc_exists(const char *program)
{
    char path[4096];
    path_of(program, path, sizeof(path));
    return access(path, X_OK) == 0;
}

static void *collect(void *arg)
{
    vt_proc_t *proc = arg;
    char buf[4096];
    for (ssize_t n; (n = read(proc->out_fd, buf, sizeof(buf))) > 0 || (n < 0 && errno == EINTR);) {
        size_t got = n > 0 ? (size_t)n : 0;
        pthread_mutex_lock(&proc->lock);
        if (proc->used + got + 1 > proc->cap) {
            proc->cap = 2 * (proc->used + got + 1);
            proc->text = vc_realloc(proc->text, proc->cap, 1);
            if (proc->text == NULL)
                vt_die("out of memory collecting output");
        }
        memcpy(proc->text + proc->used, buf, got);
        proc->used += got;
        proc->text[proc->used] = '\0';
        pthread_cond_broadcast(&proc->grown);
        pthread_mutex_unlock(&proc->lock);
    }
    pthread_mutex_lock(&proc->lock);
    proc->closed = true;
    pthread_cond_broadcast(&proc->grown);
    pthread_mutex_unlock(&proc->lock);
    return NULL;
}

/* Our environment without VERICACHE_*, and extra behind it. The strings are borrowed. */
static char **make_env(const char *const *extra)
{
    size_t n = 0;
    for (char **e = environ; *e != NULL; e++)
        n++;
    for (const char *const *e = extra; e != NULL && *e != NULL; e++)
        n++;
    char **env = vc_calloc(n + 1, sizeof(*env));
    if (env == NULL)
        vt_die("out of memory");
    n = 0;
    for (char **e = environ; *e != NULL; e++)
        if (strncmp(*e, "VERICACHE_", 10) != 0)
            env[n++] = *e;
    for (const char *const *e = extra; e != NULL && *e != NULL; e++)
        env[n++] = (char *)*e;
    return env;
}

static char **make_argv(char *path, const char *const *args)
{
    size_t n = 0;
    while (args != NULL && args[n] != NULL)
        n++;
    char **argv = vc_calloc(n + 2, sizeof(*argv));
    if (argv == NULL)
        vt_die("out of memory");
    argv[0] = path;
    for (size_t i = 0; i < n; i++)
        argv[i + 1] = (char *)args[i];
    return argv;
}

/* Between fork and exec: system calls only, since another thread may have held any lock. */
static void child(const char *path, char **argv, char **env, int out_fd, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it died before the line above */
        _exit(126);
    int null_fd = open("/dev/null", O_RDONLY);
    dup2(null_fd, STDIN_FILENO);
    dup2(out_fd, STDOUT_FILENO);
    dup2(out_fd, STDERR_FILENO);
    execve(path, argv, env);
    _exit(127);
}

vt_proc_t *vt_proc_start(const char *program, const char *const *args, const char *const *env)
{
    char path[4096];
    int fds[2];
    path_of(program, path, sizeof(path));
    vt_proc_t *proc = vc_calloc(1, sizeof(*proc));
    if (proc == NULL || pipe2(fds, O_CLOEXEC) != 0)
        vt_die("cannot start %s: %s", path, strerror(errno));
    char **child_env = make_env(env), **argv = make_argv(path, args);
    pid_t parent = getpid();
    proc->pid = fork();
    if (proc->pid == 0)
        child(path, argv, child_env, fds[1], parent);
    vc_free(child_env);
    vc_free(argv);
    if (proc->pid < 0)
        vt_die("cannot fork for %s: %s", path, strerror(errno));
    close(fds[1]);
    proc->out_fd = fds[0];
    proc->pidfd = pidfd_open(proc->pid, 0);
    if (proc->pidfd < 0)
        vt_die("pidfd_open: %s", strerror(errno));
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&proc->grown, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&proc->lock, NULL);
    if (pthread_create(&proc->reader, NULL, collect, proc) != 0)
        vt_die("cannot start a thread");
    return proc;
}

static struct timespec deadline_in(uint32_t ms)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    ts.tv_sec += ms / 1000;
    ts.tv_nsec += (long)(ms % 1000) * 1000000;
    if (ts.tv_nsec >= 1000000000) {
        ts.tv_sec++;
        ts.tv_nsec -= 1000000000;
    }
    return ts;
}

/* Next whole line (or the rest, once the output is closed) that holds text. Called under the lock. */
static bool next_line(vt_proc_t *proc, const char *text, char *line, size_t cap)
{
    while (proc->passed < proc->used) {
        const char *start = proc->text + proc->passed, *end = memchr(start, '\n', proc->used - proc->passed);
        if (end == NULL && !proc->closed)
            return false;
        size_t len = end != NULL ? (size_t)(end - start) : proc->used - proc->passed;
        proc->passed += len + (end != NULL);
        if (memmem(start, len, text, strlen(text)) == NULL)
            continue;
        if (line != NULL)
            snprintf(line, cap, "%.*s", (int)len, start);
        return true;
    }
    return false;
}

bool vt_proc_wait_line(vt_proc_t *proc, const char *text, uint32_t timeout_ms, char *line, size_t cap)
{
    struct timespec deadline = deadline_in(PATIENCE * timeout_ms);
    pthread_mutex_lock(&proc->lock);
    bool found = next_line(proc, text, line, cap);
    while (!found && !proc->closed && pthread_cond_timedwait(&proc->grown, &proc->lock, &deadline) == 0)
        found = next_line(proc, text, line, cap);
    if (!found)
        found = next_line(proc, text, line, cap);
    pthread_mutex_unlock(&proc->lock);
    return found;
}

int vt_proc_wait_exit(vt_proc_t *proc, uint32_t timeout_ms)
{
    struct pollfd pfd = {.fd = proc->pidfd, .events = POLLIN};
    if (proc->reaped)
        return proc->exit_code;
    int ready;
    while ((ready = poll(&pfd, 1, (int)(PATIENCE * timeout_ms))) < 0 && errno == EINTR) {
    }
    if (ready == 0)
        return -1;
    int status;
    if (waitpid(proc->pid, &status, 0) != proc->pid)
        vt_die("waitpid: %s", strerror(errno));
    proc->reaped = true;
    proc->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    /* Let the reader take the last bytes; a grandchild that keeps the pipe open must not hold us up for ever. */
    struct timespec deadline = deadline_in(2000);
    pthread_mutex_lock(&proc->lock);
    while (!proc->closed && pthread_cond_timedwait(&proc->grown, &proc->lock, &deadline) == 0) {
    }
    pthread_mutex_unlock(&proc->lock);
    return proc->exit_code;
}

void vt_proc_signal(vt_proc_t *proc, int sig)
{
    if (!proc->reaped)
        kill(proc->pid, sig);
}

pid_t vt_proc_pid(const vt_proc_t *proc) { return proc->pid; }

char *vt_proc_output(vt_proc_t *proc)
{
    pthread_mutex_lock(&proc->lock);
    char *copy = vc_strdup(proc->text != NULL ? proc->text : "");
    pthread_mutex_unlock(&proc->lock);
    if (copy == NULL)
        vt_die("out of memory");
    return copy;
}

void vt_proc_end(vt_proc_t *proc)
{
    if (proc == NULL)
        return;
    vt_proc_signal(proc, SIGKILL);
    if (vt_proc_wait_exit(proc, 10000) < 0)
        vt_die("process %d survives SIGKILL", (int)proc->pid);
    /* The reader sits in read() where a grandchild still holds the pipe; read() is a cancellation point. */
    pthread_cancel(proc->reader);
    pthread_join(proc->reader, NULL);
    close(proc->out_fd);
    close(proc->pidfd);
    pthread_cond_destroy(&proc->grown);
    pthread_mutex_destroy(&proc->lock);
    vc_free(proc->text);
    vc_free(proc);
}

int vt_proc_run(const char *program, const char *const *args, const char *const *env, uint32_t timeout_ms,
                char **output_p)
{
    vt_proc_t *proc = vt_proc_start(program, args, env);
    int code = vt_proc_wait_exit(proc, timeout_ms);
    if (output_p != NULL)
        *output_p = vt_proc_output(proc);
    vt_proc_end(proc);
    return code;
}

uint16_t vt_free_port(void)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0 ||
        getsockname(fd, (struct sockaddr *)&addr, &len) != 0)
        vt_die("no free port: %s", strerror(errno));
    close(fd);
    return ntohs(addr.sin_port);
}
