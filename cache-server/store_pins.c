/* Pins that last, and deletes. */
#include "store_int.h"

static vc_status_t not_yet(cs_chain_sum_t *sum_p, vc_err_t *err)
{
    *sum_p = (cs_chain_sum_t){0};
    return vc_err_set(err, VC_ERR_UNSUPPORTED, "this store does not pin or delete");
}

vc_status_t cs_store_pin_prefix(cs_store_t *s, const cs_chain_ref_t *ref, cs_chain_sum_t *sum_p, vc_err_t *err)
{
    (void)s, (void)ref;
    return not_yet(sum_p, err);
}

vc_status_t cs_store_unpin_prefix(cs_store_t *s, const cs_chain_ref_t *ref, cs_chain_sum_t *sum_p, vc_err_t *err)
{
    (void)s, (void)ref;
    return not_yet(sum_p, err);
}

vc_status_t cs_store_delete(cs_store_t *s, const cs_chain_ref_t *ref, cs_chain_sum_t *sum_p, vc_err_t *err)
{
    (void)s, (void)ref;
    return not_yet(sum_p, err);
}
