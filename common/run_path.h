/* Where the programs of one pair meet when nobody names a --run-dir: the same place for all three. */
#ifndef COMMON_RUN_PATH_H
#define COMMON_RUN_PATH_H

/* A Unix socket address holds 107 bytes; the longest name in the directory is plan-<20 digits>.ipc. */
#define RUN_PATH_BYTES 80

/* "/tmp/bezel-" and the user's number. */
void run_path_default(char out_path[RUN_PATH_BYTES]);

#endif
