/*
 * The client as a process of its own, on CPU 1, as the peer's is: between threads of one process shared memory would be
 * no more than a copy. It is forked before the server's libraries start threads, and does one job after the other.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dataplane_parts.h"
#include "vc/crc32c.h"

typedef struct answer {
    double seconds, bytes;
    uint32_t crc; /* of the hot record */
} answer_t;

static int to_client = -1;
static pid_t client;

/* ---- in the client ---- */

static int count_record(void *arg, uint32_t block, vc_status_t status, const void *record, size_t bytes)
{
    (void)block;
    (void)record;
    *(size_t *)arg += bytes;
    return status != VC_OK;
}

static void run_cold_job(const job_t *job, answer_t *answer)
{
    vc_data_t *data = NULL;
    vc_err_t err = {0};
    size_t bytes = 0;
    must(vc_data_connect(job->address, NULL, &data, &err), &err, "connect");
    must(vc_data_fetch(data, &job->lease, 0, 0, OUTSTANDING, count_record, &bytes, 0, NULL, &err), &err, "fetch");
    bytes = 0;
    double t = bench_now_s();
    for (uint64_t i = 0; i < job->n; i++)
        must(vc_data_fetch(data, &job->lease, 0, 0, job->n_blocks, count_record, &bytes, 0, NULL, &err), &err, "fetch");
    answer->seconds = bench_now_s() - t;
    answer->bytes = (double)bytes;
    vc_data_close(data);
}

static _Noreturn void client_main(int fd)
{
    job_t job;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    bench_pin(1);
    while (recv(fd, &job, sizeof(job), MSG_WAITALL) == (ssize_t)sizeof(job)) {
        answer_t answer = {0};
        if (job.hot) {
            answer.seconds = hot_seconds(&job, &answer.crc);
            answer.bytes = (double)job.n * (double)job.record_bytes;
        } else {
            run_cold_job(&job, &answer);
        }
        if (send(fd, &answer, sizeof(answer), 0) != (ssize_t)sizeof(answer))
            break;
    }
    _exit(0);
}

/* ---- in the server ---- */

void client_start(void)
{
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0 || (client = fork()) < 0)
        bench_fail("no process for the client");
    if (client == 0) {
        close(fds[0]);
        client_main(fds[1]);
    }
    close(fds[1]);
    to_client = fds[0];
}

void client_stop(void)
{
    close(to_client);
    waitpid(client, NULL, 0);
}

static answer_t ask_client(const server_t *s, const vc_data_lease_t *lease, bool hot, bool shm, uint64_t n)
{
    answer_t answer;
    job_t job = {.hot = hot, .shm = shm, .n = n, .n_blocks = s->n_blocks, .record_bytes = s->record_bytes};
    const char *address = shm ? cs_dataplane_shm_address(s->dp) : cs_dataplane_address(s->dp);
    job.lease = *lease;
    if (strlen(address) >= sizeof(job.address))
        bench_fail("an address of %zu bytes", strlen(address));
    memcpy(job.address, address, strlen(address) + 1);
    if (send(to_client, &job, sizeof(job), MSG_NOSIGNAL) != (ssize_t)sizeof(job) ||
        recv(to_client, &answer, sizeof(answer), MSG_WAITALL) != (ssize_t)sizeof(answer))
        bench_fail("the client's process is gone");
    return answer;
}

double run_cold(server_t *s, bool shm, uint32_t n)
{
    vc_data_lease_t lease = take_lease(s);
    answer_t answer = ask_client(s, &lease, false, shm, n);
    drop_lease(s, &lease);
    return answer.bytes / answer.seconds / 1e6;
}

typedef struct kept {
    _Atomic int done;
    cs_view_t *view;
} kept_t;

static void on_kept(void *arg, vc_status_t status, cs_view_t *view)
{
    kept_t *k = arg;
    k->view = view;
    atomic_store_explicit(&k->done, status == VC_OK ? 1 : -1, memory_order_release);
}

/* A view that is held keeps the record in memory, whatever the size of the memory tier. */
static cs_view_t *keep_record(const server_t *s, const vc_data_lease_t *lease)
{
    static kept_t k;
    cs_pin_t pin;
    cs_token_t token;
    cs_view_t *view = NULL;
    memcpy(token.b, lease->token, sizeof(token.b));
    k = (kept_t){.view = NULL};
    must(cs_store_pin_leased(s->store, lease->boot_id, lease->lease_id, &token, 0, 0, &pin), NULL, "pin");
    must(cs_store_get(s->store, NULL, &pin, &view, on_kept, &k), NULL, "read");
    while (view == NULL && atomic_load_explicit(&k.done, memory_order_acquire) == 0)
        usleep(100);
    cs_store_unpin(s->store, &pin);
    view = view != NULL ? view : k.view;
    if (view == NULL)
        bench_fail("the hot record cannot be read");
    return view;
}

double run_hot(server_t *s, bool shm, uint64_t n)
{
    vc_data_lease_t lease = take_lease(s);
    cs_view_t *view = keep_record(s, &lease);
    answer_t answer = ask_client(s, &lease, true, shm, n);
    if (answer.crc != vc_crc32c(0, s->hot, s->record_bytes))
        bench_fail("the hot record arrived damaged");
    cs_view_release(view);
    drop_lease(s, &lease);
    return answer.bytes / answer.seconds / 1e6;
}
