/* Reads one request. No state. */
#include "role/jobs.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "vc/mem.h"

#define ID_BYTES_MAX 256u
#define TOKENS_MAX (1u << 24)

static vc_status_t take_id(node_job_t *job, const json_t *v, vc_err_t *err)
{
    if (!json_is_integer(v) && !(json_is_string(v) && json_string_length(v) <= ID_BYTES_MAX))
        return vc_err_set(err, VC_ERR_INVALID, "id is neither an integer nor a string of at most %u bytes",
                          ID_BYTES_MAX);
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    if (text == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    vc_free(job->id);
    job->id = vc_strdup(text);
    free(text); /* jansson's */
    return job->id != NULL ? VC_OK : vc_err_set(err, VC_ERR_NOMEM, "out of memory");
}

static vc_status_t take_string(const char *name, const json_t *v, char **out, vc_err_t *err)
{
    if (!json_is_string(v))
        return vc_err_set(err, VC_ERR_INVALID, "%s is no string", name);
    *out = vc_strdup(json_string_value(v)); /* without NUL inside: the parser refuses it */
    return *out != NULL ? VC_OK : vc_err_set(err, VC_ERR_NOMEM, "out of memory");
}

static vc_status_t take_bool(const char *name, const json_t *v, bool *out, vc_err_t *err)
{
    if (!json_is_boolean(v))
        return vc_err_set(err, VC_ERR_INVALID, "%s is neither true nor false", name);
    *out = json_is_true(v);
    return VC_OK;
}

static vc_status_t take_source(node_job_t *job, const json_t *v, vc_err_t *err)
{
    if (job->no_drafts)
        return vc_err_set(err, VC_ERR_INVALID,
                          "source does nothing here: it is read with drafts, and --draft-length is 0");
    const char *name = json_is_string(v) ? json_string_value(v) : "";
    job->source = strcmp(name, "suffix") == 0;
    return job->source || strcmp(name, "none") == 0
               ? VC_OK
               : vc_err_set(err, VC_ERR_INVALID, "source is neither \"suffix\" nor \"none\"");
}

static vc_status_t take_max_tokens(node_job_t *job, const json_t *v, vc_err_t *err)
{
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > TOKENS_MAX)
        return vc_err_set(err, VC_ERR_RANGE, "max_tokens is no integer in 1 to %u", TOKENS_MAX);
    job->max_tokens = (uint32_t)json_integer_value(v);
    return VC_OK;
}

static vc_status_t take_stops(node_job_t *job, const json_t *v, vc_err_t *err)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > NODE_STOPS_MAX)
        return vc_err_set(err, VC_ERR_RANGE, "stop: at most %u stop strings", NODE_STOPS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
        vc_status_t st = take_string("stop", one, &job->stops[job->n_stops], err);
        if (st != VC_OK)
            return st;
        size_t len = strlen(job->stops[job->n_stops++]);
        if (len == 0 || len > NODE_STOP_BYTES_MAX)
            return vc_err_set(err, VC_ERR_RANGE, "stop: a stop string has 1 to %u bytes", NODE_STOP_BYTES_MAX);
    }
    return VC_OK;
}

static vc_status_t take_sampling(node_job_t *job, const char *name, const json_t *v, vc_err_t *err)
{
    char text[64];
    if (json_is_integer(v))
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else
        snprintf(text, sizeof text, "%.17g", json_number_value(v));
    vc_err_t own = {0};
    vc_status_t st = node_sampling_set(&job->sampling, name, text, &own);
    if (st == VC_ERR_UNSUPPORTED)
        return vc_err_set(err, st, "there is no field '%.100s'", name);
    if (!json_is_number(v))
        return vc_err_set(err, VC_ERR_INVALID, "%s is no number", name);
    return st == VC_OK ? st : vc_err_set(err, st, "%s", own.msg);
}

static vc_status_t take(node_job_t *job, const char *name, const json_t *v, vc_err_t *err)
{
    if (!strcmp(name, "id"))
        return VC_OK; /* taken already */
    if (!strcmp(name, "prompt"))
        return take_string(name, v, &job->prompt, err);
    if (!strcmp(name, "system"))
        return take_string(name, v, &job->system, err);
    if (!strcmp(name, "raw"))
        return take_bool(name, v, &job->raw, err);
    if (!strcmp(name, "ignore_end"))
        return take_bool(name, v, &job->ignore_end, err);
    if (!strcmp(name, "max_tokens"))
        return take_max_tokens(job, v, err);
    if (!strcmp(name, "source"))
        return take_source(job, v, err);
    if (!strcmp(name, "stop"))
        return take_stops(job, v, err);
    return take_sampling(job, name, v, err);
}

static vc_status_t take_all(node_job_t *job, json_t *root, vc_err_t *err)
{
    const char *name;
    json_t *v, *id = json_object_get(root, "id");
    vc_status_t st = id != NULL ? take_id(job, id, err) : VC_OK; /* first: other complaints are to name it */
    json_object_foreach(root, name, v)
    {
        if (st == VC_OK)
            st = take(job, name, v, err);
    }
    if (st != VC_OK)
        return st;
    if (job->prompt == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "there is no prompt");
    if (job->raw && job->system != NULL && job->system[0])
        return vc_err_set(err, VC_ERR_INVALID, "system needs the chat template, raw has none");
    return node_sampling_check(&job->sampling, err);
}

vc_status_t node_job_parse(node_job_t *job, uint64_t line_number, const char *line, size_t bytes, vc_err_t *err)
{
    char number[24];
    snprintf(number, sizeof number, "%" PRIu64, line_number);
    *job = (node_job_t){.raw = job->raw,
                        .source = job->source,
                        .no_drafts = job->no_drafts,
                        .max_tokens = job->max_tokens,
                        .id = vc_strdup(number)};
    node_sampling_default(&job->sampling);
    if (job->id == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    json_error_t why;
    json_t *root = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "no JSON object: %s (at byte %d)", why.text, why.position);
    vc_status_t st = json_is_object(root) ? take_all(job, root, err)
                                          : vc_err_set(err, VC_ERR_INVALID, "no JSON object, but another value");
    json_decref(root);
    return st;
}

void node_job_free(node_job_t *job)
{
    vc_free(job->id);
    vc_free(job->prompt);
    vc_free(job->system);
    for (uint32_t i = 0; i < job->n_stops; i++)
        vc_free(job->stops[i]);
    *job = (node_job_t){0};
}
