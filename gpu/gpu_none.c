/* The GPU interface of a build without CUDA: there is no device, and whoever asks anyway hears why. */
#include "gpu/gpu.h"

static vc_status_t no_cuda(vc_err_t *err)
{
    return vc_err_set(err, VC_ERR_UNSUPPORTED, "this build has no CUDA back end (configure with -DVC_CUDA=ON)");
}

int gpu_device_count(void) { return 0; }

vc_status_t gpu_device_open(int index, gpu_device_t **dev_p, vc_err_t *err)
{
    (void)index, (void)dev_p;
    return no_cuda(err);
}
void gpu_device_close(gpu_device_t *dev) { (void)dev; }

vc_status_t gpu_stream_create(gpu_device_t *dev, gpu_stream_t **stream_p, vc_err_t *err)
{
    (void)dev, (void)stream_p;
    return no_cuda(err);
}
void gpu_stream_destroy(gpu_stream_t *stream) { (void)stream; }
vc_status_t gpu_stream_wait(gpu_stream_t *stream, vc_err_t *err)
{
    (void)stream;
    return no_cuda(err);
}

vc_status_t gpu_buffer_create(gpu_device_t *dev, size_t bytes, gpu_buffer_t **buf_p, vc_err_t *err)
{
    (void)dev, (void)bytes, (void)buf_p;
    return no_cuda(err);
}
void gpu_buffer_destroy(gpu_buffer_t *buf) { (void)buf; }
vc_status_t gpu_buffer_upload(gpu_stream_t *stream, gpu_buffer_t *dst, size_t offset, const void *src, size_t bytes,
                              vc_err_t *err)
{
    (void)stream, (void)dst, (void)offset, (void)src, (void)bytes;
    return no_cuda(err);
}
vc_status_t gpu_buffer_download(gpu_stream_t *stream, void *dst, const gpu_buffer_t *src, size_t offset, size_t bytes,
                                vc_err_t *err)
{
    (void)stream, (void)dst, (void)src, (void)offset, (void)bytes;
    return no_cuda(err);
}

vc_status_t gpu_op_linear_q4_1(gpu_stream_t *stream, const gpu_buffer_t *w, uint32_t n_in, uint32_t n_out,
                               const gpu_buffer_t *x, uint32_t n_rows, gpu_buffer_t *out, vc_err_t *err)
{
    (void)stream, (void)w, (void)n_in, (void)n_out, (void)x, (void)n_rows, (void)out;
    return no_cuda(err);
}
