/* Small models for tests; see tiny_model.h. */
#include "support/tiny_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *need(void *ptr)
{
    if (ptr == NULL)
        abort();
    return ptr;
}

/* ---- from golden vectors ---- */

typedef struct {
    const golden_case_t *c;
    gguf_writer_t *w;
    const char *arch;
    size_t n_head, n_kv_head, head_dim;
} convert_t;

static void key_u32(gguf_writer_t *w, const char *arch, const char *key, int64_t v)
{
    char name[128];
    snprintf(name, sizeof(name), "%s.%s", arch, key);
    gguf_writer_u32(w, name, (uint32_t)v);
}
static void key_f32(gguf_writer_t *w, const char *arch, const char *key, double v)
{
    char name[128];
    snprintf(name, sizeof(name), "%s.%s", arch, key);
    gguf_writer_f32(w, name, (float)v);
}

/* Half-split rows (j * d/2 + i, j = 0, 1) of each head to interleaved ones (2 * i + j). */
static void interleave(float *x, size_t n_head, size_t head_dim, size_t cols)
{
    float *copy = need(malloc(n_head * head_dim * cols * sizeof(*copy)));
    memcpy(copy, x, n_head * head_dim * cols * sizeof(*copy));
    for (size_t h = 0; h < n_head; h++)
        for (size_t r = 0; r < head_dim; r++) {
            const size_t to = 2 * (r % (head_dim / 2)) + r / (head_dim / 2);
            memcpy(x + (h * head_dim + to) * cols, copy + (h * head_dim + r) * cols, cols * sizeof(*x));
        }
    free(copy);
}

static void convert(const convert_t *v, const char *from, const char *to, size_t interleave_heads)
{
    if (!golden_in_has(v->c, from))
        return;
    golden_tensor_t t = golden_in(v->c, from);
    const size_t cols = t.n_dims == 2 ? t.shape[1] : 1;
    if (interleave_heads != 0 && strcmp(v->arch, "llama") == 0)
        interleave(t.f32, interleave_heads, v->head_dim, cols);
    if (t.n_dims == 2)
        gguf_writer_tensor(v->w, to, GGUF_W_F32, t.shape[1], t.shape[0], t.f32);
    else
        gguf_writer_tensor(v->w, to, GGUF_W_F32, t.shape[0], 0, t.f32);
    golden_tensor_free(&t);
}

static void convert_layer(const convert_t *v, int layer)
{
    const struct {
        const char *from, *to;
        size_t heads;
    } map[] = {
        {"input_layernorm.weight", "attn_norm.weight", 0},
        {"self_attn.q_proj.weight", "attn_q.weight", v->n_head},
        {"self_attn.k_proj.weight", "attn_k.weight", v->n_kv_head},
        {"self_attn.v_proj.weight", "attn_v.weight", 0},
        {"self_attn.q_proj.bias", "attn_q.bias", v->n_head},
        {"self_attn.k_proj.bias", "attn_k.bias", v->n_kv_head},
        {"self_attn.v_proj.bias", "attn_v.bias", 0},
        {"self_attn.q_norm.weight", "attn_q_norm.weight", 0},
        {"self_attn.k_norm.weight", "attn_k_norm.weight", 0},
        {"self_attn.o_proj.weight", "attn_output.weight", 0},
        {"post_attention_layernorm.weight", "ffn_norm.weight", 0},
        {"mlp.gate_proj.weight", "ffn_gate.weight", 0},
        {"mlp.up_proj.weight", "ffn_up.weight", 0},
        {"mlp.down_proj.weight", "ffn_down.weight", 0},
    };
    for (size_t i = 0; i < sizeof(map) / sizeof(map[0]); i++) {
        char from[128], to[128];
        snprintf(from, sizeof(from), "model.layers.%d.%s", layer, map[i].from);
        snprintf(to, sizeof(to), "blk.%d.%s", layer, map[i].to);
        convert(v, from, to, map[i].heads);
    }
}

/* llama3 scaling is a property of the file's tensors: each frequency divided by a factor. */
static void add_rope_factors(const convert_t *v, const json_t *rope)
{
    const json_t *scaled = json_object_get(rope, "inv_freq");
    const double theta = json_number_value(json_object_get(rope, "rope_theta"));
    float factors[256];
    const size_t n = v->head_dim / 2;
    for (size_t i = 0; i < n && i < 256; i++) {
        const double plain = pow(theta, -2.0 * (double)i / (double)v->head_dim);
        factors[i] = (float)(plain / json_number_value(json_array_get(scaled, i)));
    }
    gguf_writer_tensor(v->w, "rope_freqs.weight", GGUF_W_F32, n, 0, factors);
}

static void add_rope(const convert_t *v)
{
    const json_t *rope = json_object_get(v->c->params, "rope");
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    key_f32(v->w, v->arch, "rope.freq_base", json_number_value(json_object_get(rope, "rope_theta")));
    key_u32(v->w, v->arch, "rope.dimension_count", (int64_t)v->head_dim);
    if (strcmp(type, "llama3") == 0)
        add_rope_factors(v, rope);
    if (strcmp(type, "yarn") != 0 && strcmp(type, "linear") != 0)
        return;
    char name[128];
    snprintf(name, sizeof(name), "%s.rope.scaling.type", v->arch);
    gguf_writer_str(v->w, name, type);
    key_f32(v->w, v->arch, "rope.scaling.factor", json_number_value(json_object_get(rope, "factor")));
    const json_t *original = json_object_get(rope, "original_max_position_embeddings");
    if (original != NULL)
        key_u32(v->w, v->arch, "rope.scaling.original_context_length", json_integer_value(original));
}

gguf_image_t tiny_model_from_golden(const golden_case_t *c)
{
    convert_t v = {.c = c,
                   .w = gguf_writer_create(),
                   .arch = "llama",
                   .n_head = (size_t)golden_int(c, "Hq"),
                   .n_kv_head = (size_t)golden_int(c, "H"),
                   .head_dim = (size_t)golden_int(c, "d")};
    if (golden_in_has(c, "model.layers.0.self_attn.q_proj.bias"))
        v.arch = "qwen2";
    else if (golden_in_has(c, "model.layers.0.self_attn.q_norm.weight"))
        v.arch = "qwen3";
    gguf_writer_str(v.w, "general.architecture", v.arch);
    gguf_writer_str(v.w, "general.name", c->name);
    key_u32(v.w, v.arch, "block_count", golden_int(c, "layers"));
    key_u32(v.w, v.arch, "context_length", 128);
    key_u32(v.w, v.arch, "embedding_length", golden_int(c, "D"));
    key_u32(v.w, v.arch, "feed_forward_length", golden_int(c, "ffn"));
    key_u32(v.w, v.arch, "attention.head_count", golden_int(c, "Hq"));
    key_u32(v.w, v.arch, "attention.head_count_kv", golden_int(c, "H"));
    key_u32(v.w, v.arch, "attention.key_length", golden_int(c, "d"));
    key_u32(v.w, v.arch, "attention.value_length", golden_int(c, "d"));
    key_u32(v.w, v.arch, "vocab_size", golden_int(c, "V"));
    key_f32(v.w, v.arch, "attention.layer_norm_rms_epsilon", golden_num(c, "rms_eps"));
    add_rope(&v);
    convert(&v, "model.embed_tokens.weight", "token_embd.weight", 0);
    for (int layer = 0; layer < golden_int(c, "layers"); layer++)
        convert_layer(&v, layer);
    convert(&v, "model.norm.weight", "output_norm.weight", 0);
    convert(&v, "lm_head.weight", "output.weight", 0);
    return gguf_writer_finish(v.w);
}

/* ---- a random model that can chat ---- */

/* Merges in rank order; "_" stands for the space byte. Each names two tokens that exist before it. */
static const char *const merges[][2] = {
    {"_", "t"},   {"h", "e"},  {"i", "n"},   {"r", "e"},  {"o", "n"},  {"a", "t"}, {"e", "r"},  {"_", "a"},
    {"_t", "he"}, {"o", "u"},  {"_", "s"},   {"a", "n"},  {"_", "o"},  {"e", "n"}, {"i", "s"},  {"_", "w"},
    {"o", "r"},   {"e", "s"},  {"i", "t"},   {"in", "g"}, {"_", "c"},  {"_", "b"}, {"_", "f"},  {"a", "l"},
    {"e", "d"},   {"_a", "n"}, {"l", "l"},   {"_o", "f"}, {"_", "p"},  {"a", "r"}, {"_", "in"}, {"_an", "d"},
    {"l", "e"},   {"_t", "o"}, {"u", "s"},   {"a", "s"},  {"o", "m"},  {"_", "m"}, {"s", "y"},  {"_", "d"},
    {"sy", "s"},  {"_", "h"},  {"us", "er"}, {"_", "l"},  {"_", "is"},
};
#define N_MERGES (sizeof(merges) / sizeof(merges[0]))
_Static_assert(TINY_ID_FIRST_BYTE + 256 + N_MERGES == TINY_N_VOCAB, "three specials, 256 bytes, merges");

static const char chat_template[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou "
    "are "
    "a small model for tests<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/* The printable stand-in of a byte in a byte-level vocabulary, as UTF-8; returns its length. */
static size_t byte_char(unsigned byte, char *out)
{
    unsigned extra = 256, code = byte;
    for (unsigned b = 0; b <= byte; b++) {
        const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        code = itself ? b : extra;
        extra += !itself;
    }
    if (code < 128) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xc0u | code >> 6);
    out[1] = (char)(0x80u | (code & 63u));
    return 2;
}

/* "_t" to "\xc4\xa0t". */
static void merge_text(const char *s, char *out)
{
    size_t n = 0;
    for (; *s != '\0'; s++)
        n += byte_char(*s == '_' ? ' ' : (unsigned char)*s, out + n);
    out[n] = '\0';
}

void tiny_model_add_tokenizer(gguf_writer_t *w)
{
    static const char *const specials[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    char text[TINY_N_VOCAB][20] = {{0}}, merge[N_MERGES][24];
    const char *tokens[TINY_N_VOCAB], *merge_list[N_MERGES];
    int32_t types[TINY_N_VOCAB];
    for (unsigned i = 0; i < TINY_N_VOCAB; i++) {
        tokens[i] = text[i];
        types[i] = i < TINY_ID_FIRST_BYTE ? 3 : 1;
        if (i < TINY_ID_FIRST_BYTE)
            snprintf(text[i], sizeof(text[i]), "%s", specials[i]);
        else if (i < TINY_ID_FIRST_BYTE + 256)
            byte_char(i - TINY_ID_FIRST_BYTE, text[i]);
    }
    for (size_t i = 0; i < N_MERGES; i++) {
        char a[10], b[10];
        merge_text(merges[i][0], a);
        merge_text(merges[i][1], b);
        snprintf(text[TINY_ID_FIRST_BYTE + 256 + i], sizeof(text[0]), "%s%s", a, b);
        snprintf(merge[i], sizeof(merge[i]), "%s %s", a, b);
        merge_list[i] = merge[i];
    }
    gguf_writer_str(w, "tokenizer.ggml.model", "gpt2");
    gguf_writer_str(w, "tokenizer.ggml.pre", "smollm");
    gguf_writer_strs(w, "tokenizer.ggml.tokens", tokens, TINY_N_VOCAB);
    gguf_writer_i32s(w, "tokenizer.ggml.token_type", types, TINY_N_VOCAB);
    gguf_writer_strs(w, "tokenizer.ggml.merges", merge_list, N_MERGES);
    gguf_writer_u32(w, "tokenizer.ggml.bos_token_id", TINY_ID_IM_START);
    gguf_writer_u32(w, "tokenizer.ggml.eos_token_id", TINY_ID_IM_END);
    gguf_writer_bool(w, "tokenizer.ggml.add_bos_token", false);
    gguf_writer_str(w, "tokenizer.chat_template", chat_template);
}

/* The id of a token written with '_' for the space. */
static uint32_t find_token(const char *text)
{
    if (text[1] == '\0')
        return TINY_ID_FIRST_BYTE + (text[0] == '_' ? ' ' : (unsigned char)text[0]);
    for (uint32_t i = 0; i < N_MERGES; i++) {
        const size_t n = strlen(merges[i][0]);
        if (strncmp(text, merges[i][0], n) == 0 && strcmp(text + n, merges[i][1]) == 0)
            return TINY_ID_FIRST_BYTE + 256 + i;
    }
    abort();
}

bool tiny_model_merge(uint32_t id, uint32_t *left_p, uint32_t *right_p)
{
    if (id < TINY_ID_FIRST_BYTE + 256 || id >= TINY_N_VOCAB)
        return false;
    *left_p = find_token(merges[id - TINY_ID_FIRST_BYTE - 256][0]);
    *right_p = find_token(merges[id - TINY_ID_FIRST_BYTE - 256][1]);
    return true;
}

void tiny_model_opts_default(tiny_model_opts_t *opts)
{
    *opts = (tiny_model_opts_t){.seed = 1,
                                .n_layer = 3,
                                .d_model = 64,
                                .n_head = 4,
                                .n_kv_head = 2,
                                .head_dim = 16,
                                .d_ffn = 128,
                                .n_vocab = TINY_N_VOCAB,
                                .context = 4096};
}

typedef struct {
    gguf_writer_t *w;
    uint32_t seed; /* of the next tensor */
    bool f32;
} random_t;

/* [rows][cols] uniform of the given standard deviation. */
static float *random_matrix(random_t *r, size_t rows, size_t cols, double deviation)
{
    float *x = need(malloc(rows * cols * sizeof(*x)));
    golden_fill(r->seed++, deviation * sqrt(3.0), x, rows * cols);
    return x;
}

static void add_matrix(random_t *r, const char *name, gguf_writer_type_t type, size_t rows, size_t cols,
                       double deviation)
{
    float *x = random_matrix(r, rows, cols, deviation);
    gguf_writer_tensor(r->w, name, r->f32 ? GGUF_W_F32 : type, cols, rows, x);
    free(x);
}

static void add_norm(random_t *r, const char *name, size_t n)
{
    float *x = random_matrix(r, 1, n, 0.1);
    for (size_t i = 0; i < n; i++)
        x[i] += 1.0f;
    gguf_writer_tensor(r->w, name, GGUF_W_F32, n, 0, x);
    free(x);
}

/* The weights' deviations keep every branch at about the size of the stream it is added to, and attention logits at a
 * deviation of about 2: each next token then hangs on the whole prefix, and greedy text does not fall into a loop. */
static void add_layer(random_t *r, const tiny_model_opts_t *o, uint32_t layer)
{
    const size_t d = o->d_model, q = (size_t)o->n_head * o->head_dim, kv = (size_t)o->n_kv_head * o->head_dim;
    const double unit = 1.0 / sqrt((double)d);
    const struct {
        const char *name;
        gguf_writer_type_t type;
        size_t rows, cols;
        double deviation;
    } map[] = {
        {"attn_q.weight", GGUF_W_Q4_1, q, d, 1.5 * unit},
        {"attn_k.weight", GGUF_W_Q4_1, kv, d, 1.5 * unit},
        {"attn_v.weight", GGUF_W_Q8_0, kv, d, 1.5 * unit},
        {"attn_output.weight", layer == 0 ? GGUF_W_F16 : GGUF_W_Q4_1, d, q, 1.5 / sqrt((double)q)},
        {"ffn_gate.weight", GGUF_W_Q4_1, o->d_ffn, d, 1.5 * unit},
        {"ffn_up.weight", GGUF_W_Q4_0, o->d_ffn, d, 1.5 * unit},
        {"ffn_down.weight", GGUF_W_Q8_0, d, o->d_ffn, 1.5 / sqrt((double)o->d_ffn)},
    };
    char name[64];
    snprintf(name, sizeof(name), "blk.%u.attn_norm.weight", layer);
    add_norm(r, name, d);
    snprintf(name, sizeof(name), "blk.%u.ffn_norm.weight", layer);
    add_norm(r, name, d);
    for (size_t i = 0; i < sizeof(map) / sizeof(map[0]); i++) {
        snprintf(name, sizeof(name), "blk.%u.%s", layer, map[i].name);
        add_matrix(r, name, map[i].type, map[i].rows, map[i].cols, map[i].deviation);
    }
}

/* Printable text dominates, so that what a demo or a log shows can be read; an end token wins only on request. */
static void add_output(random_t *r, const tiny_model_opts_t *o)
{
    const size_t d = o->d_model;
    float *x = random_matrix(r, o->n_vocab, d, 4.0 / sqrt((double)d));
    for (size_t i = 0; i < o->n_vocab; i++) {
        const size_t byte = i - TINY_ID_FIRST_BYTE;
        float scale = 1.0f;
        if (i == TINY_ID_IM_END)
            scale = o->end_weight;
        else if (i < TINY_ID_FIRST_BYTE)
            scale = 0.0f;
        else if (byte < 256 && (byte < 32 || byte > 126) && byte != '\n')
            scale = 0.25f;
        for (size_t k = 0; k < d; k++)
            x[i * d + k] *= scale;
    }
    gguf_writer_tensor(r->w, "output.weight", r->f32 ? GGUF_W_F32 : GGUF_W_Q8_0, d, o->n_vocab, x);
    free(x);
}

gguf_image_t tiny_model_build(const tiny_model_opts_t *o)
{
    gguf_writer_t *w = gguf_writer_create();
    random_t r = {.w = w, .seed = o->seed * 1000u + 1u, .f32 = o->f32};
    gguf_writer_str(w, "general.architecture", "llama");
    gguf_writer_str(w, "general.name", "tiny random model");
    key_u32(w, "llama", "block_count", o->n_layer);
    key_u32(w, "llama", "context_length", o->context);
    key_u32(w, "llama", "embedding_length", o->d_model);
    key_u32(w, "llama", "feed_forward_length", o->d_ffn);
    key_u32(w, "llama", "attention.head_count", o->n_head);
    key_u32(w, "llama", "attention.head_count_kv", o->n_kv_head);
    key_u32(w, "llama", "attention.key_length", o->head_dim);
    key_u32(w, "llama", "attention.value_length", o->head_dim);
    key_u32(w, "llama", "rope.dimension_count", o->head_dim);
    key_u32(w, "llama", "vocab_size", o->n_vocab);
    key_f32(w, "llama", "rope.freq_base", 10000.0);
    key_f32(w, "llama", "attention.layer_norm_rms_epsilon", 1e-5);
    tiny_model_add_tokenizer(w);
    add_matrix(&r, "token_embd.weight", GGUF_W_Q8_0, o->n_vocab, o->d_model, 1.0);
    for (uint32_t layer = 0; layer < o->n_layer; layer++)
        add_layer(&r, o, layer);
    add_norm(&r, "output_norm.weight", o->d_model);
    add_output(&r, o);
    return gguf_writer_finish(w);
}
