/* Addresses as users write them: what is accepted ends in a colon and a port. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vc/addr.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    vc_err_t err = {0};
    char *text = malloc(size + 1);
    if (text == NULL)
        abort();
    memcpy(text, data, size);
    text[size] = '\0';
    if (vc_addr_check(text, &err) == VC_OK) {
        const char *colon = strrchr(text, ':');
        char *end;
        if (colon == NULL || colon == text || colon[1] < '0' || colon[1] > '9')
            abort();
        unsigned long port = strtoul(colon + 1, &end, 10);
        if (port > 65535 || *end != '\0')
            abort();
    } else if (err.status != VC_ERR_INVALID || err.msg[0] == '\0') {
        abort();
    }
    free(text);
    return 0;
}
