/*
 * Does the capacity hold, and does the server go on? Connections that do nothing but register flood a real
 * vericache-server for a minute, readers fetch what was just stored, and the data directory is measured all the time as
 * du does. Exit code 1 when it was ever above --capacity, when everything was rejected, when it stalled for good, or
 * when a fetch failed or brought other bytes.
 *
 *   --seconds S (60)   --capacity-mib N (1024)   --connections N (8)   --readers N (2)
 */
#include <stdio.h>
#include <stdlib.h>

#include "flood_load.h"
#include "harness.h"
#include "server_process.h"
#include "vc/mem.h"

static const vc_kv_shape_t smollm2 = {30, 3, 64, 64, VC_DTYPE_F16};
static const vc_kv_shape_t small = {8, 3, 64, 64, VC_DTYPE_F16};

static void print_result(const flood_opts_t *o, const flood_result_t *r)
{
    double tried = (double)(r->accepted + r->rejected + r->failed);
    bench_note("%llu registrations accepted, %llu rejected, %llu failed in %.1f s on %u connections; %.1f GiB written",
               (unsigned long long)r->accepted, (unsigned long long)r->rejected, (unsigned long long)r->failed,
               r->seconds, o->n_writers, (double)r->bytes_accepted / (1 << 30));
    bench_note("%llu lookups, %llu hits, %llu records fetched, %llu failed, %llu wrong", (unsigned long long)r->lookups,
               (unsigned long long)r->hits, (unsigned long long)r->fetched, (unsigned long long)r->fetch_failed,
               (unsigned long long)r->wrong);
    bench_note("largest directory %.1f MiB of %.1f MiB in %llu measurements, %llu above; longest call %.2f s",
               (double)r->du_peak / (1 << 20), (double)o->capacity_bytes / (1 << 20), (unsigned long long)r->du_samples,
               (unsigned long long)r->du_over, r->longest_call_s);
    if (r->failure[0])
        bench_note("last failure: %s", r->failure);
    bench_figure("flood_peak_of_capacity", (double)r->du_peak / (double)o->capacity_bytes);
    bench_figure("flood_rejected_share", tried > 0 ? (double)r->rejected / tried : 1);
    bench_figure("flood_longest_stall_s", r->longest_stall_s);
    bench_figure("flood_put_mib_per_s", (double)r->bytes_accepted / (1 << 20) / r->seconds);
    bench_figure("flood_capacities_written", (double)r->bytes_accepted / (double)o->capacity_bytes);
}

static void judge(const flood_opts_t *o, const flood_result_t *r, int exit_code)
{
    if (r->du_over > 0)
        bench_fail("the directory was above its capacity %llu times", (unsigned long long)r->du_over);
    if (r->accepted == 0 || r->rejected > r->accepted)
        bench_fail("most registrations were rejected");
    if (r->silent_s > VC_MAX(5.0, o->seconds / 4))
        bench_fail("it stalled: nothing was accepted in the last %.1f s", r->silent_s);
    if (r->failed + r->fetch_failed + r->wrong > 0)
        bench_fail("calls failed or brought wrong bytes: %s", r->failure);
    if (exit_code != 0)
        bench_fail("the server ended with %d", exit_code);
}

int main(int argc, char **argv)
{
    char data[4200], data_flag[4300], capacity_flag[64];
    flood_result_t r;
    bench_server_t server;
    bench_init("flood", argc, argv);
    flood_opts_t o = {.server = server.address,
                      .data_dir = data,
                      .capacity_bytes = strtoull(bench_option("capacity-mib", bench_quick() ? "192" : "1024"), NULL, 10)
                                        << 20,
                      .n_writers = (uint32_t)strtoul(bench_option("connections", "8"), NULL, 10),
                      .n_readers = (uint32_t)strtoul(bench_option("readers", "2"), NULL, 10),
                      .n_blocks = 4,
                      .shape = bench_quick() ? small : smollm2,
                      .seconds = strtod(bench_option("seconds", bench_quick() ? "4" : "60"), NULL)};
    if (o.n_writers == 0 || o.n_writers > 64 || o.n_readers > 64 || !(o.seconds > 0))
        bench_fail("give 1 to 64 connections, at most 64 readers and a time");
    snprintf(data, sizeof(data), "%s/data", bench_tmpdir());
    snprintf(data_flag, sizeof(data_flag), "--data-dir=%s", data);
    snprintf(capacity_flag, sizeof(capacity_flag), "--capacity=%llu", (unsigned long long)o.capacity_bytes);
    bench_server_start(&server,
                       (const char *[]){data_flag, capacity_flag, "--ballast=32MiB", "--log-level=warn", NULL});
    if (!flood_run(&o, &r))
        bench_fail("no memory or no thread for the load");
    int exit_code = bench_server_stop(&server);
    print_result(&o, &r);
    judge(&o, &r, exit_code);
    return 0;
}
