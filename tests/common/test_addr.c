/* Proves which texts are taken as HOST:PORT. */
#include "vc/addr.h"

#include <string.h>

#include "support/vc_test.h"
#include "vc/mem.h"

Test(addr, host_and_port_are_taken)
{
    static const char *const good[] = {"127.0.0.1:7070", "localhost:0", "[::1]:65535", "a.b-c:00080", "x:1"};
    for (size_t i = 0; i < VC_ARRAY_LEN(good); i++)
        cr_assert_eq(vc_addr_check(good[i], NULL), VC_OK, "%s", good[i]);
}

Test(addr, everything_else_is_quoted_back)
{
    static const char *const bad[] = {"",       "x",     ":1",   "x:",    "x:-1",   "x:1x",
                                      "x:http", "::1:5", "[]:1", "x:0x1", "x:1:2 ", "x: 1"};
    for (size_t i = 0; i < VC_ARRAY_LEN(bad); i++) {
        vc_err_t err = {0};
        cr_assert_eq(vc_addr_check(bad[i], &err), VC_ERR_INVALID, "%s", bad[i]);
        cr_assert_not_null(strstr(err.msg, "is not HOST:PORT"), "%s", err.msg);
        cr_assert_not_null(strstr(err.msg, bad[i]), "%s", err.msg);
    }
    cr_assert_eq(vc_addr_check(NULL, NULL), VC_ERR_INVALID);
}

Test(addr, ports_are_not_taken_modulo_65536)
{
    static const char *const high[] = {"x:65536", "x:99999", "x:4294967297", "x:18446744073709551617"};
    for (size_t i = 0; i < VC_ARRAY_LEN(high); i++) {
        vc_err_t err = {0};
        cr_assert_eq(vc_addr_check(high[i], &err), VC_ERR_INVALID, "%s", high[i]);
        cr_assert_not_null(strstr(err.msg, "65535"), "%s", err.msg);
    }
}

Test(addr, loopback_is_judged_by_address_not_by_spelling)
{
    static const char *const inside[] = {"127.0.0.1:1", "127.3.2.1:1", "[::1]:1", "localhost:1"};
    static const char *const outside[] = {
        "0.0.0.0:1",           "[::]:1",           "10.0.0.1:1", "[2001:db8::1]:1", "127.evil.invalid:1",
        "localhost.invalid:1", "no.such.invalid:1"};
    for (size_t i = 0; i < sizeof(inside) / sizeof(inside[0]); i++)
        cr_assert(vc_addr_is_loopback(inside[i]), "%s", inside[i]);
    for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++)
        cr_assert(!vc_addr_is_loopback(outside[i]), "%s", outside[i]);
}
