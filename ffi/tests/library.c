/*
 * What the C library can do, on the simulator: library SCENARIO. Valid C99 and C++11.
 */
#include "check.h"

#include <limits.h>

static void basics(void) {
    set_up();
    aclrtStream side = new_stream();
    void *block = ascend_alloc_malloc(3 * MIB, 0, NULL);
    CHECK(block != NULL && allocated(0) >= (int64_t)(3 * MIB));

    void *base = NULL;
    size_t size = 0;
    OK(ascend_alloc_base(block, &base, &size));
    CHECK((char *)base <= (char *)block && (char *)block + 3 * MIB <= (char *)base + size);
    OK(ascend_alloc_base(block, NULL, NULL));
    ascend_alloc_block_info_t info;
    info.struct_size = sizeof info;
    OK(ascend_alloc_block_info(block, &info));
    CHECK(info.ptr == block && info.requested == 3 * MIB && info.size >= 3 * MIB && info.device == 0);
    CHECK(info.segment == base && info.segment_size == size && info.stream == NULL);

    OK(ascend_alloc_record_stream(block, side));
    OK(ascend_alloc_erase_stream(block, side));
    OK(ascend_alloc_erase_stream(block, side));
    /* Nothing waits for the side stream any more, so the block serves again at once. */
    ascend_alloc_free(block, 3 * MIB, 0, NULL);
    CHECK(stats_of(0).active_bytes.all.current == 0);
    CHECK(ascend_alloc_malloc(3 * MIB, 0, NULL) == block);
    OK(ascend_alloc_release(block));

    OK(ascend_alloc_reset_peak_stats(0));
    CHECK(stats_of(0).allocated_bytes.all.peak == 0);
    OK(ascend_alloc_reset_accumulated_stats(0));
    CHECK(stats_of(0).allocated_bytes.all.allocated == 0);
    size_t freed = 1;
    OK(ascend_alloc_trim(0, SIZE_MAX, &freed));
    CHECK(freed == 0 && stats_of(0).reserved_bytes.all.current > 0);
    void *claimed = NULL;
    size_t bytes = 0;
    block = ascend_alloc_malloc(64 * MIB, 0, NULL);
    OK(ascend_alloc_claim(0, block, 64 * MIB, &claimed, &bytes));
    CHECK(claimed == NULL && bytes == 0);
    OK(ascend_alloc_release(block));
    OK(ascend_alloc_claim(0, (char *)block + 9 * MIB, 4096, &claimed, &bytes));
    CHECK(claimed != NULL && bytes >= 2 * MIB);
    CHECK(stats_of(0).allocated_bytes.all.current == (int64_t)bytes);
    OK(ascend_alloc_release(claimed));
    OK(ascend_alloc_empty_cache(0));
    OK(ascend_alloc_empty_cache(-1));
    CHECK(stats_of(0).reserved_bytes.all.current == 0);
    size_t left = 0, total = 0, limit = 1;
    ACL(aclrtGetMemInfo(ACL_HBM_MEM, &left, &total));
    OK(ascend_alloc_memory_limit(0, &limit));
    CHECK(limit == SIZE_MAX);
    OK(ascend_alloc_set_memory_fraction(0.25, 0));
    OK(ascend_alloc_memory_limit(0, &limit));
    CHECK(limit == total / 4);
    OK(ascend_alloc_set_memory_fraction(0.001, 0));
    CHECK(ascend_alloc_malloc(1024 * MIB, 0, NULL) == NULL);
    CHECK(ascend_alloc_last_status() == ASCEND_ALLOC_STATUS_OUT_OF_MEMORY && said("limit"));
    OK(ascend_alloc_set_memory_fraction(1.0, 0));
    OK(ascend_alloc_memory_limit(0, &limit));
    CHECK(limit == SIZE_MAX);
    CHECK(stats_of(0).num_ooms == 1);

    /* Blocks that are not kept. */
    int before = -1;
    OK(ascend_alloc_set_caching(0, 0, &before));
    CHECK(before == 1);
    block = ascend_alloc_malloc(3 * MIB, 0, NULL);
    CHECK(block != NULL && stats_of(0).reserved_bytes.all.current == (int64_t)(4 * MIB));
    ascend_alloc_free(block, 0, 0, NULL);
    CHECK(stats_of(0).reserved_bytes.all.current == 0);
    OK(ascend_alloc_set_caching(0, 1, &before));
    OK(ascend_alloc_set_caching(0, 1, NULL));
    CHECK(before == 0);

    /* A device that nobody has used. */
    CHECK(stats_of(1).reserved_bytes.all.peak == 0);
    /* Growing and shrinking in place. */
    block = ascend_alloc_malloc(8 * MIB, 0, NULL);
    OK(ascend_alloc_shrink_in_place(block, 4 * MIB));
    int grown = -1;
    OK(ascend_alloc_grow_in_place(block, 8 * MIB, &grown));
    CHECK(grown == 1);
    OK(ascend_alloc_release(block));
}

/* All but 100 MiB of the device is out of bounds. */
static void limits_count_one_handle_blocks(const ascend_alloc_request_t *request) {
    size_t left = 0, total = 0;
    ACL(aclrtGetMemInfo(ACL_HBM_MEM, &left, &total));
    OK(ascend_alloc_set_memory_fraction((double)(100 * MIB) / (double)total, 0));
    void *blocks[4] = {NULL}, *block = NULL;
    for (int i = 0; i < 4; i++) {
        OK(ascend_alloc_allocate(request, &blocks[i]));
    }
    CHECK(ascend_alloc_allocate(request, &block) == ASCEND_ALLOC_STATUS_OUT_OF_MEMORY && said("limit"));
    CHECK(block == NULL && ascend_alloc_malloc(10 * MIB, 0, NULL) == NULL && said("limit"));
    /* What is idle of either kind makes room for the other. */
    OK(ascend_alloc_release(blocks[0]));
    block = ascend_alloc_malloc(10 * MIB, 0, NULL);
    CHECK(block != NULL && stats_of(0).reserved_bytes.all.current <= (int64_t)(100 * MIB));
    OK(ascend_alloc_release(block));
    OK(ascend_alloc_allocate(request, &blocks[0]));
    CHECK(stats_of(0).reserved_bytes.all.current <= (int64_t)(100 * MIB));
    for (int i = 0; i < 4; i++) {
        OK(ascend_alloc_release(blocks[i]));
    }
    OK(ascend_alloc_empty_cache(-1));
    CHECK(stats_of(0).reserved_bytes.all.current == 0);
    OK(ascend_alloc_set_memory_fraction(1.0, 0));
}

/* A block of one handle that the driver does not take back stays, and is counted, until it does. */
static void give_back_what_was_refused(void) {
    static const char *const calls[] = {"aclrtUnmapMem", "aclrtFreePhysical"};
    for (int at = 0; at < 2; at++) {
        int64_t before = stats_of(0).reserved_bytes.all.current;
        CHECK(before >= (int64_t)(24 * MIB));
        /* The block is the last that is given back: other memory goes first. */
        OK(ascend_alloc_trim(0, 24 * MIB, NULL));
        CHECK(stats_of(0).reserved_bytes.all.current == (int64_t)(24 * MIB));
        acl_sim_fail(calls[at], 1, 507899, 0);
        CHECK(ascend_alloc_empty_cache(-1) == ASCEND_ALLOC_STATUS_DRIVER);
        CHECK(strstr(ascend_alloc_last_error(), calls[at]) != NULL);
        CHECK(stats_of(0).reserved_bytes.all.current == (int64_t)(24 * MIB));
    }
    OK(ascend_alloc_empty_cache(-1));
    CHECK(stats_of(0).reserved_bytes.all.current == 0);
    CHECK(called("aclrtMapMem") == called("aclrtUnmapMem") - 1);
    CHECK(called("aclrtMallocPhysical") == called("aclrtFreePhysical") - 1);
    CHECK(called("aclrtReserveMemAddress") == called("aclrtReleaseMemAddress"));
}

/* Whether the process has something of that kind of the driver. */
static int is_left(const char *kind) {
    static char text[1 << 16];
    CHECK(acl_sim_leaks_json(text, sizeof text) < (int)sizeof text);
    return strstr(text, kind) != NULL;
}

/* Ranges and handles that the driver does not take back are tried again later. */
static void try_again_what_was_refused(const ascend_alloc_request_t *request) {
    void *block = NULL;
    OK(ascend_alloc_empty_cache(-1));
    CHECK(!is_left("chunk") && !is_left("reservation"));
    /* On the way back, at the first release; and the reservation of a request that got no memory. */
    OK(ascend_alloc_allocate(request, &block));
    OK(ascend_alloc_release(block));
    acl_sim_fail("aclrtReleaseMemAddress", 1, 507899, 1);
    CHECK(ascend_alloc_empty_cache(-1) == ASCEND_ALLOC_STATUS_DRIVER && said("aclrtReleaseMemAddress"));
    acl_sim_fail("aclrtMallocPhysical", 1, 207001, 1);
    CHECK(ascend_alloc_allocate(request, &block) == ASCEND_ALLOC_STATUS_OUT_OF_MEMORY);
    acl_sim_clear_failures();
    CHECK(stats_of(0).reserved_bytes.all.current == 0 && is_left("reservation"));
    OK(ascend_alloc_empty_cache(-1));
    CHECK(!is_left("reservation"));
    /* The handle of a request that could not be mapped. */
    acl_sim_fail("aclrtMapMem", 1, 507899, 1);
    acl_sim_fail("aclrtFreePhysical", 1, 507899, 1);
    CHECK(ascend_alloc_allocate(request, &block) != ASCEND_ALLOC_STATUS_OK);
    acl_sim_clear_failures();
    CHECK(is_left("chunk") && is_left("reservation"));
    OK(ascend_alloc_allocate(request, &block));
    OK(ascend_alloc_release(block));
    OK(ascend_alloc_empty_cache(-1));
    CHECK(!is_left("chunk") && !is_left("reservation"));
    /* What went with a reset is not given back: another's range may be there by now. */
    OK(ascend_alloc_allocate(request, &block));
    OK(ascend_alloc_release(block));
    acl_sim_fail("aclrtReleaseMemAddress", 1, 507899, 1);
    CHECK(ascend_alloc_empty_cache(-1) == ASCEND_ALLOC_STATUS_DRIVER);
    acl_sim_clear_failures();
    OK(ascend_alloc_device_was_reset(0));
    long before = called("aclrtReleaseMemAddress");
    OK(ascend_alloc_empty_cache(-1));
    CHECK(called("aclrtReleaseMemAddress") == before);
}

static void requests(void) {
    set_up();
    ascend_alloc_request_t request;
    memset(&request, 0, sizeof request);
    request.struct_size = sizeof request;
    request.size = 5 * MIB;
    request.alignment = 4 * MIB;
    void *block = NULL;
    OK(ascend_alloc_allocate(&request, &block));
    CHECK(block != NULL && (uintptr_t)block % (4 * MIB) == 0);
    ascend_alloc_free(block, 0, 0, NULL);

    /* One handle: three calls, and the block is the whole of what they made. */
    long before = called("aclrtMallocPhysical");
    request.alignment = 0;
    request.size = 23 * MIB;
    request.flags = ASCEND_ALLOC_FLAG_ONE_HANDLE;
    OK(ascend_alloc_allocate(&request, &block));
    CHECK(called("aclrtMallocPhysical") == before + 1);
    ascend_alloc_block_info_t info;
    info.struct_size = sizeof info;
    OK(ascend_alloc_block_info(block, &info));
    CHECK(info.segment == block && info.segment_size == info.size && info.size == 24 * MIB);
    bytes_to(block, 7, 23 * MIB);
    CHECK(byte_of((char *)block + 23 * MIB - 1) == 7);
    int64_t reserved = stats_of(0).reserved_bytes.all.current;
    CHECK(reserved >= (int64_t)(24 * MIB));
    /* It serves the next such request, and nothing else. */
    void *first = block;
    OK(ascend_alloc_release(block));
    void *other = ascend_alloc_malloc(23 * MIB, 0, NULL);
    CHECK(other != NULL && other != first);
    OK(ascend_alloc_allocate(&request, &block));
    CHECK(block == first);
    OK(ascend_alloc_release(block));
    OK(ascend_alloc_release(other));
    /* Sleeping everything leaves such pools out. */
    OK(ascend_alloc_sleep(-1, NULL, 0, ASCEND_ALLOC_SLEEP_MODE_DISCARD, NULL));
    give_back_what_was_refused();
    limits_count_one_handle_blocks(&request);

    request.alignment = 4096;
    REFUSED(ascend_alloc_allocate(&request, &block));
    CHECK(block == NULL);
    request.flags = 2;
    REFUSED(ascend_alloc_allocate(&request, &block));

    request.alignment = 0;
    request.flags = ASCEND_ALLOC_FLAG_ONE_HANDLE;
    try_again_what_was_refused(&request);
}

static void buffers(void) {
    set_up();
    ascend_alloc_buffer_options_t options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.max_size = 256 * MIB;
    options.size = MIB;
    uint64_t buffer = 0;
    OK(ascend_alloc_buffer_create(0, NULL, &options, &buffer));
    ascend_alloc_buffer_info_t info;
    info.struct_size = sizeof info;
    OK(ascend_alloc_buffer_info(buffer, &info));
    void *ptr = info.ptr;
    CHECK(ptr != NULL && info.size == MIB && info.max_size >= 256 * MIB && info.mapped == 2 * MIB);
    bytes_to(ptr, 5, MIB);
    OK(ascend_alloc_buffer_resize(buffer, 64 * MIB));
    OK(ascend_alloc_buffer_info(buffer, &info));
    CHECK(info.ptr == ptr && info.size == 64 * MIB && byte_of(ptr) == 5);
    OK(ascend_alloc_buffer_record_stream(buffer, new_stream()));
    REFUSED(ascend_alloc_buffer_resize(buffer, SIZE_MAX));
    CHECK(ascend_alloc_release(ptr) == ASCEND_ALLOC_STATUS_STATE);
    OK(ascend_alloc_buffer_destroy(buffer));
    REFUSED(ascend_alloc_buffer_destroy(buffer));
    REFUSED(ascend_alloc_buffer_resize(buffer, 1));
    CHECK(allocated(0) == 0);
}

static int seen[8];
static void on_event(const ascend_alloc_event_t *event, void *user) {
    CHECK(event->struct_size == sizeof *event && user == seen);
    if (event->action >= 0 && event->action < 8) {
        seen[event->action]++;
    }
}

static void host_memory(void) {
    unsigned char *block = (unsigned char *)ascend_alloc_host_malloc(3 * MIB, 0);
    CHECK(block != NULL && (uintptr_t)block % 64 == 0);
    memset(block, 0x5a, 3 * MIB);
    OK(ascend_alloc_host_record_stream(block, 0, NULL));
    ascend_alloc_host_stats_t stats;
    memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    OK(ascend_alloc_host_get_stats(0, &stats));
    CHECK(stats.active_requests.current == 1 && stats.active_bytes.current == (int64_t)(3 * MIB));
    CHECK(stats.num_host_alloc == 1 && stats.allocated_bytes.current >= (int64_t)(3 * MIB));
    CHECK(ascend_alloc_host_free(block + 512) != ASCEND_ALLOC_STATUS_OK);
    OK(ascend_alloc_host_free(block));
    CHECK(ascend_alloc_host_free(block) != ASCEND_ALLOC_STATUS_OK);
    OK(ascend_alloc_host_free(NULL));
    CHECK(ascend_alloc_host_malloc(0, 0) == NULL);
    CHECK(ascend_alloc_host_malloc((size_t)400 << 30, 0) == NULL);
    CHECK(ascend_alloc_last_status() == ASCEND_ALLOC_STATUS_ARGUMENT);
    CHECK(ascend_alloc_host_malloc(1, 77) == NULL);
    OK(ascend_alloc_host_empty_cache());
}

static int64_t host_held(int device) {
    ascend_alloc_host_stats_t stats;
    stats.struct_size = sizeof stats;
    OK(ascend_alloc_host_get_stats(device, &stats));
    return stats.allocated_bytes.current;
}

/* What streams of any device still use goes back only where they are waited for. */
static void host_waiting(void) {
    ACL(acl_sim_set_event_lag(UINT64_MAX));
    void *block = ascend_alloc_host_malloc(3 * MIB, 0), *other = ascend_alloc_host_malloc(MIB, 1);
    void *target = ascend_alloc_malloc(MIB, 0, NULL);
    CHECK(block != NULL && other != NULL && target != NULL);
    aclrtStream stream = new_stream();
    ACL(aclrtMemcpyAsync(target, MIB, block, MIB, ACL_MEMCPY_HOST_TO_DEVICE, stream));
    ACL(aclrtMemcpyAsync(target, MIB, other, MIB, ACL_MEMCPY_HOST_TO_DEVICE, stream));
    OK(ascend_alloc_host_record_stream(block, 0, stream));
    OK(ascend_alloc_host_record_stream(other, 0, stream));
    OK(ascend_alloc_host_free(block));
    OK(ascend_alloc_host_free(other));
    OK(ascend_alloc_host_empty_cache());
    CHECK(host_held(0) >= (int64_t)(3 * MIB) && host_held(1) >= (int64_t)MIB);
    OK(ascend_alloc_host_empty_cache_waiting());
    CHECK(host_held(0) == 0 && host_held(1) == 0);
    OK(ascend_alloc_release(target));
    ACL(acl_sim_set_event_lag(0));
    ACL(aclrtDestroyStream(stream));
    no_findings();
}

static void seeing(void) {
    set_up();
    OK(ascend_alloc_set_event_hook(on_event, seen, NULL));
    void *block = ascend_alloc_malloc(2 * MIB, 0, NULL);
    CHECK(seen[ASCEND_ALLOC_ACTION_ALLOCATE] == 1 && seen[ASCEND_ALLOC_ACTION_MAP] > 0);
    size_t length = 0;
    OK(ascend_alloc_snapshot_json(0, NULL, 0, &length));
    char *text = (char *)malloc(length + 1);
    size_t again = 0;
    OK(ascend_alloc_snapshot_json(0, text, length + 1, &again));
    CHECK(again == length && strlen(text) == length && text[0] == '{' && text[length - 1] == '}');
    char address[64];
    snprintf(address, sizeof address, "\"address\":%llu,\"size\":", (unsigned long long)(uintptr_t)block);
    CHECK(strstr(text, address) != NULL && strstr(text, "\"state\":\"active_allocated\"") != NULL);
    text[9] = 'x';
    OK(ascend_alloc_snapshot_json(0, text, 9, &again));
    CHECK(strlen(text) == 8 && text[9] == 'x' && again == length);
    free(text);
    OK(ascend_alloc_release(block));
    CHECK(seen[ASCEND_ALLOC_ACTION_FREE_COMPLETED] == 1);
    int released = 0;
    OK(ascend_alloc_set_event_hook(on_event, seen, NULL));
    OK(ascend_alloc_set_event_hook(NULL, &released, note_release));
    CHECK(released == 1);
    int before = seen[ASCEND_ALLOC_ACTION_ALLOCATE];
    ascend_alloc_free(ascend_alloc_malloc(MIB, 0, NULL), 0, 0, NULL);
    CHECK(seen[ASCEND_ALLOC_ACTION_ALLOCATE] == before);

    host_memory();
    host_waiting();
}

int main(int words, char **word) {
    static const struct scenario scenarios[] = {
        {"basics", basics},
        {"requests", requests},
        {"buffers", buffers},
        {"seeing", seeing},
    };
    return run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], words, word);
}
