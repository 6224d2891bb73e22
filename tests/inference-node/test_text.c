/*
 * From tokens to text: stop strings at every split, bytes held back until they are final, and output that is valid
 * UTF-8 whatever the tokens are.
 */
#include <string.h>

#include "speculate/text.h"
#include "support/tiny_model.h"
#include "support/vc_test.h"
#include "vc/mem.h"

static gguf_image_t image;
static node_gguf_t *gguf;
static node_tokenizer_t *tok;

static void open_tok(void)
{
    vc_err_t err = {0};
    gguf_writer_t *w = gguf_writer_create();
    tiny_model_add_tokenizer(w);
    image = gguf_writer_finish(w);
    cr_assert_eq(node_gguf_open_memory(image.data, image.bytes, &gguf, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_tokenizer_create(gguf, &tok, &err), VC_OK, "%s", err.msg);
}

static void close_tok(void)
{
    node_tokenizer_destroy(tok);
    node_gguf_close(gguf);
    gguf_image_free(&image);
}

static node_text_t *make(const char *const *stops, uint32_t n)
{
    node_text_t *t = NULL;
    vc_err_t err = {0};
    cr_assert_eq(node_text_create(tok, stops, n, &t, &err), VC_OK, "%s", err.msg);
    return t;
}

static bool push(node_text_t *t, uint32_t token)
{
    bool stopped;
    cr_assert_eq(node_text_push(t, token, &stopped, NULL), VC_OK);
    return stopped;
}

static bool push_bytes(node_text_t *t, const char *s, size_t n)
{
    bool stopped = false;
    for (size_t i = 0; i < n; i++)
        stopped = push(t, TINY_ID_FIRST_BYTE + (unsigned char)s[i]);
    return stopped;
}

static void expect_take(node_text_t *t, const char *want)
{
    size_t len;
    const char *got = node_text_take(t, &len);
    cr_assert(len == strlen(want) && !memcmp(got, want, len), "got '%.*s', want '%s'", (int)len, got, want);
}

static void expect_all(node_text_t *t, const char *want)
{
    size_t len;
    const char *got = node_text_all(t, &len);
    cr_assert_str_eq(got, want);
    cr_assert_eq(len, strlen(want));
}

Test(text, tokens_become_their_pieces_and_special_tokens_nothing)
{
    open_tok();
    node_text_t *t = make(NULL, 0);
    uint32_t *ids, n;
    const char *text = "of the user in and";
    cr_assert_eq(node_tokenizer_encode(tok, text, strlen(text), false, &ids, &n, NULL), VC_OK);
    cr_assert_lt(n, strlen(text)); /* merges took part */
    for (uint32_t i = 0; i < n; i++) {
        push(t, ids[i]);
        push(t, TINY_ID_IM_START);
    }
    expect_take(t, text);
    expect_take(t, "");
    expect_all(t, text);
    node_text_destroy(t);
    vc_free(ids);
    close_tok();
}

Test(text, an_incomplete_sequence_is_held_back_until_it_is_complete)
{
    open_tok();
    node_text_t *t = make(NULL, 0);
    push_bytes(t, "a\xf0\x9f\x98", 4);
    expect_take(t, "a");
    push_bytes(t, "\x80", 1);
    expect_take(t, "\xf0\x9f\x98\x80");
    push_bytes(t, "\xc3", 1);
    expect_take(t, "");
    cr_assert_eq(node_text_finish(t, NULL), VC_OK);
    expect_take(t, "\xef\xbf\xbd");
    expect_all(t, "a\xf0\x9f\x98\x80\xef\xbf\xbd");
    push_bytes(t, "later", 5);
    expect_take(t, "");
    node_text_destroy(t);
    close_tok();
}

Test(text, bytes_that_are_no_utf8_become_replacement_characters)
{
    open_tok();
    const struct {
        const char *in, *out;
    } cases[] = {
        {"\x80x", "\xef\xbf\xbdx"},                                                 /* a lone continuation */
        {"\xc0\xafx", "\xef\xbf\xbd\xef\xbf\xbdx"},                                 /* overlong */
        {"\xe0\x80\x80x", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdx"},                 /* overlong */
        {"\xed\xa0\x80x", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdx"},                 /* surrogate */
        {"\xf4\x90\x80\x80x", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdx"}, /* over U+10FFFF */
        {"\xe2\x82xy", "\xef\xbf\xbdxy"},                                           /* cut short by another character */
        {"\xff\xfex", "\xef\xbf\xbd\xef\xbf\xbdx"},
        {"\xc3\xa9\xe2\x82\xac", "\xc3\xa9\xe2\x82\xac"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        node_text_t *t = make(NULL, 0);
        push_bytes(t, cases[i].in, strlen(cases[i].in));
        cr_assert_eq(node_text_finish(t, NULL), VC_OK);
        expect_all(t, cases[i].out);
        node_text_destroy(t);
    }
    close_tok();
}

Test(text, a_stop_string_ends_the_text_before_it_and_a_near_miss_is_released)
{
    open_tok();
    const char *stops[] = {"STOP"};
    node_text_t *t = make(stops, 1);
    cr_assert_not(push_bytes(t, "go STO", 6));
    expect_take(t, "go ");
    cr_assert_not(push_bytes(t, "R ST", 4));
    expect_take(t, "STOR ");
    cr_assert_not(push_bytes(t, "STO", 3)); /* STSTO: the later ST may still become it */
    expect_take(t, "ST");
    cr_assert(push_bytes(t, "P", 1));
    expect_take(t, "");
    cr_assert(push_bytes(t, "more", 4)); /* nothing comes after it */
    cr_assert_eq(node_text_finish(t, NULL), VC_OK);
    expect_all(t, "go STOR ST");
    node_text_destroy(t);
    close_tok();
}

Test(text, held_back_bytes_come_out_at_the_end)
{
    open_tok();
    const char *stops[] = {"\n\nUser:"};
    node_text_t *t = make(stops, 1);
    push_bytes(t, "x\n\nUse", 6);
    expect_take(t, "x");
    cr_assert_eq(node_text_finish(t, NULL), VC_OK);
    expect_take(t, "\n\nUse");
    node_text_destroy(t);
    close_tok();
}

Test(text, of_several_stop_strings_the_first_that_is_complete_ends_the_text)
{
    open_tok();
    const char *stops[] = {"abcd", "bc", "\xe2\x82\xac"};
    node_text_t *t = make(stops, 3);
    cr_assert(push_bytes(t, "xabc", 4));
    expect_all(t, "xa");
    node_text_destroy(t);
    t = make(stops, 3);
    cr_assert(push_bytes(t, "1\xe2\x82\xac", 4)); /* a stop string of one multi-byte character */
    expect_all(t, "1");
    node_text_destroy(t);
    close_tok();
}

Test(text, a_stop_string_inside_one_token_is_found)
{
    open_tok();
    const char *stops[] = {"th"}, *text = " the";
    node_text_t *t = make(stops, 1);
    uint32_t *ids, n;
    cr_assert_eq(node_tokenizer_encode(tok, text, 4, false, &ids, &n, NULL), VC_OK);
    cr_assert_eq(n, 1);
    cr_assert(push(t, ids[0]));
    expect_all(t, " ");
    vc_free(ids);
    node_text_destroy(t);
    close_tok();
}

Test(text, stop_strings_out_of_bounds_are_refused)
{
    open_tok();
    char longest[NODE_STOP_BYTES_MAX + 2];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    const char *empty[] = {"ok", ""}, *overlong[] = {longest}, *many[NODE_STOPS_MAX + 1];
    for (uint32_t i = 0; i <= NODE_STOPS_MAX; i++)
        many[i] = "s";
    node_text_t *t = NULL;
    vc_err_t err = {0};
    cr_assert_eq(node_text_create(tok, empty, 2, &t, &err), VC_ERR_INVALID);
    cr_assert_eq(node_text_create(tok, overlong, 1, &t, &err), VC_ERR_INVALID);
    cr_assert_eq(node_text_create(tok, many, NODE_STOPS_MAX + 1, &t, &err), VC_ERR_INVALID);
    cr_assert_null(t);
    overlong[0] = longest + 1;
    cr_assert_eq(node_text_create(tok, overlong, 1, &t, &err), VC_OK);
    node_text_destroy(t);
    close_tok();
}
