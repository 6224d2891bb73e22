/* tests/DEFECTS.md names tests: each of them exists, and each of the 28 defects has a line. */
#include <glob.h>
#include <stdio.h>
#include <string.h>

#include "support/file.h"
#include "support/vc_test.h"
#include "vc/mem.h"

#define ROOT VC_TEST_VECTORS "/.."
enum { NAME_MAX_BYTES = 200, N_DEFECTS = 28 };

/* All sources of all suites, one after the other. */
static char *read_suites(void)
{
    glob_t found;
    char *all = vc_strdup("");
    size_t used = 0;
    cr_assert_eq(glob(ROOT "/*/test_*.c", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        size_t bytes;
        uint8_t *text = vt_file_read(found.gl_pathv[i], &bytes);
        all = vc_realloc(all, used + bytes + 1, 1);
        cr_assert_not_null(all);
        memcpy(all + used, text, bytes);
        used += bytes;
        all[used] = '\0';
        vc_free(text);
    }
    globfree(&found);
    return all;
}

Test(defects, every_test_that_the_table_names_exists)
{
    size_t bytes;
    uint8_t *raw = vt_file_read(ROOT "/DEFECTS.md", &bytes);
    char *table = vc_alloc(bytes + 1), *suites = read_suites();
    cr_assert(table && raw);
    memcpy(table, raw, bytes);
    table[bytes] = '\0';
    uint32_t n = 0;
    for (const char *at = strchr(table, '`'); at != NULL; at = strchr(at, '`')) {
        const char *end = strchr(++at, '`');
        char name[NAME_MAX_BYTES], test[NAME_MAX_BYTES + 16];
        cr_assert_not_null(end);
        snprintf(name, sizeof(name), "%.*s", (int)(end - at), at);
        at = end + 1;
        char *dot = strchr(name, '.');
        if (dot == NULL || strpbrk(name, " <>") != NULL || strcmp(name, "suite.name") == 0)
            continue;
        *dot = '\0';
        snprintf(test, sizeof(test), "Test(%s, %s", name, dot + 1);
        const char *there = strstr(suites, test);
        cr_expect(there != NULL && strchr("),", there[strlen(test)]) != NULL, "no %s)", test);
        n++;
    }
    cr_expect_gt(n, N_DEFECTS);
    for (int d = 1; d <= N_DEFECTS; d++) {
        char row[20];
        snprintf(row, sizeof(row), "\n| %d | ", d);
        cr_expect_not_null(strstr(table, row), "defect %d has no line", d);
    }
    vc_free(suites);
    vc_free(table);
    vc_free(raw);
}
