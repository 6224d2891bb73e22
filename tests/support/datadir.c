/* See datadir.h. */
#include "support/datadir.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "support/file.h"
#include "support/proc.h"
#include "vc/mem.h"

void vt_datadir_unpack(const vt_tmpdir_t *dir, const char *name)
{
    char archive[1024];
    char *out = NULL;
    snprintf(archive, sizeof(archive), "%s/%s/data.tar.gz", VC_TEST_VECTORS, name);
    const char *args[] = {"-C", dir->path, "-xzf", archive, NULL};
    int rc = vt_proc_run("/bin/tar", args, NULL, 60000, &out);
    if (rc != 0)
        vt_die("cannot unpack %s: exit code %d: %s", archive, rc, out);
    vc_free(out);
}

void vt_flip_byte(const char *path, uint64_t at, uint8_t mask)
{
    uint8_t byte;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || pread(fd, &byte, 1, (off_t)at) != 1)
        vt_die("cannot read byte %llu of %s", (unsigned long long)at, path);
    byte ^= mask;
    if (pwrite(fd, &byte, 1, (off_t)at) != 1 || fsync(fd) != 0)
        vt_die("cannot write byte %llu of %s", (unsigned long long)at, path);
    close(fd);
}
