#include "tests/testlib/cuda_rig.h"

#include <stdlib.h>

#include <cuda_runtime_api.h>

#include "common/mem.h"
#include "tests/testlib/test.h"

#define WARM_REPLAYS 3

static void check(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        test_fail(__FILE__, __LINE__, "%s: %s", what, cudaGetErrorString(error));
    }
}

bool cuda_rig_is_there(void)
{
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

bool cuda_rig_is_stand_in(void)
{
    return false;
}

void cuda_rig_open(struct cuda_rig *rig, const struct k_cuda_shape *shape,
                   bool uses_dependent_launch)
{
    struct err err = {0};
    if (!cuda_rig_is_there()) {
        test_skip("no GPU");
    }
    *rig = (struct cuda_rig){0};
    check(cudaStreamCreateWithFlags(&rig->stream, cudaStreamNonBlocking), "a stream");
    size_t scratch_bytes = k_cuda_scratch_bytes(shape);
    rig->scratch = cuda_rig_alloc(scratch_bytes);
    check(cudaMemset(rig->scratch, 0, scratch_bytes), "clearing scratch");
    check(cudaDeviceSynchronize(), "clearing scratch");
    struct k_cuda_options options = {
        .stream = rig->stream,
        .shape = *shape,
        .scratch = rig->scratch,
        .uses_dependent_launch = uses_dependent_launch,
    };
    test_ok(k_cuda_stream_create(&options, &rig->k, &err), &err);
}

void cuda_rig_close(struct cuda_rig *rig)
{
    cuda_rig_wait(rig);
    k_cuda_stream_destroy(rig->k);
    cuda_rig_free(rig->scratch);
    check(cudaStreamDestroy(rig->stream), "ending the stream");
    *rig = (struct cuda_rig){0};
}

void *cuda_rig_alloc(size_t bytes)
{
    void *at = NULL;
    check(cudaMalloc(&at, bytes), "device memory");
    return at;
}

void cuda_rig_free(void *at)
{
    check(cudaFree(at), "freeing device memory");
}

void *cuda_rig_upload(const void *from, size_t bytes)
{
    void *at = cuda_rig_alloc(bytes);
    cuda_rig_write(at, from, bytes);
    return at;
}

void cuda_rig_write(void *to, const void *from, size_t bytes)
{
    check(cudaDeviceSynchronize(), "before an upload");
    check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "an upload");
    check(cudaDeviceSynchronize(), "an upload");
}

void cuda_rig_read(void *to, const void *from, size_t bytes)
{
    check(cudaDeviceSynchronize(), "before a download");
    check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "a download");
}

void cuda_rig_poison(void *at, size_t bytes)
{
    check(cudaDeviceSynchronize(), "before poisoning");
    check(cudaMemset(at, 0xff, bytes), "poisoning");
    check(cudaDeviceSynchronize(), "poisoning");
}

void cuda_rig_repeat(void *at, size_t seed_bytes, size_t bytes)
{
    unsigned char *to = at;
    for (size_t done = seed_bytes; done < bytes; done += seed_bytes) {
        size_t more = bytes - done < seed_bytes ? bytes - done : seed_bytes;
        check(cudaMemcpyAsync(to + done, at, more, cudaMemcpyDeviceToDevice, NULL), "a copy");
    }
    check(cudaDeviceSynchronize(), "a copy");
}

void cuda_rig_wait(struct cuda_rig *rig)
{
    check(cudaStreamSynchronize(rig->stream), "waiting for the stream");
}

struct cuda_rig_graph {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
};

struct cuda_rig_graph *cuda_rig_capture(struct cuda_rig *rig, void (*record)(void *context),
                                        void *context)
{
    struct cuda_rig_graph *graph = mem_zalloc(1, sizeof(*graph));
    check(cudaStreamBeginCapture(rig->stream, cudaStreamCaptureModeThreadLocal), "a capture");
    record(context);
    check(cudaStreamEndCapture(rig->stream, &graph->graph), "a capture");
    check(cudaGraphInstantiate(&graph->exec, graph->graph, 0), "a graph");
    return graph;
}

void cuda_rig_launch(struct cuda_rig *rig, struct cuda_rig_graph *graph)
{
    check(cudaGraphLaunch(graph->exec, rig->stream), "a replay");
}

void cuda_rig_graph_free(struct cuda_rig_graph *graph)
{
    check(cudaGraphExecDestroy(graph->exec), "a graph");
    check(cudaGraphDestroy(graph->graph), "a graph");
    mem_free(graph);
}

static int compare_f32(const void *a, const void *b)
{
    float x = *(const float *)a;
    float y = *(const float *)b;
    return (x > y) - (x < y);
}

double cuda_rig_replay(struct cuda_rig *rig, void (*record)(void *context), void *context,
                       uint32_t replays)
{
    cudaEvent_t begin;
    cudaEvent_t end;
    float median_ms = 0.0F;
    struct cuda_rig_graph *graph = cuda_rig_capture(rig, record, context);
    check(cudaEventCreate(&begin), "an event");
    check(cudaEventCreate(&end), "an event");
    for (uint32_t i = 0; i < (replays == 0 ? 1 : WARM_REPLAYS); i++) {
        cuda_rig_launch(rig, graph);
    }
    cuda_rig_wait(rig);
    if (replays > 0) {
        float *times_ms = mem_zalloc(replays, sizeof(*times_ms));
        for (uint32_t i = 0; i < replays; i++) {
            check(cudaEventRecord(begin, rig->stream), "an event");
            cuda_rig_launch(rig, graph);
            check(cudaEventRecord(end, rig->stream), "an event");
            cuda_rig_wait(rig);
            check(cudaEventElapsedTime(&times_ms[i], begin, end), "a time");
        }
        qsort(times_ms, replays, sizeof(*times_ms), compare_f32);
        median_ms = times_ms[replays / 2];
        mem_free(times_ms);
    }
    check(cudaEventDestroy(end), "an event");
    check(cudaEventDestroy(begin), "an event");
    cuda_rig_graph_free(graph);
    return (double)median_ms * 1e3;
}
