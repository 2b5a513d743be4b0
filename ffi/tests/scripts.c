/*
 * Public bug reports as scripts, where they are about the C interface or the runtime library behind it; names as in the
 * collection of scenarios. On the simulator: scripts SCENARIO. Valid C99 and C++11.
 */
#include "check.h"

#include <pthread.h>
#include <stdint.h>

/* The error that the runtime library keeps for this thread, once. */
static int kept(void) {
    return aclrtGetLastError(ACL_RT_THREAD_LEVEL);
}

static void *without_a_device(void *unused) {
    (void)unused;
    int32_t device = -1;
    void *block = ascend_alloc_malloc(4 * MIB, 0, NULL);
    CHECK(block != NULL && kept() == 0);
    ascend_alloc_free(block, 0, 0, NULL);
    CHECK(kept() == 0);
    CHECK(aclrtGetDevice(&device) == 107002 && kept() == 107002);
    return NULL;
}

/* B46: codes stay what they are, and none stays in the library for a later check of the program's. */
static void codes(void) {
    set_up();
    aclrtStream side = new_stream();
    void *cached = ascend_alloc_malloc(40 * MIB - 512, 0, side);
    ascend_alloc_free(cached, 0, 0, side);
    CHECK(kept() == 0);

    ACL(acl_sim_fail("aclrtMallocPhysical", 1, 507899, 0));
    CHECK(ascend_alloc_malloc(42 * MIB - 512, 0, NULL) == NULL);
    CHECK(ascend_alloc_last_status() == ASCEND_ALLOC_STATUS_DRIVER && said("507899"));
    CHECK(stats_of(0).num_ooms == 0 && stats_of(0).num_alloc_retries == 0);
    CHECK(stats_of(0).reserved_bytes.all.current == (int64_t)(40 * MIB));
    CHECK(kept() == 0);

    ACL(acl_sim_fail("aclrtMallocPhysical", 1, 207001, 0));
    void *block = ascend_alloc_malloc(42 * MIB - 512, 0, NULL);
    CHECK(block != NULL && stats_of(0).num_ooms == 0 && stats_of(0).num_alloc_retries == 1);
    CHECK(kept() == 0);
    ascend_alloc_free(block, 0, 0, NULL);

    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, without_a_device, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

static int is_open(int device) {
    uint32_t flags = 0;
    int32_t active = -1;
    ACL(aclrtGetPrimaryCtxState(device, &flags, &active));
    return active;
}

/* B35: no device is touched but the block's own, and one that cannot be set is an error. */
static void devices(void) {
    set_up_on(1);
    aclrtContext own = NULL, after = NULL;
    ACL(aclrtGetCurrentContext(&own));
    void *block = ascend_alloc_malloc(4 * MIB, 1, NULL);
    CHECK(block != NULL);
    ascend_alloc_free(block, 0, 1, NULL);
    OK(ascend_alloc_empty_cache(-1));
    void *host = ascend_alloc_host_malloc(MIB, 1);
    CHECK(host != NULL);
    OK(ascend_alloc_host_free(host));
    OK(ascend_alloc_host_empty_cache());
    CHECK(stats_of(0).reserved_bytes.all.peak == 0);
    CHECK(!is_open(0) && is_open(1));

    const char *calls[] = {"aclrtMallocPhysical", "aclrtMapMem", "aclrtMallocAlign32", "aclrtReserveMemAddress"};
    long before[4];
    for (int i = 0; i < 4; i++) {
        before[i] = called(calls[i]);
    }
    const int64_t reserved = stats_of(1).reserved_bytes.all.allocated;
    ACL(acl_sim_fail("aclrtSetDevice", 1, 507033, 0));
    CHECK(ascend_alloc_malloc(4 * MIB, 0, NULL) == NULL);
    CHECK(ascend_alloc_last_status() == ASCEND_ALLOC_STATUS_DRIVER && said("507033"));
    for (int i = 0; i < 4; i++) {
        CHECK(called(calls[i]) == before[i]);
    }
    CHECK(stats_of(0).reserved_bytes.all.allocated == 0 && stats_of(1).reserved_bytes.all.allocated == reserved);
    CHECK(!is_open(0));

    /* A block of device 0 that another stream uses is freed while device 1 is current. */
    ACL(aclrtSetDevice(0));
    aclrtStream side = new_stream();
    ACL(aclrtSetDevice(1));
    ACL(aclrtGetCurrentContext(&own));
    block = ascend_alloc_malloc(4 * MIB, 0, NULL);
    CHECK(block != NULL);
    OK(ascend_alloc_record_stream(block, side));
    ascend_alloc_free(block, 0, 0, NULL);
    OK(ascend_alloc_empty_cache(0));
    CHECK(stats_of(0).active_bytes.all.current == 0);
    int32_t device = -1;
    ACL(aclrtGetDevice(&device));
    ACL(aclrtGetCurrentContext(&after));
    CHECK(device == 1 && after == own);
}

/* B14, B22: what the program says of a block it frees is not looked at; sizes have 64 bits and a sign. */
static void sizes(void) {
    set_up();
    aclrtStream side = new_stream();
    void *first = ascend_alloc_malloc(64 * MIB - 512, 0, NULL);
    ascend_alloc_free(first, 64 * MIB - 512, 0, NULL);
    void *second = ascend_alloc_malloc(40 * MIB - 512, 0, NULL);
    CHECK(second == first);
    ascend_alloc_free(second, 1, 0, side);
    CHECK(ascend_alloc_last_status() == ASCEND_ALLOC_STATUS_OK);
    CHECK(allocated(0) == 0 && stats_of(0).active_bytes.all.current == 0);
    CHECK(stats_of(0).reserved_bytes.all.current == (int64_t)(64 * MIB));
    OK(ascend_alloc_empty_cache(0));
    CHECK(stats_of(0).reserved_bytes.all.current == 0);
    CHECK(called("aclrtMapMem") == 32 && called("aclrtUnmapMem") == 32);

    const ascend_alloc_stats_t before = stats_of(0);
    CHECK(ascend_alloc_malloc(-1, 0, NULL) == NULL);
    CHECK(ascend_alloc_last_status() == ASCEND_ALLOC_STATUS_ARGUMENT);
    CHECK(ascend_alloc_malloc(PTRDIFF_MIN, 0, NULL) == NULL);
    CHECK(ascend_alloc_last_status() == ASCEND_ALLOC_STATUS_ARGUMENT);
    const ascend_alloc_stats_t refused = stats_of(0);
    CHECK(memcmp(&before, &refused, sizeof before) == 0);

    const int64_t size = (int64_t)1 << 32;
    void *blocks[2] = {ascend_alloc_malloc(size, 0, NULL), ascend_alloc_malloc(size + 1, 0, NULL)};
    CHECK(blocks[0] != NULL && blocks[1] != NULL);
    const ascend_alloc_stats_t held = stats_of(0);
    CHECK(held.requested_bytes.all.current == 2 * size + 1);
    CHECK(held.allocated_bytes.all.current == 2 * (size + 512));
    CHECK(held.reserved_bytes.all.current >= 2 * size && held.reserved_bytes.all.current <= 2 * size + (int64_t)(4 * MIB));
    CHECK(held.allocated_bytes.all.allocated - before.allocated_bytes.all.allocated == 2 * (size + 512));
    ACL(aclrtMemset((char *)blocks[1] + size, 1, 7, 1));
    ascend_alloc_free(blocks[0], (size_t)-1, 0, NULL);
    CHECK(ascend_alloc_last_status() == ASCEND_ALLOC_STATUS_OK);
    OK(ascend_alloc_release(blocks[1]));
    CHECK(allocated(0) == 0);
}

/* B47: a text given in code goes before the variables; those that change later change nothing. */
static void settings(void) {
    CHECK(setenv("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True", 1) == 0);
    ACL(aclInit(NULL));
    ACL(aclrtSetDevice(0));
    OK(ascend_alloc_init("expandable_segments:False"));
    OK(ascend_alloc_release(ascend_alloc_malloc(30 * MIB, 0, NULL)));
    CHECK(called("aclrtMallocAlign32") == 1 && called("aclrtMapMem") == 0);
    CHECK(setenv("ASCEND_ALLOC_CONF", "this is not a configuration", 1) == 0);
    OK(ascend_alloc_release(ascend_alloc_malloc(50 * MIB, 0, NULL)));
    CHECK(called("aclrtMallocAlign32") == 2 && called("aclrtMapMem") == 0);
    CHECK(ascend_alloc_init("expandable_segments:True") == ASCEND_ALLOC_STATUS_STATE);
    OK(ascend_alloc_release(ascend_alloc_malloc(70 * MIB, 0, NULL)));
    CHECK(called("aclrtMallocAlign32") == 3 && called("aclrtMapMem") == 0);
}

int main(int count, char **words) {
    static const struct scenario scenarios[] = {
        {"codes", codes},
        {"devices", devices},
        {"sizes", sizes},
        {"settings", settings},
    };
    return run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], count, words);
}
