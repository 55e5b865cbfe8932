/* Launching on a k_stream, and the two sides of programmatic dependent launch.
 *
 * Every kernel calls k_begin() first and touches memory that an earlier launch writes or reads only
 * after k_wait_for_predecessors(): weights may be fetched before it, nothing else. */
#ifndef KERNELS_CUDA_DEVICE_LAUNCH_CUH
#define KERNELS_CUDA_DEVICE_LAUNCH_CUH

#include <initializer_list>

#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/cuda/stream.cuh"

/* The next launch may start to be scheduled. */
static __device__ __forceinline__ void k_begin(void)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* All earlier launches have completed and their writes are visible. */
static __device__ __forceinline__ void k_wait_for_predecessors(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

#define K_ALIGN_BYTES 16

struct k_operand {
    const void *at; /* null: not there */
    const char *name;
};

/* Operands that kernels read and write 16 bytes at a time. */
static inline enum err_code k_check_aligned(const char *what,
                                            std::initializer_list<k_operand> operands,
                                            struct err *err)
{
    for (const k_operand &operand : operands) {
        if (reinterpret_cast<uintptr_t>(operand.at) % K_ALIGN_BYTES != 0) {
            return err_set(err, ERR_ALIGN, "%s: %s is not %u-byte aligned", what, operand.name,
                           K_ALIGN_BYTES);
        }
    }
    return ERR_OK;
}

/* Turns a launch's error into ours; what names the operator. */
static inline enum err_code k_launched(cudaError_t error, const char *what, struct err *err)
{
    if (error == cudaSuccess) {
        error = cudaPeekAtLastError();
    }
    if (error != cudaSuccess) {
        return err_set(err, ERR_DEVICE, "%s: %s", what, cudaGetErrorString(error));
    }
    return ERR_OK;
}

template <typename... Params, typename... Args>
static inline cudaError_t k_launch(const k_stream *stream, void (*kernel)(Params...), dim3 grid,
                                   dim3 block, size_t shared_bytes, Args... args)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream->stream;
    config.attrs = &attribute;
    config.numAttrs = stream->uses_dependent_launch ? 1 : 0;
    stream->launches++;
    return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

#endif
