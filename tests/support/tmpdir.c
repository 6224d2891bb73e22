/* A directory of one test. */
#include "support/tmpdir.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/file.h"

void vt_tmpdir_create(vt_tmpdir_t *dir)
{
    const char *base = getenv("TMPDIR");
    snprintf(dir->path, sizeof(dir->path), "%s/vc-test-XXXXXX", base != NULL && base[0] != '\0' ? base : "/tmp");
    if (mkdtemp(dir->path) == NULL)
        vt_die("cannot make a directory %s: %s", dir->path, strerror(errno));
}

const char *vt_tmpdir_path(const vt_tmpdir_t *dir, const char *name)
{
    static _Thread_local char paths[4][512];
    static _Thread_local unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", dir->path, name);
    return path;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

void vt_tmpdir_remove(vt_tmpdir_t *dir)
{
    if (dir->path[0] == '\0')
        return;
    if (nftw(dir->path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0)
        vt_die("cannot remove %s: %s", dir->path, strerror(errno));
    dir->path[0] = '\0';
}
