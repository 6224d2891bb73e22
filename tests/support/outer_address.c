/* Goes through the network interfaces. */
#include "support/outer_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>

bool vt_outer_address(char *address, size_t cap)
{
    struct ifaddrs *list = NULL;
    bool found = false;
    if (getifaddrs(&list) != 0)
        return false;
    for (struct ifaddrs *i = list; i != NULL && !found; i = i->ifa_next) {
        char host[INET_ADDRSTRLEN];
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET || (i->ifa_flags & IFF_LOOPBACK) != 0 ||
            (i->ifa_flags & IFF_UP) == 0)
            continue;
        inet_ntop(AF_INET, &((struct sockaddr_in *)i->ifa_addr)->sin_addr, host, sizeof(host));
        snprintf(address, cap, "%s:0", host);
        found = true;
    }
    freeifaddrs(list);
    return found;
}
