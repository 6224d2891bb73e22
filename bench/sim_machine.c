/* Roofline of one pass, and the two baselines that need no schedule. */
#include <math.h>

#include "sim_parts.h"

double sim_kv_token_bytes(const sim_model_t *m) { return 2.0 * 2 * m->n_layer * m->n_kv_head * m->head_dim; }

double sim_chance_of_run(double run, uint32_t x)
{
    double low = 0, high = 1;
    for (int i = 0; i < 60; i++) {
        double p = (low + high) / 2, sum = 0, q = 1;
        for (uint32_t k = 0; k < x; k++)
            sum += q *= p;
        if (sum < run)
            low = p;
        else
            high = p;
    }
    return (low + high) / 2;
}

double sim_pass_s(const sim_case_t *c, sim_rows_t rows)
{
    const sim_model_t *m = c->model;
    if (rows.n <= 0)
        return 0;
    double attention = 4.0 * m->n_layer * m->n_head * m->head_dim * c->prefix; /* q.k and p.v, two each */
    double read_s = (2 * m->n_params + rows.kv_bytes) / (c->assumed.mem_share * c->machine->mem_rate);
    double math_s = rows.n * (2 * m->n_params + attention) / (c->assumed.flop_share * c->machine->flops);
    return c->assumed.step_s + fmax(read_s, math_s);
}

static double free_bytes(const sim_case_t *c)
{
    return c->assumed.fill * c->machine->mem_bytes - 2 * c->model->n_params;
}

sim_result_t sim_plain(const sim_case_t *c)
{
    double kv = sim_kv_token_bytes(c->model), full = kv * c->prefix, tail = kv * c->assumed.answer;
    double batch = floor(free_bytes(c) / (full + tail));
    sim_result_t r = {0};
    if (batch < 1)
        return r;
    batch = fmin(batch, c->outstanding);
    double step_s = sim_pass_s(c, (sim_rows_t){batch, batch * (full + tail / 2)});
    double decode_s = c->assumed.answer * step_s; /* of one request */
    double fetch_s = c->slow_rate > 0 ? full / c->slow_rate : 0;
    double each_s = decode_s / batch; /* with a full batch */
    if (fetch_s > 0 && c->outstanding == 1)
        each_s = fetch_s + decode_s;
    else if (fetch_s > each_s) { /* the link sets the pace; as many decode as it feeds */
        each_s = fetch_s;
        batch = fmin(batch, fmax(1, decode_s / fetch_s));
    }
    r = (sim_result_t){.fits = true,
                       .requests_s = 1 / each_s,
                       .tokens_s = c->assumed.answer / each_s,
                       .running = batch,
                       .committed = 1,
                       .slow_use = fetch_s / each_s,
                       .compute_use = fmin(1, decode_s / batch / each_s)};
    return r;
}

sim_result_t sim_streamed(const sim_case_t *c)
{
    double kv = sim_kv_token_bytes(c->model), full = kv * c->prefix;
    double batch = fmin(16, c->outstanding); /* bound by the link: more in a batch is more to load */
    double compute_s = sim_pass_s(c, (sim_rows_t){batch, batch * full});
    double load_s = batch * full / c->link_rate, step_s = fmax(compute_s, load_s);
    return (sim_result_t){.fits = true,
                          .tokens_s = batch / step_s,
                          .requests_s = batch / step_s / c->assumed.answer,
                          .running = batch,
                          .committed = 1,
                          .link_use = load_s / step_s,
                          .compute_use = compute_s / step_s};
}
