/*
 * Keeps connections from taking the last descriptors.
 *
 * gRPC has no limit on connections, and when accept4 finds no descriptor it gives up listening for good; RocksDB and
 * the segment files suffer with it. So this module stands in for accept4 in the whole program: a connection whose
 * descriptor is beyond the limit is closed at once, and its client sees a reset and may try again. The kernel hands out
 * the lowest free number, so a number beyond the limit means that as many descriptors are open.
 *
 * One per process, because the libraries call accept4 by name.
 */
#ifndef CS_ACCEPTGUARD_H
#define CS_ACCEPTGUARD_H

#include <stdint.h>

/* max_connections: more descriptors than are open now; 0: what RLIMIT_NOFILE leaves but for a reserve. In either case
 * the reserve is kept free. */
void cs_acceptguard_set(uint64_t max_connections);
uint64_t cs_acceptguard_refused(void);

#endif
