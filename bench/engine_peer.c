/* llama.cpp's llama-bench as the peer of the engine: same file, same threads, f16 KV. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_parts.h"

const char *engine_find_peer(void)
{
    static char path[4096];
    const char *cache = getenv("VERICACHE_CACHE"), *home = getenv("HOME"), *option = bench_option("peer", NULL);
    if (option != NULL)
        snprintf(path, sizeof path, "%s", option);
    else if (cache != NULL)
        snprintf(path, sizeof path, "%s/peers/llama-bench-11434.0.0", cache);
    else
        snprintf(path, sizeof path, "%s/.cache/vericache/peers/llama-bench-11434.0.0", home != NULL ? home : "");
    if (access(path, X_OK) == 0)
        return path;
    bench_note("no llama-bench at %s (bench/peers/engine.sh builds it): our side only", path);
    return NULL;
}

double engine_peer_rate(const bench_t *b, const char *prompt, const char *gen, const char *depth, bool flash)
{
    char threads[16];
    static char out[1 << 16];
    snprintf(threads, sizeof threads, "%u", b->threads);
    char *argv[] = {(char *)b->peer,
                    (char *)"-m",
                    (char *)b->model,
                    (char *)"-p",
                    (char *)prompt,
                    (char *)"-n",
                    (char *)gen,
                    (char *)"-d",
                    (char *)depth,
                    (char *)"-t",
                    threads,
                    (char *)"-fa",
                    (char *)(flash ? "1" : "0"),
                    (char *)"-ctk",
                    (char *)"f16",
                    (char *)"-ctv",
                    (char *)"f16",
                    (char *)"-r",
                    (char *)"1",
                    (char *)"-o",
                    (char *)"json",
                    NULL};
    int rc = bench_run(argv, out, sizeof out);
    if (rc != 0)
        bench_fail("llama-bench ended with %d", rc);
    json_error_t error;
    json_t *j = json_loads(out, 0, &error);
    double rate = json_number_value(json_object_get(json_array_get(j, 0), "avg_ts"));
    json_decref(j);
    if (!(rate > 0))
        bench_fail("llama-bench printed no avg_ts");
    return rate;
}

bool engine_peer_flash(const bench_t *b, const char *prompt, const char *gen, const char *depth)
{
    const char *option = bench_option("fa", "auto");
    if (strcmp(option, "on") == 0 || strcmp(option, "off") == 0)
        return strcmp(option, "on") == 0;
    if (strcmp(option, "auto") != 0)
        bench_fail("--fa %s: not one of auto, on, off", option);
    double off = engine_peer_rate(b, prompt, gen, depth, false), on = engine_peer_rate(b, prompt, gen, depth, true);
    bench_note("llama.cpp -p %s -n %s -d %s: %.1f tokens/s without flash attention, %.1f with: %s is used", prompt, gen,
               depth, off, on, on > off ? "with" : "without");
    return on > off;
}
