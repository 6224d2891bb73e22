/* Private to the relay: connections (relay_conn.c) and the loop around them (relay.c). */
#ifndef RELAY_INT_H
#define RELAY_INT_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "relay.h"
#include "relay_link.h"

typedef struct relay_conn relay_conn_t;

/* side 0 faces the client, side 1 the target; pipe i carries what side i sends. */
typedef struct relay_side {
    relay_conn_t *conn;
    int index, fd;
    uint32_t events; /* registered with epoll; 0: not registered */
    bool connecting;
    bool held; /* not read because the link is busy */
} relay_side_t;

/* Ring of bytes between a read and a write. ready of them are due, the rest still under way. */
typedef struct relay_pipe {
    uint8_t *buf;
    size_t cap, head, len, ready;
    bool source_ended, end_due, closed; /* in this order */
    bool blocked;                       /* the last write found no room */
} relay_pipe_t;

struct relay_conn {
    relay_side_t side[2];
    relay_pipe_t pipe[2];
    uint64_t under_way; /* bytes and ends in the links; the connection is freed at 0 */
    bool dead;
    relay_conn_t *prev, *next; /* all connections, or all dead ones */
};

struct relay {
    relay_opts_t opts;
    struct sockaddr_storage target;
    socklen_t target_len;
    int epoll_fd, listen_fd, wake_fd, timer_fd;
    uint16_t port;
    bool accept_held; /* out of descriptors; until a connection closes */
    relay_link_t link[2];
    relay_conn_t *conns, *dead;
    uint32_t n_conns;
    relay_stats_t stats;
};

uint64_t relay_now_ns(void);
/* Takes client_fd over, also on failure. */
void relay_conn_open(relay_t *r, int client_fd);
void relay_conn_event(relay_t *r, relay_side_t *side, uint32_t events);
/* A parcel of this connection has arrived at the far end of direction dir. */
void relay_conn_deliver(relay_t *r, const relay_parcel_t *parcel, int dir);
/* The link of direction dir has room again. */
void relay_conn_resume(relay_t *r, int dir);
bool relay_conn_is_held(const relay_t *r, int dir);
void relay_conn_free_dead(relay_t *r);
void relay_conn_free_all(relay_t *r);

#endif
