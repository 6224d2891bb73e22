/* The plain runner behind vc_test.h under VC_TSAN: tests register in constructors and run in order, in one process. */
#include "vc_test.h"

#ifdef VC_TSAN
#include <stdarg.h>
#include <time.h>

typedef struct {
    const char *suite, *name;
    vc_test_fn fn;
} entry_t;
static entry_t entries[512];
static int n_entries;
static jmp_buf skip_point;
static const char *running;

void vc_test_add(const char *suite, const char *name, vc_test_fn fn)
{
    if (n_entries < 512)
        entries[n_entries++] = (entry_t){suite, name, fn};
}

void vc_test_fail(const char *file, int line, const char *expr)
{
    fprintf(stderr, "%s:%d: failed: %s\n", file, line, expr);
    exit(1);
}

void vc_test_skip(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printf("[SKIP] %s: ", running);
    vprintf(fmt, ap);
    putchar('\n');
    va_end(ap);
    longjmp(skip_point, 1);
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(void)
{
    volatile int skipped = 0; /* survives the jump */
    for (volatile int i = 0; i < n_entries; i++) {
        const double start = now_s();
        running = entries[i].name;
        printf("[ RUN ] %s::%s\n", entries[i].suite, entries[i].name);
        if (setjmp(skip_point) == 0)
            entries[i].fn();
        else
            skipped++;
        printf("[DONE ] %s::%s: (%.2fs)\n", entries[i].suite, entries[i].name, now_s() - start);
    }
    printf("%d tests, %d skipped\n", n_entries, skipped);
    return n_entries == 0;
}
#else
typedef int vc_plain_runner_unused_t; /* ISO C wants a declaration */
#endif
