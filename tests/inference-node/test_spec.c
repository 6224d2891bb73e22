/* Compressor specs: one canonical text per meaning, and a sentence for every text that means nothing. */
#include <stdio.h>
#include <string.h>

#include "compress/codec.h"
#include "support/vc_test.h"

static void expect_text(const char *text, const char *canonical)
{
    node_spec_t spec;
    vc_err_t err = {0};
    cr_assert_eq(node_spec_parse(text, &spec, &err), VC_OK, "%s: %s", text, err.msg);
    cr_assert_str_eq(spec.text, canonical, "%s became %s, not %s", text, spec.text, canonical);
    node_spec_t again;
    cr_assert_eq(node_spec_parse(spec.text, &again, NULL), VC_OK);
    cr_assert(memcmp(&spec, &again, sizeof(spec)) == 0, "the canonical text of %s means something else", text);
}

static void expect_refused(const char *text, const char *first, const char *second)
{
    node_spec_t spec;
    vc_err_t err = {0};
    cr_assert_eq(node_spec_parse(text, &spec, &err), VC_ERR_INVALID, "%s was not refused", text);
    cr_assert(strstr(err.msg, first) != NULL && strstr(err.msg, second) != NULL, "%s: \"%s\" lacks %s or %s", text,
              err.msg, first, second);
}

Test(spec, defaults_are_written_out)
{
    expect_text("none", "none");
    expect_text("noise", "noise:eps=0.001,seed=1");
    expect_text("snapkv", "snapkv:keep=0.25,window=64,kernel=5,pool=avg");
    expect_text("kivi", "kivi:bits=4,group=32,residual=128");
    expect_text("rot", "rot:bits=4,group=64,residual=64,fit=error,center=yes");
    expect_text("kvquant", "kvquant:bits=4,outliers=0.01,levels=calibrated,sinks=1");
    expect_text("kvquant:outliers=-0", "kvquant:bits=4,outliers=0,levels=calibrated,sinks=1");
}

Test(spec, order_and_spelling_do_not_matter)
{
    expect_text("kivi:residual=128,bits=4", "kivi:bits=4,group=32,residual=128");
    expect_text("kivi:group=032", "kivi:bits=4,group=32,residual=128");
    expect_text("snapkv:pool=max,keep=2.50e-1", "snapkv:keep=0.25,window=64,kernel=5,pool=max");
    expect_text("noise:seed=18446744073709551615,eps=1e-3", "noise:eps=0.001,seed=18446744073709551615");
}

Test(spec, numbers_have_their_shortest_form)
{
    expect_text("noise:eps=0.000001", "noise:eps=1e-6,seed=1");
    expect_text("noise:eps=1.5e-5", "noise:eps=1.5e-5,seed=1");
    expect_text("noise:eps=1e-4", "noise:eps=0.0001,seed=1");
    expect_text("noise:eps=100", "noise:eps=100,seed=1");
    expect_text("noise:eps=12.50", "noise:eps=12.5,seed=1");
    expect_text("snapkv:keep=0.1", "snapkv:keep=0.1,window=64,kernel=5,pool=avg");
    expect_text("snapkv:keep=1", "snapkv:keep=1,window=64,kernel=5,pool=avg");
    expect_text("snapkv:keep=0.3333333333333333", "snapkv:keep=0.3333333333333333,window=64,kernel=5,pool=avg");
}

Test(spec, parameters_arrive_in_their_fields)
{
    node_spec_t spec;
    cr_assert_eq(node_spec_parse("snapkv:keep=0.5,window=32,kernel=7,pool=max", &spec, NULL), VC_OK);
    cr_assert(spec.keep == 0.5 && spec.window == 32 && spec.kernel == 7 && spec.max_pool == 1);
    cr_assert_eq(spec.ops->window_tokens(&spec), 32);
    cr_assert_eq(spec.ops->sink_blocks(&spec), 1);
    cr_assert_eq(node_spec_parse("kivi:bits=2,group=64,residual=64", &spec, NULL), VC_OK);
    cr_assert(spec.bits == 2 && spec.group == 64 && spec.residual == 64);
    cr_assert_eq(spec.ops->window_tokens(&spec), 64);
    cr_assert_eq(node_spec_parse("noise:eps=0.5,seed=9", &spec, NULL), VC_OK);
    cr_assert(spec.eps == 0.5 && spec.seed == 9);
    cr_assert_eq(spec.ops->window_tokens(&spec), 0);
}

Test(spec, other_parameters_have_another_id)
{
    static const char *const texts[] = {
        "none",         "noise",          "noise:seed=2",  "noise:eps=1e-2",   "snapkv", "snapkv:keep=0.5",
        "kivi",         "kivi:bits=2",    "kivi:group=64", "kivi:residual=64", "rot",    "rot:bits=3",
        "rot:group=32", "rot:residual=0", "rot:center=no"};
    enum { N = 15 };
    node_spec_t specs[N];
    for (int i = 0; i < N; i++) {
        cr_assert_eq(node_spec_parse(texts[i], &specs[i], NULL), VC_OK);
        for (int j = 0; j < i; j++)
            cr_assert(memcmp(&specs[i].id, &specs[j].id, sizeof(specs[i].id)) != 0, "%s and %s", texts[i], texts[j]);
    }
}

Test(spec, an_unknown_method_is_told_what_there_is)
{
    expect_refused("gzip", "gzip", "none, noise, snapkv, kivi, rot");
    expect_refused("", "unknown", "kivi");
    expect_refused("kiv", "kiv", "kivi");
    expect_refused("kivix:bits=4", "kivix", "kivi");
    expect_refused("KIVI", "KIVI", "kivi");
    expect_refused(" kivi", "unknown", "kivi");
}

Test(spec, an_unknown_parameter_is_told_what_there_is)
{
    expect_refused("kivi:bit=4", "bit", "bits, group, residual");
    expect_refused("snapkv:budget=5", "budget", "keep, window, kernel, pool");
    expect_refused("none:keep=1", "keep", "no parameters");
}

Test(spec, a_value_out_of_bounds_is_told_its_bounds)
{
    expect_refused("kivi:bits=3", "bits=3", "2,4,8");
    expect_refused("kivi:group=128", "group=128", "16,32,64");
    expect_refused("kivi:residual=8193", "residual=8193", "8192");
    expect_refused("kivi:residual=33", "residual=33", "multiple of group=32");
    expect_refused("rot:bits=5", "bits=5", "2,3,4,8");
    expect_refused("rot:group=256", "group=256", "16,32,64,128");
    expect_refused("rot:residual=8193", "residual=8193", "8192");
    expect_refused("snapkv:keep=0", "keep=0", "above 0");
    expect_refused("snapkv:keep=1.01", "keep=1.01", "at most 1");
    expect_refused("snapkv:window=0", "window=0", "from 1");
    expect_refused("snapkv:kernel=4", "kernel=4", "odd");
    expect_refused("snapkv:pool=min", "pool=min", "avg,max");
    expect_refused("noise:eps=0", "eps=0", "above 0");
    expect_refused("noise:seed=18446744073709551616", "seed", "2^64");
}

Test(spec, text_that_is_no_number_is_refused)
{
    static const char *const texts[] = {"noise:eps=",      "noise:eps=nan",
                                        "noise:eps=inf",   "noise:eps=0x1p-3",
                                        "noise:eps=-1",    "noise:eps= 1",
                                        "noise:eps=1e999", "noise:eps=1e-3x",
                                        "noise:seed=-1",   "noise:seed=1.0",
                                        "noise:seed=",     "noise:seed=+1",
                                        "kivi:bits=4.0",   "kivi:bits=",
                                        "kivi:",           "kivi:,",
                                        "kivi:bits=4,",    "kivi:bits",
                                        "kivi:=4",         "kivi:bits=4:group=32",
                                        "snapkv:pool=",    "snapkv:pool=avg,,keep=0.5"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        expect_refused(texts[i], "compressor", "");
}

Test(spec, kept_rows_may_be_coded)
{
    expect_text("snapkv+rot", "snapkv:keep=0.25,window=64,kernel=5,pool=avg+rot:bits=4,group=64,fit=error");
    expect_text("snapkv:keep=0.5+rot:group=32,bits=3",
                "snapkv:keep=0.5,window=64,kernel=5,pool=avg+rot:bits=3,group=32,fit=error");
    expect_text("none+rot:bits=8", "none+rot:bits=8,group=64,fit=error");
    expect_text("snapkv:keep=2.5e-1", "snapkv:keep=0.25,window=64,kernel=5,pool=avg");
    expect_text("snapkv:keep=0.025e+1+rot:bits=2",
                "snapkv:keep=0.25,window=64,kernel=5,pool=avg+rot:bits=2,group=64,fit=error");
    node_spec_t spec;
    cr_assert_eq(node_spec_parse("snapkv:keep=0.5,window=32+rot:bits=3,group=32", &spec, NULL), VC_OK);
    cr_assert(spec.keep == 0.5 && spec.window == 32 && spec.row_bits == 3 && spec.row_group == 32);
    cr_assert(spec.bits == 0 && spec.group == 0 && spec.residual == 0);
    cr_assert_str_eq(spec.ops->name, "snapkv");
    cr_assert_eq(spec.ops->window_tokens(&spec), 32);
}

Test(spec, what_does_not_combine_is_refused_with_the_reason)
{
    expect_refused("snapkv+kivi", "snapkv+kivi", "need all of them");
    expect_refused("snapkv:keep=0.5+kivi:bits=4", "snapkv+kivi", "key groups");
    expect_refused("none+kivi", "none+kivi", "key groups");
    expect_refused("snapkv+snapkv:keep=0.5", "two methods that drop tokens", "only rot");
    expect_refused("snapkv+none", "two methods that drop tokens", "only rot");
    expect_refused("rot+rot", "compressor rot", "drops tokens");
    expect_refused("kivi:bits=4+rot", "compressor kivi", "drops tokens");
    expect_refused("noise+rot", "compressor noise", "drops tokens");
    expect_refused("rot+snapkv", "compressor rot", "drops tokens");
    expect_refused("snapkv+rot+rot", "one dropper", "+rot");
    expect_refused("snapkv+rot:bits=4+rot", "one dropper", "+rot");
    expect_refused("snapkv+rot:bits=4+kivi", "one dropper", "+rot");
    expect_refused("snapkv+", "unknown compressor \"\"", "rot");
    expect_refused("+rot", "unknown compressor \"\"", "snapkv");
    expect_refused("snapkv+gzip", "gzip", "snapkv");
    expect_refused("snapkv +rot", "snapkv ", "rot");
    expect_refused("snapkv+ rot", "unknown compressor", "rot");
}

Test(spec, coded_rows_have_no_residual_and_no_mean_of_their_own)
{
    expect_refused("snapkv+rot:residual=64", "residual", "window of snapkv");
    expect_refused("snapkv+rot:bits=4,residual=0", "residual", "window of snapkv");
    expect_refused("snapkv+rot:center=yes", "center", "whole block");
    expect_refused("snapkv+rot:bits=4,center=no", "center", "whole block");
    expect_refused("snapkv+rot:bits=5", "bits=5", "2,3,4,8");
    expect_refused("snapkv+rot:keep=0.5", "keep", "bits, group, fit");
    expect_refused("snapkv:bits=4+rot", "bits", "keep, window");
    expect_refused("snapkv:keep=0.3333333333333333,window=1000,kernel=63,pool=max+rot:bits=4,group=128,bits=4", "bits",
                   "twice");
}

Test(spec, coded_rows_are_another_copy)
{
    node_spec_t plain, coded, other;
    cr_assert_eq(node_spec_parse("snapkv", &plain, NULL), VC_OK);
    cr_assert_eq(node_spec_parse("snapkv+rot", &coded, NULL), VC_OK);
    cr_assert_eq(node_spec_parse("snapkv+rot:bits=3", &other, NULL), VC_OK);
    cr_assert(memcmp(&plain.id, &coded.id, sizeof(plain.id)) != 0);
    cr_assert(memcmp(&other.id, &coded.id, sizeof(plain.id)) != 0);
}

Test(spec, a_parameter_given_twice_is_refused) { expect_refused("kivi:bits=4,bits=4", "bits", "twice"); }

Test(spec, overlong_text_is_refused)
{
    char text[VC_SPEC_TEXT_MAX + 40];
    snprintf(text, sizeof(text), "kivi:bits=%0*d", VC_SPEC_TEXT_MAX, 4);
    expect_refused(text, "at most", "127");
    node_spec_t spec;
    cr_assert_eq(node_spec_parse(NULL, &spec, NULL), VC_ERR_INVALID);
}

Test(spec, a_refused_text_leaves_the_result_alone)
{
    node_spec_t spec, before;
    memset(&spec, 0x5a, sizeof(spec));
    before = spec;
    cr_assert_eq(node_spec_parse("kivi:bits=5", &spec, NULL), VC_ERR_INVALID);
    cr_assert(memcmp(&spec, &before, sizeof(spec)) == 0);
}

Test(spec, the_table_lists_every_method_with_help)
{
    uint32_t n;
    const node_codec_ops_t *const *codecs = node_codecs(&n);
    cr_assert_geq(n, 5);
    for (uint32_t i = 0; i < n; i++) {
        node_spec_t spec;
        cr_assert_eq(node_spec_parse(codecs[i]->name, &spec, NULL), VC_OK);
        cr_assert(spec.ops == codecs[i] && codecs[i]->params_help != NULL);
    }
}
