/* See store_target.h. */
#include "store_target.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

store_bench_t sb;
const char *const class_names[N_CLASSES] = {"full, 1,478,656 B", "compressed, 491,520 B"};
vc_err_t err;

/* ---- one open store ---- */

void make_names(target_t *t, vc_kv_shape_t shape, uint32_t compressed_part)
{
    char text[VC_SPEC_TEXT_MAX];
    *t = (target_t){.ks = {.shape = shape, .layout_version = VC_LAYOUT_VERSION}};
    memset(&t->ks.model, 0x51, sizeof(t->ks.model));
    memset(&t->ks.tokenizer, 0x52, sizeof(t->ks.tokenizer));
    snprintf(t->ks.rope, sizeof(t->ks.rope), "neox theta=100000 dims=%u", shape.head_dim);
    OK(vc_keyspace_id(&t->ks, &t->ks_id, &err));
    vc_spec_full_text(1, text);
    t->fids[FULL].fidelity = VC_FIDELITY_FULL;
    vc_spec_id(text, NULL, &t->fids[FULL].spec);
    t->fids[COMPRESSED].fidelity = VC_FIDELITY_COMPRESSED;
    vc_spec_id("kivi:bits=4", NULL, &t->fids[COMPRESSED].spec);
    t->part_bytes[FULL] = (uint32_t)vc_kv_layer_bytes(&shape);
    t->part_bytes[COMPRESSED] = compressed_part;
}

void make_model_names(target_t *t) { make_names(t, (vc_kv_shape_t){30, 3, 64, 64, VC_DTYPE_F16}, 16192); }

void make_bench_dir(const char *name, char *dir, size_t cap)
{
    snprintf(dir, cap, "%s/%s", bench_tmpdir(), name);
    if (mkdir(dir, 0700) != 0)
        bench_fail("cannot make %s", dir);
}

void open_target(target_t *t, const char *dir, uint32_t n_bufs, uint64_t capacity, uint64_t ram_bytes)
{
    OK(cs_bufpool_create(n_bufs, (size_t)vc_kvrec_full_bytes(&t->ks.shape), &t->pool, &err));
    cs_ramtier_opts_t ram = {.bytes = ram_bytes, .pool = t->pool};
    if (ram_bytes > 0)
        OK(cs_ramtier_create(&ram, &t->ram, &err));
    cs_workers_opts_t workers = {.n_workers = 1, .queue_depth = sb.depth, .io_mode = CS_IO_AUTO, .pool = t->pool};
    OK(cs_workers_start(&workers, &t->workers, &err));
    cs_store_opts_t opts;
    cs_store_opts_default(&opts);
    opts.data_dir = dir;
    opts.capacity_bytes = capacity;
    opts.workers = t->workers;
    opts.pool = t->pool;
    opts.ram = t->ram;
    OK(cs_store_open(&opts, &t->store, &err));
}

void close_target(target_t *t)
{
    cs_store_close(t->store);
    cs_workers_stop(t->workers);
    cs_ramtier_destroy(t->ram);
    cs_bufpool_destroy(t->pool);
}

/* ---- records ---- */

void chain_tokens(const target_t *t, uint32_t seed, uint32_t n_blocks, uint32_t *tokens)
{
    for (uint32_t i = 0; i < n_blocks * t->ks.shape.block_tokens; i++)
        tokens[i] = seed * 1000003u + i;
}

static void fill(uint8_t *part, uint32_t bytes, uint64_t state)
{
    for (uint32_t i = 0; i + 8 <= bytes; i += 8) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        memcpy(part + i, &state, 8);
    }
}

/* Block b of a chain, whose hash is written to hash_p. */
uint32_t make_record(const target_t *t, uint32_t class_id, const uint32_t *tokens, uint32_t b,
                     const vc_digest_t *parent, uint8_t *data, size_t cap, vc_digest_t *hash_p)
{
    uint32_t block_tokens = t->ks.shape.block_tokens;
    vc_kvrec_head_t head = {.fidelity = t->fids[class_id].fidelity,
                            .kind = class_id == FULL ? VC_KVREC_FULL : VC_KVREC_QUANTISER,
                            .shape = t->ks.shape,
                            .block_index = b,
                            .numerics_id = 1,
                            .horizon_tokens = class_id == FULL ? 0 : (b + 1) * block_tokens,
                            .spec = t->fids[class_id].spec,
                            .keyspace = t->ks_id,
                            .parent = *parent};
    vc_kvrec_writer_t w;
    size_t bytes;
    OK(vc_kvrec_write_begin(&w, data, cap, &head, tokens + b * block_tokens, &err));
    for (uint32_t l = 0; l < t->ks.shape.n_layer; l++) {
        void *part;
        OK(vc_kvrec_write_layer(&w, t->part_bytes[class_id], &part, &err));
        memset(part, 0, t->part_bytes[class_id]);
        fill(part, t->part_bytes[class_id], ((uint64_t)tokens[0] << 32 | b << 8) + l);
    }
    OK(vc_kvrec_write_end(&w, &bytes, &err));
    vc_block_hash(parent, tokens + b * block_tokens, block_tokens, hash_p);
    return (uint32_t)bytes;
}

/* ---- waiting for callbacks ---- */

void gate_init(gate_t *g)
{
    *g = (gate_t){.failed = VC_OK};
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
}

void gate_signal(void *arg, vc_status_t status)
{
    gate_t *g = arg;
    pthread_mutex_lock(&g->lock);
    g->n_done++;
    if (status != VC_OK)
        g->failed = status;
    pthread_cond_signal(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

void gate_wait(gate_t *g, uint32_t n)
{
    pthread_mutex_lock(&g->lock);
    while (g->n_done < n)
        pthread_cond_wait(&g->changed, &g->lock);
    vc_status_t failed = g->failed;
    pthread_mutex_unlock(&g->lock);
    if (failed != VC_OK)
        bench_fail("a store operation failed: %s", vc_status_name(failed));
}

void gate_fini(gate_t *g)
{
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
}

/* ---- puts ---- */

void make_load(target_t *t, load_t *load, uint32_t class_id, uint32_t seed)
{
    vc_digest_t parent;
    for (uint32_t i = 0; i < sb.n_put; i++) {
        uint32_t *tokens = load->tokens[i / BATCH];
        if (i % BATCH == 0) {
            chain_tokens(t, seed + i / BATCH, BATCH, tokens);
            parent = t->ks_id;
        }
        load->bufs[i] = cs_bufpool_at(t->pool, i);
        load->data[i] = load->bufs[i]->data;
        vc_object_key_t *key = &load->keys[i];
        key->fidelity = t->fids[class_id].fidelity;
        key->spec = t->fids[class_id].spec;
        load->bytes =
            make_record(t, class_id, tokens, i % BATCH, &parent, load->bufs[i]->data, load->bufs[i]->cap, &key->hash);
        parent = key->hash;
    }
}

/* The next batch is handed over before the one before it is committed, as with several clients; the worker keeps no
 * more than `sb.depth` writes in flight. A commit runs and one waits: each has its own sync, as many syncs as batches.
 */
double put_store(target_t *t, load_t *load, uint32_t class_id)
{
    gate_t puts[MAX_PUT / BATCH], commits;
    cs_upload_info_t info[MAX_PUT / BATCH];
    uint8_t missing[BATCH];
    uint32_t n = sb.n_put / BATCH;
    gate_init(&commits);
    double t0 = bench_now_s();
    for (uint32_t b = 0; b <= n; b++) {
        if (b < n) {
            gate_init(&puts[b]);
            OK(cs_store_begin(t->store, &t->ks, load->tokens[b], 0, BATCH, &t->fids[class_id], 1, &info[b], missing,
                              &err));
            for (uint32_t i = b * BATCH; i < (b + 1) * BATCH; i++)
                OK(cs_store_put(t->store, NULL, info[b].upload_id, &info[b].token, load->bufs[i], load->bytes,
                                gate_signal, &puts[b], &err));
        }
        if (b == 0)
            continue;
        gate_wait(&puts[b - 1], BATCH);
        gate_wait(&commits, b < 2 ? 0 : b - 2);
        OK(cs_store_commit(t->store, info[b - 1].upload_id, &info[b - 1].token, gate_signal, &commits, &err));
    }
    gate_wait(&commits, n);
    double s = bench_now_s() - t0;
    for (uint32_t b = 0; b < n; b++)
        gate_fini(&puts[b]);
    gate_fini(&commits);
    return (double)sb.n_put * load->bytes / s / 1e6;
}

void shuffle_keys(vc_object_key_t *keys, uint32_t n)
{
    static uint64_t state = 88172645463325252u;
    for (uint32_t i = n; i > 1; i--) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        uint32_t j = (uint32_t)(state % i);
        vc_object_key_t swap = keys[i - 1];
        keys[i - 1] = keys[j];
        keys[j] = swap;
    }
}
