/*
 * The subcommands of vericache-node. Each is one function in a file of role/, listed in role/commands.c; main.c knows
 * the list and nothing else. argv[0] is the subcommand's name; the result is the exit code (vc_status_exit_code).
 */
#ifndef NODE_CMD_H
#define NODE_CMD_H

#include <stdbool.h>

#include "vc/config.h"
#include "vc/status.h"

typedef struct node_cmd {
    const char *name;
    const char *summary; /* one line of --help */
    int (*run)(int argc, char **argv);
} node_cmd_t;

/* In the order of --help; ends with a NULL name. */
extern const node_cmd_t node_cmds[];

int node_cmd_batch(int argc, char **argv);
int node_cmd_calibrate(int argc, char **argv);
int node_cmd_compress(int argc, char **argv);
int node_cmd_compressors(int argc, char **argv);
int node_cmd_generate(int argc, char **argv);
int node_cmd_register(int argc, char **argv);
int node_cmd_serve(int argc, char **argv);
int node_cmd_tokenize(int argc, char **argv);

/* What register stores and remote drafts are made from unless told otherwise, and what compress makes. */
#define NODE_DEFAULT_COMPRESSOR "rot:bits=4"
#define NODE_DEFAULT_OFFLINE_COMPRESSOR "kvzip:keep=0.5+rot:bits=4"

/*
 * What every subcommand begins with: reads the options, answers --help, --version and --print-config. True: go on with
 * *config_p (to be freed). False: return *rc_p. usage: "[TEXT]", what stands after the name and the options.
 * Environment variables of other subcommands are passed over, unless strict.
 */
bool node_cmd_begin(const vc_opt_t *table, const char *usage, bool strict, int argc, char **argv,
                    vc_config_t **config_p, int *rc_p);
/* The end of a counted noun: "1 pass", "2 passes" with end "es". */
static inline const char *node_plural(uint64_t n, const char *end) { return n == 1 ? "" : end; }

/* Prints "vericache-node NAME: sentence" to stderr and gives the exit code. */
int node_cmd_fail(const char *name, vc_status_t status, const vc_err_t *err);

#endif
