/*
 * Arguments that no caller should pass, on the simulator: hostile SCENARIO. Valid C99 and C++11.
 */
#include "check.h"

#include <limits.h>
#include <math.h>

/* Addresses that are nobody's block; the last two are odd. */
static void *strangers[5];

/* Before anything is set up nothing crashes either, and nothing is set up by it. */
static void early(void) {
    ascend_alloc_stats_t stats = stats_of(0);
    CHECK(stats.reserved_bytes.all.peak == 0);
    CHECK(ascend_alloc_release(&stats) == ASCEND_ALLOC_STATUS_STATE);
    CHECK(ascend_alloc_record_stream(&stats, NULL) == ASCEND_ALLOC_STATUS_STATE);
    CHECK(ascend_alloc_base(&stats, NULL, NULL) == ASCEND_ALLOC_STATUS_STATE);
    CHECK(ascend_alloc_pool_release((uint64_t)1 << 40) == ASCEND_ALLOC_STATUS_STATE);
    CHECK(ascend_alloc_sleep(-1, NULL, 0, 0, NULL) == ASCEND_ALLOC_STATUS_STATE);
    OK(ascend_alloc_empty_cache(-1));
    OK(ascend_alloc_trim(0, 0, NULL));
    OK(ascend_alloc_host_empty_cache());
    OK(ascend_alloc_host_empty_cache_waiting());
    OK(ascend_alloc_reset_peak_stats(0));
    OK(ascend_alloc_stream_destroyed(0, &stats));
    OK(ascend_alloc_release(NULL));
    OK(ascend_alloc_pause(NULL, -1));
    size_t length = 0;
    OK(ascend_alloc_snapshot_json(0, NULL, 0, &length));
    CHECK(length > 0);
    OK(ascend_alloc_init(NULL));
}

static void blocks(void) {
    set_up();
    char *block = (char *)ascend_alloc_malloc(4 * MIB, 0, NULL);
    strangers[0] = &strangers;
    strangers[1] = block + 512;
    strangers[2] = (void *)(uintptr_t)-512;
    strangers[3] = block + 1;
    strangers[4] = (void *)(uintptr_t)3;
    int64_t before = allocated(0);
    for (size_t i = 0; i < 5; i++) {
        void *wrong = strangers[i];
        REFUSED(ascend_alloc_release(wrong));
        REFUSED(ascend_alloc_record_stream(wrong, NULL));
        REFUSED(ascend_alloc_erase_stream(wrong, NULL));
        REFUSED(ascend_alloc_base(wrong, NULL, NULL));
        REFUSED(ascend_alloc_grow_in_place(wrong, 8 * MIB, NULL));
        REFUSED(ascend_alloc_shrink_in_place(wrong, 1));
        uint64_t number = 0;
        REFUSED(ascend_alloc_export(wrong, NULL, &number));
    }
    void *claimed = &before;
    REFUSED(ascend_alloc_claim(0, NULL, 512, NULL, NULL));
    REFUSED(ascend_alloc_claim(-1, NULL, 512, &claimed, NULL));
    OK(ascend_alloc_claim(0, (void *)1, 512, &claimed, NULL));
    CHECK(claimed == NULL);
    size_t limit = 7;
    REFUSED(ascend_alloc_memory_limit(0, NULL));
    REFUSED(ascend_alloc_memory_limit(-1, &limit));
    CHECK(limit == 7);
    REFUSED(ascend_alloc_set_memory_fraction(0.0, 0));
    REFUSED(ascend_alloc_set_memory_fraction(-1.0, 0));
    REFUSED(ascend_alloc_set_memory_fraction(NAN, 0));
    REFUSED(ascend_alloc_set_caching(-1, 0, NULL));
    REFUSED(ascend_alloc_set_caching(0, 0, (int *)1));
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 511, SIZE_MAX / 2, SIZE_MAX / 2 + 1, (size_t)1 << 62};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        CHECK(ascend_alloc_malloc(sizes[i], 0, NULL) == NULL && ascend_alloc_last_error() != NULL);
        CHECK(ascend_alloc_tagged_malloc(sizes[i], 0, NULL) == NULL && ascend_alloc_last_error() != NULL);
        CHECK(ascend_alloc_shrink_in_place(block, sizes[i]) != 0);
    }
    CHECK(allocated(0) == before);
    OK(ascend_alloc_release(block));
}

static void told(const ascend_alloc_segment_entry_t *segment, const ascend_alloc_block_entry_t *block, void *user) {
    (void)segment, (void)block, (void)user;
    CHECK(!"a device that is not there has memory");
}

#define UNKNOWN(call)     \
    do {                  \
        REFUSED(call);    \
        CHECK(said("device")); \
    } while (0)
#define NONE(call)                                                                     \
    do {                                                                               \
        CHECK((call) == 0);                                                            \
        CHECK(ascend_alloc_last_status() == ASCEND_ALLOC_STATUS_ARGUMENT && said("device")); \
    } while (0)

/* Every function that takes the number of a device refuses one that is not there. */
static void devices(void) {
    set_up();
    static unsigned char message[1 << 16];
    size_t length = 0, bytes = 7;
    uint64_t number = 0, export_ = 0;
    int32_t id = 0, zero = 0;
    void *block = ascend_alloc_malloc(4 * MIB, 0, NULL), *host = ascend_alloc_host_malloc(MIB, 0), *ptr = NULL;
    OK(ascend_alloc_export(block, NULL, &export_));
    OK(ascend_alloc_export_message(export_, message, sizeof message, &length));
    OK(ascend_alloc_history_record_with(10, 1, 0));
    ascend_alloc_buffer_options_t buffer;
    memset(&buffer, 0, sizeof buffer);
    buffer.struct_size = sizeof buffer;
    buffer.max_size = MIB;
    ascend_alloc_request_t request;
    memset(&request, 0, sizeof request);
    request.struct_size = sizeof request;
    request.size = MIB;
    ascend_alloc_stats_t stats = stats_of(0);
    ascend_alloc_host_stats_t host_stats;
    host_stats.struct_size = sizeof host_stats;
    static const int wrong[] = {-2, 99, INT_MAX, INT_MIN};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        int device = wrong[i];
        NONE(ascend_alloc_malloc(MIB, device, NULL));
        NONE(ascend_alloc_tagged_malloc(MIB, device, NULL));
        NONE(ascend_alloc_host_malloc(MIB, device));
        NONE(ascend_alloc_pool_default(device));
        for (unsigned flags = 0; flags < 2; flags++) {
            request.device = device;
            request.flags = flags;
            UNKNOWN(ascend_alloc_allocate(&request, &ptr));
        }
        UNKNOWN(ascend_alloc_stream_destroyed(device, &number));
        UNKNOWN(ascend_alloc_device_was_reset(device));
        UNKNOWN(ascend_alloc_empty_cache(device));
        UNKNOWN(ascend_alloc_claim(device, block, 512, &ptr, NULL));
        UNKNOWN(ascend_alloc_trim(device, 0, NULL));
        UNKNOWN(ascend_alloc_register_acl_allocator(device, &number));
        UNKNOWN(ascend_alloc_unregister_acl_allocator(device, &number));
        UNKNOWN(ascend_alloc_buffer_create(device, NULL, &buffer, &number));
        UNKNOWN(ascend_alloc_history_json(device, NULL, 0, &bytes));
        UNKNOWN(ascend_alloc_host_waited(device, NULL));
        UNKNOWN(ascend_alloc_host_record_stream(host, device, NULL));
        UNKNOWN(ascend_alloc_host_get_stats(device, &host_stats));
        UNKNOWN(ascend_alloc_pool_create(device, NULL, &number));
        UNKNOWN(ascend_alloc_process_id(device, &id));
        UNKNOWN(ascend_alloc_import(message, length, device, NULL, &ptr, NULL, &number));
        UNKNOWN(ascend_alloc_set_peers(device, &zero, 1));
        UNKNOWN(ascend_alloc_set_peers(0, &device, 1));
        CHECK(said("peers"));
        UNKNOWN(ascend_alloc_sleep(device, NULL, 0, 0, NULL));
        UNKNOWN(ascend_alloc_wake(device, NULL, 0, NULL));
        UNKNOWN(ascend_alloc_stats(device, &stats));
        UNKNOWN(ascend_alloc_reset_peak_stats(device));
        UNKNOWN(ascend_alloc_reset_accumulated_stats(device));
        UNKNOWN(ascend_alloc_set_memory_fraction(0.5, device));
        UNKNOWN(ascend_alloc_memory_limit(device, &bytes));
        UNKNOWN(ascend_alloc_set_caching(device, 0, NULL));
        UNKNOWN(ascend_alloc_snapshot_json(device, NULL, 0, &bytes));
        UNKNOWN(ascend_alloc_snapshot_visit(device, told, NULL));
    }
    CHECK(ptr == NULL && number == 0 && id == 0 && bytes == 7);
    OK(ascend_alloc_export_release(export_));
    OK(ascend_alloc_host_free(host));
    /* What a block knows by itself is not asked for. */
    ascend_alloc_free(block, 0, 99, NULL);
    OK(ascend_alloc_last_status());
    CHECK(allocated(0) == 0);
}

/* Each struct: null, an odd address, and sizes it cannot have. */
#define STRUCT(type, call)                                                             \
    do {                                                                               \
        union {                                                                        \
            type value;                                                                \
            char bytes[2 * sizeof(type)];                                              \
        } u;                                                                           \
        memset(&u, 0, sizeof u);                                                       \
        type *it = NULL;                                                               \
        REFUSED(call);                                                                 \
        it = (type *)(void *)(u.bytes + 1);                                            \
        REFUSED(call);                                                                 \
        it = &u.value;                                                                 \
        static const size_t wrong[] = {0, 1, 8, sizeof(type) - 1, sizeof(type) + 1, SIZE_MAX}; \
        for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {                  \
            it->struct_size = wrong[i];                                                \
            REFUSED(call);                                                             \
            CHECK(said("struct_size"));                                                \
        }                                                                              \
    } while (0)

static void structs(void) {
    set_up();
    void *block = ascend_alloc_malloc(MIB, 0, NULL), *out = NULL;
    uint64_t pool = 0, number = 0;
    OK(ascend_alloc_pool_create(0, NULL, &pool));
    STRUCT(ascend_alloc_stats_t, ascend_alloc_stats(0, it));
    STRUCT(ascend_alloc_block_info_t, ascend_alloc_block_info(block, it));
    STRUCT(ascend_alloc_request_t, ascend_alloc_allocate(it, &out));
    STRUCT(ascend_alloc_pool_stats_t, ascend_alloc_pool_stats(pool, it));
    STRUCT(ascend_alloc_buffer_options_t, ascend_alloc_buffer_create(0, NULL, it, &number));
    STRUCT(ascend_alloc_buffer_info_t, ascend_alloc_buffer_info(1, it));
    ascend_alloc_pool_options_t options;
    memset(&options, 0, sizeof options);
    REFUSED(ascend_alloc_pool_create(0, &options, &number));
    ascend_alloc_sleep_report_t report;
    memset(&report, 0, sizeof report);
    REFUSED(ascend_alloc_sleep(-1, NULL, 0, 0, &report));
    options.struct_size = sizeof options;
    options.tag = "\xff\xfe";
    REFUSED(ascend_alloc_pool_create(0, &options, &number));
    CHECK(said("UTF-8"));

    char odd[2 * sizeof(void *)];
    REFUSED(ascend_alloc_pool_create(0, NULL, NULL));
    REFUSED(ascend_alloc_pool_create(0, NULL, (uint64_t *)(void *)(odd + 1)));
    REFUSED(ascend_alloc_base(block, (void **)(void *)(odd + 1), NULL));
    REFUSED(ascend_alloc_base(block, NULL, (size_t *)(void *)(odd + 1)));
    REFUSED(ascend_alloc_allocate(NULL, NULL));
    REFUSED(ascend_alloc_checkpoint(pool, NULL));
    REFUSED(ascend_alloc_is_asleep(pool, NULL));
    REFUSED(ascend_alloc_snapshot_json(0, NULL, 9, NULL));
    REFUSED(ascend_alloc_get_tag(NULL, 9, NULL));
    REFUSED(ascend_alloc_set_tag("\xff"));
    REFUSED(ascend_alloc_pause("\xff", 0));
    REFUSED(ascend_alloc_resume("never used"));
    REFUSED(ascend_alloc_sleep(-1, NULL, 3, 0, NULL));
    REFUSED(ascend_alloc_sleep(-1, (const char *const *)(void *)odd, SIZE_MAX, 0, NULL));
    REFUSED(ascend_alloc_set_peers(0, NULL, 3));

    static const uint64_t numbers[] = {0, 1, 77, UINT64_MAX, (uint64_t)1 << 63, ((uint64_t)1 << 40) + 99};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        uint64_t wrong = numbers[i];
        REFUSED(ascend_alloc_pool_release(wrong));
        CHECK(ascend_alloc_pool_end(wrong) != 0 && ascend_alloc_graph_release(wrong) != 0);
        REFUSED(ascend_alloc_pool_begin(wrong, 0, NULL));
        REFUSED(ascend_alloc_capture_begin(wrong, 0, NULL));
        REFUSED(ascend_alloc_checkpoint(wrong, &number));
        REFUSED(ascend_alloc_pool_empty_cache(wrong, NULL));
        CHECK(ascend_alloc_pool_malloc(wrong, MIB, NULL) == NULL);
        REFUSED(ascend_alloc_checkpoint_restore(wrong, NULL, 0, NULL, NULL, 0, NULL));
        REFUSED(ascend_alloc_checkpoint_release(wrong));
        REFUSED(ascend_alloc_buffer_resize(wrong, 1));
        REFUSED(ascend_alloc_buffer_destroy(wrong));
        REFUSED(ascend_alloc_export_release(wrong));
        REFUSED(ascend_alloc_export_message(wrong, NULL, 0, NULL));
        REFUSED(ascend_alloc_import_release(wrong));
        REFUSED(ascend_alloc_remove_memory_callback(wrong));
    }
    REFUSED(ascend_alloc_pool_begin(pool, 9, NULL));
    REFUSED(ascend_alloc_pool_begin(pool, -1, NULL));
    OK(ascend_alloc_pool_release(pool));
    OK(ascend_alloc_release(block));
}

/* A message goes through; the same process cannot import it, garbage nobody. */
static void sharing(void) {
    set_up();
    void *block = ascend_alloc_malloc(4 * MIB, 0, NULL), *ptr = NULL;
    uint64_t number = 0, import = 0;
    OK(ascend_alloc_export(block, NULL, &number));
    size_t length = 0;
    OK(ascend_alloc_export_message(number, NULL, 0, &length));
    CHECK(length > 0 && length < 1 << 16);
    static unsigned char message[1 << 16];
    OK(ascend_alloc_export_message(number, message, sizeof message, &length));
    CHECK(ascend_alloc_import(message, length, 0, NULL, &ptr, NULL, &import) == ASCEND_ALLOC_STATUS_STATE);
    REFUSED(ascend_alloc_import(NULL, length, 0, NULL, &ptr, NULL, &import));
    REFUSED(ascend_alloc_import(message, SIZE_MAX, 0, NULL, &ptr, NULL, &import));
    for (size_t i = 0; i < length; i++) {
        REFUSED(ascend_alloc_import(message, i, 0, NULL, &ptr, NULL, &import));
        message[i] ^= 0x55;
        REFUSED(ascend_alloc_import(message, length, 0, NULL, &ptr, NULL, &import));
        message[i] ^= 0x55;
    }
    OK(ascend_alloc_release(block));
    CHECK(stats_of(0).active_bytes.all.current > 0);
    OK(ascend_alloc_export_release(number));
    OK(ascend_alloc_empty_cache(-1));
    CHECK(stats_of(0).reserved_bytes.all.current == 0);
    int32_t id = 0, peer = 1;
    OK(ascend_alloc_process_id(0, &id));
    CHECK(id != 0);
    OK(ascend_alloc_set_peers(0, &peer, 1));
    block = ascend_alloc_malloc(4 * MIB, 0, NULL);
    CHECK(called("aclrtMemSetAccess") > 0);
    OK(ascend_alloc_release(block));
}

static void *spare;
static int give_spare(int device, size_t size, void *user) {
    CHECK(device == 0 && size > 0 && user == &spare);
    void *block = spare;
    spare = NULL;
    OK(ascend_alloc_release(block));
    return block != NULL;
}

static void short_of_memory(void) {
    set_up();
    uint64_t number = 0;
    OK(ascend_alloc_add_memory_callback(give_spare, &spare, NULL, &number));
    OK(ascend_alloc_set_memory_fraction(0.01, 0));
    /* 655 MiB of the 64 GiB that the simulated device has. */
    void *held[64] = {NULL};
    size_t count = 0;
    spare = ascend_alloc_malloc(4 * MIB, 0, NULL);
    CHECK(spare != NULL);
    while (count < 64 && (held[count] = ascend_alloc_malloc(20 * MIB, 0, NULL)) != NULL) {
        count++;
    }
    CHECK(count < 64 && spare == NULL);
    CHECK(ascend_alloc_last_status() == ASCEND_ALLOC_STATUS_OUT_OF_MEMORY);
    OK(ascend_alloc_remove_memory_callback(number));
    REFUSED(ascend_alloc_remove_memory_callback(number));
    for (size_t i = 0; i < count; i++) {
        OK(ascend_alloc_release(held[i]));
    }
    /* It goes on after that. */
    held[0] = ascend_alloc_malloc(2 * MIB, 0, NULL);
    CHECK(held[0] != NULL);
    OK(ascend_alloc_release(held[0]));
}

int main(int words, char **word) {
    static const struct scenario scenarios[] = {
        {"early", early},     {"blocks", blocks},   {"devices", devices},
        {"structs", structs}, {"sharing", sharing}, {"short_of_memory", short_of_memory},
    };
    return run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], words, word);
}
