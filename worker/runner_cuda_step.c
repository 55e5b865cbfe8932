/* What a step enqueues on the device's stream. */
#include <string.h>

#include "common/num.h"
#include "worker/runner_cuda_internal.h"

static enum err_code expand(struct runner_cuda *runner, uint32_t row_count, uint32_t patch_count,
                            struct err *err)
{
    struct stage_upload upload = runner->upload;
    upload.row_count = row_count;
    upload.patch_count = patch_count;
    const struct k_expand_args args = stage_expand_args(&runner->tables, &upload, runner->picks);
    return gemm_ops(runner->gemm)->expand(runner->stream, &args, err);
}

static enum err_code report_prompt(struct runner_cuda *runner, const struct step_shape *shape,
                                   struct err *err)
{
    const struct stage_tables *tables = &runner->tables;
    enum err_code code = ERR_OK;
    for (uint32_t first = 0; code == ERR_OK && first < shape->prompt_rows;
         first += RUNNER_CUDA_PROMPT_ROWS) {
        uint32_t count = num_min(RUNNER_CUDA_PROMPT_ROWS, shape->prompt_rows - first);
        const struct k_logprobs_args args = {
            .logits = runner->logits,
            .row_count = count,
            .vocab_tokens = runner->super.limits.vocab_tokens,
            .rows = tables->prompt_logprobs + first,
            .records = runner->prompt_records,
        };
        code = forward_head(&runner->forward, tables->prompt_tokens + first, count, runner->logits,
                            err);
        code = code == ERR_OK ? gemm_ops(runner->gemm)->logprobs(runner->stream, &args, err) : code;
    }
    return code;
}

static enum err_code sample(struct runner_cuda *runner, const struct step_shape *shape,
                            struct err *err)
{
    const struct stage_tables *tables = &runner->tables;
    const struct k_ops *ops = gemm_ops(runner->gemm);
    const struct k_sample_args args = {
        .slots = tables->slots,
        .logits = runner->logits,
        .row_count = shape->sample_rows,
        .rows = tables->sample_rows,
        .masks = runner->upload.masks,
        .mask_words = stage_mask_words(&runner->super.limits),
        .picks = runner->picks,
        .logprobs = tables->sample_logprobs,
    };
    const struct k_logprobs_args logprobs = {
        .logits = runner->logits,
        .row_count = shape->sample_rows,
        .vocab_tokens = runner->super.limits.vocab_tokens,
        .rows = tables->sample_logprobs,
        .records = runner->sample_records,
    };
    enum err_code code = forward_head(&runner->forward, tables->sample_tokens, shape->sample_rows,
                                      runner->logits, err);
    code = code == ERR_OK ? ops->sample(runner->stream, &args, err) : code;
    return code == ERR_OK && shape->has_records ? ops->logprobs(runner->stream, &logprobs, err)
                                                : code;
}

enum err_code runner_cuda_enqueue(struct runner_cuda *runner, const struct step_shape *shape,
                                  struct err *err)
{
    const struct stage_tables *tables = &runner->tables;
    const struct k_tokens tokens = {
        .count = shape->tokens,
        .ids = tables->ids,
        .positions = tables->positions,
        .slots = tables->token_slots,
    };
    const struct k_advance_args advance = {
        .slots = tables->slots,
        .rows = runner->upload.rows,
        .row_count = shape->rows,
        .picks = runner->picks,
    };
    enum err_code code = expand(runner, shape->rows, 0, err);
    code = code == ERR_OK ? forward_run(&runner->forward, &tokens, err) : code;
    code = code == ERR_OK ? report_prompt(runner, shape, err) : code;
    code = code == ERR_OK && shape->sample_rows > 0 ? sample(runner, shape, err) : code;
    return code == ERR_OK ? gemm_ops(runner->gemm)->advance(runner->stream, &advance, err) : code;
}

/* ---- uploads ---- */

static enum err_code upload(struct runner_cuda *runner, void *to, const void *from, size_t count,
                            size_t elem_bytes, struct err *err)
{
    return count == 0 ? ERR_OK
                      : device_cuda_upload(runner->device, to, from, count * elem_bytes, err);
}

static enum err_code upload_patches(struct runner_cuda *runner, const struct flight *flight,
                                    struct err *err)
{
    const struct stage_upload *from = &flight->upload;
    if (from->patch_count == 0) {
        return ERR_OK;
    }
    enum err_code code = upload(runner, runner->upload.patches, from->patches, from->patch_count,
                                sizeof(*from->patches), err);
    return code == ERR_OK ? expand(runner, 0, from->patch_count, err) : code;
}

static bool is_resident(const struct runner_cuda *runner, const struct k_row *rows, uint32_t count)
{
    return runner->resident_count == count &&
           memcmp(runner->resident, rows, count * sizeof(*rows)) == 0;
}

/* The first `count` rows; what lies beyond the flight's own are rows of nobody, always masked. */
static enum err_code upload_rows(struct runner_cuda *runner, struct flight *flight, uint32_t count,
                                 struct err *err)
{
    struct k_row *rows = flight->upload.rows;
    for (uint32_t i = flight->upload.row_count; i < count; i++) {
        rows[i] = (struct k_row){
            .count = 1, .first_id = K_NONE, .mask_row = K_NONE, .flags = K_ROW_SAMPLES};
    }
    if (is_resident(runner, rows, count)) {
        return ERR_OK;
    }
    enum err_code code = upload(runner, runner->upload.rows, rows, count, sizeof(*rows), err);
    if (code == ERR_OK) {
        memcpy(runner->resident, rows, count * sizeof(*rows));
        runner->resident_count = count;
    }
    return code;
}

static enum err_code upload_prompts(struct runner_cuda *runner, const struct flight *flight,
                                    struct err *err)
{
    const struct stage_upload *from = &flight->upload;
    const struct stage_upload *to = &runner->upload;
    uint32_t words = stage_mask_words(&runner->super.limits);
    enum err_code code =
        upload(runner, to->prompt_ids, from->prompt_ids, from->id_count, sizeof(uint32_t), err);
    if (code == ERR_OK && flight->wants_prompt) {
        code = upload(runner, to->next_ids, from->next_ids, from->id_count, sizeof(uint32_t), err);
    }
    return code == ERR_OK ? upload(runner, to->masks, from->masks, (size_t)from->mask_count * words,
                                   sizeof(uint32_t), err)
                          : code;
}

/* ---- one step ---- */

static struct step_shape shape_of(const struct flight *flight)
{
    const struct stage_upload *upload = &flight->upload;
    struct step_shape shape = {
        .rows = upload->row_count,
        .tokens = upload->token_count,
        .has_records = flight->wants_records,
    };
    for (uint32_t i = 0; i < upload->row_count; i++) {
        const struct k_row *row = &upload->rows[i];
        shape.sample_rows += (row->flags & K_ROW_SAMPLES) != 0 ? 1 : 0;
        shape.prompt_rows += (row->flags & K_ROW_PROMPT_LOGPROBS) != 0 ? row->count : 0;
    }
    return shape;
}

/* The smallest bucket that holds a step of decode rows alone; null: the step runs as it is. */
static const struct bucket *bucket_of(const struct runner_cuda *runner, const struct flight *flight)
{
    const struct stage_upload *upload = &flight->upload;
    if (upload->id_count > 0 || upload->mask_count > 0 || upload->row_count == 0) {
        return NULL;
    }
    for (uint32_t i = 0; i < runner->bucket_count; i++) {
        if (runner->buckets[i].rows >= upload->row_count) {
            return &runner->buckets[i];
        }
    }
    return NULL;
}

static enum err_code download(struct runner_cuda *runner, struct flight *flight, struct err *err)
{
    const struct stage_upload *upload = &flight->upload;
    enum err_code code = device_cuda_download(runner->device, flight->picks, runner->picks,
                                              upload->row_count * sizeof(*flight->picks), err);
    if (code == ERR_OK && flight->wants_records) {
        code = device_cuda_download(runner->device, flight->sample_records, runner->sample_records,
                                    upload->row_count * sizeof(*flight->sample_records), err);
    }
    if (code == ERR_OK && flight->wants_prompt) {
        code = device_cuda_download(runner->device, flight->prompt_records, runner->prompt_records,
                                    upload->id_count * sizeof(*flight->prompt_records), err);
    }
    return code;
}

enum err_code runner_cuda_run(struct runner_cuda *runner, struct flight *flight, struct err *err)
{
    enum err_code code = upload_patches(runner, flight, err);
    if (code != ERR_OK || flight->has_failed) {
        return code;
    }
    const struct bucket *bucket = bucket_of(runner, flight);
    const struct step_shape shape = shape_of(flight);
    code = upload_rows(runner, flight, bucket != NULL ? bucket->rows : shape.rows, err);
    code = code == ERR_OK ? upload_prompts(runner, flight, err) : code;
    if (code == ERR_OK && shape.rows > 0) {
        code = bucket != NULL ? device_cuda_graph_launch(runner->device, bucket->graph, err)
                              : runner_cuda_enqueue(runner, &shape, err);
    }
    return code == ERR_OK && shape.rows > 0 ? download(runner, flight, err) : code;
}
