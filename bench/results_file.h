/*
 * A bench's results as CSV, one form for all benches. Runs merge: a row replaces the older one of the same kind and
 * name, so that a bench can be run in parts.
 *
 *   # bench engine
 *   # run 1 | 2026-01-31T12:00:00Z | COMMIT | MACHINE | COMMAND
 *   kind,name,unit,median,p10,p90,p99,n,run
 *   row,a decoding step,ms,5.1,5,5.3,5.4,7,1
 *   figure,decode_vs_llamacpp_512,,1.82,,,,,1
 *
 * Names with commas or quotes are quoted as CSV has it, and hold no line break. Errors end the bench with a sentence.
 */
#ifndef BENCH_RESULTS_FILE_H
#define BENCH_RESULTS_FILE_H

#include <stddef.h>

#define BENCH_RESULTS_HEAD "kind,name,unit,median,p10,p90,p99,n,run"

/* Whether the file can be merged into: it is missing, or of this form. */
void bench_results_check(const char *path);
/* A row for the next write. kind: "row" or "figure"; rest: from the unit to n. */
void bench_results_add(const char *kind, const char *name, const char *rest);
/* Merges what was added into the file, as one run; about: date, commit, machine and command, separated by " | ".
 * Nothing happens where nothing was added. Writes aside and renames. */
void bench_results_write(const char *path, const char *bench, const char *about);

#endif
