/*
 * Prompts from arguments and files, and their tokens: shared by the roles, so that a registered document and a later
 * question about it agree.
 */
#ifndef NODE_ROLE_PROMPT_H
#define NODE_ROLE_PROMPT_H

#include "model/tokenizer.h"

typedef struct node_prompt {
    const char *system; /* system turn; NULL or empty: the template's own */
    const char *text;
    size_t bytes;
    bool raw; /* no chat template */
} node_prompt_t;

/* Whole file, freed with vc_free; "-" is standard input. At most max_bytes. */
vc_status_t node_prompt_read_file(const char *path, size_t max_bytes, char **text_p, size_t *bytes_p, vc_err_t *err);

/*
 * Tokens of a prompt. open_ended: without the end of the user turn, so that they are a prefix of every prompt whose
 * user text begins with this text (up to a token that spans the join). context: not 0, RANGE as soon as it is certain
 * that a context of so many tokens has no room behind the prompt. *ids_p is freed with vc_free.
 */
vc_status_t node_prompt_encode(const node_tokenizer_t *tok, const node_prompt_t *prompt, bool open_ended,
                               uint32_t context, uint32_t **ids_p, uint32_t *n_p, vc_err_t *err);

#endif
