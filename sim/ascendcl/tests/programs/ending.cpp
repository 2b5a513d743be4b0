// Every way to end: static destructors and exit handlers that call in, threads that still call,
// work that is still queued. The argument chooses how main ends.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <unistd.h>

#include "acl_runtime.h"
#include "acl_sim.h"

extern "C" aclError aclrtLaunchHostFunc(aclrtStream, void (*)(void *), void *);
extern "C" aclError aclFinalize(void);

static void check(bool good, const char *what) {
    if (!good) {
        std::fprintf(stderr, "not so: %s\n", what);
        std::_Exit(1);
    }
}
#define CHECK(condition) check(condition, #condition)

static void *block;

// Destroyed after the exit handlers that main registers: the library must answer all the same.
struct Owner {
    ~Owner() {
        int32_t device = -1;
        CHECK(aclrtGetDevice(&device) == 0 && device == 0);
        CHECK(aclrtSynchronizeStreamWithTimeout(nullptr, 1000) == 0);
        CHECK(aclrtFree(block) == 0);
        CHECK(aclrtFree(block) == 107000);
        // The thread's texts may be gone by now; that is no reason to crash.
        const char *text = aclGetRecentErrMsg();
        CHECK(text == nullptr || std::strstr(text, "aclrtFree") != nullptr);
        CHECK(aclrtResetDevice(0) == 0);
        std::fprintf(stderr, "owner gone\n");
    }
};
static Owner owner;

static void at_exit() {
    int32_t major, minor, patch;
    CHECK(aclrtGetVersion(&major, &minor, &patch) == 0);
    CHECK(acl_sim_counters_json(nullptr, 0) > 2);
}

static void slow(void *) { usleep(1000); }

static void *caller(void *) {
    for (;;) {
        void *more = nullptr;
        if (aclrtMallocHost(&more, 64) == 0) {
            aclrtFreeHost(more);
        } else {
            aclrtSetDevice(1);
        }
    }
    return nullptr;
}

static void *ender(void *) {
    CHECK(aclrtSetDevice(0) == 0);
    std::exit(0);
}

int main(int, char **arguments) {
    std::atexit(at_exit);
    CHECK(aclInit(nullptr) == 0);
    CHECK(aclrtSetDevice(0) == 0);
    CHECK(aclrtMalloc(&block, 4096, ACL_MEM_MALLOC_HUGE_FIRST) == 0);
    aclrtStream stream;
    CHECK(aclrtCreateStream(&stream) == 0);
    for (int index = 0; index < 1000; ++index) {
        CHECK(aclrtLaunchHostFunc(stream, slow, nullptr) == 0);
    }
    pthread_t thread;
    for (int index = 0; index < 3; ++index) {
        CHECK(pthread_create(&thread, nullptr, caller, nullptr) == 0);
    }
    usleep(5000);
    const char *how = arguments[1];
    if (std::strcmp(how, "return") == 0) {
        return 0;
    }
    if (std::strcmp(how, "exit") == 0) {
        std::exit(0);
    }
    if (std::strcmp(how, "quick") == 0) {
        std::_Exit(0);
    }
    CHECK(std::strcmp(how, "thread") == 0);
    // Another thread ends the process while this one waits for the stream.
    CHECK(pthread_create(&thread, nullptr, ender, nullptr) == 0);
    aclrtSynchronizeStream(stream);
    pause();
    return 1;
}
