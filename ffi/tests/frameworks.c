/*
 * What only adapters of frameworks call: the submit hook, snapshots told piece by piece, captures by a function, the
 * end of a process, and more importers for an export. On the simulator: frameworks SCENARIO. Valid C99 and C++11.
 */
#include "check.h"

/* ---- The submit hook ---------------------------------------------------------------------------------------- */

struct queue {
    int for_streams, for_devices, released, answer;
    void *last;
};

static int hand_over(int device, void *stream, int all, void *user) {
    struct queue *queue = (struct queue *)user;
    CHECK(device == 0);
    if (all) {
        queue->for_devices++;
    } else {
        queue->for_streams++;
        queue->last = stream;
    }
    return queue->answer;
}

static void let_go(void *user) {
    ((struct queue *)user)->released++;
}

/* A block that the side stream may still use. */
static void *freed_under(aclrtStream side) {
    void *block = ascend_alloc_malloc(8 * MIB, 0, NULL);
    CHECK(block != NULL);
    OK(ascend_alloc_record_stream(block, side));
    OK(ascend_alloc_release(block));
    CHECK(stats_of(0).active_bytes.all.current >= (int64_t)(8 * MIB));
    return block;
}

static void submit(void) {
    set_up();
    aclrtStream side = new_stream();
    struct queue queue = {0, 0, 0, 0, NULL}, next = {0, 0, 0, 0, NULL};
    OK(ascend_alloc_set_submit_hook(hand_over, &queue, let_go));
    /* Nothing is marked while nobody else uses a block, so nothing has to be handed over. */
    ascend_alloc_free(ascend_alloc_malloc(8 * MIB, 0, NULL), 0, 0, NULL);
    CHECK(queue.for_streams == 0 && queue.for_devices == 0);

    /* To empty the cache, the use by the side stream has to be over: its queue is handed over first. */
    freed_under(side);
    OK(ascend_alloc_empty_cache(0));
    CHECK(queue.for_streams + queue.for_devices > 0);
    CHECK(queue.for_streams == 0 || queue.last == side);
    CHECK(stats_of(0).reserved_bytes.all.current == 0);

    /* Where that is not possible, no point in the stream is marked, and the memory stays where it is. */
    queue.answer = 1;
    void *block = freed_under(side);
    long recorded = called("aclrtRecordEvent");
    void *other = ascend_alloc_malloc(8 * MIB, 0, NULL);
    CHECK(other != NULL && other != block);
    ascend_alloc_empty_cache(0);
    CHECK(called("aclrtRecordEvent") == recorded);
    CHECK(stats_of(0).active_bytes.all.current >= (int64_t)(16 * MIB));
    OK(ascend_alloc_release(other));

    /* The next hook takes the place of this one, and none that of the next. */
    CHECK(queue.released == 0);
    OK(ascend_alloc_set_submit_hook(hand_over, &next, let_go));
    CHECK(queue.released == 1);
    OK(ascend_alloc_empty_cache(0));
    CHECK(next.for_streams + next.for_devices > 0 && stats_of(0).reserved_bytes.all.current == 0);
    OK(ascend_alloc_set_submit_hook(NULL, NULL, NULL));
    CHECK(queue.released == 1 && next.released == 1);
    int before = next.for_streams + next.for_devices;
    freed_under(side);
    OK(ascend_alloc_empty_cache(0));
    CHECK(next.for_streams + next.for_devices == before && stats_of(0).reserved_bytes.all.current == 0);
}

/* ---- Snapshots ---------------------------------------------------------------------------------------------- */

struct seen {
    int segments, live, waiting, free;
    size_t bytes, block_bytes, allocated, active;
    const char *segment_end, *place;
    void *wanted;
    int found;
    uint64_t pool, pool_of_wanted;
};

static void look(const ascend_alloc_segment_entry_t *segment, const ascend_alloc_block_entry_t *block, void *user) {
    struct seen *seen = (struct seen *)user;
    CHECK((segment == NULL) != (block == NULL));
    if (segment != NULL) {
        CHECK(segment->struct_size == sizeof *segment && segment->device == 0);
        /* The blocks of the one before have tiled it. */
        CHECK(seen->place == seen->segment_end);
        CHECK((char *)segment->base <= (char *)segment->ptr && segment->is_asleep == 0);
        seen->segments++;
        seen->bytes += segment->size;
        seen->allocated += segment->allocated;
        seen->active += segment->active;
        seen->place = (const char *)segment->ptr;
        seen->segment_end = seen->place + segment->size;
        seen->pool = segment->pool;
        return;
    }
    CHECK(block->struct_size == sizeof *block && (const char *)block->ptr == seen->place);
    seen->place += block->size;
    seen->block_bytes += block->size;
    seen->live += block->state == ASCEND_ALLOC_BLOCK_STATE_ALLOCATED;
    seen->waiting += block->state == ASCEND_ALLOC_BLOCK_STATE_PENDING_FREE;
    seen->free += block->state == ASCEND_ALLOC_BLOCK_STATE_INACTIVE;
    if (block->ptr == seen->wanted) {
        CHECK(block->state == ASCEND_ALLOC_BLOCK_STATE_ALLOCATED && block->requested == 3 * MIB);
        seen->found++;
        seen->pool_of_wanted = seen->pool;
    }
}

static struct seen visited(void *wanted) {
    struct seen seen;
    memset(&seen, 0, sizeof seen);
    seen.wanted = wanted;
    OK(ascend_alloc_snapshot_visit(0, look, &seen));
    CHECK(seen.place == seen.segment_end && seen.bytes == seen.block_bytes);
    ascend_alloc_stats_t stats = stats_of(0);
    CHECK((int64_t)seen.bytes == stats.reserved_bytes.all.current);
    CHECK((int64_t)seen.allocated == stats.allocated_bytes.all.current);
    CHECK((int64_t)seen.active == stats.active_bytes.all.current);
    return seen;
}

static void snapshot(void) {
    struct seen seen;
    memset(&seen, 0, sizeof seen);
    /* Before anything is set up there is nothing to tell. */
    OK(ascend_alloc_snapshot_visit(0, look, &seen));
    CHECK(seen.segments == 0);
    set_up();
    REFUSED(ascend_alloc_snapshot_visit(0, NULL, &seen));
    REFUSED(ascend_alloc_snapshot_visit(-1, look, &seen));
    REFUSED(ascend_alloc_snapshot_visit(99, look, &seen));

    aclrtStream side = new_stream();
    void *kept = ascend_alloc_malloc(3 * MIB, 0, NULL), *small = ascend_alloc_malloc(1000, 0, NULL);
    ascend_alloc_free(ascend_alloc_malloc(30 * MIB, 0, NULL), 0, 0, NULL);
    seen = visited(kept);
    CHECK(seen.found == 1 && seen.pool_of_wanted == 0 && seen.segments >= 2);
    CHECK(seen.live == 2 && seen.waiting == 0 && seen.free >= 1);
    /* The other stream works on it for a while. */
    acl_sim_range range = {small, 1000, 1};
    ACL(acl_sim_kernel(side, "kernel", &range, 1, 200000));
    OK(ascend_alloc_record_stream(small, side));
    OK(ascend_alloc_release(small));
    seen = visited(kept);
    CHECK(seen.live == 1 && seen.waiting == 1);

    ascend_alloc_pool_options_t options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    uint64_t pool = 0;
    OK(ascend_alloc_pool_create(0, &options, &pool));
    void *pooled = ascend_alloc_pool_malloc(pool, 3 * MIB, NULL);
    seen = visited(pooled);
    CHECK(seen.found == 1 && seen.pool_of_wanted == pool && seen.live == 2);
    OK(ascend_alloc_release(pooled));
    OK(ascend_alloc_pool_release(pool));
    OK(ascend_alloc_release(kept));
    OK(ascend_alloc_empty_cache(-1));
    CHECK(visited(NULL).segments == 0);
}

/* ---- Captures by a function --------------------------------------------------------------------------------- */

struct accepted {
    void *stream;
    int asked, released;
};

static int only_one(void *stream, void *user) {
    struct accepted *accepted = (struct accepted *)user;
    accepted->asked++;
    return stream == accepted->stream;
}

static void note_end(void *user) {
    ((struct accepted *)user)->released++;
}

static int64_t held_by(uint64_t pool) {
    ascend_alloc_pool_stats_t stats;
    stats.struct_size = sizeof stats;
    OK(ascend_alloc_pool_stats(pool, &stats));
    return stats.allocated_bytes.all.current;
}

static void capture_with(void) {
    set_up();
    ascend_alloc_pool_options_t options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    uint64_t pool = 0;
    OK(ascend_alloc_pool_create(0, &options, &pool));
    struct accepted accepted = {new_stream(), 0, 0}, refused = {NULL, 0, 0};
    /* After a failure the function is released as well. */
    REFUSED(ascend_alloc_capture_begin_with(pool + 77, only_one, &refused, note_end));
    CHECK(refused.released == 1 && refused.asked == 0);
    REFUSED(ascend_alloc_capture_begin_with(pool, NULL, &refused, note_end));
    CHECK(refused.released == 2);

    OK(ascend_alloc_capture_begin_with(pool, only_one, &accepted, note_end));
    void *inside = ascend_alloc_malloc(4 * MIB, 0, accepted.stream), *outside = ascend_alloc_malloc(6 * MIB, 0, NULL);
    CHECK(inside != NULL && outside != NULL && accepted.asked >= 2);
    CHECK(held_by(pool) >= (int64_t)(4 * MIB) && held_by(pool) < (int64_t)(6 * MIB));
    /* While it runs nothing is given back. */
    OK(ascend_alloc_release(outside));
    int64_t reserved = stats_of(0).reserved_bytes.all.current;
    ascend_alloc_empty_cache(-1);
    CHECK(stats_of(0).reserved_bytes.all.current == reserved && accepted.released == 0);
    OK(ascend_alloc_pool_end(pool));
    CHECK(accepted.released == 1);
    /* The graph's addresses stay, all else goes. */
    OK(ascend_alloc_release(inside));
    OK(ascend_alloc_empty_cache(-1));
    int64_t kept = stats_of(0).reserved_bytes.all.current;
    CHECK(kept >= (int64_t)(4 * MIB) && kept < reserved);
    OK(ascend_alloc_graph_release(pool));
    OK(ascend_alloc_pool_release(pool));
    OK(ascend_alloc_empty_cache(-1));
    CHECK(stats_of(0).reserved_bytes.all.current == 0);
}

/* ---- The end of a process ----------------------------------------------------------------------------------- */

static void finish(void) {
    /* Nothing was set up: nothing to do. */
    OK(ascend_alloc_finish());
    set_up();
    aclrtStream side = new_stream();
    void *first = ascend_alloc_malloc(3 * MIB, 0, NULL), *second = ascend_alloc_malloc(5 * MIB, 0, side);
    ascend_alloc_free(ascend_alloc_malloc(40 * MIB, 0, NULL), 0, 0, NULL);
    OK(ascend_alloc_record_stream(first, side));
    OK(ascend_alloc_finish());
    /* What was free has gone at once; live blocks stay as they were. */
    int64_t left = stats_of(0).reserved_bytes.all.current;
    CHECK(left >= (int64_t)(8 * MIB) && left < (int64_t)(40 * MIB));
    ACL(aclrtMemset(second, 5 * MIB, 3, 5 * MIB));
    /* Requests are still served, and the last block to be given back takes all memory with it, every time. */
    void *third = ascend_alloc_malloc(MIB, 0, NULL);
    CHECK(third != NULL);
    OK(ascend_alloc_release(first));
    ascend_alloc_free(second, 5 * MIB, 0, side);
    CHECK(stats_of(0).reserved_bytes.all.current > 0);
    ascend_alloc_free(third, MIB, 0, NULL);
    CHECK(stats_of(0).reserved_bytes.all.current == 0);
    ascend_alloc_free(ascend_alloc_malloc(MIB, 0, NULL), 0, 0, NULL);
    CHECK(stats_of(0).reserved_bytes.all.current == 0);
    CHECK(called("aclrtMallocPhysical") == called("aclrtFreePhysical"));
    CHECK(called("aclrtReserveMemAddress") == called("aclrtReleaseMemAddress"));
    /* The framework's own reset is the last: the device is gone with it. */
    ACL(aclrtDestroyStream(side));
    ACL(aclrtResetDevice(0));
    int device = 0;
    CHECK(aclrtGetDevice(&device) != 0);
    static char text[1 << 12];
    CHECK(acl_sim_leaks_json(text, sizeof text) == 2 && strcmp(text, "[]") == 0);
}

/* ---- More importers for an export --------------------------------------------------------------------------- */

static void allow(void) {
    set_up();
    int32_t here = 0, others[] = {4711, 4712};
    OK(ascend_alloc_process_id(0, &here));
    ascend_alloc_export_options_t options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.only_processes = 1;
    void *block = ascend_alloc_malloc(4 * MIB, 0, NULL);
    uint64_t number = 0;
    OK(ascend_alloc_export(block, &options, &number));
    long told = called("aclrtMemSetPidToShareableHandle");
    OK(ascend_alloc_export_allow(number, &here, 1));
    CHECK(called("aclrtMemSetPidToShareableHandle") > told);
    OK(ascend_alloc_export_allow(number, others, 2));
    OK(ascend_alloc_export_allow(number, NULL, 0));
    REFUSED(ascend_alloc_export_allow(number, NULL, 1));
    REFUSED(ascend_alloc_export_allow(number + 1, others, 2));
    OK(ascend_alloc_export_release(number));
    REFUSED(ascend_alloc_export_allow(number, others, 2));
    OK(ascend_alloc_release(block));
}

int main(int words, char **word) {
    static const struct scenario scenarios[] = {
        {"submit", submit}, {"snapshot", snapshot}, {"capture_with", capture_with},
        {"finish", finish}, {"allow", allow},
    };
    return run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], words, word);
}
