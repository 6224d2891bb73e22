/* The strings of a replay as token ids. No state. */
#include "compress/replay_ids.h"

#include <string.h>

#include "vc/mem.h"

static const char words_first[] = "\n\nRepeat the previous context exactly.";
static const char words_next[] = "\n\nRepeat the part of the previous context exactly, starting with";

/* A turn of the user and the opening of the answer end with: close marker, text, open marker, text. The suffix is what
 * begins with the close marker. */
static vc_status_t make_suffix(node_replay_ids_t *ids, const node_tokenizer_t *tok, vc_err_t *err)
{
    const node_chat_msg_t turn = {"user", "x", 1};
    uint32_t *all, n;
    vc_status_t status = node_chat_encode(tok, &turn, 1, true, UINT32_MAX, &all, &n, err);
    if (status == VC_ERR_UNSUPPORTED)
        return VC_OK;
    if (status != VC_OK)
        return status;
    uint32_t at = n;
    for (int markers = 0; at > 0 && markers < 2;)
        markers += node_tokenizer_is_special(tok, all[--at]);
    ids->n_suffix = n - at;
    ids->suffix = vc_memdup(all + at, (n - at) * sizeof(*all));
    vc_free(all);
    return ids->suffix != NULL ? VC_OK : vc_err_set(err, VC_ERR_NOMEM, "no memory for the chat template");
}

vc_status_t node_replay_ids_init(node_replay_ids_t *ids, const node_tokenizer_t *tok, vc_err_t *err)
{
    memset(ids, 0, sizeof(*ids));
    vc_status_t status =
        node_tokenizer_encode(tok, words_first, strlen(words_first), false, &ids->first, &ids->n_first, err);
    if (status == VC_OK)
        status = node_tokenizer_encode(tok, words_next, strlen(words_next), false, &ids->next, &ids->n_next, err);
    if (status == VC_OK)
        status = make_suffix(ids, tok, err);
    if (status != VC_OK)
        node_replay_ids_fini(ids);
    return status;
}

void node_replay_ids_fini(node_replay_ids_t *ids)
{
    vc_free(ids->first);
    vc_free(ids->next);
    vc_free(ids->suffix);
    memset(ids, 0, sizeof(*ids));
}

node_replay_t node_replay_of(const node_replay_ids_t *ids, node_engine_t *engine)
{
    return (node_replay_t){.engine = engine,
                           .first = ids->first,
                           .next = ids->next,
                           .suffix = ids->suffix,
                           .n_first = ids->n_first,
                           .n_next = ids->n_next,
                           .n_suffix = ids->n_suffix};
}
