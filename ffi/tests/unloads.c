/*
 * Loads both libraries by itself and closes them in an order, while a block is held and a thread goes on: unloads ORDER
 * ALLOCATOR RUNTIME. Linked with neither.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            const char *said = dlerror();                                             \
            fprintf(stderr, "line %d: %s does not hold: %s\n", __LINE__, #condition,  \
                    said != NULL ? said : "");                                        \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

typedef void *malloc_of(size_t, int, void *);
typedef int release_of(void *);
typedef int init_of(const char *);
typedef int empty_of(int);
static malloc_of *take;
static release_of *give;
static volatile int stop;
static void *late;

static void *find(void *library, const char *name) {
    void *found = dlsym(library, name);
    CHECK(found != NULL);
    return found;
}

static void *open_file(const char *file) {
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
    return library;
}

static void *go_on(void *unused) {
    (void)unused;
    while (!stop) {
        void *block = take(3 * MIB, 1, NULL);
        CHECK(block != NULL && give(block) == 0);
    }
    return NULL;
}

static void at_end(void) {
    CHECK(give(late) == 0);
    void *block = take(5 * MIB, 0, NULL);
    CHECK(block != NULL && give(block) == 0);
}

static void use(void *allocator) {
    take = (malloc_of *)(uintptr_t)find(allocator, "ascend_alloc_malloc");
    give = (release_of *)(uintptr_t)find(allocator, "ascend_alloc_release");
}

static void once(const char *order, const char *allocator_file, const char *runtime_file) {
    void *runtime = NULL, *allocator = NULL;
    if (strcmp(order, "allocator_alone") == 0) {
        /* It finds the other by ASCEND_ALLOC_ACL_LIBRARY. */
        allocator = open_file(allocator_file);
    } else if (strcmp(order, "allocator_first") == 0) {
        allocator = open_file(allocator_file);
        runtime = open_file(runtime_file);
    } else {
        runtime = open_file(runtime_file);
        allocator = open_file(allocator_file);
    }
    use(allocator);
    late = take(3 * MIB, 0, NULL);
    void *block = take(7 * MIB, 0, NULL);
    pthread_t thread;
    CHECK(late != NULL && block != NULL && atexit(at_end) == 0);
    CHECK(pthread_create(&thread, NULL, go_on, NULL) == 0);
    if (runtime != NULL && strcmp(order, "runtime_closed_first") == 0) {
        CHECK(dlclose(runtime) == 0);
        runtime = NULL;
    }
    CHECK(dlclose(allocator) == 0);
    if (runtime != NULL) {
        CHECK(dlclose(runtime) == 0);
    }
    for (size_t i = 0; i < 300; i++) {
        void *other = take(i * 10000 + 1, 0, NULL);
        CHECK(other != NULL && give(other) == 0);
    }
    CHECK(give(block) == 0);
    /* A later opening finds the same allocator. */
    for (int i = 0; i < 50; i++) {
        allocator = open_file(allocator_file);
        runtime = open_file(runtime_file);
        init_of *init = (init_of *)(uintptr_t)find(allocator, "ascend_alloc_init");
        CHECK(init(NULL) == 5 && take == (malloc_of *)(uintptr_t)find(allocator, "ascend_alloc_malloc"));
        CHECK(dlclose(i % 2 == 0 ? allocator : runtime) == 0);
        CHECK(dlclose(i % 2 == 0 ? runtime : allocator) == 0);
    }
    stop = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    allocator = open_file(allocator_file);
    empty_of *empty = (empty_of *)(uintptr_t)find(allocator, "ascend_alloc_empty_cache");
    CHECK(dlclose(allocator) == 0 && empty(-1) == 0);
}

int main(int words, char **word) {
    CHECK(words == 4);
    once(word[1], word[2], word[3]);
    printf("%s: all checks hold\n", word[1]);
    return 0;
}
