/*
 * Do writes starve reads? Latency of whole cold records, a few in flight, alone and while another thread puts and
 * commits as fast as it can; in turn, round after round. Part of bench_store.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "store_target.h"

enum { IN_FLIGHT = 4 };

typedef struct {
    target_t t;
    load_t load; /* what is read */
    uint32_t n_reads;
    _Atomic bool stop;
    uint32_t next_seed, n_written;
    double write_s;
} mixed_t;

/* ---- writes ---- */

/* One batch in the second half of the pool's buffers. */
static void write_batch(mixed_t *m)
{
    uint32_t tokens[BATCH * 64];
    cs_upload_info_t info;
    uint8_t missing[BATCH];
    gate_t gate;
    vc_digest_t hash, parent = m->t.ks_id;
    chain_tokens(&m->t, m->next_seed++, BATCH, tokens);
    gate_init(&gate);
    OK(cs_store_begin(m->t.store, &m->t.ks, tokens, 0, BATCH, &m->t.fids[FULL], 1, &info, missing, &err));
    for (uint32_t i = 0; i < BATCH; i++) {
        cs_buf_t *buf = cs_bufpool_at(m->t.pool, sb.n_put + i);
        uint32_t bytes = make_record(&m->t, FULL, tokens, i, &parent, buf->data, buf->cap, &hash);
        OK(cs_store_put(m->t.store, NULL, info.upload_id, &info.token, buf, bytes, gate_signal, &gate, &err));
        parent = hash;
    }
    gate_wait(&gate, BATCH);
    OK(cs_store_commit(m->t.store, info.upload_id, &info.token, gate_signal, &gate, &err));
    gate_wait(&gate, BATCH + 1);
    gate_fini(&gate);
    m->n_written += BATCH;
}

static void *writer_main(void *arg)
{
    mixed_t *m = arg;
    double t0 = bench_now_s();
    while (!atomic_load_explicit(&m->stop, memory_order_relaxed)) /* only to end */
        write_batch(m);
    m->write_s += bench_now_s() - t0;
    return NULL;
}

/* ---- reads ---- */

typedef struct {
    mixed_t *m;
    cs_buf_t *buf;
    cs_pin_t pin;
    double started;
    double *ms; /* where the next latency goes */
    uint32_t left;
    uint64_t state;
    gate_t *done;
} reader_t;

static void read_next(reader_t *r);

static void read_done(void *arg, vc_status_t status)
{
    reader_t *r = arg;
    *r->ms++ = (bench_now_s() - r->started) * 1e3;
    cs_store_unpin(r->m->t.store, &r->pin);
    if (--r->left > 0 && status == VC_OK)
        read_next(r);
    else
        gate_signal(r->done, status);
}

static void read_next(reader_t *r)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    OK(cs_store_pin_key(r->m->t.store, &r->m->load.keys[(r->state >> 33) % sb.n_put], &r->pin));
    r->started = bench_now_s();
    OK(cs_store_read(r->m->t.store, NULL, &r->pin, r->buf, read_done, r));
}

static double read_round(mixed_t *m, bench_samples_t *ms, uint32_t round)
{
    reader_t readers[IN_FLIGHT];
    gate_t done;
    double *all = vc_calloc(m->n_reads * (size_t)IN_FLIGHT, sizeof(*all));
    if (!all)
        bench_fail("no memory for latencies");
    gate_init(&done);
    double t0 = bench_now_s();
    for (uint32_t i = 0; i < IN_FLIGHT; i++) {
        readers[i] = (reader_t){.m = m,
                                .buf = cs_bufpool_at(m->t.pool, sb.n_put + BATCH + i),
                                .ms = all + (size_t)i * m->n_reads,
                                .left = m->n_reads,
                                .state = round * IN_FLIGHT + i,
                                .done = &done};
        read_next(&readers[i]);
    }
    gate_wait(&done, IN_FLIGHT);
    double s = bench_now_s() - t0;
    gate_fini(&done);
    for (size_t i = 0; i < (size_t)IN_FLIGHT * m->n_reads; i++)
        bench_add(ms, all[i]);
    vc_free(all);
    return (double)IN_FLIGHT * m->n_reads * m->load.bytes / s / 1e6;
}

void measure_mixed(void)
{
    static mixed_t m; /* large */
    bench_samples_t alone = {0}, loaded = {0}, alone_rate = {0}, loaded_rate = {0};
    char dir[4200];
    pthread_t writer;
    make_bench_dir("mixed", dir, sizeof(dir));
    make_model_names(&m.t);
    m.n_reads = bench_quick() ? 10 : 100;
    m.next_seed = 100000;
    open_target(&m.t, dir, sb.n_put + BATCH + IN_FLIGHT, (uint64_t)6 << 30, 0);
    make_load(&m.t, &m.load, FULL, 1);
    (void)put_store(&m.t, &m.load, FULL);
    cs_pin_t *kept = vc_calloc(sb.n_put, sizeof(*kept)); /* the writer must not evict what is read */
    for (uint32_t i = 0; kept && i < sb.n_put; i++)
        OK(cs_store_pin_key(m.t.store, &m.load.keys[i], &kept[i]));
    for (uint32_t round = 0; round < sb.n_rounds; round++) {
        bench_add(&alone_rate, read_round(&m, &alone, round));
        atomic_store(&m.stop, false);
        if (pthread_create(&writer, NULL, writer_main, &m) != 0)
            bench_fail("cannot start a writer");
        bench_add(&loaded_rate, read_round(&m, &loaded, round));
        atomic_store(&m.stop, true);
        pthread_join(writer, NULL);
    }
    for (uint32_t i = 0; kept && i < sb.n_put; i++)
        cs_store_unpin(m.t.store, &kept[i]);
    vc_free(kept);
    bench_row("read of 1,478,656 B, 4 in flight, alone", "ms", &alone);
    bench_row("the same while another thread puts and commits", "ms", &loaded);
    bench_row("rate alone", "MB/s", &alone_rate);
    bench_row("rate while another thread puts", "MB/s", &loaded_rate);
    bench_note("puts meanwhile: %.0f MB/s durable; p99 of reads %.2f ms alone, %.2f ms under writes",
               m.n_written * (double)m.load.bytes / m.write_s / 1e6, bench_percentile(&alone, 99),
               bench_percentile(&loaded, 99));
    bench_samples_free(&alone);
    bench_samples_free(&loaded);
    bench_samples_free(&alone_rate);
    bench_samples_free(&loaded_rate);
    close_target(&m.t);
}
