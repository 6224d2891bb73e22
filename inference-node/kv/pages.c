/* Pages, bodies and the view of one sequence. */
#include "kv/pages.h"

#include <sodium.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/huge.h"
#include "kv/slow.h"
#include "vc/mem.h"

/* Pages made together lie in one block of memory, on huge pages that one of them alone would not fill. It goes when the
 * last of them does. */
typedef struct page_run {
    _Atomic uint32_t refs;
    uint8_t *data;
} page_run_t;

#if defined(__SANITIZE_ADDRESS__)
enum { RUN_PAGES = 1 }; /* a block for every page: reads beyond it are seen */
#else
enum { RUN_PAGES = 4 }; /* more would be held for long by the last one of them */
#endif

struct node_page {
    _Atomic uint32_t refs;
    node_kv_dims_t dims;
    uint16_t *data;             /* [layer][kv_head]{K [head_dim][NODE_TILE], V [NODE_TILE][head_dim]} */
    page_run_t *run;            /* whose memory it is part of, or NULL */
    size_t layer_elems;         /* from one layer to the next */
    void (*release)(void *arg); /* of a wrapped page, else NULL */
    void *arg;
};

static size_t head_elems(const node_kv_dims_t *d) { return (size_t)NODE_TILE * d->head_dim; }
static size_t layer_elems(const node_kv_dims_t *d) { return head_elems(d) * 2 * d->n_kv_head; }

static bool page_bytes(const node_kv_dims_t *dims, size_t *bytes_p)
{
    size_t n;
    return vc_size_mul(head_elems(dims) * 2 * sizeof(uint16_t), dims->n_kv_head, &n) &&
           vc_size_mul(n, dims->n_layer, bytes_p);
}

/* A page over data, which the run or the page owns. */
static node_page_t *page_over(const node_kv_dims_t *dims, void *data, page_run_t *run)
{
    node_page_t *page = data != NULL ? vc_calloc(1, sizeof *page) : NULL;
    if (page == NULL)
        return NULL;
    page->data = data;
    page->run = run;
    page->dims = *dims;
    page->layer_elems = layer_elems(dims);
    atomic_init(&page->refs, 1);
    return page;
}

static node_page_t *page_alloc(const node_kv_dims_t *dims, size_t *bytes_p)
{
    if (!page_bytes(dims, bytes_p))
        return NULL;
    void *data = vc_alloc_aligned(4096, *bytes_p);
    node_page_t *page = page_over(dims, data, NULL);
    if (page == NULL)
        vc_free(data);
    return page;
}

static void run_put(page_run_t *run)
{
    /* acq_rel: the last page frees after everybody's accesses */
    if (atomic_fetch_sub_explicit(&run->refs, 1, memory_order_acq_rel) != 1)
        return;
    vc_free(run->data);
    vc_free(run);
}

/* n zeroed pages in one block. */
static vc_status_t run_create(const node_kv_dims_t *dims, uint32_t n, node_page_t **pages)
{
    size_t bytes, all;
    if (!page_bytes(dims, &bytes) || !vc_size_mul(bytes, n, &all))
        return VC_ERR_NOMEM;
    page_run_t *run = vc_calloc(1, sizeof *run);
    if (run == NULL)
        return VC_ERR_NOMEM;
    run->data = node_alloc_huge(all);
    atomic_init(&run->refs, 1); /* ours, until all pages are there */
    uint32_t made = 0;
    for (; run->data != NULL && made < n; made++) {
        pages[made] = page_over(dims, run->data + made * bytes, run);
        if (pages[made] == NULL)
            break;
        atomic_fetch_add_explicit(&run->refs, 1, memory_order_relaxed);
    }
    if (made == n)
        memset(run->data, 0, all);
    else
        while (made > 0)
            node_page_put(pages[--made]);
    vc_status_t st = made == n ? VC_OK : VC_ERR_NOMEM;
    run_put(run);
    return st;
}

node_page_t *node_page_wrap(const node_kv_dims_t *dims, uint16_t *data, size_t layer_bytes, void (*release)(void *arg),
                            void *arg)
{
    node_page_t *page = vc_calloc(1, sizeof *page);
    if (page == NULL)
        return NULL;
    *page = (node_page_t){
        .dims = *dims, .data = data, .layer_elems = layer_bytes / sizeof *data, .release = release, .arg = arg};
    atomic_init(&page->refs, 1);
    return page;
}

node_page_t *node_page_create(const node_kv_dims_t *dims)
{
    size_t bytes;
    node_page_t *page = page_alloc(dims, &bytes);
    if (page != NULL)
        memset(page->data, 0, bytes);
    return page;
}

node_page_t *node_page_get(node_page_t *page)
{
    /* relaxed: whoever hands out a reference already holds one */
    atomic_fetch_add_explicit(&page->refs, 1, memory_order_relaxed);
    return page;
}

void node_page_put(node_page_t *page)
{
    /* acq_rel: the last holder frees after everybody's accesses */
    if (page == NULL || atomic_fetch_sub_explicit(&page->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (page->release != NULL)
        page->release(page->arg);
    else if (page->run != NULL)
        run_put(page->run);
    else
        vc_free(page->data);
    vc_free(page);
}

/* Acquire: when the others are gone, their reads are over before we write. */
bool node_page_is_shared(const node_page_t *page)
{
    return page->release != NULL || atomic_load_explicit(&((node_page_t *)page)->refs, memory_order_acquire) > 1;
}

static uint16_t *k_at(const node_page_t *page, uint32_t layer, uint32_t head)
{
    return page->data + layer * page->layer_elems + (size_t)head * 2 * head_elems(&page->dims);
}

static uint16_t *v_at(const node_page_t *page, uint32_t layer, uint32_t head)
{
    return k_at(page, layer, head) + head_elems(&page->dims);
}

uint16_t *node_page_k(node_page_t *page, uint32_t layer, uint32_t head) { return k_at(page, layer, head); }
uint16_t *node_page_v(node_page_t *page, uint32_t layer, uint32_t head) { return v_at(page, layer, head); }

static void zero_rows(node_page_t *page, uint32_t first)
{
    uint32_t d = page->dims.head_dim;
    for (uint32_t l = 0; l < page->dims.n_layer; l++)
        for (uint32_t h = 0; h < page->dims.n_kv_head; h++) {
            uint16_t *k = k_at(page, l, h);
            for (uint32_t i = 0; i < d; i++)
                memset(k + (size_t)i * NODE_TILE + first, 0, (NODE_TILE - first) * sizeof *k);
            memset(v_at(page, l, h) + (size_t)first * d, 0, (size_t)(NODE_TILE - first) * d * sizeof *k);
        }
}

node_page_t *node_page_copy(const node_page_t *page, uint32_t n_rows)
{
    size_t bytes;
    node_page_t *copy = page_alloc(&page->dims, &bytes);
    if (copy == NULL)
        return NULL;
    for (uint32_t l = 0; l < page->dims.n_layer; l++)
        memcpy(k_at(copy, l, 0), k_at(page, l, 0), copy->layer_elems * sizeof *copy->data);
    if (n_rows < NODE_TILE)
        zero_rows(copy, n_rows);
    return copy;
}

node_page_t *node_page_own(node_page_t *page)
{
    return page->release != NULL ? node_page_copy(page, NODE_TILE) : node_page_get(page);
}

/* dst[c][r] = src[r][c]; both sides stay within a few cache lines per 8 x 8 block. */
static void transpose(const uint16_t *src, uint32_t rows, uint32_t cols, uint16_t *dst)
{
    for (uint32_t r = 0; r < rows; r += 8)
        for (uint32_t c = 0; c < cols; c += 8)
            for (uint32_t i = 0; i < 8; i++)
                for (uint32_t j = 0; j < 8; j++)
                    dst[(size_t)(c + i) * rows + r + j] = src[(size_t)(r + j) * cols + c + i];
}

void node_page_load_layer(node_page_t *page, uint32_t layer, const uint16_t *part)
{
    size_t n = head_elems(&page->dims);
    uint32_t heads = page->dims.n_kv_head;
    for (uint32_t h = 0; h < heads; h++) {
        transpose(part + h * n, NODE_TILE, page->dims.head_dim, k_at(page, layer, h));
        memcpy(v_at(page, layer, h), part + (heads + h) * n, n * sizeof *part);
    }
}

void node_page_store_layer(const node_page_t *page, uint32_t layer, uint16_t *part)
{
    size_t n = head_elems(&page->dims);
    uint32_t heads = page->dims.n_kv_head;
    for (uint32_t h = 0; h < heads; h++) {
        transpose(k_at(page, layer, h), page->dims.head_dim, NODE_TILE, part + h * n);
        memcpy(part + (heads + h) * n, v_at(page, layer, h), n * sizeof *part);
    }
}

void node_page_load_row(node_page_t *page, uint32_t row, const uint16_t *rows)
{
    uint32_t d = page->dims.head_dim, heads = page->dims.n_kv_head;
    for (uint32_t l = 0; l < page->dims.n_layer; l++, rows += 2 * (size_t)heads * d)
        for (uint32_t h = 0; h < heads; h++) {
            uint16_t *k = k_at(page, l, h);
            for (uint32_t i = 0; i < d; i++)
                k[(size_t)i * NODE_TILE + row] = rows[(size_t)h * d + i];
            memcpy(v_at(page, l, h) + (size_t)row * d, rows + (size_t)(heads + h) * d, d * sizeof *rows);
        }
}

void node_page_store_row(const node_page_t *page, uint32_t row, uint16_t *rows)
{
    uint32_t d = page->dims.head_dim, heads = page->dims.n_kv_head;
    for (uint32_t l = 0; l < page->dims.n_layer; l++, rows += 2 * (size_t)heads * d)
        for (uint32_t h = 0; h < heads; h++) {
            const uint16_t *k = k_at(page, l, h);
            for (uint32_t i = 0; i < d; i++)
                rows[(size_t)h * d + i] = k[(size_t)i * NODE_TILE + row];
            memcpy(rows + (size_t)(heads + h) * d, v_at(page, l, h) + (size_t)row * d, d * sizeof *rows);
        }
}

node_body_t *node_body_get(node_body_t *body)
{
    atomic_fetch_add_explicit(&body->refs, 1, memory_order_relaxed);
    return body;
}

void node_body_put(node_body_t *body)
{
    if (body != NULL && atomic_fetch_sub_explicit(&body->refs, 1, memory_order_acq_rel) == 1)
        body->destroy(body);
}

vc_status_t node_kv_init(node_kv_t *kv, const node_kv_dims_t *dims, node_body_t *body)
{
    if (body != NULL && (body->n_tokens % NODE_TILE != 0 || memcmp(&body->dims, dims, sizeof *dims) != 0))
        return VC_ERR_INVALID;
    *kv = (node_kv_t){.dims = *dims};
    if (body != NULL) {
        kv->body = node_body_get(body);
        kv->n_tokens = body->n_tokens;
        kv->first_block = body->n_tokens / NODE_TILE;
    }
    return VC_OK;
}

void node_kv_fini(node_kv_t *kv)
{
    node_slow_destroy(kv->slow);
    for (uint32_t i = 0; i < kv->n_pages; i++)
        node_page_put(kv->pages[i]);
    vc_free(kv->pages);
    node_body_put(kv->body);
    *kv = (node_kv_t){0};
}

/* Index of the page that holds position t. */
static uint32_t page_index(const node_kv_t *kv, uint32_t t) { return t / NODE_TILE - kv->first_block; }

static vc_status_t room_for_pages(node_kv_t *kv, uint32_t n)
{
    if (n <= kv->cap_pages)
        return VC_OK;
    uint32_t cap = VC_MAX(VC_MAX(n, 8u), kv->cap_pages + kv->cap_pages / 2);
    node_page_t **pages = vc_realloc(kv->pages, cap, sizeof *pages);
    if (pages == NULL)
        return VC_ERR_NOMEM;
    kv->pages = pages;
    kv->cap_pages = cap;
    return VC_OK;
}

/* Replaces a shared page by a copy of its first n_rows rows. */
static vc_status_t unshare(node_kv_t *kv, uint32_t index, uint32_t n_rows)
{
    if (!node_page_is_shared(kv->pages[index]))
        return VC_OK;
    node_page_t *copy = node_page_copy(kv->pages[index], n_rows);
    if (copy == NULL)
        return VC_ERR_NOMEM;
    node_page_put(kv->pages[index]);
    kv->pages[index] = copy;
    return VC_OK;
}

vc_status_t node_kv_reserve(node_kv_t *kv, uint32_t n)
{
    if (n == 0)
        return VC_OK;
    if (n > UINT32_MAX - NODE_TILE - kv->n_tokens)
        return VC_ERR_RANGE;
    uint32_t first = page_index(kv, kv->n_tokens), end = page_index(kv, kv->n_tokens + n - 1) + 1;
    vc_status_t st = room_for_pages(kv, end);
    for (uint32_t i = first; st == VC_OK && i < kv->n_pages; i++)
        st = unshare(kv, i, i == first ? kv->n_tokens % NODE_TILE : 0);
    while (st == VC_OK && kv->n_pages < end) {
        /* where pages go to the slow tier one by one, each must give back its own memory */
        uint32_t made = kv->slow != NULL ? 1 : VC_MIN(end - kv->n_pages, (uint32_t)RUN_PAGES);
        if (made > 1)
            st = run_create(&kv->dims, made, kv->pages + kv->n_pages);
        else if ((kv->pages[kv->n_pages] = node_page_create(&kv->dims)) == NULL)
            st = VC_ERR_NOMEM;
        if (st == VC_OK)
            kv->n_pages += made;
    }
    return st;
}

vc_status_t node_kv_truncate(node_kv_t *kv, uint32_t n_tokens)
{
    if (n_tokens > kv->n_tokens || n_tokens < kv->first_block * NODE_TILE)
        return VC_ERR_RANGE;
    uint32_t rows = n_tokens % NODE_TILE, keep = page_index(kv, n_tokens) + (rows != 0);
    if (kv->slow != NULL && n_tokens < kv->n_tokens) {
        vc_status_t st = node_slow_truncate(kv, n_tokens);
        if (st != VC_OK)
            return st;
    }
    if (n_tokens < kv->n_tokens && rows != 0) {
        bool shared = node_page_is_shared(kv->pages[keep - 1]);
        vc_status_t st = unshare(kv, keep - 1, rows);
        if (st != VC_OK)
            return st;
        if (!shared)
            zero_rows(kv->pages[keep - 1], rows);
    }
    while (kv->n_pages > keep)
        node_page_put(kv->pages[--kv->n_pages]);
    kv->n_tokens = n_tokens;
    return VC_OK;
}

vc_status_t node_kv_append_page(node_kv_t *kv, node_page_t *page)
{
    if (kv->n_tokens % NODE_TILE != 0 || memcmp(&page->dims, &kv->dims, sizeof kv->dims) != 0)
        return VC_ERR_INVALID;
    if (kv->n_tokens > UINT32_MAX - 2 * NODE_TILE)
        return VC_ERR_RANGE;
    uint32_t index = page_index(kv, kv->n_tokens);
    vc_status_t st = room_for_pages(kv, index + 1);
    if (st != VC_OK)
        return st;
    while (kv->n_pages > index) /* reserved but never written */
        node_page_put(kv->pages[--kv->n_pages]);
    kv->pages[kv->n_pages++] = page;
    kv->n_tokens += NODE_TILE;
    return VC_OK;
}

node_page_t *node_kv_page_at(const node_kv_t *kv, uint32_t block)
{
    if (block < kv->first_block || block - kv->first_block >= kv->n_pages)
        return NULL;
    return kv->pages[block - kv->first_block];
}

/* The rows of one page as a record part with n_rows tokens instead of NODE_TILE. */
static void hash_page(crypto_generichash_state *state, const node_page_t *page, uint32_t n_rows)
{
    uint16_t row[1024];
    uint32_t d = page->dims.head_dim;
    for (uint32_t l = 0; l < page->dims.n_layer; l++)
        for (uint32_t kv = 0; kv < 2; kv++)
            for (uint32_t h = 0; h < page->dims.n_kv_head; h++)
                for (uint32_t t = 0; t < n_rows; t++) {
                    const uint16_t *k = k_at(page, l, h) + t;
                    for (uint32_t i = 0; kv == 0 && i < d; i++)
                        row[i] = k[(size_t)i * NODE_TILE];
                    const uint16_t *src = kv == 0 ? row : v_at(page, l, h) + (size_t)t * d;
                    crypto_generichash_update(state, (const unsigned char *)src, d * sizeof *src);
                }
}

void node_kv_digest(const node_kv_t *kv, uint32_t n_tokens, vc_digest_t *digest_p)
{
    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, sizeof digest_p->b);
    for (uint32_t i = 0; i < kv->n_pages && n_tokens > i * NODE_TILE; i++)
        hash_page(&state, kv->pages[i], VC_MIN(NODE_TILE, n_tokens - i * NODE_TILE));
    crypto_generichash_final(&state, digest_p->b, sizeof digest_p->b);
}
