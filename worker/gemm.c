#include "worker/gemm.h"

#include <assert.h>

#include <cublas_v2.h>

#include "common/mem.h"
#include "common/num.h"

#define CUBLAS_WORKSPACE_BYTES (32ULL << 20)

struct gemm {
    struct gemm_options options;
    struct k_ops ops;      /* the kernels', but for linear, gate_up, head and ple_layer */
    cublasHandle_t handle; /* owned */
    uint16_t *gate_up;     /* [max_tokens, 2 * intermediate] bf16 */
    uint16_t *gathered;    /* [max_rows, hidden] bf16 */
    uint64_t launches;
};

static uint64_t gate_up_bytes(uint32_t max_tokens, uint32_t max_intermediate_elems)
{
    return num_align_up((uint64_t)max_tokens * 2 * max_intermediate_elems * sizeof(uint16_t), 256);
}

uint64_t gemm_workspace_bytes(uint32_t max_tokens, uint32_t max_rows, uint32_t hidden_elems,
                              uint32_t max_intermediate_elems)
{
    return CUBLAS_WORKSPACE_BYTES + gate_up_bytes(max_tokens, max_intermediate_elems) +
           num_align_up((uint64_t)max_rows * hidden_elems * sizeof(uint16_t), 256);
}

static enum err_code check(cublasStatus_t status, const char *what, struct err *err)
{
    return status == CUBLAS_STATUS_SUCCESS
               ? ERR_OK
               : err_set(err, ERR_DEVICE, "%s: %s", what, cublasGetStatusString(status));
}

/* out[r, 0 .. out_elems) with rows stride_elems apart = x[r, in] W^T.
 * Row-major as column-major: the transposed result is W x^T. */
struct product {
    const uint16_t *x;
    const uint16_t *weight;
    uint32_t rows;
    uint32_t in_elems;
    uint32_t out_elems;
    uint32_t stride_elems;
    uint16_t *out;
};

static enum err_code multiply(struct gemm *gemm, const struct product *product, const char *what,
                              struct err *err)
{
    const float one = 1.0F;
    const float zero = 0.0F;
    gemm->launches++;
    return check(cublasGemmEx(gemm->handle, CUBLAS_OP_T, CUBLAS_OP_N, (int)product->out_elems,
                              (int)product->rows, (int)product->in_elems, &one, product->weight,
                              CUDA_R_16BF, (int)product->in_elems, product->x, CUDA_R_16BF,
                              (int)product->in_elems, &zero, product->out, CUDA_R_16BF,
                              (int)product->stride_elems, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                 what, err);
}

static enum err_code linear(struct k_stream *stream, const struct k_linear_args *args,
                            struct err *err)
{
    struct gemm *gemm = k_cuda_stream_owner(stream);
    if (args->rows <= gemm->options.small_rows) {
        return k_cuda_ops()->linear(stream, args, err);
    }
    struct product product = {.x = args->x, .rows = args->rows, .in_elems = args->in_elems};
    for (uint32_t part = 0; part < args->part_count; part++) {
        product.stride_elems += args->out_elems[part];
    }
    enum err_code code = ERR_OK;
    uint16_t *out = args->out;
    for (uint32_t part = 0; code == ERR_OK && part < args->part_count;) {
        product.weight = args->weights[part];
        product.out = out;
        product.out_elems = 0;
        do {
            product.out_elems += args->out_elems[part++];
        } while (part < args->part_count &&
                 args->weights[part] ==
                     product.weight + (uint64_t)product.out_elems * args->in_elems);
        out += product.out_elems;
        code = multiply(gemm, &product, "linear", err);
    }
    return code;
}

static enum err_code gate_up(struct k_stream *stream, const struct k_gate_up_args *args,
                             struct err *err)
{
    struct gemm *gemm = k_cuda_stream_owner(stream);
    if (args->rows <= gemm->options.small_rows) {
        return k_cuda_ops()->gate_up(stream, args, err);
    }
    uint32_t elems = args->intermediate_elems;
    bool is_joined = args->up == args->gate + (uint64_t)elems * args->in_elems;
    struct product product = {
        .x = args->x,
        .weight = args->gate,
        .rows = args->rows,
        .in_elems = args->in_elems,
        .out_elems = is_joined ? 2 * elems : elems,
        .stride_elems = 2 * elems,
        .out = gemm->gate_up,
    };
    enum err_code code = multiply(gemm, &product, "gate_up", err);
    if (code == ERR_OK && !is_joined) {
        product.weight = args->up;
        product.out = gemm->gate_up + elems;
        code = multiply(gemm, &product, "gate_up", err);
    }
    return code == ERR_OK ? k_cuda_geglu(stream, gemm->gate_up, args->rows, elems, args->out, err)
                          : code;
}

static enum err_code head(struct k_stream *stream, const struct k_head_args *args, struct err *err)
{
    struct gemm *gemm = k_cuda_stream_owner(stream);
    if (args->rows <= gemm->options.small_rows) {
        return k_cuda_ops()->head(stream, args, err);
    }
    if (args->rows > gemm->options.max_rows) {
        return err_set(err, ERR_SHAPE, "head: %u rows, at most %u", args->rows,
                       gemm->options.max_rows);
    }
    enum err_code code = k_cuda_gather(stream, args->x, args->token_index, args->rows,
                                       args->hidden_elems, gemm->gathered, err);
    const struct product product = {
        .x = gemm->gathered,
        .weight = args->table,
        .rows = args->rows,
        .in_elems = args->hidden_elems,
        .out_elems = args->vocab_tokens,
        .stride_elems = args->vocab_tokens,
        .out = args->logits,
    };
    code = code == ERR_OK ? multiply(gemm, &product, "head", err) : code;
    return code == ERR_OK ? k_cuda_softcap(stream, args->logits, args->rows, args->vocab_tokens,
                                           args->softcap, err)
                          : code;
}

static enum err_code ple_layer(struct k_stream *stream, const struct k_ple_layer_args *args,
                               struct err *err)
{
    struct gemm *gemm = k_cuda_stream_owner(stream);
    if (args->rows <= gemm->options.small_rows) {
        return k_cuda_ops()->ple_layer(stream, args, err);
    }
    const struct k_residual_norm_args first = k_ple_first_residual(args);
    const struct k_residual_norm_args last = k_ple_last_residual(args);
    const struct product gate = {
        .x = args->x,
        .weight = args->gate,
        .rows = args->rows,
        .in_elems = args->hidden_elems,
        .out_elems = args->elems,
        .stride_elems = args->elems,
        .out = args->gated,
    };
    const struct product projection = {
        .x = args->gated,
        .weight = args->projection,
        .rows = args->rows,
        .in_elems = args->elems,
        .out_elems = args->hidden_elems,
        .stride_elems = args->hidden_elems,
        .out = args->h,
    };
    enum err_code code = k_cuda_ops()->residual_norm(stream, &first, err);
    code = code == ERR_OK ? multiply(gemm, &gate, "ple_layer", err) : code;
    code = code == ERR_OK ? k_cuda_ple_gelu(stream, args, err) : code;
    code = code == ERR_OK ? multiply(gemm, &projection, "ple_layer", err) : code;
    return code == ERR_OK ? k_cuda_ops()->residual_norm(stream, &last, err) : code;
}

enum err_code gemm_create(const struct gemm_options *options, struct gemm **out_gemm,
                          struct err *err)
{
    struct gemm *gemm = mem_zalloc(1, sizeof(*gemm));
    gemm->options = *options;
    gemm->ops = *k_cuda_ops();
    gemm->ops.linear = linear;
    gemm->ops.gate_up = gate_up;
    gemm->ops.head = head;
    gemm->ops.ple_layer = ple_layer;
    unsigned char *at = options->workspace + CUBLAS_WORKSPACE_BYTES;
    gemm->gate_up = (uint16_t *)(void *)at;
    at += gate_up_bytes(options->max_tokens, options->max_intermediate_elems);
    gemm->gathered = (uint16_t *)(void *)at;
    enum err_code code = check(cublasCreate(&gemm->handle), "cuBLAS", err);
    if (code == ERR_OK) {
        code = check(cublasSetStream(gemm->handle, options->stream), "cuBLAS stream", err);
    }
    if (code == ERR_OK) {
        /* Parts of k are added in f32 too, not in the type of the output. */
        code =
            check(cublasSetMathMode(gemm->handle, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION),
                  "cuBLAS reductions", err);
    }
    if (code == ERR_OK) {
        code = check(cublasSetWorkspace(gemm->handle, options->workspace, CUBLAS_WORKSPACE_BYTES),
                     "cuBLAS workspace", err);
    }
    if (code != ERR_OK) {
        gemm_destroy(gemm);
        return code;
    }
    *out_gemm = gemm;
    return ERR_OK;
}

void gemm_destroy(struct gemm *gemm)
{
    if (gemm == NULL) {
        return;
    }
    if (gemm->handle != NULL) {
        (void)cublasDestroy(gemm->handle); /* nothing to be done about a failure */
    }
    mem_free(gemm);
}

void gemm_check_stream(const struct gemm *gemm, struct CUstream_st *stream)
{
    cudaStream_t set = NULL;
    cublasStatus_t status = cublasGetStream(gemm->handle, &set);
    assert(status != CUBLAS_STATUS_SUCCESS || set == stream); /* a lost device is told elsewhere */
    (void)status;
    (void)set; /* a build without assertions checks nothing */
}

uint64_t gemm_launches(const struct gemm *gemm)
{
    return gemm->launches;
}

const struct k_ops *gemm_ops(const struct gemm *gemm)
{
    return &gemm->ops;
}
