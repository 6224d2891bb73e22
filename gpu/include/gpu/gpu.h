/*
 * C interface of the GPU back end: device, stream, buffer, one function per operation. Without CUDA (VC_CUDA off) every
 * function answers UNSUPPORTED, so every build links and a caller falls back to the CPU.
 * Buffers belong to the device that made them. A stream is used by one thread at a time; operations on it run in order.
 */
#ifndef GPU_H
#define GPU_H

#include <stddef.h>
#include <stdint.h>

#include "vc/status.h"

typedef struct gpu_device gpu_device_t;
typedef struct gpu_stream gpu_stream_t;
typedef struct gpu_buffer gpu_buffer_t;

int gpu_device_count(void); /* 0 without CUDA */
vc_status_t gpu_device_open(int index, gpu_device_t **dev_p, vc_err_t *err);
void gpu_device_close(gpu_device_t *dev);
vc_status_t gpu_stream_create(gpu_device_t *dev, gpu_stream_t **stream_p, vc_err_t *err);
void gpu_stream_destroy(gpu_stream_t *stream);
vc_status_t gpu_stream_wait(gpu_stream_t *stream, vc_err_t *err);
vc_status_t gpu_buffer_create(gpu_device_t *dev, size_t bytes, gpu_buffer_t **buf_p, vc_err_t *err);
void gpu_buffer_destroy(gpu_buffer_t *buf);
vc_status_t gpu_buffer_upload(gpu_stream_t *stream, gpu_buffer_t *dst, size_t offset, const void *src, size_t bytes,
                              vc_err_t *err);
vc_status_t gpu_buffer_download(gpu_stream_t *stream, void *dst, const gpu_buffer_t *src, size_t offset, size_t bytes,
                                vc_err_t *err);

/* out[row][o] = sum over groups of 32 inputs of scale * integer dot product; weights in the Q4_1 layout of the GGUF
 * file. x: [n_rows][n_in] f32, out: [n_rows][n_out] f32. */
vc_status_t gpu_op_linear_q4_1(gpu_stream_t *stream, const gpu_buffer_t *w, uint32_t n_in, uint32_t n_out,
                               const gpu_buffer_t *x, uint32_t n_rows, gpu_buffer_t *out, vc_err_t *err);

#endif
