/* The cuda part of the loader in a build without that backend. */
#include "worker/loader_internal.h"

bool loader_has_cuda(void)
{
    return false;
}

uint32_t loader_cuda_device_count(void)
{
    return 0;
}

uint64_t loader_cuda_free_bytes(void)
{
    return 0;
}

uint64_t loader_cuda_workspace_bytes(const struct model_config *config,
                                     const struct runner_limits *limits)
{
    (void)config;
    (void)limits;
    return 0;
}

enum err_code loader_open_cuda(const struct options *options, struct inject *inject,
                               const struct weights_progress *progress, struct loaded *loaded,
                               struct err *err)
{
    (void)inject;
    (void)progress;
    (void)loaded;
    return err_set(err, ERR_UNSUPPORTED, "--device %s: this build has no CUDA backend",
                   options->device);
}
