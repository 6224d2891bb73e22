/* Proves that commits wait for the disk without a thread: a thousand of them hold no lookup up, and each gets its own
 * answer. */
#include "service_fixture.h"
#include "vc/rpc.h"
#include "vericache.pb-c.h"

#define CACHE "/vericache.v1.Cache/"
enum { MANY = 1000 };

static void many_uploads(sx_t *sx) { sx->fx.opts.max_uploads = MANY + 10; }

/* Stops the commit thread inside a callback until it is let go. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_stuck, may_go;
} plug_t;

static void plug_done(void *arg, vc_status_t status)
{
    plug_t *p = arg;
    (void)status;
    pthread_mutex_lock(&p->lock);
    p->is_stuck = true;
    pthread_cond_broadcast(&p->changed);
    while (!p->may_go)
        pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

static void upload_one(fx_t *fx, uint32_t seed, cs_upload_info_t *info)
{
    uint8_t missing[1];
    cr_assert_eq(fx_begin(fx, seed, 0, 1, FX_COMPRESSED, info, missing), VC_OK);
    cr_assert_eq(fx_put(fx, info, seed, 0, 1), VC_OK);
}

static void plug_in(plug_t *p, sx_t *sx)
{
    cs_upload_info_t info;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    upload_one(&sx->fx, 9999, &info);
    cr_assert_eq(cs_store_commit(sx->fx.store, info.upload_id, &info.token, plug_done, p, NULL), VC_OK);
    pthread_mutex_lock(&p->lock);
    while (!p->is_stuck)
        pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

static void unplug(plug_t *p)
{
    pthread_mutex_lock(&p->lock);
    p->may_go = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static vc_rpc_channel_t *dial(const sx_t *sx)
{
    vc_rpc_channel_t *ch = NULL;
    vc_rpc_channel_opts_t o;
    vc_rpc_channel_opts_default(&o);
    o.target = sx->address;
    cr_assert_eq(vc_rpc_channel_create(&o, &ch, NULL), VC_OK);
    return ch;
}

/* Sends the commit and does not wait. */
static vc_rpc_stream_t *send_commit(vc_rpc_channel_t *ch, cs_upload_info_t *info)
{
    uint8_t bytes[64];
    vc_rpc_stream_t *s = NULL;
    Vericache__V1__UploadRef ref = VERICACHE__V1__UPLOAD_REF__INIT;
    ref.upload_id = info->upload_id;
    ref.token = (ProtobufCBinaryData){sizeof(info->token.b), info->token.b};
    vc_rpc_msg_t m = {.head = bytes, .head_len = vericache__v1__upload_ref__pack(&ref, bytes)};
    cr_assert_eq(vc_rpc_stream_open(ch, CACHE "Commit", 0, &s, NULL), VC_OK);
    cr_assert_eq(vc_rpc_stream_send(s, &m, NULL), VC_OK);
    vc_rpc_stream_half_close(s);
    return s;
}

Test(service_commits, a_thousand_in_flight_hold_no_lookup_up)
{
    static cs_upload_info_t infos[MANY];
    static vc_rpc_stream_t *s[MANY];
    static plug_t plug;
    sx_t sx;
    sx_start_with(&sx, 2, many_uploads);
    vc_rpc_channel_t *ch = dial(&sx);
    for (uint32_t i = 0; i < MANY; i++)
        upload_one(&sx.fx, i, &infos[i]);
    plug_in(&plug, &sx);
    for (uint32_t i = 0; i < MANY; i++)
        s[i] = send_commit(ch, &infos[i]);
    while (sx_stat(&sx, "rpc_commits_waiting") < MANY)
        ;
    vcache_lookup_info_t info;
    cr_assert_eq(sx_lookup(&sx, 9999, 1, &info, NULL, NULL), VC_OK);
    cr_assert_eq(info.n_blocks[1], 1);
    cr_assert_eq(sx_lookup(&sx, 5, 1, &info, NULL, NULL), VC_OK);
    cr_assert_eq(info.n_blocks[1], 0); /* not yet visible */
    unplug(&plug);
    for (uint32_t i = 0; i < MANY; i++) {
        vc_bytes_t m = {0};
        vc_err_t err = {0};
        cr_assert_eq(vc_rpc_stream_recv(s[i], 0, &m, &err), VC_OK, "%s", err.msg);
        vc_bytes_free(&m);
        vc_rpc_stream_destroy(s[i]);
    }
    cr_assert_eq(sx_lookup(&sx, 5, 1, &info, NULL, NULL), VC_OK);
    cr_assert_eq(info.n_blocks[1], 1);
    cr_assert(sx_wait_zero(&sx, "rpc_commits_waiting"));
    cr_assert_eq(sx_stat(&sx, "commits"), MANY + 1);
    cr_assert_leq(sx_stat(&sx, "commit_batches"), 10); /* one sync for very many */
    vc_rpc_channel_destroy(ch);
    sx_end(&sx);
}

static void *stop_service(void *arg)
{
    cs_service_stop(arg, 1);
    return NULL;
}

Test(service_commits, stop_waits_for_commits_whose_clients_are_gone)
{
    static plug_t plug;
    cs_upload_info_t infos[3];
    vc_rpc_stream_t *s[3];
    pthread_t t;
    sx_t sx;
    sx_start(&sx, 2);
    vc_rpc_channel_t *ch = dial(&sx);
    for (uint32_t i = 0; i < 3; i++)
        upload_one(&sx.fx, i, &infos[i]);
    plug_in(&plug, &sx);
    for (uint32_t i = 0; i < 3; i++)
        s[i] = send_commit(ch, &infos[i]);
    while (sx_stat(&sx, "rpc_commits_waiting") < 3)
        ;
    vc_rpc_stream_destroy(s[0]);
    cr_assert_eq(pthread_create(&t, NULL, stop_service, sx.service), 0);
    sx.service = NULL;
    unplug(&plug);
    pthread_join(t, NULL);
    for (uint32_t i = 1; i < 3; i++)
        vc_rpc_stream_destroy(s[i]);
    vc_rpc_channel_destroy(ch);
    cr_assert_eq(fx_readable(&sx.fx, 0, 1, 1), 1); /* committed although nobody waits any more */
    sx_end(&sx);
}
