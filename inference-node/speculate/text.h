/*
 * From tokens to text: finds stop strings and gives out what may be shown. Bytes are held back while they may be the
 * start of a stop string or of a UTF-8 sequence. Special tokens give no text. A function of the token sequence alone,
 * so a verifier and a distant drafter agree on it. One thread at a time.
 */
#ifndef NODE_TEXT_H
#define NODE_TEXT_H

#include "model/tokenizer.h"

#define NODE_STOPS_MAX 16u
#define NODE_STOP_BYTES_MAX 256u

typedef struct node_text node_text_t;

/* tok outlives the text. Stop strings are copied; an empty or overlong one, or too many, is INVALID. */
vc_status_t node_text_create(const node_tokenizer_t *tok, const char *const *stops, uint32_t n_stops,
                             node_text_t **text_p, vc_err_t *err);
void node_text_destroy(node_text_t *text);
/* *stopped_p: this token completed a stop string. Later tokens are ignored then. */
vc_status_t node_text_push(node_text_t *text, uint32_t token, bool *stopped_p, vc_err_t *err);
/* No more tokens: what is held back is final now (an incomplete sequence becomes U+FFFD). */
vc_status_t node_text_finish(node_text_t *text, vc_err_t *err);
/* Valid UTF-8 that may be shown and was not taken before; *len_p 0 when there is none. Valid until the next call. */
const char *node_text_take(node_text_t *text, size_t *len_p);
/* Everything that may be shown so far, taken or not. NUL-terminated. */
const char *node_text_all(const node_text_t *text, size_t *len_p);

#endif
