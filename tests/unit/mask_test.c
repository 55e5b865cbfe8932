#include "proto/mask.h"

#include <stdlib.h>
#include <string.h>

#include "tests/testlib/test.h"

static const struct mask_geometry geometry = {.lanes = 3, .words = 33};

static void test_masks_are_found_by_tag(void)
{
    size_t bytes = mask_area_bytes(&geometry);
    test_eq_u64(bytes, 3ULL * 2 * (64 + 192));
    unsigned char *segment = aligned_alloc(64, bytes + 128);
    test_true(segment != NULL);
    memset(segment, 0, bytes + 128);
    struct mask_area area;
    struct err err;
    test_ok(mask_area_init(&area, segment, bytes + 128, 128, &geometry, &err), &err);

    uint32_t first[33];
    uint32_t second[33];
    memset(first, 0x5a, sizeof(first));
    memset(second, 0xa5, sizeof(second));
    uint32_t hint = 0;
    test_true(mask_find(&area, 7, 100, &hint) == NULL);
    mask_write(&area, 2, 7, 100, first);
    mask_write(&area, 2, 7, 101, second);
    mask_write(&area, 0, 8, 100, second);
    const uint32_t *found = mask_find(&area, 7, 100, &hint);
    test_true(found != NULL && memcmp(found, first, sizeof(first)) == 0);
    test_eq_u64(hint, 2);
    found = mask_find(&area, 7, 101, &hint);
    test_true(found != NULL && memcmp(found, second, sizeof(second)) == 0);
    test_true(mask_find(&area, 7, 102, &hint) == NULL);
    test_true(mask_find(&area, 8, 101, &hint) == NULL);
    mask_write(&area, 2, 7, 102, second); /* takes the entry of 100 */
    test_true(mask_find(&area, 7, 100, &hint) == NULL);
    test_true(mask_find(&area, 7, 102, &hint) != NULL);
    hint = 1000; /* of no lane: found all the same */
    test_true(mask_find(&area, 8, 100, &hint) != NULL);
    test_eq_u64(hint, 0);
    for (size_t i = 0; i < 128; i++) {
        test_true(segment[i] == 0);
    }
    free(segment);
}

static void test_an_area_must_lie_within_its_segment(void)
{
    static unsigned char segment[4096];
    struct mask_area area;
    struct err err;
    test_eq_u64(mask_area_init(&area, segment, 4096, 32, &geometry, &err), ERR_PROTOCOL);
    test_eq_u64(mask_area_init(&area, segment, 1535, 0, &geometry, &err), ERR_PROTOCOL);
    test_true(strstr(err.message, "1536 bytes at 0 in a segment of 1535 bytes") != NULL);
    test_eq_u64(mask_area_init(&area, segment, 4096, SIZE_MAX - 63, &geometry, &err), ERR_PROTOCOL);
}

static const struct test_case cases[] = {
    TEST(test_masks_are_found_by_tag),
    TEST(test_an_area_must_lie_within_its_segment),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
