/*
 * Pools, captures and sleep through the C library, on the simulator: pools SCENARIO. Valid C99 and C++11.
 */
#include "check.h"

#include <limits.h>

/* What an ordinary pool is made with. */
static ascend_alloc_pool_options_t ordinary(void) {
    ascend_alloc_pool_options_t options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    return options;
}

static uint64_t pool_with(const char *tag) {
    ascend_alloc_pool_options_t options = ordinary();
    options.tag = tag;
    uint64_t pool = 0;
    OK(ascend_alloc_pool_create(0, &options, &pool));
    CHECK(pool != 0);
    return pool;
}

static int64_t held_by(uint64_t pool) {
    ascend_alloc_pool_stats_t stats;
    stats.struct_size = sizeof stats;
    OK(ascend_alloc_pool_stats(pool, &stats));
    return stats.allocated_bytes.all.current;
}

static int asked;
static int is_even(void *stream, void *user) {
    asked++;
    return stream == user;
}
static int refuse_all(void *stream, void *user) {
    (void)stream;
    (void)user;
    return 0;
}

static void pools(void) {
    set_up();
    aclrtStream side = new_stream();
    uint64_t outer = pool_with("outer"), inner = pool_with(NULL);
    OK(ascend_alloc_pool_begin(outer, ASCEND_ALLOC_FILTER_THREAD, NULL));
    OK(ascend_alloc_pool_begin(inner, ASCEND_ALLOC_FILTER_STREAM, side));
    void *in_outer = ascend_alloc_malloc(MIB, 0, NULL);
    void *in_inner = ascend_alloc_malloc(2 * MIB, 0, side);
    CHECK(held_by(outer) > 0 && held_by(outer) < held_by(inner));
    OK(ascend_alloc_pool_end(inner));
    OK(ascend_alloc_pool_end(outer));
    CHECK(ascend_alloc_pool_end(outer) == ASCEND_ALLOC_STATUS_STATE);
    /* Without routes requests go elsewhere. */
    int64_t before = held_by(outer);
    void *outside = ascend_alloc_malloc(MIB, 0, NULL);
    CHECK(held_by(outer) == before);

    /* By function. */
    int released = 0;
    OK(ascend_alloc_pool_begin_with(inner, is_even, side, NULL));
    void *taken = ascend_alloc_malloc(4 * MIB, 0, side);
    CHECK(asked > 0 && held_by(inner) > (int64_t)(4 * MIB));
    OK(ascend_alloc_pool_end(inner));
    OK(ascend_alloc_pool_begin_with(inner, refuse_all, &released, note_release));
    void *not_taken = ascend_alloc_malloc(4 * MIB, 0, NULL);
    CHECK(released == 0);
    OK(ascend_alloc_pool_end(inner));
    CHECK(released == 1);
    REFUSED(ascend_alloc_pool_begin_with(inner, NULL, &released, note_release));
    CHECK(released == 2);

    /* Named by the request, whatever routes say. */
    OK(ascend_alloc_pool_begin(outer, ASCEND_ALLOC_FILTER_ALL, NULL));
    before = held_by(inner);
    void *named = ascend_alloc_pool_malloc(inner, MIB, NULL);
    CHECK(held_by(inner) > before);
    OK(ascend_alloc_pool_begin(ascend_alloc_pool_default(0), ASCEND_ALLOC_FILTER_THREAD, NULL));
    before = held_by(outer);
    void *usual = ascend_alloc_malloc(MIB, 0, NULL);
    CHECK(held_by(outer) == before);
    OK(ascend_alloc_pool_end(ascend_alloc_pool_default(0)));
    OK(ascend_alloc_pool_end(outer));

    void *all[] = {in_outer, in_inner, outside, taken, not_taken, named, usual};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        CHECK(all[i] != NULL);
        OK(ascend_alloc_release(all[i]));
    }
    OK(ascend_alloc_pool_release(inner));
    REFUSED(ascend_alloc_pool_release(inner));
    OK(ascend_alloc_pool_release(outer));
    OK(ascend_alloc_empty_cache(0));
    CHECK(stats_of(0).reserved_bytes.all.current == 0);
}

static int given, taken_back, most_given = INT_MAX;
static void *give(size_t size, int device, void *stream, void *user) {
    (void)stream;
    void *memory = NULL;
    CHECK(device == 0 && user == &given);
    if (given - taken_back >= most_given) {
        return NULL;
    }
    given++;
    return aclrtMallocAlign32(&memory, size, ACL_MEM_MALLOC_HUGE_FIRST) == 0 ? memory : NULL;
}
static void take(void *memory, size_t size, int device, void *user) {
    CHECK(device == 0 && user == &given && size > 0);
    taken_back++;
    ACL(aclrtFree(memory));
}

static void sources(void) {
    set_up();
    ascend_alloc_pool_options_t options = ordinary();
    options.source_malloc = give;
    uint64_t pool = 0;
    REFUSED(ascend_alloc_pool_create(0, &options, &pool));
    options.source_free = take;
    options.source_user = &given;
    OK(ascend_alloc_pool_create(0, &options, &pool));
    void *block = ascend_alloc_pool_malloc(pool, 30 * MIB, NULL);
    CHECK(block != NULL && given == 1 && held_by(pool) >= (int64_t)(30 * MIB));
    OK(ascend_alloc_release(block));
    OK(ascend_alloc_pool_release(pool));
    OK(ascend_alloc_empty_cache(-1));
    CHECK(taken_back == 1);
}

/* Functions that are short of memory get back what another pool of theirs has idle; those of others do not count. */
static void shared_sources(void) {
    set_up();
    ascend_alloc_pool_options_t options = ordinary();
    options.source_malloc = give;
    options.source_free = take;
    options.source_user = &given;
    uint64_t pools[2] = {0, 0};
    OK(ascend_alloc_pool_create(0, &options, &pools[0]));
    OK(ascend_alloc_pool_create(0, &options, &pools[1]));
    void *idle = ascend_alloc_pool_malloc(pools[0], 30 * MIB, NULL);
    CHECK(idle != NULL);
    OK(ascend_alloc_release(idle));
    most_given = 1;
    void *block = ascend_alloc_pool_malloc(pools[1], 40 * MIB, NULL);
    CHECK(block != NULL && given == 2 && taken_back == 1);
    OK(ascend_alloc_release(block));
    OK(ascend_alloc_pool_release(pools[0]));
    OK(ascend_alloc_pool_release(pools[1]));
    CHECK(taken_back == 2);
}

static void captures(void) {
    set_up();
    uint64_t pool = pool_with("graph");
    OK(ascend_alloc_capture_begin(pool, ASCEND_ALLOC_FILTER_THREAD, NULL));
    void *first = ascend_alloc_malloc(2 * MIB, 0, NULL), *second = ascend_alloc_malloc(6 * MIB, 0, NULL);
    CHECK(first != NULL && second != NULL);
    OK(ascend_alloc_pool_end(pool));

    uint64_t checkpoint = 0;
    OK(ascend_alloc_checkpoint(pool, &checkpoint));
    OK(ascend_alloc_release(second));
    void *third = ascend_alloc_pool_malloc(pool, 4 * MIB, NULL);
    CHECK(third != NULL);
    void *freed[4] = {NULL}, *made[4] = {NULL};
    size_t freed_count = 0, made_count = 0;
    OK(ascend_alloc_checkpoint_restore(checkpoint, freed, 4, &freed_count, made, 4, &made_count));
    CHECK(freed_count == 2 && made_count == 2);
    CHECK((made[0] == first && made[1] == second) || (made[1] == first && made[0] == second));
    /* A short array gets what fits; the count is that of all. */
    made[1] = NULL;
    OK(ascend_alloc_checkpoint_restore(checkpoint, NULL, 0, NULL, made, 1, &made_count));
    CHECK(made[0] != NULL && made[1] == NULL && made_count == 2);
    OK(ascend_alloc_checkpoint_release(checkpoint));
    REFUSED(ascend_alloc_checkpoint_release(checkpoint));
    REFUSED(ascend_alloc_checkpoint_restore(checkpoint, NULL, 0, NULL, NULL, 0, NULL));

    /* While the graph lives, its addresses stay. */
    OK(ascend_alloc_release(first));
    OK(ascend_alloc_release(second));
    OK(ascend_alloc_empty_cache(-1));
    CHECK(stats_of(0).reserved_bytes.all.current >= (int64_t)(8 * MIB));
    OK(ascend_alloc_graph_release(pool));
    CHECK(ascend_alloc_graph_release(pool) == ASCEND_ALLOC_STATUS_STATE);
    OK(ascend_alloc_pool_release(pool));
    OK(ascend_alloc_empty_cache(-1));
    CHECK(stats_of(0).reserved_bytes.all.current == 0);
}

static void sleeping(void) {
    set_up();
    const char *tags[] = {"weights", "cache"};
    uint64_t weights = pool_with("weights"), cache = pool_with("cache");
    void *kept = ascend_alloc_pool_malloc(weights, 4 * MIB, NULL);
    void *lost = ascend_alloc_pool_malloc(cache, 8 * MIB, NULL);
    bytes_to(kept, 42, 4 * MIB);
    ascend_alloc_sleep_report_t report;
    report.struct_size = sizeof report;
    OK(ascend_alloc_sleep(0, tags, 1, ASCEND_ALLOC_SLEEP_MODE_HOST_COPY, &report));
    CHECK(report.pools == 1 && report.bytes >= 4 * MIB && report.host_bytes >= 4 * MIB);
    OK(ascend_alloc_sleep(-1, tags, 2, ASCEND_ALLOC_SLEEP_MODE_DISCARD, &report));
    CHECK(report.pools == 1 && report.host_bytes == 0);
    int asleep = 0;
    OK(ascend_alloc_is_asleep(weights, &asleep));
    CHECK(asleep == 1);
    CHECK(ascend_alloc_pool_malloc(weights, MIB, NULL) == NULL);
    CHECK(ascend_alloc_last_status() == ASCEND_ALLOC_STATUS_STATE);
    OK(ascend_alloc_wake(-1, NULL, 0, &report));
    CHECK(report.pools == 2 && report.host_bytes >= 4 * MIB);
    CHECK(byte_of(kept) == 42 && byte_of((char *)kept + 4 * MIB - 1) == 42);
    bytes_to(lost, 1, 8 * MIB);
    tags[0] = "no such tag";
    REFUSED(ascend_alloc_sleep(-1, tags, 1, ASCEND_ALLOC_SLEEP_MODE_DISCARD, NULL));
    tags[0] = NULL;
    REFUSED(ascend_alloc_wake(-1, tags, 1, NULL));
    REFUSED(ascend_alloc_sleep(-1, NULL, 0, 2, NULL));
    REFUSED(ascend_alloc_sleep(-2, NULL, 0, 0, NULL));
    OK(ascend_alloc_release(kept));
    OK(ascend_alloc_release(lost));
}

static void tagged(void) {
    set_up();
    char tag[8];
    size_t length = 0;
    OK(ascend_alloc_get_tag(tag, sizeof tag, &length));
    CHECK(strcmp(tag, "default") == 0 && length == 7);
    REFUSED(ascend_alloc_pause("weights", -1));
    void *other = ascend_alloc_tagged_malloc(2 * MIB, 0, NULL);
    OK(ascend_alloc_set_tag("weights"));
    OK(ascend_alloc_set_host_copy("weights", 1));
    void *weights = ascend_alloc_tagged_malloc(4 * MIB, 0, NULL);
    OK(ascend_alloc_set_tag("sleep_persistent"));
    OK(ascend_alloc_get_tag(tag, sizeof tag, &length));
    CHECK(strcmp(tag, "sleep_p") == 0 && length == 16);
    void *persistent = ascend_alloc_tagged_malloc(2 * MIB, 0, NULL);
    CHECK(other != NULL && weights != NULL && persistent != NULL);
    bytes_to(weights, 9, 4 * MIB);
    bytes_to(persistent, 8, 2 * MIB);

    OK(ascend_alloc_pause(NULL, -1));
    OK(ascend_alloc_pause(NULL, -1));
    CHECK(byte_of(persistent) == 8 && stats_of(0).sleeping_bytes >= (int64_t)(6 * MIB));
    /* Freeing while paused, and asking for more, are no harm. */
    ascend_alloc_tagged_free(other, 2 * MIB, 0, NULL);
    CHECK(ascend_alloc_last_error() == NULL);
    OK(ascend_alloc_set_tag("weights"));
    CHECK(ascend_alloc_tagged_malloc(MIB, 0, NULL) == NULL);
    OK(ascend_alloc_resume("weights"));
    OK(ascend_alloc_resume(NULL));
    CHECK(byte_of(weights) == 9 && stats_of(0).sleeping_bytes == 0);
    OK(ascend_alloc_pause("weights", 0));
    OK(ascend_alloc_resume("weights"));
    REFUSED(ascend_alloc_pause("weights", 2));
    /* A tag keeps its pool, whoever knows its number. */
    ascend_alloc_block_info_t info;
    info.struct_size = sizeof info;
    OK(ascend_alloc_block_info(weights, &info));
    CHECK(ascend_alloc_pool_release(info.pool) == ASCEND_ALLOC_STATUS_STATE);
    ascend_alloc_tagged_free(ascend_alloc_tagged_malloc(MIB, 0, NULL), MIB, 0, NULL);
    CHECK(ascend_alloc_last_error() == NULL);
    ascend_alloc_tagged_free(weights, 4 * MIB, 0, NULL);
    ascend_alloc_tagged_free(persistent, 2 * MIB, 0, NULL);
    CHECK(allocated(0) == 0);
    OK(ascend_alloc_set_tag(NULL));
}

int main(int words, char **word) {
    static const struct scenario scenarios[] = {
        {"pools", pools},
        {"sources", sources},
        {"shared_sources", shared_sources},
        {"captures", captures},
        {"sleeping", sleeping},
        {"tagged", tagged},
    };
    return run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], words, word);
}
