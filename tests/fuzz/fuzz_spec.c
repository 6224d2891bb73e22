/* Compressor specs from hostile text: what is accepted has a canonical text that means the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "compress/codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    must(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    node_spec_t spec, again;
    vc_err_t err = {0};
    if (node_spec_parse(text, &spec, &err) == VC_OK) {
        must(strlen(spec.text) < VC_SPEC_TEXT_MAX);
        must(node_spec_parse(spec.text, &again, NULL) == VC_OK);
        must(memcmp(&spec, &again, sizeof(spec)) == 0);
    } else {
        must(err.status == VC_ERR_INVALID && err.msg[0] != '\0');
    }
    free(text);
    return 0;
}
