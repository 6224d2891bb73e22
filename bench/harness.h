/*
 * What every bench shares: the printed head (command, commit, machine), time, samples with percentiles, the line
 * "figure NAME VALUE" that scripts read, the file of results (results_file.h), and --quick. Benches are single-threaded
 * towards this module.
 */
#ifndef BENCH_HARNESS_H
#define BENCH_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vc/status.h"

/*
 * Reads --quick, --csv FILE and --keep out of argv, prints the head. Call first. Other arguments stay, in order:
 * bench_argc() and bench_argv(i), i from 1. When the process ends with exit code 0, rows and figures are merged into
 * the file of results: --csv FILE, bench/results/NAME.csv with --keep, else build/results/NAME.csv, which --quick
 * leaves alone.
 */
void bench_init(const char *name, int argc, char **argv);
bool bench_quick(void); /* toy sizes: a smoke test in seconds, figures mean nothing */
int bench_argc(void);
const char *bench_argv(int i);
/* Value of "--name VALUE" or "--name=VALUE" among the arguments, or deflt. */
const char *bench_option(const char *name, const char *deflt);
/*
 * The names of all options, separated by spaces. Ends the bench with exit code 64 where an argument is none of them or
 * an option has no value, so that a slip of the keyboard is not an hour of the wrong run. After bench_init.
 */
void bench_options(const char *names);
/* The option as a number in [least, most]; ends the bench where it is none. */
double bench_number(const char *name, const char *deflt, double least, double most);
/* --model FILE, else VERICACHE_MODEL; ends the bench where there is neither. */
const char *bench_model(void);

double bench_now_s(void); /* monotonic seconds */
double bench_cpu_s(void); /* processor seconds of this process, all threads */

/* A growing list of numbers. Zero-initialise; bench_samples_free at the end. */
typedef struct bench_samples {
    double *v;
    size_t n, cap;
} bench_samples_t;
void bench_add(bench_samples_t *s, double value);
double bench_percentile(const bench_samples_t *s, double p); /* p in 0..100, nearest rank; NaN without samples */
double bench_median(const bench_samples_t *s);               /* mean of the middle two for an even count */
double bench_min(const bench_samples_t *s);
double bench_max(const bench_samples_t *s);
double bench_mean(const bench_samples_t *s);
void bench_samples_free(bench_samples_t *s);

/* One row: name, unit, median, p10, p90, p99, n. Also to the file of results. */
void bench_row(const char *name, const char *unit, const bench_samples_t *s);
/* "figure NAME VALUE", the machine-readable result, NAME as in figures.csv. Also to the file of results. */
void bench_figure(const char *name, double value);
/* A remark under the table, one line. */
void bench_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Prints the sentence and ends with exit code 1. */
void bench_fail(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* For calls that must succeed: else the bench ends with their sentence. */
#define BENCH_OK(call, err)                                       \
    do {                                                          \
        vc_status_t st_ = (call);                                 \
        if (st_ != VC_OK)                                         \
            bench_fail("%s: %s", vc_status_name(st_), (err).msg); \
    } while (0)

/* Pins the calling thread; false when the machine has no such CPU. */
bool bench_pin(int cpu);
int bench_n_cpus(void);
/* Directory for temporary files of this run: under --dir, else TMPDIR, else /tmp; removed at exit with all it holds. */
const char *bench_tmpdir(void);
/* Runs argv (NULL-terminated) with stdout captured into out (cap bytes, NUL-terminated). Exit code, or -1. */
int bench_run(char *const argv[], char *out, size_t cap);
/* True when the program is in PATH. */
bool bench_have(const char *program);

#endif
