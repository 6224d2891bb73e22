/* vericachectl: what operators ask a server. On libvericache only. */
#ifndef CS_CTL_H
#define CS_CTL_H

#include <stdio.h>

/* The whole program: parses, calls, prints to out and err. Returns the exit code (sysexits, vc/status.h). */
int ctl_run(int argc, char **argv, char **environ_list, FILE *out, FILE *err);

#endif
