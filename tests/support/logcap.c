/* Log capture. The sink runs on any thread, under the log's own lock; readers take ours. */
#include "support/logcap.h"

#include <pthread.h>
#include <string.h>

#include "support/file.h"
#include "vc/mem.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *text;
static size_t used, cap;
static size_t counts[VC_LOG_DEBUG + 1];

static void sink(void *arg, vc_log_level_t level, const char *line)
{
    (void)arg;
    size_t n = strlen(line);
    pthread_mutex_lock(&lock);
    counts[level]++;
    if (used + n + 2 > cap) {
        cap = 2 * (used + n + 2);
        text = vc_realloc(text, cap, 1);
        if (text == NULL)
            vt_die("out of memory capturing the log");
    }
    memcpy(text + used, line, n);
    memcpy(text + used + n, "\n", 2);
    used += n + 1;
    pthread_mutex_unlock(&lock);
}

void vt_logcap_start(vc_log_level_t level)
{
    vc_log_set_level(level);
    vc_log_set_sink(sink, NULL);
}

bool vt_logcap_has(const char *want)
{
    pthread_mutex_lock(&lock);
    bool found = text != NULL && strstr(text, want) != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

size_t vt_logcap_count(vc_log_level_t level)
{
    pthread_mutex_lock(&lock);
    size_t n = counts[level];
    pthread_mutex_unlock(&lock);
    return n;
}

const char *vt_logcap_text(void) { return text != NULL ? text : ""; }

void vt_logcap_stop(void)
{
    vc_log_set_sink(NULL, NULL);
    vc_log_set_level(VC_LOG_INFO);
    pthread_mutex_lock(&lock);
    vc_free(text);
    text = NULL;
    used = cap = 0;
    memset(counts, 0, sizeof(counts));
    pthread_mutex_unlock(&lock);
}
