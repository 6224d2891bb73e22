/*
 * Which way the bytes take: shared memory, then UCX over the network, then gRPC. A way that failed is left alone for a
 * while that doubles with every failure in a row, then tried again; one that works starts from nothing.
 */
#include <string.h>

#include "client_int.h"
#include "vc/mem.h"

#define RETRY_US 1000000u
#define RETRY_DOUBLINGS 6u

bool vcache_addresses_set(vcache_addresses_t *at, const char *shm, const char *net)
{
    at->of[VCACHE_PLANE_SHM] = vc_strdup(shm != NULL ? shm : "");
    at->of[VCACHE_PLANE_NET] = vc_strdup(net != NULL ? net : "");
    return at->of[VCACHE_PLANE_SHM] != NULL && at->of[VCACHE_PLANE_NET] != NULL;
}

void vcache_addresses_free(vcache_addresses_t *at)
{
    for (unsigned i = 0; i < VCACHE_N_PLANES; i++)
        vc_free(at->of[i]);
}

vcache_path_t vcache_plane_path(unsigned plane)
{
    return plane == VCACHE_PLANE_SHM ? VCACHE_PATH_SHM : VCACHE_PATH_UCX;
}

bool vcache_data_steps_down(vc_status_t status)
{
    return status == VC_ERR_UNREACHABLE || status == VC_ERR_TIMEOUT || status == VC_ERR_PROTOCOL ||
           status == VC_ERR_NOMEM || status == VC_ERR_UNSUPPORTED || status == VC_ERR_BUSY || status == VC_ERR_INTERNAL;
}

static void forget(vcache_plane_t *p)
{
    vc_data_close(p->data);
    vc_free(p->address);
    *p = (vcache_plane_t){0};
}

void vcache_planes_close(vcache_client_t *c)
{
    for (unsigned i = 0; i < VCACHE_N_PLANES; i++)
        forget(&c->planes[i]);
}

static void note_failure(vcache_client_t *c, vcache_plane_t *p)
{
    p->retry_us = vc_clock_now_us(c->clock) + ((uint64_t)RETRY_US << VC_MIN(p->failures, RETRY_DOUBLINGS));
    p->failures++;
}

static vc_status_t connect_plane(vcache_client_t *c, vcache_plane_t *p, const char *address, vc_err_t *err)
{
    vc_data_opts_t o;
    vc_data_opts_default(&o);
    o.connect_ms = c->o.connect_ms;
    o.idle_ms = c->o.stream_idle_ms;
    vc_status_t st = vc_data_connect(address, &o, &p->data, err);
    p->elsewhere = st == VC_ERR_NOT_FOUND || st == VC_ERR_PERM;
    if (st != VC_OK)
        note_failure(c, p);
    return st;
}

/* Finds or makes the connection. */
static vc_status_t try_plane(vcache_client_t *c, vcache_plane_t *p, const char *address, vc_err_t *err)
{
    if (p->address != NULL && strcmp(p->address, address) != 0)
        forget(p); /* the server came back elsewhere */
    if (p->address == NULL)
        p->address = vc_strdup(address);
    if (p->address == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    if (vc_clock_now_us(c->clock) < p->retry_us)
        return vc_err_set(err, VC_ERR_UNREACHABLE, "data plane %s failed a moment ago", address);
    return p->data != NULL ? VC_OK : connect_plane(c, p, address, err);
}

static bool is_wanted(const vcache_client_t *c, const vcache_addresses_t *at, unsigned plane)
{
    bool wanted = plane == VCACHE_PLANE_SHM ? c->o.use_data_plane == 1 : c->o.use_data_plane != 0;
    return wanted && at->of[plane] != NULL && at->of[plane][0] != '\0';
}

vc_status_t vcache_data_begin(vcache_client_t *c, const vcache_addresses_t *at, unsigned *plane_p, uint32_t *steps_p,
                              vc_data_t **data_p, vc_err_t *err)
{
    pthread_mutex_lock(&c->data_lock);
    for (unsigned i = *plane_p; i < VCACHE_N_PLANES; i++) {
        vcache_plane_t *p = &c->planes[i];
        if (!is_wanted(c, at, i))
            continue;
        if (try_plane(c, p, at->of[i], err) == VC_OK) {
            *plane_p = i;
            *data_p = p->data;
            return VC_OK;
        }
        if (!p->elsewhere)
            ++*steps_p;
    }
    pthread_mutex_unlock(&c->data_lock);
    return VC_ERR_UNREACHABLE;
}

void vcache_data_end(vcache_client_t *c, unsigned plane, bool failed)
{
    vcache_plane_t *p = &c->planes[plane];
    if (failed) {
        note_failure(c, p);
    } else {
        p->retry_us = 0;
        p->failures = 0;
    }
    pthread_mutex_unlock(&c->data_lock);
}
