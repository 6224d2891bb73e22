/* Printing what a generation came to. No state. */
#include "role/outcome.h"

#include <jansson.h>
#include <stdarg.h>

#include "role/cmd.h"
#include "vc/mem.h"

void node_outcome_note(node_outcome_t *outcome, const char *fmt, ...)
{
    if (outcome->n_notes == NODE_OUTCOME_NOTES)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(outcome->notes[outcome->n_notes++], sizeof(outcome->notes[0]), fmt, ap);
    va_end(ap);
}

double node_outcome_tokens_per_s(const node_outcome_t *outcome)
{
    if (outcome->n_tokens < 2 || outcome->total_us <= outcome->first_us)
        return 0;
    return (outcome->n_tokens - 1) * 1e6 / (double)(outcome->total_us - outcome->first_us);
}

static json_t *counts(const node_outcome_t *o)
{
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f}", "fetch_us", (json_int_t)o->fetch_us,
                     "verify_fetch_us", (json_int_t)o->verify_fetch_us, "first_us", (json_int_t)o->first_us, "total_us",
                     (json_int_t)o->total_us, "rounds", (json_int_t)o->rounds, "drafted", (json_int_t)o->drafted,
                     "accepted", (json_int_t)o->accepted, "source_proposed", (json_int_t)o->source_proposed,
                     "source_accepted", (json_int_t)o->source_accepted, "slow_bytes", (json_int_t)o->slow_bytes,
                     "fast_bytes", (json_int_t)o->fast_bytes, "prefix_blocks", (json_int_t)o->prefix_blocks,
                     "computed_tokens", (json_int_t)o->computed_tokens, "tokens_per_s", node_outcome_tokens_per_s(o));
}

static bool is_solo(const node_outcome_t *o) { return o->isa != NULL; }

/* NULL when out of memory; an empty object for a remote run. */
static json_t *solo_fields(const node_outcome_t *o)
{
    if (!is_solo(o))
        return json_object();
    char digest[2 * VC_DIGEST_BYTES + 1];
    vc_hex(o->kv_digest.b, VC_DIGEST_BYTES, digest);
    return json_pack("{s:s,s:I,s:I,s:I,s:I,s:s,s:I,s:I,s:I,s:I,s:s,s:I,s:I,s:I,s:I}", "kv_digest", digest, "prefill_us",
                     (json_int_t)o->prefill_us, "compress_us", (json_int_t)o->compress_us, "draft_us",
                     (json_int_t)o->draft_us, "verify_us", (json_int_t)o->verify_us, "compressor", o->compressor,
                     "compressed_tokens", (json_int_t)o->compressed_tokens, "compressed_bytes",
                     (json_int_t)o->compressed_bytes, "plain_rounds", (json_int_t)o->plain_rounds, "threads",
                     (json_int_t)o->n_threads, "isa", o->isa, "kv_ram_bytes", (json_int_t)o->kv_ram_bytes,
                     "kv_written_bytes", (json_int_t)o->kv_written_bytes, "kv_read_bytes", (json_int_t)o->kv_read_bytes,
                     "kv_wait_us", (json_int_t)o->kv_wait_us);
}

vc_status_t node_outcome_print_json(const node_outcome_t *o, const char *text, size_t text_len, FILE *out)
{
    char digest[2 * VC_DIGEST_BYTES + 1];
    vc_hex(o->digest.b, VC_DIGEST_BYTES, digest);
    json_t *root = json_pack("{s:s,s:I,s:s,s:s,s:I,s:o}", "mode", o->mode, "prompt_tokens", (json_int_t)o->n_prompt,
                             "finish", node_finish_name(o->finish), "logits_digest", digest, "recoveries",
                             (json_int_t)o->recoveries, "text", json_stringn(text, text_len));
    json_t *numbers = counts(o), *solo = solo_fields(o), *tokens = json_array(), *notes = json_array();
    vc_status_t status = VC_ERR_NOMEM;
    if (root != NULL && numbers != NULL && solo != NULL && tokens != NULL && notes != NULL &&
        json_object_update(root, numbers) == 0 && json_object_update(root, solo) == 0) {
        for (uint32_t i = 0; i < o->n_tokens; i++)
            json_array_append_new(tokens, json_integer(o->tokens[i]));
        for (uint32_t i = 0; i < o->n_notes; i++)
            json_array_append_new(notes, json_string(o->notes[i]));
        json_object_set(root, "tokens", tokens);
        json_object_set(root, "notes", notes);
        status = json_dumpf(root, out, JSON_COMPACT) == 0 && fputc('\n', out) != EOF ? VC_OK : VC_ERR_IO;
    }
    json_decref(root);
    json_decref(numbers);
    json_decref(solo);
    json_decref(tokens);
    json_decref(notes);
    return status;
}

void node_outcome_print_stats(const node_outcome_t *o, FILE *out)
{
    char digest[2 * VC_DIGEST_BYTES + 1];
    vc_hex(o->digest.b, VC_DIGEST_BYTES, digest);
    fprintf(out, "mode %s: prompt %u tokens (%u computed here or by the verifier), answer %u tokens, finish %s\n",
            o->mode, o->n_prompt, o->computed_tokens, o->n_tokens, node_finish_name(o->finish));
    fprintf(out, "first verified token %.2f s, then %.1f tokens/s\n", (double)o->first_us / 1e6,
            node_outcome_tokens_per_s(o));
    if (o->rounds > 0)
        fprintf(out, "%llu round%s with drafts, %.2f accepted per round, %.1f %% of the drafts\n",
                (unsigned long long)o->rounds, node_plural(o->rounds, "s"), (double)o->accepted / (double)o->rounds,
                o->drafted == 0 ? 0.0 : 100.0 * (double)o->accepted / (double)o->drafted);
    if (o->source_proposed > 0)
        fprintf(out, "%llu of %llu proposals of the n-gram source accepted\n", (unsigned long long)o->source_accepted,
                (unsigned long long)o->source_proposed);
    if (o->slow_bytes + o->fast_bytes > 0)
        fprintf(out, "slow link %.2f MB, fast link %.2f MB\n", (double)o->slow_bytes / 1e6,
                (double)o->fast_bytes / 1e6);
    if (is_solo(o)) {
        fprintf(out, "prefill %.2f s, drafting %.2f s, verifying %.2f s (%u pass%s without drafts); %s, %u thread%s\n",
                (double)o->prefill_us / 1e6, (double)o->draft_us / 1e6, (double)o->verify_us / 1e6, o->plain_rounds,
                node_plural(o->plain_rounds, "es"), o->isa, o->n_threads, node_plural(o->n_threads, "s"));
        if (o->compressed_tokens > 0)
            fprintf(out, "drafted from %u tokens compressed by %s to %.2f MB in %.2f s\n", o->compressed_tokens,
                    o->compressor, (double)o->compressed_bytes / 1e6, (double)o->compress_us / 1e6);
        if (o->kv_ram_bytes > 0)
            fprintf(out, "full KV: %.2f MB in memory, %.2f MB written out, %.2f MB streamed, waited %.2f s for it\n",
                    (double)o->kv_ram_bytes / 1e6, (double)o->kv_written_bytes / 1e6, (double)o->kv_read_bytes / 1e6,
                    (double)o->kv_wait_us / 1e6);
    }
    fprintf(out, "digest of committed logits %s\n", digest);
    if (is_solo(o)) {
        vc_hex(o->kv_digest.b, VC_DIGEST_BYTES, digest);
        fprintf(out, "digest of full KV          %s\n", digest);
    }
    for (uint32_t i = 0; i < o->n_notes; i++)
        fprintf(out, "note: %s\n", o->notes[i]);
}
