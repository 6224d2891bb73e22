/* Metadata and tensors of one model; every key and shape is checked before a kernel may rely on it. */
#include "model/weights.h"

#include <stdio.h>
#include <string.h>

#include "kernels/numerics.h"
#include "kernels/ops.h"
#include "vc/mem.h"

_Static_assert((int)NODE_W_F32 == (int)NODE_GGML_F32 && (int)NODE_W_F16 == (int)NODE_GGML_F16 &&
                   (int)NODE_W_Q4_0 == (int)NODE_GGML_Q4_0 && (int)NODE_W_Q4_1 == (int)NODE_GGML_Q4_1 &&
                   (int)NODE_W_Q8_0 == (int)NODE_GGML_Q8_0,
               "kernels use the file's type numbers");

typedef struct {
    const node_gguf_t *gguf;
    node_weights_t *w;
    vc_err_t *err;
    char name[96]; /* of the tensor at hand */
} load_t;

/* ---- metadata ---- */

static vc_status_t meta_u32(load_t *ld, const char *suffix, uint32_t min, uint32_t max, uint32_t *v_p)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", ld->w->arch, suffix);
    uint64_t v;
    vc_status_t st = node_gguf_u64(ld->gguf, key, &v);
    if (st == VC_ERR_NOT_FOUND)
        return st;
    if (st != VC_OK)
        return vc_err_set(ld->err, VC_ERR_INVALID, "metadata %s is not an unsigned integer", key);
    if (v < min || v > max)
        return vc_err_set(ld->err, VC_ERR_UNSUPPORTED, "metadata %s is %llu, supported are %u to %u", key,
                          (unsigned long long)v, min, max);
    *v_p = (uint32_t)v;
    return VC_OK;
}

static vc_status_t need_u32(load_t *ld, const char *suffix, uint32_t min, uint32_t max, uint32_t *v_p)
{
    vc_status_t st = meta_u32(ld, suffix, min, max, v_p);
    if (st == VC_ERR_NOT_FOUND)
        return vc_err_set(ld->err, VC_ERR_INVALID, "metadata %s.%s is missing", ld->w->arch, suffix);
    return st;
}

/* Leaves *v_p (the default) when the key is absent. */
static vc_status_t opt_u32(load_t *ld, const char *suffix, uint32_t min, uint32_t max, uint32_t *v_p)
{
    vc_status_t st = meta_u32(ld, suffix, min, max, v_p);
    return st == VC_ERR_NOT_FOUND ? VC_OK : st;
}

static vc_status_t opt_f64(load_t *ld, const char *suffix, double min, double max, double *v_p)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", ld->w->arch, suffix);
    double v;
    vc_status_t st = node_gguf_f64(ld->gguf, key, &v);
    if (st == VC_ERR_NOT_FOUND)
        return VC_OK;
    if (st != VC_OK)
        return vc_err_set(ld->err, VC_ERR_INVALID, "metadata %s is not a number", key);
    if (!(v >= min && v <= max))
        return vc_err_set(ld->err, VC_ERR_UNSUPPORTED, "metadata %s is %g, supported are %g to %g", key, v, min, max);
    *v_p = v;
    return VC_OK;
}

static vc_status_t load_arch(load_t *ld)
{
    static const char *const known[] = {"llama", "qwen2", "qwen3"};
    node_gguf_str_t s;
    if (node_gguf_str(ld->gguf, "general.architecture", &s) != VC_OK)
        return vc_err_set(ld->err, VC_ERR_INVALID, "metadata general.architecture is missing or not a string");
    for (size_t i = 0; i < VC_ARRAY_LEN(known); i++)
        if (s.len == strlen(known[i]) && memcmp(s.data, known[i], s.len) == 0) {
            snprintf(ld->w->arch, sizeof ld->w->arch, "%s", known[i]);
            return VC_OK;
        }
    return vc_err_set(ld->err, VC_ERR_UNSUPPORTED, "architecture %.*s is not supported (llama, qwen2, qwen3 are)",
                      (int)VC_MIN(s.len, 40), s.data);
}

static vc_status_t check_heads(load_t *ld)
{
    node_weights_t *w = ld->w;
    /* Without the key it follows from the width: kernels hold a head in fixed arrays, so the bound is for both. */
    if (w->head_dim % 16 != 0 || w->head_dim < 16 || w->head_dim > NODE_HEAD_DIM_MAX)
        return vc_err_set(ld->err, VC_ERR_UNSUPPORTED, "head dimension %u is not a multiple of 16 from 16 to %d",
                          w->head_dim, NODE_HEAD_DIM_MAX);
    if (w->n_head % w->n_kv_head != 0 || w->n_head / w->n_kv_head > NODE_QUERY_MAX)
        return vc_err_set(ld->err, VC_ERR_UNSUPPORTED,
                          "%u query heads over %u KV heads: need a whole ratio of at most %d", w->n_head, w->n_kv_head,
                          NODE_QUERY_MAX);
    if (w->rope.dims % 2 != 0 || w->rope.dims > w->head_dim)
        return vc_err_set(ld->err, VC_ERR_UNSUPPORTED,
                          "RoPE over %u of %u channels: need an even number within the head", w->rope.dims,
                          w->head_dim);
    return VC_OK;
}

static vc_status_t load_dims(load_t *ld)
{
    node_weights_t *w = ld->w;
    uint32_t experts = 0, value_dim, window = UINT32_MAX;
    double eps = 1e-5;
    vc_status_t st = need_u32(ld, "block_count", 1, 1024, &w->n_layer);
    if (st == VC_OK)
        st = need_u32(ld, "embedding_length", 1, 1u << 16, &w->d_model);
    if (st == VC_OK)
        st = need_u32(ld, "feed_forward_length", 1, 1u << 18, &w->d_ffn);
    if (st == VC_OK)
        st = need_u32(ld, "attention.head_count", 1, 1024, &w->n_head);
    if (st != VC_OK)
        return st;
    w->n_kv_head = w->n_head;
    w->head_dim = w->d_model / w->n_head;
    w->context = 2048;
    st = opt_u32(ld, "attention.head_count_kv", 1, 1024, &w->n_kv_head);
    if (st == VC_OK)
        st = opt_u32(ld, "attention.key_length", 16, NODE_HEAD_DIM_MAX, &w->head_dim);
    value_dim = w->rope.dims = w->head_dim;
    if (st == VC_OK)
        st = opt_u32(ld, "attention.value_length", w->head_dim, w->head_dim, &value_dim);
    if (st == VC_OK)
        st = opt_u32(ld, "rope.dimension_count", 2, NODE_HEAD_DIM_MAX, &w->rope.dims);
    if (st == VC_OK)
        st = opt_u32(ld, "context_length", 1, 1u << 20, &w->context);
    if (st == VC_OK)
        st = opt_u32(ld, "expert_count", 0, 0, &experts);
    if (st == VC_OK)
        st = opt_u32(ld, "attention.sliding_window", w->context, UINT32_MAX, &window);
    if (st == VC_OK)
        st = opt_f64(ld, "attention.layer_norm_rms_epsilon", 1e-12, 1.0, &eps);
    w->rms_eps = (float)eps;
    return st == VC_OK ? check_heads(ld) : st;
}

static vc_status_t rope_kind(load_t *ld, node_rope_kind_t *kind_p)
{
    char key[64];
    node_gguf_str_t s;
    snprintf(key, sizeof key, "%s.rope.scaling.type", ld->w->arch);
    vc_status_t st = node_gguf_str(ld->gguf, key, &s);
    *kind_p = NODE_ROPE_DEFAULT;
    if (st == VC_ERR_NOT_FOUND)
        return VC_OK;
    if (st != VC_OK)
        return vc_err_set(ld->err, VC_ERR_INVALID, "metadata %s is not a string", key);
    if (s.len == 6 && memcmp(s.data, "linear", 6) == 0)
        *kind_p = NODE_ROPE_LINEAR;
    else if (s.len == 4 && memcmp(s.data, "yarn", 4) == 0)
        *kind_p = NODE_ROPE_YARN;
    else if (s.len != 4 || memcmp(s.data, "none", 4) != 0)
        return vc_err_set(ld->err, VC_ERR_UNSUPPORTED, "RoPE scaling %.*s is not supported (none, linear, yarn are)",
                          (int)VC_MIN(s.len, 40), s.data);
    return VC_OK;
}

static vc_status_t load_rope_meta(load_t *ld)
{
    node_rope_t *r = &ld->w->rope;
    r->theta = 10000.0;
    r->factor = r->attn_factor = 1.0;
    r->beta_fast = 32.0;
    r->beta_slow = 1.0;
    r->original_context = ld->w->context;
    vc_status_t st = rope_kind(ld, &r->kind);
    if (st == VC_OK)
        st = opt_f64(ld, "rope.freq_base", 1.5, 1e12, &r->theta);
    if (st == VC_OK)
        st = opt_f64(ld, "rope.scaling.factor", 1e-3, 1e6, &r->factor);
    if (st == VC_OK)
        st = opt_f64(ld, "rope.scaling.attn_factor", 1e-3, 1e3, &r->attn_factor);
    if (st == VC_OK)
        st = opt_f64(ld, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, &r->beta_fast);
    if (st == VC_OK)
        st = opt_f64(ld, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, &r->beta_slow);
    if (st == VC_OK)
        st = opt_u32(ld, "rope.scaling.original_context_length", 1, 1u << 30, &r->original_context);
    return st;
}

/* ---- tensors ---- */

static const node_gguf_tensor_t *find(load_t *ld, int layer, const char *what)
{
    if (layer < 0)
        snprintf(ld->name, sizeof ld->name, "%s", what);
    else
        snprintf(ld->name, sizeof ld->name, "blk.%d.%s", layer, what);
    return node_gguf_tensor(ld->gguf, ld->name);
}

static vc_status_t missing(load_t *ld) { return vc_err_set(ld->err, VC_ERR_INVALID, "tensor %s is missing", ld->name); }

/* Vector of n values as floats, padded with zeros to a multiple of 16. *v_p stays NULL when an optional one is absent.
 */
static vc_status_t load_vector(load_t *ld, int layer, const char *what, uint32_t n, bool optional, float **v_p)
{
    const node_gguf_tensor_t *t = find(ld, layer, what);
    if (t == NULL)
        return optional ? VC_OK : missing(ld);
    if (t->n_dims != 1 || t->ne[0] != n)
        return vc_err_set(ld->err, VC_ERR_INVALID, "tensor %s has %u dimensions, the first %llu, instead of one of %u",
                          ld->name, t->n_dims, (unsigned long long)t->ne[0], n);
    if (t->type != NODE_GGML_F32 && t->type != NODE_GGML_F16)
        return vc_err_set(ld->err, VC_ERR_UNSUPPORTED, "tensor %s has type %u; vectors must be F32 or F16", ld->name,
                          t->type);
    float *v = vc_alloc_aligned(64, vc_align_up(n, 16) * sizeof *v);
    if (v == NULL)
        return vc_err_set(ld->err, VC_ERR_NOMEM, "no memory for tensor %s", ld->name);
    memset(v, 0, vc_align_up(n, 16) * sizeof *v);
    node_matrix_unpack_row(t->type, t->data, n, v);
    ld->w->bytes += t->bytes;
    *v_p = v;
    return VC_OK;
}

static vc_status_t check_matrix(load_t *ld, const node_gguf_tensor_t *t, uint32_t n_in, uint32_t n_out)
{
    if (t == NULL)
        return missing(ld);
    if (t->n_dims != 2 || t->ne[0] != n_in || t->ne[1] != n_out)
        return vc_err_set(ld->err, VC_ERR_INVALID, "tensor %s is [%llu, %llu] in %u dimensions instead of [%u, %u]",
                          ld->name, (unsigned long long)t->ne[0], (unsigned long long)t->ne[1], t->n_dims, n_in, n_out);
    if (!node_matrix_type_ok(t->type))
        return vc_err_set(ld->err, VC_ERR_UNSUPPORTED,
                          "tensor %s has type %u; supported are F32, F16, Q4_0, Q4_1, Q8_0", ld->name, t->type);
    if (node_matrix_quantised(t->type) && n_in % NODE_GROUP != 0)
        return vc_err_set(ld->err, VC_ERR_INVALID, "tensor %s is quantised but its rows of %u are no multiple of %u",
                          ld->name, n_in, NODE_GROUP);
    return VC_OK;
}

/* Row of the file that holds output o. Files of arch llama interleave the RoPE pairs of q and k: rows 2i and 2i + 1 of
 * a head are channels i and i + dims / 2. */
static uint32_t file_row(const node_weights_t *w, uint32_t o, bool interleaved)
{
    uint32_t c = o % w->head_dim, half = w->rope.dims / 2;
    if (!interleaved || c >= w->rope.dims)
        return o;
    return o - c + (c < half ? 2 * c : 2 * (c - half) + 1);
}

static vc_status_t load_bias(load_t *ld, int layer, const char *what, node_matrix_t *m, bool interleaved)
{
    float *file = NULL;
    vc_status_t st = load_vector(ld, layer, what, m->n_out, true, &file);
    if (st != VC_OK || file == NULL)
        return st;
    float *bias = vc_alloc_aligned(64, (size_t)m->n_panels * NODE_PANEL * sizeof *bias);
    if (bias == NULL) {
        vc_free(file);
        return vc_err_set(ld->err, VC_ERR_NOMEM, "no memory for tensor %s", ld->name);
    }
    memset(bias, 0, (size_t)m->n_panels * NODE_PANEL * sizeof *bias);
    for (uint32_t o = 0; o < m->n_out; o++)
        bias[o] = file[file_row(ld->w, o, interleaved)];
    vc_free(file);
    m->bias = bias;
    return VC_OK;
}

static vc_status_t pack_tensor(load_t *ld, const node_gguf_tensor_t *t, uint32_t n_in, uint32_t n_out, bool interleaved,
                               node_matrix_t *m)
{
    const uint8_t **rows = vc_calloc(n_out, sizeof *rows);
    if (rows == NULL)
        return vc_err_set(ld->err, VC_ERR_NOMEM, "no memory for tensor %s", ld->name);
    size_t row_bytes = node_matrix_row_bytes(t->type, n_in);
    for (uint32_t o = 0; o < n_out; o++)
        rows[o] = (const uint8_t *)t->data + file_row(ld->w, o, interleaved) * row_bytes;
    vc_status_t st = node_matrix_pack(m, t->type, n_in, n_out, rows, &ld->w->pool);
    vc_free(rows);
    if (st != VC_OK)
        return vc_err_set(ld->err, st, "no memory for tensor %s", ld->name);
    ld->w->bytes += t->bytes;
    return VC_OK;
}

static vc_status_t load_matrix(load_t *ld, int layer, const char *what, uint32_t n_in, uint32_t n_out, bool interleaved,
                               node_matrix_t *m)
{
    char name[64];
    snprintf(name, sizeof name, "%s.weight", what);
    const node_gguf_tensor_t *t = find(ld, layer, name);
    vc_status_t st = check_matrix(ld, t, n_in, n_out);
    if (st == VC_OK)
        st = pack_tensor(ld, t, n_in, n_out, interleaved, m);
    snprintf(name, sizeof name, "%s.bias", what);
    return st == VC_OK ? load_bias(ld, layer, name, m, interleaved) : st;
}

static vc_status_t load_attention(load_t *ld, int i, node_layer_t *layer)
{
    const node_weights_t *w = ld->w;
    uint32_t n_q = w->n_head * w->head_dim, n_kv = w->n_kv_head * w->head_dim;
    bool interleaved = strcmp(w->arch, "llama") == 0, qk_norm = strcmp(w->arch, "qwen3") == 0;
    vc_status_t st = load_vector(ld, i, "attn_norm.weight", w->d_model, false, &layer->attn_norm);
    if (st == VC_OK)
        st = load_matrix(ld, i, "attn_q", w->d_model, n_q, interleaved, &layer->q);
    if (st == VC_OK)
        st = load_matrix(ld, i, "attn_k", w->d_model, n_kv, interleaved, &layer->k);
    if (st == VC_OK)
        st = load_matrix(ld, i, "attn_v", w->d_model, n_kv, false, &layer->v);
    if (st == VC_OK)
        st = load_matrix(ld, i, "attn_output", n_q, w->d_model, false, &layer->o);
    if (st == VC_OK && qk_norm)
        st = load_vector(ld, i, "attn_q_norm.weight", w->head_dim, false, &layer->q_norm);
    if (st == VC_OK && qk_norm)
        st = load_vector(ld, i, "attn_k_norm.weight", w->head_dim, false, &layer->k_norm);
    return st;
}

static vc_status_t load_layer(load_t *ld, int i, node_layer_t *layer)
{
    const node_weights_t *w = ld->w;
    vc_status_t st = load_attention(ld, i, layer);
    if (st == VC_OK)
        st = load_vector(ld, i, "ffn_norm.weight", w->d_model, false, &layer->ffn_norm);
    if (st == VC_OK)
        st = load_matrix(ld, i, "ffn_gate", w->d_model, w->d_ffn, false, &layer->gate);
    if (st == VC_OK)
        st = load_matrix(ld, i, "ffn_up", w->d_model, w->d_ffn, false, &layer->up);
    if (st == VC_OK)
        st = load_matrix(ld, i, "ffn_down", w->d_ffn, w->d_model, false, &layer->down);
    return st;
}

static vc_status_t load_embedding(load_t *ld)
{
    node_weights_t *w = ld->w;
    const node_gguf_tensor_t *t = find(ld, -1, "token_embd.weight");
    if (t == NULL)
        return missing(ld);
    if (t->n_dims != 2 || t->ne[1] == 0 || t->ne[1] > 1u << 24)
        return vc_err_set(ld->err, VC_ERR_INVALID, "tensor %s has %u dimensions and %llu rows: need 2 and 1 to 2^24",
                          ld->name, t->n_dims, (unsigned long long)t->ne[1]);
    w->n_vocab = (uint32_t)t->ne[1];
    vc_status_t st = check_matrix(ld, t, w->d_model, w->n_vocab);
    if (st != VC_OK)
        return st;
    w->embedding.type = t->type;
    w->embedding.row_bytes = node_matrix_row_bytes(t->type, w->d_model);
    w->embedding.rows = vc_alloc_aligned(64, (size_t)t->bytes);
    if (w->embedding.rows == NULL)
        return vc_err_set(ld->err, VC_ERR_NOMEM, "no memory for tensor %s", ld->name);
    memcpy(w->embedding.rows, t->data, (size_t)t->bytes);
    if (node_gguf_tensor(ld->gguf, "output.weight") == NULL) /* tied */
        return pack_tensor(ld, t, w->d_model, w->n_vocab, false, &w->logits);
    w->bytes += t->bytes;
    return load_matrix(ld, -1, "output", w->d_model, w->n_vocab, false, &w->logits);
}

static vc_status_t load_divisors(load_t *ld)
{
    node_weights_t *w = ld->w;
    vc_status_t st = load_vector(ld, -1, "rope_freqs.weight", w->rope.dims / 2, true, &w->rope_divisors);
    if (st != VC_OK || w->rope_divisors == NULL)
        return st;
    for (uint32_t i = 0; i < w->rope.dims / 2; i++)
        if (!(w->rope_divisors[i] > 0.0f) || w->rope_divisors[i] > 1e30f)
            return vc_err_set(ld->err, VC_ERR_INVALID, "tensor rope_freqs.weight: value %u is %g, must be positive", i,
                              (double)w->rope_divisors[i]);
    w->rope.divisors = w->rope_divisors;
    if (w->rope.kind == NODE_ROPE_DEFAULT)
        w->rope.kind = NODE_ROPE_LLAMA3;
    return VC_OK;
}

static vc_status_t load_all(load_t *ld)
{
    node_weights_t *w = ld->w;
    vc_status_t st = load_arch(ld);
    if (st == VC_OK)
        st = load_dims(ld);
    if (st == VC_OK)
        st = load_rope_meta(ld);
    if (st == VC_OK)
        st = load_divisors(ld);
    if (st == VC_OK)
        st = load_vector(ld, -1, "output_norm.weight", w->d_model, false, &w->out_norm);
    if (st != VC_OK)
        return st;
    w->layers = vc_calloc(w->n_layer, sizeof *w->layers);
    if (w->layers == NULL)
        return vc_err_set(ld->err, VC_ERR_NOMEM, "no memory for %u layers", w->n_layer);
    for (uint32_t i = 0; st == VC_OK && i < w->n_layer; i++)
        st = load_layer(ld, (int)i, &w->layers[i]);
    return st == VC_OK ? load_embedding(ld) : st;
}

vc_status_t node_weights_load(node_weights_t *w, const node_gguf_t *gguf, vc_err_t *err)
{
    *w = (node_weights_t){0};
    load_t ld = {.gguf = gguf, .w = w, .err = err};
    vc_status_t st = load_all(&ld);
    if (st != VC_OK)
        node_weights_free(w);
    return st;
}

void node_weights_free(node_weights_t *w)
{
    for (uint32_t i = 0; w->layers != NULL && i < w->n_layer; i++) {
        node_layer_t *l = &w->layers[i];
        node_matrix_t *all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < VC_ARRAY_LEN(all); j++)
            vc_free((void *)all[j]->bias);
        vc_free(l->attn_norm);
        vc_free(l->ffn_norm);
        vc_free(l->q_norm);
        vc_free(l->k_norm);
    }
    vc_free(w->layers);
    vc_free(w->out_norm);
    vc_free(w->embedding.rows);
    vc_free(w->rope_divisors);
    vc_free((void *)w->logits.bias);
    node_huge_pool_free(&w->pool);
    *w = (node_weights_t){0};
}
