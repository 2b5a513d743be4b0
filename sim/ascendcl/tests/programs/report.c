/* Leaves things behind, but gives one back in a static destructor, which is no leak. */
#include <stdlib.h>
#include <string.h>

#include "acl_runtime.h"
#include "static_destructor.h"

static void *early;

static void destroyed(void *argument) {
    (void)argument;
    aclrtFree(early);
}
STATIC_DESTRUCTOR(destroyed)

int main(int argc, char **arguments) {
    void *late = NULL;
    if (argc != 2 || aclrtSetDevice(0) != 0 ||
        aclrtMalloc(&early, 1 << 20, ACL_MEM_MALLOC_HUGE_FIRST) != 0 ||
        aclrtMalloc(&late, 1 << 20, ACL_MEM_MALLOC_HUGE_FIRST) != 0) {
        return 1;
    }
    if (strcmp(arguments[1], "clean") == 0) {
        return aclrtFree(late);
    }
    /* Nobody waits for the fill before its memory goes. */
    void *third = NULL;
    aclrtStream stream;
    if (aclrtCreateStream(&stream) != 0 || aclrtMalloc(&third, 1 << 20, ACL_MEM_MALLOC_HUGE_FIRST) != 0 ||
        aclrtMemsetAsync(third, 1 << 20, 1, 1 << 20, stream) != 0 || aclrtFree(third) != 0) {
        return 1;
    }
    return 0;
}
