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

    request.flags = 2;
    request.alignment = 0;
    REFUSED(ascend_alloc_allocate(&request, &block));
    CHECK(block == NULL);
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
