/* What a step enqueues on the device's stream. */
#include <string.h>

#include "common/num.h"
#include "worker/ranges.h"
#include "worker/runner_cuda_internal.h"

/* Patches are read where the host wrote them: to copy them first would cost more. */
static enum err_code apply_patches(struct runner_cuda *runner, const struct flight *flight,
                                   struct err *err)
{
    struct stage_upload patches = flight->upload;
    size_t offset_bytes = (size_t)((const unsigned char *)patches.patches - patches.block);
    patches.patches = (struct k_patch *)(void *)(flight->device_block + offset_bytes);
    patches.row_count = 0;
    const struct k_expand_args args = stage_expand_args(&runner->tables, &patches, runner->picks);
    return patches.patch_count == 0 ? ERR_OK : ranges_ops()->expand(runner->stream, &args, err);
}

static enum err_code expand(struct runner_cuda *runner, const struct step_shape *shape,
                            struct err *err)
{
    struct stage_upload part = runner->upload;
    part.rows += shape->first_row;
    part.row_count = shape->rows;
    part.patch_count = 0;
    struct k_expand_args args =
        stage_expand_args(&runner->tables, &part, runner->picks + shape->first_row);
    args.begin_ns = shape->begins ? runner->begin_ns : NULL;
    args.pad_tokens_multiple = shape->pad_multiple;
    return ranges_ops()->expand(runner->stream, &args, err);
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
        code = code == ERR_OK ? ranges_ops()->logprobs(runner->stream, &args, err) : code;
    }
    return code;
}

/* Up to the logits of the rows that sample. */
static enum err_code enqueue_forward(struct runner_cuda *runner, const struct step_shape *shape,
                                     struct err *err)
{
    const struct stage_tables *tables = &runner->tables;
    const struct k_tokens tokens = {
        .count = shape->tokens,
        .ids = tables->ids,
        .positions = tables->positions,
        .slots = tables->token_slots,
    };
    enum err_code code = expand(runner, shape, err);
    code = code == ERR_OK ? forward_run(&runner->forward, &tokens, err) : code;
    code = code == ERR_OK ? report_prompt(runner, shape, err) : code;
    return code == ERR_OK && shape->sample_rows > 0
               ? forward_head(&runner->forward, tables->sample_tokens, shape->sample_rows,
                              runner->logits, err)
               : code;
}

static enum err_code sample(struct runner_cuda *runner, const struct step_shape *shape,
                            struct err *err)
{
    const struct stage_tables *tables = &runner->tables;
    const struct k_ops *ops = ranges_ops();
    const struct k_sample_args args = {
        .slots = tables->slots,
        .logits = runner->logits,
        .row_count = shape->sample_rows,
        .rows = tables->sample_rows,
        .masks = runner->upload.masks,
        .mask_words = stage_mask_words(&runner->super.limits),
        .missing = runner->upload.missing,
        .picks = runner->picks + shape->first_row,
        .logprobs = tables->sample_logprobs,
    };
    const struct k_logprobs_args logprobs = {
        .logits = runner->logits,
        .row_count = shape->sample_rows,
        .vocab_tokens = runner->super.limits.vocab_tokens,
        .rows = tables->sample_logprobs,
        .records = runner->sample_records + shape->first_row,
    };
    enum err_code code = ops->sample(runner->stream, &args, err);
    return code == ERR_OK && shape->has_records ? ops->logprobs(runner->stream, &logprobs, err)
                                                : code;
}

static enum err_code enqueue_sampler(struct runner_cuda *runner, const struct step_shape *shape,
                                     struct err *err)
{
    bool has_turns = shape->published == NULL;
    const struct k_advance_args advance = {
        .slots = runner->tables.slots,
        .rows = runner->upload.rows + shape->first_row,
        .row_count = shape->rows,
        .picks = runner->picks + shape->first_row,
        .published = has_turns ? runner->device_turns : shape->published,
        .turn = has_turns ? runner->device_turn : NULL,
        .turns = runner->flight_cap,
        .turn_rows = runner->row_cap,
        .stamps = !shape->ends ? NULL
                  : has_turns  ? runner->device_stamps
                               : shape->stamp,
        .begin_ns = runner->begin_ns,
    };
    enum err_code code = shape->sample_rows > 0 ? sample(runner, shape, err) : ERR_OK;
    return code == ERR_OK ? ranges_ops()->advance(runner->stream, &advance, err) : code;
}

enum err_code runner_cuda_enqueue(struct runner_cuda *runner, const struct step_shape *shape,
                                  enum step_part part, struct err *err)
{
    enum err_code code = part == STEP_PART_SAMPLER ? ERR_OK : enqueue_forward(runner, shape, err);
    return code == ERR_OK && part != STEP_PART_FORWARD ? enqueue_sampler(runner, shape, err) : code;
}

/* Up to 16 tokens are multiplied without cuBLAS; beyond, padding costs at most an eighth. */
void runner_cuda_pad(const struct runner_limits *limits, struct step_shape *shape)
{
    static const struct {
        uint32_t above_tokens;
        uint32_t multiple;
    } steps[] = {{4096, 512}, {2048, 256}, {1024, 64}, {256, 32}, {K_CUDA_SMALL_ROWS, 16}};
    for (uint32_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        if (shape->tokens > steps[i].above_tokens) {
            uint32_t padded = num_ceil_div(shape->tokens, steps[i].multiple) * steps[i].multiple;
            if (padded <= limits->max_step_tokens) {
                shape->tokens = padded;
                shape->pad_multiple = steps[i].multiple;
            }
            return;
        }
    }
}

/* ---- uploads ---- */

static bool is_resident(const struct runner_cuda *runner, const struct k_row *rows, uint32_t count)
{
    return runner->resident_count >= count &&
           memcmp(runner->resident, rows, count * sizeof(*rows)) == 0;
}

/* Rows that the device does not have, and prompt ids: one copy, or none. */
static enum err_code upload_block(struct runner_cuda *runner, const struct flight *flight,
                                  uint32_t row_count, struct err *err)
{
    const struct stage_upload *from = &flight->upload;
    bool has_rows = !is_resident(runner, from->rows, row_count);
    bool has_ids = from->id_count > 0;
    size_t begin = has_rows ? 0 : from->tail_offset_bytes;
    size_t end = has_ids    ? from->tail_offset_bytes + from->tail_bytes
                 : has_rows ? row_count * sizeof(*from->rows)
                            : begin;
    enum err_code code = end == begin
                             ? ERR_OK
                             : device_cuda_upload(runner->device, runner->upload.block + begin,
                                                  from->block + begin, end - begin, err);
    if (code == ERR_OK && has_rows) {
        memcpy(runner->resident, from->rows, row_count * sizeof(*from->rows));
        runner->resident_count = row_count;
    }
    stage_upload_mirror(from, &runner->upload);
    return code;
}

static enum err_code upload_masks(struct runner_cuda *runner, const struct flight *flight,
                                  struct err *err)
{
    const struct stage_upload *from = &flight->upload;
    if (from->mask_count == 0) {
        return ERR_OK;
    }
    size_t words = from->late_count == from->mask_count
                       ? from->mask_count
                       : (size_t)(from->masks - from->missing) +
                             (size_t)from->mask_count * stage_mask_words(&runner->super.limits);
    return device_cuda_upload(runner->device, runner->upload.missing, from->missing,
                              words * sizeof(uint32_t), err);
}

/* ---- one step ---- */

static struct step_shape shape_of(const struct flight *flight, uint32_t first_row,
                                  uint32_t row_count)
{
    struct step_shape shape = {
        .first_row = first_row,
        .rows = row_count,
        .has_records = flight->wants_records,
        .begins = true,
        .ends = true,
        .published = flight->device_picks + first_row,
        .stamp = flight->device_stamp,
    };
    for (uint32_t i = first_row; i < first_row + row_count; i++) {
        const struct k_row *row = &flight->upload.rows[i];
        shape.tokens += row->count;
        shape.sample_rows += (row->flags & K_ROW_SAMPLES) != 0 ? 1 : 0;
        shape.prompt_rows += (row->flags & K_ROW_PROMPT_LOGPROBS) != 0 ? row->count : 0;
    }
    return shape;
}

static struct bucket *bucket_of(struct runner_cuda *runner, uint32_t rows)
{
    uint32_t index = 0;
    while (runner->buckets[index].rows < rows) { /* the last one holds the most rows of a step */
        index++;
    }
    return &runner->buckets[index];
}

/* Which rows run together.  Decode rows alone run at the width of their bucket, as a graph or not;
 * what is missing to it are rows of nobody.  Returns how many packed rows there are then. */
static uint32_t choose_shape(struct runner_cuda *runner, struct flight *flight)
{
    struct stage_upload *packed = &flight->upload;
    bool is_apart = runner->super.limits.segment_tokens != 0;
    uint32_t decode_rows = is_apart                ? packed->decode_count
                           : packed->id_count == 0 ? packed->row_count
                                                   : 0;
    uint32_t row_count = packed->row_count;
    flight->bucket = decode_rows > 0 ? bucket_of(runner, decode_rows) : NULL;
    if (flight->bucket != NULL) {
        for (; row_count < flight->bucket->rows; row_count++) {
            packed->rows[row_count] = stage_nobody();
        }
        flight->shape = shape_of(flight, 0, flight->bucket->rows);
    } else {
        flight->shape = shape_of(flight, 0, is_apart ? 0 : row_count);
        runner_cuda_pad(&runner->super.limits, &flight->shape);
    }
    flight->shape.ends = !is_apart || packed->id_count == 0;
    return row_count;
}

static enum err_code run_part(struct runner_cuda *runner, struct flight *flight,
                              enum step_part part, struct err *err)
{
    const struct bucket *bucket = flight->bucket;
    bool is_as_captured = bucket != NULL && flight->shape.sample_rows == bucket->rows;
    struct device_cuda_graph *graph = is_as_captured ? bucket->graphs[part] : NULL;
    if (flight->shape.rows == 0) {
        return ERR_OK;
    }
    if (graph == NULL) {
        return runner_cuda_enqueue(runner, &flight->shape, part, err);
    }
    if (part != STEP_PART_FORWARD) {
        flight->turn_rows = flight->shape.rows;
        flight->turn = runner->next_turn;
        struct k_stamp *stamp = &runner->stamps[flight->turn];
        stamp->end_ns = 0;
        flight->stamp = flight->shape.ends ? stamp : flight->stamp;
        runner->next_turn = (runner->next_turn + 1) % runner->flight_cap;
    }
    return device_cuda_graph_launch(runner->device, graph, err);
}

/* With pinned shapes each piece of a prompt is a forward pass of its own, in order. */
static enum err_code run_pieces(struct runner_cuda *runner, const struct flight *flight,
                                struct err *err)
{
    const struct runner_limits *limits = &runner->super.limits;
    enum err_code code = ERR_OK;
    for (uint32_t i = limits->max_step_rows;
         code == ERR_OK && limits->segment_tokens != 0 && i < flight->upload.row_count; i++) {
        struct step_shape shape = shape_of(flight, i, 1);
        runner_cuda_pad(limits, &shape);
        shape.begins = i == limits->max_step_rows && flight->shape.rows == 0;
        shape.ends = i + 1 == flight->upload.row_count;
        code = runner_cuda_enqueue(runner, &shape, STEP_PART_WHOLE, err);
    }
    return code;
}

static enum err_code download_records(struct runner_cuda *runner, const struct flight *flight,
                                      struct err *err)
{
    const struct stage_upload *upload = &flight->upload;
    enum err_code code = ERR_OK;
    if (flight->wants_records) {
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
    flight->turn_rows = 0;
    flight->own_stamp->end_ns = 0;
    flight->stamp = flight->has_failed ? NULL : flight->own_stamp;
    flight->is_steady = false;
    if (flight->has_failed) {
        flight->bucket = NULL;
        return apply_patches(runner, flight, err);
    }
    uint32_t row_count = choose_shape(runner, flight);
    flight->is_steady = flight->bucket != NULL && flight->upload.id_count == 0 &&
                        is_resident(runner, flight->upload.rows, row_count);
    enum err_code code = upload_block(runner, flight, row_count, err);
    code = code == ERR_OK ? apply_patches(runner, flight, err) : code;
    if (code == ERR_OK && flight->upload.late_count > 0) {
        flight->awaits_masks = true;
        return run_part(runner, flight, STEP_PART_FORWARD, err);
    }
    code = code == ERR_OK ? upload_masks(runner, flight, err) : code;
    code = code == ERR_OK ? run_part(runner, flight, STEP_PART_WHOLE, err) : code;
    code = code == ERR_OK ? run_pieces(runner, flight, err) : code;
    return code == ERR_OK ? download_records(runner, flight, err) : code;
}

enum err_code runner_cuda_run_sampler(struct runner_cuda *runner, struct flight *flight,
                                      struct err *err)
{
    flight->awaits_masks = false;
    enum err_code code = upload_masks(runner, flight, err);
    code = code == ERR_OK ? run_part(runner, flight, STEP_PART_SAMPLER, err) : code;
    return code == ERR_OK ? download_records(runner, flight, err) : code;
}

bool runner_cuda_ends_by_stamp(const struct flight *flight)
{
    return flight->stamp != NULL && !flight->wants_records && !flight->wants_prompt;
}

struct runner_cuda_traffic runner_cuda_traffic(const struct runner_cuda *runner)
{
    struct device_cuda_counters device = device_cuda_counters(runner->device);
    return (struct runner_cuda_traffic){
        .uploads = device.uploads,
        .upload_bytes = device.upload_bytes,
        .launches = device.graph_launches + k_cuda_stream_launches(runner->stream) +
                    gemm_launches(runner->gemm),
    };
}
