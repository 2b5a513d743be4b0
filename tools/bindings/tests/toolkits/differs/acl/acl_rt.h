/* A toolkit made up for the test: each declaration disagrees with ours in one way, but one. */
#include <stddef.h>
#include <stdint.h>
#define ACL_EVENT_SYNC 0x4U
typedef int aclError;
typedef enum { ACL_MEM_LOCATION_TYPE_HOST, ACL_MEM_LOCATION_TYPE_DEVICE } aclrtMemLocationType;
typedef struct { aclrtMemLocationType type; uint32_t id; } aclrtMemLocation;
typedef struct { uint64_t location; uint32_t pageSize; uint32_t rsv[5]; } aclrtPtrAttributes;
typedef enum { ACL_EVENT_RECORDED_STATUS_COMPLETE, ACL_EVENT_RECORDED_STATUS_NOT_READY } aclrtEventRecordedStatus;
aclError aclrtSetDevice(int32_t id);
aclError aclrtFree(void *pointer, int flags);
aclError aclrtUnmapMem(uint64_t address);
