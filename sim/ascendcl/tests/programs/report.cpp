// Leaves things behind, but gives one back in a static destructor, which is no leak.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "acl_runtime.h"

static void *early;

struct Owner {
    ~Owner() { aclrtFree(early); }
};
static Owner owner;

int main(int, char **arguments) {
    void *late = nullptr;
    if (aclrtSetDevice(0) != 0 || aclrtMalloc(&early, 1 << 20, ACL_MEM_MALLOC_HUGE_FIRST) != 0 ||
        aclrtMalloc(&late, 1 << 20, ACL_MEM_MALLOC_HUGE_FIRST) != 0) {
        return 1;
    }
    if (std::strcmp(arguments[1], "clean") == 0) {
        return aclrtFree(late);
    }
    // Nobody waits for the fill before its memory goes.
    void *third = nullptr;
    aclrtStream stream;
    if (aclrtCreateStream(&stream) != 0 || aclrtMalloc(&third, 1 << 20, ACL_MEM_MALLOC_HUGE_FIRST) != 0 ||
        aclrtMemsetAsync(third, 1 << 20, 1, 1 << 20, stream) != 0 || aclrtFree(third) != 0) {
        return 1;
    }
    return 0;
}
