/*
 * The file that tells scripts where a program listens, once it does: the port alone on the first line, then one
 * NAME=HOST:PORT a line. A reader sees all of it or nothing. No state, any thread.
 */
#ifndef VC_PORTFILE_H
#define VC_PORTFILE_H

#include "vc/status.h"

/* listen: HOST:PORT as the program was told it; its port gives way to the real one. more: further whole lines, or "".
 * A file that was there is replaced; after a failure it is as it was. A path that leads nowhere is INVALID. */
vc_status_t vc_portfile_write(const char *path, const char *listen, int port, const char *more, vc_err_t *err);

#endif
