/* mk_tiny_model FILE [--seed N] [--layers N] [--d-model N] [--heads N] [--kv-heads N] [--head-dim N] [--ffn N]
 * [--context N] [--end-weight X] [--f32]: writes the chat-capable random model of tiny_model.h for scripts. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/tiny_model.h"

static int usage(const char *why)
{
    fprintf(stderr,
            "mk_tiny_model: %s\nusage: mk_tiny_model FILE [--seed N] [--layers N] [--d-model N] [--heads N] "
            "[--kv-heads N] [--head-dim N] [--ffn N] [--context N] [--end-weight X] [--f32]\n",
            why);
    return 64;
}

static int parse(int argc, char **argv, tiny_model_opts_t *o, const char **path_p)
{
    const struct {
        const char *flag;
        uint32_t *value;
    } numbers[] = {{"--seed", &o->seed},    {"--layers", &o->n_layer},     {"--d-model", &o->d_model},
                   {"--heads", &o->n_head}, {"--kv-heads", &o->n_kv_head}, {"--head-dim", &o->head_dim},
                   {"--ffn", &o->d_ffn},    {"--context", &o->context}};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--f32") == 0) {
            o->f32 = true;
            continue;
        }
        if (strncmp(argv[i], "--", 2) != 0 && *path_p == NULL) {
            *path_p = argv[i];
            continue;
        }
        if (i + 1 >= argc)
            return usage("a flag lacks its value");
        char *end;
        if (strcmp(argv[i], "--end-weight") == 0) {
            o->end_weight = strtof(argv[++i], &end);
            if (*end != '\0')
                return usage("--end-weight is not a number");
            continue;
        }
        size_t k = 0;
        while (k < sizeof(numbers) / sizeof(numbers[0]) && strcmp(argv[i], numbers[k].flag) != 0)
            k++;
        if (k == sizeof(numbers) / sizeof(numbers[0]))
            return usage("unknown flag");
        const unsigned long v = strtoul(argv[++i], &end, 10);
        if (*end != '\0' || v > 1u << 20)
            return usage("a number is malformed or too large");
        *numbers[k].value = (uint32_t)v;
    }
    return 0;
}

int main(int argc, char **argv)
{
    tiny_model_opts_t o;
    const char *path = NULL;
    tiny_model_opts_default(&o);
    const int rc = parse(argc, argv, &o, &path);
    if (rc != 0)
        return rc;
    if (path == NULL)
        return usage("no file");
    if (o.n_layer == 0 || o.n_kv_head == 0 || o.n_head % o.n_kv_head != 0 || o.head_dim % 2 != 0 ||
        o.n_head * o.head_dim % 32 != 0 || o.d_model % 32 != 0 || o.d_ffn % 32 != 0 || o.d_model == 0 || o.d_ffn == 0 ||
        o.n_head == 0 || o.head_dim == 0 || o.context == 0)
        return usage("widths must be multiples of 32 and heads a multiple of the KV heads");
    gguf_image_t image = tiny_model_build(&o);
    const bool good = gguf_image_write(&image, path);
    gguf_image_free(&image);
    return good ? 0 : 73;
}
