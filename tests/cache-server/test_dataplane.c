/* The data plane between a server and a client of the library: records go both ways whole, and every way a transfer can
 * end gives buffers and pins back. Misbehaving peers are in test_dataplane_abuse.c. */
#include <stdatomic.h>
#include <stdio.h>

#include "dataplane_fixture.h"
#include "support/outer_address.h"

static void fetch_all(const vc_kv_shape_t *shape, uint32_t n_blocks)
{
    world_t w;
    catcher_t c;
    vc_err_t err = {0};
    vc_data_stats_t stats;
    world_open(&w, shape, n_blocks);
    world_start_server(&w);
    world_fill(&w);
    vc_data_lease_t lease = world_lease(&w);
    vc_data_t *data = world_connect(&w);
    catcher_init(&c, &w);
    vc_status_t st = vc_data_fetch(data, &lease, 0, 0, n_blocks, catch_record, &c, 0, &stats, &err);
    cr_assert(st == VC_OK, "%s", err.msg);
    cr_assert(c.n_good == n_blocks && c.n_bad == 0);
    cr_assert(stats.records == n_blocks && stats.bytes == n_blocks * w.record_bytes && stats.wire_corrupt == 0);
    if (n_blocks > 2) { /* a part of the range, over the same connection */
        st = vc_data_fetch(data, &lease, 0, 1, n_blocks - 2, catch_record, &c, 0, &stats, &err);
        cr_assert(st == VC_OK, "%s", err.msg);
        cr_assert(c.n_good == 2 * n_blocks - 2);
    }
    cs_dataplane_stats_t s = world_stats(&w);
    cr_assert(s.peers_total == 1 && s.bad_frames == 0 && s.unauthenticated == 0);
    cr_assert(s.records_sent == c.n_good && s.bytes_sent == c.n_good * w.record_bytes);
    vc_data_close(data);
    WORLD_WAIT_EXACTLY(&w, peers_open, 0);
    vc_free(c.want);
    world_close(&w);
}

Test(dataplane, fetches_real_records_by_rendezvous) { fetch_all(&world_real_shape, 20); }
Test(dataplane, fetches_many_small_records) { fetch_all(&world_small_shape, 300); }
Test(dataplane, fetches_a_single_record) { fetch_all(&world_small_shape, 1); }

typedef struct layer_catcher {
    const world_t *w;
    uint8_t *got;       /* n_blocks whole records, put together */
    uint32_t *n_slices; /* of each block */
    uint32_t last_slice;
    vc_data_layout_t layout;
} layer_catcher_t;

static vc_status_t catch_slice(void *arg, uint32_t slice, uint32_t block, const uint8_t *data)
{
    layer_catcher_t *c = arg;
    size_t at = slice == 0 ? 0 : c->layout.head_bytes + (size_t)(slice - 1) * c->layout.part_bytes;
    cr_assert(slice >= c->last_slice, "slice %u after %u", slice, c->last_slice);
    c->last_slice = slice;
    c->n_slices[block]++;
    memcpy(c->got + block * c->w->record_bytes + at, data, slice == 0 ? c->layout.head_bytes : c->layout.part_bytes);
    return VC_OK;
}

static void fetch_layers(const vc_kv_shape_t *shape, uint32_t n_blocks, bool shm)
{
    world_t w;
    vc_err_t err = {0};
    vc_data_stats_t stats;
    vc_data_t *data = NULL;
    world_open(&w, shape, n_blocks);
    world_start_server(&w);
    world_fill(&w);
    vc_data_lease_t lease = world_lease(&w);
    layer_catcher_t c = {.w = &w, .layout = {vc_kvrec_header_bytes(shape), 0, shape->n_layer}};
    c.layout.part_bytes = (uint32_t)vc_align_up((size_t)vc_kv_layer_bytes(shape), 4096);
    c.got = vc_alloc(n_blocks * w.record_bytes);
    c.n_slices = vc_calloc(n_blocks, sizeof(*c.n_slices));
    const char *address = shm ? cs_dataplane_shm_address(w.dp) : cs_dataplane_address(w.dp);
    cr_assert(vc_data_connect(address, NULL, &data, &err) == VC_OK, "%s", err.msg);
    vc_status_t st = vc_data_fetch_layers(data, &lease, 0, 0, n_blocks, &c.layout, catch_slice, &c, 0, &stats, &err);
    cr_assert(st == VC_OK, "%s", err.msg);
    uint8_t *want = vc_alloc_aligned(4096, w.record_bytes);
    for (uint32_t b = 0; b < n_blocks; b++) {
        cr_assert(c.n_slices[b] == shape->n_layer + 1);
        cr_assert(world_record(&w, b, want, w.record_bytes) == w.record_bytes);
        cr_assert(memcmp(want, c.got + b * w.record_bytes, w.record_bytes) == 0, "block %u differs", b);
    }
    cr_assert(stats.records == n_blocks && stats.bytes == n_blocks * w.record_bytes);
    cr_assert(world_stats(&w).pieces_sent >= shape->n_layer + 1 && world_stats(&w).bad_frames == 0);
    c.last_slice = 0; /* a part of the range, and a layout that the records have not got: they are absent */
    cr_assert(vc_data_fetch_layers(data, &lease, 0, 1, n_blocks - 1, &c.layout, catch_slice, &c, 0, NULL, &err) ==
              VC_OK);
    cr_assert(c.n_slices[0] == shape->n_layer + 1 && c.n_slices[1] == 2 * (shape->n_layer + 1));
    c.layout.part_bytes += 4096;
    cr_assert(vc_data_fetch_layers(data, &lease, 0, 0, n_blocks, &c.layout, catch_slice, &c, 0, &stats, &err) == VC_OK);
    cr_assert(stats.records == 0 && stats.bytes == 0);
    vc_data_close(data);
    vc_free(c.got);
    vc_free(c.n_slices);
    vc_free(want);
    WORLD_WAIT_EXACTLY(&w, peers_open, 0);
    world_close(&w);
}

Test(dataplane, layer_major_bytes_equal_block_major_bytes) { fetch_layers(&world_real_shape, 40, false); }
Test(dataplane, layer_major_bytes_over_shared_memory) { fetch_layers(&world_real_shape, 40, true); }
Test(dataplane, layer_major_of_small_records) { fetch_layers(&world_small_shape, 100, false); }

Test(dataplane, a_layout_larger_than_a_buffer_is_refused_and_the_lease_is_judged_as_ever)
{
    world_t w;
    vc_err_t err = {0};
    world_open(&w, &world_small_shape, 4);
    world_start_server(&w);
    world_fill(&w);
    vc_data_lease_t lease = world_lease(&w), wrong = lease;
    vc_data_t *data = world_connect(&w);
    layer_catcher_t c = {.w = &w, .layout = {4096, 1u << 20, 1}};
    cr_assert(vc_data_fetch_layers(data, &lease, 0, 0, 4, &c.layout, catch_slice, &c, 0, NULL, &err) == VC_ERR_RANGE);
    c.layout = (vc_data_layout_t){4096, 4096, 1};
    wrong.boot_id ^= 1;
    cr_assert(vc_data_fetch_layers(data, &wrong, 0, 0, 4, &c.layout, catch_slice, &c, 0, NULL, &err) == VC_ERR_STALE);
    wrong = lease;
    wrong.token[0] ^= 1;
    cr_assert(vc_data_fetch_layers(data, &wrong, 0, 0, 4, &c.layout, catch_slice, &c, 0, NULL, &err) == VC_ERR_PERM);
    cr_assert(world_stats(&w).unauthenticated == 1 && world_stats(&w).pieces_sent == 0);
    vc_data_close(data);
    WORLD_WAIT_EXACTLY(&w, peers_open, 0);
    world_close(&w);
}

static void put_all(const vc_kv_shape_t *shape, uint32_t n_blocks)
{
    world_t w;
    catcher_t c;
    vc_err_t err = {0};
    vc_data_stats_t stats;
    world_open(&w, shape, n_blocks);
    world_start_server(&w);
    vc_data_t *data = world_connect(&w);
    cs_upload_info_t up = world_begin(&w);
    feeder_t f = {&w, 0, n_blocks};
    vc_status_t st = vc_data_put(data, up.upload_id, up.token.b, feed_record, &f, 0, &stats, &err);
    cr_assert(st == VC_OK, "%s", err.msg);
    cr_assert(stats.records == n_blocks && stats.bytes == n_blocks * w.record_bytes);
    cr_assert(world_commit(&w, &up) == VC_OK);
    vc_data_lease_t lease = world_lease(&w);
    catcher_init(&c, &w);
    st = vc_data_fetch(data, &lease, 0, 0, n_blocks, catch_record, &c, 0, NULL, &err);
    cr_assert(st == VC_OK, "%s", err.msg);
    cr_assert(c.n_good == n_blocks);
    cr_assert(world_stats(&w).puts == n_blocks);
    vc_data_close(data);
    vc_free(c.want);
    world_close(&w);
}

Test(dataplane, puts_real_records_and_reads_them_back) { put_all(&world_real_shape, 20); }
Test(dataplane, puts_small_records_and_reads_them_back) { put_all(&world_small_shape, 100); }

Test(dataplane, a_wrong_token_gets_no_bytes_and_the_next_call_connects_again)
{
    world_t w;
    catcher_t c;
    vc_err_t err = {0};
    world_open(&w, &world_small_shape, 4);
    world_start_server(&w);
    world_fill(&w);
    vc_data_lease_t lease = world_lease(&w), wrong = lease;
    wrong.token[15] ^= 1;
    vc_data_t *data = world_connect(&w);
    catcher_init(&c, &w);
    cr_assert(vc_data_fetch(data, &wrong, 0, 0, 4, catch_record, &c, 0, NULL, &err) == VC_ERR_PERM);
    cr_assert(strstr(err.msg, "token is wrong") != NULL, "%s", err.msg);
    cr_assert(c.n_good + c.n_bad == 0);
    cr_assert(world_stats(&w).unauthenticated == 1 && world_stats(&w).records_sent == 0);
    cr_assert(vc_data_fetch(data, &lease, 0, 0, 4, catch_record, &c, 0, NULL, &err) == VC_OK, "%s", err.msg);
    cr_assert(c.n_good == 4);
    vc_data_close(data);
    vc_free(c.want);
    world_close(&w);
}

Test(dataplane, a_put_with_a_wrong_token_is_refused_by_name)
{
    world_t w;
    vc_err_t err = {0};
    world_open(&w, &world_small_shape, 4);
    world_start_server(&w);
    vc_data_t *data = world_connect(&w);
    cs_upload_info_t up = world_begin(&w);
    cs_token_t wrong = up.token;
    wrong.b[0] ^= 0x80;
    feeder_t f = {&w, 0, 4};
    cr_assert(vc_data_put(data, up.upload_id, wrong.b, feed_record, &f, 0, NULL, &err) == VC_ERR_PERM);
    cr_assert(strstr(err.msg, "token is wrong") != NULL, "%s", err.msg);
    f = (feeder_t){&w, 0, 4};
    cr_assert(vc_data_put(data, up.upload_id, up.token.b, feed_record, &f, 0, NULL, &err) == VC_OK, "%s", err.msg);
    cr_assert(world_commit(&w, &up) == VC_OK);
    vc_data_close(data);
    world_close(&w);
}

Test(dataplane, stale_leases_and_blocks_beyond_the_lease_are_answered)
{
    world_t w;
    catcher_t c;
    vc_err_t err = {0};
    world_open(&w, &world_small_shape, 4);
    world_start_server(&w);
    world_fill(&w);
    vc_data_lease_t lease = world_lease(&w), old = lease;
    old.boot_id ^= 1;
    vc_data_t *data = world_connect(&w);
    catcher_init(&c, &w);
    cr_assert(vc_data_fetch(data, &old, 0, 0, 4, catch_record, &c, 0, NULL, &err) == VC_ERR_STALE);
    cr_assert(world_stats(&w).stale == 1);
    cr_assert(vc_data_fetch(data, &lease, 0, 2, 4, catch_record, &c, 0, NULL, &err) == VC_ERR_RANGE);
    cr_assert(vc_data_fetch(data, &lease, 0, 0, 4, catch_record, &c, 0, NULL, &err) == VC_OK, "%s", err.msg);
    cs_token_t token;
    memcpy(token.b, lease.token, sizeof(token.b));
    cr_assert(cs_store_lease_release(w.store, lease.boot_id, lease.lease_id, &token) == VC_OK);
    cr_assert(vc_data_fetch(data, &lease, 0, 0, 4, catch_record, &c, 0, NULL, &err) == VC_ERR_STALE);
    cr_assert(world_stats(&w).peers_total == 1, "an answer does not cost the connection");
    vc_data_close(data);
    vc_free(c.want);
    world_close(&w);
}

Test(dataplane, a_receiver_may_end_a_fetch_and_use_the_connection_again)
{
    world_t w;
    catcher_t c;
    vc_err_t err = {0};
    world_open(&w, &world_real_shape, 16);
    world_start_server(&w);
    world_fill(&w);
    vc_data_lease_t lease = world_lease(&w);
    vc_data_t *data = world_connect(&w);
    catcher_init(&c, &w);
    c.stop_after = 3;
    cr_assert(vc_data_fetch(data, &lease, 0, 0, 16, catch_record, &c, 0, NULL, &err) == VC_ERR_CANCELLED);
    cr_assert(c.n_good == 3);
    c.stop_after = c.n_good = 0;
    cr_assert(vc_data_fetch(data, &lease, 0, 0, 16, catch_record, &c, 0, NULL, &err) == VC_OK, "%s", err.msg);
    cr_assert(c.n_good == 16);
    cr_assert(world_stats(&w).peers_total == 1);
    vc_data_close(data);
    vc_free(c.want);
    world_close(&w);
}

typedef struct flip {
    _Atomic int n_seen;
    int hit;
    size_t offset;
} flip_t;

static void flip_byte(void *arg, uint8_t *record, uint32_t bytes)
{
    flip_t *f = arg;
    if (atomic_fetch_add(&f->n_seen, 1) == f->hit)
        record[f->offset % bytes] ^= 0x10;
}

Test(dataplane, a_byte_flipped_on_the_wire_is_found_counted_and_not_used)
{
    static const size_t offsets[] = {0, 100, 4095, 5000, 1000000, 1478655}; /* header, layer parts, last byte */
    world_t w;
    vc_err_t err = {0};
    flip_t flip = {0};
    world_open(&w, &world_real_shape, 4);
    w.opts.fault = flip_byte;
    w.opts.fault_arg = &flip;
    world_start_server(&w);
    world_fill(&w);
    vc_data_lease_t lease = world_lease(&w);
    vc_data_t *data = world_connect(&w);
    for (uint32_t i = 0; i < VC_ARRAY_LEN(offsets); i++) {
        catcher_t c;
        vc_data_stats_t stats;
        catcher_init(&c, &w);
        flip.n_seen = 0;
        flip.hit = 2;
        flip.offset = offsets[i];
        vc_status_t st = vc_data_fetch(data, &lease, 0, 0, 4, catch_record, &c, 0, &stats, &err);
        cr_assert(st == VC_OK, "%s", err.msg);
        cr_assert(c.n_good == 3 && c.n_bad == 1 && c.last_bad == VC_ERR_CORRUPT, "offset %zu", offsets[i]);
        cr_assert(stats.wire_corrupt == 1);
        WORLD_WAIT_EXACTLY(&w, wire_corrupt, i + 1);
        vc_free(c.want);
    }
    cs_store_stats_t s;
    cs_store_get_stats(w.store, &s);
    cr_assert(s.corrupt_wire == VC_ARRAY_LEN(offsets) && s.corrupt_disk == 0);
    catcher_t c; /* the record on disk is whole, so it is still served */
    catcher_init(&c, &w);
    cr_assert(vc_data_fetch(data, &lease, 0, 0, 4, catch_record, &c, 0, NULL, &err) == VC_OK, "%s", err.msg);
    cr_assert(c.n_good == 4);
    vc_free(c.want);
    vc_data_close(data);
    world_close(&w);
}

static int feed_damaged(void *arg, void *buf, size_t cap, size_t *len_p)
{
    int rc = feed_record(arg, buf, cap, len_p);
    if (*len_p > 0)
        ((uint8_t *)buf)[*len_p / 2] ^= 1;
    return rc;
}

Test(dataplane, a_damaged_put_is_refused_and_counted)
{
    world_t w;
    vc_err_t err = {0};
    world_open(&w, &world_real_shape, 2);
    world_start_server(&w);
    vc_data_t *data = world_connect(&w);
    cs_upload_info_t up = world_begin(&w);
    feeder_t f = {&w, 0, 2};
    cr_assert(vc_data_put(data, up.upload_id, up.token.b, feed_damaged, &f, 0, NULL, &err) == VC_ERR_CORRUPT);
    cr_assert(world_stats(&w).wire_corrupt >= 1 && world_stats(&w).puts == 0);
    cr_assert(world_commit(&w, &up) != VC_OK);
    f = (feeder_t){&w, 0, 2};
    cr_assert(vc_data_put(data, up.upload_id, up.token.b, feed_record, &f, 0, NULL, &err) == VC_OK, "%s", err.msg);
    cr_assert(world_commit(&w, &up) == VC_OK);
    vc_data_close(data);
    world_close(&w);
}

static int source_gives_up(void *arg, void *buf, size_t cap, size_t *len_p)
{
    feeder_t *f = arg;
    if (f->next == 2)
        return 1;
    return feed_record(arg, buf, cap, len_p);
}

static int source_too_large(void *arg, void *buf, size_t cap, size_t *len_p)
{
    (void)arg;
    (void)buf;
    *len_p = cap + 4096;
    return 0;
}

Test(dataplane, a_source_may_end_a_put)
{
    world_t w;
    vc_err_t err = {0};
    world_open(&w, &world_small_shape, 4);
    world_start_server(&w);
    vc_data_t *data = world_connect(&w);
    cs_upload_info_t up = world_begin(&w);
    feeder_t f = {&w, 0, 4};
    cr_assert(vc_data_put(data, up.upload_id, up.token.b, source_gives_up, &f, 0, NULL, &err) == VC_ERR_CANCELLED);
    cr_assert(vc_data_put(data, up.upload_id, up.token.b, source_too_large, &f, 0, NULL, &err) == VC_ERR_INVALID);
    f = (feeder_t){&w, 2, 4};
    cr_assert(vc_data_put(data, up.upload_id, up.token.b, feed_record, &f, 0, NULL, &err) == VC_OK, "%s", err.msg);
    cr_assert(world_commit(&w, &up) == VC_OK);
    vc_data_close(data);
    world_close(&w);
}

Test(dataplane, waits_for_buffers_that_others_hold)
{
    world_t w;
    catcher_t c;
    vc_err_t err = {0};
    cs_buf_t *held[13];
    int n = 0;
    world_open(&w, &world_small_shape, 64);
    world_start_server(&w);
    world_fill(&w);
    vc_data_lease_t lease = world_lease(&w);
    while ((held[n] = cs_bufpool_get(w.pool)) != NULL)
        n++;
    cr_assert(n == 12);
    cs_bufpool_put(w.pool, held[--n]); /* one is left for everything */
    vc_data_t *data = world_connect(&w);
    catcher_init(&c, &w);
    cr_assert(vc_data_fetch(data, &lease, 0, 0, 64, catch_record, &c, 0, NULL, &err) == VC_OK, "%s", err.msg);
    cr_assert(c.n_good == 64);
    while (n > 0)
        cs_bufpool_put(w.pool, held[--n]);
    vc_data_close(data);
    vc_free(c.want);
    world_close(&w);
}

Test(dataplane, a_server_that_stops_is_unreachable_and_found_again_after_its_restart)
{
    world_t w;
    catcher_t c;
    vc_err_t err = {0};
    char address[128];
    world_open(&w, &world_small_shape, 8);
    world_start_server(&w);
    world_fill(&w);
    snprintf(address, sizeof(address), "%s", cs_dataplane_address(w.dp));
    vc_data_lease_t old = world_lease(&w);
    vc_data_t *data = world_connect(&w);
    catcher_init(&c, &w);
    cr_assert(vc_data_fetch(data, &old, 0, 0, 8, catch_record, &c, 0, NULL, &err) == VC_OK, "%s", err.msg);
    world_stop_server(&w);
    cr_assert(vc_data_fetch(data, &old, 0, 0, 8, catch_record, &c, 0, NULL, &err) == VC_ERR_UNREACHABLE, "%s", err.msg);
    w.opts.listen = address;
    world_start_server(&w);
    cr_assert(vc_data_fetch(data, &old, 0, 0, 8, catch_record, &c, 0, NULL, &err) == VC_ERR_STALE, "%s", err.msg);
    vc_data_lease_t lease = world_lease(&w);
    c.n_good = 0;
    cr_assert(vc_data_fetch(data, &lease, 0, 0, 8, catch_record, &c, 0, NULL, &err) == VC_OK, "%s", err.msg);
    cr_assert(c.n_good == 8);
    vc_data_close(data);
    vc_free(c.want);
    world_close(&w);
}

Test(dataplane, serves_on_a_network_address_when_trusted)
{
    world_t w;
    catcher_t c;
    vc_err_t err = {0};
    char address[64];
    if (!vt_outer_address(address, sizeof(address)))
        cr_skip_test("this machine has no IPv4 address but loopback");
    world_open(&w, &world_real_shape, 8);
    w.opts.listen = address;
    w.opts.trust_data_network = true;
    w.opts.data_ports = "26100-26140";
    world_start_server(&w);
    world_fill(&w);
    vc_data_lease_t lease = world_lease(&w);
    vc_data_t *data = world_connect(&w);
    catcher_init(&c, &w);
    cr_assert(vc_data_fetch(data, &lease, 0, 0, 8, catch_record, &c, 0, NULL, &err) == VC_OK, "%s", err.msg);
    cr_assert(c.n_good == 8);
    vc_data_close(data);
    vc_free(c.want);
    world_close(&w);
}

Test(dataplane, an_address_that_is_not_loopback_needs_trust)
{
    world_t w;
    vc_err_t err = {0};
    cs_dataplane_t *dp = NULL;
    world_open(&w, &world_small_shape, 1);
    world_start_server(&w);
    cs_dataplane_opts_t opts = w.opts;
    opts.listen = "0.0.0.0:0";
    cr_assert(cs_dataplane_start(&opts, &dp, &err) == VC_ERR_PERM);
    cr_assert(strstr(err.msg, "--trust-data-network") != NULL);
    opts.listen = cs_dataplane_address(w.dp); /* in use */
    cr_assert(cs_dataplane_start(&opts, &dp, &err) == VC_ERR_UNREACHABLE);
    cr_assert(strstr(err.msg, opts.listen) != NULL);
    world_close(&w);
}
