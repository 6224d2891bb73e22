/*
 * Hot reads: whole records from the memory tier into the caller's buffer, by view and memcpy, against memcpy alone of
 * the same bytes over the same footprint in the same order. One thread, no network. Part of bench_store.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "store_target.h"

#define FOOTPRINT ((uint64_t)192 << 20) /* far above any cache */

typedef struct {
    target_t t;
    vc_object_key_t *keys;
    uint32_t n, bytes;
    uint8_t *plain; /* as many bytes, in huge pages as the tier's */
    uint8_t *to;
} hot_t;

static void got(void *arg, vc_status_t status, cs_view_t *view)
{
    cs_view_release(view);
    gate_signal(arg, status);
}

/* Once from disk, so that all of it is in memory. */
static void warm(hot_t *h)
{
    gate_t gate;
    for (uint32_t i = 0; i < h->n; i++) {
        cs_pin_t pin;
        cs_view_t *view;
        gate_init(&gate);
        OK(cs_store_pin_key(h->t.store, &h->keys[i], &pin));
        OK(cs_store_get(h->t.store, NULL, &pin, &view, got, &gate));
        if (view)
            got(&gate, VC_OK, view);
        gate_wait(&gate, 1);
        gate_fini(&gate);
        cs_store_unpin(h->t.store, &pin);
    }
}

static double rate(const hot_t *h, double t0) { return h->bytes / (bench_now_s() - t0) / 1e6; }

static double read_hot(hot_t *h, uint32_t i)
{
    cs_pin_t pin;
    cs_view_t *view;
    double t0 = bench_now_s();
    OK(cs_store_pin_key(h->t.store, &h->keys[i], &pin));
    OK(cs_store_get(h->t.store, NULL, &pin, &view, got, NULL));
    if (!view)
        bench_fail("record %u left the memory tier", i);
    memcpy(h->to, view->data, view->bytes);
    cs_view_release(view);
    cs_store_unpin(h->t.store, &pin);
    return rate(h, t0);
}

/* The order of the keys is a shuffle; this one is as good as another. */
static double copy_plain(hot_t *h, uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    const uint8_t *from = h->plain + (*state >> 33) % h->n * (uint64_t)h->bytes;
    double t0 = bench_now_s();
    memcpy(h->to, from, h->bytes);
    return rate(h, t0);
}

static uint8_t *map_huge(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        bench_fail("no memory for %llu bytes", (unsigned long long)bytes);
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 1, bytes);
    return p;
}

static void fill_hot(hot_t *h, uint32_t class_id)
{
    static load_t load; /* large */
    make_load(&h->t, &load, class_id, 1 + class_id * 1000);
    h->bytes = load.bytes;
    uint32_t n = (uint32_t)VC_MAX(FOOTPRINT / (bench_quick() ? 8 : 1) / load.bytes, 1);
    h->keys = vc_calloc(n + sb.n_put, sizeof(*h->keys));
    if (!h->keys)
        bench_fail("no memory for %u keys", n);
    for (h->n = 0; h->n < n; h->n += sb.n_put) {
        make_load(&h->t, &load, class_id, 1 + class_id * 1000 + h->n / BATCH);
        (void)put_store(&h->t, &load, class_id);
        memcpy(h->keys + h->n, load.keys, sb.n_put * sizeof(vc_object_key_t));
    }
    h->n = n;
}

static double measure_class(uint32_t class_id)
{
    hot_t h = {0};
    bench_samples_t ours = {0}, plain = {0};
    uint64_t state = 7;
    char dir[4200], name[64];
    snprintf(name, sizeof(name), "hot%u", class_id);
    make_bench_dir(name, dir, sizeof(dir));
    make_model_names(&h.t);
    open_target(&h.t, dir, VC_MAX(sb.n_put, sb.depth), (uint64_t)4 << 30, FOOTPRINT * 5 / 4);
    fill_hot(&h, class_id);
    h.plain = map_huge((uint64_t)h.n * h.bytes);
    h.to = map_huge(h.bytes);
    warm(&h);
    for (uint32_t round = 0; round < sb.n_rounds; round++) {
        shuffle_keys(h.keys, h.n);
        for (uint32_t i = 0; i < h.n; i++) { /* in turn record by record: whatever else runs hits both alike */
            if ((i + round) % 2)
                bench_add(&ours, read_hot(&h, i));
            bench_add(&plain, copy_plain(&h, &state));
            if ((i + round) % 2 == 0)
                bench_add(&ours, read_hot(&h, i));
        }
    }
    double ratio = bench_median(&ours) / bench_median(&plain);
    snprintf(name, sizeof(name), "hot read, %s", class_names[class_id]);
    bench_row(name, "MB/s", &ours);
    bench_row("memcpy of as many bytes", "MB/s", &plain);
    bench_samples_free(&ours);
    bench_samples_free(&plain);
    munmap(h.plain, (uint64_t)h.n * h.bytes);
    munmap(h.to, h.bytes);
    vc_free(h.keys);
    close_target(&h.t);
    return ratio;
}

void measure_hot(void)
{
    double full = measure_class(FULL), compressed = measure_class(COMPRESSED);
    bench_figure("store_read_hot_vs_memcpy", VC_MIN(full, compressed));
}
