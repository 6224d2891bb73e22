/* Network addresses as users write them. */
#ifndef VC_ADDR_H
#define VC_ADDR_H

#include <stdbool.h>

#include "vc/status.h"

/* VC_OK for HOST:PORT or [V6]:PORT with a host that is not empty and a port from 0 to 65535; VC_ERR_INVALID with a
 * sentence that quotes it otherwise, NULL included. The resolver would take ports modulo 65536. Looks nothing up. */
vc_status_t vc_addr_check(const char *address, vc_err_t *err);
/* True when every address that the name of HOST:PORT stands for is a loopback one; false also where the resolver knows
 * none. Numbers are not looked up. */
bool vc_addr_is_loopback(const char *address);

#endif
