/* The loader of golden vectors: every tensor of every folder loads, generated ones match their check sums, and
 * tolerances parse. The suites that use the vectors rest on this one. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/golden.h"
#include "support/vc_test.h"

static size_t load_section(const golden_case_t *c, json_t *section, bool inputs)
{
    const char *name;
    json_t *value;
    size_t n = 0;
    json_object_foreach(section, name, value)
    {
        golden_tensor_t t = inputs ? golden_in(c, name) : golden_out(c, name);
        for (size_t i = 0; strcmp(t.dtype, "f32") == 0 && i < t.n; i++)
            cr_assert(!isnan(t.f32[i]));
        golden_tensor_free(&t);
        n++;
    }
    return n;
}

Test(golden, loads_every_tensor_of_every_folder)
{
    DIR *dir = opendir(VC_TEST_VECTORS);
    cr_assert_not_null(dir);
    size_t folders = 0, tensors = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[1024];
        snprintf(path, sizeof(path), "%s/%s/index.json", VC_TEST_VECTORS, e->d_name);
        FILE *f = e->d_name[0] != '.' ? fopen(path, "r") : NULL;
        if (f == NULL)
            continue;
        fclose(f);
        golden_t *g = golden_open(e->d_name);
        for (size_t i = 0; i < golden_n_cases(g); i++) {
            golden_case_t c = golden_case_at(g, i);
            tensors += load_section(&c, c.inputs, true) + load_section(&c, c.outputs, false);
        }
        golden_close(g);
        folders++;
    }
    closedir(dir);
    cr_assert_geq(folders, 6u);
    cr_assert_gt(tensors, 500u);
}

Test(golden, generator_gives_the_published_start_of_stream_one)
{
    const double want[] = {0.5326035, -0.747938, 0.4018624, 0.2657525};
    for (uint64_t i = 0; i < 4; i++)
        cr_assert_float_eq(golden_u(1, i), want[i], 1e-7);
}

Test(golden, reads_tolerances_of_every_form)
{
    json_t *tolerance = json_pack("{s:{s:f,s:f},s:s,s:s,s:s,s:s}", "scores", "rel", 2e-6, "abs", 1e-9, "att",
                                  "5e-6 absolute + 3e-6 relative", "kept", "exact", "w", "1e-6 of max |W|", "hat",
                                  "5e-6 * max(1, max |v_hat|)");
    golden_case_t c = {.tolerance = tolerance};
    golden_tol_t tol;
    cr_assert(golden_tol(&c, "scores", 1, &tol) && tol.rel == 2e-6 && tol.abs == 1e-9);
    cr_assert(golden_tol(&c, "att", 1, &tol) && tol.abs == 5e-6 && tol.rel == 3e-6);
    cr_assert(golden_tol(&c, "kept", 1, &tol) && tol.abs == 0 && tol.rel == 0);
    cr_assert(golden_tol(&c, "w", 3, &tol) && fabs(tol.abs - 3e-6) < 1e-18);
    cr_assert(golden_tol(&c, "hat", 2, &tol) && fabs(tol.abs - 1e-5) < 1e-18);
    cr_assert_not(golden_tol(&c, "absent", 1, &tol));
    json_decref(tolerance);
}

Test(golden, first_off_finds_the_first_difference_and_nan)
{
    const float want[] = {1, 2, 3}, near[] = {1, 2.001f, 3}, far[] = {1, 2.001f, NAN};
    const golden_tol_t tol = {.abs = 0.01, .rel = 0};
    cr_assert_eq(golden_first_off(near, want, 3, tol), 3u);
    cr_assert_eq(golden_first_off(far, want, 3, tol), 2u);
}
