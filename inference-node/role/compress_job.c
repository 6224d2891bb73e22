/* One pass: list, probe, fetch what has work to do, make and store one copy after the other. */
#include "role/compress_job.h"

#include <string.h>

#include "role/store_chain.h"
#include "vc/mem.h"

static bool has_failed(const node_job_t *job, const uint8_t *tip, const node_spec_t *spec)
{
    for (uint32_t i = 0; i < VC_MIN(job->n_failed, (uint32_t)VC_ARRAY_LEN(job->failed)); i++)
        if (memcmp(job->failed[i].tip, tip, 32) == 0 && memcmp(&job->failed[i].spec, &spec->id, sizeof(spec->id)) == 0)
            return true;
    return false;
}

/* A full list forgets its oldest: what was in it is tried once more, no worse. */
static void remember_failed(node_job_t *job, const uint8_t *tip, const node_spec_t *spec)
{
    uint32_t at = job->n_failed++ % (uint32_t)VC_ARRAY_LEN(job->failed);
    memcpy(job->failed[at].tip, tip, 32);
    job->failed[at].spec = spec->id;
}

/* The whole pass ends, since every unit would fail the same way. */
static bool is_fatal(vc_status_t status)
{
    return status == VC_ERR_UNREACHABLE || status == VC_ERR_TIMEOUT || status == VC_ERR_NOMEM ||
           status == VC_ERR_READONLY || status == VC_ERR_NOSPACE;
}

static uint32_t find_work(const node_job_t *job, const uint8_t *tip, const uint32_t *counts, node_job_sum_t *sum,
                          uint32_t *work)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < job->n_specs; i++) {
        if (counts[i + 1] >= counts[0])
            sum->present++;
        else if (!has_failed(job, tip, &job->specs[i]))
            work[n++] = i;
    }
    return n;
}

static vc_status_t make_copy(node_job_t *job, node_job_unit_t *unit, const node_kv_t *kv, const uint32_t *tokens,
                             vc_err_t *err)
{
    node_cache_stored_t stored = {0};
    vc_err_t why = {0};
    uint64_t start = vc_clock_now_us(job->duty->clock);
    if (job->begins)
        job->begins(job->arg, unit);
    unit->status = node_chain_store(job->node, job->cache, kv, tokens, unit->n_blocks * NODE_TILE, unit->spec, 1,
                                    NODE_STORE_BESIDE_FULL, &stored, &why);
    unit->us = vc_clock_now_us(job->duty->clock) - start;
    unit->stored = stored.n_stored;
    unit->bytes = stored.bytes;
    unit->reason = why.msg;
    if (job->ended)
        job->ended(job->arg, unit);
    if (unit->status != VC_OK && is_fatal(unit->status))
        return vc_err_set(err, unit->status, "%s", why.msg);
    if (unit->status != VC_OK && unit->status != VC_ERR_NOT_FOUND)
        remember_failed(job, unit->tip, unit->spec);
    node_duty_rest(job->duty);
    return VC_OK;
}

/* A prefix that was deleted or evicted meanwhile is no failure: it is as if the pass had not seen it. */
static void count_unit(const node_job_unit_t *unit, uint32_t n_work, node_job_sum_t *sum)
{
    if (unit->status == VC_ERR_NOT_FOUND)
        sum->without_full++;
    else if (unit->status != VC_OK)
        sum->failed += n_work;
    else if (unit->stored == 0)
        sum->present++; /* another job was faster */
    else
        sum->made++;
}

static vc_status_t check_length(const node_job_t *job, uint32_t n_blocks, vc_err_t *err)
{
    uint32_t context = node_engine_info(job->node->engine)->context;
    if ((uint64_t)n_blocks * NODE_TILE > context)
        return vc_err_set(err, VC_ERR_RANGE, "the prefix has %u tokens, the model's context %u", n_blocks * NODE_TILE,
                          context);
    return VC_OK;
}

/* The full copy comes once for all copies that the prefix lacks. */
static vc_status_t work_on(node_job_t *job, node_job_unit_t *unit, const uint32_t *work, uint32_t n_work,
                           node_job_sum_t *sum, vc_err_t *err)
{
    node_kv_dims_t dims;
    node_kv_t kv;
    uint32_t *tokens = NULL;
    vc_err_t why = {0};
    node_engine_kv_dims(job->node->engine, &dims);
    vc_status_t status = node_kv_init(&kv, &dims, NULL);
    if (status != VC_OK)
        return vc_err_set(err, status, "no memory for the KV of a prefix");
    status = check_length(job, unit->n_blocks, &why);
    if (status == VC_OK)
        status = node_cache_fetch_tip(job->cache, unit->tip, &kv, &tokens, &why);
    if (status == VC_OK)
        unit->n_blocks = kv.n_tokens / NODE_TILE;
    else {
        unit->status = status;
        unit->reason = why.msg;
        count_unit(unit, n_work, sum);
        if (job->ended)
            job->ended(job->arg, unit);
        if (is_fatal(status))
            vc_err_set(err, status, "%s", why.msg);
        for (uint32_t i = 0; i < n_work && !is_fatal(status) && status != VC_ERR_NOT_FOUND; i++)
            remember_failed(job, unit->tip, &job->specs[work[i]]);
        status = is_fatal(status) ? status : VC_OK;
    }
    for (uint32_t i = 0; i < n_work && status == VC_OK && unit->status != VC_ERR_NOT_FOUND && tokens != NULL; i++) {
        if (*job->stop) {
            status = VC_ERR_CANCELLED;
            break;
        }
        unit->spec = &job->specs[work[i]];
        status = make_copy(job, unit, &kv, tokens, err);
        count_unit(unit, 1, sum);
    }
    vc_free(tokens);
    node_kv_fini(&kv);
    return status;
}

static vc_status_t visit(node_job_t *job, const node_cache_prefix_t *prefix, node_job_unit_t *unit, node_job_sum_t *sum,
                         vc_err_t *err)
{
    uint32_t counts[NODE_JOB_SPECS + 1], work[NODE_JOB_SPECS];
    vc_status_t status = node_cache_probe_tip(job->cache, prefix->tip, job->specs, job->n_specs, counts, err);
    if (status != VC_OK)
        return status;
    if (counts[0] == 0) {
        sum->without_full++;
        return VC_OK;
    }
    uint32_t n_work = find_work(job, prefix->tip, counts, sum, work);
    unit->tip = prefix->tip;
    unit->n_blocks = counts[0];
    return n_work == 0 ? VC_OK : work_on(job, unit, work, n_work, sum, err);
}

vc_status_t node_job_pass(node_job_t *job, node_job_sum_t *sum_p, vc_err_t *err)
{
    *sum_p = (node_job_sum_t){0};
    node_cache_prefix_t *prefixes = vc_calloc(NODE_JOB_PREFIXES, sizeof(*prefixes));
    if (prefixes == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the list of prefixes");
    uint32_t n = 0;
    vc_status_t status = node_cache_prefixes(job->cache, NODE_JOB_PREFIXES, prefixes, &n, err);
    sum_p->prefixes = n;
    node_duty_begin(job->duty);
    for (uint32_t i = 0; i < n && status == VC_OK; i++) {
        node_job_unit_t unit = {.prefix = i + 1, .n_prefixes = n};
        status = *job->stop ? VC_ERR_CANCELLED : visit(job, &prefixes[i], &unit, sum_p, err);
    }
    vc_free(prefixes);
    return status;
}
