/* The one message before two processes share memory, through a socket pair: what is accepted keeps its bounds and
 * arrives the same when it is sent again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "vc/ucx_meet.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static vc_meet_msg_t msg, again;
    int fds[2];
    if (size > 4096)
        return 0;
    must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    must(send(fds[0], data, size, MSG_NOSIGNAL) == (ssize_t)size);
    vc_status_t status = vc_meet_recv(fds[1], 0, &msg);
    if (status == VC_OK) {
        must(msg.address_bytes <= VC_UCX_ADDRESS_MAX && msg.status <= VC_OK);
        must((msg.address_bytes > 0) == (msg.status == VC_OK));
        must(vc_meet_send(fds[0], &msg) == VC_OK && vc_meet_recv(fds[1], 0, &again) == VC_OK);
        must(again.status == msg.status && again.address_bytes == msg.address_bytes &&
             memcmp(again.address, msg.address, msg.address_bytes) == 0);
    } else {
        must(status == VC_ERR_PROTOCOL || (status == VC_ERR_UNREACHABLE && size == 0));
    }
    must(vc_meet_recv(fds[1], 0, &msg) == VC_ERR_AGAIN);
    close(fds[0]);
    close(fds[1]);
    return 0;
}
