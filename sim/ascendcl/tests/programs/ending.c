/* Every way to end: static destructors and exit handlers that call in, threads that still call, work
 * that is still queued. The argument chooses how main ends. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "acl_runtime.h"
#include "acl_sim.h"
#include "static_destructor.h"

extern aclError aclrtLaunchHostFunc(aclrtStream, void (*)(void *), void *);

#define CHECK(condition)                                                                                \
    do {                                                                                                \
        if (!(condition)) {                                                                             \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                             \
            _exit(1);                                                                                   \
        }                                                                                               \
    } while (0)

static void *block;

/* After the exit handlers: the library must answer all the same, and know the current device. */
static void destroyed(void *argument) {
    (void)argument;
    int32_t device = -1;
    CHECK(aclrtGetDevice(&device) == 0 && device == 0);
    CHECK(aclrtSynchronizeStreamWithTimeout(NULL, 1000) == 0);
    CHECK(aclrtFree(block) == 0);
    CHECK(aclrtFree(block) == 107000);
    /* The thread's texts may be gone by now; that is no reason to crash. */
    const char *text = aclGetRecentErrMsg();
    CHECK(text == NULL || strstr(text, "aclrtFree") != NULL);
    CHECK(aclrtResetDevice(0) == 0);
    fprintf(stderr, "destroyed\n");
}
STATIC_DESTRUCTOR(destroyed)

static void at_exit(void) {
    int32_t major, minor, patch;
    CHECK(aclrtGetVersion(&major, &minor, &patch) == 0);
    CHECK(acl_sim_counters_json(NULL, 0) > 2);
}

static void slow(void *user) {
    (void)user;
    usleep(1000);
}

static void *caller(void *user) {
    for (;;) {
        void *more = NULL;
        if (aclrtMallocHost(&more, 64) == 0) {
            aclrtFreeHost(more);
        } else {
            aclrtSetDevice(1);
        }
    }
    return user;
}

static void *ender(void *user) {
    (void)user;
    CHECK(aclrtSetDevice(0) == 0);
    exit(0);
}

int main(int argc, char **arguments) {
    CHECK(argc == 2);
    atexit(at_exit);
    CHECK(aclInit(NULL) == 0);
    CHECK(aclrtSetDevice(0) == 0);
    CHECK(aclrtMalloc(&block, 4096, ACL_MEM_MALLOC_HUGE_FIRST) == 0);
    aclrtStream stream;
    CHECK(aclrtCreateStream(&stream) == 0);
    for (int index = 0; index < 1000; ++index) {
        CHECK(aclrtLaunchHostFunc(stream, slow, NULL) == 0);
    }
    pthread_t thread;
    for (int index = 0; index < 3; ++index) {
        CHECK(pthread_create(&thread, NULL, caller, NULL) == 0);
    }
    usleep(5000);
    const char *how = arguments[1];
    if (strcmp(how, "return") == 0) {
        return 0;
    }
    if (strcmp(how, "exit") == 0) {
        exit(0);
    }
    if (strcmp(how, "quick") == 0) {
        _exit(0);
    }
    CHECK(strcmp(how, "thread") == 0);
    /* Another thread ends the process while this one waits for the stream. */
    CHECK(pthread_create(&thread, NULL, ender, NULL) == 0);
    aclrtSynchronizeStream(stream);
    pause();
    return 1;
}
