/* Traces in memory and their two formats. Whatever the text holds, it ends in a trace or in one sentence. */
#include "trace.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "vc/mem.h"

#define MAX_REQUESTS (1u << 24)
#define MAX_ASKED ((size_t)1 << 28)
#define MAX_FILE_BYTES ((size_t)1 << 30)
#define MAX_TIME_MS (UINT64_C(1) << 41) /* 70 years */

/* ---- the trace ---- */

void cs_trace_destroy(cs_trace_t *trace)
{
    if (!trace)
        return;
    vc_free(trace->times_s);
    vc_free(trace->starts);
    vc_free(trace->blocks);
    vc_free(trace->parents);
    vc_free(trace->depths);
    vc_free(trace);
}

/* *array holds cap of size; room for n after it. */
static bool grow(void *array_p, size_t size, size_t n, size_t *cap_p)
{
    void **array = array_p;
    if (n <= *cap_p)
        return true;
    size_t cap = VC_MAX(n, *cap_p + *cap_p / 2 + 64);
    void *grown = vc_realloc(*array, cap, size);
    if (!grown)
        return false;
    *array = grown;
    *cap_p = cap;
    return true;
}

static bool grow_requests(cs_trace_t *t, size_t n)
{
    size_t cap = t->cap_requests, cap_starts = cap ? cap + 1 : 0;
    if (n <= cap)
        return true;
    if (!grow(&t->times_s, sizeof(*t->times_s), n, &cap) || !grow(&t->starts, sizeof(*t->starts), cap + 1, &cap_starts))
        return false;
    t->cap_requests = (uint32_t)VC_MIN(cap, cap_starts - 1);
    return true;
}

static bool grow_blocks(cs_trace_t *t, size_t n)
{
    size_t a = t->cap_blocks, b = t->cap_blocks;
    if (n <= t->cap_blocks)
        return true;
    if (!grow(&t->parents, sizeof(*t->parents), n, &a) || !grow(&t->depths, sizeof(*t->depths), n, &b))
        return false;
    t->cap_blocks = (uint32_t)VC_MIN(a, b);
    return true;
}

vc_status_t cs_trace_create(cs_trace_t **trace_p)
{
    cs_trace_t *t = vc_calloc(1, sizeof(*t));
    if (!t || !grow_requests(t, 1)) {
        cs_trace_destroy(t);
        return VC_ERR_NOMEM;
    }
    t->starts[0] = 0;
    *trace_p = t;
    return VC_OK;
}

static vc_status_t check_block(cs_trace_t *t, uint32_t block, uint32_t parent, uint32_t depth, vc_err_t *err)
{
    if (block > t->n_blocks)
        return vc_err_set(err, VC_ERR_INVALID, "block %u comes before block %u", block, t->n_blocks);
    if (block == t->n_blocks) {
        if (!grow_blocks(t, (size_t)block + 1))
            return vc_err_set(err, VC_ERR_NOMEM, "out of memory for %u blocks", block);
        t->parents[block] = parent;
        t->depths[block] = (uint16_t)depth;
        t->n_blocks++;
    } else if (t->parents[block] != parent) {
        return vc_err_set(err, VC_ERR_INVALID, "the block at position %u has another block before it than earlier",
                          depth);
    }
    return VC_OK;
}

vc_status_t cs_trace_add(cs_trace_t *t, uint32_t time_s, const uint32_t *blocks, uint32_t n, vc_err_t *err)
{
    size_t asked = cs_trace_asked(t);
    if (n == 0 || n > CS_TRACE_MAX_CHAIN)
        return vc_err_set(err, VC_ERR_INVALID, "a request has 1 to %u blocks, not %u", CS_TRACE_MAX_CHAIN, n);
    if (t->n_requests == MAX_REQUESTS || n > MAX_ASKED - asked)
        return vc_err_set(err, VC_ERR_INVALID, "the trace has more than %u requests or %zu blocks", MAX_REQUESTS,
                          MAX_ASKED);
    if (!grow_requests(t, (size_t)t->n_requests + 1) || !grow(&t->blocks, sizeof(*t->blocks), asked + n, &t->cap_asked))
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for the trace");
    uint32_t parent = CS_TRACE_NONE;
    for (uint32_t i = 0; i < n; i++) {
        vc_status_t status = check_block(t, blocks[i], parent, i, err);
        if (status != VC_OK)
            return status;
        parent = blocks[i];
    }
    memcpy(t->blocks + asked, blocks, n * sizeof(*blocks));
    uint32_t last = t->n_requests ? t->times_s[t->n_requests - 1] : 0;
    t->times_s[t->n_requests] = VC_MAX(time_s, last);
    t->starts[++t->n_requests] = asked + n;
    return VC_OK;
}

/* ---- numbers of the file to numbers by order of appearance ---- */

typedef struct names {
    uint64_t *keys;
    uint32_t *values; /* CS_TRACE_NONE: the slot is unused */
    size_t n, cap;    /* cap: a power of two, or 0 */
} names_t;

static void names_fini(names_t *names)
{
    vc_free(names->keys);
    vc_free(names->values);
}

static size_t name_slot(const names_t *names, uint64_t key)
{
    size_t i = (size_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (names->cap - 1);
    while (names->values[i] != CS_TRACE_NONE && names->keys[i] != key)
        i = (i + 1) & (names->cap - 1);
    return i;
}

static bool names_grow(names_t *names)
{
    if (names->cap && names->n < names->cap / 2)
        return true;
    names_t grown = {.n = names->n, .cap = names->cap ? 2 * names->cap : 1024};
    grown.keys = vc_calloc(grown.cap, sizeof(*grown.keys));
    grown.values = vc_calloc(grown.cap, sizeof(*grown.values));
    if (!grown.keys || !grown.values) {
        names_fini(&grown);
        return false;
    }
    memset(grown.values, 0xff, grown.cap * sizeof(*grown.values));
    for (size_t i = 0; i < names->cap; i++) {
        if (names->values[i] == CS_TRACE_NONE)
            continue;
        size_t slot = name_slot(&grown, names->keys[i]);
        grown.keys[slot] = names->keys[i];
        grown.values[slot] = names->values[i];
    }
    names_fini(names);
    *names = grown;
    return true;
}

static bool name_number(names_t *names, uint64_t key, uint32_t *number_p)
{
    if (!names_grow(names))
        return false;
    size_t slot = name_slot(names, key);
    if (names->values[slot] == CS_TRACE_NONE) {
        names->keys[slot] = key;
        names->values[slot] = (uint32_t)names->n++;
    }
    *number_p = names->values[slot];
    return true;
}

/* ---- the formats ---- */

typedef struct reader {
    cs_trace_t *trace;
    names_t names;
    uint64_t time_ms, first_ms;
    bool has_first;
    uint32_t chain[CS_TRACE_MAX_CHAIN];
    uint32_t n;
} reader_t;

static vc_status_t push(reader_t *r, uint32_t block, vc_err_t *err)
{
    if (r->n == CS_TRACE_MAX_CHAIN)
        return vc_err_set(err, VC_ERR_INVALID, "more than %u blocks", CS_TRACE_MAX_CHAIN);
    r->chain[r->n++] = block;
    return VC_OK;
}

static vc_status_t read_json_ids(reader_t *r, const json_t *ids, vc_err_t *err)
{
    size_t i;
    json_t *id;
    if (!json_is_array(ids))
        return vc_err_set(err, VC_ERR_INVALID, "no list \"hash_ids\"");
    json_array_foreach(ids, i, id)
    {
        uint32_t block;
        if (!json_is_integer(id))
            return vc_err_set(err, VC_ERR_INVALID, "hash_ids holds something that is no integer");
        if (!name_number(&r->names, (uint64_t)json_integer_value(id), &block))
            return vc_err_set(err, VC_ERR_NOMEM, "out of memory for the trace");
        vc_status_t status = push(r, block, err);
        if (status != VC_OK)
            return status;
    }
    return VC_OK;
}

static vc_status_t read_json(reader_t *r, const char *line, size_t len, vc_err_t *err)
{
    json_error_t at;
    json_t *request = json_loadb(line, len, JSON_REJECT_DUPLICATES, &at);
    if (!request)
        return vc_err_set(err, VC_ERR_INVALID, "no JSON: %.100s", at.text);
    const json_t *time = json_object_get(request, "timestamp");
    double ms = json_is_number(time) ? json_number_value(time) : -1;
    vc_status_t status = ms >= 0 && ms <= (double)MAX_TIME_MS
                             ? read_json_ids(r, json_object_get(request, "hash_ids"), err)
                             : vc_err_set(err, VC_ERR_INVALID, "no \"timestamp\" in milliseconds");
    json_decref(request);
    if (status == VC_OK && !r->has_first) {
        r->first_ms = (uint64_t)ms;
        r->has_first = true;
    }
    if (status == VC_OK)
        r->time_ms = (uint64_t)ms > r->first_ms ? (uint64_t)ms - r->first_ms : 0;
    return status;
}

/* Digits at *at up to the end; false when there are none or too many. */
static bool number(const char **at, const char *end, uint64_t max, uint64_t *value_p)
{
    uint64_t value = 0;
    const char *start = *at;
    for (; *at < end && **at >= '0' && **at <= '9'; ++*at) {
        value = value * 10 + (uint64_t)(**at - '0');
        if (value > max)
            return false;
    }
    *value_p = value;
    return *at > start;
}

static vc_status_t read_run(reader_t *r, const char **at, const char *end, uint32_t *seen, vc_err_t *err)
{
    uint64_t first, last;
    if (**at == '+') {
        ++*at;
        if (!number(at, end, CS_TRACE_MAX_CHAIN, &last) || last == 0)
            return vc_err_set(err, VC_ERR_INVALID, "\"+\" needs a number of 1 to %u", CS_TRACE_MAX_CHAIN);
        first = *seen;
        last += first - 1;
        *seen = (uint32_t)last + 1;
    } else {
        if (!number(at, end, CS_TRACE_NONE - 1, &first))
            return vc_err_set(err, VC_ERR_INVALID, "neither \"+K\" nor \"A\" nor \"A-B\"");
        last = first;
        if (*at < end && **at == '-') {
            ++*at;
            if (!number(at, end, CS_TRACE_NONE - 1, &last) || last < first)
                return vc_err_set(err, VC_ERR_INVALID, "a run that starts at %u has no right end", (uint32_t)first);
        }
        if (last >= *seen)
            return vc_err_set(err, VC_ERR_INVALID, "block %u has not been seen before", (uint32_t)last);
    }
    for (uint64_t block = first; block <= last; block++) {
        vc_status_t status = push(r, (uint32_t)block, err);
        if (status != VC_OK)
            return status;
    }
    return VC_OK;
}

static vc_status_t read_compact(reader_t *r, const char *line, size_t len, vc_err_t *err)
{
    const char *at = line, *end = line + len;
    uint64_t ms;
    uint32_t seen = r->trace->n_blocks;
    if (!number(&at, end, MAX_TIME_MS, &ms) || r->time_ms + ms > MAX_TIME_MS)
        return vc_err_set(err, VC_ERR_INVALID, "no time in milliseconds at its start");
    r->time_ms += ms;
    while (at < end) {
        if (*at++ != ' ' || at == end)
            return vc_err_set(err, VC_ERR_INVALID, "one space, then a run, was expected");
        vc_status_t status = read_run(r, &at, end, &seen, err);
        if (status != VC_OK)
            return status;
    }
    return VC_OK;
}

static vc_status_t read_lines(reader_t *r, const char *text, size_t len, vc_err_t *err)
{
    static const char head[] = "vericache-trace 1";
    const char *at = text, *end = text + len;
    bool compact = len > 0 && *text != '{';
    for (uint32_t line = 1; at < end; line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop ? stop : end;
        size_t n = (size_t)(stop - at);
        vc_status_t status = VC_OK;
        r->n = 0;
        if (compact && line == 1) {
            if (n != sizeof(head) - 1 || memcmp(at, head, n) != 0)
                status = vc_err_set(err, VC_ERR_INVALID, "neither JSON nor \"%s\"", head);
        } else if (n > 0) {
            status = compact ? read_compact(r, at, n, err) : read_json(r, at, n, err);
            if (status == VC_OK)
                status = cs_trace_add(r->trace, (uint32_t)(r->time_ms / 1000), r->chain, r->n, err);
        }
        if (status != VC_OK)
            return vc_err_prefix(err, "line %u", line);
        at = stop < end ? stop + 1 : end;
    }
    if (r->trace->n_requests == 0)
        return vc_err_set(err, VC_ERR_INVALID, "the trace holds no request");
    return VC_OK;
}

vc_status_t cs_trace_parse(const char *text, size_t len, cs_trace_t **trace_p, vc_err_t *err)
{
    vc_err_t own = {0};
    reader_t *r = vc_calloc(1, sizeof(*r));
    if (!err)
        err = &own;
    if (!r || cs_trace_create(&r->trace) != VC_OK) {
        vc_free(r);
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for the trace");
    }
    vc_status_t status = read_lines(r, text, len, err);
    if (status == VC_OK)
        *trace_p = r->trace;
    else
        cs_trace_destroy(r->trace);
    names_fini(&r->names);
    vc_free(r);
    return status;
}

static vc_status_t read_file(FILE *f, const char *path, char **text_p, size_t *len_p, vc_err_t *err)
{
    size_t cap = 0, n = 0, got;
    char *text = NULL;
    do {
        if (!grow(&text, 1, n + 65536, &cap)) {
            vc_free(text);
            return vc_err_set(err, VC_ERR_NOMEM, "out of memory for %.300s", path);
        }
        got = fread(text + n, 1, cap - n, f);
        n += got;
    } while (got > 0 && n <= MAX_FILE_BYTES);
    int errnum = errno;
    if (ferror(f) || n > MAX_FILE_BYTES) {
        vc_free(text);
        if (n > MAX_FILE_BYTES)
            return vc_err_set(err, VC_ERR_INVALID, "%.300s is larger than %zu bytes", path, MAX_FILE_BYTES);
        return vc_err_set(err, vc_status_from_path_errno(errnum), "cannot read %.300s: %s", path, strerror(errnum));
    }
    *text_p = text;
    *len_p = n;
    return VC_OK;
}

vc_status_t cs_trace_load(const char *path, cs_trace_t **trace_p, vc_err_t *err)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = fopen(path, "rb");
    if (!f)
        return vc_err_set(err, vc_status_from_path_errno(errno), "cannot open %.300s: %s", path, strerror(errno));
    vc_status_t status = read_file(f, path, &text, &len, err);
    fclose(f);
    if (status != VC_OK)
        return status;
    status = cs_trace_parse(text, len, trace_p, err);
    vc_free(text);
    if (status != VC_OK && err)
        vc_err_prefix(err, "%.300s", path);
    return status;
}
