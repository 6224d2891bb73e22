/* A directory of one test: made empty, removed with everything in it. */
#ifndef SUPPORT_TMPDIR_H
#define SUPPORT_TMPDIR_H

typedef struct vt_tmpdir {
    char path[256];
} vt_tmpdir_t;

/* Under $TMPDIR or /tmp. */
void vt_tmpdir_create(vt_tmpdir_t *dir);
/* dir->path "/" name; static storage per thread for up to four paths at a time. */
const char *vt_tmpdir_path(const vt_tmpdir_t *dir, const char *name);
/* Removes it recursively; symbolic links are removed, not followed. */
void vt_tmpdir_remove(vt_tmpdir_t *dir);

#endif
