/*
 * The victim of the kill tests: registers units with two threads until it is killed or done, and says on stdout what
 * it is about to do (crash_units.h).  crash_writer DIR CAPACITY FIRST_ID N_UNITS SEED
 */
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>

#include "crash_units.h"

enum { N_THREADS = 2 };

typedef struct writer {
    pthread_t thread;
    fx_t *fx;
    uint64_t state;
    uint32_t first_id, n_units;
    bool is_broken;
} writer_t;

/* One write(2): lines of two threads never mix, and what was written survives the kill in the pipe. */
static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *fmt, ...)
{
    char line[128];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    if (write(STDOUT_FILENO, line, (size_t)n) != n)
        _exit(3);
}

static bool run_unit(writer_t *w, uint32_t id, uint32_t chain, uint32_t first, uint32_t n_blocks, unsigned what)
{
    cs_upload_info_t info;
    uint8_t missing[2 * FX_MAX_BLOCKS];
    bool abort_it = unit_random(&w->state) % 6 == 0;
    say("P %u %u %u %u %u\n", id, chain, first, n_blocks, what);
    vc_status_t status = fx_begin(w->fx, chain, first, n_blocks, what, &info, missing);
    if (status == VC_OK)
        status = fx_put_missing(w->fx, &info, chain, first, n_blocks, what, missing);
    if (status != VC_OK) {
        fprintf(stderr, "unit %u: %s\n", id, vc_status_name(status));
        w->is_broken = true;
        return false;
    }
    if (abort_it) {
        say("A %u\n", id);
        (void)cs_store_abort(w->fx->store, info.upload_id, &info.token);
        return false;
    }
    say("T %u\n", id);
    status = fx_commit(w->fx, &info);
    if (status == VC_OK)
        say("C %u\n", id);
    w->is_broken = w->is_broken || status != VC_OK;
    return status == VC_OK;
}

static void *run(void *arg)
{
    writer_t *w = arg;
    uint32_t chain = 0, blocks = 0;
    unsigned what = 0;
    for (uint32_t i = 0; i < w->n_units && !w->is_broken; i++) {
        uint32_t id = w->first_id + i * N_THREADS, first = 0;
        /* A new chain, or the last one goes on. */
        if (blocks > 0 && unit_random(&w->state) % 2 == 0) {
            first = blocks;
        } else {
            chain = id;
            what = 1 + unit_random(&w->state) % 3;
        }
        uint32_t n_blocks = first + 1 + unit_random(&w->state) % 5;
        blocks = run_unit(w, id, chain, first, n_blocks, what) ? n_blocks : 0;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    fx_t fx;
    vc_err_t err;
    writer_t writers[N_THREADS];
    if (argc != 6)
        return 64;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    uint64_t seed = strtoull(argv[5], NULL, 10);
    uint32_t first_id = (uint32_t)strtoul(argv[3], NULL, 10), n_units = (uint32_t)strtoul(argv[4], NULL, 10);
    unit_setup(&fx, argv[1], strtoull(argv[2], NULL, 10));
    if (fx_open(&fx, CS_IO_AUTO, &err) != VC_OK) {
        fprintf(stderr, "open: %s\n", err.msg);
        return 1;
    }
    bool is_broken = false;
    for (uint32_t i = 0; i < N_THREADS; i++) {
        writers[i] = (writer_t){.fx = &fx, .state = seed * 7919 + i, .first_id = first_id + i, .n_units = n_units};
        pthread_create(&writers[i].thread, NULL, run, &writers[i]);
    }
    for (uint32_t i = 0; i < N_THREADS; i++) {
        pthread_join(writers[i].thread, NULL);
        is_broken = is_broken || writers[i].is_broken;
    }
    say("E\n");
    fx_fini(&fx);
    return is_broken ? 2 : 0;
}
