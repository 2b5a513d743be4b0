/*
 * Loads the library by itself and closes it while it is in use: closes LIBRARY. Linked with the runtime library alone.
 * Valid C99 and C++11.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

#include "acl_runtime.h"

#define MIB ((size_t)1 << 20)

/* dlclose with blocks held, in this thread and another that goes on calling. */
typedef void *malloc_of(size_t, int, void *);
typedef void free_of(void *, size_t, int, void *);
static malloc_of *opened_malloc;
static free_of *opened_free;
static volatile int stop;
static void *keep_calling(void *unused) {
    (void)unused;
    while (!stop) {
        void *block = opened_malloc(3 * MIB, 0, NULL);
        if (block == NULL) {
            return (void *)1;
        }
        opened_free(block, 3 * MIB, 0, NULL);
    }
    return NULL;
}

int main(int words, char **word) {
    const char *file = words > 1 ? word[1] : "";
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    opened_malloc = (malloc_of *)(uintptr_t)dlsym(library, "ascend_alloc_malloc");
    opened_free = (free_of *)(uintptr_t)dlsym(library, "ascend_alloc_free");
    void *block = opened_malloc(3 * MIB, 0, NULL), *ended = NULL;
    pthread_t thread;
    if (block == NULL || pthread_create(&thread, NULL, keep_calling, NULL) != 0) {
        return 2;
    }
    if (dlclose(library) != 0) {
        return 3;
    }
    for (int i = 0; i < 1000; i++) {
        void *other = opened_malloc((size_t)i * 1000 + 1, 0, NULL);
        if (other == NULL) {
            return 4;
        }
        opened_free(other, 0, 0, NULL);
    }
    /* The runtime library's callbacks still find their functions. */
    aclrtStream stream = NULL;
    if (aclrtSetDevice(0) != 0 || aclrtCreateStream(&stream) != 0 || aclrtDestroyStream(stream) != 0) {
        return 5;
    }
    opened_free(block, 3 * MIB, 0, NULL);
    stop = 1;
    pthread_join(thread, &ended);
    printf("closes: all checks hold\n");
    return ended == NULL ? 0 : 6;
}

