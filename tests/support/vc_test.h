/*
 * The one header of every suite. Criterion normally; under VC_TSAN, where Criterion does not run, a plain in-process
 * runner with the same macros: Test, cr_assert*, cr_expect*, cr_skip_test, cr_log_*.
 */
#ifndef VC_TEST_H
#define VC_TEST_H

#ifndef VC_TSAN
#include <criterion/criterion.h>
#else
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*vc_test_fn)(void);
void vc_test_add(const char *suite, const char *name, vc_test_fn fn);
void vc_test_fail(const char *file, int line, const char *expr) __attribute__((noreturn));
void vc_test_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
#define Test(suite, name, ...)                                          \
    static void suite##_##name##_impl(void);                            \
    __attribute__((constructor)) static void suite##_##name##_add(void) \
    {                                                                   \
        vc_test_add(#suite, #name, suite##_##name##_impl);              \
    }                                                                   \
    static void suite##_##name##_impl(void)
#define cr_assert(cond, ...) ((cond) ? (void)0 : vc_test_fail(__FILE__, __LINE__, #cond))
#define cr_assert_not(cond, ...) cr_assert(!(cond))
#define cr_assert_eq(a, b, ...) cr_assert((a) == (b))
#define cr_assert_neq(a, b, ...) cr_assert((a) != (b))
#define cr_assert_lt(a, b, ...) cr_assert((a) < (b))
#define cr_assert_leq(a, b, ...) cr_assert((a) <= (b))
#define cr_assert_gt(a, b, ...) cr_assert((a) > (b))
#define cr_assert_geq(a, b, ...) cr_assert((a) >= (b))
#define cr_assert_null(a, ...) cr_assert((a) == NULL)
#define cr_assert_not_null(a, ...) cr_assert((a) != NULL)
#define cr_assert_str_eq(a, b, ...) cr_assert(strcmp((a), (b)) == 0)
#define cr_assert_str_neq(a, b, ...) cr_assert(strcmp((a), (b)) != 0)
#define cr_assert_arr_eq(a, b, n, ...) cr_assert(memcmp((a), (b), (n)) == 0)
#define cr_assert_float_eq(a, b, eps, ...) cr_assert((a) - (b) <= (eps) && (b) - (a) <= (eps))
#define cr_assert_fail(...) vc_test_fail(__FILE__, __LINE__, "cr_assert_fail")
#define cr_expect cr_assert
#define cr_expect_eq cr_assert_eq
#define cr_expect_gt cr_assert_gt
#define cr_expect_not_null cr_assert_not_null
#define cr_expect_str_eq cr_assert_str_eq
#define cr_skip_test(...) vc_test_skip("" __VA_ARGS__)
#define cr_log_info(...) (printf(__VA_ARGS__), putchar('\n'))
#endif

/* Of long lists of like cases, sanitized builds take every second one: the release build runs all of them. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define VT_EVERY 2
#else
#define VT_EVERY 1
#endif

#endif
