/* See uring_buffers.h. When the kernel refuses a slab (memlock), it and all later ones are used by plain transfers. */
#include "uring_buffers.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "vc/log.h"
#include "vc/mem.h"

enum { UNTRIED = 0, REGISTERED, REFUSED };

#define MAX_BUFFERS 16384u /* what the kernel takes */

static uint32_t count_slabs(const cs_bufpool_t *pool)
{
    size_t bytes, slab_bytes;
    if (!cs_bufpool_attached(pool, &bytes, &slab_bytes))
        return 0;
    return (uint32_t)(bytes / slab_bytes + (bytes % slab_bytes != 0));
}

/* A table with empty places for the slabs, then the pool's buffers into the first ones. Kernels before 5.19 cannot. */
static int register_sparse(cs_uring_buffers_t *buffers, struct io_uring *ring, const struct iovec *iov)
{
    if (buffers->n_slabs == 0 || buffers->n_pool + buffers->n_slabs > MAX_BUFFERS)
        return -EINVAL;
    int rc = io_uring_register_buffers_sparse(ring, buffers->n_pool + buffers->n_slabs);
    if (rc < 0)
        return rc;
    rc = io_uring_register_buffers_update_tag(ring, 0, iov, NULL, buffers->n_pool);
    if (rc < 0 || (uint32_t)rc < buffers->n_pool) {
        (void)io_uring_unregister_buffers(ring);
        return rc < 0 ? rc : -ENOMEM;
    }
    buffers->slab_states = vc_calloc(buffers->n_slabs, 1);
    return 0;
}

int cs_uring_buffers_init(cs_uring_buffers_t *buffers, struct io_uring *ring, cs_bufpool_t *pool)
{
    *buffers = (cs_uring_buffers_t){.pool = pool};
    if (!pool)
        return -EINVAL;
    buffers->n_pool = cs_bufpool_count(pool);
    buffers->n_slabs = count_slabs(pool);
    struct iovec *iov = vc_calloc(buffers->n_pool, sizeof(*iov));
    if (!iov)
        return -ENOMEM;
    for (uint32_t i = 0; i < buffers->n_pool; i++) {
        cs_buf_t *buf = cs_bufpool_at(pool, i);
        iov[i] = (struct iovec){buf->data, buf->cap};
    }
    int rc = register_sparse(buffers, ring, iov);
    if (rc < 0)
        rc = io_uring_register_buffers(ring, iov, buffers->n_pool);
    vc_free(iov);
    return rc;
}

void cs_uring_buffers_fini(cs_uring_buffers_t *buffers)
{
    vc_free(buffers->slab_states);
    buffers->slab_states = NULL;
}

static void register_slab(cs_uring_buffers_t *buffers, struct io_uring *ring, uint32_t slab)
{
    size_t bytes, slab_bytes;
    uint8_t *base = cs_bufpool_attached(buffers->pool, &bytes, &slab_bytes);
    size_t at = slab * slab_bytes;
    struct iovec iov = {base + at, VC_MIN(slab_bytes, bytes - at)};
    __u64 tag = 0;
    int rc = io_uring_register_buffers_update_tag(ring, buffers->n_pool + slab, &iov, &tag, 1);
    buffers->slab_states[slab] = rc == 1 ? REGISTERED : REFUSED;
    if (rc == 1)
        return;
    vc_log_info("uring", "no more slabs are registered, plain reads into them slab=%u bytes=%zu reason=\"%s\"", slab,
                iov.iov_len, strerror(rc < 0 ? -rc : ENOMEM));
    for (uint32_t i = 0; i < buffers->n_slabs; i++)
        if (buffers->slab_states[i] == UNTRIED)
            buffers->slab_states[i] = REFUSED;
}

static bool was_used(const cs_uring_buffers_t *buffers, uint32_t slab)
{
    size_t bytes, slab_bytes;
    (void)cs_bufpool_attached(buffers->pool, &bytes, &slab_bytes);
    /* The end of a slab may be too short for a record. */
    return cs_bufpool_used(buffers->pool) + slab_bytes / 8 >= VC_MIN((slab + 1) * slab_bytes, bytes);
}

bool cs_uring_buffers_ready(cs_uring_buffers_t *buffers, struct io_uring *ring, uint32_t index)
{
    if (index < buffers->n_pool)
        return true;
    uint32_t slab = index - buffers->n_pool;
    if (!buffers->slab_states || slab >= buffers->n_slabs)
        return false;
    if (buffers->slab_states[slab] == UNTRIED && was_used(buffers, slab))
        register_slab(buffers, ring, slab);
    return buffers->slab_states[slab] == REGISTERED;
}
