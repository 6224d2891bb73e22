/* GGUF reader and the tokenizer that is built from it: any bytes end in a status. Accessors run over whatever was
 * accepted. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf.h"
#include "model/tokenizer.h"
#include "vc/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use_tokenizer(const node_gguf_t *g)
{
    node_tokenizer_t *tok;
    vc_err_t err;
    uint32_t *ids, n;
    static const char text[] = "<|im_start|>user\nthe 12 ab\xff\xc3\xa9<|im_end|>";
    const node_chat_msg_t msg = {"user", text, sizeof(text) - 1};
    if (node_tokenizer_create(g, &tok, &err) != VC_OK)
        return;
    if (node_tokenizer_encode(tok, text, sizeof(text) - 1, true, &ids, &n, &err) == VC_OK) {
        for (uint32_t i = 0; i < n; i++)
            if (ids[i] >= node_tokenizer_n_vocab(tok))
                abort();
        vc_free(ids);
    }
    if (node_chat_encode(tok, &msg, 1, true, 100, &ids, &n, &err) == VC_OK)
        vc_free(ids);
    node_tokenizer_destroy(tok);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    void *copy = NULL;
    node_gguf_t *g;
    vc_err_t err;
    if (posix_memalign(&copy, 64, size != 0 ? size : 1) != 0)
        return 0;
    if (size != 0)
        memcpy(copy, data, size);
    if (node_gguf_open_memory(copy, size, &g, &err) == VC_OK) {
        unsigned sum = 0;
        uint64_t u;
        double d;
        for (uint64_t i = 0; i < node_gguf_n_tensors(g); i++) {
            const node_gguf_tensor_t *t = node_gguf_tensor_at(g, i);
            if (node_gguf_tensor(g, t->name) != t)
                abort();
            if (t->bytes != 0)
                sum += ((const uint8_t *)t->data)[0] + (unsigned)((const uint8_t *)t->data)[t->bytes - 1];
        }
        (void)node_gguf_u64(g, "llama.block_count", &u);
        (void)node_gguf_f64(g, "llama.rope.freq_base", &d);
        (void)node_gguf_arr_f64(g, "tokenizer.ggml.token_type", 0, &d);
        if (sum != UINT32_MAX)
            use_tokenizer(g);
        node_gguf_close(g);
    }
    free(copy);
    return 0;
}
