/* Just enough of the Redis protocol to put and get values, pipelined, over a blocking socket. */
#ifndef BENCH_STORE_RESP_H
#define BENCH_STORE_RESP_H

#include <stdint.h>

typedef struct resp {
    int fd;
    uint8_t in[65536]; /* received and not yet used: [at, end) */
    uint32_t at, end;
} resp_t;

/* False: nobody listens yet. */
int resp_connect(resp_t *r, int port);
void resp_close(resp_t *r);
void resp_set(resp_t *r, const char *key, const void *value, uint32_t bytes);
void resp_get(resp_t *r, const char *key);
void resp_command(resp_t *r, const char *word); /* one word, e.g. PING */
/* The next reply. A simple string, or a value of exactly `bytes` into value; anything else ends the program. */
void resp_expect_simple(resp_t *r);
void resp_expect_value(resp_t *r, void *value, uint32_t bytes);

#endif
