/*
 * Lines of a file or pipe for a reader that has other things to do meanwhile: asks without waiting whether a whole line
 * is there. One owner thread.
 */
#ifndef NODE_ROLE_LINES_H
#define NODE_ROLE_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vc/status.h"

typedef struct node_lines node_lines_t;

/* path "-": standard input, which stays open. */
vc_status_t node_lines_open(const char *path, size_t max_bytes, node_lines_t **lines_p, vc_err_t *err);
void node_lines_close(node_lines_t *lines);
/*
 * The next line without its end, NUL-terminated, valid until the next call; *number_p counts from 1. wait: stands still
 * for it, a fifth of a second at most. AGAIN: none is there yet; NOT_FOUND: the end; RANGE: the line has more than
 * max_bytes, *number_p says which, and the one behind it is next; else what went wrong with reading.
 */
vc_status_t node_lines_next(node_lines_t *lines, bool wait, const char **line_p, size_t *bytes_p, uint64_t *number_p,
                            vc_err_t *err);

#endif
