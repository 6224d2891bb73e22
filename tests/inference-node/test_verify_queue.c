/* The draft queue of a Verify stream: positions, epochs, conflicts; and the stream's messages against hostile bytes. */
#include "support/vc_test.h"

#include <string.h>

#include "role/patience.h"
#include "role/verify_queue.h"
#include "vc/mem.h"

static node_wire_draft_t draft(uint32_t epoch, uint32_t first, uint32_t n, const uint32_t *tokens)
{
    node_wire_draft_t d = {.epoch = epoch, .first = first, .n_tokens = n};
    memcpy(d.tokens, tokens, n * sizeof(tokens[0]));
    return d;
}

static const uint32_t committed[] = {1, 2, 3, 10}; /* a prompt of three, one committed token */
#define N_PROMPT 3u

Test(verify_queue, drafts_in_flight_extend_each_other)
{
    node_verify_queue_t q;
    node_verify_queue_init(&q);
    node_wire_draft_t a = draft(0, 4, 2, (uint32_t[]){11, 12}), b = draft(0, 6, 1, (uint32_t[]){13});
    cr_assert_eq(node_verify_queue_push(&q, &a, committed, 4, N_PROMPT, NULL), VC_OK);
    cr_assert_eq(node_verify_queue_push(&q, &b, committed, 4, N_PROMPT, NULL), VC_OK);
    cr_assert_eq(q.n, 3u);
    cr_assert_eq(q.tokens[2], 13u);
    node_verify_queue_commit(&q, (uint32_t[]){11, 12, 13}, 3);
    cr_assert_eq(q.n, 0u);
    cr_assert_eq(q.void_epoch, -1);
}

Test(verify_queue, a_bonus_token_that_equals_the_next_draft_keeps_the_epoch)
{
    node_verify_queue_t q;
    node_verify_queue_init(&q);
    node_wire_draft_t a = draft(0, 4, 4, (uint32_t[]){11, 12, 13, 14});
    cr_assert_eq(node_verify_queue_push(&q, &a, committed, 4, N_PROMPT, NULL), VC_OK);
    node_verify_queue_commit(&q, (uint32_t[]){11, 12, 13}, 3); /* two drafts were verified, 13 is the bonus */
    cr_assert_eq(q.n, 1u);
    cr_assert_eq(q.tokens[0], 14u);
    node_verify_queue_commit(&q, (uint32_t[]){99}, 1);
    cr_assert_eq(q.n, 0u);
    cr_assert_eq(q.void_epoch, 0);
}

Test(verify_queue, a_draft_that_arrives_after_its_position_was_committed_is_compared)
{
    node_verify_queue_t q;
    node_verify_queue_init(&q);
    const uint32_t all[] = {1, 2, 3, 10, 11, 12};
    node_wire_draft_t good = draft(0, 4, 3, (uint32_t[]){11, 12, 13});
    cr_assert_eq(node_verify_queue_push(&q, &good, all, 6, N_PROMPT, NULL), VC_OK);
    cr_assert_eq(q.n, 1u, "only the token behind the committed ones waits");
    cr_assert_eq(q.tokens[0], 13u);
    node_wire_draft_t bad = draft(0, 4, 3, (uint32_t[]){11, 77, 13});
    cr_assert_eq(node_verify_queue_push(&q, &bad, all, 6, N_PROMPT, NULL), VC_OK);
    cr_assert_eq(q.n, 0u);
    cr_assert_eq(q.void_epoch, 0);
}

Test(verify_queue, a_void_epoch_is_ignored_until_the_next_one_begins)
{
    node_verify_queue_t q;
    node_verify_queue_init(&q);
    node_wire_draft_t a = draft(0, 4, 1, (uint32_t[]){50});
    cr_assert_eq(node_verify_queue_push(&q, &a, committed, 4, N_PROMPT, NULL), VC_OK);
    node_verify_queue_commit(&q, (uint32_t[]){11}, 1);
    const uint32_t all[] = {1, 2, 3, 10, 11};
    node_wire_draft_t late = draft(0, 5, 1, (uint32_t[]){51}), fresh = draft(1, 5, 1, (uint32_t[]){12});
    cr_assert_eq(node_verify_queue_push(&q, &late, all, 5, N_PROMPT, NULL), VC_OK);
    cr_assert_eq(q.n, 0u);
    cr_assert_eq(node_verify_queue_push(&q, &fresh, all, 5, N_PROMPT, NULL), VC_OK);
    cr_assert_eq(q.n, 1u);
    node_wire_draft_t older = draft(0, 5, 1, (uint32_t[]){12});
    cr_assert_eq(node_verify_queue_push(&q, &older, all, 5, N_PROMPT, NULL), VC_OK);
    cr_assert_eq(q.n, 1u);
}

Test(verify_queue, gaps_prompt_positions_and_floods_are_protocol_errors)
{
    node_verify_queue_t q;
    vc_err_t err = {0};
    node_verify_queue_init(&q);
    node_wire_draft_t gap = draft(0, 5, 1, (uint32_t[]){1}), prompt = draft(0, 2, 1, (uint32_t[]){3});
    cr_assert_eq(node_verify_queue_push(&q, &gap, committed, 4, N_PROMPT, &err), VC_ERR_PROTOCOL);
    cr_assert_eq(node_verify_queue_push(&q, &prompt, committed, 4, N_PROMPT, &err), VC_ERR_PROTOCOL);
    uint32_t many[NODE_WIRE_DRAFTS_MAX] = {0};
    vc_status_t status = VC_OK;
    for (uint32_t i = 0; i < 5 && status == VC_OK; i++) {
        node_wire_draft_t d = draft(0, 4 + i * NODE_WIRE_DRAFTS_MAX, NODE_WIRE_DRAFTS_MAX, many);
        status = node_verify_queue_push(&q, &d, committed, 4, N_PROMPT, &err);
    }
    cr_assert_eq(status, VC_ERR_PROTOCOL);
    cr_assert_eq(q.n, NODE_QUEUE_CAP);
}

Test(patience, nobody_is_waited_for_before_the_first_draft)
{
    node_patience_t p = {0};
    cr_assert_eq(node_patience_steps(&p), 0u);
    for (int i = 0; i < 500; i++)
        node_patience_plain(&p);
    cr_assert_eq(node_patience_steps(&p), 0u);
    node_patience_draft(&p, 8, 0); /* the first one, although too late */
    cr_assert_eq(node_patience_steps(&p), 10u);
}

Test(patience, a_drafter_in_time_is_waited_for_and_a_late_one_twice)
{
    node_patience_t p = {0};
    node_patience_draft(&p, 8, 8);
    node_patience_round(&p, 9, 9 * 900, 1000);
    cr_assert_eq(node_patience_steps(&p), 10u);
    node_patience_plain(&p);
    cr_assert_eq(node_patience_steps(&p), 10u);
    node_patience_draft(&p, 8, 4); /* half of it in time */
    node_patience_plain(&p);
    cr_assert_eq(node_patience_steps(&p), 10u);
    node_patience_plain(&p);
    cr_assert_eq(node_patience_steps(&p), 0u);
    node_patience_draft(&p, 8, 8); /* what is there is taken; it is not waited for */
    cr_assert_eq(node_patience_steps(&p), 0u);
}

Test(patience, drafts_that_do_not_pay_are_tried_again_ever_more_rarely)
{
    node_patience_t p = {0};
    node_patience_draft(&p, 4, 4);
    uint32_t pause = NODE_PATIENCE_PAUSE;
    for (int i = 0; i < 4; i++, pause *= 2) {
        node_patience_round(&p, 5, 5 * 1100, 1000);
        for (uint32_t n = 0; n < pause; n++) {
            cr_assert_eq(node_patience_steps(&p), 0u);
            node_patience_plain(&p);
        }
        cr_assert_eq(node_patience_steps(&p), 6u);
    }
    node_patience_round(&p, 5, 5 * 900, 1000); /* now they do */
    cr_assert_eq(node_patience_steps(&p), 6u);
    node_patience_plain(&p);
    cr_assert_eq(node_patience_steps(&p), 6u);
}

static node_wire_open_t sample_open(void)
{
    static uint32_t prompt[] = {1, 2, 3}, done[] = {7};
    node_wire_open_t open = {.prompt = prompt, .n_prompt = 3, .committed = done, .n_committed = 1, .max_tokens = 9};
    node_sampling_default(&open.sampling);
    open.sampling.temperature = 0.7;
    open.sampling.seed = 42;
    open.stops[0] = (char *)"END";
    open.n_stops = 1;
    strcpy(open.compressor, "kivi:bits=4");
    memset(open.keyspace_id.b, 0xab, sizeof(open.keyspace_id.b));
    return open;
}

Test(verify_wire, open_comes_back_as_it_was_sent)
{
    node_wire_open_t open = sample_open();
    vc_bytes_t bytes;
    node_wire_request_t request;
    cr_assert_eq(node_wire_pack_open(&open, &bytes), VC_OK);
    cr_assert_eq(node_wire_unpack_request(bytes.data, bytes.len, &request, NULL), VC_OK);
    cr_assert_eq(request.kind, NODE_WIRE_OPEN);
    cr_assert_eq(request.open.n_prompt, 3u);
    cr_assert_eq(request.open.prompt[2], 3u);
    cr_assert_eq(request.open.committed[0], 7u);
    cr_assert_eq(request.open.sampling.seed, 42u);
    cr_assert_eq(request.open.sampling.temperature, 0.7);
    cr_assert_str_eq(request.open.stops[0], "END");
    cr_assert_str_eq(request.open.compressor, "kivi:bits=4");
    cr_assert_arr_eq(request.open.keyspace_id.b, open.keyspace_id.b, VC_DIGEST_BYTES);
    node_wire_request_free(&request);
    vc_bytes_free(&bytes);
}

Test(verify_wire, a_verdict_comes_back_with_its_rows)
{
    static node_wire_verdict_t verdict = {.first = 100, .n_tokens = 2, .tokens = {5, 6}, .accepted = 1, .drafted = 3};
    const uint8_t rows[4] = {1, 2, 3, 4};
    verdict.finish = NODE_FINISH_STOP;
    verdict.tail_first = 64;
    verdict.tail_rows = rows;
    verdict.tail_bytes = sizeof(rows);
    vc_bytes_t bytes;
    node_wire_reply_t *reply = vc_calloc(1, sizeof(*reply));
    cr_assert_eq(node_wire_pack_verdict(&verdict, &bytes), VC_OK);
    cr_assert_eq(node_wire_unpack_reply(bytes.data, bytes.len, reply, NULL), VC_OK);
    cr_assert_eq(reply->kind, NODE_WIRE_VERDICT);
    cr_assert_eq(reply->verdict.tokens[1], 6u);
    cr_assert_eq(reply->verdict.finish, NODE_FINISH_STOP);
    cr_assert_eq(reply->verdict.tail_bytes, sizeof(rows));
    cr_assert_arr_eq(reply->verdict.tail_rows, rows, sizeof(rows));
    node_wire_reply_free(reply);
    vc_free(reply);
    vc_bytes_free(&bytes);
}

/* Every single-byte change and every truncation is either refused or gives a message within its bounds; never a crash.
 */
Test(verify_wire, damaged_messages_are_refused_or_stay_within_bounds)
{
    node_wire_open_t open = sample_open();
    vc_bytes_t bytes;
    cr_assert_eq(node_wire_pack_open(&open, &bytes), VC_OK);
    unsigned refused = 0;
    for (size_t i = 0; i < bytes.len; i++)
        for (int bit = 0; bit < 8; bit++) {
            uint8_t *copy = vc_memdup(bytes.data, bytes.len);
            copy[i] ^= (uint8_t)(1u << bit);
            node_wire_request_t request;
            vc_status_t status = node_wire_unpack_request(copy, bytes.len, &request, NULL);
            refused += status != VC_OK;
            cr_assert(status != VC_OK || request.kind != NODE_WIRE_OPEN ||
                      (request.open.n_prompt > 0 && request.open.n_stops <= NODE_STOPS_MAX));
            node_wire_request_free(&request);
            vc_free(copy);
        }
    for (size_t len = 0; len < bytes.len; len++) {
        uint8_t *copy = vc_memdup(bytes.data, len);
        node_wire_request_t request;
        (void)node_wire_unpack_request(copy, len, &request, NULL);
        node_wire_request_free(&request);
        vc_free(copy);
    }
    cr_assert_gt(refused, 0u);
    vc_bytes_free(&bytes);
}
