/*
 * One event, one line: "2026-01-31T12:00:00.123Z info store: recovered objects=12 ms=3".
 * Thread-safe; lines of one call are never interleaved. The sink is the one global of this library.
 */
#ifndef VC_LOG_H
#define VC_LOG_H

typedef enum { VC_LOG_ERROR = 0, VC_LOG_WARN = 1, VC_LOG_INFO = 2, VC_LOG_DEBUG = 3 } vc_log_level_t;

/* Receives one line without a newline. Runs on the logging thread under a lock: it must not log. */
typedef void (*vc_log_sink_fn)(void *arg, vc_log_level_t level, const char *line);

void vc_log_set_level(vc_log_level_t level);          /* default INFO */
void vc_log_set_sink(vc_log_sink_fn sink, void *arg); /* NULL: stderr */
/* Number of warnings and errors since start, for tests that fail on an unexpected one. */
unsigned long vc_log_count(vc_log_level_t level);
/* A standard stream that the caller closed stays an error when it is used. Otherwise its number would go to the next
 * file that is opened, and lines of the log into a file of data. VC_LOG_HOLD_STREAMS in a program's main file has it
 * run before libraries open files of their own. */
void vc_log_hold_streams(void);
#define VC_LOG_HOLD_STREAMS \
    __attribute__((section(".preinit_array"), used)) static void (*const hold_streams)(void) = vc_log_hold_streams

/* module: "store", "dataplane"...; fmt: "event words key=value ..." in lower case. */
void vc_log(vc_log_level_t level, const char *module, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#define vc_log_error(module, ...) vc_log(VC_LOG_ERROR, module, __VA_ARGS__)
#define vc_log_warn(module, ...) vc_log(VC_LOG_WARN, module, __VA_ARGS__)
#define vc_log_info(module, ...) vc_log(VC_LOG_INFO, module, __VA_ARGS__)
#define vc_log_debug(module, ...) vc_log(VC_LOG_DEBUG, module, __VA_ARGS__)

#endif
