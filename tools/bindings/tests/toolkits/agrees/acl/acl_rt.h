#ifndef AGREES_ACL_RT_H
#define AGREES_ACL_RT_H
#include "acl_base.h"
#define ACL_EVENT_SYNC 0x00000001U
typedef void *aclrtDrvMemHandle;
typedef enum { ACL_MEM_LOCATION_TYPE_HOST, ACL_MEM_LOCATION_TYPE_DEVICE, ACL_MEM_LOCATION_TYPE_NEWER = 9 } aclrtMemLocationType;
typedef struct { uint32_t id; aclrtMemLocationType type; } aclrtMemLocation;
VISIBLE aclError aclrtSetDevice(int32_t id);
VISIBLE aclError aclrtFree(void *pointer);
VISIBLE aclError aclrtUnmapMem(void *address);
VISIBLE bool aclrtNotUsedHere(int);
#endif
