/* Whole files in memory, and the paths of test data. For tests: anything that goes wrong ends the test with a line. */
#ifndef SUPPORT_FILE_H
#define SUPPORT_FILE_H

#include <stddef.h>
#include <stdint.h>

/* Owned bytes (vc_free), with a zero byte after the last one so that text can be used as a string. n_p may be NULL. */
uint8_t *vt_file_read(const char *path, size_t *n_p);
/* tests/vectors/<name>, read whole. */
uint8_t *vt_vector_read(const char *name, size_t *n_p);
void vt_file_write(const char *path, const void *data, size_t n);
/* Ends the process with a line on stderr: for broken test surroundings, not for the behaviour under test. */
void vt_die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
