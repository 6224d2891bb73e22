/*
 * Rounds of a batch with an automatic length: a look at plain iterations, which keeps sources silent, is for batches
 * with a copy to draft from; where nobody has one, sources go on and rounds do not count.
 */
#include "batch/batch_int.h"
#include "support/batching.h"

enum { N = 2, PROMPT = 130 };

static uint32_t prompts[N][PROMPT];

/* Every look at it is a millisecond later: passes of all widths take the same time, so that proposals pay. */
static uint64_t next_ms(void *arg) { return *(uint64_t *)arg += 1000; }

/* Rounds with a source's proposals of two requests beside which the batch wants to see plain iterations all the time.
 */
static uint64_t source_rounds(batching_t *f, const char *spec)
{
    uint64_t now_us = 0;
    const vc_clock_t clock = {.mono_us = next_ms, .wall_us = next_ms, .arg = &now_us};
    batching_run_t r = {.f = f, .spec = spec, .n = N, .x = NODE_DRAFT_AUTO, .source = true, .clock = &clock};
    node_batch_t *b = batching_create(&r);
    bool busy = true;
    for (uint32_t i = 0; i < N; i++)
        batching_add(&r, b, i);
    for (uint32_t k = 0; busy; k++) {
        cr_assert_lt(k, 1000, "no end in sight");
        for (uint32_t w = 0; w < NODE_GAIN_WIDTHS; w++) {
            b->gain.at[w].off = b->gain.at[w].looks = true;
            b->gain.at[w].n_plain = b->gain.at[w].n_rounds = 0;
        }
        GEN_OK(node_batch_step(b, &busy, &gen_err));
        for (uint32_t w = 0; spec == NULL && w < NODE_GAIN_WIDTHS; w++)
            cr_assert_eq(b->gain.at[w].n_rounds, 0, "a round of a batch without copies was counted");
    }
    node_batch_destroy(b);
    return r.n_source_rounds;
}

Test(batch_round, looks_at_plain_iterations_keep_sources_silent_only_beside_a_copy)
{
    static batching_t f;
    memset(&f, 0, sizeof f);
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    gen_model_open(&f.model, &o);
    batching_engine(&f, 72);
    for (uint32_t i = 0; i < N; i++) {
        gen_prompt(60 + i, prompts[i], PROMPT);
        batching_request(&f, i, &(gen_request_t){.prompt = prompts[i], .n_prompt = PROMPT, .max_tokens = 60});
    }
    cr_assert_eq(source_rounds(&f, "rot:bits=4"), 0);
    cr_assert_gt(source_rounds(&f, NULL), 0);
    batching_close(&f);
}
