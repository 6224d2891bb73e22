/* Messages of the Verify stream: what is packed comes back, what is malformed is refused, what is left out is off. */
#include "role/verify_wire.h"

#include <stdio.h>
#include <string.h>

#include "support/vc_test.h"
#include "vc/mem.h"

Test(verify_wire, an_open_comes_back_as_it_was_packed)
{
    uint32_t prompt[] = {7, 300, 70000}, committed[] = {9};
    char stop[] = "\n\nUser:";
    node_wire_open_t open = {.prompt = prompt,
                             .n_prompt = 3,
                             .committed = committed,
                             .n_committed = 1,
                             .max_tokens = 77,
                             .stops = {stop},
                             .n_stops = 1,
                             .context = 4096};
    memset(open.keyspace_id.b, 0x5a, sizeof(open.keyspace_id.b));
    node_sampling_default(&open.sampling);
    open.sampling.temperature = 0.7;
    open.sampling.top_p = 0.9;
    open.sampling.seed = UINT64_MAX;
    snprintf(open.compressor, sizeof(open.compressor), "kivi:bits=4");
    vc_bytes_t bytes;
    vc_err_t err = {0};
    node_wire_request_t got;
    cr_assert_eq(node_wire_pack_open(&open, &bytes), VC_OK);
    cr_assert_eq(node_wire_unpack_request(bytes.data, bytes.len, &got, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(got.kind, NODE_WIRE_OPEN);
    cr_assert_eq(memcmp(&got.open.keyspace_id, &open.keyspace_id, sizeof(open.keyspace_id)), 0);
    cr_assert(got.open.n_prompt == 3 && memcmp(got.open.prompt, prompt, sizeof(prompt)) == 0);
    cr_assert(got.open.n_committed == 1 && got.open.committed[0] == 9);
    cr_assert_eq(memcmp(&got.open.sampling, &open.sampling, sizeof(open.sampling)), 0);
    cr_assert(got.open.max_tokens == 77 && got.open.context == 4096);
    cr_assert(!got.open.ignore_end);
    cr_assert(got.open.n_stops == 1 && strcmp(got.open.stops[0], stop) == 0);
    cr_assert_str_eq(got.open.compressor, "kivi:bits=4");
    node_wire_request_free(&got);
    for (size_t cut = 1; cut < bytes.len;
         cut++) { /* every shorter message is refused or is a whole one; none crashes */
        (void)node_wire_unpack_request(bytes.data, cut, &got, &err);
        node_wire_request_free(&got);
    }
    vc_bytes_free(&bytes);
}

/* Open{keyspace_id: 32 bytes, prompt: [5], sampling: {}}, as another proto3 client would write it. */
Test(verify_wire, sampling_fields_that_were_not_set_are_off)
{
    uint8_t message[2 + 34 + 3 + 2] = {0x0a, 39, 0x0a, 32};
    const uint8_t rest[] = {0x12, 1, 5, 0x22, 0};
    memcpy(message + 36, rest, sizeof(rest));
    vc_err_t err = {0};
    node_wire_request_t got;
    cr_assert_eq(node_wire_unpack_request(message, sizeof(message), &got, &err), VC_OK, "%s", err.msg);
    cr_assert(got.open.sampling.top_p == 1 && got.open.sampling.repeat_penalty == 1);
    cr_assert_eq(node_sampling_check(&got.open.sampling, &err), VC_OK, "%s", err.msg);
    node_wire_request_free(&got);
}

Test(verify_wire, a_verdict_that_makes_no_sense_is_refused)
{
    node_wire_verdict_t v = {.first = 10, .n_tokens = 3, .tokens = {1, 2, 3}, .accepted = 2, .drafted = 4, .epoch = 5};
    vc_bytes_t bytes;
    vc_err_t err = {0};
    node_wire_reply_t got;
    cr_assert_eq(node_wire_pack_verdict(&v, &bytes), VC_OK);
    cr_assert_eq(node_wire_unpack_reply(bytes.data, bytes.len, &got, &err), VC_OK, "%s", err.msg);
    cr_assert(got.kind == NODE_WIRE_VERDICT && got.verdict.first == 10 && got.verdict.n_tokens == 3);
    cr_assert(got.verdict.accepted == 2 && got.verdict.drafted == 4 && got.verdict.epoch == 5);
    node_wire_reply_free(&got);
    vc_bytes_free(&bytes);
    const struct {
        uint32_t accepted, drafted, finish;
    } bad[] = {{4, 9, 0}, {2, 1, 0}, {0, 0, 5}};
    for (size_t i = 0; i < VC_ARRAY_LEN(bad); i++) {
        v.accepted = bad[i].accepted;
        v.drafted = bad[i].drafted;
        v.finish = (node_finish_t)bad[i].finish;
        cr_assert_eq(node_wire_pack_verdict(&v, &bytes), VC_OK);
        cr_assert_eq(node_wire_unpack_reply(bytes.data, bytes.len, &got, &err), VC_ERR_PROTOCOL, "%zu", i);
        node_wire_reply_free(&got);
        vc_bytes_free(&bytes);
    }
}
