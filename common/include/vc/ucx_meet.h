/*
 * Where two processes of one user on one machine meet before they share memory: an abstract unix socket with a random
 * name. The kernel vouches for both ends (SO_PEERCRED): same user, and a process id that exists here; a remote machine,
 * another network or process namespace, or another user does not get that far. The socket stays open as long as the two
 * work together: when one of them dies, by whatever means, the other reads its end at once.
 *
 * One message each way, then silence; little-endian:
 *   0  4  magic "VCSM"
 *   4  2  version (1)
 *   6  2  bytes of the worker address that follows at 12
 *   8  4  i32 status: 0 from the client; from the server OK, or why not (then without an address): BUSY, too many
 *
 * No state of its own, any thread.
 */
#ifndef VC_UCX_MEET_H
#define VC_UCX_MEET_H

#include <stddef.h>
#include <stdint.h>

#include "vc/status.h"
#include "vc/ucx.h"

#define VC_MEET_NAME_MAX 64u
#define VC_MEET_PREFIX "shm:" /* what tells such a name from HOST:PORT in an address */

/* A listening, non-blocking socket under a fresh name, which is written with its prefix. Close it with close(). */
vc_status_t vc_meet_listen(char name[VC_MEET_NAME_MAX], int *fd_p, vc_err_t *err);
/* The next one who came: AGAIN when nobody did, PERM when it was another user's process (it is closed). */
vc_status_t vc_meet_accept(int listen_fd, int *fd_p);
/* NOT_FOUND: no such name on this machine, which is how a remote server's name looks. PERM: another user's. */
vc_status_t vc_meet_dial(const char *name, int *fd_p, vc_err_t *err);

typedef struct vc_meet_msg {
    vc_status_t status;
    size_t address_bytes;
    uint8_t address[VC_UCX_ADDRESS_MAX];
} vc_meet_msg_t;
vc_status_t vc_meet_send(int fd, const vc_meet_msg_t *msg);
/* Waits at most timeout_ms (0: not at all, AGAIN). UNREACHABLE when the other side is gone, PROTOCOL for anything that
 * is no such message. */
vc_status_t vc_meet_recv(int fd, uint32_t timeout_ms, vc_meet_msg_t *msg_p);
/* The other side's end has come, or it said something after its message. */
bool vc_meet_is_over(int fd);

#endif
