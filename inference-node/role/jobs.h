/*
 * A request of `vericache-node batch`: a JSON object on a line, checked field by field. Knows nothing of batches.
 *
 *   {"id": "a", "prompt": "...", "system": "...", "raw": false, "max_tokens": 256, "stop": "..." or ["...", ...],
 *    "ignore_end": false, "source": "suffix" or "none", "temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0,
 *    "seed": 0, "repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
 * Only the prompt is needed. A field of any other name is refused, never ignored.
 */
#ifndef NODE_ROLE_JOBS_H
#define NODE_ROLE_JOBS_H

#include "speculate/sample.h"
#include "speculate/text.h"

typedef struct node_job {
    char *id; /* as JSON text: a string or an integer; the line's number where the line has none */
    char *prompt, *system;
    bool raw, ignore_end;
    bool source;    /* tokens are proposed from text that occurred before */
    bool no_drafts; /* there are none in this run: a source of the request's own is refused */
    uint32_t max_tokens;
    node_sampling_t sampling;
    char *stops[NODE_STOPS_MAX];
    uint32_t n_stops;
} node_job_t;

/* INVALID, RANGE, UNSUPPORTED with a sentence that names the field; the job has its id then, as far as it has one. To
 * be freed in any case. raw, source, no_drafts and max_tokens hold the defaults when called. */
vc_status_t node_job_parse(node_job_t *job, uint64_t line_number, const char *line, size_t bytes, vc_err_t *err);
void node_job_free(node_job_t *job);

#endif
