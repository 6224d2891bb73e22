/*
 * How close does the store come to the disk, and is it worth its own segment files?
 *
 * One run, peers in turn round after round (the order rotates), medians over the rounds:
 *   put    begin, put, commit of batches into fresh segments, all durable; against fio writing the same volume with a
 *          sync every batch (io_uring and libaio, the faster counts), and RocksDB BlobDB (two ways, the faster counts)
 *   read   whole records in random order, many in flight, checksums verified; against fio and BlobDB
 *   hot    whole records out of the memory tier into the caller's buffer, against memcpy
 *   mixed  latency of cold reads alone and under a flood of puts
 *   redis  puts and reads over TCP loopback by two clients, against redis-server with a synced append only file
 *   restart  a process fills the store and is killed; time from starting a new one to the first record read
 *
 * Cold: the store and fio read with O_DIRECT, BlobDB with direct reads and no blob cache, so no data comes from memory
 * of this machine, whatever its size. Two record sizes: full KV of SmolLM2-135M (1,478,656 B) and 480 KiB, as a
 * compressed copy has; a figure is the worse of the two.
 *   --dir DIR (where the files go, about 5 GB), --rounds N, --depth N in flight, --only disk|hot|mixed|redis|restart,
 *   --objects N (restart)
 */
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "store_peers.h"
#include "store_target.h"
#include "vc/log.h"

static bool wanted(const char *only, const char *part) { return *only == 0 || strcmp(only, part) == 0; }

int main(int argc, char **argv)
{
    bench_init("store", argc, argv);
    vc_log_set_level(VC_LOG_WARN);
    sb.depth = (uint32_t)atoi(bench_option("depth", "16"));
    sb.n_rounds = (uint32_t)atoi(bench_option("rounds", bench_quick() ? "2" : "7"));
    uint32_t n_objects = (uint32_t)atoi(bench_option("objects", bench_quick() ? "2000" : "100000"));
    sb.n_put = bench_quick() ? 2 * BATCH : 8 * BATCH;
    sb.n_read[FULL] = bench_quick() ? 16 : 256;
    sb.n_read[COMPRESSED] = bench_quick() ? 32 : 768;
    if (sb.depth < 1 || sb.depth > PEER_MAX_DEPTH || sb.n_rounds < 1 || n_objects < SMALL_CHAIN)
        bench_fail("--depth is 1 to %d, --rounds at least 1, --objects at least %d", PEER_MAX_DEPTH, SMALL_CHAIN);
    const char *child = bench_option("child", ""), *data = bench_option("data", "");
    uint32_t number = (uint32_t)atoi(bench_option("number", "0"));
    if (strcmp(child, "fill") == 0)
        child_fill(data, number);
    else if (strcmp(child, "hit") == 0)
        child_hit(data, number);
    const char *only = bench_option("only", "");
    if (wanted(only, "disk"))
        measure_disk();
    if (wanted(only, "hot"))
        measure_hot();
    if (wanted(only, "mixed"))
        measure_mixed();
    if (wanted(only, "redis"))
        measure_redis();
    if (wanted(only, "restart"))
        measure_restart(n_objects);
    return 0;
}
