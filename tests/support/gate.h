/*
 * A way to a server on 127.0.0.1 that a test holds and lets go: while it is held, connections are made and the server's
 * own first bytes come through, but nothing that clients send arrives. For tests that need one program to wait for what
 * another one does, without sleeping.
 */
#ifndef SUPPORT_GATE_H
#define SUPPORT_GATE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct vt_gate vt_gate_t;

/* Open at first. Never returns NULL. */
vt_gate_t *vt_gate_start(unsigned target_port);
unsigned vt_gate_port(const vt_gate_t *gate);
void vt_gate_hold(vt_gate_t *gate);
/* Until so many bytes of clients stand before the closed gate; false: they do not within most_s seconds. */
bool vt_gate_wait_held(vt_gate_t *gate, size_t bytes, unsigned most_s);
void vt_gate_open(vt_gate_t *gate);
/* Ends every connection. NULL is fine. */
void vt_gate_stop(vt_gate_t *gate);

#endif
