/*
 * Virtual memory of a device, from the granule to the release, with ACL's calls alone.
 *
 * Four chunks of physical memory come one behind the other into a range that is reserved for eight: so a segment
 * grows without moving. Then the last chunk moves to another address, and its bytes with it: nothing is copied.
 *
 * To build and run it on the simulator:
 *
 *     cargo build -p ascendcl-sim
 *     gcc -std=c99 -Iffi/acl -o virtual_memory examples/c/virtual_memory.c -Ltarget/debug -lascendcl
 *     LD_LIBRARY_PATH=target/debug ./virtual_memory
 *
 * aclrtMemSetAccess exists since CANN 8.5; on an older library leave the call out.
 */
#include "sample.h"

#include <string.h>

enum { CHUNKS = 4, ROOM = 8, DEVICE = 0 };

/* Lets the device's own cores read and write one mapping. Mapping gives that to the owner already; a peer needs it. */
static void set_access(void *address, size_t bytes)
{
    aclrtMemAccessDesc access;
    memset(&access, 0, sizeof(access));
    access.flags = ACL_RT_MEM_ACCESS_FLAGS_READWRITE; /* nothing less is accepted */
    access.location.id = DEVICE;
    access.location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
    /* Exactly one mapping, and one description: its start, its size. */
    CHECK(aclrtMemSetAccess(address, bytes, &access, 1));
}

/* Free bytes of the device. */
static size_t free_bytes(void)
{
    size_t left, total;
    CHECK(aclrtGetMemInfo(ACL_HBM_MEM, &left, &total));
    return left;
}

int main(void)
{
    aclrtPhysicalMemProp kind;
    aclrtDrvMemHandle chunks[CHUNKS];
    void *start;
    size_t granule, bytes, before, i;
    char *base, *moved;
    unsigned char *sent, *received;
    uint32_t devices;

    CHECK(aclInit(NULL));
    CHECK(aclrtGetDeviceCount(&devices));
    CHECK(aclrtSetDevice(DEVICE));
    printf("device %d of %u\n", (int)DEVICE, (unsigned)devices);

    /* 1. Sizes and addresses of mappings are multiples of the granule. */
    memset(&kind, 0, sizeof(kind)); /* `reserve` must be 0 */
    kind.handleType = ACL_MEM_HANDLE_TYPE_NONE;
    kind.allocationType = ACL_MEM_ALLOCATION_TYPE_PINNED;
    kind.memAttr = ACL_HBM_MEM_HUGE;
    kind.location.id = DEVICE;
    kind.location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
    CHECK(aclrtMemGetAllocationGranularity(&kind, ACL_RT_MEM_ALLOC_GRANULARITY_RECOMMENDED, &granule));
    printf("granule of %zu bytes\n", granule);

    /* 2. Addresses. They cost no memory; where they lie is left to the driver. */
    CHECK(aclrtReserveMemAddress(&start, ROOM * granule, 0, NULL, 0));
    base = start;
    printf("reserved %d granules\n", (int)ROOM);

    /* 3. Physical memory, mapped chunk by chunk. A mapping is undone as a whole, so each chunk has its own. */
    before = free_bytes();
    for (i = 0; i < CHUNKS; i++) {
        CHECK(aclrtMallocPhysical(&chunks[i], granule, &kind, 0));
        CHECK(aclrtMapMem(base + i * granule, granule, 0, chunks[i], 0));
        set_access(base + i * granule, granule);
    }
    expect(before - free_bytes() >= CHUNKS * granule, "the chunks take their memory from the device");
    printf("mapped %d chunks\n", (int)CHUNKS);

    /* 4. To the program they are one piece of memory. */
    bytes = CHUNKS * granule;
    sent = malloc(bytes);
    received = malloc(bytes);
    expect(sent != NULL && received != NULL, "the host has memory");
    for (i = 0; i < bytes; i++) {
        sent[i] = (unsigned char)(i * 7 + i / granule);
    }
    memset(received, 0, bytes);
    CHECK(aclrtMemcpy(base, bytes, sent, bytes, ACL_MEMCPY_HOST_TO_DEVICE));
    CHECK(aclrtMemcpy(received, bytes, base, bytes, ACL_MEMCPY_DEVICE_TO_HOST));
    expect(memcmp(sent, received, bytes) == 0, "what came back is what was sent");
    printf("copied %zu bytes to the device and back\n", bytes);

    /* 5. A chunk moves. Unmapping does not wait for work on the device: whoever unmaps does. */
    CHECK(aclrtSynchronizeDevice());
    CHECK(aclrtUnmapMem(base + (CHUNKS - 1) * granule));
    moved = base + (ROOM - 1) * granule;
    CHECK(aclrtMapMem(moved, granule, 0, chunks[CHUNKS - 1], 0));
    set_access(moved, granule);
    memset(received, 0, granule);
    CHECK(aclrtMemcpy(received, granule, moved, granule, ACL_MEMCPY_DEVICE_TO_HOST));
    expect(memcmp(sent + (CHUNKS - 1) * granule, received, granule) == 0, "the bytes moved with their chunk");
    printf("moved a chunk with its bytes\n");

    /* 6. All back, the addresses last: a range with mappings is not released. */
    CHECK(aclrtSynchronizeDevice());
    CHECK(aclrtUnmapMem(moved));
    for (i = 0; i + 1 < CHUNKS; i++) {
        CHECK(aclrtUnmapMem(base + i * granule));
    }
    for (i = 0; i < CHUNKS; i++) {
        CHECK(aclrtFreePhysical(chunks[i]));
    }
    CHECK(aclrtReleaseMemAddress(base));
    expect(free_bytes() >= before, "the device has its memory back");
    printf("gave everything back\n");

    free(sent);
    free(received);
    CHECK(aclrtResetDevice(DEVICE));
    return 0;
}
