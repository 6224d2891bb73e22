/* The option table: precedence of flag, environment, file and default; unknown names and bounds are errors that say
 * where. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/file.h"
#include "support/vc_test.h"
#include "vc/config.h"
#include "vc/mem.h"

static bool opt_tls;
static uint64_t opt_threads, opt_capacity, opt_egress, opt_pages;
static double opt_ratio, opt_shift;
static const char *opt_dir;
static int opt_io;

static const vc_opt_t table[] = {
    {"tls", VC_OPT_BOOL, &opt_tls, "true", 0, 0, NULL, "encrypt"},
    {"threads", VC_OPT_U64, &opt_threads, "2", 1, 64, NULL, "worker threads"},
    {"capacity", VC_OPT_BYTES, &opt_capacity, "1GiB", 4096, 1e15, NULL, "disk space"},
    {"egress-limit", VC_OPT_RATE, &opt_egress, NULL, 0, 0, NULL, "rate"},
    {"ratio", VC_OPT_DOUBLE, &opt_ratio, "0.5", 0, 1, NULL, "share"},
    {"pages", VC_OPT_U64, &opt_pages, "8", 4, 0, NULL, "at least four"},
    {"shift", VC_OPT_DOUBLE, &opt_shift, "-1", -2, 0, NULL, "negative"},
    {"data-dir", VC_OPT_STRING, &opt_dir, "/var/lib/x", 0, 0, NULL, "where"},
    {"io", VC_OPT_ENUM, &opt_io, "auto", 0, 0, "auto|fixed|ring|threads", "mode"},
    {NULL, VC_OPT_BOOL, NULL, NULL, 0, 0, NULL, NULL},
};

#define MAX_ARGS 16
/* args: words separated by single blanks. */
static vc_status_t parse(const char *args, char **env, vc_config_t **config_p, vc_err_t *err)
{
    static char words[1024]; /* argv must outlive the config */
    char *argv[MAX_ARGS] = {(char *)"prog"}, *save = NULL;
    int argc = 1;
    snprintf(words, sizeof(words), "%s", args);
    for (char *w = strtok_r(words, " ", &save); w != NULL && argc < MAX_ARGS; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    return vc_config_parse(table, argc, argv, env, config_p, err);
}

static void expect_good(const char *args, char **env, vc_config_t **config_p)
{
    vc_err_t err = {0};
    *config_p = NULL;
    cr_assert_eq(parse(args, env, config_p, &err), VC_OK, "%s: %s", args, err.msg);
}

/* The sentence must hold `part`, and no config is handed out. */
static void expect_bad(const char *args, char **env, vc_status_t want, const char *part)
{
    vc_err_t err = {0};
    vc_config_t *config = NULL;
    vc_status_t st = parse(args, env, &config, &err);
    cr_assert_eq(st, want, "%s gave %s: %s", args, vc_status_name(st), err.msg);
    cr_assert_not_null(strstr(err.msg, part), "'%s' does not name '%s'", err.msg, part);
    cr_assert_null(config);
}

static const char *temp_file(const char *text)
{
    static char path[64];
    snprintf(path, sizeof(path), "/tmp/vc-config-%d.conf", (int)getpid());
    vt_file_write(path, text, strlen(text));
    return path;
}

Test(config, defaults_come_from_the_table)
{
    vc_config_t *config;
    expect_good("", NULL, &config);
    cr_assert(opt_tls);
    cr_assert_eq(opt_threads, 2u);
    cr_assert_eq(opt_capacity, 1u << 30);
    cr_assert_eq(opt_egress, 0u);
    cr_assert_float_eq(opt_ratio, 0.5, 0);
    cr_assert_str_eq(opt_dir, "/var/lib/x");
    cr_assert_eq(opt_io, 0);
    cr_assert_eq(vc_config_n_args(config), 0);
    cr_assert_null(vc_config_arg(config, 0));
    vc_config_free(config);
    vc_config_free(NULL);
}

Test(config, flag_beats_environment_beats_file_beats_default)
{
    const char *path = temp_file("threads = 3\ndata-dir = /file\nio = ring\ntls = no\n");
    char file_env[128], *env[] = {file_env, (char *)"VERICACHE_THREADS=4", (char *)"VERICACHE_DATA_DIR=/env", NULL};
    snprintf(file_env, sizeof(file_env), "VERICACHE_CONFIG=%s", path);
    vc_config_t *config;
    expect_good("--threads 5", env, &config);
    cr_assert_eq(opt_threads, 5u);
    cr_assert_str_eq(opt_dir, "/env");
    cr_assert_eq(opt_io, 2);
    cr_assert_not(opt_tls);
    cr_assert_float_eq(opt_ratio, 0.5, 0);
    vc_config_free(config);
    cr_assert_str_eq(opt_dir, "/var/lib/x", "no dangling string");
    char args[128];
    snprintf(args, sizeof(args), "--config=%s", path);
    expect_good(args, NULL, &config);
    cr_assert_eq(opt_threads, 3u);
    vc_config_free(config);
    unlink(path);
}

Test(config, flags_take_both_forms_and_the_last_one_wins)
{
    vc_config_t *config;
    expect_good(
        "--threads=7 one --no-tls --io threads two --threads 8 --capacity 64KiB --egress-limit=2.5gbit -- --x -", NULL,
        &config);
    cr_assert_eq(opt_threads, 8u);
    cr_assert_not(opt_tls);
    cr_assert_eq(opt_io, 3);
    cr_assert_eq(opt_capacity, 65536u);
    cr_assert_eq(opt_egress, 2500000000u);
    cr_assert_eq(vc_config_n_args(config), 4);
    cr_assert_str_eq(vc_config_arg(config, 0), "one");
    cr_assert_str_eq(vc_config_arg(config, 1), "two");
    cr_assert_str_eq(vc_config_arg(config, 2), "--x");
    cr_assert_str_eq(vc_config_arg(config, 3), "-");
    vc_config_free(config);
    expect_good("--no-tls --tls", NULL, &config);
    cr_assert(opt_tls);
    vc_config_free(config);
}

Test(config, unknown_names_are_errors_wherever_they_stand)
{
    char *env[] = {(char *)"VERICACHE_THRAEDS=4", NULL};
    expect_bad("--thraeds 4", NULL, VC_ERR_INVALID, "--thraeds");
    expect_bad("--thread=4", NULL, VC_ERR_INVALID, "--thread");
    expect_bad("--no-threads", NULL, VC_ERR_INVALID, "--no-threads");
    expect_bad("-t", NULL, VC_ERR_INVALID, "-t");
    expect_bad("", env, VC_ERR_INVALID, "VERICACHE_THRAEDS");
    char args[128];
    snprintf(args, sizeof(args), "--config %s", temp_file("# fine\n\nthraeds = 4\n"));
    expect_bad(args, NULL, VC_ERR_INVALID, ":3: unknown option 'thraeds'");
    expect_bad("--config /nonexistent/x", NULL, VC_ERR_INVALID, "/nonexistent/x");
    unlink(temp_file(""));
}

Test(config, variables_of_others_are_left_alone)
{
    char *env[] = {(char *)"PATH=/bin", (char *)"VERICACHE_MODEL=/m", (char *)"VERICACHE_CACHE=/c", (char *)"odd",
                   NULL};
    vc_config_t *config;
    expect_good("", env, &config);
    vc_config_free(config);
}

Test(config, values_out_of_bounds_name_option_and_source)
{
    char *env[] = {(char *)"VERICACHE_RATIO=1.5", NULL};
    expect_bad("--threads 0", NULL, VC_ERR_RANGE, "--threads: '0' is outside 1 to 64");
    expect_bad("--threads 65", NULL, VC_ERR_RANGE, "--threads");
    expect_bad("--pages 3", NULL, VC_ERR_RANGE, "--pages: '3' is below 4");
    expect_bad("--shift 0.5", NULL, VC_ERR_RANGE, "--shift: '0.5' is outside -2 to 0");
    vc_config_t *config;
    expect_good("--pages 18446744073709551615 --shift -2", NULL, &config);
    cr_assert_eq(opt_pages, UINT64_MAX);
    vc_config_free(config);
    expect_bad("--capacity 4095", NULL, VC_ERR_RANGE, "--capacity");
    expect_bad("", env, VC_ERR_RANGE, "VERICACHE_RATIO: '1.5'");
    char args[128];
    snprintf(args, sizeof(args), "--config %s", temp_file("threads = 99\n"));
    expect_bad(args, NULL, VC_ERR_RANGE, ":1: threads: '99'");
    unlink(temp_file(""));
}

Test(config, malformed_and_missing_values_are_refused)
{
    expect_bad("--threads", NULL, VC_ERR_INVALID, "--threads needs a value");
    expect_bad("--threads --tls", NULL, VC_ERR_INVALID, "--threads needs a value");
    expect_bad("--config", NULL, VC_ERR_INVALID, "--config needs a value");
    static const char *const bad[] = {
        "--threads=",
        "--threads=-1",
        "--threads=+1",
        "--threads=0x10",
        "--threads=4x",
        "--threads=1e1",
        "--tls=maybe",
        "--io=ri",
        "--io=ring|fixed",
        "--io=",
        "--ratio=",
        "--ratio=nan",
        "--ratio=inf",
        "--ratio=0.5x",
        "--capacity=12x",
        "--capacity=1.GiB",
        "--capacity=1 GiB",
        "--capacity=-1",
        "--tls=",
        "--egress-limit=fast",
        "--egress-limit=1GiB",
        "--capacity=K",
        "--threads=99999999999999999999",
    };
    for (size_t i = 0; i < VC_ARRAY_LEN(bad); i++) {
        vc_err_t err = {0};
        vc_config_t *config = NULL;
        char *argv[] = {(char *)"prog", (char *)bad[i]};
        cr_assert_eq(vc_config_parse(table, 2, argv, NULL, &config, &err), VC_ERR_INVALID, "%s", bad[i]);
        cr_assert(strncmp(err.msg, "--", 2) == 0, "%s", err.msg);
    }
    char *control[] = {(char *)"prog", (char *)"--data-dir=a\nb"};
    vc_config_t *config = NULL;
    cr_assert_eq(vc_config_parse(table, 2, control, NULL, &config, NULL), VC_ERR_INVALID);
    char *huge = vc_calloc(1, 5000);
    memset(huge, 'x', 4999);
    memcpy(huge, "--data-dir=", 11);
    char *long_argv[] = {(char *)"prog", huge};
    cr_assert_eq(vc_config_parse(table, 2, long_argv, NULL, &config, NULL), VC_ERR_RANGE);
    vc_free(huge);
}

Test(config, help_and_version_win_over_any_error)
{
    vc_config_t *config;
    expect_good("--threads 3 --help --nonsense", NULL, &config);
    cr_assert(vc_config_wants_help(config));
    cr_assert_eq(opt_threads, 2u, "defaults only");
    vc_config_free(config);
    expect_good("-h", NULL, &config);
    cr_assert(vc_config_wants_help(config));
    vc_config_free(config);
    expect_good("--version", NULL, &config);
    cr_assert(vc_config_wants_version(config));
    cr_assert_not(vc_config_wants_help(config));
    vc_config_free(config);
}

Test(config, file_understands_comments_quotes_and_refuses_the_rest)
{
    vc_config_t *config;
    char args[128];
    snprintf(args, sizeof(args), "--config %s",
             temp_file("  # comment\n\ndata-dir = \" a # \\\"b\\\\ \"  # kept\nthreads=9 # nine\r\nio\t=\tring"));
    expect_good(args, NULL, &config);
    cr_assert_str_eq(opt_dir, " a # \"b\\ ");
    cr_assert_eq(opt_threads, 9u);
    cr_assert_eq(opt_io, 2);
    vc_config_free(config);
    static const char *const bad[][2] = {
        {"threads 9\n", ":1: a line is"},
        {"threads = 3\nthreads = 3\n", ":2: option 'threads' stands there twice"},
        {"data-dir = \"open\n", "closing quote"},
        {"data-dir = \"a\" b\n", "after the closing quote"},
        {"threads =\n", ":1: threads: ''"},
        {"= 3\n", ":1: unknown option ''"},
    };
    for (size_t i = 0; i < VC_ARRAY_LEN(bad); i++) {
        temp_file(bad[i][0]);
        expect_bad(args, NULL, VC_ERR_INVALID, bad[i][1]);
    }
    FILE *f = fopen(temp_file(""), "w"); /* zero bytes in a last line that has no end */
    cr_assert_eq(fwrite("threads = 3\0\0junk", 1, 17, f), 17u);
    fclose(f);
    expect_bad(args, NULL, VC_ERR_RANGE, ":1: the line is longer than 8192 bytes, or holds a zero byte");
    unlink(temp_file(""));
}

static char *print_values(const vc_config_t *config)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    vc_config_print_values(table, config, f);
    fclose(f);
    return text;
}

Test(config, printed_values_name_their_source_and_read_back_the_same)
{
    vc_config_t *config;
    char *env[] = {(char *)"VERICACHE_CAPACITY=1.5GiB", (char *)"VERICACHE_DATA_DIR= x#\"y\" # z ", NULL};
    expect_good("--ratio=0.1 --egress-limit=150mbit --print-config", env, &config);
    cr_assert(vc_config_wants_print(config));
    char *first = print_values(config);
    cr_assert_not_null(strstr(first, "capacity = 1536MiB  # environment\n"));
    cr_assert_not_null(strstr(first, "egress-limit = 150mbit  # flag\n"));
    cr_assert_not_null(strstr(first, "threads = 2  # default\n"));
    vc_config_free(config);
    char args[128];
    snprintf(args, sizeof(args), "--config %s", temp_file(first));
    expect_good(args, NULL, &config);
    cr_assert_str_eq(opt_dir, " x#\"y\" # z ");
    cr_assert_eq(opt_capacity, 3ull << 29);
    cr_assert(opt_ratio == 0.1);
    cr_assert_eq(opt_egress, 150000000u);
    vc_config_free(config);
    free(first);
    unlink(temp_file(""));
}

Test(config, a_text_may_have_line_ends_and_tabs_and_reads_back_the_same)
{
    static const char *text;
    static const vc_opt_t texts[] = {{"stop", VC_OPT_TEXT, &text, NULL, 0, 0, NULL, "end here"},
                                     {"dir", VC_OPT_STRING, &opt_dir, NULL, 0, 0, NULL, "where"},
                                     {0}};
    static const char *const values[] = {"\n", "a\tb\nc", "back\\n \"q\"\n", "plain"};
    vc_err_t err = {0};
    vc_config_t *config;
    for (size_t i = 0; i < VC_ARRAY_LEN(values); i++) {
        char *argv[] = {(char *)"prog", (char *)"--stop", (char *)values[i], (char *)"--dir=\\new", NULL},
             *printed = NULL;
        size_t n;
        cr_assert_eq(vc_config_parse(texts, 4, argv, NULL, &config, &err), VC_OK, "%s", err.msg);
        cr_assert_str_eq(text, values[i]);
        FILE *f = open_memstream(&printed, &n);
        vc_config_print_values(texts, config, f);
        fclose(f);
        vc_config_free(config);
        char *again[] = {(char *)"prog", (char *)"--config", (char *)temp_file(printed), NULL};
        cr_assert_eq(vc_config_parse(texts, 3, again, NULL, &config, &err), VC_OK, "%s in %s", err.msg, printed);
        cr_assert_str_eq(text, values[i]);
        cr_assert_str_eq(opt_dir, "\\new");
        vc_config_free(config);
        free(printed);
    }
    static const char *const bad[] = {"--stop=a\rb", "--stop=\x1b", "--dir=a\nb", "--dir=a\tb"};
    for (size_t i = 0; i < VC_ARRAY_LEN(bad); i++) {
        char *argv[] = {(char *)"prog", (char *)bad[i], NULL};
        cr_assert_eq(vc_config_parse(texts, 2, argv, NULL, &config, &err), VC_ERR_INVALID);
        cr_assert_not_null(strstr(err.msg, "control character"));
    }
    unlink(temp_file(""));
}

Test(config, sizes_in_sentences_are_read_back_as_no_less)
{
    static const struct {
        uint64_t bytes;
        const char *shown, *at_least;
    } sizes[] = {{0, "0", "0KiB"},
                 {1, "1", "1KiB"},
                 {1024, "1KiB", "1KiB"},
                 {600 << 10, "600KiB", "600KiB"},
                 {5 << 20, "5MiB", "5MiB"},
                 {1310720, "1.25MiB", "2MiB"},
                 {(1000ull << 20) + 1, "1000MiB", "1001MiB"},
                 {3ull << 29, "1.5GiB", "1536MiB"},
                 {(3ull << 29) + 1, "1.5GiB", "1537MiB"}};
    for (size_t i = 0; i < VC_ARRAY_LEN(sizes); i++) {
        uint64_t back;
        cr_assert_str_eq(vc_bytes_text(sizes[i].bytes).text, sizes[i].shown);
        cr_assert_str_eq(vc_bytes_text_at_least(sizes[i].bytes).text, sizes[i].at_least);
        cr_assert_eq(vc_parse_bytes(sizes[i].at_least, &back), VC_OK);
        cr_assert_geq(back, sizes[i].bytes);
        cr_assert_eq(vc_parse_bytes(sizes[i].shown, &back), VC_OK);
    }
}

static void join_one(void *arg, const char *name, const char *value, const char *source)
{
    char *text = arg;
    size_t n = strlen(text);
    snprintf(text + n, 1000 - n, "%s=%s(%s) ", name, value, source);
}

Test(config, each_option_comes_with_its_value_and_source)
{
    vc_config_t *config;
    char *env[] = {(char *)"VERICACHE_THREADS=7", NULL}, text[1000] = "";
    expect_good("--io ring --no-tls", env, &config);
    vc_config_each(table, config, join_one, text);
    cr_assert_not_null(strstr(text, "tls=false(flag) threads=7(environment) "), "%s", text);
    cr_assert_not_null(strstr(text, " data-dir=/var/lib/x(default) io=ring(flag) "), "%s", text);
    vc_config_free(config);
}

Test(config, help_lists_every_option)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    vc_config_print_help(table, f);
    fclose(f);
    for (const vc_opt_t *opt = table; opt->name != NULL; opt++) {
        cr_assert_not_null(strstr(text, opt->name));
        cr_assert_not_null(strstr(text, opt->help));
    }
    cr_assert_not_null(strstr(text, "auto|fixed|ring|threads"));
    free(text);
}

Test(config, sizes_and_rates_are_exact_up_to_their_limits)
{
    static const struct {
        const char *text;
        uint64_t want;
    } sizes[] = {{"0", 0},
                 {"4096", 4096},
                 {"1b", 1},
                 {"1kib", 1024},
                 {"1KB", 1000},
                 {"1.5GiB", 1610612736},
                 {"10GB", 10000000000},
                 {"0.000001TiB", 1099511},
                 {"16777215TiB", 16777215ull << 40},
                 {"18446744073709551615", UINT64_MAX}};
    uint64_t value = 7;
    for (size_t i = 0; i < VC_ARRAY_LEN(sizes); i++) {
        cr_assert_eq(vc_parse_bytes(sizes[i].text, &value), VC_OK, "%s", sizes[i].text);
        cr_assert_eq(value, sizes[i].want, "%s", sizes[i].text);
    }
    cr_assert_eq(vc_parse_rate("1gbit", &value), VC_OK);
    cr_assert_eq(value, 1000000000u);
    cr_assert_eq(vc_parse_rate("100Mbit", &value), VC_OK);
    cr_assert_eq(value, 100000000u);
    value = 7;
    cr_assert_eq(vc_parse_bytes("16777216TiB", &value), VC_ERR_RANGE);
    cr_assert_eq(vc_parse_bytes("18446744073709551616", &value), VC_ERR_INVALID);
    cr_assert_eq(vc_parse_bytes("1.0000001GiB", &value), VC_ERR_INVALID);
    cr_assert_eq(vc_parse_bytes("", &value), VC_ERR_INVALID);
    cr_assert_eq(vc_parse_bytes(".5GiB", &value), VC_ERR_INVALID);
    cr_assert_eq(value, 7u, "written only on success");
}
