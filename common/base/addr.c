/* Network addresses as users write them. */
#include "vc/addr.h"

#include <stdbool.h>
#include <string.h>

vc_status_t vc_addr_check(const char *address, vc_err_t *err)
{
    const char *colon = address != NULL ? strrchr(address, ':') : NULL;
    size_t host = colon != NULL ? (size_t)(colon - address) : 0;
    size_t digits = colon != NULL ? strspn(colon + 1, "0123456789") : 0;
    bool bracketed = host >= 3 && address[0] == '[' && address[host - 1] == ']';
    if (host == 0 || (address[0] == '[' && !bracketed) || digits == 0 || colon[1 + digits] != '\0' ||
        (!bracketed && memchr(address, ':', host) != NULL)) /* an IPv6 address without brackets */
        return vc_err_set(err, VC_ERR_INVALID, "address \"%.200s\" is not HOST:PORT", address != NULL ? address : "");
    unsigned port = 0;
    for (size_t i = 0; i < digits && port <= 65535; i++)
        port = 10 * port + (unsigned)(colon[1 + i] - '0');
    if (port > 65535)
        return vc_err_set(err, VC_ERR_INVALID, "address \"%.200s\": ports end at 65535", address);
    return VC_OK;
}
