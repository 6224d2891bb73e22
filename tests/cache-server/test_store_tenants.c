/* Quotas: a tenant over its own makes room among its own objects, or is told; nobody else's are touched for it. */
#include "support/vc_test.h"

#include "store_fixture.h"

static void be_tenant(fx_t *fx, const char *salt)
{
    memset(fx->ks.tenant_salt, 0, sizeof(fx->ks.tenant_salt));
    memcpy(fx->ks.tenant_salt, salt, strlen(salt));
    cr_assert_eq(vc_keyspace_id(&fx->ks, &fx->ks_id, NULL), VC_OK);
}

static void start(fx_t *fx)
{
    fx_init(fx, 30); /* 124 KiB a record */
    fx->opts.capacity_bytes = (uint64_t)112 << 20;
    fx->opts.tenant_quota_bytes = (uint64_t)8 << 20;
    be_tenant(fx, "alice");
    cr_assert_eq(fx_open(fx, CS_IO_AUTO, NULL), VC_OK);
}

Test(store_tenants, one_over_its_quota_evicts_its_own_objects_only)
{
    fx_t fx;
    start(&fx);
    cr_assert_eq(fx_register(&fx, 1, 0, 30, FX_FULL), VC_OK); /* 3.6 MiB */
    be_tenant(&fx, "bob");
    for (uint32_t seed = 1; seed <= 12; seed++) {
        cr_assert_eq(fx_register(&fx, seed, 0, 20, FX_FULL), VC_OK);
        cr_assert_eq(fx_readable(&fx, seed, 20, 0), 20); /* not at the price of what was just stored */
        cr_assert_leq(fx_stats(&fx).tenant_largest_bytes, fx.opts.tenant_quota_bytes);
    }
    cs_store_stats_t stats = fx_stats(&fx);
    cr_assert_eq(stats.tenants, 2);
    cr_assert_gt(stats.tenant_largest_bytes, fx.opts.tenant_quota_bytes - (1 << 20)); /* and it is used */
    cr_assert_gt(stats.quota_evicted, 150);
    cr_assert_eq(stats.quota_evicted, stats.full.evicted_objects);
    cr_assert_eq(stats.quota_rejected, 0);
    be_tenant(&fx, "alice");
    cr_assert_eq(fx_readable(&fx, 1, 30, 0), 30);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    cr_assert_eq(fx_stats(&fx).tenants, 2);
    cr_assert_eq(fx_stats(&fx).tenant_largest_bytes, stats.tenant_largest_bytes);
    fx_fini(&fx);
}

Test(store_tenants, what_cannot_fit_is_refused_with_the_quota_in_the_sentence)
{
    fx_t fx;
    cs_upload_info_t info;
    vc_err_t err = {0};
    static uint32_t tokens[100 * FX_BLOCK_TOKENS];
    uint8_t missing[100];
    start(&fx);
    fx_tokens(1, 100, tokens);
    cr_assert_eq(cs_store_begin(fx.store, &fx.ks, tokens, 0, 100, fx.fids, 1, &info, missing, &err), VC_ERR_NOSPACE);
    cr_assert_not_null(strstr(err.msg, "quota of 8388608"), "%s", err.msg);
    cr_assert_eq(fx_stats(&fx).quota_rejected, 1);
    cr_assert_eq(fx_stats(&fx).uploads_open, 0);
    fx_fini(&fx);
}

Test(store_tenants, what_is_leased_or_being_uploaded_counts_and_stays)
{
    fx_t fx;
    cs_upload_info_t info;
    cs_lookup_result_t r;
    uint8_t missing[64];
    start(&fx);
    cr_assert_eq(fx_register(&fx, 1, 0, 40, FX_FULL), VC_OK); /* 4.8 MiB */
    cr_assert_eq(fx_lookup(&fx, 1, 40, true, &r), VC_OK);
    cr_assert_eq(fx_begin(&fx, 2, 0, 40, FX_FULL, &info, missing), VC_OK);
    cr_assert_eq(fx_put_missing(&fx, &info, 2, 0, 40, FX_FULL, missing), VC_ERR_NOSPACE);
    cr_assert_eq(fx_readable(&fx, 1, 40, 0), 40);
    cr_assert_eq(fx_stats(&fx).quota_rejected, 1);
    cr_assert_eq(cs_store_abort(fx.store, info.upload_id, &info.token), VC_OK);
    cr_assert_eq(fx_stats(&fx).tenant_largest_bytes, (uint64_t)40 * 31 * 4096); /* the upload's bytes are given back */
    cr_assert_eq(cs_store_lease_release(fx.store, cs_store_boot_id(fx.store), r.lease_id, &r.token), VC_OK);
    cr_assert_eq(fx_register(&fx, 2, 0, 40, FX_FULL), VC_OK);
    cr_assert_eq(fx_readable(&fx, 2, 40, 0), 40);
    fx_fini(&fx);
}
