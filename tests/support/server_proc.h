/* vericache-server as a process of a test: started, and asked where it listens. */
#ifndef SUPPORT_SERVER_PROC_H
#define SUPPORT_SERVER_PROC_H

#include <stdio.h>
#include <string.h>

#include "support/proc.h"
#include "support/vc_test.h"

#define SERVER_WAIT_MS 60000 /* only a broken server takes so long */

/* args and env as in vt_proc_start. address: where the control plane listens, "HOST:PORT". */
static inline vt_proc_t *server_proc_start(const char *const *args, const char *const *env, char *address, size_t cap)
{
    char line[500] = "";
    vt_proc_t *p = vt_proc_start("vericache-server", args, env);
    cr_assert(vt_proc_wait_line(p, "ready listen=", SERVER_WAIT_MS, line, sizeof(line)), "%s", vt_proc_output(p));
    const char *at = strstr(line, "listen=") + 7;
    snprintf(address, cap, "%.*s", (int)strcspn(at, " "), at);
    return p;
}

#endif
