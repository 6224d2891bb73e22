/*
 * What operators and engines ask now and then: pins, deletes, the scrubber, the list of prefixes, the configuration.
 *
 * Some of it waits for the disk or sorts a whole table, and a control thread must do neither. So these calls are
 * deferred to one thread of their own, in the order of their arrival; at most CS_SERVICE_SLOW wait, more are answered
 * RESOURCE_EXHAUSTED.
 */
#include <stdio.h>
#include <string.h>

#include "service_int.h"
#include "store_scrub.h"
#include "vc/mem.h"

/* ---- the queue ---- */

typedef struct cs_slow_call {
    struct cs_slow_call *next;
    vc_rpc_later_t *later;
    vc_rpc_unary_fn run;
    size_t len;
    uint8_t req[];
} slow_call_t;

static void *slow_main(void *arg)
{
    cs_service_t *s = arg;
    for (;;) {
        pthread_mutex_lock(&s->slow_lock);
        while (s->slow == NULL && !s->slow_ends)
            pthread_cond_wait(&s->slow_work, &s->slow_lock);
        slow_call_t *c = s->slow;
        if (c != NULL) {
            s->slow = c->next;
            s->n_slow--;
        }
        pthread_mutex_unlock(&s->slow_lock);
        if (c == NULL)
            return NULL;
        vc_bytes_t resp = {0};
        vc_err_t err = {0};
        vc_status_t st = c->run(s, NULL, c->req, c->len, &resp, &err);
        vc_rpc_later_finish(c->later, st, &resp, &err);
        vc_free(c);
    }
}

vc_status_t cs_slow_start(cs_service_t *s, vc_err_t *err)
{
    if (pthread_create(&s->slow_thread, NULL, slow_main, s) != 0)
        return vc_err_set(err, VC_ERR_NOMEM, "cannot start a thread of the service");
    pthread_setname_np(s->slow_thread, "service-slow");
    s->has_slow_thread = true;
    return VC_OK;
}

void cs_slow_stop(cs_service_t *s)
{
    pthread_mutex_lock(&s->slow_lock);
    s->slow_ends = true;
    pthread_cond_signal(&s->slow_work);
    pthread_mutex_unlock(&s->slow_lock);
    if (s->has_slow_thread)
        pthread_join(s->slow_thread, NULL);
}

static vc_status_t defer(cs_service_t *s, vc_rpc_call_t *call, vc_rpc_unary_fn run, const uint8_t *req, size_t len,
                         vc_err_t *err)
{
    slow_call_t *c = vc_alloc(sizeof(*c) + len);
    if (c == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    *c = (slow_call_t){.run = run, .len = len};
    if (len != 0)
        memcpy(c->req, req, len);
    pthread_mutex_lock(&s->slow_lock);
    bool is_full = s->n_slow >= CS_SERVICE_SLOW;
    if (!is_full) {
        slow_call_t **end = &s->slow;
        while (*end != NULL)
            end = &(*end)->next;
        *end = c;
        s->n_slow++;
        c->later = vc_rpc_call_defer(call);
        pthread_cond_signal(&s->slow_work);
    }
    pthread_mutex_unlock(&s->slow_lock);
    if (!is_full)
        return VC_OK;
    vc_free(c);
    return vc_err_set(err, VC_ERR_BUSY, "%d administrative calls wait already; try again", CS_SERVICE_SLOW);
}

/* ---- pins and deletes ---- */

typedef vc_status_t (*chain_fn)(cs_store_t *, const cs_chain_ref_t *, cs_chain_sum_t *, vc_err_t *);

typedef struct {
    cs_chain_ref_t ref;
    vc_digest_t tip;
    vc_digest_t *hashes;
    cs_fidelity_t fid;
} chain_t;

static vc_status_t chain_of_tip(const Vericache__V1__ChainRequest *m, chain_t *c, vc_err_t *err)
{
    if (m->keyspace.len != 0 || m->n_tokens != 0 || m->first_block != 0)
        return vc_err_set(err, VC_ERR_INVALID, "a chain is named by its tip or by tokens, not by both");
    if (m->tip.len != sizeof(c->tip) || m->keyspace_id.len != sizeof(c->ref.keyspace))
        return vc_err_set(err, VC_ERR_INVALID, "tip and keyspace id have %zu and %zu bytes, not 32 each", m->tip.len,
                          m->keyspace_id.len);
    memcpy(&c->tip, m->tip.data, sizeof(c->tip));
    memcpy(&c->ref.keyspace, m->keyspace_id.data, sizeof(c->ref.keyspace));
    c->ref.tip = &c->tip;
    return VC_OK;
}

static vc_status_t chain_of_tokens(const Vericache__V1__ChainRequest *m, chain_t *c, vc_err_t *err)
{
    vc_keyspace_t ks;
    vc_status_t st = vc_keyspace_decode(m->keyspace.data, m->keyspace.len, &ks, err);
    if (st == VC_OK)
        st = vc_keyspace_id(&ks, &c->ref.keyspace, err);
    if (st != VC_OK)
        return st;
    size_t n_blocks = m->n_tokens / ks.shape.block_tokens;
    if (m->first_block >= n_blocks || n_blocks > CS_SERVICE_BLOCKS)
        return vc_err_set(err, VC_ERR_RANGE, "blocks %u to %zu are not a range of at most %u", m->first_block, n_blocks,
                          CS_SERVICE_BLOCKS);
    c->hashes = vc_calloc(n_blocks, sizeof(*c->hashes));
    if (c->hashes == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    vc_block_chain(&c->ref.keyspace, m->tokens, (uint32_t)m->n_tokens, ks.shape.block_tokens, c->hashes);
    c->ref.hashes = c->hashes + m->first_block;
    c->ref.n_hashes = (uint32_t)n_blocks - m->first_block;
    return VC_OK;
}

static vc_status_t chain_call(cs_service_t *s, chain_fn run, const uint8_t *req, size_t len, vc_bytes_t *resp,
                              vc_err_t *err)
{
    Vericache__V1__ChainRequest *m = vericache__v1__chain_request__unpack(NULL, len, req);
    if (m == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "request is not a ChainRequest");
    chain_t c = {0};
    cs_chain_sum_t sum = {0};
    vc_status_t st =
        m->tip.len != 0 || m->keyspace_id.len != 0 ? chain_of_tip(m, &c, err) : chain_of_tokens(m, &c, err);
    if (st == VC_OK && m->fidelity != NULL) {
        c.ref.fid = &c.fid;
        st = cs_take_fidelities(&m->fidelity, 1, &c.fid, err);
    }
    if (st == VC_OK) {
        st = run(s->o.store, &c.ref, &sum, err);
        if (st == VC_ERR_NOT_FOUND && err->msg[0] == '\0')
            vc_err_set(err, st, "nothing of this chain is stored");
    }
    if (st == VC_OK) {
        Vericache__V1__ChainReply reply = VERICACHE__V1__CHAIN_REPLY__INIT;
        reply.objects = sum.n_objects;
        reply.bytes = sum.n_bytes;
        st = cs_pack(&reply.base, resp, err);
    }
    vc_free(c.hashes);
    vericache__v1__chain_request__free_unpacked(m, NULL);
    return st;
}

static vc_status_t pin_now(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                           vc_err_t *err)
{
    (void)call;
    return chain_call(arg, cs_store_pin_prefix, req, len, resp, err);
}

static vc_status_t unpin_now(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                             vc_err_t *err)
{
    (void)call;
    return chain_call(arg, cs_store_unpin_prefix, req, len, resp, err);
}

static vc_status_t delete_now(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                              vc_err_t *err)
{
    (void)call;
    return chain_call(arg, cs_store_delete, req, len, resp, err);
}

/* ---- the scrubber ---- */

static vc_status_t scrub_reply(cs_service_t *s, vc_bytes_t *resp, vc_err_t *err)
{
    cs_scrub_info_t i;
    cs_store_scrub_info(s->o.store, &i);
    Vericache__V1__ScrubReply reply = VERICACHE__V1__SCRUB_REPLY__INIT;
    reply.running = i.running;
    reply.rate_bytes = i.rate_bytes;
    reply.pass_objects = i.pass_objects;
    reply.pass_objects_total = i.pass_objects_total;
    reply.pass_bytes = i.pass_bytes;
    reply.pass_bytes_total = i.pass_bytes_total;
    reply.pass_corrupt = i.pass_corrupt;
    reply.pass_errors = i.pass_errors;
    reply.passes = i.passes;
    reply.corrupt = i.corrupt;
    reply.errors = i.errors;
    reply.last_pass_s = i.last_pass_s;
    reply.last_pass_ms = i.last_pass_ms;
    return cs_pack(&reply.base, resp, err);
}

static vc_status_t scrub_now(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                             vc_err_t *err)
{
    (void)call;
    cs_service_t *s = arg;
    Vericache__V1__ScrubRequest *m = vericache__v1__scrub_request__unpack(NULL, len, req);
    if (m == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "request is not a ScrubRequest");
    int action = (int)m->action;
    uint64_t rate_bytes = m->rate_bytes;
    vericache__v1__scrub_request__free_unpacked(m, NULL);
    vc_status_t st = VC_OK;
    if (action == VERICACHE__V1__SCRUB_REQUEST__ACTION__START)
        st = cs_store_scrub_start(s->o.store, rate_bytes, err);
    else if (action == VERICACHE__V1__SCRUB_REQUEST__ACTION__STOP)
        st = cs_store_scrub_stop(s->o.store, err);
    else if (action != VERICACHE__V1__SCRUB_REQUEST__ACTION__STATUS)
        st = vc_err_set(err, VC_ERR_INVALID, "scrub action %d is unknown", action);
    return st == VC_OK ? scrub_reply(s, resp, err) : st;
}

/* ---- configuration ---- */

#define OPTIONS_MAX 128

typedef struct {
    Vericache__V1__GetConfigReply__Option items[OPTIONS_MAX], *list[OPTIONS_MAX];
    size_t n;
    bool is_short; /* out of memory */
} options_t;

static void take_option(void *arg, const char *name, const char *value, const char *source)
{
    options_t *o = arg;
    if (o->n == OPTIONS_MAX)
        return;
    Vericache__V1__GetConfigReply__Option *item = &o->items[o->n];
    *item = (Vericache__V1__GetConfigReply__Option)VERICACHE__V1__GET_CONFIG_REPLY__OPTION__INIT;
    item->name = (char *)(uintptr_t)name; /* of the table, and of static storage */
    item->source = (char *)(uintptr_t)source;
    item->value = vc_strdup(value);
    o->is_short = o->is_short || item->value == NULL;
    if (item->value != NULL)
        o->list[o->n++] = item;
}

vc_status_t cs_service_config(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp,
                              vc_err_t *err)
{
    (void)call;
    cs_service_t *s = arg;
    Vericache__V1__GetConfigRequest *m = vericache__v1__get_config_request__unpack(NULL, len, req);
    if (m == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "request is not a GetConfigRequest");
    vericache__v1__get_config_request__free_unpacked(m, NULL);
    if (s->o.each_option == NULL)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "this server has no option table");
    options_t *o = vc_calloc(1, sizeof(*o));
    if (o == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    s->o.each_option(s->o.arg, take_option, o);
    Vericache__V1__GetConfigReply reply = VERICACHE__V1__GET_CONFIG_REPLY__INIT;
    reply.n_options = o->n;
    reply.options = o->list;
    vc_status_t st = o->is_short ? vc_err_set(err, VC_ERR_NOMEM, "out of memory") : cs_pack(&reply.base, resp, err);
    for (size_t i = 0; i < o->n; i++)
        vc_free(o->items[i].value);
    vc_free(o);
    return st;
}

/* ---- on their way to the thread ---- */

#define SLOW(name, now)                                                                                               \
    vc_status_t name(void *arg, vc_rpc_call_t *call, const uint8_t *req, size_t len, vc_bytes_t *resp, vc_err_t *err) \
    {                                                                                                                 \
        (void)resp;                                                                                                   \
        return defer(arg, call, now, req, len, err);                                                                  \
    }
SLOW(cs_service_pin, pin_now)
SLOW(cs_service_unpin, unpin_now)
SLOW(cs_service_delete, delete_now)
SLOW(cs_service_scrub, scrub_now)
SLOW(cs_service_prefixes, cs_service_prefixes_now)
