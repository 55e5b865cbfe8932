/* Experts on cuda: not there yet, said when a model with experts first runs. */
#include "kernels/cuda/device/launch.cuh"

static enum err_code not_there(struct err *err)
{
    return err_set(err, ERR_UNSUPPORTED, "experts: this build runs them on cpu only");
}

extern "C" enum err_code k_cuda_route(struct k_stream *, const struct k_route_args *,
                                      struct err *err)
{
    return not_there(err);
}

extern "C" enum err_code k_cuda_expert_gate_up(struct k_stream *, const struct k_expert_args *,
                                               struct err *err)
{
    return not_there(err);
}

extern "C" enum err_code k_cuda_expert_down(struct k_stream *, const struct k_expert_args *,
                                            struct err *err)
{
    return not_there(err);
}

extern "C" enum err_code k_cuda_join_norm(struct k_stream *, const struct k_join_norm_args *,
                                          struct err *err)
{
    return not_there(err);
}
