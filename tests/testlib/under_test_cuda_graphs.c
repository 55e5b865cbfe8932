#include "tests/testlib/backend.h"

const struct backend *const *backends_under_test(uint32_t *out_count)
{
    static const struct backend *const all[] = {&backend_cuda_graphs};
    *out_count = sizeof(all) / sizeof(all[0]);
    return all;
}
