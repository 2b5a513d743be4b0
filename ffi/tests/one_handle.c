/*
 * Blocks that are one physical handle, on the simulator: one_handle SCENARIO. Valid C99 and C++11.
 */
#include "check.h"

static ascend_alloc_request_t request_of(size_t size) {
    ascend_alloc_request_t request;
    memset(&request, 0, sizeof request);
    request.struct_size = sizeof request;
    request.size = size;
    request.flags = ASCEND_ALLOC_FLAG_ONE_HANDLE;
    return request;
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
    CHECK(ascend_alloc_allocate(request, &block) == ASCEND_ALLOC_STATUS_DRIVER && said("aclrtMapMem"));
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

static void blocks(void) {
    set_up();
    ascend_alloc_request_t request = request_of(23 * MIB);
    void *block = NULL;
    /* Three calls, and the block is the whole of what they made. */
    long before = called("aclrtMallocPhysical");
    OK(ascend_alloc_allocate(&request, &block));
    CHECK(called("aclrtMallocPhysical") == before + 1);
    ascend_alloc_block_info_t info;
    info.struct_size = sizeof info;
    OK(ascend_alloc_block_info(block, &info));
    CHECK(ascend_alloc_pool_release(info.pool) == ASCEND_ALLOC_STATUS_STATE);
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
    request.alignment = 0;
    try_again_what_was_refused(&request);
}

/* What the driver says of a refusal is kept, and memory that is short is told from it. */
static void refused(void) {
    static const char *const calls[] = {"aclrtReserveMemAddress", "aclrtMallocPhysical", "aclrtMapMem"};
    set_up();
    ascend_alloc_request_t request = request_of(23 * MIB);
    void *block = NULL, *idle = ascend_alloc_malloc(8 * MIB, 0, NULL);
    OK(ascend_alloc_release(idle));
    OK(ascend_alloc_allocate(&request, &block));
    for (int at = 0; at < 3; at++) {
        void *another = block;
        int64_t held = stats_of(0).reserved_bytes.all.current;
        acl_sim_fail(calls[at], 1, 507899, 1);
        CHECK(ascend_alloc_allocate(&request, &another) == ASCEND_ALLOC_STATUS_DRIVER);
        CHECK(said(calls[at]) && said("507899") && another == NULL);
        acl_sim_clear_failures();
        CHECK(stats_of(0).reserved_bytes.all.current == held && stats_of(0).num_ooms == 0);
        OK(ascend_alloc_allocate(&request, &another));
        OK(ascend_alloc_release(another));
        OK(ascend_alloc_trim(0, 32 * MIB, NULL));
    }
    OK(acl_sim_set_capacity(0, 64 * MIB));
    request.size = 100 * MIB;
    CHECK(ascend_alloc_allocate(&request, &idle) == ASCEND_ALLOC_STATUS_OUT_OF_MEMORY);
    CHECK(said("the device has 64 MiB in all") && !said("source"));
    OK(ascend_alloc_release(block));
}

static int peer_reaches(aclrtStream stream, void *block) {
    static char text[1 << 16];
    acl_sim_range range;
    range.start = block;
    range.bytes = 5 * MIB;
    range.write = 1;
    ACL(aclrtSetDevice(1));
    ACL(acl_sim_kernel(stream, "of a peer", &range, 1, 0));
    ACL(aclrtSynchronizeStream(stream));
    ACL(aclrtSetDevice(0));
    acl_sim_findings_json(text, sizeof text);
    return strcmp(text, "[]") == 0;
}

/* Peers reach them: those that were there, new ones, and what the driver did not take back. */
static void peers(void) {
    set_up();
    ACL(aclrtSetDevice(1));
    aclrtStream stream = new_stream();
    ACL(aclrtSetDevice(0));
    ascend_alloc_request_t request = request_of(5 * MIB);
    void *before = NULL, *after = NULL, *idle = NULL;
    int32_t peer = 1;
    OK(ascend_alloc_allocate(&request, &before));
    OK(ascend_alloc_allocate(&request, &idle));
    /* After a refusal the peers are those from before. */
    acl_sim_fail("aclrtMemSetAccess", 2, 507899, 0);
    CHECK(ascend_alloc_set_peers(0, &peer, 1) == ASCEND_ALLOC_STATUS_DRIVER && said("aclrtMemSetAccess"));
    acl_sim_clear_failures();
    long granted = called("aclrtMemSetAccess");
    OK(ascend_alloc_allocate(&request, &after));
    CHECK(called("aclrtMemSetAccess") == granted + 1);
    OK(ascend_alloc_release(after));

    OK(ascend_alloc_set_peers(0, &peer, 1));
    OK(ascend_alloc_empty_cache(-1));
    CHECK(peer_reaches(stream, before) && peer_reaches(stream, idle));
    OK(ascend_alloc_allocate(&request, &after));
    CHECK(peer_reaches(stream, after));
    /* A grant that is refused leaves nothing behind. */
    int64_t held = stats_of(0).reserved_bytes.all.current;
    void *none = NULL;
    acl_sim_fail("aclrtMemSetAccess", 2, 507899, 0);
    CHECK(ascend_alloc_allocate(&request, &none) == ASCEND_ALLOC_STATUS_DRIVER && none == NULL);
    CHECK(stats_of(0).reserved_bytes.all.current == held);
    CHECK(called("aclrtMapMem") == called("aclrtUnmapMem") + 3);
    CHECK(called("aclrtMallocPhysical") == called("aclrtFreePhysical") + 3);
    acl_sim_clear_failures();
    /* What is unmapped and could not be freed is mapped anew. */
    OK(ascend_alloc_release(idle));
    acl_sim_fail("aclrtFreePhysical", 1, 507899, 0);
    CHECK(ascend_alloc_empty_cache(-1) == ASCEND_ALLOC_STATUS_DRIVER);
    OK(ascend_alloc_allocate(&request, &none));
    CHECK(none == idle && peer_reaches(stream, none));
    /* What went with a reset is granted to nobody. */
    while (aclrtResetDevice(0) == 0) {
    }
    ACL(aclrtSetDevice(0));
    OK(ascend_alloc_set_peers(0, &peer, 1));
    OK(ascend_alloc_allocate(&request, &none));
    CHECK(peer_reaches(stream, none));
}

int main(int words, char **word) {
    static const struct scenario scenarios[] = {{"blocks", blocks}, {"refused", refused}, {"peers", peers}};
    return run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], words, word);
}
