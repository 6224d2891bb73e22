/* The table of subcommands. A new one is a line here and a prototype in cmd.h. */
#include <stddef.h>

#include "role/cmd.h"

const node_cmd_t node_cmds[] = {
    {"calibrate", "learn from texts what some compressors need of a model", node_cmd_calibrate},
    {"generate", "text from a prompt, here or with a remote verifier", node_cmd_generate},
    {"batch", "texts of many prompts at once, from a file of requests", node_cmd_batch},
    {"serve", "a verify node: full KV from the cache server, verdicts for draft nodes", node_cmd_serve},
    {"register", "compute a document's KV and store it on a cache server", node_cmd_register},
    {"compress", "make compressed copies of what a cache server holds in full", node_cmd_compress},
    {"compressors", "methods of compression, their parameters and defaults", node_cmd_compressors},
    {"tokenize", "show the tokens of a text", node_cmd_tokenize},
    {NULL, NULL, NULL},
};
