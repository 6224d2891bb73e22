/* Addresses of the data plane: parsing, and which network devices carry an address. No UCX calls, no state. */
#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ucx_int.h"
#include "vc/mem.h"

/* "HOST:PORT" or "[V6]:PORT" into its two parts. */
static bool split_address(const char *address, char host[NI_MAXHOST], char port[8])
{
    const char *colon = address == NULL ? NULL : strrchr(address, ':');
    if (colon == NULL)
        return false;
    const char *from = address;
    size_t len = (size_t)(colon - address);
    if (len >= 2 && from[0] == '[' && from[len - 1] == ']') {
        from++;
        len -= 2;
    } else if (memchr(from, ':', len) != NULL) {
        return false; /* an IPv6 address without brackets */
    }
    size_t port_len = strlen(colon + 1);
    if (len == 0 || len >= NI_MAXHOST || port_len == 0 || port_len > 5 || strspn(colon + 1, "0123456789") != port_len)
        return false;
    if (strtoul(colon + 1, NULL, 10) > 65535)
        return false;
    memcpy(host, from, len);
    host[len] = '\0';
    memcpy(port, colon + 1, port_len + 1);
    return true;
}

vc_status_t vc_ucx_resolve(const char *address, bool passive, struct sockaddr_storage *addr_p, socklen_t *len_p,
                           vc_err_t *err)
{
    char host[NI_MAXHOST], port[8];
    if (!split_address(address, host, port))
        return vc_err_set(err, VC_ERR_INVALID, "data-plane address '%s' is not HOST:PORT", address ? address : "");
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    if (passive)
        hints.ai_flags |= AI_PASSIVE;
    struct addrinfo *list = NULL;
    int rc = getaddrinfo(host, port, &hints, &list);
    if (rc != 0 || list == NULL)
        return vc_err_set(err, VC_ERR_UNREACHABLE, "data-plane address '%s': %s", address, gai_strerror(rc));
    memset(addr_p, 0, sizeof(*addr_p));
    memcpy(addr_p, list->ai_addr, VC_MIN((size_t)list->ai_addrlen, sizeof(*addr_p)));
    *len_p = list->ai_addrlen;
    freeaddrinfo(list);
    return VC_OK;
}

static bool is_loopback(const struct sockaddr_storage *addr)
{
    if (addr->ss_family == AF_INET) {
        struct in_addr a = ((const struct sockaddr_in *)addr)->sin_addr;
        return ntohl(a.s_addr) >> 24 == 127;
    }
    return addr->ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)addr)->sin6_addr);
}

static bool is_wildcard(const struct sockaddr_storage *addr)
{
    if (addr->ss_family == AF_INET)
        return ((const struct sockaddr_in *)addr)->sin_addr.s_addr == htonl(INADDR_ANY);
    return addr->ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)addr)->sin6_addr);
}

bool vc_ucx_address_is_loopback(const char *address)
{
    char host[NI_MAXHOST], port[8];
    if (!split_address(address, host, port))
        return false;
    struct sockaddr_storage addr = {0};
    if (strcmp(host, "localhost") == 0)
        return true;
    if (inet_pton(AF_INET, host, &((struct sockaddr_in *)&addr)->sin_addr) == 1)
        addr.ss_family = AF_INET;
    else if (inet_pton(AF_INET6, host, &((struct sockaddr_in6 *)&addr)->sin6_addr) == 1)
        addr.ss_family = AF_INET6;
    return is_loopback(&addr);
}

static bool same_host(const struct sockaddr_storage *a, const struct sockaddr *b)
{
    if (b == NULL || a->ss_family != b->sa_family)
        return false;
    if (b->sa_family == AF_INET)
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr == ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    if (b->sa_family == AF_INET6)
        return memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr, 16) ==
               0;
    return false;
}

/* The local address that the kernel would use towards addr; connect of a datagram socket sends nothing. */
static bool local_side(const struct sockaddr_storage *addr, struct sockaddr_storage *local_p)
{
    socklen_t len = addr->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    socklen_t local_len = sizeof(*local_p);
    int fd = socket(addr->ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    bool ok = connect(fd, (const struct sockaddr *)addr, len) == 0 &&
              getsockname(fd, (struct sockaddr *)local_p, &local_len) == 0;
    close(fd);
    return ok;
}

bool vc_ucx_have_rdma(void)
{
    DIR *dir = opendir("/sys/class/infiniband");
    if (dir == NULL)
        return false;
    bool found = false;
    for (struct dirent *e; !found && (e = readdir(dir)) != NULL;)
        found = e->d_name[0] != '.';
    closedir(dir);
    return found;
}

/* RDMA devices of the same adapter, port 1 and 2: UCX ignores names that do not exist. */
static void add_rdma(const char *netdev, char *devices, size_t cap)
{
    char path[IF_NAMESIZE + 64];
    snprintf(path, sizeof(path), "/sys/class/net/%s/device/infiniband", netdev);
    DIR *dir = opendir(path);
    if (dir == NULL)
        return;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        size_t at = strlen(devices);
        if (e->d_name[0] != '.' && at + 2 * strlen(e->d_name) + 8 < cap)
            snprintf(devices + at, cap - at, ",%s:1,%s:2", e->d_name, e->d_name);
    }
    closedir(dir);
}

vc_status_t vc_ucx_devices(const char *address, const struct sockaddr_storage *addr, bool listen,
                           char devices[UCX_DEVICES_MAX], vc_err_t *err)
{
    if (is_wildcard(addr)) {
        snprintf(devices, UCX_DEVICES_MAX, "all");
        return VC_OK;
    }
    struct sockaddr_storage local = *addr;
    if (!listen && !local_side(addr, &local))
        return vc_err_set(err, VC_ERR_UNREACHABLE, "no route to data-plane address %s", address);
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) != 0)
        return vc_err_set(err, VC_ERR_IO, "cannot list the network devices of this machine");
    const char *name = NULL;
    for (struct ifaddrs *i = list; i != NULL && name == NULL; i = i->ifa_next) {
        bool lo = (i->ifa_flags & IFF_LOOPBACK) != 0 && is_loopback(&local);
        if (lo || same_host(&local, i->ifa_addr))
            name = i->ifa_name;
    }
    if (name != NULL) {
        snprintf(devices, UCX_DEVICES_MAX, "%s", name);
        add_rdma(name, devices, UCX_DEVICES_MAX);
    }
    freeifaddrs(list);
    if (name == NULL)
        return vc_err_set(err, VC_ERR_UNREACHABLE, "data-plane address %s is not an address of this machine", address);
    return VC_OK;
}

void vc_ucx_format(const struct sockaddr_storage *addr, char *text, size_t cap)
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (addr->ss_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)addr;
        inet_ntop(AF_INET6, &a->sin6_addr, host, sizeof(host));
        snprintf(text, cap, "[%s]:%u", host, ntohs(a->sin6_port));
        return;
    }
    const struct sockaddr_in *a = (const struct sockaddr_in *)addr;
    inet_ntop(AF_INET, &a->sin_addr, host, sizeof(host));
    snprintf(text, cap, "%s:%u", host, ntohs(a->sin_port));
}
