/* Lines from a pipe: asked for without waiting, whole or not at all, the last one without its end, none too long. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "role/lines.h"
#include "support/vc_test.h"

static int ends[2];
static node_lines_t *lines;
static vc_err_t err;

static void open_pipe(size_t max_bytes)
{
    char path[32];
    cr_assert_eq(pipe(ends), 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    cr_assert_eq(node_lines_open(path, max_bytes, &lines, &err), VC_OK, "%s", err.msg);
}

static void give(const char *text) { cr_assert_eq(write(ends[1], text, strlen(text)), (ssize_t)strlen(text)); }

static void expect(const char *text, uint64_t number)
{
    const char *line;
    size_t bytes;
    uint64_t n;
    cr_assert_eq(node_lines_next(lines, false, &line, &bytes, &n, &err), VC_OK, "%s", err.msg);
    cr_assert_str_eq(line, text);
    cr_assert_eq(bytes, strlen(text));
    cr_assert_eq(n, number);
}

static vc_status_t none(void)
{
    const char *line;
    size_t bytes;
    uint64_t n;
    return node_lines_next(lines, false, &line, &bytes, &n, &err);
}

Test(lines, a_line_comes_when_all_of_it_is_there)
{
    open_pipe(1000);
    cr_assert_eq(none(), VC_ERR_AGAIN);
    give("first\nsec");
    expect("first", 1);
    cr_assert_eq(none(), VC_ERR_AGAIN);
    give("ond\n\nlast");
    expect("second", 2);
    expect("", 3);
    cr_assert_eq(none(), VC_ERR_AGAIN);
    close(ends[1]);
    expect("last", 4);
    cr_assert_eq(none(), VC_ERR_NOT_FOUND);
    cr_assert_eq(none(), VC_ERR_NOT_FOUND);
    node_lines_close(lines);
    close(ends[0]);
}

static void expect_too_long(const char *sentence, uint64_t number)
{
    const char *line;
    size_t bytes;
    uint64_t n;
    cr_assert_eq(node_lines_next(lines, false, &line, &bytes, &n, &err), VC_ERR_RANGE);
    cr_assert_neq(strstr(err.msg, sentence), NULL, "%s", err.msg);
    cr_assert_eq(n, number);
}

Test(lines, a_line_that_is_too_long_is_told_once_and_the_next_one_follows)
{
    char text[201];
    memset(text, 'x', 200);
    text[200] = '\0';
    open_pipe(100);
    give("short\n");
    expect("short", 1);
    give(text); /* its end is not there yet */
    expect_too_long("line 2", 2);
    cr_assert_eq(none(), VC_ERR_AGAIN);
    give(text);
    cr_assert_eq(none(), VC_ERR_AGAIN);
    give("\n third\n");
    expect(" third", 3);
    give(text); /* whole */
    give("\nfifth\n");
    expect_too_long("line 4", 4);
    expect("fifth", 5);
    give(text); /* the last one, without an end */
    expect_too_long("line 6", 6);
    close(ends[1]);
    cr_assert_eq(none(), VC_ERR_NOT_FOUND);
    node_lines_close(lines);
    close(ends[0]);
}

Test(lines, a_file_that_is_not_there_is_one_sentence)
{
    cr_assert_eq(node_lines_open("/nonexistent/requests", 100, &lines, &err), VC_ERR_INVALID);
    cr_assert_neq(strstr(err.msg, "/nonexistent/requests"), NULL, "%s", err.msg);
}
