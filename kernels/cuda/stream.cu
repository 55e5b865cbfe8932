/* The stream of the cuda backend and its operator table. */
#include <new>

#include "kernels/cuda/device/launch.cuh"

constexpr uint64_t ALIGN_BYTES = 256;

static uint64_t largest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

extern "C" uint64_t k_cuda_scratch_bytes(const struct k_cuda_shape *shape)
{
    uint64_t bytes =
        largest(largest(k_cuda_attention_scratch_bytes(shape), k_cuda_route_scratch_bytes(shape)),
                largest(k_cuda_linear_scratch_bytes(shape), k_cuda_sample_scratch_bytes(shape)));
    return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

static cudaError_t create_fetching(struct k_stream *stream)
{
    cudaError_t error = cudaStreamCreateWithFlags(&stream->fetch_stream, cudaStreamNonBlocking);
    if (error == cudaSuccess) {
        error = cudaEventCreateWithFlags(&stream->fetch_begin, cudaEventDisableTiming);
    }
    if (error == cudaSuccess) {
        error = cudaEventCreateWithFlags(&stream->fetch_end, cudaEventDisableTiming);
    }
    return error;
}

extern "C" enum err_code k_cuda_stream_create(const struct k_cuda_options *options,
                                              struct k_stream **out_stream, struct err *err)
{
    int device = 0;
    int sm_count = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, device);
    }
    if (error == cudaSuccess) {
        error = k_cuda_attention_prepare();
    }
    if (error == cudaSuccess) {
        error = k_cuda_experts_prepare();
    }
    if (error == cudaSuccess) {
        error = k_cuda_linear_prepare();
    }
    if (error != cudaSuccess) {
        return err_set(err, ERR_DEVICE, "preparing the kernels: %s", cudaGetErrorString(error));
    }
    k_stream *stream = new (std::nothrow) k_stream();
    if (stream == nullptr) {
        return err_set(err, ERR_MEMORY, "a stream");
    }
    stream->stream = options->stream;
    stream->shape = options->shape;
    stream->scratch = static_cast<unsigned char *>(options->scratch);
    stream->sm_count = (uint32_t)sm_count;
    stream->uses_dependent_launch = options->uses_dependent_launch;
    stream->owner = options->owner;
    error = create_fetching(stream);
    if (error != cudaSuccess) {
        k_cuda_stream_destroy(stream);
        return err_set(err, ERR_DEVICE, "a stream to fetch rows on: %s", cudaGetErrorString(error));
    }
    *out_stream = stream;
    return ERR_OK;
}

/* A lost device is told elsewhere: results are ignored. */
extern "C" void k_cuda_stream_destroy(struct k_stream *stream)
{
    if (stream == nullptr) {
        return;
    }
    if (stream->fetch_stream != nullptr) {
        (void)cudaStreamDestroy(stream->fetch_stream);
    }
    if (stream->fetch_begin != nullptr) {
        (void)cudaEventDestroy(stream->fetch_begin);
    }
    if (stream->fetch_end != nullptr) {
        (void)cudaEventDestroy(stream->fetch_end);
    }
    delete stream;
}

extern "C" void *k_cuda_stream_owner(const struct k_stream *stream)
{
    return stream->owner;
}

extern "C" struct CUstream_st *k_cuda_stream_handle(const struct k_stream *stream)
{
    return stream->stream;
}

extern "C" uint64_t k_cuda_stream_launches(const struct k_stream *stream)
{
    return stream->launches;
}

extern "C" const struct k_ops *k_cuda_ops(void)
{
    static const struct k_ops ops = {
        k_cuda_embed_norm,     k_cuda_linear,      k_cuda_qkv_norm_rope, k_cuda_attention,
        k_cuda_residual_norm,  k_cuda_gate_up,     k_cuda_head,          k_cuda_route,
        k_cuda_expert_gate_up, k_cuda_expert_down, k_cuda_join_norm,     k_cuda_ple_fetch,
        k_cuda_ple_inputs,     k_cuda_ple_layer,   k_cuda_open,          k_cuda_expand,
        k_cuda_sample,         k_cuda_logprobs,    k_cuda_advance,
    };
    return &ops;
}
