/*
 * mk_datadir HOST:PORT PART: registers half of format_space.h with a running server and prints a line per record:
 * keyspace, chain, fidelity, block, BLAKE2b-256 of the bytes. Part 1 is what a clean stop leaves in RocksDB's tables,
 * part 2 what only its log has after a kill. From format 2 on one chain of part 1 is pinned. Used once per released
 * format, by mk_datadir.sh.
 */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>

#include "support/format_space.h"
#include "vc/bytes.h"

static void print_digests(const format_chain_t *c, uint32_t keyspace, uint32_t chain, uint32_t first, uint32_t n)
{
    for (uint32_t f = 0; f < 2; f++) {
        for (uint32_t b = first; b < n; b++) {
            static uint8_t record[1 << 16];
            uint8_t digest[32];
            char hex[65];
            size_t len = 0;
            if (format_chain_record((void *)(uintptr_t)c, f, b, record, sizeof(record), &len) != 0)
                abort();
            crypto_generichash(digest, sizeof(digest), record, len, NULL, 0);
            vc_hex(digest, sizeof(digest), hex);
            printf("%u %u %u %u %s\n", keyspace, chain, f, b, hex);
        }
    }
}

static int add(vcache_client_t *client, uint32_t keyspace, uint32_t chain, uint32_t first, uint32_t n)
{
    static format_chain_t c;
    vcache_error_t err = {0};
    format_chain_init(&c, keyspace, chain);
    if (vcache_register(client, c.enc, c.enc_len, c.tokens, first, n, format_fids, 2, format_chain_record, &c, NULL,
                        &err) != 0) {
        fprintf(stderr, "mk_datadir: %s\n", err.msg);
        return 1;
    }
    print_digests(&c, keyspace, chain, first, n);
    return 0;
}

/* The full copies of a chain are never evicted from now on. */
static int pin(vcache_client_t *client, uint32_t keyspace, uint32_t n)
{
    static format_chain_t c;
    vcache_error_t err = {0};
    format_chain_init(&c, keyspace, 0);
    vcache_chain_t chain = {.keyspace = c.enc,
                            .keyspace_len = c.enc_len,
                            .tokens = c.tokens,
                            .n_tokens = n * FORMAT_BLOCK_TOKENS,
                            .fidelity = &format_fids[0]};
    if (vcache_pin(client, &chain, NULL, &err) == 0)
        return 0;
    fprintf(stderr, "mk_datadir: %s\n", err.msg);
    return 1;
}

/* A lookup, so that there are use counts to be kept. */
static int use(vcache_client_t *client, uint32_t keyspace)
{
    static format_chain_t c;
    vcache_error_t err = {0};
    vcache_lookup_info_t info;
    vcache_lease_t *lease = NULL;
    format_chain_init(&c, keyspace, 0);
    if (vcache_lookup(client, c.enc, c.enc_len, c.tokens, VC_ARRAY_LEN(c.tokens), format_fids, 2, &info, &lease,
                      &err) != 0)
        return 1;
    vcache_lease_release(lease);
    return 0;
}

int main(int argc, char **argv)
{
    vcache_options_t o;
    vcache_client_t *client;
    vcache_error_t err = {0};
    if (argc != 3 || sodium_init() < 0)
        return 64;
    vcache_options_default(&o);
    o.server = argv[1];
    if (vcache_connect(&o, &client, &err) != 0) {
        fprintf(stderr, "mk_datadir: %s\n", err.msg);
        return 69;
    }
    int rc = atoi(argv[2]) == 1
                 ? add(client, 0, 0, 0, 12) || add(client, 1, 0, 0, 6) || pin(client, 1, 6) || use(client, 0)
                 : add(client, 0, 1, FORMAT_FORK, 16) || add(client, 1, 0, 6, 9);
    vcache_disconnect(client);
    return rc;
}
