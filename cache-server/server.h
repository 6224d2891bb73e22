/* The whole server: builds the modules, hands one to the other, stops them in reverse. The only one that sees all. */
#ifndef CS_SERVER_H
#define CS_SERVER_H

#include "config.h"

typedef struct cs_server cs_server_t;

/* Returns when every module runs and the port file is written. config must outlive the server. */
vc_status_t cs_server_start(const cs_config_t *config, cs_server_t **server_p, vc_err_t *err);
/* Out of use: health says no, lookups and registrations are refused, what is out goes on. */
void cs_server_drain(cs_server_t *server);
bool cs_server_is_drained(cs_server_t *server); /* nothing is out any more */
void cs_server_end_grace(cs_server_t *server);  /* running calls are cancelled at once when it stops */
/* Drains and stops: says what is still leased, health says no, running calls get what is left of the grace period, then
 * the data plane, the store, the workers. */
void cs_server_stop(cs_server_t *server);
int cs_server_port(const cs_server_t *server);
const char *cs_server_data_address(const cs_server_t *server); /* empty: no data plane */

#endif
