/*
 * vericachectl replay: how much of a trace is there when it is asked for?
 *
 * With --capacity-blocks it asks the simulator, and no server. Without, it plays the trace against a live server, as an
 * engine would, one request after the other: look up, fetch what is there and compare every byte, register the rest.
 * Each block of the trace is one small record of --block-bytes in a keyspace made for this, so that a trace of
 * terabytes fits a small disk. Hits are counted here and asked of the server at the end: the two must be equal.
 */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "ctl_int.h"
#include "sim/sim.h"
#include "vc/kvrec.h"
#include "vc/mem.h"

#define STATS_MAX 512
#define LAYER_BYTES 4096u

typedef struct replay {
    ctl_t *c;
    const cs_trace_t *trace;
    vc_keyspace_t ks;
    vc_digest_t ks_id;
    uint8_t enc[VC_KEYSPACE_ENC_MAX];
    size_t enc_len;
    const uint32_t *blocks; /* of the running request; one token each */
    vc_digest_t *hashes;    /* of the running request */
    cs_sim_result_t ours;
    uint64_t refused; /* requests whose blocks the server had no room for */
    uint64_t fetched, wrong;
} replay_t;

static const vcache_fidelity_t full = {0, "full@1", NULL};

/* ---- records ---- */

/* The largest record up to block_bytes: a page of header, and pages of one layer each. */
static vcache_status_t make_keyspace(replay_t *r, uint64_t block_bytes)
{
    vc_err_t e = {0};
    vc_kv_shape_t *shape = &r->ks.shape;
    *shape = (vc_kv_shape_t){
        .n_kv_head = 1, .head_dim = LAYER_BYTES / 4, .block_tokens = 1, .dtype = VC_DTYPE_F16}; /* 4: K and V of f16 */
    shape->n_layer = (uint32_t)VC_MIN(block_bytes / LAYER_BYTES, 1024);
    while (shape->n_layer > 1 && vc_kvrec_full_bytes(shape) > block_bytes)
        shape->n_layer--;
    r->ks.layout_version = VC_LAYOUT_VERSION;
    snprintf(r->ks.rope, sizeof(r->ks.rope), "replay");
    if (vc_keyspace_id(&r->ks, &r->ks_id, &e) != VC_OK || vc_keyspace_encode(&r->ks, r->enc, &r->enc_len, &e) != VC_OK)
        return ctl_fail(r->c, e.status, "cannot make a keyspace: %s", e.msg);
    return VC_OK;
}

static void fill_layer(void *part, uint32_t number, uint32_t layer)
{
    uint8_t *at = part;
    for (uint32_t i = 0; i < LAYER_BYTES; i += 4) {
        uint32_t word = (number * 2654435761u) ^ (layer * 40503u + i);
        memcpy(at + i, &word, 4);
    }
}

static int write_record(void *arg, uint32_t fid, uint32_t block, void *buf, size_t cap, size_t *len_p)
{
    replay_t *r = arg;
    vc_kvrec_writer_t w;
    vc_kvrec_head_t head = {.fidelity = VC_FIDELITY_FULL,
                            .kind = VC_KVREC_FULL,
                            .shape = r->ks.shape,
                            .block_index = block,
                            .numerics_id = 1,
                            .keyspace = r->ks_id,
                            .parent = block > 0 ? r->hashes[block - 1] : r->ks_id};
    (void)fid;
    vc_spec_id(full.spec, NULL, &head.spec);
    vc_status_t st = vc_kvrec_write_begin(&w, buf, cap, &head, &r->blocks[block], NULL);
    for (uint32_t l = 0; st == VC_OK && l < r->ks.shape.n_layer; l++) {
        void *part;
        st = vc_kvrec_write_layer(&w, LAYER_BYTES, &part, NULL);
        if (st == VC_OK)
            fill_layer(part, r->blocks[block], l);
    }
    return st == VC_OK && vc_kvrec_write_end(&w, len_p, NULL) == VC_OK ? 0 : 1;
}

static int check_record(void *arg, uint32_t block, const void *record, size_t bytes)
{
    replay_t *r = arg;
    vc_kvrec_head_t head;
    vc_kvrec_layer_t layer;
    uint8_t want[LAYER_BYTES];
    bool right = vc_kvrec_decode(record, bytes, &head, NULL) == VC_OK && head.shape.n_layer == r->ks.shape.n_layer;
    for (uint32_t l = 0; right && l < head.shape.n_layer; l++) {
        vc_kvrec_layer(&head, l, &layer);
        fill_layer(want, r->blocks[block], l);
        right = layer.length == LAYER_BYTES && memcmp((const uint8_t *)record + layer.offset, want, LAYER_BYTES) == 0;
    }
    r->fetched++;
    r->wrong += !right;
    return 0;
}

/* ---- against a server ---- */

static vcache_status_t fetch_found(replay_t *r, vcache_lease_t *lease, uint32_t n)
{
    uint64_t wrong = r->wrong;
    vcache_status_t st = vcache_fetch(lease, 0, 0, n, check_record, r, NULL, &r->c->error);
    if (st == VC_OK && r->wrong > wrong)
        return ctl_fail(r->c, VC_ERR_CORRUPT, "a block came back with other bytes than were registered");
    return st;
}

static vcache_status_t play_request(replay_t *r, uint32_t request)
{
    vcache_lookup_info_t info;
    vcache_register_stats_t stored = {0};
    vcache_lease_t *lease = NULL;
    uint32_t n = (uint32_t)(r->trace->starts[request + 1] - r->trace->starts[request]);
    r->blocks = r->trace->blocks + r->trace->starts[request];
    vc_block_chain(&r->ks_id, r->blocks, n, 1, r->hashes);
    vcache_status_t st =
        vcache_lookup(r->c->client, r->enc, r->enc_len, r->blocks, n, &full, 1, &info, &lease, &r->c->error);
    if (st != VC_OK)
        return st;
    r->ours.requests++;
    r->ours.asked += n;
    r->ours.hits += info.n_blocks[0];
    if (info.n_blocks[0] > 0)
        st = fetch_found(r, lease, info.n_blocks[0]);
    if (st == VC_OK && info.n_blocks[0] < n) {
        st = vcache_register(r->c->client, r->enc, r->enc_len, r->blocks, info.n_blocks[0], n, &full, 1, write_record,
                             r, &stored, &r->c->error);
        r->ours.stored += stored.n_stored;
        if (st == VC_ERR_NOSPACE || st == VC_ERR_BUSY) { /* an answer like any other: the engine goes on without */
            r->refused++;
            st = VC_OK;
        }
    }
    vcache_lease_release(lease);
    return st;
}

typedef struct counts {
    double asked, hits, evicted, objects;
} counts_t;

static vcache_status_t ask_counts(ctl_t *c, counts_t *counts_p)
{
    uint32_t n = 0;
    counts_t counts = {-1, -1, 0, 0};
    vcache_stat_t *stats = vc_calloc(STATS_MAX, sizeof(*stats));
    if (stats == NULL)
        return ctl_fail(c, VC_ERR_NOMEM, "out of memory");
    const struct {
        const char *name;
        double *value;
    } wanted[] = {{"lookup_blocks_full", &counts.asked},
                  {"hit_blocks_full", &counts.hits},
                  {"evicted_objects_full", &counts.evicted},
                  {"objects_full", &counts.objects}};
    vcache_status_t st = vcache_stats(c->client, stats, STATS_MAX, &n, &c->error);
    for (uint32_t i = 0; st == VC_OK && i < n; i++)
        for (size_t w = 0; w < VC_ARRAY_LEN(wanted); w++)
            if (strcmp(stats[i].name, wanted[w].name) == 0)
                *wanted[w].value = stats[i].value;
    vc_free(stats);
    if (st == VC_OK && (counts.asked < 0 || counts.hits < 0))
        return ctl_fail(c, VC_ERR_PROTOCOL, "the server does not say how many blocks were asked for and found");
    *counts_p = counts;
    return st;
}

static void print_live(replay_t *r, const counts_t *server)
{
    ctl_t *c = r->c;
    double rate = cs_sim_hit_rate(&r->ours);
    if (c->json) {
        ctl_print_json(c,
                       json_pack("{s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "requests",
                                 (json_int_t)r->ours.requests, "blocks", (json_int_t)r->ours.asked, "hits",
                                 (json_int_t)r->ours.hits, "hit_rate", rate, "server_blocks", (json_int_t)server->asked,
                                 "server_hits", (json_int_t)server->hits, "stored", (json_int_t)r->ours.stored,
                                 "evicted", (json_int_t)server->evicted, "objects", (json_int_t)server->objects,
                                 "refused", (json_int_t)r->refused, "fetched", (json_int_t)r->fetched));
        return;
    }
    fprintf(c->out, "%-28s %12" PRIu64 "\n", "requests", r->ours.requests);
    fprintf(c->out, "%-28s %12" PRIu64 "   server: %.0f\n", "blocks asked for", r->ours.asked, server->asked);
    fprintf(c->out, "%-28s %12" PRIu64 "   server: %.0f\n", "blocks found", r->ours.hits, server->hits);
    fprintf(c->out, "%-28s %11.2f%%\n", "hit rate", 100 * rate);
    fprintf(c->out, "%-28s %12" PRIu64 "   of %" PRIu64 " bytes\n", "blocks stored", r->ours.stored,
            vc_kvrec_full_bytes(&r->ks.shape));
    fprintf(c->out, "%-28s %12.0f   left: %.0f\n", "blocks evicted", server->evicted, server->objects);
    fprintf(c->out, "%-28s %12" PRIu64 "\n", "requests without room", r->refused);
}

static void show_progress(uint32_t done, uint32_t all, bool is_terminal)
{
    if (is_terminal && (done % 64 == 0 || done == all))
        fprintf(stderr, "\r%3u %%%s", (uint32_t)((uint64_t)done * 100 / all), done == all ? "\r     \r" : "");
}

static vcache_status_t play_all(replay_t *r)
{
    ctl_t *c = r->c;
    counts_t before, after;
    bool is_terminal = isatty(STDERR_FILENO);
    vcache_status_t st = ask_counts(c, &before);
    for (uint32_t i = 0; st == VC_OK && i < r->trace->n_requests; i++) {
        st = play_request(r, i);
        show_progress(i + 1, r->trace->n_requests, is_terminal);
    }
    if (st == VC_OK)
        st = ask_counts(c, &after);
    if (st != VC_OK)
        return st;
    after.asked -= before.asked;
    after.hits -= before.hits;
    after.evicted -= before.evicted;
    print_live(r, &after);
    if (after.asked != (double)r->ours.asked || after.hits != (double)r->ours.hits)
        return ctl_fail(c, VC_ERR_MISMATCH,
                        "the server counted %.0f of %.0f blocks, we counted %" PRIu64 " of %" PRIu64
                        "; is there another client?",
                        after.hits, after.asked, r->ours.hits, r->ours.asked);
    return VC_OK;
}

static vcache_status_t play(ctl_t *c, const cs_trace_t *trace)
{
    replay_t *r = vc_calloc(1, sizeof(*r));
    vc_digest_t *hashes = vc_calloc(CS_TRACE_MAX_CHAIN, sizeof(*hashes));
    vcache_status_t st = VC_ERR_NOMEM;
    if (r == NULL || hashes == NULL) {
        ctl_fail(c, VC_ERR_NOMEM, "out of memory");
    } else {
        r->c = c;
        r->trace = trace;
        r->hashes = hashes;
        st = make_keyspace(r, c->block_bytes);
        if (st == VC_OK)
            st = play_all(r);
    }
    vc_free(hashes);
    vc_free(r);
    return st;
}

/* ---- without a server ---- */

static vcache_status_t simulate(ctl_t *c, const cs_trace_t *trace)
{
    cs_sim_result_t r;
    cs_sim_policy_t policy = (cs_sim_policy_t)c->policy;
    vc_status_t st = cs_sim_run(trace, policy, (uint32_t)c->capacity_blocks, &r);
    if (st != VC_OK)
        return ctl_fail(c, st, "cannot replay: %s", vc_status_text(st));
    if (c->json) {
        ctl_print_json(c, json_pack("{s:s, s:I, s:I, s:I, s:I, s:f, s:I, s:I}", "policy", cs_sim_name(policy),
                                    "capacity_blocks", (json_int_t)c->capacity_blocks, "requests",
                                    (json_int_t)r.requests, "blocks", (json_int_t)r.asked, "hits", (json_int_t)r.hits,
                                    "hit_rate", cs_sim_hit_rate(&r), "stored", (json_int_t)r.stored, "evicted",
                                    (json_int_t)r.evicted));
        return VC_OK;
    }
    fprintf(c->out, "%-28s %12s\n", "policy", cs_sim_name(policy));
    fprintf(c->out, "%-28s %12" PRIu64 "\n", "capacity, blocks", c->capacity_blocks);
    fprintf(c->out, "%-28s %12" PRIu64 "\n", "requests", r.requests);
    fprintf(c->out, "%-28s %12" PRIu64 "\n", "blocks asked for", r.asked);
    fprintf(c->out, "%-28s %12" PRIu64 "\n", "blocks found", r.hits);
    fprintf(c->out, "%-28s %11.2f%%\n", "hit rate", 100 * cs_sim_hit_rate(&r));
    fprintf(c->out, "%-28s %12" PRIu64 "\n", "blocks stored", r.stored);
    fprintf(c->out, "%-28s %12" PRIu64 "\n", "blocks evicted", r.evicted);
    return VC_OK;
}

vcache_status_t ctl_replay(ctl_t *c)
{
    cs_trace_t *trace;
    vc_err_t e = {0};
    if (c->trace[0] == '\0')
        return ctl_fail(c, VC_ERR_INVALID, "replay needs --trace FILE");
    vc_status_t st = cs_trace_load(c->trace, &trace, &e);
    if (st != VC_OK)
        return ctl_fail(c, st, "%s", e.msg);
    vcache_status_t played = c->capacity_blocks > 0 ? simulate(c, trace) : play(c, trace);
    cs_trace_destroy(trace);
    return played;
}
