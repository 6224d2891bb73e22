/* Opening and closing a node: model file, tokenizer, engine, in that order; closed in reverse. */
#include "node.h"

#include "vc/log.h"
#include "vc/mem.h"

void node_opts_default(node_opts_t *opts)
{
    *opts = (node_opts_t){.need_engine = true};
    node_engine_opts_default(&opts->engine);
}

vc_status_t node_open(const node_opts_t *opts, node_t **node_p, vc_err_t *err)
{
    if (opts->model_path == NULL || opts->model_path[0] == '\0')
        return vc_err_set(err, VC_ERR_INVALID, "no model given: pass --model FILE.gguf");
    node_t *node = vc_calloc(1, sizeof(*node));
    if (node == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the node");
    pthread_mutex_init(&node->pass_lock, NULL);
    vc_status_t status = node_gguf_open(opts->model_path, &node->gguf, err);
    if (status == VC_OK)
        status = node_tokenizer_create(node->gguf, &node->tok, err);
    if (status == VC_OK && opts->need_engine)
        status = node_engine_create(node->gguf, node->tok, &opts->engine, &node->engine, err);
    if (status != VC_OK) {
        node_close(node);
        return status;
    }
    if (node->engine != NULL) {
        const node_model_info_t *info = node_engine_info(node->engine);
        vc_log_info("node", "model loaded arch=%s layers=%u width=%u context=%u isa=%s threads=%u numerics=%u",
                    info->arch, info->n_layer, info->d_model, info->context,
                    node_isa_name(node_engine_isa(node->engine)), opts->engine.n_threads, NODE_NUMERICS_ID);
    }
    *node_p = node;
    return VC_OK;
}

void node_close(node_t *node)
{
    if (node == NULL)
        return;
    node_engine_destroy(node->engine);
    node_tokenizer_destroy(node->tok);
    node_gguf_close(node->gguf);
    pthread_mutex_destroy(&node->pass_lock);
    vc_free(node);
}

uint32_t node_end_tokens(const node_tokenizer_t *tok, uint32_t *ids, uint32_t cap)
{
    uint32_t n = 0, n_vocab = node_tokenizer_n_vocab(tok);
    for (uint32_t id = 0; id < n_vocab && n < cap; id++)
        if (node_tokenizer_is_end(tok, id))
            ids[n++] = id;
    return n;
}

void node_pass_begin(node_t *node) { pthread_mutex_lock(&node->pass_lock); }
void node_pass_end(node_t *node) { pthread_mutex_unlock(&node->pass_lock); }
