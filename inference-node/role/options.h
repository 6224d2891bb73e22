/*
 * Rows of option tables that several subcommands have, word for word, and checks of what was given. Values are named by
 * the member that takes them.
 */
#ifndef NODE_ROLE_OPTIONS_H
#define NODE_ROLE_OPTIONS_H

#include "vc/config.h"

#define NODE_OPT_MODEL(member)                                                   \
    {                                                                            \
        "model", VC_OPT_STRING, &(member), NULL, 0, 0, NULL, "model file (GGUF)" \
    }
#define NODE_OPT_CALIBRATION(member)                                            \
    {                                                                           \
        "calibration", VC_OPT_STRING, &(member), NULL, 0, 0, NULL,              \
            "directory of calibration blobs; none given: beside the model file" \
    }
#define NODE_OPT_DRAFT_LENGTH(member)                                       \
    {                                                                       \
        "draft-length", VC_OPT_STRING, &(member), "auto", 0, 0, NULL,       \
            "tokens per draft: auto, or a number; 0 decodes without drafts" \
    }
#define NODE_OPT_SOURCE(member)                                                                                        \
    {                                                                                                                  \
        "source", VC_OPT_ENUM, &(member), "suffix", 0, 0, NODE_SOURCES,                                                \
            "what proposes tokens under the drafter, or with an automatic length to the verifier: text that occurred " \
            "before"                                                                                                   \
    }
#define NODE_SOURCES "none|suffix" /* the first is no source */
#define NODE_OPT_DATA_PLANE(member)                                                                             \
    {                                                                                                           \
        "data-plane", VC_OPT_BOOL, &(member), "true", 0, 0, NULL, "full KV over UCX where the server offers it" \
    }
#define NODE_OPT_CONTEXT(member)                                                                                \
    {                                                                                                           \
        "context", VC_OPT_U64, &(member), "0", 0, 4294967295.0, NULL, "context limit in tokens; 0: the model's" \
    }
#define NODE_OPT_THREADS(member)                                                                   \
    {                                                                                              \
        "threads", VC_OPT_U64, &(member), "0", 0, 256, NULL,                                       \
            "threads of the engine, 1 to 256, at most one for each processor that it may run on; " \
            "0: one for each of them, 16 at most"                                                  \
    }
/* The choices stand in the order of node_isa_t. */
#define NODE_OPT_ISA(member)                                                                            \
    {                                                                                                   \
        "isa", VC_OPT_ENUM, &(member), "auto", 0, 0, NODE_ISA_CHOICES, "instruction set of the kernels" \
    }
/* The choices stand in the order of vc_log_level_t. */
#define NODE_OPT_LOG_LEVEL(member, least)                                                                        \
    {                                                                                                            \
        "log-level", VC_OPT_ENUM, &(member), least, 0, 0, "error|warn|info|debug", "least important line to log" \
    }

/* An option that nothing reads in this run. */
typedef struct node_idle_opt {
    const char *name;
    bool idle;
    const char *needs; /* what it is read with */
} node_idle_opt_t;

/* INVALID with a sentence for the first one that was given as a flag although it is idle. The environment and option
 * files speak to many runs and are not looked at. */
vc_status_t node_opts_refuse_idle(const vc_opt_t *table, const vc_config_t *config, const node_idle_opt_t *list,
                                  size_t n, vc_err_t *err);
/* Value of --draft-length: "auto" is NODE_DRAFT_AUTO. INVALID with a sentence. */
vc_status_t node_opts_draft_length(const char *text, uint32_t *x_p, vc_err_t *err);
/* Value of --kv-dir where files for full KV will be needed: none given is $TMPDIR or /var/tmp. With a sentence where no
 * file can be made in it. */
vc_status_t node_opts_kv_dir(const char **dir, vc_err_t *err);
/* Value of an option that names a file to be written at the end: whether it can be, without a change to what is there.
 */
vc_status_t node_opts_out_file(const char *path, vc_err_t *err);

#endif
