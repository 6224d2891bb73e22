/* Network addresses as users write them. */
#include "vc/addr.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
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

bool vc_addr_is_loopback(const char *address)
{
    char host[256];
    const char *colon = strrchr(address, ':');
    size_t n = colon != NULL ? (size_t)(colon - address) : strlen(address);
    bool bracketed = n >= 2 && address[0] == '[' && address[n - 1] == ']';
    snprintf(host, sizeof(host), "%.*s", (int)(bracketed ? n - 2 : n), address + (bracketed ? 1 : 0));
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *info = NULL;
    if (getaddrinfo(host, NULL, &hints, &info) != 0)
        return false;
    bool all = true;
    for (const struct addrinfo *a = info; a != NULL; a = a->ai_next) {
        if (a->ai_family == AF_INET) {
            struct sockaddr_in in;
            memcpy(&in, a->ai_addr, sizeof(in));
            all = all && (ntohl(in.sin_addr.s_addr) >> 24) == 127;
        } else if (a->ai_family == AF_INET6) {
            struct sockaddr_in6 in6;
            memcpy(&in6, a->ai_addr, sizeof(in6));
            all = all && IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr);
        }
    }
    freeaddrinfo(info);
    return all;
}
