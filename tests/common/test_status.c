/* Status codes and the sentence for humans. */
#include <errno.h>
#include <string.h>

#include "support/vc_test.h"
#include "vc/mem.h"
#include "vc/status.h"

static const vc_status_t all[] = {
    VC_OK,           VC_ERR_INVALID,   VC_ERR_UNSUPPORTED, VC_ERR_RANGE,    VC_ERR_AGAIN, VC_ERR_BUSY,
    VC_ERR_TIMEOUT,  VC_ERR_CANCELLED, VC_ERR_NOT_FOUND,   VC_ERR_EXISTS,   VC_ERR_STALE, VC_ERR_CORRUPT,
    VC_ERR_MISMATCH, VC_ERR_PERM,      VC_ERR_UNREACHABLE, VC_ERR_PROTOCOL, VC_ERR_NOMEM, VC_ERR_NOSPACE,
    VC_ERR_READONLY, VC_ERR_IO,        VC_ERR_INTERNAL,
};

Test(status, every_code_has_a_name_of_its_own)
{
    for (size_t i = 0; i < VC_ARRAY_LEN(all); i++) {
        cr_assert(strcmp(vc_status_name(all[i]), "unknown") != 0);
        for (size_t j = 0; j < i; j++)
            cr_assert(strcmp(vc_status_name(all[i]), vc_status_name(all[j])) != 0);
    }
    cr_assert_str_eq(vc_status_name((vc_status_t)-999), "unknown");
}

Test(status, every_error_has_a_nonzero_exit_code)
{
    cr_assert_eq(vc_status_exit_code(VC_OK), 0);
    for (size_t i = 1; i < VC_ARRAY_LEN(all); i++) {
        int code = vc_status_exit_code(all[i]);
        cr_assert(code >= 64 && code <= 78, "%s exits with %d", vc_status_name(all[i]), code);
    }
    cr_assert_eq(vc_status_exit_code(VC_ERR_INVALID), 64);
    cr_assert_eq(vc_status_exit_code(VC_ERR_CORRUPT), 65);
    cr_assert_eq(vc_status_exit_code(VC_ERR_UNREACHABLE), 69);
    cr_assert_eq(vc_status_exit_code(VC_ERR_INTERNAL), 70);
    cr_assert_eq(vc_status_exit_code(VC_ERR_PERM), 77);
}

Test(status, sentence_is_formatted_and_the_code_returned)
{
    vc_err_t err = {0};
    cr_assert_eq(vc_err_set(&err, VC_ERR_RANGE, "layer %d of %s", 3, "x"), VC_ERR_RANGE);
    cr_assert_eq(err.status, VC_ERR_RANGE);
    cr_assert_str_eq(err.msg, "layer 3 of x");
    cr_assert_eq(vc_err_prefix(&err, "record %u", 7u), VC_ERR_RANGE);
    cr_assert_str_eq(err.msg, "record 7: layer 3 of x");
    cr_assert_eq(vc_err_set(NULL, VC_ERR_IO, "nobody reads this"), VC_ERR_IO);
    cr_assert_eq(vc_err_prefix(NULL, "x"), VC_ERR_INTERNAL);
}

Test(status, long_sentences_are_cut_and_stay_terminated)
{
    vc_err_t err;
    char word[600];
    memset(word, 'a', sizeof(word) - 1);
    word[sizeof(word) - 1] = '\0';
    vc_err_set(&err, VC_ERR_IO, "%s", word);
    cr_assert_eq(strlen(err.msg), sizeof(err.msg) - 1);
    memset(word, 'b', 300);
    word[300] = '\0';
    vc_err_prefix(&err, "%s", word);
    cr_assert_eq(strlen(err.msg), sizeof(err.msg) - 1);
    cr_assert(strncmp(err.msg + 300, ": aaa", 5) == 0);
    memset(word, 'c', sizeof(word) - 1);
    vc_err_prefix(&err, "%s", word);
    cr_assert_eq(strlen(err.msg), sizeof(err.msg) - 1);
}

Test(status, errno_maps_to_what_the_caller_has_to_give_up)
{
    cr_assert_eq(vc_status_from_errno(0), VC_OK);
    cr_assert_eq(vc_status_from_errno(ENOENT), VC_ERR_NOT_FOUND);
    cr_assert_eq(vc_status_from_errno(ENOSPC), VC_ERR_NOSPACE);
    cr_assert_eq(vc_status_from_errno(EDQUOT), VC_ERR_NOSPACE);
    cr_assert_eq(vc_status_from_errno(EROFS), VC_ERR_READONLY);
    cr_assert_eq(vc_status_from_errno(EACCES), VC_ERR_PERM);
    cr_assert_eq(vc_status_from_errno(ENOMEM), VC_ERR_NOMEM);
    cr_assert_eq(vc_status_from_errno(EIO), VC_ERR_IO);
    cr_assert_eq(vc_status_from_errno(12345), VC_ERR_IO);
}

Test(status, a_path_that_leads_nowhere_is_a_wrong_argument)
{
    static const int wrong[] = {ENOENT, ENOTDIR, EISDIR, ELOOP, ENAMETOOLONG};
    for (size_t i = 0; i < VC_ARRAY_LEN(wrong); i++)
        cr_assert_eq(vc_status_from_path_errno(wrong[i]), VC_ERR_INVALID);
    cr_assert_eq(vc_status_from_path_errno(ENOSPC), VC_ERR_NOSPACE);
    cr_assert_eq(vc_status_from_path_errno(EROFS), VC_ERR_READONLY);
    cr_assert_eq(vc_status_from_path_errno(EACCES), VC_ERR_PERM);
}

Test(status, every_code_has_words)
{
    for (size_t i = 0; i < VC_ARRAY_LEN(all); i++)
        cr_assert(strlen(vc_status_text(all[i])) > 0);
    cr_assert_not_null(strstr(vc_status_text(VC_ERR_NOSPACE), "full"));
    cr_assert_str_eq(vc_status_text((vc_status_t)-999), "unknown");
}
