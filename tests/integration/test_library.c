/* Proves what libvericache.so shows to other programs: the functions of its header and nothing else. */
#include <dlfcn.h>
#include <unistd.h>

#include "support/vc_test.h"

#define LIBRARY VC_BIN_DIR "/common/libvericache.so"

Test(library, exports_the_public_calls_and_hides_the_rest)
{
    static const char *const public[] = {
        "vcache_options_default", "vcache_connect",    "vcache_disconnect",  "vcache_lookup", "vcache_fetch",
        "vcache_register",        "vcache_lookup_tip", "vcache_lease_renew", "vcache_stats",  "vcache_lease_release",
        "vcache_prefixes",        "vcache_health",     "vcache_status_name"};
    static const char *const inner[] = {"vc_rpc_unary", "vc_kvrec_check", "vc_data_fetch",
                                        "vc_alloc",     "vcache_give",    "vericache__v1__lookup_request__unpack"};
    if (access(LIBRARY, R_OK) != 0)
        cr_skip_test("libvericache.so has not been built");
    void *lib = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    cr_assert_not_null(lib, "%s", dlerror());
    for (size_t i = 0; i < sizeof(public) / sizeof(public[0]); i++)
        cr_assert_not_null(dlsym(lib, public[i]), "%s is missing", public[i]);
    for (size_t i = 0; i < sizeof(inner) / sizeof(inner[0]); i++)
        cr_assert_null(dlsym(lib, inner[i]), "%s is visible", inner[i]);
}
