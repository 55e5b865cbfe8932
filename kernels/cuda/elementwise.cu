/* What stands around a product made by a library: GeGLU, gathered rows, soft-cap.
 *
 * Eight elements a thread.  Bytes: geglu 6 per output element, gather 4, softcap 4. */
#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/launch.cuh"

constexpr uint32_t THREADS = 256;
constexpr uint32_t PIECE_ELEMS = 8;

static __global__ void __launch_bounds__(THREADS)
    geglu_kernel(const uint4 *gate_up, uint32_t pieces, uint4 *out)
{
    k_begin();
    k_wait_for_predecessors();
    uint32_t piece = blockIdx.x * THREADS + threadIdx.x;
    uint64_t row = blockIdx.y;
    if (piece >= pieces) {
        return;
    }
    k_f32x8 gate = k_unpack(k_load_fresh16(gate_up + row * 2 * pieces + piece));
    k_f32x8 up = k_unpack(k_load_fresh16(gate_up + (row * 2 + 1) * pieces + piece));
    k_f32x8 value;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        value.at[i] = k_rounded(k_gelu_tanh(gate.at[i])) * up.at[i];
    }
    out[row * pieces + piece] = k_pack(value);
}

static __global__ void __launch_bounds__(THREADS)
    gather_kernel(const uint4 *x, const uint32_t *token_index, uint32_t pieces, uint4 *out)
{
    k_begin();
    k_wait_for_predecessors();
    uint64_t row = blockIdx.x;
    uint64_t from = __ldcg(token_index + row);
    for (uint32_t piece = threadIdx.x; piece < pieces; piece += THREADS) {
        out[row * pieces + piece] = k_load_fresh16(x + from * pieces + piece);
    }
}

static __global__ void __launch_bounds__(THREADS)
    softcap_kernel(uint4 *logits, uint64_t pieces, float softcap)
{
    k_begin();
    k_wait_for_predecessors();
    for (uint64_t piece = (uint64_t)blockIdx.x * THREADS + threadIdx.x; piece < pieces;
         piece += (uint64_t)gridDim.x * THREADS) {
        k_f32x8 value = k_unpack(k_load_fresh16(logits + piece));
#pragma unroll
        for (int i = 0; i < 8; i++) {
            value.at[i] = k_softcapped(value.at[i], softcap);
        }
        logits[piece] = k_pack(value);
    }
}

static enum err_code check_elems(const char *what, uint32_t elems, struct err *err)
{
    if (elems == 0 || elems % PIECE_ELEMS != 0) {
        return err_set(err, ERR_SHAPE, "%s: %u elements of a row, a multiple of %u", what, elems,
                       PIECE_ELEMS);
    }
    return ERR_OK;
}

extern "C" enum err_code k_cuda_geglu(struct k_stream *stream, const uint16_t *gate_up,
                                      uint32_t rows, uint32_t intermediate_elems, uint16_t *out,
                                      struct err *err)
{
    enum err_code code = check_elems("geglu", intermediate_elems, err);
    code =
        code == ERR_OK ? k_check_aligned("geglu", {{gate_up, "gate_up"}, {out, "out"}}, err) : code;
    if (code != ERR_OK || rows == 0) {
        return code;
    }
    uint32_t pieces = intermediate_elems / PIECE_ELEMS;
    dim3 grid((pieces + THREADS - 1) / THREADS, rows);
    return k_launched(k_launch(stream, geglu_kernel, grid, THREADS, 0,
                               reinterpret_cast<const uint4 *>(gate_up), pieces,
                               reinterpret_cast<uint4 *>(out)),
                      "geglu", err);
}

extern "C" enum err_code k_cuda_gather(struct k_stream *stream, const uint16_t *x,
                                       const uint32_t *token_index, uint32_t rows,
                                       uint32_t hidden_elems, uint16_t *out, struct err *err)
{
    enum err_code code = check_elems("gather", hidden_elems, err);
    code = code == ERR_OK ? k_check_aligned("gather", {{x, "x"}, {out, "out"}}, err) : code;
    if (code != ERR_OK || rows == 0) {
        return code;
    }
    return k_launched(k_launch(stream, gather_kernel, rows, THREADS, 0,
                               reinterpret_cast<const uint4 *>(x), token_index,
                               hidden_elems / PIECE_ELEMS, reinterpret_cast<uint4 *>(out)),
                      "gather", err);
}

extern "C" enum err_code k_cuda_softcap(struct k_stream *stream, uint16_t *logits, uint32_t rows,
                                        uint32_t vocab_tokens, float softcap, struct err *err)
{
    enum err_code code = check_elems("softcap", vocab_tokens, err);
    code = code == ERR_OK ? k_check_aligned("softcap", {{logits, "logits"}}, err) : code;
    if (code != ERR_OK || rows == 0 || softcap <= 0.0F) {
        return code;
    }
    uint64_t pieces = (uint64_t)rows * vocab_tokens / PIECE_ELEMS;
    uint64_t blocks = (pieces + THREADS - 1) / THREADS;
    uint64_t most = (uint64_t)stream->sm_count * 8;
    return k_launched(k_launch(stream, softcap_kernel, (uint32_t)(blocks < most ? blocks : most),
                               THREADS, 0, reinterpret_cast<uint4 *>(logits), pieces, softcap),
                      "softcap", err);
}
