/*
 * Tokens to text. `raw` is what is held back; `out` is what may be shown, valid UTF-8 and NUL-terminated.
 *
 *   tokens -> raw bytes -> [a stop string inside? cut, stopped] -> bytes that no stop string can reach -> UTF-8 -> out
 *
 * Owner thread: the user's.
 */
#include "speculate/text.h"

#include <string.h>

#include "vc/mem.h"

typedef struct {
    char *data;
    size_t len, cap;
} bytes_t;

struct node_text {
    const node_tokenizer_t *tok;
    char *stops[NODE_STOPS_MAX];
    size_t stop_len[NODE_STOPS_MAX];
    uint32_t n_stops;
    bytes_t raw, out;
    size_t taken;
    bool stopped, finished;
};

static bool grow(bytes_t *b, size_t more)
{
    size_t need;
    if (!vc_size_add(b->len, more, &need) || !vc_size_add(need, 1, &need))
        return false;
    if (need <= b->cap)
        return true;
    size_t cap = VC_MAX(need, b->cap * 2);
    char *data = vc_realloc(b->data, cap, 1);
    if (!data)
        return false;
    b->data = data;
    b->cap = cap;
    return true;
}

static bool append(bytes_t *b, const char *data, size_t len)
{
    if (!grow(b, len))
        return false;
    if (len)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = 0;
    return true;
}

vc_status_t node_text_create(const node_tokenizer_t *tok, const char *const *stops, uint32_t n_stops,
                             node_text_t **text_p, vc_err_t *err)
{
    if (n_stops > NODE_STOPS_MAX)
        return vc_err_set(err, VC_ERR_INVALID, "%u stop strings, at most %u are possible", n_stops, NODE_STOPS_MAX);
    node_text_t *t = vc_calloc(1, sizeof *t);
    if (!t || !append(&t->out, "", 0) || !append(&t->raw, "", 0))
        goto err_nomem;
    t->tok = tok;
    for (uint32_t i = 0; i < n_stops; i++) {
        size_t len = strlen(stops[i]);
        if (!len || len > NODE_STOP_BYTES_MAX) {
            node_text_destroy(t);
            return vc_err_set(err, VC_ERR_INVALID, "stop string %u has %zu bytes, 1 to %u are possible", i + 1, len,
                              NODE_STOP_BYTES_MAX);
        }
        t->stops[i] = vc_strdup(stops[i]);
        t->stop_len[i] = len;
        t->n_stops = i + 1;
        if (!t->stops[i])
            goto err_nomem;
    }
    *text_p = t;
    return VC_OK;
err_nomem:
    node_text_destroy(t);
    return vc_err_set(err, VC_ERR_NOMEM, "text: out of memory");
}

void node_text_destroy(node_text_t *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < t->n_stops; i++)
        vc_free(t->stops[i]);
    vc_free(t->raw.data);
    vc_free(t->out.data);
    vc_free(t);
}

/* Bytes of the sequence at p: > 0 valid; 0 it may still become valid; < 0 that many bytes can be no part of any. */
static int utf8_sequence(const unsigned char *p, size_t n)
{
    if (p[0] < 0x80)
        return 1;
    int len = p[0] >= 0xc2 && p[0] <= 0xdf ? 2 : (p[0] & 0xf0) == 0xe0 ? 3 : p[0] >= 0xf0 && p[0] <= 0xf4 ? 4 : 0;
    if (!len)
        return -1;
    /* the second byte also keeps out overlong forms, surrogates and what is over U+10FFFF */
    unsigned lo = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;
    unsigned hi = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf;
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n)
            return 0;
        if (p[i] < lo || p[i] > hi)
            return -i;
        lo = 0x80;
        hi = 0xbf;
    }
    return len;
}

/* Moves raw[0..n) to out; an incomplete sequence at its end stays in raw unless `last`. */
static bool release(node_text_t *t, size_t n, bool last)
{
    size_t i = 0;
    while (i < n) {
        int len = utf8_sequence((const unsigned char *)t->raw.data + i, n - i);
        if (!len && !last)
            break;
        bool ok = len > 0 ? append(&t->out, t->raw.data + i, (size_t)len) : append(&t->out, "\xef\xbf\xbd", 3);
        if (!ok)
            return false;
        i += len > 0 ? (size_t)len : len < 0 ? (size_t)-len : n - i;
    }
    memmove(t->raw.data, t->raw.data + i, t->raw.len - i + 1);
    t->raw.len -= i;
    return true;
}

/* Where the first stop string begins, or raw.len. */
static size_t find_stop(const node_text_t *t)
{
    size_t first = t->raw.len;
    for (uint32_t i = 0; i < t->n_stops; i++) {
        const char *hit = memmem(t->raw.data, t->raw.len, t->stops[i], t->stop_len[i]);
        if (hit && (size_t)(hit - t->raw.data) < first)
            first = (size_t)(hit - t->raw.data);
    }
    return first;
}

/* Bytes at the end of raw that may be the beginning of a stop string. */
static size_t held_by_stops(const node_text_t *t)
{
    size_t held = 0;
    for (uint32_t i = 0; i < t->n_stops; i++) {
        size_t n = VC_MIN(t->stop_len[i] - 1, t->raw.len);
        for (; n > held; n--)
            if (!memcmp(t->raw.data + t->raw.len - n, t->stops[i], n))
                held = n;
    }
    return held;
}

vc_status_t node_text_push(node_text_t *t, uint32_t token, bool *stopped_p, vc_err_t *err)
{
    *stopped_p = t->stopped;
    if (t->stopped || t->finished || node_tokenizer_is_special(t->tok, token))
        return VC_OK;
    size_t len;
    const char *piece = node_tokenizer_piece(t->tok, token, &len);
    bool ok = append(&t->raw, piece, len);
    if (ok) {
        size_t cut = find_stop(t);
        t->stopped = *stopped_p = cut < t->raw.len;
        ok = t->stopped ? release(t, cut, true) : release(t, t->raw.len - held_by_stops(t), false);
    }
    return ok ? VC_OK : vc_err_set(err, VC_ERR_NOMEM, "text: out of memory");
}

vc_status_t node_text_finish(node_text_t *t, vc_err_t *err)
{
    if (!t->stopped && !t->finished && !release(t, t->raw.len, true))
        return vc_err_set(err, VC_ERR_NOMEM, "text: out of memory");
    t->finished = true;
    return VC_OK;
}

const char *node_text_take(node_text_t *t, size_t *len_p)
{
    const char *p = t->out.data + t->taken;
    *len_p = t->out.len - t->taken;
    t->taken = t->out.len;
    return p;
}

const char *node_text_all(const node_text_t *t, size_t *len_p)
{
    *len_p = t->out.len;
    return t->out.data;
}
