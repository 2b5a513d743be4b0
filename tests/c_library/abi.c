/*
 * A program that uses the C library, one scenario a run: abi SCENARIO [FILE]. Valid C99 and C++11.
 * The process ends with 0 if every check holds; a failed one is printed and ends it with 1.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "acl_runtime.h"
#include "ascend_alloc.h"

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            const char *said = ascend_alloc_last_error();                                           \
            printf("%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, said ? said : "none"); \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

/* Whether the last call of this thread failed with a text that has the word in it. */
static int said(const char *word) {
    const char *text = ascend_alloc_last_error();
    return text != NULL && strstr(text, word) != NULL;
}

#define MIB ((ptrdiff_t)1 << 20)

static void lifecycle(const char *version) {
    CHECK(strcmp(ascend_alloc_version(), version) == 0);
    CHECK(ascend_alloc_last_error() == NULL);
    CHECK(ascend_alloc_init("expandable_segments:True") == ASCEND_ALLOC_STATUS_OK);
    CHECK(ascend_alloc_last_error() == NULL);
    CHECK(ascend_alloc_init(NULL) == ASCEND_ALLOC_STATUS_STATE);
    CHECK(said("set up already"));

    void *small = ascend_alloc_malloc(1, 0, NULL);
    void *large = ascend_alloc_malloc(20 * MIB, 0, NULL);
    CHECK(small != NULL && large != NULL && small != large);
    CHECK((uintptr_t)small % 512 == 0 && (uintptr_t)large % 512 == 0);
    CHECK(ascend_alloc_last_error() == NULL);
    ascend_alloc_free(large, 20 * MIB, 0, NULL);
    CHECK(ascend_alloc_last_error() == NULL);
    CHECK(ascend_alloc_malloc(20 * MIB, 0, NULL) == large);
    ascend_alloc_free(large, 20 * MIB, 0, NULL);
    ascend_alloc_free(small, 1, 0, NULL);
    CHECK(ascend_alloc_last_error() == NULL);
}

static int64_t size_mismatches(void) {
    ascend_alloc_stats_t stats;
    stats.struct_size = sizeof stats;
    CHECK(ascend_alloc_stats(0, &stats) == ASCEND_ALLOC_STATUS_OK);
    return stats.size_mismatches;
}

static void refusals(const char *unused) {
    (void)unused;
    char unknown;
    ascend_alloc_free(&unknown, 1, 0, NULL);
    CHECK(said("nothing was allocated"));

    CHECK(ascend_alloc_malloc(-1, 0, NULL) == NULL);
    CHECK(said("size is -1"));
    CHECK(ascend_alloc_malloc(PTRDIFF_MIN, 0, NULL) == NULL);
    CHECK(said("size is -"));
    CHECK(ascend_alloc_malloc(1, -1, NULL) == NULL);
    CHECK(said("device is -1"));
    CHECK(ascend_alloc_malloc(1, 99, NULL) == NULL);
    CHECK(said("99"));
    CHECK(ascend_alloc_malloc(PTRDIFF_MAX, 0, NULL) == NULL);
    CHECK(said("9223372036854775807"));
    CHECK(ascend_alloc_malloc(0, 0, NULL) == NULL);
    CHECK(ascend_alloc_last_error() == NULL);

    char *block = (char *)ascend_alloc_malloc(4 * MIB, 0, NULL);
    CHECK(block != NULL);
    ascend_alloc_free(block + 512, 512, 0, NULL);
    CHECK(said("not its start"));
    ascend_alloc_free(&unknown, 1, 0, NULL);
    CHECK(said("no segment"));
    /* None of that touched it. */
    ascend_alloc_free(block, 4 * MIB, 0, NULL);
    CHECK(ascend_alloc_last_error() == NULL);
    ascend_alloc_free(block, 4 * MIB, 0, NULL);
    CHECK(said("not live"));
    CHECK(ascend_alloc_last_status() == ASCEND_ALLOC_STATUS_ARGUMENT);
    /* A wrong size does no harm, and is counted; none is said by 0. */
    int64_t before = size_mismatches();
    for (int i = 0; i < 2; i++) {
        block = (char *)ascend_alloc_malloc(4 * MIB, 0, NULL);
        ascend_alloc_free(block, i == 0 ? 0 : (size_t)-4, 99, &unknown);
        CHECK(ascend_alloc_last_status() == ASCEND_ALLOC_STATUS_OK);
        CHECK(size_mismatches() == before + i);
    }
    ascend_alloc_free(NULL, 0, 0, NULL);
    CHECK(ascend_alloc_last_error() == NULL);
}

static void configuration(const char *unused) {
    (void)unused;
    CHECK(ascend_alloc_init("no_such_key:1") == ASCEND_ALLOC_STATUS_CONFIG);
    CHECK(said("no_such_key"));
    CHECK(ascend_alloc_init("\xff") == ASCEND_ALLOC_STATUS_ARGUMENT);
    CHECK(said("UTF-8"));
    /* A failure leaves nothing behind. The environment of this scenario limits to a hundredth of 64 GiB. */
    CHECK(ascend_alloc_init("front_cache:False") == ASCEND_ALLOC_STATUS_OK);
    CHECK(ascend_alloc_malloc(1024 * MIB, 0, NULL) == NULL);
    CHECK(said("out of memory") && said("limit"));
    CHECK(ascend_alloc_malloc(256 * MIB, 0, NULL) != NULL);
}

static void text_goes_first(const char *unused) {
    (void)unused;
    CHECK(ascend_alloc_init("per_process_memory_fraction:0.5") == ASCEND_ALLOC_STATUS_OK);
    CHECK(ascend_alloc_malloc(1024 * MIB, 0, NULL) != NULL);
}

/* The file named by the environment is missing, or lacks functions; the word is what must be named. */
static void no_library(const char *word) {
    CHECK(ascend_alloc_malloc(1, 0, NULL) == NULL);
    CHECK(said(word));
    CHECK(ascend_alloc_init(NULL) == ASCEND_ALLOC_STATUS_LIBRARY);
    CHECK(said(word));
}

static void devices(const char *file) {
    typedef aclError (*set_device)(int32_t);
    typedef aclError (*get_device)(int32_t *);
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
    set_device set = (set_device)(uintptr_t)dlsym(library, "aclrtSetDevice");
    get_device get = (get_device)(uintptr_t)dlsym(library, "aclrtGetDevice");
    int32_t device = -1;

    /* A thread without a device stays without one. */
    void *first = ascend_alloc_malloc(3 * MIB, 1, NULL);
    CHECK(first != NULL);
    CHECK(get(&device) != 0);
    /* One with a device keeps it. */
    CHECK(set(0) == 0);
    void *second = ascend_alloc_malloc(30 * MIB, 1, NULL);
    CHECK(second != NULL && second != first);
    CHECK(get(&device) == 0 && device == 0);
    /* The device and stream given to free are not looked at. */
    ascend_alloc_free(first, 3 * MIB, 0, (void *)&device);
    ascend_alloc_free(second, 30 * MIB, 7, NULL);
    CHECK(ascend_alloc_last_error() == NULL);
    CHECK(get(&device) == 0 && device == 0);
}

enum { THREADS = 4, ROUNDS = 200, HELD = 8 };

static void *worker(void *number) {
    ptrdiff_t own = (ptrdiff_t)(uintptr_t)number;
    void *held[HELD] = {NULL};
    for (ptrdiff_t round = 0; round < ROUNDS; round++) {
        void **place = &held[round % HELD];
        ascend_alloc_free(*place, 1, 0, NULL);
        CHECK(ascend_alloc_last_error() == NULL);
        *place = ascend_alloc_malloc((round % 5 + 1) * 100000 + own, (int)(own % 2), NULL);
        CHECK(*place != NULL);
        /* Each thread reads its own error. */
        char text[32];
        snprintf(text, sizeof text, "size is -%d", (int)own + 1);
        CHECK(ascend_alloc_malloc(-(own + 1), 0, NULL) == NULL);
        CHECK(said(text));
    }
    for (int i = 0; i < HELD; i++) {
        ascend_alloc_free(held[i], 1, 0, NULL);
        CHECK(ascend_alloc_last_error() == NULL);
    }
    return NULL;
}

/* Nobody has called ascend_alloc_init: the threads race to set the allocator up. */
static void threads(const char *unused) {
    (void)unused;
    pthread_t running[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&running[i], NULL, worker, (void *)i) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(running[i], NULL) == 0);
    }
    CHECK(ascend_alloc_init(NULL) == ASCEND_ALLOC_STATUS_STATE);
}

int main(int count, char **words) {
    static const struct {
        const char *name;
        void (*run)(const char *);
    } scenarios[] = {
        {"lifecycle", lifecycle},   {"refusals", refusals}, {"configuration", configuration},
        {"no_library", no_library}, {"devices", devices},   {"text_goes_first", text_goes_first},
        {"threads", threads},
    };
    const char *name = count > 1 ? words[1] : "";
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        if (strcmp(scenarios[i].name, name) == 0) {
            scenarios[i].run(count > 2 ? words[2] : "");
            printf("%s: all checks hold\n", name);
            return 0;
        }
    }
    printf("no scenario %s\n", name);
    return 2;
}
