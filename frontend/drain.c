#include "frontend/drain.h"

enum err_code drain_init(struct drain *drain, void *segment, size_t ring_bytes, uint64_t epoch,
                         struct err *err)
{
    *drain = (struct drain){.epoch = epoch};
    return ring_consumer_init(&drain->consumer, segment, ring_bytes, RESULT_RECORD_BYTES, epoch,
                              err);
}

enum err_code drain_run(struct drain *drain, uint32_t max_records, drain_record_fn on_record,
                        void *owner, struct err *err)
{
    struct result_record record;
    enum err_code code = ERR_OK;
    for (uint32_t i = 0; code == ERR_OK && i < max_records; i++) {
        if (!ring_consumer_try_pop(&drain->consumer, &record)) {
            break;
        }
        drain->record_count++;
        if (record.epoch != drain->epoch) {
            drain->stale_count++;
            continue;
        }
        code = result_check(&record, err);
        if (code == ERR_OK) {
            code = on_record(owner, &record, err);
        }
    }
    return code;
}

void drain_wait(struct drain *drain, uint64_t spin_ns, uint64_t deadline_ns)
{
    (void)ring_consumer_wait(&drain->consumer, spin_ns, deadline_ns); /* the caller looks */
}

void drain_wake(struct drain *drain)
{
    ring_wake(drain->consumer.shared);
}
