/* The log: one event, one line, one lock. The sink and the level are this library's only globals. */
#include "vc/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static vc_log_sink_fn log_sink;
static void *log_sink_arg;
/* Relaxed: a level change may take effect a few lines late; counters are read when the writers are idle. */
static _Atomic int log_level = VC_LOG_INFO;
static _Atomic unsigned long log_counts[VC_LOG_DEBUG + 1];

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void vc_log_set_level(vc_log_level_t level) { atomic_store_explicit(&log_level, (int)level, memory_order_relaxed); }

/* System calls only: nothing has been initialised yet. */
__attribute__((no_sanitize("thread", "address", "undefined"))) void vc_log_hold_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (syscall(SYS_fcntl, fd, F_GETFD) < 0) /* the wrong way round: its use fails. Gets the number fd. */
            (void)syscall(SYS_openat, AT_FDCWD, "/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

void vc_log_set_sink(vc_log_sink_fn sink, void *arg)
{
    pthread_mutex_lock(&log_lock);
    log_sink = sink;
    log_sink_arg = arg;
    pthread_mutex_unlock(&log_lock);
}

unsigned long vc_log_count(vc_log_level_t level)
{
    return atomic_load_explicit(&log_counts[level], memory_order_relaxed);
}

static size_t format_time(char *buf, size_t cap)
{
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(buf, cap, "%Y-%m-%dT%H:%M:%S", &tm);
    int m = snprintf(buf + n, cap - n, ".%03ldZ", ts.tv_nsec / 1000000);
    return n + (size_t)(m > 0 ? m : 0);
}

void vc_log(vc_log_level_t level, const char *module, const char *fmt, ...)
{
    atomic_fetch_add_explicit(&log_counts[level], 1, memory_order_relaxed);
    if ((int)level > atomic_load_explicit(&log_level, memory_order_relaxed))
        return;
    char line[1200];
    size_t n = format_time(line, sizeof(line));
    int m = snprintf(line + n, sizeof(line) - n, " %s %s: ", level_names[level], module);
    n += (size_t)(m > 0 ? m : 0);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line + n, sizeof(line) - n, fmt, ap);
    va_end(ap);
    for (char *c = line; *c != '\0'; c++) /* a name from outside must not start a line of its own */
        if ((unsigned char)*c < 0x20)
            *c = ' ';
    pthread_mutex_lock(&log_lock);
    if (log_sink != NULL)
        log_sink(log_sink_arg, level, line);
    else
        fprintf(stderr, "%s\n", line);
    pthread_mutex_unlock(&log_lock);
}
