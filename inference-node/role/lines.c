/* A growing buffer over poll and read. */
#include "role/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "vc/mem.h"

#define WAIT_MS 200 /* a signal that is to end the waiting may reach another thread */

struct node_lines {
    int fd;
    char *path;
    size_t max_bytes;
    char *data; /* [cap]: [at, used) was not given out yet; [at, seen) has no line end */
    size_t cap, at, seen, used;
    uint64_t n_lines;
    bool ended, skips; /* skips: what comes belongs to a line that was too long */
};

vc_status_t node_lines_open(const char *path, size_t max_bytes, node_lines_t **lines_p, vc_err_t *err)
{
    node_lines_t *l = vc_calloc(1, sizeof *l);
    if (l == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory to read %s", path);
    l->max_bytes = max_bytes;
    l->path = vc_strdup(path);
    l->cap = 64u << 10;
    l->data = vc_alloc(l->cap);
    l->fd = strcmp(path, "-") == 0 ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    int why = errno;
    if (l->fd >= 0 && l->path != NULL && l->data != NULL) {
        *lines_p = l;
        return VC_OK;
    }
    vc_status_t st = l->fd < 0
                         ? vc_err_set(err, vc_status_from_path_errno(why), "cannot open %s: %s", path, strerror(why))
                         : vc_err_set(err, VC_ERR_NOMEM, "no memory to read %s", path);
    node_lines_close(l);
    return st;
}

void node_lines_close(node_lines_t *l)
{
    if (l == NULL)
        return;
    if (l->fd > STDIN_FILENO)
        close(l->fd);
    vc_free(l->path);
    vc_free(l->data);
    vc_free(l);
}

/* Room for more bytes and an end mark: what was given out makes place first. */
static vc_status_t make_room(node_lines_t *l, vc_err_t *err)
{
    if (l->at > 0) {
        memmove(l->data, l->data + l->at, l->used - l->at);
        l->used -= l->at;
        l->seen -= l->at;
        l->at = 0;
    }
    if (l->used + 1 < l->cap)
        return VC_OK;
    char *data = vc_realloc(l->data, 2, l->cap);
    if (data == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for line %llu of %s", (unsigned long long)l->n_lines + 1,
                          l->path);
    l->data = data;
    l->cap *= 2;
    return VC_OK;
}

static vc_status_t read_more(node_lines_t *l, bool wait, vc_err_t *err)
{
    vc_status_t st = make_room(l, err);
    if (st != VC_OK)
        return st;
    struct pollfd p = {.fd = l->fd, .events = POLLIN};
    int ready = poll(&p, 1, wait ? WAIT_MS : 0);
    if (ready == 0 || (ready < 0 && errno == EINTR))
        return VC_ERR_AGAIN;
    ssize_t n = read(l->fd, l->data + l->used, l->cap - 1 - l->used);
    if (n < 0)
        return errno == EINTR || errno == EAGAIN
                   ? VC_ERR_AGAIN
                   : vc_err_set(err, vc_status_from_path_errno(errno), "cannot read %s: %s", l->path, strerror(errno));
    l->used += (size_t)n;
    l->ended = n == 0;
    return VC_OK;
}

/* The next line end behind what was looked at, or the end of the last line, which has none. NULL: not there yet. */
static char *find_end(node_lines_t *l)
{
    char *end = memchr(l->data + l->seen, '\n', l->used - l->seen);
    if (end == NULL && l->ended && l->used > l->at)
        end = l->data + l->used; /* make_room left a byte for the mark */
    return end;
}

static vc_status_t too_long(node_lines_t *l, uint64_t *number_p, vc_err_t *err)
{
    *number_p = ++l->n_lines;
    return vc_err_set(err, VC_ERR_RANGE, "line %llu of %s is longer than %zu bytes", (unsigned long long)l->n_lines,
                      l->path, l->max_bytes);
}

vc_status_t node_lines_next(node_lines_t *l, bool wait, const char **line_p, size_t *bytes_p, uint64_t *number_p,
                            vc_err_t *err)
{
    for (;;) {
        char *end = find_end(l);
        if (end != NULL) {
            char *line = l->data + l->at;
            bool skipped = l->skips;
            l->skips = false;
            l->at = l->seen = VC_MIN((size_t)(end - l->data) + 1, l->used);
            if (skipped)
                continue;
            if ((size_t)(end - line) > l->max_bytes)
                return too_long(l, number_p, err);
            *line_p = line;
            *bytes_p = (size_t)(end - line);
            *end = '\0';
            *number_p = ++l->n_lines;
            return VC_OK;
        }
        l->seen = l->used;
        if (l->used - l->at > l->max_bytes || l->skips) {
            bool told = l->skips;
            l->skips = true;
            l->at = l->used; /* none of it is kept */
            if (!told)
                return too_long(l, number_p, err);
        }
        if (l->ended)
            return VC_ERR_NOT_FOUND;
        vc_status_t st = read_more(l, wait, err);
        if (st != VC_OK)
            return st;
    }
}
