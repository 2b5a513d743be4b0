/*
 * A library whose calls do nothing but those that end the process: what `doctor --conform` must survive. It has the
 * functions without which the allocator loads no library, and three more.
 */
#include <stdint.h>
#include <stdlib.h>

#define DOES_NOTHING(name) int name(void) { return 0; }

DOES_NOTHING(aclInit)
DOES_NOTHING(aclrtCreateEventExWithFlag)
DOES_NOTHING(aclrtDestroyEvent)
DOES_NOTHING(aclrtFree)
DOES_NOTHING(aclrtGetCurrentContext)
DOES_NOTHING(aclrtGetDevice)
DOES_NOTHING(aclrtGetMemInfo)
DOES_NOTHING(aclrtMallocAlign32)
DOES_NOTHING(aclrtQueryEventStatus)
DOES_NOTHING(aclrtRecordEvent)
DOES_NOTHING(aclrtResetDevice)
DOES_NOTHING(aclrtSetCurrentContext)
DOES_NOTHING(aclrtSetDevice)
DOES_NOTHING(aclrtStreamWaitEvent)
DOES_NOTHING(aclrtSynchronizeDevice)
DOES_NOTHING(aclrtSynchronizeEvent)
DOES_NOTHING(aclrtSynchronizeStream)

int aclrtGetDeviceCount(uint32_t *count)
{
    *count = 1;
    return 0;
}

int aclrtReleaseMemAddress(void *start)
{
    (void)start;
    abort();
}

int aclrtFreePhysical(void *handle)
{
    return *(volatile int *)handle;
}

int aclFinalize(void)
{
    _Exit(3);
}
