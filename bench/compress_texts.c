/* The texts: where they lie, how they are cut into a prefix and what is forced behind it. */
#include <stdio.h>
#include <string.h>

#include "compress_parts.h"
#include "role/prompt.h"
#include "vc/mem.h"

static const struct {
    const char *name, *kind;
    bool has_behind; /* NAME-behind-N.txt is forced after N tokens, instead of what follows in the text */
    bool has_turns;  /* special tokens are parsed */
} sources[] = {
    {"prose", "a story", false, false},
    {"code", "C", false, false},
    {"chat", "turns of a conversation", false, true},
    {"retrieval", "questions and quotations about records", true, false},
};

static uint32_t *read_tokens(const compress_run_t *run, const char *path, bool has_turns, uint32_t *n_p)
{
    char *data;
    size_t bytes;
    uint32_t *ids;
    OK(node_prompt_read_file(path, (size_t)4 << 20, &data, &bytes, &compress_err));
    OK(node_tokenizer_encode(run->node->tok, data, bytes, has_turns, &ids, n_p, &compress_err));
    vc_free(data);
    return ids;
}

static void text_free(compress_text_t *text)
{
    vc_free(text->prefix);
    for (int p = 0; p < COMPRESS_PREFIXES; p++)
        vc_free(text->forced[p]);
}

/* False: the file has too few tokens. */
static bool cut(const compress_run_t *run, size_t source, const char *dir, compress_text_t *text)
{
    char path[400];
    uint32_t n, longest = run->prefixes[run->n_prefixes - 1];
    snprintf(path, sizeof path, "%s/%s.txt", dir, sources[source].name);
    text->prefix = read_tokens(run, path, sources[source].has_turns, &n);
    for (uint32_t p = 0; p < run->n_prefixes; p++) {
        text->n_prefix[p] = run->prefixes[p];
        const uint32_t *from = text->prefix + run->prefixes[p];
        uint32_t n_from = n > run->prefixes[p] ? n - run->prefixes[p] : 0, *behind = NULL;
        if (sources[source].has_behind && !bench_quick()) {
            snprintf(path, sizeof path, "%s/%s-behind-%u.txt", dir, sources[source].name, run->prefixes[p]);
            from = behind = read_tokens(run, path, false, &n_from);
        }
        if (n_from >= run->n_forced)
            text->forced[p] = vc_memdup(from, run->n_forced * sizeof *from);
        vc_free(behind);
        if (!text->forced[p]) {
            bench_note("%s: fewer than %u tokens behind %u", sources[source].name, run->n_forced, run->prefixes[p]);
            return false;
        }
    }
    return n >= longest;
}

void compress_texts_load(compress_run_t *run)
{
    const char *dir = bench_option("text-dir", "bench/texts"), *only = bench_option("texts", "");
    for (size_t i = 0; i < VC_ARRAY_LEN(sources); i++) {
        compress_text_t text = {.name = sources[i].name, .kind = sources[i].kind};
        if (only[0] && !strstr(only, text.name))
            continue;
        if (cut(run, i, dir, &text))
            run->texts[run->n_texts++] = text;
        else
            text_free(&text);
    }
    if (!run->n_texts)
        bench_fail("no text of %s can be measured with these lengths", dir);
}

void compress_texts_free(compress_run_t *run)
{
    for (uint32_t t = 0; t < run->n_texts; t++)
        text_free(&run->texts[t]);
}
