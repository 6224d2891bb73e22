/*
 * Programs started by tests. Output (stdout and stderr together) is collected by a thread, so a talkative program never
 * blocks; waiting is on events, with a deadline that only a broken program meets, which is three times what a test says
 * it expects at most. The child dies with the thread that started it: start programs from the test's own thread.
 * Variables VERICACHE_* are not inherited.
 */
#ifndef SUPPORT_PROC_H
#define SUPPORT_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct vt_proc vt_proc_t;

/* program: a path, or the bare name of one of our programs ("vericache-server"), found in the build folder.
 * args: NULL-terminated, without the program; env: NULL-terminated "K=V" to add, or NULL. Never returns NULL. */
vt_proc_t *vt_proc_start(const char *program, const char *const *args, const char *const *env);
/* Waits for a line that holds text among those not yet passed by an earlier call; the line is copied to line (cap
 * bytes, may be NULL). False when the program ends or timeout_ms passes without one. */
bool vt_proc_wait_line(vt_proc_t *proc, const char *text, uint32_t timeout_ms, char *line, size_t cap);
/* Exit code, 128 + signal, or -1 when it still runs after timeout_ms. */
int vt_proc_wait_exit(vt_proc_t *proc, uint32_t timeout_ms);
void vt_proc_signal(vt_proc_t *proc, int sig);
pid_t vt_proc_pid(const vt_proc_t *proc);
/* Everything it has printed so far; owned by the caller (vc_free). Complete once vt_proc_wait_exit has returned. */
char *vt_proc_output(vt_proc_t *proc);
/* Kills it where it still runs, reaps it, frees the handle. NULL is fine. */
void vt_proc_end(vt_proc_t *proc);

/* Runs to the end and returns the exit code as above; *output_p (may be NULL) is what it printed, owned by the caller.
 */
int vt_proc_run(const char *program, const char *const *args, const char *const *env, uint32_t timeout_ms,
                char **output_p);

/* True when the program has been built (the suites of a half-built tree skip instead of failing). */
bool vt_proc_exists(const char *program);
/* A TCP port on 127.0.0.1 that was free a moment ago. Prefer port 0 where a program can report what it got. */
uint16_t vt_free_port(void);

#endif
