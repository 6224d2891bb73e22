/* The list of compressors that people read (vc/compressors.h) against the engine's own: both are parsed until every
 * name, default and end of a range agrees. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compress/codec.h"
#include "support/vc_test.h"
#include "vc/compressors.h"
#include "vc/mem.h"

static const node_codec_ops_t *codec(const char *name)
{
    uint32_t n;
    const node_codec_ops_t *const *ops = node_codecs(&n);
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(ops[i]->name, name) == 0)
            return ops[i];
    return NULL;
}

/* Whether "method:param=value" is accepted for its value. Two values of a parameter may exclude each other with a third
 * (a residual is a multiple of the group), which the sentence then names. */
static bool takes(const vc_compressor_t *c, const vc_compressor_param_t *p, const char *value)
{
    char text[VC_SPEC_TEXT_MAX], refused[VC_SPEC_TEXT_MAX];
    node_spec_t spec;
    vc_err_t err = {0};
    snprintf(text, sizeof(text), "%s:%s=%s", c->name, p->name, value);
    snprintf(refused, sizeof(refused), "%s=%s is not ", p->name, value);
    if (node_spec_parse(text, &spec, &err) == VC_OK)
        return true;
    const char *at = strstr(err.msg, refused);
    cr_assert_not_null(at, "%s: %s", text, err.msg);
    at += strlen(refused);
    return strncmp(at, "a number", 8) != 0 && strncmp(at, "a whole", 7) != 0 && strncmp(at, "one of", 6) != 0;
}

static void check_values(const vc_compressor_t *c, const vc_compressor_param_t *p)
{
    bool whole = strspn(p->values, "0123456789,") == strlen(p->values);
    for (const char *at = p->values; *at != '\0';) {
        char word[32];
        size_t n = strcspn(at, ",");
        snprintf(word, sizeof(word), "%.*s", (int)n, at);
        cr_expect(takes(c, p, word), "%s refuses %s=%s", c->name, p->name, word);
        at += n + (at[n] == ',');
    }
    for (int v = 0; v <= 256 && whole; v++) {
        char list[200], word[32];
        snprintf(list, sizeof(list), ",%s,", p->values);
        snprintf(word, sizeof(word), ",%d,", v);
        bool listed = strstr(list, word) != NULL;
        snprintf(word, sizeof(word), "%d", v);
        cr_expect_eq(takes(c, p, word), listed, "%s: %s=%d", c->name, p->name, v);
    }
    cr_expect(!takes(c, p, "nonesuch"));
}

static void check_range(const vc_compressor_t *c, const vc_compressor_param_t *p)
{
    char value[40];
    snprintf(value, sizeof(value), "%.17g", p->is_real ? nextafter(p->lo, p->hi) : p->lo);
    cr_expect(takes(c, p, value), "%s refuses %s=%s", c->name, p->name, value);
    if (p->hi >= 0x1p64) { /* all of u64 */
        cr_expect(takes(c, p, "18446744073709551615") && !takes(c, p, "18446744073709551616"));
        return;
    }
    snprintf(value, sizeof(value), "%.17g", p->hi);
    cr_expect(takes(c, p, value), "%s refuses %s=%s", c->name, p->name, value);
    snprintf(value, sizeof(value), "%.17g", p->is_real ? nextafter(p->hi, 1e300) : p->hi + 1);
    cr_expect(!takes(c, p, value), "%s takes %s=%s", c->name, p->name, value);
    if (p->is_real || p->lo > 0) {
        snprintf(value, sizeof(value), "%.17g", p->is_real ? p->lo : p->lo - 1);
        cr_expect(!takes(c, p, value), "%s takes %s=%s", c->name, p->name, value);
    }
}

Test(compressors, every_method_of_the_engine_is_listed_and_no_other)
{
    uint32_t n_codecs, n;
    (void)node_codecs(&n_codecs);
    const vc_compressor_t *list = vc_compressors(&n);
    cr_expect_eq(n, n_codecs);
    for (uint32_t i = 0; i < n; i++) {
        const node_codec_ops_t *ops = codec(list[i].name);
        cr_assert_not_null(ops, "%s is listed, but the engine has no such compressor", list[i].name);
        node_spec_t spec;
        cr_assert_eq(node_spec_parse(list[i].name, &spec, NULL), VC_OK);
        uint32_t needs = ops->needs(&spec);
        cr_expect_eq(list[i].is_offline, (needs & NODE_NEED_REPLAY) != 0, "%s", list[i].name);
        cr_expect_eq(list[i].calibrated == VC_CALIBRATED_ALWAYS, (needs & NODE_NEED_CALIB) != 0, "%s", list[i].name);
        cr_expect_eq(list[i].calibrated != VC_CALIBRATED_NOT, ops->calibrate != NULL, "%s", list[i].name);
        if (list[i].kind != VC_COMPRESSOR_TEST)
            cr_expect_eq(list[i].kind == VC_COMPRESSOR_DROPS, ops->kind == VC_KVREC_DROPPER, "%s", list[i].name);
    }
}

Test(compressors, the_canonical_text_has_every_listed_parameter_with_its_default)
{
    uint32_t n;
    const vc_compressor_t *list = vc_compressors(&n);
    for (uint32_t i = 0; i < n; i++) {
        char text[VC_SPEC_TEXT_MAX] = "";
        int used = snprintf(text, sizeof(text), "%s", list[i].name);
        for (uint32_t k = 0; k < list[i].n_params; k++)
            if (list[i].params[k].preset != NULL)
                used += snprintf(text + used, sizeof(text) - (size_t)used, "%s%s=%s", k == 0 ? ":" : ",",
                                 list[i].params[k].name, list[i].params[k].preset);
        node_spec_t spec;
        cr_assert_eq(node_spec_parse(list[i].name, &spec, NULL), VC_OK);
        cr_expect_str_eq(spec.text, text);
    }
}

Test(compressors, listed_values_are_taken_and_others_are_refused)
{
    uint32_t n;
    const vc_compressor_t *list = vc_compressors(&n);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < list[i].n_params; k++) {
            const vc_compressor_param_t *p = &list[i].params[k];
            if (p->values != NULL)
                check_values(&list[i], p);
            else
                check_range(&list[i], p);
        }
}

Test(compressors, the_printed_json_can_be_read_and_the_table_names_all)
{
    for (int json = 0; json < 2; json++) {
        char *text = NULL;
        size_t bytes = 0;
        FILE *out = open_memstream(&text, &bytes);
        cr_assert_not_null(out);
        vc_compressors_print(out, json != 0);
        cr_assert_eq(fclose(out), 0);
        uint32_t n;
        const vc_compressor_t *list = vc_compressors(&n);
        json_t *root = json ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
        json_t *array = json_object_get(root, "compressors");
        cr_expect(!json || json_array_size(array) == n, "%s", text);
        for (uint32_t i = 0; i < n; i++) {
            cr_expect_not_null(strstr(text, list[i].name));
            json_t *params = json_object_get(json_array_get(array, i), "parameters");
            cr_expect(!json || json_array_size(params) == list[i].n_params);
        }
        json_decref(root);
        free(text);
    }
}
