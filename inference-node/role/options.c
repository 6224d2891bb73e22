/* See options.h. Runs once, on the main thread. */
#include "role/options.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kv/slow.h"
#include "speculate/session.h"

typedef struct {
    const node_idle_opt_t *list, *found;
    size_t n;
} search_t;

static void look(void *arg, const char *name, const char *value, const char *source)
{
    search_t *s = arg;
    (void)value;
    for (size_t i = 0; s->found == NULL && i < s->n; i++)
        if (s->list[i].idle && strcmp(s->list[i].name, name) == 0 && strcmp(source, "flag") == 0)
            s->found = &s->list[i];
}

vc_status_t node_opts_refuse_idle(const vc_opt_t *table, const vc_config_t *config, const node_idle_opt_t *list,
                                  size_t n, vc_err_t *err)
{
    search_t s = {.list = list, .n = n};
    vc_config_each(table, config, look, &s);
    return s.found == NULL ? VC_OK
                           : vc_err_set(err, VC_ERR_INVALID, "--%s does nothing here: it is read %s", s.found->name,
                                        s.found->needs);
}

vc_status_t node_opts_draft_length(const char *text, uint32_t *x_p, vc_err_t *err)
{
    if (!strcmp(text, "auto")) {
        *x_p = NODE_DRAFT_AUTO;
        return VC_OK;
    }
    char *end;
    errno = 0;
    unsigned long v = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || v > NODE_LENGTH_MAX)
        return vc_err_set(err, VC_ERR_INVALID, "--draft-length: '%s' is neither auto nor a number up to %u", text,
                          NODE_LENGTH_MAX);
    *x_p = (uint32_t)v;
    return VC_OK;
}

vc_status_t node_opts_kv_dir(const char **dir, vc_err_t *err)
{
    const char *tmp = getenv("TMPDIR");
    if (!(*dir)[0])
        *dir = tmp != NULL && tmp[0] ? tmp : "/var/tmp";
    vc_status_t st = node_slow_check_dir(*dir, err);
    if (st != VC_OK)
        (void)vc_err_prefix(err, "--kv-dir");
    return st;
}

vc_status_t node_opts_out_file(const char *path, vc_err_t *err)
{
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return VC_OK; /* whoever reads a pipe takes its first end for the end */
    bool there = lstat(path, &st) == 0;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return vc_err_set(err, vc_status_from_path_errno(errno), "cannot write %s: %s", path, strerror(errno));
    close(fd);
    if (!there)
        unlink(path);
    return VC_OK;
}
