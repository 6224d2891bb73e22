/*
 * Byte-pair merging of one pre-token: repeatedly join the adjacent pair of the lowest rank, the leftmost of equals.
 *
 * Symbols form a linked list; candidate pairs wait in a heap ordered by (rank, position). A candidate whose symbols
 * changed since it was pushed is dropped when it surfaces. n bytes cost O(n log n), so one word of a megabyte is no
 * special case. Owned by one encode call.
 */
#include <string.h>

#include "model/tokenizer_int.h"
#include "vc/mem.h"

#define NO_SYMBOL UINT32_MAX

typedef struct {
    uint32_t id, prev, next; /* id NODE_TOK_NONE: merged into its left neighbour */
} symbol_t;
typedef struct {
    uint32_t rank, at; /* at: index of the left symbol */
    uint32_t left, right;
} candidate_t;

struct bpe_scratch {
    symbol_t *symbols;
    candidate_t *heap;
    size_t cap_symbols, cap_heap, n_heap;
};

bpe_scratch_t *node_bpe_scratch_create(void) { return vc_calloc(1, sizeof(bpe_scratch_t)); }

void node_bpe_scratch_destroy(bpe_scratch_t *s)
{
    if (s == NULL)
        return;
    vc_free(s->symbols);
    vc_free(s->heap);
    vc_free(s);
}

bool node_tok_ids_push(tok_ids_t *list, uint32_t id)
{
    if (list->n == list->cap) {
        size_t cap = list->cap != 0 ? list->cap * 2 : 64;
        uint32_t *ids = vc_realloc(list->ids, cap, sizeof(*ids));
        if (ids == NULL)
            return false;
        list->ids = ids;
        list->cap = cap;
    }
    list->ids[list->n++] = id;
    return true;
}

static bool before(const candidate_t *a, const candidate_t *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

/* Room for every candidate that can exist: n - 1 at the start, and each of at most n - 1 merges pops one, pushes two.
 */
static bool reserve(bpe_scratch_t *s, size_t n)
{
    if (n > s->cap_symbols) {
        symbol_t *symbols = vc_realloc(s->symbols, n, sizeof(*symbols));
        if (symbols == NULL)
            return false;
        s->symbols = symbols;
        s->cap_symbols = n;
    }
    if (2 * n > s->cap_heap) {
        candidate_t *heap = vc_realloc(s->heap, 2 * n, sizeof(*heap));
        if (heap == NULL)
            return false;
        s->heap = heap;
        s->cap_heap = 2 * n;
    }
    s->n_heap = 0;
    return true;
}

static void push(bpe_scratch_t *s, candidate_t c)
{
    size_t i = s->n_heap++;
    while (i > 0 && before(&c, &s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = c;
}

static candidate_t pop(bpe_scratch_t *s)
{
    const candidate_t top = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->n_heap)
            break;
        if (child + 1 < s->n_heap && before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!before(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

static void offer(const node_tokenizer_t *tok, bpe_scratch_t *s, uint32_t left)
{
    if (left == NO_SYMBOL || s->symbols[left].next == NO_SYMBOL)
        return;
    const uint32_t a = s->symbols[left].id, b = s->symbols[s->symbols[left].next].id;
    const tok_merge_t *m = node_tok_merge_find(tok, a, b);
    if (m != NULL)
        push(s, (candidate_t){m->rank, left, a, b});
}

static uint32_t start(const node_tokenizer_t *tok, bpe_scratch_t *s, const char *word, size_t len)
{
    uint32_t n = 0;
    for (size_t i = 0; i < len; i++) {
        const uint32_t id = tok->byte_ids[(unsigned char)word[i]];
        if (id == NODE_TOK_NONE) /* a byte that the vocabulary cannot spell is left out */
            continue;
        s->symbols[n] = (symbol_t){id, n != 0 ? n - 1 : NO_SYMBOL, NO_SYMBOL};
        if (n != 0)
            s->symbols[n - 1].next = n;
        n++;
    }
    return n;
}

static void merge_all(const node_tokenizer_t *tok, bpe_scratch_t *s)
{
    while (s->n_heap != 0) {
        const candidate_t c = pop(s);
        symbol_t *left = &s->symbols[c.at];
        if (left->id != c.left || left->next == NO_SYMBOL || s->symbols[left->next].id != c.right)
            continue; /* one of the two was merged meanwhile */
        symbol_t *right = &s->symbols[left->next];
        left->id = node_tok_merge_find(tok, c.left, c.right)->id;
        left->next = right->next;
        right->id = NODE_TOK_NONE;
        if (left->next != NO_SYMBOL)
            s->symbols[left->next].prev = c.at;
        offer(tok, s, left->prev);
        offer(tok, s, c.at);
    }
}

vc_status_t node_bpe_encode(const node_tokenizer_t *tok, bpe_scratch_t *s, const char *word, size_t len, tok_ids_t *out)
{
    if (tok->whole_words) {
        const uint32_t id = node_tok_word_find(tok, word, len);
        if (id != NODE_TOK_NONE)
            return node_tok_ids_push(out, id) ? VC_OK : VC_ERR_NOMEM;
    }
    if (!reserve(s, len))
        return VC_ERR_NOMEM;
    const uint32_t n = start(tok, s, word, len);
    for (uint32_t i = 0; i + 1 < n; i++)
        offer(tok, s, i);
    merge_all(tok, s);
    for (uint32_t i = 0; n != 0 && i != NO_SYMBOL; i = s->symbols[i].next)
        if (!node_tok_ids_push(out, s->symbols[i].id))
            return VC_ERR_NOMEM;
    return VC_OK;
}
