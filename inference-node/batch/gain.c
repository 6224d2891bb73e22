/* Two sums and a line for each width of the batch. Owner: the batch's thread. */
#include "batch/gain.h"

#include <string.h>

#define KEEP 0.985         /* of the sums per round */
#define TRIAL_ROUNDS 24u   /* that say something of drafting */
#define LOOK_ITERATIONS 3u /* that say something of plain passes */
#define LOOK_ROUNDS 64u    /* and no longer, */
#define LOOK_FIRST 8u      /* rounds without a plain iteration where none was seen yet, */
#define LOOK_AGAIN 1024u   /* and where some were, or a look saw none */
#define SHARE 0.01         /* of the time that trials may lose */
#define LOST_LEAST 0.02    /* of a trial's time: what it is taken to lose at least */
#define PAYS 1.0           /* worth over time */

void node_gain_init(node_gain_t *g)
{
    memset(g, 0, sizeof *g);
    node_share_init(&g->plain);
    for (uint32_t w = 0; w < NODE_GAIN_WIDTHS; w++)
        g->at[w].look_after = LOOK_FIRST;
}

static uint32_t width_of(uint32_t n_requests)
{
    uint32_t i = 0;
    while (i < NODE_GAIN_WIDTHS - 1 && n_requests > 1u << i)
        i++;
    return i;
}

bool node_gain_may_draft(const node_gain_t *g, uint32_t n_requests) { return !g->at[width_of(n_requests)].off; }

bool node_gain_looks(const node_gain_t *g, uint32_t n_requests)
{
    uint32_t w = width_of(n_requests);
    return g->at[w].off && g->at[w].looks;
}

static node_share_load_t load_of(uint32_t n_requests, double kilotokens)
{
    node_share_load_t load = {.n = {1}};
    load.n[NODE_SHARE_VERIFY] = n_requests;
    load.n[NODE_SHARE_KILOTOKENS] = kilotokens;
    return load;
}

static void turn(node_gain_t *g, uint32_t w, bool off, bool looks)
{
    g->at[w].off = off;
    g->at[w].looks = looks;
    g->at[w].n_rounds = 0;
    if (!off)
        return;
    g->at[w].n_plain = 0;
    g->at[w].look_after = looks ? LOOK_AGAIN : LOOK_FIRST;
}

void node_gain_plain(node_gain_t *g, uint32_t n_requests, double kilotokens, double us)
{
    uint32_t w = width_of(n_requests);
    const node_share_load_t load = load_of(n_requests, kilotokens);
    node_share_learn(&g->plain, &load, us);
    g->at[w].n_plain++;
    g->at[w].since = 0;
    g->at[w].look_after = LOOK_AGAIN;
    if (g->at[w].off && g->at[w].looks && g->at[w].n_plain >= LOOK_ITERATIONS)
        turn(g, w, false, false);
}

/* A round while it is off. */
static void wait(node_gain_t *g, uint32_t w, double us)
{
    if (g->at[w].looks) {
        if (++g->at[w].n_rounds <= LOOK_ROUNDS)
            return;
        g->at[w].since = 0; /* others than drafts keep iterations from being plain, prompts perhaps */
        turn(g, w, false, false);
        return;
    }
    g->at[w].credit_us += SHARE * us;
    if (g->at[w].credit_us < g->at[w].lost_us)
        return;
    g->at[w].credit_us = g->at[w].took_us = g->at[w].worth_us = 0;
    turn(g, w, false, false);
}

void node_gain_elsewhere(node_gain_t *g, uint32_t n_requests, double us)
{
    uint32_t w = width_of(n_requests);
    if (n_requests && g->at[w].off)
        wait(g, w, us);
}

void node_gain_round(node_gain_t *g, uint32_t n_requests, double kilotokens, uint32_t n_tokens, double us)
{
    uint32_t w = width_of(n_requests);
    if (!n_requests)
        return;
    if (g->at[w].off) {
        wait(g, w, us);
        return;
    }
    g->at[w].n_rounds++;
    g->at[w].since++;
    const node_share_load_t load = load_of(n_requests, kilotokens);
    double plain_us = node_share_us(&g->plain, &load) / n_requests;
    if (g->at[w].since > g->at[w].look_after) {
        turn(g, w, true, true);
        return;
    }
    if (!g->at[w].n_plain)
        return;
    g->at[w].took_us = KEEP * g->at[w].took_us + us;
    g->at[w].worth_us = KEEP * g->at[w].worth_us + n_tokens * plain_us;
    if (g->at[w].n_rounds < TRIAL_ROUNDS || g->at[w].worth_us >= PAYS * g->at[w].took_us)
        return;
    double lost = g->at[w].took_us - g->at[w].worth_us, least = LOST_LEAST * g->at[w].took_us;
    g->at[w].lost_us = lost > least ? lost : least;
    turn(g, w, true, false);
}
