#include "tests/testlib/cuda_stand_in.h"

const bool cuda_stand_in_is_planted = false;
