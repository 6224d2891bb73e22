/* Captures the log of the process, so that a test can demand a line or its absence. One capture at a time. */
#ifndef SUPPORT_LOGCAP_H
#define SUPPORT_LOGCAP_H

#include <stdbool.h>
#include <stddef.h>

#include "vc/log.h"

/* Takes the sink over; level is what is kept (and the log's level until stop). */
void vt_logcap_start(vc_log_level_t level);
/* True when a captured line holds text. */
bool vt_logcap_has(const char *text);
/* Lines of this level captured so far. */
size_t vt_logcap_count(vc_log_level_t level);
/* Every captured line, for messages of failed assertions; valid until the next line is logged. */
const char *vt_logcap_text(void);
/* Gives the sink back (stderr, info) and forgets the lines. */
void vt_logcap_stop(void);

#endif
