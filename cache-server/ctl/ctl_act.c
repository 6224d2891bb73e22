/* What is done: pins and deletes, draining, scrubbing. Each says what it did, as a line or two or as JSON. */
#include <inttypes.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ctl_int.h"
#include "vc/mem.h"

#define POLL_MS 200

/* ---- chains ---- */

static int hex_digit(char ch)
{
    return ch >= '0' && ch <= '9' ? ch - '0' : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : -1;
}

/* True when hex, of any even or odd length up to 64, are the leading digits of the digest. */
static bool hex_leads(const char *hex, const uint8_t digest[32])
{
    for (size_t i = 0; hex[i] != '\0'; i++)
        if (i >= 64 || hex_digit(hex[i]) != (digest[i / 2] >> (i % 2 ? 0 : 4) & 15))
            return false;
    return true;
}

static bool hex_whole(const char *hex, uint8_t digest[32])
{
    if (strlen(hex) != 64)
        return false;
    for (size_t i = 0; i < 32; i++)
        digest[i] = (uint8_t)(hex_digit(hex[2 * i]) << 4 | hex_digit(hex[2 * i + 1]));
    return true;
}

static vcache_status_t check_hex(ctl_t *c, const char *what, const char *hex, size_t least)
{
    size_t n = strspn(hex, "0123456789abcdef");
    if (hex[n] != '\0' || n < least || n > 64)
        return ctl_fail(c, VC_ERR_INVALID, "%s \"%.80s\" is not %zu to 64 lower-case hex digits", what, hex, least);
    return VC_OK;
}

/* Looks for the tip among the prefixes, by hits and by bytes: a thousand of each. */
static vcache_status_t find_tip(ctl_t *c, const char *hex, uint8_t tip[32], uint8_t keyspace[32])
{
    enum { MOST = 1000 };
    uint32_t n, n_found = 0;
    vcache_status_t st = VC_OK;
    vcache_prefix_t *list = vc_calloc(MOST, sizeof(*list));
    if (list == NULL)
        return ctl_fail(c, VC_ERR_NOMEM, "out of memory");
    for (int by_bytes = 0; st == VC_OK && by_bytes < 2; by_bytes++) {
        st = vcache_prefixes(c->client, by_bytes, MOST, list, &n, &c->error);
        for (uint32_t i = 0; st == VC_OK && i < n; i++) {
            bool is_same =
                n_found > 0 && memcmp(list[i].tip, tip, 32) == 0 && memcmp(list[i].keyspace, keyspace, 32) == 0;
            if (!hex_leads(hex, list[i].tip) || is_same)
                continue;
            n_found++;
            memcpy(tip, list[i].tip, 32);
            memcpy(keyspace, list[i].keyspace, 32);
        }
    }
    vc_free(list);
    if (st != VC_OK)
        return st;
    if (n_found > 1)
        return ctl_fail(c, VC_ERR_INVALID, "%u prefixes have a tip that starts with %s: give more digits", n_found,
                        hex);
    if (n_found == 0)
        return ctl_fail(c, VC_ERR_NOT_FOUND,
                        "no listed prefix has a tip that starts with %s; give all 64 digits and --keyspace", hex);
    return VC_OK;
}

static vcache_status_t chain_command(ctl_t *c, const char *past,
                                     vcache_status_t (*act)(vcache_client_t *, const vcache_chain_t *,
                                                            vcache_chain_sum_t *, vcache_error_t *))
{
    const char *hex = vc_config_arg(c->config, 1);
    uint8_t tip[32], keyspace[32];
    vcache_chain_sum_t sum = {0};
    vcache_fidelity_t fid = {.compressed = strncmp(c->fidelity, "full@", 5) != 0, .spec = c->fidelity};
    vcache_status_t st = check_hex(c, "tip", hex, 8);
    if (st == VC_OK && c->keyspace[0] != '\0')
        st = check_hex(c, "--keyspace", c->keyspace, 64);
    if (st != VC_OK)
        return st;
    if (c->keyspace[0] == '\0')
        st = find_tip(c, hex, tip, keyspace);
    else if (!hex_whole(c->keyspace, keyspace) || !hex_whole(hex, tip))
        st = ctl_fail(c, VC_ERR_INVALID, "with --keyspace the tip has all its 64 digits");
    vcache_chain_t chain = {.keyspace_id = keyspace, .tip = tip, .fidelity = c->fidelity[0] != '\0' ? &fid : NULL};
    if (st != VC_OK)
        return st;
    st = act(c->client, &chain, &sum, &c->error);
    if (st == VC_ERR_NOT_FOUND && chain.fidelity != NULL)
        return ctl_fail(
            c, st, "no copy \"%s\" of it; a compressor's spec takes all its parameters here, see register's output",
            c->fidelity);
    if (st == VC_OK && c->json)
        ctl_print_json(c,
                       json_pack("{s:I, s:I}", "objects", (json_int_t)sum.n_objects, "bytes", (json_int_t)sum.n_bytes));
    else if (st == VC_OK)
        fprintf(c->out, "%s %" PRIu64 " objects, %" PRIu64 " bytes\n", past, sum.n_objects, sum.n_bytes);
    return st;
}

vcache_status_t ctl_pin(ctl_t *c) { return chain_command(c, "pinned", vcache_pin); }
vcache_status_t ctl_unpin(ctl_t *c) { return chain_command(c, "unpinned", vcache_unpin); }
vcache_status_t ctl_delete(ctl_t *c) { return chain_command(c, "deleted", vcache_delete); }

/* ---- waiting ---- */

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* False when --wait-ms is over. */
static bool wait_more(const ctl_t *c, uint64_t start_ms)
{
    if (c->wait_ms != 0 && now_ms() - start_ms >= c->wait_ms)
        return false;
    struct timespec nap = {.tv_nsec = POLL_MS * 1000000};
    nanosleep(&nap, NULL);
    return true;
}

/* A line that is written over, where somebody looks. */
static void progress(const char *fmt, uint64_t done, uint64_t whole)
{
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, fmt, done, whole);
        fflush(stderr);
    }
}

static void progress_end(void)
{
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}

/* ---- drain and leases ---- */

static bool holds_nothing(const vcache_drain_report_t *r)
{
    return r->leases == 0 && r->uploads == 0 && r->commits == 0 && r->transfers == 0;
}

/* is_over: the wait for it has ended well. */
static void print_report(ctl_t *c, const vcache_drain_report_t *r, bool is_over)
{
    if (c->json) {
        json_t *ages = json_array();
        for (uint32_t i = 0; i < r->n_ages; i++)
            json_array_append_new(ages,
                                  json_pack("{s:I, s:I, s:I}", "below_s", (json_int_t)r->ages[i].below_s, "leases",
                                            (json_int_t)r->ages[i].leases, "bytes", (json_int_t)r->ages[i].bytes));
        ctl_print_json(c, json_pack("{s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:o}", "draining", r->draining, "drained",
                                    r->draining && holds_nothing(r), "leases", (json_int_t)r->leases, "leased_bytes",
                                    (json_int_t)r->leased_bytes, "uploads", (json_int_t)r->uploads, "commits",
                                    (json_int_t)r->commits, "transfers", (json_int_t)r->transfers, "ages", ages));
        return;
    }
    fprintf(c->out,
            "%s: %" PRIu32 " leases over %" PRIu64 " bytes, %" PRIu32 " uploads, %" PRIu32 " commits, %" PRIu32
            " transfers\n",
            r->draining ? "draining" : "serving", r->leases, r->leased_bytes, r->uploads, r->commits, r->transfers);
    for (uint32_t i = 0; i < r->n_ages; i++) {
        char age[32] = "older";
        if (r->ages[i].below_s != 0)
            snprintf(age, sizeof(age), "below %" PRIu32 " s", r->ages[i].below_s);
        fprintf(c->out, "  leases %-14s %8" PRIu32 " %15" PRIu64 " bytes\n", age, r->ages[i].leases, r->ages[i].bytes);
    }
    if (is_over)
        fputs("drained\n", c->out);
}

vcache_status_t ctl_drain(ctl_t *c)
{
    vcache_drain_report_t r = {0};
    uint64_t start_ms = now_ms();
    if (c->resume && (c->query || c->wait))
        return ctl_fail(c, VC_ERR_INVALID, "--resume goes with neither --query nor --wait");
    vcache_drain_action_t action = c->resume ? VCACHE_DRAIN_RESUME : c->query ? VCACHE_DRAIN_QUERY : VCACHE_DRAIN_START;
    vcache_status_t st = vcache_drain(c->client, action, &r, &c->error);
    bool is_late = false;
    while (st == VC_OK && c->wait && !holds_nothing(&r) && !is_late) {
        progress("\r\033[K%" PRIu64 " leases, %" PRIu64 " transfers", r.leases, r.transfers);
        is_late = !wait_more(c, start_ms);
        st = vcache_drain(c->client, VCACHE_DRAIN_QUERY, &r, &c->error);
    }
    progress_end();
    if (st == VC_OK)
        print_report(c, &r, c->wait && r.draining && holds_nothing(&r));
    if (st == VC_OK && is_late && !holds_nothing(&r))
        st = ctl_fail(c, VC_ERR_TIMEOUT, "not drained within %" PRIu64 " ms", c->wait_ms);
    return st;
}

vcache_status_t ctl_leases(ctl_t *c)
{
    vcache_drain_report_t r = {0};
    vcache_status_t st = vcache_drain(c->client, VCACHE_DRAIN_QUERY, &r, &c->error);
    if (st == VC_OK)
        print_report(c, &r, false);
    return st;
}

/* ---- scrub ---- */

static void print_scrub(ctl_t *c, const vcache_scrub_info_t *i)
{
    if (c->json) {
        ctl_print_json(
            c, json_pack("{s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "running", i->running,
                         "rate_bytes", (json_int_t)i->rate_bytes, "pass_objects", (json_int_t)i->pass_objects,
                         "pass_objects_total", (json_int_t)i->pass_objects_total, "pass_bytes",
                         (json_int_t)i->pass_bytes, "pass_bytes_total", (json_int_t)i->pass_bytes_total, "pass_corrupt",
                         (json_int_t)i->pass_corrupt, "pass_errors", (json_int_t)i->pass_errors, "passes",
                         (json_int_t)i->passes, "corrupt", (json_int_t)i->corrupt, "errors", (json_int_t)i->errors,
                         "last_pass_s", (json_int_t)i->last_pass_s, "last_pass_ms", (json_int_t)i->last_pass_ms));
        return;
    }
    fprintf(c->out,
            "%s: %" PRIu64 " of %" PRIu64 " objects, %" PRIu64 " of %" PRIu64 " bytes, %" PRIu64 " damaged, %" PRIu64
            " unreadable\n",
            i->running ? "running" : "idle", i->pass_objects, i->pass_objects_total, i->pass_bytes, i->pass_bytes_total,
            i->pass_corrupt, i->pass_errors);
    fprintf(c->out, "since start: %" PRIu64 " passes, %" PRIu64 " damaged, %" PRIu64 " unreadable\n", i->passes,
            i->corrupt, i->errors);
}

vcache_status_t ctl_scrub(ctl_t *c)
{
    vcache_scrub_info_t i = {0};
    uint64_t start_ms = now_ms();
    bool is_late = false;
    if (c->stop && (c->query || c->wait))
        return ctl_fail(c, VC_ERR_INVALID, "--stop goes with neither --query nor --wait");
    vcache_scrub_action_t action = c->stop ? VCACHE_SCRUB_STOP : c->query ? VCACHE_SCRUB_QUERY : VCACHE_SCRUB_START;
    vcache_status_t st = vcache_scrub(c->client, action, c->rate_bytes, &i, &c->error);
    if (st == VC_ERR_EXISTS && c->wait) /* somebody else's pass is as good */
        st = vcache_scrub(c->client, VCACHE_SCRUB_QUERY, 0, &i, &c->error);
    while (st == VC_OK && c->wait && i.running && !is_late) {
        progress("\r\033[K%" PRIu64 " of %" PRIu64 " bytes", i.pass_bytes, i.pass_bytes_total);
        is_late = !wait_more(c, start_ms);
        st = vcache_scrub(c->client, VCACHE_SCRUB_QUERY, 0, &i, &c->error);
    }
    progress_end();
    if (st == VC_OK)
        print_scrub(c, &i);
    if (st == VC_OK && is_late && i.running)
        st = ctl_fail(c, VC_ERR_TIMEOUT, "the pass was not over within %" PRIu64 " ms", c->wait_ms);
    else if (st == VC_OK && c->wait && i.pass_corrupt + i.pass_errors > 0)
        st = ctl_fail(c, VC_ERR_CORRUPT, "%" PRIu64 " records were damaged, %" PRIu64 " unreadable", i.pass_corrupt,
                      i.pass_errors);
    return st;
}
