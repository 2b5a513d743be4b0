/* A sample as it must not be: it unmaps a chunk while a fill of it is still queued. */
#include "sample.h"

#include <string.h>

int sample_main(void)
{
    aclrtPhysicalMemProp kind;
    aclrtDrvMemHandle chunk;
    aclrtStream stream;
    void *start;
    size_t granule = 2 << 20;

    memset(&kind, 0, sizeof(kind));
    kind.memAttr = ACL_HBM_MEM_HUGE;
    kind.location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
    CHECK(aclInit(NULL));
    CHECK(aclrtSetDevice(0));
    CHECK(aclrtCreateStream(&stream));
    CHECK(aclrtReserveMemAddress(&start, granule, 0, NULL, 0));
    CHECK(aclrtMallocPhysical(&chunk, granule, &kind, 0));
    CHECK(aclrtMapMem(start, granule, 0, chunk, 0));
    CHECK(aclrtMemsetAsync(start, granule, 1, granule, stream));
    CHECK(aclrtUnmapMem(start));
    expect(1, "the samples use both helpers");
    return 0;
}
