/* A few threads, one queue in, one list out, one mutex. The slow path by design: correctness first. */
#include "iothreads.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "vc/mem.h"

#define N_THREADS 4

struct cs_iothreads {
    pthread_t threads[N_THREADS];
    unsigned n_started;
    pthread_mutex_t lock;
    pthread_cond_t work, finished;
    cs_io_t *queue, **queue_end;
    cs_io_t *done;
    bool stop;
    int event_fd;
};

static void transfer(cs_io_t *io)
{
    uint8_t *data = io->data + io->moved;
    size_t bytes = io->bytes - io->moved;
    off_t offset = (off_t)(io->offset + io->moved);
    ssize_t n = io->write ? pwrite(io->fd, data, bytes, offset) : pread(io->fd, data, bytes, offset);
    io->result = n < 0 ? -errno : (int32_t)n;
}

static void *run(void *arg)
{
    cs_iothreads_t *threads = arg;
    pthread_mutex_lock(&threads->lock);
    for (;;) {
        while (!threads->queue && !threads->stop)
            pthread_cond_wait(&threads->work, &threads->lock);
        cs_io_t *io = threads->queue;
        if (!io)
            break;
        threads->queue = io->next;
        if (!threads->queue)
            threads->queue_end = &threads->queue;
        pthread_mutex_unlock(&threads->lock);
        transfer(io);
        pthread_mutex_lock(&threads->lock);
        io->next = threads->done;
        threads->done = io;
        pthread_cond_signal(&threads->finished);
        uint64_t one = 1;
        (void)!write(threads->event_fd, &one, sizeof(one));
    }
    pthread_mutex_unlock(&threads->lock);
    return NULL;
}

vc_status_t cs_iothreads_create(int event_fd, cs_iothreads_t **threads_p, vc_err_t *err)
{
    cs_iothreads_t *threads = vc_calloc(1, sizeof(*threads));
    if (!threads)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for io threads");
    threads->event_fd = event_fd;
    threads->queue_end = &threads->queue;
    pthread_mutex_init(&threads->lock, NULL);
    pthread_cond_init(&threads->work, NULL);
    pthread_cond_init(&threads->finished, NULL);
    for (unsigned i = 0; i < N_THREADS; i++) {
        int rc = pthread_create(&threads->threads[i], NULL, run, threads);
        if (rc != 0) {
            cs_iothreads_destroy(threads);
            return vc_err_set(err, VC_ERR_NOMEM, "cannot start an io thread: %s", strerror(rc));
        }
        threads->n_started++;
    }
    *threads_p = threads;
    return VC_OK;
}

void cs_iothreads_destroy(cs_iothreads_t *threads)
{
    if (!threads)
        return;
    pthread_mutex_lock(&threads->lock);
    threads->stop = true;
    pthread_cond_broadcast(&threads->work);
    pthread_mutex_unlock(&threads->lock);
    for (unsigned i = 0; i < threads->n_started; i++)
        pthread_join(threads->threads[i], NULL);
    pthread_cond_destroy(&threads->finished);
    pthread_cond_destroy(&threads->work);
    pthread_mutex_destroy(&threads->lock);
    vc_free(threads);
}

void cs_iothreads_push(cs_iothreads_t *threads, cs_io_t *io)
{
    pthread_mutex_lock(&threads->lock);
    io->next = NULL;
    *threads->queue_end = io;
    threads->queue_end = &io->next;
    pthread_cond_signal(&threads->work);
    pthread_mutex_unlock(&threads->lock);
}

cs_io_t *cs_iothreads_take(cs_iothreads_t *threads)
{
    pthread_mutex_lock(&threads->lock);
    cs_io_t *done = threads->done;
    threads->done = NULL;
    pthread_mutex_unlock(&threads->lock);
    return done;
}

void cs_iothreads_wait(cs_iothreads_t *threads)
{
    pthread_mutex_lock(&threads->lock);
    while (!threads->done)
        pthread_cond_wait(&threads->finished, &threads->lock);
    pthread_mutex_unlock(&threads->lock);
}
