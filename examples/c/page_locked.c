/*
 * Page-locked host memory: blocks of ACL's own, and memory of the program that is registered. With either a copy on a
 * stream runs while the host goes on; with ordinary memory the call waits for the stream and copies before it returns.
 *
 * To build and run it on the simulator:
 *
 *     cargo build -p ascendcl-sim
 *     gcc -std=c99 -Iffi/acl -o page_locked examples/c/page_locked.c -Ltarget/debug -lascendcl
 *     LD_LIBRARY_PATH=target/debug ./page_locked
 *
 * aclrtHostRegisterV2 and aclrtHostGetDevicePointer exist since CANN 8.5. On Linux 5.10 and older only memory of
 * aclrtMallocHost may be registered: leave the second part out there.
 */
#define _POSIX_C_SOURCE 200112L /* posix_memalign, sysconf */
#include "sample.h"

#include <string.h>
#include <unistd.h>

enum { DEVICE = 0, BYTES = 1 << 20 };

/* Waits for the event by asking, as an allocator does that must not stop the host. */
static void wait_for(aclrtEvent event)
{
    aclrtEventRecordedStatus status = ACL_EVENT_RECORDED_STATUS_NOT_READY;
    while (status != ACL_EVENT_RECORDED_STATUS_COMPLETE) {
        CHECK(aclrtQueryEventStatus(event, &status));
    }
}

/* Sends a block to the device and back on one stream. The host may touch neither block before the event has come. */
static void there_and_back(void *from, void *to, void *device, aclrtStream stream, aclrtEvent event)
{
    memset(to, 0, BYTES);
    CHECK(aclrtMemcpyAsync(device, BYTES, from, BYTES, ACL_MEMCPY_HOST_TO_DEVICE, stream));
    CHECK(aclrtMemcpyAsync(to, BYTES, device, BYTES, ACL_MEMCPY_DEVICE_TO_HOST, stream));
    CHECK(aclrtRecordEvent(event, stream));
    wait_for(event);
    expect(memcmp(from, to, BYTES) == 0, "what came back is what was sent");
}

/* Where ACL says that a pointer points to. */
static const char *place_of(const void *pointer)
{
    aclrtPtrAttributes known;
    CHECK(aclrtPointerGetAttributes(pointer, &known));
    return known.location.type == ACL_MEM_LOCATION_TYPE_DEVICE ? "device" : "host";
}

int main(void)
{
    aclrtStream stream;
    aclrtEvent event;
    void *device, *locked, *other, *seen, *own;

    CHECK(aclInit(NULL));
    CHECK(aclrtSetDevice(DEVICE)); /* host memory, too, belongs to a context */
    CHECK(aclrtCreateStream(&stream));
    CHECK(aclrtCreateEventExWithFlag(&event, ACL_EVENT_SYNC));
    CHECK(aclrtMalloc(&device, BYTES, ACL_MEM_MALLOC_HUGE_FIRST));

    /* 1. Blocks of ACL. */
    CHECK(aclrtMallocHost(&locked, BYTES));
    CHECK(aclrtMallocHost(&other, BYTES));
    printf("block of aclrtMallocHost: %s memory\n", place_of(locked));
    memset(locked, 0x5a, BYTES);
    there_and_back(locked, other, device, stream, event);
    printf("copied %d bytes through it on a stream\n", (int)BYTES);

    /* 2. Memory of the program. Its start must be a multiple of the page. */
    expect(posix_memalign(&own, (size_t)sysconf(_SC_PAGESIZE), BYTES) == 0, "the host has memory");
    memset(own, 0xa5, BYTES);
    CHECK(aclrtHostRegisterV2(own, BYTES, ACL_HOST_REG_MAPPED | ACL_HOST_REG_PINNED));
    CHECK(aclrtHostGetDevicePointer(own, &seen, 0));
    expect(seen != NULL, "kernels have an address for it");
    printf("registered %d bytes of the program's own\n", (int)BYTES);
    /* That address is for kernels. Copies take the host's. */
    there_and_back(own, other, device, stream, event);
    printf("copied %d bytes from it on a stream\n", (int)BYTES);

    /* 3. All back. None of these calls waits for the device; the events above have been waited for. */
    CHECK(aclrtHostUnregister(own));
    free(own);
    CHECK(aclrtSynchronizeStream(stream));
    CHECK(aclrtFreeHost(other));
    CHECK(aclrtFreeHost(locked));
    CHECK(aclrtFree(device));
    CHECK(aclrtDestroyEvent(event));
    CHECK(aclrtDestroyStream(stream));
    CHECK(aclrtResetDevice(DEVICE));
    printf("gave everything back\n");
    return 0;
}
