/* Misbehaviour on purpose, for tests. */
#include "kernels/cuda/device/launch.cuh"

constexpr uint32_t NAP_NS = 10000;

static __device__ __forceinline__ uint64_t now_ns(void)
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

static __global__ void delay_kernel(uint64_t delay_ns)
{
    k_begin();
    k_wait_for_predecessors();
    uint64_t until_ns = now_ns() + delay_ns;
    while (now_ns() < until_ns) {
        __nanosleep(NAP_NS);
    }
}

static __global__ void fault_kernel(uint32_t *nowhere)
{
    k_begin();
    k_wait_for_predecessors();
    *nowhere = 1;
}

extern "C" enum err_code k_cuda_delay(struct k_stream *stream, uint64_t delay_ns, struct err *err)
{
    return k_launched(k_launch(stream, delay_kernel, 1, 1, 0, delay_ns), "delay", err);
}

extern "C" enum err_code k_cuda_fault(struct k_stream *stream, struct err *err)
{
    return k_launched(k_launch(stream, fault_kernel, 1, 1, 0, static_cast<uint32_t *>(nullptr)),
                      "fault", err);
}
