/* One thread accepts, two carry the bytes of each connection. */
#include "support/gate.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "support/file.h"
#include "vc/mem.h"

#define CONNECTIONS_MAX 64u /* in the life of a gate */

typedef struct pump {
    vt_gate_t *gate;
    int from, to;
    bool is_up; /* towards the server */
    pthread_t thread;
} pump_t;

struct vt_gate {
    int listener;
    unsigned port, target_port;
    pthread_t acceptor;
    pthread_mutex_t mu;
    pthread_cond_t changed;
    bool is_held, is_over; /* locked, and so is what is held: bytes of clients */
    size_t bytes_held;
    pump_t pumps[2 * CONNECTIONS_MAX];
    unsigned n_pumps; /* the acceptor's, until it has ended */
};

static struct sockaddr_in loopback(unsigned port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
}

/* False: it is over. */
static bool pass(pump_t *p, size_t n)
{
    vt_gate_t *g = p->gate;
    pthread_mutex_lock(&g->mu);
    bool waits = p->is_up && g->is_held && !g->is_over;
    if (waits) {
        g->bytes_held += n;
        pthread_cond_broadcast(&g->changed);
    }
    while (p->is_up && g->is_held && !g->is_over)
        pthread_cond_wait(&g->changed, &g->mu);
    g->bytes_held -= waits ? n : 0;
    bool is_over = g->is_over;
    pthread_mutex_unlock(&g->mu);
    return !is_over;
}

static void *carry(void *arg)
{
    pump_t *p = arg;
    char bytes[16 << 10];
    ssize_t n;
    while ((n = recv(p->from, bytes, sizeof(bytes), 0)) > 0 && pass(p, (size_t)n)) {
        for (ssize_t at = 0, sent; at < n; at += sent) {
            sent = send(p->to, bytes + at, (size_t)(n - at), MSG_NOSIGNAL);
            if (sent <= 0) {
                shutdown(p->from, SHUT_RD);
                return NULL;
            }
        }
    }
    shutdown(p->to, SHUT_WR);
    return NULL;
}

static void start_pump(vt_gate_t *g, int from, int to, bool is_up)
{
    pump_t *p = &g->pumps[g->n_pumps++];
    *p = (pump_t){.gate = g, .from = from, .to = to, .is_up = is_up};
    if (pthread_create(&p->thread, NULL, carry, p) != 0)
        vt_die("no thread for a gate");
}

static void *accept_all(void *arg)
{
    vt_gate_t *g = arg;
    int client;
    while ((client = accept4(g->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        struct sockaddr_in to = loopback(g->target_port);
        int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (g->n_pumps == VC_ARRAY_LEN(g->pumps) || server < 0 ||
            connect(server, (struct sockaddr *)&to, sizeof(to)) != 0) {
            close(client);
            if (server >= 0)
                close(server);
            continue;
        }
        start_pump(g, client, server, true);
        start_pump(g, server, client, false);
    }
    return NULL;
}

vt_gate_t *vt_gate_start(unsigned target_port)
{
    vt_gate_t *g = vc_calloc(1, sizeof(*g));
    struct sockaddr_in at = loopback(0);
    socklen_t size = sizeof(at);
    if (g == NULL)
        vt_die("no memory for a gate");
    g->target_port = target_port;
    pthread_mutex_init(&g->mu, NULL);
    pthread_cond_init(&g->changed, NULL);
    g->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (g->listener < 0 || bind(g->listener, (struct sockaddr *)&at, sizeof(at)) != 0 || listen(g->listener, 16) != 0 ||
        getsockname(g->listener, (struct sockaddr *)&at, &size) != 0 ||
        pthread_create(&g->acceptor, NULL, accept_all, g) != 0)
        vt_die("a gate cannot listen");
    g->port = ntohs(at.sin_port);
    return g;
}

unsigned vt_gate_port(const vt_gate_t *gate) { return gate->port; }

static void set(vt_gate_t *g, bool is_held, bool is_over)
{
    pthread_mutex_lock(&g->mu);
    g->is_held = is_held;
    g->is_over = is_over;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->mu);
}

void vt_gate_hold(vt_gate_t *gate) { set(gate, true, false); }
void vt_gate_open(vt_gate_t *gate) { set(gate, false, false); }

bool vt_gate_wait_held(vt_gate_t *g, size_t bytes, unsigned most_s)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += most_s;
    pthread_mutex_lock(&g->mu);
    int rc = 0;
    while (g->bytes_held < bytes && rc == 0)
        rc = pthread_cond_timedwait(&g->changed, &g->mu, &end);
    bool is_held = g->bytes_held >= bytes;
    pthread_mutex_unlock(&g->mu);
    return is_held;
}

void vt_gate_stop(vt_gate_t *g)
{
    if (g == NULL)
        return;
    set(g, false, true);
    shutdown(g->listener, SHUT_RDWR);
    pthread_join(g->acceptor, NULL);
    for (unsigned i = 0; i < g->n_pumps; i++)
        shutdown(g->pumps[i].from, SHUT_RDWR);
    for (unsigned i = 0; i < g->n_pumps; i++)
        pthread_join(g->pumps[i].thread, NULL);
    for (unsigned i = 0; i < g->n_pumps; i++)
        close(g->pumps[i].from);
    close(g->listener);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->mu);
    vc_free(g);
}
