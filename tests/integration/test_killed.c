/*
 * A server that is killed under load, again and again, and the clients that live through it: what one of them was told
 * is stored is there afterwards, a call that failed said so, and none of them has to be made anew.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "support/server_proc.h"
#include "support/small_space.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vericache/vericache.h"

#define WAIT_MS 60000
#define KILLS 3u
#define CLIENTS 3u  /* one on each way: gRPC, shared memory, the network */
#define CHAINS 128u /* of a client */
#define BLOCKS 12u

static const vcache_fidelity_t full = {0, "full@1", NULL};

typedef enum { UNTOLD = 0, FAILED, STORED } told_t;

typedef struct load load_t;
typedef struct client {
    load_t *load;
    vcache_client_t *handle;
    uint32_t number;
    pthread_t thread;
    told_t told[CHAINS];
    uint32_t ok, failed;      /* locked; registrations */
    uint32_t ok_now;          /* locked; since the server was started last */
    uint32_t failed_while_up; /* locked; of these, those that no kill explains */
    bool has_seen_the_kill;   /* locked */
    char why[600];            /* locked; what was wrong, "" = nothing */
} client_t;

struct load {
    pthread_mutex_t mu;
    pthread_cond_t changed;
    bool is_killed; /* locked */
    bool is_over;   /* locked */
    client_t clients[CLIENTS];
};

/* The chain of a client: other tokens, so that none of its objects is another's. */
static void make_chain(small_space_t *s, uint32_t client, uint32_t chain)
{
    small_space_init(s);
    for (uint32_t i = 0; i < VC_ARRAY_LEN(s->tokens); i++)
        s->tokens[i] += 100000 * (1 + client * CHAINS + chain);
    vc_block_chain(&s->id, s->tokens, VC_ARRAY_LEN(s->tokens), SMALL_BLOCK_TOKENS, s->hashes);
}

/* ---- the clients ---- */

static bool is_lost(vcache_status_t status)
{
    return status == VC_ERR_UNREACHABLE || status == VC_ERR_STALE || status == VC_ERR_TIMEOUT ||
           status == VC_ERR_CANCELLED;
}

/* Locked. One that failed waits for the next server: until then every call of it would fail. */
static void note(client_t *c, uint32_t chain, vcache_status_t status, const vcache_error_t *err)
{
    load_t *load = c->load;
    if (c->told[chain] != STORED) /* once stored, it stays */
        c->told[chain] = status == VC_OK ? STORED : FAILED;
    c->ok += status == VC_OK;
    c->ok_now += status == VC_OK;
    c->failed += status != VC_OK;
    if (status != VC_OK && (!is_lost(status) || err->msg[0] == '\0'))
        snprintf(c->why, sizeof(c->why), "%s: %s", vcache_status_name(status), err->msg);
    c->has_seen_the_kill |= status != VC_OK && load->is_killed;
    c->failed_while_up += status != VC_OK && !load->is_killed;
    pthread_cond_broadcast(&load->changed);
    while (status != VC_OK && load->is_killed && !load->is_over)
        pthread_cond_wait(&load->changed, &load->mu);
}

static void *register_chains(void *arg)
{
    client_t *c = arg;
    load_t *load = c->load;
    small_space_t space;
    bool is_over = false;
    for (uint32_t i = 0; !is_over; i = (i + 1) % CHAINS) {
        vcache_error_t err = {0};
        make_chain(&space, c->number, i);
        vcache_status_t status = vcache_register(c->handle, space.enc, space.enc_len, space.tokens, 0, BLOCKS, &full, 1,
                                                 small_space_record, &space, NULL, &err);
        pthread_mutex_lock(&load->mu);
        note(c, i, status, &err);
        is_over = load->is_over;
        pthread_mutex_unlock(&load->mu);
    }
    return NULL;
}

/* ---- the server ---- */

static vt_proc_t *start(const vt_tmpdir_t *dir, const char *listen, char *address, size_t cap)
{
    const char *args[] = {"--data-dir", vt_tmpdir_path(dir, "data"), "--listen", listen, "--capacity", "256MiB", NULL};
    return server_proc_start(args, NULL, address, cap);
}

static bool all(load_t *load, bool (*is_so)(const client_t *c))
{
    for (uint32_t i = 0; i < CLIENTS; i++) {
        if (!is_so(&load->clients[i]) && load->clients[i].why[0] == '\0')
            return false;
    }
    return true;
}

static bool has_stored_some(const client_t *c) { return c->ok_now >= 2 + c->number; }
static bool has_seen_the_kill(const client_t *c) { return c->has_seen_the_kill; }

static void wait_for(load_t *load, bool (*is_so)(const client_t *c))
{
    pthread_mutex_lock(&load->mu);
    while (!all(load, is_so))
        pthread_cond_wait(&load->changed, &load->mu);
    pthread_mutex_unlock(&load->mu);
}

/* While registrations are under way; what runs at that moment, or begins before the next start, fails. */
static void kill_it(load_t *load, vt_proc_t *p)
{
    pthread_mutex_lock(&load->mu);
    load->is_killed = true;
    for (uint32_t i = 0; i < CLIENTS; i++)
        load->clients[i].has_seen_the_kill = false;
    vt_proc_signal(p, SIGKILL);
    pthread_mutex_unlock(&load->mu);
    cr_assert_eq(vt_proc_wait_exit(p, WAIT_MS), 128 + SIGKILL, "%s", vt_proc_output(p));
    vt_proc_end(p);
    wait_for(load, has_seen_the_kill);
}

static void is_back(load_t *load)
{
    pthread_mutex_lock(&load->mu);
    load->is_killed = false;
    for (uint32_t i = 0; i < CLIENTS; i++)
        load->clients[i].ok_now = 0;
    pthread_cond_broadcast(&load->changed);
    pthread_mutex_unlock(&load->mu);
}

/* ---- what is there ---- */

static void check_chain(client_t *c, uint32_t chain, uint32_t *n_found)
{
    small_space_t space;
    small_sink_t sink = {.space = &space};
    vcache_lookup_info_t info;
    vcache_lease_t *lease = NULL;
    vcache_error_t err = {0};
    make_chain(&space, c->number, chain);
    vcache_status_t status = vcache_lookup(c->handle, space.enc, space.enc_len, space.tokens,
                                           BLOCKS * SMALL_BLOCK_TOKENS, &full, 1, &info, &lease, &err);
    cr_assert_eq(status, VC_OK, "%s", err.msg);
    uint32_t n = info.n_blocks[0];
    cr_assert(n == BLOCKS || (n == 0 && c->told[chain] != STORED), "client %u, chain %u: %u blocks, told %d", c->number,
              chain, n, (int)c->told[chain]);
    cr_assert(n == 0 || c->told[chain] != UNTOLD);
    if (n > 0) {
        status = vcache_fetch(lease, 0, 0, n, small_sink_record, &sink, NULL, &err);
        cr_assert_eq(status, VC_OK, "%s", err.msg);
        cr_assert_eq(sink.right, n);
    }
    vcache_lease_release(lease);
    *n_found += n;
}

static double stat_of(vcache_client_t *client, const char *name)
{
    static vcache_stat_t stats[1000];
    uint32_t n = 0;
    cr_assert_eq(vcache_stats(client, stats, VC_ARRAY_LEN(stats), &n, NULL), VC_OK);
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(stats[i].name, name) == 0)
            return stats[i].value;
    }
    cr_assert(false, "no %s", name);
    return 0;
}

static void check_all(load_t *load)
{
    uint32_t n_found = 0;
    for (uint32_t i = 0; i < CLIENTS; i++) {
        for (uint32_t chain = 0; chain < CHAINS; chain++)
            check_chain(&load->clients[i], chain, &n_found);
    }
    cr_assert_eq(stat_of(load->clients[0].handle, "objects_full"), n_found);
    cr_assert_eq(stat_of(load->clients[0].handle, "corrupt_disk"), 0);
}

/* ---- test ---- */

static void connect_all(load_t *load, const char *address)
{
    for (uint32_t i = 0; i < CLIENTS; i++) {
        client_t *c = &load->clients[i];
        vcache_options_t options;
        vcache_options_default(&options);
        options.server = address;
        options.use_data_plane = (int)i;
        options.connect_ms = options.call_ms = options.stream_idle_ms = WAIT_MS; /* a busy machine is no lost server */
        *c = (client_t){.load = load, .number = i};
        cr_assert_eq(vcache_connect(&options, &c->handle, NULL), VC_OK);
        cr_assert_eq(pthread_create(&c->thread, NULL, register_chains, c), 0);
    }
}

static void end_all(load_t *load)
{
    pthread_mutex_lock(&load->mu);
    load->is_over = true;
    pthread_cond_broadcast(&load->changed);
    pthread_mutex_unlock(&load->mu);
    for (uint32_t i = 0; i < CLIENTS; i++)
        pthread_join(load->clients[i].thread, NULL);
}

Test(killed, what_a_client_was_told_is_stored_outlives_every_kill_and_the_client_goes_on)
{
    static load_t load = {.mu = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    vt_tmpdir_t dir;
    char first[128], address[128];
    vt_tmpdir_create(&dir);
    vt_proc_t *p = start(&dir, "127.0.0.1:0", first, sizeof(first));
    connect_all(&load, first);
    for (uint32_t i = 0; i < KILLS; i++) {
        wait_for(&load, has_stored_some);
        kill_it(&load, p);
        p = start(&dir, first, address, sizeof(address));
        is_back(&load);
    }
    wait_for(&load, has_stored_some);
    end_all(&load);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        const client_t *c = &load.clients[i];
        cr_assert_str_empty(c->why, "client %u: %s", i, c->why);
        cr_assert_geq(c->failed, KILLS, "client %u", i);
        cr_assert_eq(c->failed_while_up, 0, "client %u", i); /* the call after a lost one connects again */
    }
    check_all(&load);
    for (uint32_t i = 0; i < CLIENTS; i++)
        vcache_disconnect(load.clients[i].handle);
    vt_proc_end(p);
    vt_tmpdir_remove(&dir);
}
