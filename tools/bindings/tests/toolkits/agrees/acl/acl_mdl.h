#ifndef AGREES_ACL_MDL_H
#define AGREES_ACL_MDL_H
#include "acl_rt.h"
typedef void *aclmdlRI;
typedef enum { ACL_MODEL_RI_CAPTURE_STATUS_NONE, ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE } aclmdlRICaptureStatus;
VISIBLE aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus *status, aclmdlRI *graph);
#endif
