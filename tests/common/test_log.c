/* The log: one event is one line, whatever it is made of and whoever writes it. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "support/logcap.h"
#include "support/vc_test.h"
#include "vc/log.h"

Test(log, line_carries_time_level_module_and_event)
{
    vt_logcap_start(VC_LOG_INFO);
    vc_log_warn("dataplane", "peer lost peer=%s ms=%d", "10.0.0.1", 3);
    const char *line = vt_logcap_text();
    cr_assert_eq(line[4], '-');
    cr_assert_eq(line[10], 'T');
    cr_assert_eq(line[23], 'Z');
    cr_assert_str_eq(line + 24, " warn dataplane: peer lost peer=10.0.0.1 ms=3\n");
    vt_logcap_stop();
}

Test(log, level_keeps_lines_out_but_every_event_is_counted)
{
    unsigned long before = vc_log_count(VC_LOG_DEBUG), warns = vc_log_count(VC_LOG_WARN);
    vt_logcap_start(VC_LOG_ERROR);
    vc_log_debug("x", "hidden");
    vc_log_warn("x", "hidden too");
    vc_log_error("x", "shown");
    cr_assert_eq(vt_logcap_count(VC_LOG_DEBUG), 0u);
    cr_assert_eq(vt_logcap_count(VC_LOG_WARN), 0u);
    cr_assert_eq(vt_logcap_count(VC_LOG_ERROR), 1u);
    cr_assert_eq(vc_log_count(VC_LOG_DEBUG), before + 1);
    cr_assert_eq(vc_log_count(VC_LOG_WARN), warns + 1);
    vt_logcap_stop();
}

Test(log, text_from_outside_cannot_start_a_line_of_its_own)
{
    vt_logcap_start(VC_LOG_INFO);
    vc_log_info("rpc", "call method=%s", "a\n2026-01-01T00:00:00.000Z error x: forged\r\x1b[31m");
    const char *text = vt_logcap_text();
    cr_assert_eq(strchr(text, '\n'), text + strlen(text) - 1);
    cr_assert_null(strchr(text, '\r'));
    cr_assert_null(strchr(text, '\x1b'));
    vt_logcap_stop();
}

Test(log, overlong_events_are_cut_to_one_line)
{
    char big[5000];
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    vt_logcap_start(VC_LOG_INFO);
    vc_log_info("m", "%s", big);
    cr_assert_lt(strlen(vt_logcap_text()), 1300u);
    cr_assert_eq(vt_logcap_count(VC_LOG_INFO), 1u);
    vt_logcap_stop();
}

static void *chatter(void *arg)
{
    for (int i = 0; i < 500; i++)
        vc_log_info("chat", "line from=%d begin-%04d-end", *(int *)arg, i);
    return NULL;
}

Test(log, lines_of_many_threads_never_mix)
{
    pthread_t threads[4];
    int ids[4] = {0, 1, 2, 3};
    vt_logcap_start(VC_LOG_INFO);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, chatter, &ids[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(vt_logcap_count(VC_LOG_INFO), 2000u);
    for (int id = 0; id < 4; id++)
        for (int i = 0; i < 500; i += 499) {
            char want[64];
            snprintf(want, sizeof(want), " info chat: line from=%d begin-%04d-end\n", id, i);
            cr_assert(vt_logcap_has(want));
        }
    vt_logcap_stop();
}
