#include "tests/sim/model.h"

#include "tests/sim/random.h"

uint64_t model_entry(uint64_t cache_salt, uint32_t position, uint32_t token, uint64_t global_sum,
                     uint64_t local_sum)
{
    uint64_t value = random_mix(global_sum + 0x9e3779b97f4a7c15ULL * (token + 1));
    return random_mix(value ^ (local_sum * 0xd1342543de82ef95ULL) ^ cache_salt) +
           position * 0x2545f4914f6cdd1dULL;
}

uint64_t model_output(uint32_t token)
{
    return random_mix(token + 0xd6e8feb86659fd93ULL);
}

bool model_is_stop(const struct plan_admit *admit, uint32_t token)
{
    for (uint32_t i = 0; i < admit->stop_ids.count; i++) {
        if (admit->stop_ids.at[i] == token) {
            return true;
        }
    }
    return false;
}

static bool may_stop(const struct plan_admit *admit, uint32_t position)
{
    return position - admit->output_start >= admit->min_tokens;
}

uint32_t model_pick(const struct model_state *state)
{
    const struct plan_admit *admit = state->admit;
    uint64_t value = random_mix(state->global_sum ^ (state->local_sum * 0xd1342543de82ef95ULL)) ^
                     random_mix(admit->seed + state->position);
    if (admit->presence_penalty > 0) {
        value ^= random_mix(state->output_sum);
    }
    uint32_t first = (uint32_t)(random_mix(value) % state->vocab_tokens);
    bool no_stop = !may_stop(admit, state->position);
    for (uint32_t i = 0; i < state->vocab_tokens; i++) {
        uint32_t token = (first + i) % state->vocab_tokens;
        if (!(no_stop && model_is_stop(admit, token))) {
            return token;
        }
    }
    return first;
}

bool model_stops(const struct plan_admit *admit, uint32_t position, uint32_t token)
{
    return !admit->ignore_eos && may_stop(admit, position) && model_is_stop(admit, token);
}
