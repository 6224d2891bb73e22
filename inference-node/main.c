/* vericache-node: finds the subcommand and runs it. Everything else lives in role/. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "role/cmd.h"
#include "vc/log.h"
#include "vc/status.h"

static void print_help(FILE *out)
{
    fputs("usage: vericache-node COMMAND [options]\n\ncommands:\n", out);
    for (const node_cmd_t *cmd = node_cmds; cmd->name != NULL; cmd++)
        fprintf(out, "  %-11s %s\n", cmd->name, cmd->summary);
    fputs("\n'vericache-node COMMAND --help' lists the options of a command; --version shows the version.\n", out);
}

/* What is still buffered counts as written only once it is: a full disk or a closed pipe is no success. */
static int end_output(const char *name, int rc)
{
    if ((fflush(stdout) != 0 || ferror(stdout) != 0) && rc == 0) {
        fprintf(stderr, "vericache-node %s: cannot write the output: %s\n", name, strerror(errno));
        return vc_status_exit_code(VC_ERR_IO);
    }
    return rc;
}

VC_LOG_HOLD_STREAMS;

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN); /* a closed pipe or socket is an error of the write, not the end of the process */
    signal(SIGXFSZ, SIG_IGN); /* and a limit on the size of files one of the file */
    if (argc < 2) {
        print_help(stderr);
        return 64;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("vericache-node %s\n", VC_VERSION);
        return 0;
    }
    for (const node_cmd_t *cmd = node_cmds; cmd->name != NULL; cmd++)
        if (strcmp(argv[1], cmd->name) == 0)
            return end_output(cmd->name, cmd->run(argc - 1, argv + 1));
    fprintf(stderr, "vericache-node: unknown command '%s'; see vericache-node --help\n", argv[1]);
    return 64;
}
