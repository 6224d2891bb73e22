/*
 * What compressors there are, for people: names, parameters, defaults, ranges. The engine has its own tables, which
 * hold places inside its structs and stay with the methods; tests/inference-node/test_compressors.c parses specs until
 * both say the same. Here, because the operator's tool lists them too and links no engine. Static data; any thread.
 */
#ifndef VC_COMPRESSORS_H
#define VC_COMPRESSORS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum {
    VC_COMPRESSOR_DROPS,     /* some rows are kept whole, or coded with "+rot:..." behind */
    VC_COMPRESSOR_QUANTISES, /* all rows, in few bits */
    VC_COMPRESSOR_TEST       /* exact, or wrong on purpose */
} vc_compressor_kind_t;

typedef enum { VC_CALIBRATED_NOT, VC_CALIBRATED_OPTIONAL, VC_CALIBRATED_ALWAYS } vc_compressor_calib_t;

typedef struct vc_compressor_param {
    const char *name, *preset; /* preset: as the canonical text has it; NULL: the text has it instead of another */
    const char *values;        /* "2,3,4,8"; NULL: from lo to hi */
    bool is_real;              /* lo < value <= hi; else a whole number, lo and hi included */
    double lo, hi;
    const char *help;
} vc_compressor_param_t;

typedef struct vc_compressor {
    const char *name, *summary;
    vc_compressor_kind_t kind;
    vc_compressor_calib_t calibrated; /* needs what `vericache-node calibrate` makes */
    bool is_offline;                  /* reads the text again: made by `vericache-node compress` rather than online */
    const vc_compressor_param_t *params;
    uint32_t n_params;
} vc_compressor_t;

const vc_compressor_t *vc_compressors(uint32_t *n_p);
/* A table, or one JSON object. */
void vc_compressors_print(FILE *out, bool json);

#endif
