/*
 * A way to a server on 127.0.0.1 that a test holds and lets go: while it is held, connections are made and the server's
 * own first bytes come through, but nothing that clients send arrives. For tests that need one program to wait for what
 * another one does, without sleeping.
 */
#ifndef SUPPORT_GATE_H
#define SUPPORT_GATE_H

typedef struct vt_gate vt_gate_t;

/* Open at first. Never returns NULL. */
vt_gate_t *vt_gate_start(unsigned target_port);
unsigned vt_gate_port(const vt_gate_t *gate);
void vt_gate_hold(vt_gate_t *gate);
void vt_gate_open(vt_gate_t *gate);
/* Ends every connection. NULL is fine. */
void vt_gate_stop(vt_gate_t *gate);

#endif
