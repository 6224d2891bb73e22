/*
 * `vericache-node register`: prefills a document and stores its full and compressed KV on a cache server, so that
 * prompts which begin with it start from there. What the server has already is fetched or skipped, not computed again.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "role/cmd.h"
#include "role/options.h"
#include "role/prompt.h"
#include "role/store_chain.h"
#include "vc/clock.h"
#include "vc/config.h"
#include "vc/log.h"
#include "vc/mem.h"

#define DOCUMENT_MAX_BYTES (64u << 20)

typedef struct register_opts {
    const char *model, *server, *system, *compressor, *prompt_file, *calibration;
    uint64_t threads, limit_tokens;
    int isa, log_level;
    bool raw, json;
} register_opts_t;

#define REGISTER_N_OPTS 13
static void fill_table(register_opts_t *o, vc_opt_t *table)
{
    const vc_opt_t rows[REGISTER_N_OPTS] = {
        NODE_OPT_MODEL(o->model),
        {"server", VC_OPT_STRING, &o->server, "127.0.0.1:7070", 0, 0, NULL, "cache server HOST:PORT"},
        {"compressor", VC_OPT_STRING, &o->compressor, NODE_DEFAULT_COMPRESSOR, 0, 0, NULL,
         "compressed copies to store, several separated by ';'"},
        NODE_OPT_CALIBRATION(o->calibration),
        {"prompt-file", VC_OPT_STRING, &o->prompt_file, NULL, 0, 0, NULL, "document ('-': standard input)"},
        {"system", VC_OPT_TEXT, &o->system, NULL, 0, 0, NULL, "system turn in front of it"},
        {"raw", VC_OPT_BOOL, &o->raw, "false", 0, 0, NULL, "no chat template"},
        {"limit-tokens", VC_OPT_U64, &o->limit_tokens, "0", 0, 1u << 30, NULL, "use the first N tokens (0: all)"},
        NODE_OPT_THREADS(o->threads),
        NODE_OPT_ISA(o->isa),
        {"json", VC_OPT_BOOL, &o->json, "false", 0, 0, NULL, "one JSON object instead of text"},
        NODE_OPT_LOG_LEVEL(o->log_level, "warn"),
        {0},
    };
    memcpy(table, rows, sizeof(rows));
}

static void report(const register_opts_t *o, const node_spec_t *specs, uint32_t n_specs, uint32_t n_tokens,
                   const node_chain_stored_t *stored, uint64_t us)
{
    uint32_t blocks = n_tokens / NODE_TILE;
    if (o->json)
        printf("{\"tokens\":%u,\"blocks\":%u,\"stored\":%u,\"present\":%u,\"bytes\":%" PRIu64
               ",\"computed_tokens\":%u,\"fetched_blocks\":%u,\"path\":%u,\"ms\":%" PRIu64 "}\n",
               n_tokens, blocks, stored->cache.n_stored, stored->cache.n_present, stored->cache.bytes,
               stored->computed_tokens, stored->fetched_blocks, stored->cache.path, us / 1000);
    else
        printf("registered %u blocks (%u tokens): %u objects stored, %u already there, %.1f MB sent, %.1f s\n", blocks,
               blocks * NODE_TILE, stored->cache.n_stored, stored->cache.n_present, (double)stored->cache.bytes / 1e6,
               (double)us / 1e6);
    for (uint32_t i = 0; i < n_specs && !o->json; i++)
        printf("copy %s\n", specs[i].text);
}

static vc_status_t encode_document(const register_opts_t *o, node_t *node, const char *text, size_t bytes,
                                   uint32_t **ids_p, uint32_t *n_p, vc_err_t *err)
{
    const node_prompt_t prompt = {o->system, text, bytes, o->raw};
    vc_status_t status = node_prompt_encode(node->tok, &prompt, true, 0, ids_p, n_p, err);
    if (status != VC_OK)
        return status;
    if (o->limit_tokens != 0)
        *n_p = (uint32_t)VC_MIN(*n_p, o->limit_tokens);
    uint32_t context = node_engine_info(node->engine)->context;
    if (*n_p < NODE_TILE)
        return vc_err_set(err, VC_ERR_INVALID, "the document has %u tokens; only whole blocks of %u are stored", *n_p,
                          NODE_TILE);
    if (*n_p > context)
        return vc_err_set(err, VC_ERR_RANGE,
                          "the document has %u tokens, the model's context %u; --limit-tokens takes the first ones",
                          *n_p, context);
    return VC_OK;
}

static vc_status_t run_register(const register_opts_t *o, const char *text, size_t bytes, vc_err_t *err)
{
    node_opts_t nopts;
    node_opts_default(&nopts);
    nopts.model_path = o->model;
    nopts.calib_dir = o->calibration;
    nopts.engine.n_threads = (uint32_t)o->threads;
    nopts.engine.isa = (node_isa_t)o->isa;
    node_cache_opts_t copts;
    node_cache_opts_default(&copts);
    copts.server = o->server;
    node_spec_t specs[7];
    uint32_t n_specs = 0, n_tokens = 0, *ids = NULL;
    node_t *node = NULL;
    node_cache_t *cache = NULL;
    node_chain_stored_t stored;
    uint64_t start = vc_clock_now_us(vc_clock_system());

    vc_status_t status = node_chain_parse_specs(o->compressor, specs, VC_ARRAY_LEN(specs), &n_specs, err);
    if (status == VC_OK)
        status = node_open(&nopts, &node, err);
    for (uint32_t i = 0; status == VC_OK && i < n_specs; i++)
        status = node_bind_spec(node, &specs[i], err);
    if (status == VC_OK)
        status = encode_document(o, node, text, bytes, &ids, &n_tokens, err);
    if (status == VC_OK)
        status = node_cache_open(&copts, node_engine_info(node->engine), &cache, err);
    if (status == VC_OK)
        status = node_chain_compute_and_store(node, cache, ids, n_tokens, specs, n_specs, &stored, err);
    if (status == VC_OK)
        report(o, specs, n_specs, n_tokens, &stored, vc_clock_now_us(vc_clock_system()) - start);
    node_cache_close(cache);
    vc_free(ids);
    node_close(node);
    return status;
}

static vc_status_t register_from_args(const register_opts_t *o, const vc_config_t *config, vc_err_t *err)
{
    bool flag = o->prompt_file != NULL && o->prompt_file[0] != '\0';
    int n_args = vc_config_n_args(config);
    if (n_args + (flag ? 1 : 0) != 1)
        return vc_err_set(err, VC_ERR_INVALID, "register takes one document: a file name, or '-'");
    char *text = NULL;
    size_t bytes = 0;
    vc_status_t status =
        node_prompt_read_file(flag ? o->prompt_file : vc_config_arg(config, 0), DOCUMENT_MAX_BYTES, &text, &bytes, err);
    if (status == VC_OK)
        status = run_register(o, text, bytes, err);
    vc_free(text);
    return status;
}

int node_cmd_register(int argc, char **argv)
{
    register_opts_t o = {0};
    vc_opt_t table[REGISTER_N_OPTS];
    vc_config_t *config = NULL;
    vc_err_t err = {0};
    int rc = 0;
    fill_table(&o, table);
    if (!node_cmd_begin(table, "DOCUMENT", false, argc, argv, &config, &rc))
        return rc;
    vc_log_set_level((vc_log_level_t)o.log_level);
    vc_status_t status = register_from_args(&o, config, &err);
    vc_config_free(config);
    return status == VC_OK ? 0 : node_cmd_fail("register", status, &err);
}
