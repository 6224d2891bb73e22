/* What the lives of an epoch have done, and the check of what a restart made of it. */
#include <stdarg.h>
#include <sys/mman.h>

#include "crash.h"

static const crash_scenario_t scenarios[] = {
    {"roomy", (uint64_t)176 << 20, 2, 20, false},
    {"tight", (uint64_t)72 << 20, 14, 28, true},
};

const crash_scenario_t *crash_scenario(const char *name)
{
    for (size_t i = 0; i < VC_ARRAY_LEN(scenarios); i++) {
        if (strcmp(scenarios[i].name, name) == 0)
            return &scenarios[i];
    }
    return NULL;
}

uint32_t crash_seed(uint32_t chain) { return 1 + chain; }

crash_model_t *crash_model_create(void)
{
    void *memory = mmap(NULL, sizeof(crash_model_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void crash_model_destroy(crash_model_t *model) { munmap(model, sizeof(*model)); }

void crash_model_begin_epoch(crash_model_t *model, const fx_t *fx)
{
    memset(model, 0, offsetof(crash_model_t, counts));
    model->has_failed = false;
    for (uint32_t w = 0; w < CRASH_WRITERS; w++) {
        while (model->next_chain[w] < CRASH_SHARED || model->next_chain[w] % CRASH_WRITERS != w)
            model->next_chain[w]++;
    }
    for (uint32_t chain = 0; chain < CRASH_CHAINS; chain++)
        fx_hashes(fx, crash_seed(chain), CRASH_BLOCKS, model->hashes[chain]);
}

void crash_fail(crash_model_t *model, const char *fmt, ...)
{
    va_list args;
    if (atomic_exchange(&model->has_failed, true))
        return;
    va_start(args, fmt);
    vsnprintf(model->failure, sizeof(model->failure), fmt, args);
    va_end(args);
}

/* What the epoch has written decides: below a quarter of the capacity, more than half of which is there for objects,
 * nobody has to go. */
bool crash_may_have_evicted(const crash_model_t *model, const crash_scenario_t *scenario)
{
    return scenario->is_tight && model->bytes_written > scenario->capacity_bytes / 4;
}

/* ---- the check ---- */

typedef struct check {
    crash_model_t *model;
    const crash_scenario_t *scenario;
    fx_t *fx;
    bool may_have_evicted, is_deep;
    uint64_t n_visible, n_pinned, bytes_visible;
    uint8_t seen[2][CRASH_CHAINS][CRASH_BLOCKS];
} check_t;

static vc_status_t pin(const crash_model_t *model, fx_t *fx, uint32_t chain, uint32_t block, uint32_t f,
                       cs_pin_t *pin_p)
{
    vc_object_key_t key = {
        .fidelity = fx->fids[f].fidelity, .spec = fx->fids[f].spec, .hash = model->hashes[chain][block]};
    return cs_store_pin_key(fx->store, &key, pin_p);
}

bool crash_is_visible(const crash_model_t *model, fx_t *fx, uint32_t chain, uint32_t block, uint32_t f)
{
    cs_pin_t found;
    if (pin(model, fx, chain, block, f, &found) != VC_OK)
        return false;
    cs_store_unpin(fx->store, &found);
    return true;
}

static void check_tickets(check_t *c)
{
    crash_model_t *m = c->model;
    cs_pin_t found;
    for (uint32_t i = 0; i < CRASH_THREADS; i++) {
        crash_ticket_t *t = &m->leases[i];
        if (!t->is_set)
            continue;
        vc_status_t status = cs_store_pin_leased(c->fx->store, t->boot_id, t->id, &t->token, 0, 0, &found);
        if (status != VC_ERR_STALE)
            crash_fail(m, "a lease of the life before answers %s, not stale", vc_status_name(status));
        t->is_set = false;
    }
    for (uint32_t i = 0; i < CRASH_WRITERS; i++) {
        crash_ticket_t *t = &m->uploads[i];
        vc_status_t status = t->is_set ? cs_store_abort(c->fx->store, t->id, &t->token) : VC_ERR_STALE;
        if (status != VC_ERR_STALE)
            crash_fail(m, "an upload of the life before answers %s, not stale", vc_status_name(status));
        t->is_set = false;
    }
}

/* A life that was killed in its recovery may have counted or not. */
static void check_start(check_t *c)
{
    crash_model_t *m = c->model;
    uint64_t generation = cs_store_generation(c->fx->store), boot_id = cs_store_boot_id(c->fx->store);
    bool is_known = !m->is_rebuilt; /* the count of starts goes with the catalog; the boot id tells the lives apart */
    if (is_known && (generation <= m->generation || generation > m->generation + m->attempts))
        crash_fail(m, "generation %llu after %llu and %u starts", (unsigned long long)generation,
                   (unsigned long long)m->generation, m->attempts);
    if (boot_id == m->boot_id)
        crash_fail(m, "two lives have the same boot id");
    if (is_known && m->attempts == 1 && generation != m->generation + 1)
        crash_fail(m, "generation %llu is not one more than %llu", (unsigned long long)generation,
                   (unsigned long long)m->generation);
    m->generation = generation;
    m->boot_id = boot_id;
    m->attempts = 0;
    check_tickets(c);
}

static void check_gauges(check_t *c, const cs_store_stats_t *s)
{
    cs_store_stats_t stats = *s;
    uint64_t du = fx_du(c->fx);
    if (stats.pinned_bytes || stats.leases_open || stats.uploads_open)
        crash_fail(c->model, "after the start %llu bytes are pinned, %llu leases and %llu uploads are open",
                   (unsigned long long)stats.pinned_bytes, (unsigned long long)stats.leases_open,
                   (unsigned long long)stats.uploads_open);
    if (stats.kept_objects < c->n_pinned)
        crash_fail(c->model, "%llu objects were pinned and %llu are", (unsigned long long)c->n_pinned,
                   (unsigned long long)stats.kept_objects);
    if (stats.corrupt_disk)
        crash_fail(c->model, "%llu objects were found damaged", (unsigned long long)stats.corrupt_disk);
    if (du > c->scenario->capacity_bytes || stats.used_bytes > c->scenario->capacity_bytes)
        crash_fail(c->model, "the directory has %llu bytes, counted as %llu, of %llu", (unsigned long long)du,
                   (unsigned long long)stats.used_bytes, (unsigned long long)c->scenario->capacity_bytes);
    if (stats.full.objects + stats.compressed.objects != c->n_visible)
        crash_fail(c->model, "%llu objects are counted and %llu are there",
                   (unsigned long long)(stats.full.objects + stats.compressed.objects),
                   (unsigned long long)c->n_visible);
    if (stats.full.bytes + stats.compressed.bytes != c->bytes_visible)
        crash_fail(c->model, "%llu bytes are counted and %llu are there",
                   (unsigned long long)(stats.full.bytes + stats.compressed.bytes),
                   (unsigned long long)c->bytes_visible);
}

static void look(check_t *c, uint32_t f, uint32_t chain, uint32_t b)
{
    cs_pin_t found;
    uint8_t flags = c->model->objects[f][chain][b];
    bool is_there = pin(c->model, c->fx, chain, b, f, &found) == VC_OK;
    if (is_there) {
        c->n_visible++;
        c->bytes_visible += found.bytes;
        cs_store_unpin(c->fx->store, &found);
    }
    uint8_t allowed = c->model->is_rebuilt ? CRASH_MAY | CRASH_WRITTEN : CRASH_MAY;
    if (is_there && !(flags & allowed))
        crash_fail(c->model, "chain %u block %u copy %u is there; it was never committed, or it was deleted", chain, b,
                   f);
    if (!is_there && (flags & CRASH_MUST) && !c->may_have_evicted)
        crash_fail(c->model, "chain %u block %u copy %u was acknowledged and is lost", chain, b, f);
    if (!is_there && (flags & CRASH_PINNED))
        crash_fail(c->model, "chain %u block %u copy %u was pinned and is lost", chain, b, f);
    c->n_pinned += (flags & CRASH_PINNED) != 0;
    c->seen[f][chain][b] = is_there;
}

static void look_everywhere(check_t *c)
{
    for (uint32_t f = 0; f < 2; f++) {
        for (uint32_t chain = 0; chain < CRASH_CHAINS; chain++) {
            for (uint32_t b = 0; b < CRASH_BLOCKS; b++)
                look(c, f, chain, b);
        }
    }
}

static uint64_t evicted(fx_t *fx, cs_store_stats_t *stats_p)
{
    cs_store_get_stats(fx->store, stats_p);
    return stats_p->full.evicted_objects + stats_p->compressed.evicted_objects;
}

/* A store that must give room back after its start does so meanwhile; then what was seen is no one state of it. */
static void look_at_one_state(check_t *c)
{
    cs_store_stats_t stats, after;
    for (;;) {
        uint64_t before = evicted(c->fx, &stats);
        c->n_visible = c->n_pinned = c->bytes_visible = 0;
        look_everywhere(c);
        if (evicted(c->fx, &after) == before)
            break;
    }
    check_gauges(c, &after);
}

static bool is_of(const crash_unit_t *unit, uint32_t chain, uint32_t b, uint32_t f)
{
    return unit->step == CRASH_COMMITTING && unit->chain == chain && b >= unit->first && b < unit->n_blocks &&
           (unit->what & (1u << f));
}

/* The objects of a commit in flight that no other commit can have made visible: all of them, or none. */
static void check_unit(check_t *c, uint32_t w)
{
    const crash_unit_t *unit = &c->model->units[w];
    uint32_t there = 0, total = 0;
    for (uint32_t f = 0; f < 2; f++) {
        for (uint32_t b = 0; b < CRASH_BLOCKS; b++) {
            bool is_alone = is_of(unit, unit->chain, b, f) && !(c->model->objects[f][unit->chain][b] & CRASH_MUST);
            for (uint32_t other = 0; other < CRASH_WRITERS; other++)
                is_alone = is_alone && (other == w || !is_of(&c->model->units[other], unit->chain, b, f));
            total += is_alone;
            there += is_alone && c->seen[f][unit->chain][b];
        }
    }
    if (there != 0 && there != total && !c->may_have_evicted && !c->model->is_rebuilt)
        crash_fail(c->model, "a commit of chain %u left %u of its %u objects", unit->chain, there, total);
}

/* What was found is the history from now on. */
static void take_over(check_t *c)
{
    for (uint32_t f = 0; f < 2; f++) {
        for (uint32_t chain = 0; chain < CRASH_CHAINS; chain++) {
            for (uint32_t b = 0; b < CRASH_BLOCKS; b++) {
                uint8_t flags = c->model->objects[f][chain][b];
                bool is_there = c->seen[f][chain][b];
                c->model->objects[f][chain][b] =
                    (uint8_t)((flags & CRASH_WRITTEN) |
                              (is_there ? CRASH_MAY | CRASH_MUST | (flags & CRASH_PINNED) : 0));
            }
        }
    }
    for (uint32_t chain = 0; chain < CRASH_CHAINS; chain++) /* a kill ended those that were under way */
        c->model->deletes_ended[chain] = c->model->deletes_begun[chain];
    for (uint32_t w = 0; w < CRASH_WRITERS; w++)
        c->model->units[w].step = CRASH_IDLE;
    c->model->counts.rebuilds += c->model->is_rebuilt;
    c->model->is_rebuilt = false;
}

static void check_chain(check_t *c, uint32_t chain)
{
    cs_lookup_result_t r;
    uint32_t leading[2] = {0, 0};
    for (uint32_t f = 0; f < 2; f++) {
        while (leading[f] < CRASH_BLOCKS && c->seen[f][chain][leading[f]])
            leading[f]++;
        for (uint32_t b = 0; b < CRASH_BLOCKS; b++) {
            vc_status_t status = c->seen[f][chain][b] ? fx_read(c->fx, crash_seed(chain), b, f) : VC_OK;
            bool is_gone = (status == VC_ERR_NOT_FOUND && c->scenario->is_tight) ||
                           (status == VC_ERR_IO && c->model->tolerates_errors);
            if (status != VC_OK && !is_gone)
                crash_fail(c->model, "chain %u block %u copy %u reads as %s", chain, b, f, vc_status_name(status));
            c->model->counts.checked += c->seen[f][chain][b];
        }
    }
    vc_status_t status = cs_store_lookup(c->fx->store, &c->fx->ks_id, c->model->hashes[chain], CRASH_BLOCKS,
                                         c->fx->fids, 2, false, &r, NULL);
    bool is_right = r.n_blocks[0] == leading[0] && r.n_blocks[1] == leading[1];
    if (status != VC_OK || (!is_right && !c->scenario->is_tight))
        crash_fail(c->model, "a lookup of chain %u finds %u and %u blocks of %u and %u (%s)", chain, r.n_blocks[0],
                   r.n_blocks[1], leading[0], leading[1], vc_status_name(status));
}

/* Eviction keeps the store as full as it makes sense: a directory that came back empty is no cache. */
static void check_fullness(check_t *c)
{
    uint64_t most = (uint64_t)4 << 20; /* one segment: the least that a tight store must still hold */
    if (c->model->bytes_written > c->scenario->capacity_bytes && c->bytes_visible < most)
        crash_fail(c->model, "only %llu bytes are left of %llu", (unsigned long long)c->bytes_visible,
                   (unsigned long long)c->model->bytes_written);
}

void crash_model_check(crash_model_t *model, const crash_scenario_t *scenario, fx_t *fx, bool all)
{
    static check_t c; /* too large for a stack; one check in a process */
    c = (check_t){.model = model, .scenario = scenario, .fx = fx};
    c.may_have_evicted = crash_may_have_evicted(model, scenario);
    check_start(&c);
    look_at_one_state(&c);
    for (uint32_t w = 0; w < CRASH_WRITERS; w++)
        check_unit(&c, w);
    take_over(&c);
    for (uint32_t chain = 0; chain < CRASH_CHAINS && !model->has_failed; chain++) {
        bool is_recent = model->touched[chain] > 0 && model->touched[chain] + 2 > model->life;
        if (all || is_recent || (chain + model->life) % 16 == 0)
            check_chain(&c, chain);
    }
    check_fullness(&c);
}
