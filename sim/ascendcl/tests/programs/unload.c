/* dlclose while work runs, and loading again. The library stays where it is: worker threads of it are
 * running. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef int (*Plain)(void *);
typedef int (*Device)(int32_t);
typedef int (*Launch)(void *, void (*)(void *), void *);

static int ran;

static void slow(void *user) {
    (void)user;
    usleep(1000);
    __atomic_add_fetch(&ran, 1, __ATOMIC_SEQ_CST);
}

static void *look(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return found;
}

#define CHECK(condition)                                                                                \
    do {                                                                                                \
        if (!(condition)) {                                                                             \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                             \
            exit(1);                                                                                    \
        }                                                                                               \
    } while (0)

/* Thread-local state of the library is destroyed after the library was closed. */
static void *user(void *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
    CHECK(((Device)look(library, "aclrtSetDevice"))(0) == 0);
    CHECK(((Plain)look(library, "aclrtFree"))((void *)8) == 107000);
    CHECK(dlclose(library) == 0);
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    for (int round = 0; round < 3; ++round) {
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        CHECK(library != NULL);
        CHECK(((Device)look(library, "aclrtSetDevice"))(0) == 0);
        void *stream = NULL;
        CHECK(((Plain)look(library, "aclrtCreateStream"))(&stream) == 0);
        for (int index = 0; index < 20; ++index) {
            CHECK(((Launch)look(library, "aclrtLaunchHostFunc"))(stream, slow, NULL) == 0);
        }
        CHECK(dlclose(library) == 0);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, user, argv[1]) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    for (int waited = 0; waited < 20000 && __atomic_load_n(&ran, __ATOMIC_SEQ_CST) < 60; ++waited) {
        usleep(1000);
    }
    printf("%d\n", __atomic_load_n(&ran, __ATOMIC_SEQ_CST));
    return 0;
}
