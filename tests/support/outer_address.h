/* An address of this machine that other machines could reach, for what loopback cannot show. */
#ifndef SUPPORT_OUTER_ADDRESS_H
#define SUPPORT_OUTER_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

/* The first IPv4 address that is up and not loopback, with port 0: "192.0.2.7:0". False: there is none. */
bool vt_outer_address(char *address, size_t cap);

#endif
