/* Opening and closing a node: model file, tokenizer, engine, in that order, and the file closed again. */
#include "node.h"

#include <string.h>

#include "kernels/team.h"
#include "vc/log.h"
#include "vc/mem.h"

void node_opts_default(node_opts_t *opts)
{
    *opts = (node_opts_t){.need_engine = true};
    node_engine_opts_default(&opts->engine);
    opts->engine.n_threads = 0;
}

static vc_status_t keep_paths(node_t *node, const node_opts_t *opts, vc_err_t *err)
{
    const bool own_dir = opts->calib_dir != NULL && opts->calib_dir[0] != '\0';
    node_codecs(&node->n_calibs);
    node->calibs = vc_calloc(node->n_calibs, sizeof(*node->calibs));
    node->model_path = vc_strdup(opts->model_path);
    if (own_dir)
        node->calib_dir = vc_strdup(opts->calib_dir);
    if (node->calibs == NULL || node->model_path == NULL || (own_dir && node->calib_dir == NULL))
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the node");
    return VC_OK;
}

/* More threads than processors would wait for each other at every step; results do not depend on their number. Unasked
 * no more than small models gain by. */
static node_engine_opts_t within_processors(const node_engine_opts_t *asked)
{
    node_engine_opts_t o = *asked;
    const uint32_t processors = node_team_processors();
    if (o.n_threads == 0)
        o.n_threads = VC_MIN(processors, NODE_THREADS_UNASKED);
    if (o.n_threads > processors) {
        vc_log_warn("node", "more threads than processors, one each is taken threads=%u processors=%u", o.n_threads,
                    processors);
        o.n_threads = processors;
    }
    return o;
}

static vc_status_t load_model(node_t *node, const node_opts_t *opts, vc_err_t *err)
{
    node_gguf_t *gguf = NULL;
    vc_status_t status = node_gguf_open(opts->model_path, &gguf, err);
    if (status == VC_OK)
        status = node_tokenizer_create(gguf, &node->tok, err);
    if (status == VC_OK && opts->need_engine) {
        const node_engine_opts_t engine = within_processors(&opts->engine);
        status = node_engine_create(gguf, node->tok, &engine, &node->engine, err);
    }
    node_gguf_close(gguf);
    return status;
}

vc_status_t node_open(const node_opts_t *opts, node_t **node_p, vc_err_t *err)
{
    if (opts->model_path == NULL || opts->model_path[0] == '\0')
        return vc_err_set(err, VC_ERR_INVALID, "no model given: pass --model FILE.gguf");
    node_t *node = vc_calloc(1, sizeof(*node));
    if (node == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the node");
    pthread_mutex_init(&node->pass_lock, NULL);
    pthread_mutex_init(&node->calib_lock, NULL);
    vc_status_t status = keep_paths(node, opts, err);
    if (status == VC_OK)
        status = load_model(node, opts, err);
    if (status == VC_OK && opts->need_engine)
        status = node_replay_ids_init(&node->replay_ids, node->tok, err);
    if (status != VC_OK) {
        node_close(node);
        return status;
    }
    if (node->engine != NULL) {
        const node_model_info_t *info = node_engine_info(node->engine);
        vc_log_info("node", "model loaded arch=%s layers=%u width=%u context=%u isa=%s threads=%u numerics=%u",
                    info->arch, info->n_layer, info->d_model, info->context,
                    node_isa_name(node_engine_isa(node->engine)), node_engine_n_threads(node->engine),
                    NODE_NUMERICS_ID);
    }
    *node_p = node;
    return VC_OK;
}

void node_close(node_t *node)
{
    if (node == NULL)
        return;
    node_engine_destroy(node->engine);
    node_replay_ids_fini(&node->replay_ids);
    node_tokenizer_destroy(node->tok);
    for (uint32_t i = 0; node->calibs != NULL && i < node->n_calibs; i++)
        node_calib_free(node->calibs[i]);
    vc_free(node->calibs);
    vc_free(node->model_path);
    vc_free(node->calib_dir);
    pthread_mutex_destroy(&node->calib_lock);
    pthread_mutex_destroy(&node->pass_lock);
    vc_free(node);
}

uint32_t node_context(const node_t *node, uint64_t asked)
{
    const uint32_t own = node_engine_info(node->engine)->context;
    return asked > 0 && asked < own ? (uint32_t)asked : own;
}

uint32_t node_end_tokens(const node_tokenizer_t *tok, uint32_t *ids, uint32_t cap)
{
    uint32_t n = 0, n_vocab = node_tokenizer_n_vocab(tok);
    for (uint32_t id = 0; id < n_vocab && n < cap; id++)
        if (node_tokenizer_is_end(tok, id))
            ids[n++] = id;
    return n;
}

vc_status_t node_calib_file(const node_t *node, const char *method, char *out, size_t cap, vc_err_t *err)
{
    return node_calib_path(node->calib_dir, node->model_path, method, out, cap, err);
}

static vc_status_t load_calib(const node_t *node, const node_spec_t *spec, node_calib_t **calib_p, vc_err_t *err)
{
    char path[4096];
    vc_status_t status = node_calib_file(node, spec->ops->name, path, sizeof(path), err);
    if (status == VC_OK)
        status = node_calib_load(path, spec->ops, node_engine_info(node->engine), calib_p, err);
    if (status != VC_ERR_NOT_FOUND)
        return status;
    return vc_err_set(err, VC_ERR_INVALID,
                      "%s needs the calibration %s, which is not there; it is made with: vericache-node calibrate "
                      "--model %s%s%s --method %s TEXT...",
                      spec->ops->name, path, node->model_path, node->calib_dir ? " --calibration " : "",
                      node->calib_dir ? node->calib_dir : "", spec->ops->name);
}

vc_status_t node_bind_spec(node_t *node, node_spec_t *spec, vc_err_t *err)
{
    if (!(spec->ops->needs(spec) & NODE_NEED_CALIB) || spec->calib != NULL)
        return VC_OK;
    uint32_t n, i = 0;
    const node_codec_ops_t *const *codecs = node_codecs(&n);
    while (i < node->n_calibs && strcmp(codecs[i]->name, spec->ops->name) != 0)
        i++;
    if (node->engine == NULL || i == node->n_calibs)
        return vc_err_set(err, VC_ERR_INVALID, "%s needs a model to be calibrated for", spec->text);
    vc_status_t status = VC_OK;
    pthread_mutex_lock(&node->calib_lock);
    if (node->calibs[i] == NULL)
        status = load_calib(node, spec, &node->calibs[i], err);
    const node_calib_t *calib = node->calibs[i];
    pthread_mutex_unlock(&node->calib_lock);
    if (status == VC_OK && spec->ops->calib_fits != NULL)
        status = spec->ops->calib_fits(spec, calib, err);
    if (status == VC_OK)
        node_spec_bind(spec, calib);
    return status;
}

node_costs_t *node_step_costs(node_t *node)
{
    vc_err_t err;
    if (node->costs_tried)
        return &node->costs;
    node->costs_tried = true;
    node_pass_begin(node);
    vc_status_t st = node_costs_measure(&node->costs, node->engine, vc_clock_system(), &err);
    node_pass_end(node);
    if (st != VC_OK)
        vc_log_info("node", "step costs are not known reason=\"%s\"", err.msg);
    else
        vc_log_info("node", "step costs measured one_us=%.0f sixteen_us=%.0f thousand_tokens_us=%.0f,%.0f",
                    node->costs.weights_us[0], node->costs.weights_us[4], node->costs.token_us[0] * 1000,
                    node->costs.token_us[4] * 1000);
    return &node->costs;
}

void node_pass_begin(node_t *node) { pthread_mutex_lock(&node->pass_lock); }
void node_pass_end(node_t *node)
{
    pthread_mutex_unlock(&node->pass_lock);
    if (node->pass_ended != NULL)
        node->pass_ended(node->pass_arg);
}
void node_pass_watch(node_t *node, void (*ended)(void *arg), void *arg)
{
    node->pass_ended = ended;
    node->pass_arg = arg;
}

static void replay_enter(void *node) { node_pass_begin(node); }
static void replay_leave(void *node) { node_pass_end(node); }

node_replay_t node_replay(node_t *node)
{
    node_replay_t replay = node_replay_of(&node->replay_ids, node->engine);
    replay.enter = replay_enter;
    replay.leave = replay_leave;
    replay.arg = node;
    return replay;
}
