/*
 * A stand-in for the vendor's runtime library: every function of ffi/acl/acl_runtime.h, with no
 * device behind it. It keeps what the tests ask about (contexts of threads, references of devices,
 * the texts of errors), writes down every call, and fails where it is told to.
 *
 * Variants:
 *   STAND_IN_8_0               lacks what CANN 8.0 does not have yet
 *   STAND_IN_WITHOUT_VMM       lacks the calls to reserve and map
 *   STAND_IN_WITHOUT_REQUIRED  lacks two functions that nothing can do without
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "acl_runtime.h"

#define DEVICES 2

struct context {
    int device;
    int alive;
};

struct failure {
    char call[64];
    char message[128];
    int code;
    int times;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char calls[1 << 16];
static size_t length;
static struct failure failures[8];
static struct context primaries[DEVICES] = {{0, 1}, {1, 1}};
static struct context explicits[8];
static int references[DEVICES];
static int inits;
static char soc[32] = "Ascend910B3";
static size_t hbm_total = (size_t)64 << 30;
static uintptr_t next_address = (uintptr_t)0x12c000000000;
static uintptr_t next_handle = 0x1000;
static int capture_status;

static __thread struct context *current;
static __thread char message[128];
static __thread int last_error;
static __thread char shown[128];

/* ---- What the tests call -------------------------------------------------------------------- */

/* All calls since the start or the last clearing, one a line: name(arguments)@device. */
const char *stand_in_calls(void) { return calls; }

void stand_in_clear(void) {
    pthread_mutex_lock(&lock);
    length = 0;
    calls[0] = 0;
    pthread_mutex_unlock(&lock);
}

/* The next `times` calls of this function answer `code` and leave `text` as the error's message. */
void stand_in_fail(const char *call, int code, int times, const char *text) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        if (failures[i].times == 0) {
            snprintf(failures[i].call, sizeof failures[i].call, "%s", call);
            snprintf(failures[i].message, sizeof failures[i].message, "%s", text);
            failures[i].code = code;
            failures[i].times = times;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

/* An empty name stands for one that cannot be read. */
void stand_in_set_soc(const char *name) { snprintf(soc, sizeof soc, "%s", name); }
void stand_in_set_hbm_total(size_t bytes) { hbm_total = bytes; }
void stand_in_set_capture(int status) { capture_status = status; }
int stand_in_references(int device) { return references[device]; }
/* The context of the calling thread, null without one. */
void *stand_in_context(void) { return current; }
/* The code of the calling thread's last failed call, if nobody has taken it. */
int stand_in_last_error(void) { return last_error; }

/* ---- Inside --------------------------------------------------------------------------------- */

/* Writes the call down and answers the code it is told to fail with, or 0. */
static int enter(const char *call, const char *arguments, ...) {
    char text[256];
    va_list list;
    va_start(list, arguments);
    vsnprintf(text, sizeof text, arguments, list);
    va_end(list);
    int code = 0;
    pthread_mutex_lock(&lock);
    if (length + sizeof text + 80 < sizeof calls) {
        int device = current ? current->device : -1;
        length += (size_t)snprintf(calls + length, sizeof calls - length, "%s(%s)@%d\n", call, text, device);
    }
    for (size_t i = 0; i < sizeof failures / sizeof failures[0] && code == 0; i++) {
        if (failures[i].times > 0 && strcmp(failures[i].call, call) == 0) {
            failures[i].times--;
            code = last_error = failures[i].code;
            snprintf(message, sizeof message, "%s", failures[i].message);
        }
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static int refuse(int code, const char *text) {
    snprintf(message, sizeof message, "%s", text);
    last_error = code;
    return code;
}

#define ENTER(...)                             \
    do {                                       \
        int code = enter(__func__, __VA_ARGS__); \
        if (code != 0) {                       \
            return code;                       \
        }                                      \
    } while (0)

#define NEEDS_CONTEXT()                                       \
    do {                                                      \
        if (current == NULL || !current->alive) {             \
            return refuse(107002, "the thread has no context"); \
        }                                                     \
    } while (0)

#define NOT_NULL(pointer)                               \
    do {                                                \
        if ((pointer) == NULL) {                        \
            return refuse(100000, "a null " #pointer);   \
        }                                               \
    } while (0)

static void *fresh(uintptr_t *next, uintptr_t step) {
    return (void *)__atomic_fetch_add(next, step, __ATOMIC_RELAXED);
}

/* ---- Process, version, errors --------------------------------------------------------------- */

aclError aclInit(const char *configPath) {
    ENTER("%s", configPath ? configPath : "");
    return __atomic_fetch_add(&inits, 1, __ATOMIC_RELAXED) == 0 ? 0 : refuse(100002, "initialised before");
}

aclError aclrtGetVersion(int32_t *majorVersion, int32_t *minorVersion, int32_t *patchVersion) {
    ENTER("%s", "");
    *majorVersion = 1;
    *minorVersion = 13;
    *patchVersion = 0;
    return 0;
}

const char *aclrtGetSocName(void) { return soc[0] ? soc : NULL; }

const char *aclGetRecentErrMsg(void) {
    if (message[0] == 0) {
        return NULL;
    }
    memcpy(shown, message, sizeof shown);
    message[0] = 0;
    return shown;
}

aclError aclrtGetLastError(aclrtLastErrLevel level) {
    if (level != ACL_RT_THREAD_LEVEL) {
        return 100000;
    }
    int code = last_error;
    last_error = 0;
    return code;
}

/* ---- Devices and contexts ------------------------------------------------------------------- */

aclError aclrtGetDeviceCount(uint32_t *count) {
    ENTER("%s", "");
    NOT_NULL(count);
    *count = DEVICES;
    return 0;
}

aclError aclrtGetDevice(int32_t *deviceId) {
    ENTER("%s", "");
    NEEDS_CONTEXT();
    *deviceId = current->device;
    return 0;
}

aclError aclrtSetDevice(int32_t deviceId) {
    ENTER("%d", deviceId);
    if (deviceId < 0 || deviceId >= DEVICES) {
        return refuse(107001, "no such device");
    }
    __atomic_fetch_add(&references[deviceId], 1, __ATOMIC_RELAXED);
    primaries[deviceId].alive = 1;
    current = &primaries[deviceId];
    return 0;
}

aclError aclrtResetDevice(int32_t deviceId) {
    ENTER("%d", deviceId);
    if (deviceId < 0 || deviceId >= DEVICES || references[deviceId] == 0) {
        return refuse(507007, "reset more often than set");
    }
    if (__atomic_sub_fetch(&references[deviceId], 1, __ATOMIC_RELAXED) == 0) {
        primaries[deviceId].alive = 0;
    }
    return 0;
}

aclError aclrtSynchronizeDevice(void) {
    ENTER("%p", (void *)current);
    NEEDS_CONTEXT();
    return 0;
}

aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout) {
    ENTER("%d", timeout);
    NEEDS_CONTEXT();
    return timeout == 0 || timeout < -1 ? refuse(107000, "a bad timeout") : 0;
}

aclError aclrtDeviceGetBareTgid(int32_t *pid) {
    ENTER("%s", "");
    *pid = 4711;
    return 0;
}

aclError aclrtCreateContext(aclrtContext *context, int32_t deviceId) {
    ENTER("%d", deviceId);
    for (size_t i = 0; i < sizeof explicits / sizeof explicits[0]; i++) {
        if (!explicits[i].alive) {
            explicits[i].device = deviceId;
            explicits[i].alive = 1;
            current = &explicits[i];
            *context = current;
            return 0;
        }
    }
    return refuse(207005, "no contexts left");
}

aclError aclrtDestroyContext(aclrtContext context) {
    ENTER("%p", context);
    NOT_NULL(context);
    ((struct context *)context)->alive = 0;
    return 0;
}

aclError aclrtSetCurrentContext(aclrtContext context) {
    ENTER("%p", context);
    NOT_NULL(context);
    if (!((struct context *)context)->alive) {
        return refuse(107000, "a stale context");
    }
    current = context;
    return 0;
}

aclError aclrtGetCurrentContext(aclrtContext *context) {
    ENTER("%s", "");
    NEEDS_CONTEXT();
    *context = current;
    return 0;
}

aclError aclrtDeviceCanAccessPeer(int32_t *canAccessPeer, int32_t deviceId, int32_t peerDeviceId) {
    ENTER("%d, %d", deviceId, peerDeviceId);
    *canAccessPeer = deviceId != peerDeviceId;
    return 0;
}

aclError aclrtDeviceEnablePeerAccess(int32_t peerDeviceId, uint32_t flags) {
    ENTER("%d, %u", peerDeviceId, flags);
    return 0;
}

aclError aclrtDeviceDisablePeerAccess(int32_t peerDeviceId) {
    ENTER("%d", peerDeviceId);
    return 0;
}

/* ---- Streams and events: a stream's handle is the context it was made in, plus one ----------- */

static void *context_of(aclrtStream stream) { return (char *)stream - 1; }

aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag) {
    ENTER("%u, %#x", priority, flag);
    NEEDS_CONTEXT();
    *stream = (char *)current + 1;
    return 0;
}

aclError aclrtCreateStream(aclrtStream *stream) {
    ENTER("%s", "");
    NEEDS_CONTEXT();
    *stream = (char *)current + 1;
    return 0;
}

aclError aclrtDestroyStream(aclrtStream stream) {
    ENTER("%p", stream);
    return 0;
}

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *status) {
    ENTER("%p", stream);
    NOT_NULL(status);
    *status = ACL_STREAM_STATUS_COMPLETE;
    return 0;
}

aclError aclrtSynchronizeStream(aclrtStream stream) {
    ENTER("%p", stream);
    NEEDS_CONTEXT();
    return 0;
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout) {
    ENTER("%p, %d", stream, timeout);
    return timeout == 0 || timeout < -1 ? refuse(107000, "a bad timeout") : 0;
}

static int in_this_context(aclrtStream stream) {
    NEEDS_CONTEXT();
    return stream != NULL && context_of(stream) != current ? refuse(107003, "a stream of another context") : 0;
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
    ENTER("%p, %p", stream, event);
    NOT_NULL(event);
    return in_this_context(stream);
}

aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t flag) {
    ENTER("%#x", flag);
    NOT_NULL(event);
    NEEDS_CONTEXT();
    *event = fresh(&next_handle, 16);
    return 0;
}

aclError aclrtDestroyEvent(aclrtEvent event) {
    ENTER("%p", event);
    NOT_NULL(event);
    return 0;
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
    ENTER("%p, %p", event, stream);
    NOT_NULL(event);
    return in_this_context(stream);
}

/* The event is complete exactly if bit 4 of its handle is set: the second one made is. */
aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus *status) {
    ENTER("%p", event);
    NEEDS_CONTEXT();
    *status = (uintptr_t)event & 16 ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return 0;
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
    ENTER("%p", event);
    NOT_NULL(event);
    return 0;
}

aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeout) {
    ENTER("%p, %d", event, timeout);
    return timeout == 0 || timeout < -1 ? refuse(107000, "a bad timeout") : 0;
}

/* ---- Blocks that cannot move ---------------------------------------------------------------- */

aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *free, size_t *total) {
    ENTER("%d", (int)attr);
    NEEDS_CONTEXT();
    *total = attr == ACL_HBM_MEM ? hbm_total : (size_t)8 << 30;
    *free = *total / 2;
    return 0;
}

aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy) {
    ENTER("%zu, %d", size, (int)policy);
    NEEDS_CONTEXT();
    *devPtr = fresh(&next_address, size + 32);
    return 0;
}

#ifndef STAND_IN_WITHOUT_REQUIRED
aclError aclrtMallocAlign32(void **devPtr, size_t size, aclrtMemMallocPolicy policy) {
    ENTER("%zu, %d", size, (int)policy);
    NEEDS_CONTEXT();
    if (size == 0) {
        return refuse(100000, "a size of 0");
    }
    *devPtr = fresh(&next_address, size);
    return 0;
}
#endif

aclError aclrtMallocWithCfg(void **devPtr, size_t size, aclrtMemMallocPolicy policy, aclrtMallocConfig *cfg) {
    ENTER("%zu, %d, %zu", size, (int)policy, cfg ? cfg->numAttrs : 0);
    NEEDS_CONTEXT();
    *devPtr = fresh(&next_address, size);
    return 0;
}

#ifndef STAND_IN_WITHOUT_REQUIRED
aclError aclrtFree(void *devPtr) {
    ENTER("%p", devPtr);
    NOT_NULL(devPtr);
    return 0;
}
#endif

aclError aclrtPointerGetAttributes(const void *ptr, aclrtPtrAttributes *attributes) {
    ENTER("%p", ptr);
    NOT_NULL(ptr);
    attributes->location.id = 1;
    attributes->location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
    attributes->pageSize = 2 << 20;
    return 0;
}

aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind) {
    ENTER("%p, %zu, %p, %zu, %d", dst, destMax, src, count, (int)kind);
    return 0;
}

aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream) {
    ENTER("%p, %zu, %p, %zu, %d, %p", dst, destMax, src, count, (int)kind, stream);
    return 0;
}

aclError aclrtMemset(void *devPtr, size_t maxCount, int32_t value, size_t count) {
    ENTER("%p, %zu, %d, %zu", devPtr, maxCount, value, count);
    return 0;
}

aclError aclrtMemsetAsync(void *devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream) {
    ENTER("%p, %zu, %d, %zu, %p", devPtr, maxCount, value, count, stream);
    return 0;
}

/* ---- Virtual memory: needs no context ------------------------------------------------------- */

#ifndef STAND_IN_WITHOUT_VMM
aclError aclrtReserveMemAddress(void **virPtr, size_t size, size_t alignment, void *expectPtr, uint64_t flags) {
    ENTER("%zu, %zu, %p, %llu", size, alignment, expectPtr, (unsigned long long)flags);
    NOT_NULL(virPtr);
    *virPtr = fresh(&next_address, (size + 0x1fffff) & ~(size_t)0x1fffff);
    return 0;
}

aclError aclrtReleaseMemAddress(void *virPtr) {
    ENTER("%p", virPtr);
    NOT_NULL(virPtr);
    return 0;
}

static int check(const aclrtPhysicalMemProp *prop) {
    if (prop->reserve != 0) {
        return refuse(107000, "reserve is not 0");
    }
    int of_host = prop->location.type == ACL_MEM_LOCATION_TYPE_HOST &&
                  prop->allocationType == ACL_MEM_ALLOCATION_TYPE_PINNED;
    if (prop->location.type != ACL_MEM_LOCATION_TYPE_DEVICE && !of_host) {
        return refuse(100000, "neither on a device nor page-locked on the host");
    }
    if (prop->location.id >= DEVICES) {
        return refuse(107001, "no such device");
    }
    return 0;
}

aclError aclrtMallocPhysical(aclrtDrvMemHandle *handle, size_t size, const aclrtPhysicalMemProp *prop,
                             uint64_t flags) {
    ENTER("%zu, attr=%d, device=%u, flags=%llu", size, (int)prop->memAttr, prop->location.id,
          (unsigned long long)flags);
    int code = check(prop);
    if (code == 0) {
        *handle = fresh(&next_handle, 16);
    }
    return code;
}

aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
    ENTER("%p", handle);
    NOT_NULL(handle);
    return 0;
}

aclError aclrtMapMem(void *virPtr, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t flags) {
    ENTER("%p, %zu, %zu, %p, %llu", virPtr, size, offset, handle, (unsigned long long)flags);
    NOT_NULL(virPtr);
    NOT_NULL(handle);
    return 0;
}

aclError aclrtUnmapMem(void *virPtr) {
    ENTER("%p", virPtr);
    NOT_NULL(virPtr);
    return 0;
}

aclError aclrtMemGetAllocationGranularity(aclrtPhysicalMemProp *prop, aclrtMemGranularityOptions option,
                                          size_t *granularity) {
    ENTER("attr=%d, option=%d", (int)prop->memAttr, (int)option);
    int code = check(prop);
    if (code == 0) {
        int giant = prop->memAttr == ACL_HBM_MEM_HUGE1G || prop->memAttr == ACL_MEM_HUGE1G;
        *granularity = giant ? (size_t)1 << 30 : (size_t)2 << 20;
    }
    return code;
}

aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle handle, aclrtMemHandleType handleType, uint64_t flags,
                                         uint64_t *shareableHandle) {
    ENTER("%p, %d, %llu", handle, (int)handleType, (unsigned long long)flags);
    *shareableHandle = 0x700000001;
    return 0;
}

aclError aclrtMemImportFromShareableHandle(uint64_t shareableHandle, int32_t deviceId, aclrtDrvMemHandle *handle) {
    ENTER("%#llx, %d", (unsigned long long)shareableHandle, deviceId);
    *handle = fresh(&next_handle, 16);
    return 0;
}

aclError aclrtMemSetPidToShareableHandle(uint64_t shareableHandle, int32_t *pid, size_t pidNum) {
    ENTER("%#llx, %d, %zu", (unsigned long long)shareableHandle, pidNum ? pid[0] : 0, pidNum);
    return 0;
}
#endif

/* ---- Host memory ---------------------------------------------------------------------------- */

aclError aclrtMallocHost(void **hostPtr, size_t size) {
    ENTER("%zu", size);
    NEEDS_CONTEXT();
    *hostPtr = fresh(&next_address, size);
    return 0;
}

aclError aclrtMallocHostWithCfg(void **ptr, uint64_t size, aclrtMallocConfig *cfg) {
    ENTER("%llu, %zu, attr=%d, value=%u", (unsigned long long)size, cfg->numAttrs,
          cfg->numAttrs ? (int)cfg->attrs[0].attr : -1, cfg->numAttrs ? cfg->attrs[0].value.vaFlag : 0);
    *ptr = fresh(&next_address, size);
    return 0;
}

aclError aclrtFreeHost(void *hostPtr) {
    ENTER("%p", hostPtr);
    NOT_NULL(hostPtr);
    return 0;
}

aclError aclrtHostRegister(void *ptr, uint64_t size, aclrtHostRegisterType type, void **devPtr) {
    ENTER("%p, %llu, %d", ptr, (unsigned long long)size, (int)type);
    *devPtr = ptr;
    return 0;
}

aclError aclrtHostUnregister(void *ptr) {
    ENTER("%p", ptr);
    return 0;
}

aclrtAllocatorDesc aclrtAllocatorCreateDesc(void) {
    return enter(__func__, "%s", "") != 0 ? NULL : fresh(&next_handle, 16);
}

aclError aclrtAllocatorDestroyDesc(aclrtAllocatorDesc allocatorDesc) {
    ENTER("%s", allocatorDesc == NULL ? "null" : "desc");
    return 0;
}

#define SETTER(name, type)                                                                          \
    aclError name(aclrtAllocatorDesc allocatorDesc, type value) {                                   \
        ENTER("%s, %s", allocatorDesc == NULL ? "null" : "desc", value == NULL ? "null" : "value"); \
        return 0;                                                                                   \
    }
SETTER(aclrtAllocatorSetObjToDesc, aclrtAllocator)
SETTER(aclrtAllocatorSetAllocFuncToDesc, aclrtAllocatorAllocFunc)
SETTER(aclrtAllocatorSetFreeFuncToDesc, aclrtAllocatorFreeFunc)
SETTER(aclrtAllocatorSetAllocAdviseFuncToDesc, aclrtAllocatorAllocAdviseFunc)
SETTER(aclrtAllocatorSetGetAddrFromBlockFuncToDesc, aclrtAllocatorGetAddrFromBlockFunc)

aclError aclrtAllocatorRegister(aclrtStream stream, aclrtAllocatorDesc allocatorDesc) {
    ENTER("%p, %s", stream, allocatorDesc == NULL ? "null" : "desc");
    return 0;
}

aclError aclrtAllocatorUnregister(aclrtStream stream) {
    ENTER("%p", stream);
    return 0;
}

/* ---- What CANN 8.0 does not have ------------------------------------------------------------ */

#ifndef STAND_IN_8_0
#include "runtime_since_8_1.h"
#endif
