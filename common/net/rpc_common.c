/*
 * What both sides share: library start and stop, slices to bytes and back, status mapping, completion queues.
 *
 * gRPC's own log lines go to ours at level debug: every failure also comes back as a status with a sentence, and a
 * library must not write to its host's stderr.
 */
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "rpc_int.h"
#include "vc/log.h"
#include "vc/mem.h"

static void log_line(gpr_log_func_args *args) { vc_log_debug("grpc", "%s", args->message); }

void vc_rpc_init(void)
{
    gpr_set_log_function(log_line);
    grpc_init();
}

/* After writes that had to wait for their socket a poller of gRPC's own may sleep for up to ten seconds, and the
 * library's end waits for it. A new descriptor among those that it polls wakes it, and it finds that nobody needs it
 * any more. */
static void wake_poller(void)
{
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0)
        return;
    grpc_channel_credentials *creds = grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create_from_fd("wake", fds[0], creds, NULL); /* owns fds[0] */
    grpc_channel_credentials_release(creds);
    if (channel != NULL)
        grpc_channel_destroy(channel);
    close(fds[1]);
}

/* Blocking: after the last fini no gRPC thread runs, so that a leak check or an unload sees a quiet process. */
void vc_rpc_fini(void)
{
    wake_poller();
    grpc_shutdown_blocking();
}

void vc_bytes_free(vc_bytes_t *bytes)
{
    if (bytes == NULL)
        return;
    vc_free(bytes->data);
    bytes->data = NULL;
    bytes->len = 0;
}

gpr_timespec vc_rpc_deadline(uint32_t ms)
{
    if (ms == 0)
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    if (ms == VC_RPC_NO_WAIT)
        return gpr_now(GPR_CLOCK_MONOTONIC);
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(ms, GPR_TIMESPAN));
}

uint64_t vc_rpc_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000 + 1;
}

/* ---- messages ---- */

void vc_rpc_msg_release(const vc_rpc_msg_t *msg)
{
    if (msg->release != NULL)
        msg->release(msg->arg);
}

/* The body's slice keeps its own copy of who to tell, since the message struct is gone when gRPC lets go. */
typedef struct {
    void (*release)(void *arg);
    void *arg;
} body_owner_t;

static void body_destroyed(void *arg)
{
    body_owner_t owner = *(body_owner_t *)arg;
    vc_free(arg);
    if (owner.release != NULL)
        owner.release(owner.arg);
}

grpc_byte_buffer *vc_rpc_buffer_make(const vc_rpc_msg_t *msg)
{
    grpc_slice slices[2];
    size_t n = 0;
    if (msg->head_len != 0)
        slices[n++] = grpc_slice_from_copied_buffer(msg->head, msg->head_len);
    if (msg->body_len != 0) {
        body_owner_t *owner = vc_alloc(sizeof(*owner));
        if (owner == NULL) {
            if (n != 0)
                grpc_slice_unref(slices[0]);
            vc_rpc_msg_release(msg);
            return NULL;
        }
        *owner = (body_owner_t){msg->release, msg->arg};
        slices[n++] = grpc_slice_new_with_user_data((void *)(uintptr_t)msg->body, msg->body_len, body_destroyed, owner);
    } else {
        vc_rpc_msg_release(msg);
    }
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(slices, n);
    for (size_t i = 0; i < n; i++)
        grpc_slice_unref(slices[i]); /* the buffer holds its own references */
    return buffer;
}

vc_status_t vc_rpc_buffer_read(grpc_byte_buffer *buffer, vc_bytes_t *out)
{
    size_t len = grpc_byte_buffer_length(buffer), at = 0;
    uint8_t *data = vc_alloc(len);
    if (data == NULL)
        return VC_ERR_NOMEM;
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, buffer)) {
        vc_free(data);
        return VC_ERR_PROTOCOL;
    }
    grpc_slice slice;
    while (grpc_byte_buffer_reader_next(&reader, &slice)) {
        size_t n = VC_MIN(GRPC_SLICE_LENGTH(slice), len - at);
        memcpy(data + at, GRPC_SLICE_START_PTR(slice), n);
        at += n;
        grpc_slice_unref(slice);
    }
    grpc_byte_buffer_reader_destroy(&reader);
    out->data = data;
    out->len = at;
    return VC_OK;
}

/* ---- status ---- */

int vc_rpc_status_code(vc_status_t status)
{
    switch (status) {
    case VC_OK: return GRPC_STATUS_OK;
    case VC_ERR_INVALID: return GRPC_STATUS_INVALID_ARGUMENT;
    case VC_ERR_TIMEOUT: return GRPC_STATUS_DEADLINE_EXCEEDED;
    case VC_ERR_NOT_FOUND: return GRPC_STATUS_NOT_FOUND;
    case VC_ERR_EXISTS: return GRPC_STATUS_ALREADY_EXISTS;
    case VC_ERR_PERM: return GRPC_STATUS_PERMISSION_DENIED;
    case VC_ERR_BUSY:
    case VC_ERR_NOSPACE:
    case VC_ERR_NOMEM: return GRPC_STATUS_RESOURCE_EXHAUSTED;
    case VC_ERR_STALE:
    case VC_ERR_MISMATCH:
    case VC_ERR_READONLY: return GRPC_STATUS_FAILED_PRECONDITION;
    case VC_ERR_AGAIN: return GRPC_STATUS_ABORTED;
    case VC_ERR_CANCELLED: return GRPC_STATUS_CANCELLED;
    case VC_ERR_RANGE: return GRPC_STATUS_OUT_OF_RANGE;
    case VC_ERR_UNSUPPORTED: return GRPC_STATUS_UNIMPLEMENTED;
    case VC_ERR_UNREACHABLE: return GRPC_STATUS_UNAVAILABLE;
    case VC_ERR_CORRUPT:
    case VC_ERR_IO: return GRPC_STATUS_DATA_LOSS;
    case VC_ERR_PROTOCOL:
    case VC_ERR_INTERNAL: break;
    }
    return GRPC_STATUS_INTERNAL;
}

/* What a code means when no name says more. */
static vc_status_t status_of_code(int code)
{
    switch (code) {
    case GRPC_STATUS_OK: return VC_OK;
    case GRPC_STATUS_CANCELLED: return VC_ERR_CANCELLED;
    case GRPC_STATUS_INVALID_ARGUMENT: return VC_ERR_INVALID;
    case GRPC_STATUS_DEADLINE_EXCEEDED: return VC_ERR_TIMEOUT;
    case GRPC_STATUS_NOT_FOUND: return VC_ERR_NOT_FOUND;
    case GRPC_STATUS_ALREADY_EXISTS: return VC_ERR_EXISTS;
    case GRPC_STATUS_PERMISSION_DENIED:
    case GRPC_STATUS_UNAUTHENTICATED: return VC_ERR_PERM;
    case GRPC_STATUS_RESOURCE_EXHAUSTED: return VC_ERR_BUSY;
    case GRPC_STATUS_FAILED_PRECONDITION: return VC_ERR_STALE;
    case GRPC_STATUS_ABORTED: return VC_ERR_AGAIN;
    case GRPC_STATUS_OUT_OF_RANGE: return VC_ERR_RANGE;
    case GRPC_STATUS_UNIMPLEMENTED: return VC_ERR_UNSUPPORTED;
    case GRPC_STATUS_UNAVAILABLE: return VC_ERR_UNREACHABLE;
    case GRPC_STATUS_DATA_LOSS: return VC_ERR_CORRUPT;
    default: return VC_ERR_INTERNAL;
    }
}

static const vc_status_t every_status[] = {
    VC_ERR_INVALID, VC_ERR_UNSUPPORTED, VC_ERR_RANGE,     VC_ERR_AGAIN,       VC_ERR_BUSY,
    VC_ERR_TIMEOUT, VC_ERR_CANCELLED,   VC_ERR_NOT_FOUND, VC_ERR_EXISTS,      VC_ERR_STALE,
    VC_ERR_CORRUPT, VC_ERR_MISMATCH,    VC_ERR_PERM,      VC_ERR_UNREACHABLE, VC_ERR_PROTOCOL,
    VC_ERR_NOMEM,   VC_ERR_NOSPACE,     VC_ERR_READONLY,  VC_ERR_IO,          VC_ERR_INTERNAL,
};

/* Finds "name: " of a status that travels under this code. Returns the length to skip, 0 when there is none. */
static size_t name_prefix(int code, const char *message, vc_status_t *status_p)
{
    for (size_t i = 0; message != NULL && i < VC_ARRAY_LEN(every_status); i++) {
        const char *name = vc_status_name(every_status[i]);
        size_t n = strlen(name);
        if (vc_rpc_status_code(every_status[i]) == code && strncmp(message, name, n) == 0 && message[n] == ':') {
            *status_p = every_status[i];
            return n + 1 + (message[n + 1] == ' ');
        }
    }
    return 0;
}

vc_status_t vc_rpc_status_map(int grpc_code, const char *message)
{
    vc_status_t status = status_of_code(grpc_code);
    if (name_prefix(grpc_code, message, &status) == 0 && grpc_code == GRPC_STATUS_RESOURCE_EXHAUSTED &&
        message != NULL && strstr(message, "larger than max") != NULL)
        status = VC_ERR_RANGE; /* gRPC's own answer to an oversized message: trying later will not help */
    return status;
}

vc_status_t vc_rpc_status_take(grpc_status_code code, grpc_slice details, vc_err_t *err)
{
    if (code == GRPC_STATUS_OK)
        return VC_OK;
    char message[sizeof(err->msg)];
    size_t n = VC_MIN(GRPC_SLICE_LENGTH(details), sizeof(message) - 1);
    memcpy(message, GRPC_SLICE_START_PTR(details), n);
    message[n] = '\0';
    vc_status_t status = vc_rpc_status_map((int)code, message), named;
    size_t skip = name_prefix((int)code, message, &named);
    return vc_err_set(err, status, "%s", message[skip] != '\0' ? message + skip : vc_status_name(status));
}

grpc_slice vc_rpc_details_make(vc_status_t status, const vc_err_t *err)
{
    const char *sentence = err != NULL && err->msg[0] != '\0' ? err->msg : vc_status_name(status);
    if (status == VC_OK)
        return grpc_empty_slice();
    if (status_of_code(vc_rpc_status_code(status)) == status)
        return grpc_slice_from_copied_string(sentence);
    char text[600];
    snprintf(text, sizeof(text), "%s: %s", vc_status_name(status), sentence);
    return grpc_slice_from_copied_string(text);
}

/* ---- completion queues ---- */

vc_rpc_batch_t vc_rpc_pluck(grpc_completion_queue *cq, void *tag, gpr_timespec deadline)
{
    grpc_event ev = grpc_completion_queue_pluck(cq, tag, deadline, NULL);
    if (ev.type == GRPC_QUEUE_TIMEOUT)
        return VC_RPC_BATCH_PENDING;
    return ev.type == GRPC_OP_COMPLETE && ev.success ? VC_RPC_BATCH_OK : VC_RPC_BATCH_FAILED;
}

void vc_rpc_cq_destroy(grpc_completion_queue *cq)
{
    if (cq == NULL)
        return;
    grpc_completion_queue_shutdown(cq);
    while (grpc_completion_queue_pluck(cq, NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type != GRPC_QUEUE_SHUTDOWN)
        ;
    grpc_completion_queue_destroy(cq);
}
