/* Data directories of released formats, unpacked for one test, and bytes in their files turned over. */
#ifndef SUPPORT_DATADIR_H
#define SUPPORT_DATADIR_H

#include <stdint.h>

#include "support/tmpdir.h"

/* tests/vectors/<name>/data.tar.gz into dir; the directory of the store is then vt_tmpdir_path(dir, "data"). Ends the
 * test when there is no tar. */
void vt_datadir_unpack(const vt_tmpdir_t *dir, const char *name);
/* Exclusive-ors one byte of a file and syncs. */
void vt_flip_byte(const char *path, uint64_t at, uint8_t mask);

#endif
