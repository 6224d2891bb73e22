/*
 * `vericache-node generate`: text from a prompt, in one process or as the draft node of a remote verifier.
 */
#ifndef NODE_GENERATE_H
#define NODE_GENERATE_H

#include <signal.h>
#include <stdio.h>

#include "compress/codec.h"
#include "model/engine.h"
#include "role/outcome.h"
#include "speculate/sample.h"
#include "speculate/session.h"
#include "speculate/text.h"
#include "vc/config.h"

typedef struct node_generate_opts {
    /* input */
    const char *model, *prompt, *prompt_file, *system;
    bool raw; /* no chat template */
    /* output */
    uint64_t max_tokens;
    const char *stops[NODE_STOPS_MAX];
    uint32_t n_stops;
    bool ignore_end;
    bool json, stats;
    const char *result_file; /* the JSON object goes here as well; empty: nowhere */
    /* drafting */
    uint32_t draft_length;    /* NODE_DRAFT_AUTO, or a number */
    const char *compressor;   /* spec text; empty: none */
    const char *calibration;  /* directory of blobs; empty: the model file's own */
    bool source;              /* an n-gram source proposes tokens (speculate/suffix.h) */
    uint64_t compress_tokens; /* at most this many leading prompt tokens are compressed, in whole blocks (solo) */
    node_sampling_t sampling;
    /* machine */
    uint64_t threads;
    node_isa_t isa;
    uint64_t context;   /* 0: the model's */
    uint64_t kv_ram;    /* bytes of full KV in memory at most, the rest is streamed from a file (solo); 0: no limit */
    const char *kv_dir; /* with kv_ram: where that file is made */
    /* remote */
    const char *server, *verifier; /* verifier: one HOST:PORT or several separated by ',' */
    bool data_plane;               /* full KV over UCX where the server offers it */
    bool tail_verified;            /* draft behind the verifier's K, V rows instead of our own */
} node_generate_opts_t;

/* The draft source that the options ask for, NULL where none is; the caller destroys it. */
vc_status_t node_generate_source(const node_generate_opts_t *opts, node_source_t **source_p, vc_err_t *err);
/* The end of every generation: JSON to out, numbers to stderr, JSON to a file, as the options ask. */
vc_status_t node_generate_report(const node_generate_opts_t *opts, const node_outcome_t *outcome,
                                 const node_text_t *text, FILE *out, vc_err_t *err);
/* Solo. Text goes to out as it is committed; with opts->json the outcome only. *stop_flag (may be NULL) != 0 ends the
 * generation between two passes: CANCELLED, after the report of what there is. */
vc_status_t node_generate_solo(const node_generate_opts_t *opts, FILE *out, const volatile sig_atomic_t *stop_flag,
                               vc_err_t *err);
/* With --server or --verifier: role/remote.c. */
vc_status_t node_generate_remote(const node_generate_opts_t *opts, FILE *out, const volatile sig_atomic_t *stop_flag,
                                 vc_err_t *err);

#endif
