/* `vericache-node compressors`: the methods of compression, as `vericachectl compressors` lists them. */
#include <stdio.h>

#include "role/cmd.h"
#include "vc/compressors.h"

int node_cmd_compressors(int argc, char **argv)
{
    bool json = false;
    const vc_opt_t table[] = {
        {"json", VC_OPT_BOOL, &json, "false", 0, 0, NULL, "one JSON object instead of text"},
        {0},
    };
    vc_config_t *config = NULL;
    int rc = 0;
    if (!node_cmd_begin(table, "", false, argc, argv, &config, &rc))
        return rc;
    vc_config_free(config);
    vc_compressors_print(stdout, json);
    return 0;
}
