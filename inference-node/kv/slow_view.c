/* A session with spilled blocks as one with all its pages: the file is mapped, and a page looks into it layer by layer.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kv/slow_int.h"
#include "vc/crc32c.h"
#include "vc/mem.h"

typedef struct {
    uint8_t *data;
    size_t bytes;
    int fd; /* of its own: a page may outlive the tier */
    _Atomic uint32_t refs;
} mapping_t;

static void mapping_put(void *arg)
{
    mapping_t *m = arg;
    /* acq_rel: the last page unmaps after everybody's reads */
    if (atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1)
        return;
    munmap(m->data, m->bytes);
    /* streaming goes past the page cache: what the mapping left there is only in the way */
    (void)posix_fadvise(m->fd, 0, 0, POSIX_FADV_DONTNEED);
    close(m->fd);
    vc_free(m);
}

static vc_status_t mapping_open(const node_slow_t *s, mapping_t **m_p, vc_err_t *err)
{
    mapping_t *m = vc_calloc(1, sizeof *m);
    if (m == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "slow tier: out of memory");
    m->bytes = (size_t)node_slow_offset(s, s->dims.n_layer, 0);
    m->fd = fcntl(s->fd, F_DUPFD_CLOEXEC, 0);
    m->data = m->fd < 0 ? MAP_FAILED : mmap(NULL, m->bytes, PROT_READ, MAP_SHARED, m->fd, 0);
    if (m->data == MAP_FAILED) {
        vc_status_t st =
            vc_err_set(err, vc_status_from_errno(errno), "slow tier: cannot map its file: %s", strerror(errno));
        if (m->fd >= 0)
            close(m->fd);
        vc_free(m);
        return st;
    }
    atomic_init(&m->refs, 1);
    *m_p = m;
    return VC_OK;
}

/* Reads a layer's spilled blocks in, so that a bad sector is an error here and not a signal, and checks them. */
static vc_status_t check_layer(node_slow_t *s, const mapping_t *m, uint32_t layer, vc_err_t *err)
{
    uint8_t *data = m->data + node_slow_offset(s, layer, 0);
#ifdef MADV_POPULATE_READ
    if (madvise(data, s->n_spilled * s->part_bytes, MADV_POPULATE_READ) != 0 && errno != EINVAL)
        return vc_err_set(err, VC_ERR_IO, "slow tier: layer %u cannot be read: %s", layer, strerror(errno));
#endif
    for (uint32_t b = 0; b < s->n_spilled; b++)
        if (vc_crc32c(0, data + b * s->part_bytes, s->part_bytes) != s->sums[(size_t)layer * s->file_blocks + b])
            return node_slow_damaged(s, layer, err);
    return VC_OK;
}

static vc_status_t append(node_kv_t *view, node_page_t *page)
{
    if (page == NULL)
        return VC_ERR_NOMEM;
    vc_status_t st = node_kv_append_page(view, page);
    if (st != VC_OK)
        node_page_put(page);
    return st;
}

static vc_status_t add_spilled(const node_slow_t *s, node_kv_t *view, vc_err_t *err)
{
    mapping_t *m = NULL;
    vc_status_t st = mapping_open(s, &m, err);
    if (st != VC_OK)
        return st;
    for (uint32_t l = 0; st == VC_OK && l < s->dims.n_layer; l++)
        st = check_layer((node_slow_t *)s, m, l, err);
    for (uint32_t b = 0; st == VC_OK && b < s->n_spilled; b++) {
        /* relaxed: a reference is held here */
        atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
        node_page_t *page = node_page_wrap(&s->dims, (uint16_t *)(void *)(m->data + node_slow_offset(s, 0, b)),
                                           s->file_blocks * s->part_bytes, mapping_put, m);
        if (page == NULL)
            mapping_put(m);
        st = append(view, page);
        if (st != VC_OK)
            vc_err_set(err, st, "slow tier: out of memory");
    }
    mapping_put(m);
    return st;
}

vc_status_t node_slow_view(const node_kv_t *kv, node_kv_t *view, vc_err_t *err)
{
    vc_status_t st = node_kv_init(view, &kv->dims, NULL);
    if (st == VC_OK && kv->slow != NULL && kv->slow->n_spilled > 0)
        st = add_spilled(kv->slow, view, err);
    for (uint32_t b = view->n_pages; st == VC_OK && b * NODE_TILE < kv->n_tokens; b++) {
        st = append(view, node_page_get(kv->pages[b]));
        if (st != VC_OK)
            vc_err_set(err, st, "slow tier: out of memory");
    }
    if (st != VC_OK)
        node_kv_fini(view);
    else
        view->n_tokens = kv->n_tokens; /* the last page may be partly filled */
    return st;
}
