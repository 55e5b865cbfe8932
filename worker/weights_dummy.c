/* Made-up weights in host memory: values of a bell shape, the same for the same config.
 *
 * Matrices that are larger than a pattern repeat it, mapped over and over from one piece of memory,
 * so that a model of many GB takes some MB and no time. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/mem.h"
#include "common/num.h"
#include "kernels/dtype.h"
#include "kernels/philox.h"
#include "worker/weights.h"

#define SEED          20260401ULL
#define VECTOR_SIGMA  0.05F
#define TWO_PI        6.283185307F
#define PAGE_BYTES    4096
#define PATTERN_BYTES (2039ULL * PAGE_BYTES) /* a prime: few rows begin alike */
#define PATTERN_ELEMS (PATTERN_BYTES / sizeof(uint16_t))
#define MAX_PATTERNS  32

/* sigma 1 / sqrt(in) keeps activations of the size that real ones have. */
struct pattern {
    uint64_t in_elems;
    int fd;
};

struct dummy {
    unsigned char *base;
    float *normals; /* [PATTERN_ELEMS] of deviation 1 */
    struct pattern patterns[MAX_PATTERNS];
    uint32_t pattern_count;
    enum err_code code;
    struct err err;
};

static void fill_normals(float *normals)
{
    for (uint32_t i = 0; i < PATTERN_ELEMS; i += 2) {
        const uint32_t counter[4] = {i, 0, 0, 0};
        struct k_philox words = k_philox(SEED, counter);
        float u = ((float)words.words[0] + 0.5F) * 0x1p-32F;
        float angle = TWO_PI * ((float)words.words[1] + 0.5F) * 0x1p-32F;
        float radius = sqrtf(-2.0F * logf(u > 1.0F - 0x1p-24F ? 1.0F - 0x1p-24F : u));
        normals[i] = radius * cosf(angle);
        normals[i + 1] = radius * sinf(angle);
    }
}

static void fill_values(const struct dummy *dummy, uint16_t *values, uint64_t count, float mean,
                        float sigma)
{
    for (uint64_t i = 0; i < count; i++) {
        values[i] = k_bf16_from_f32(mean + sigma * dummy->normals[i % PATTERN_ELEMS]);
    }
}

static float sigma_of(uint64_t in_elems)
{
    return 1.0F / sqrtf((float)in_elems);
}

static enum err_code fail(struct dummy *dummy, const char *what, int number)
{
    dummy->code =
        err_set(&dummy->err, ERR_MEMORY, "made-up weights: %s: %s", what, strerrordesc_np(number));
    return dummy->code;
}

/* The memory that all large matrices of so many inputs show. */
static enum err_code take_pattern(struct dummy *dummy, uint64_t in_elems, int *out_fd)
{
    for (uint32_t i = 0; i < dummy->pattern_count; i++) {
        if (dummy->patterns[i].in_elems == in_elems) {
            *out_fd = dummy->patterns[i].fd;
            return ERR_OK;
        }
    }
    if (dummy->pattern_count == MAX_PATTERNS) {
        return fail(dummy, "too many widths of matrices", ENOSPC);
    }
    int fd = memfd_create("bezel-weights", MFD_CLOEXEC);
    if (fd < 0) {
        return fail(dummy, "a pattern", errno);
    }
    dummy->patterns[dummy->pattern_count++] = (struct pattern){in_elems, fd};
    void *at = ftruncate(fd, PATTERN_BYTES) == 0
                   ? mmap(NULL, PATTERN_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                   : MAP_FAILED;
    if (at == MAP_FAILED) {
        return fail(dummy, "a pattern", errno);
    }
    fill_values(dummy, at, PATTERN_ELEMS, 0.0F, sigma_of(in_elems));
    (void)munmap(at, PATTERN_BYTES); /* ours, whole: cannot fail */
    *out_fd = fd;
    return ERR_OK;
}

/* Whole pages show the pattern; what lies before and behind them is written. */
static enum err_code repeat_pattern(struct dummy *dummy, const struct weights_tensor *tensor)
{
    int fd = -1;
    float sigma = sigma_of(tensor->in_elems);
    uint64_t begin = tensor->offset_bytes;
    uint64_t end = begin + tensor->elems * sizeof(uint16_t);
    uint64_t first_page = num_align_up(begin, PAGE_BYTES);
    uint64_t end_page = end / PAGE_BYTES * PAGE_BYTES;
    enum err_code code = take_pattern(dummy, tensor->in_elems, &fd);
    for (uint64_t at = first_page; code == ERR_OK && at < end_page; at += PATTERN_BYTES) {
        uint64_t bytes = end_page - at < PATTERN_BYTES ? end_page - at : PATTERN_BYTES;
        if (mmap(dummy->base + at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0) ==
            MAP_FAILED) {
            code = fail(dummy, "repeating a pattern", errno);
        }
    }
    if (code == ERR_OK) {
        fill_values(dummy, (uint16_t *)(void *)(dummy->base + begin),
                    (first_page - begin) / sizeof(uint16_t), 0.0F, sigma);
        fill_values(dummy, (uint16_t *)(void *)(dummy->base + end_page),
                    (end - end_page) / sizeof(uint16_t), 0.0F, sigma);
    }
    return code;
}

static void fill_tensor(void *owner, const struct weights_tensor *tensor)
{
    struct dummy *dummy = owner;
    uint16_t *values = (uint16_t *)(void *)(dummy->base + tensor->offset_bytes);
    if (dummy->code != ERR_OK) {
        return;
    }
    if (tensor->in_elems == 0) {
        fill_values(dummy, values, tensor->elems, 1.0F, VECTOR_SIGMA);
    } else if (tensor->elems <= PATTERN_ELEMS) {
        fill_values(dummy, values, tensor->elems, 0.0F, sigma_of(tensor->in_elems));
    } else {
        (void)repeat_pattern(dummy, tensor); /* kept in code */
    }
}

enum err_code weights_make_host(const struct model_config *config, struct weights *out_weights,
                                struct err *err)
{
    struct weights weights;
    uint64_t block_bytes = weights_block_bytes(config);
    void *block = mmap(NULL, block_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED) {
        return err_set(err, ERR_MEMORY, "the weights need %llu bytes of address space: %s",
                       (unsigned long long)block_bytes, strerrordesc_np(errno));
    }
    struct dummy dummy = {.base = block,
                          .normals = mem_zalloc(PATTERN_ELEMS, sizeof(*dummy.normals))};
    fill_normals(dummy.normals);
    weights_lay_out(config, block, fill_tensor, &dummy, &weights);
    weights.host_block = block;
    for (uint32_t i = 0; i < dummy.pattern_count; i++) {
        (void)close(dummy.patterns[i].fd); /* the mappings keep the memory */
    }
    mem_free(dummy.normals);
    if (dummy.code != ERR_OK) {
        *err = dummy.err;
        weights_fini(&weights);
        return dummy.code;
    }
    *out_weights = weights;
    return ERR_OK;
}
