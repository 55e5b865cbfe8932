#include "common/run_path.h"

#include <stdio.h>
#include <unistd.h>

void run_path_default(char out_path[RUN_PATH_BYTES])
{
    (void)snprintf(out_path, RUN_PATH_BYTES, "/tmp/bezel-%u", geteuid()); /* fits */
}
