/*
 * The file of results that benches leave: runs merge row by row, runs without rows go, odd names survive, a file of
 * another form is refused and stays as it was.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "results_file.h"
#include "support/file.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vc/mem.h"

static vt_tmpdir_t dir;

static const char *file(void) { return vt_tmpdir_path(&dir, "x.csv"); }
static void setup(void) { vt_tmpdir_create(&dir); }
static void teardown(void) { vt_tmpdir_remove(&dir); }

static void expect(const char *text)
{
    char *got = (char *)vt_file_read(file(), NULL);
    cr_assert_str_eq(got, text);
    vc_free(got);
}

TestSuite(results, .init = setup, .fini = teardown);

Test(results, rows_of_later_runs_replace_those_of_the_same_name_in_their_place)
{
    bench_results_add("row", "step", "ms,1,1,1,1,5");
    bench_results_add("figure", "gain", ",2,,,,");
    bench_results_write(file(), "b", "day 1 | c1 | m | first");
    bench_results_add("row", "step", "ms,3,3,3,3,7");
    bench_results_add("row", "other", "us,4,4,4,4,1");
    bench_results_write(file(), "b", "day 2 | c2 | m | second");
    expect("# bench b\n# run 1 | day 1 | c1 | m | first\n# run 2 | day 2 | c2 | m | second\n" BENCH_RESULTS_HEAD
           "\nrow,step,ms,3,3,3,3,7,2\nfigure,gain,,2,,,,,1\nrow,other,us,4,4,4,4,1,2\n");
}

Test(results, a_run_goes_with_its_last_row)
{
    bench_results_add("figure", "a", ",1,,,,");
    bench_results_write(file(), "b", "one");
    bench_results_add("figure", "b", ",1,,,,");
    bench_results_write(file(), "b", "two");
    bench_results_add("figure", "a", ",3,,,,");
    bench_results_write(file(), "b", "three");
    expect("# bench b\n# run 1 | two\n# run 2 | three\n" BENCH_RESULTS_HEAD "\nfigure,a,,3,,,,,2\nfigure,b,,1,,,,,1\n");
}

Test(results, names_with_commas_quotes_and_line_breaks_stay_one_field)
{
    bench_results_add("row", "snapkv:keep=0.5,window=32 \"x\"\ny", "x,1,1,1,1,1");
    bench_results_write(file(), "b", "one");
    bench_results_add("row", "snapkv:keep=0.5,window=32 \"x\"\ny", "x,2,2,2,2,2");
    bench_results_write(file(), "b", "two");
    expect("# bench b\n# run 1 | two\n" BENCH_RESULTS_HEAD
           "\nrow,\"snapkv:keep=0.5,window=32 \"\"x\"\" y\",x,2,2,2,2,2,1\n");
}

Test(results, nothing_measured_leaves_no_file)
{
    bench_results_write(file(), "b", "one");
    cr_assert_null(fopen(file(), "r"));
}

#define REFUSES(name, text)                            \
    Test(results, name, .exit_code = 1)                \
    {                                                  \
        atexit(teardown); /* fini is not reached */    \
        vt_file_write(file(), text, sizeof(text) - 1); \
        bench_results_check(file());                   \
    }
REFUSES(a_file_of_another_form_is_refused, "compressor,text\n1,2\n")
REFUSES(a_row_of_a_run_that_is_not_there_is_refused, BENCH_RESULTS_HEAD "\nfigure,a,,1,,,,,1\n")
REFUSES(a_row_that_is_cut_off_is_refused, "# run 1 | x\n" BENCH_RESULTS_HEAD "\nfigure,a,,1,,,,,1")
