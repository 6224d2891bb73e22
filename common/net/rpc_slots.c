/*
 * The streaming slots of a server: threads that serve one call after the other, each with a queue of its own.
 *
 * With reclaim_ms a method has one slot more than it serves calls at once. The call in the surplus slot waits there for
 * its turn, and while it waits, a stream whose peer has taken or sent nothing for reclaim_ms is ended to make room: a
 * client that stalls keeps its slot only as long as nobody else wants it.
 */
#include <time.h>

#include "rpc_server_int.h"

#define LOOK_MS 100u

/* The stream of the method whose peer has been silent longest, if that is long enough. Under the lock, so that the call
 * is there: a slot gives its call up under the lock before it ends it. */
static void reclaim_one(vc_rpc_server_t *s, const vc_rpc_entry_t *method)
{
    vc_rpc_call_t *oldest = NULL;
    uint64_t now = vc_rpc_now_ms(), since = 0;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        vc_rpc_call_t *c = s->slots[i].method == method ? s->slots[i].call : NULL;
        uint64_t t = c != NULL ? atomic_load_explicit(&c->waits_since_ms, memory_order_relaxed) : 0;
        /* t may be younger than now: its thread does not hold the lock. */
        if (t == 0 || now < t + s->reclaim_ms || atomic_load_explicit(&c->is_reclaimed, memory_order_relaxed))
            continue;
        if (oldest == NULL || t < since) {
            oldest = c;
            since = t;
        }
    }
    if (oldest == NULL)
        return;
    atomic_store_explicit(&oldest->is_reclaimed, true, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->reclaimed, 1, memory_order_relaxed);
    grpc_call_cancel(oldest->call, NULL);
}

static void wait_turn(vc_rpc_slot_t *slot, vc_rpc_call_t *c)
{
    vc_rpc_server_t *s = slot->server;
    vc_rpc_entry_t *m = slot->method;
    pthread_mutex_lock(&s->lock);
    while (m->n_serving >= m->n_serve) {
        struct timespec at;
        clock_gettime(CLOCK_MONOTONIC, &at);
        uint64_t ns = (uint64_t)at.tv_nsec + LOOK_MS * 1000000u;
        at.tv_sec += (time_t)(ns / 1000000000);
        at.tv_nsec = (long)(ns % 1000000000);
        reclaim_one(s, m);
        pthread_cond_timedwait(&s->slot_freed, &s->lock, &at);
    }
    m->n_serving++;
    slot->call = c;
    pthread_mutex_unlock(&s->lock);
}

static void end_turn(vc_rpc_slot_t *slot)
{
    vc_rpc_server_t *s = slot->server;
    pthread_mutex_lock(&s->lock);
    slot->call = NULL;
    slot->method->n_serving--;
    pthread_cond_broadcast(&s->slot_freed);
    pthread_mutex_unlock(&s->lock);
}

static void slot_serve(vc_rpc_slot_t *slot, grpc_call *call)
{
    vc_rpc_call_t c = {.call = call,
                       .cq = slot->cq,
                       .streaming = true,
                       .max_message_bytes = slot->server->max_message_bytes,
                       .stall_ms = slot->server->stall_ms};
    vc_err_t err = {0};
    vc_status_t status = vc_rpc_call_begin(&c);
    if (status == VC_OK) {
        wait_turn(slot, &c);
        status = slot->method->m.stream(slot->server->arg, &c, &err);
        end_turn(slot);
    }
    vc_rpc_call_end(&c, status, &err);
}

void *vc_rpc_slot_main(void *arg)
{
    vc_rpc_slot_t *slot = arg;
    vc_rpc_server_t *s = slot->server;
    while (!atomic_load_explicit(&s->stopping, memory_order_relaxed)) {
        grpc_call *call = NULL;
        grpc_metadata_array metadata;
        gpr_timespec deadline;
        grpc_metadata_array_init(&metadata);
        bool taken =
            grpc_server_request_registered_call(s->server, slot->method->registered, &call, &deadline, &metadata, NULL,
                                                slot->cq, slot->idle_cq, slot) == GRPC_CALL_OK &&
            vc_rpc_pluck(slot->idle_cq, slot, gpr_inf_future(GPR_CLOCK_MONOTONIC)) == VC_RPC_BATCH_OK;
        if (taken)
            slot_serve(slot, call);
        grpc_metadata_array_destroy(&metadata);
        if (!taken)
            break; /* only shutdown fails a request */
    }
    return NULL;
}
