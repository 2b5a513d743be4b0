/*
 * Sizes, alignments and offsets of ACL's structs, and values that are easy to get wrong. Compiles
 * or not: C99 has no static assertion, but an array cannot have a negative size.
 */
#include "acl_runtime.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define EQUAL(a, b) typedef char JOIN(differs_in_line_, __LINE__)[(a) == (b) ? 1 : -1]

/* The offset of a member after one byte is the alignment of its type, in both languages. */
#define ALIGNED(type, bytes)         \
    struct JOIN(after_a_byte_, type) { \
        char byte;                   \
        type value;                  \
    };                               \
    EQUAL(offsetof(struct JOIN(after_a_byte_, type), value), (bytes))

EQUAL(sizeof(aclError), 4);
EQUAL(sizeof(aclrtMemAttr), 4);

EQUAL(sizeof(aclrtMemLocation), 8);
ALIGNED(aclrtMemLocation, 4);
EQUAL(offsetof(aclrtMemLocation, id), 0);
EQUAL(offsetof(aclrtMemLocation, type), 4);

EQUAL(sizeof(aclrtPhysicalMemProp), 32);
ALIGNED(aclrtPhysicalMemProp, 8);
EQUAL(offsetof(aclrtPhysicalMemProp, handleType), 0);
EQUAL(offsetof(aclrtPhysicalMemProp, allocationType), 4);
EQUAL(offsetof(aclrtPhysicalMemProp, memAttr), 8);
EQUAL(offsetof(aclrtPhysicalMemProp, location), 12);
EQUAL(offsetof(aclrtPhysicalMemProp, reserve), 24);

EQUAL(sizeof(aclrtMemAccessDesc), 24);
ALIGNED(aclrtMemAccessDesc, 4);
EQUAL(offsetof(aclrtMemAccessDesc, flags), 0);
EQUAL(offsetof(aclrtMemAccessDesc, location), 4);
EQUAL(offsetof(aclrtMemAccessDesc, rsv), 12);

EQUAL(sizeof(aclrtPtrAttributes), 28);
ALIGNED(aclrtPtrAttributes, 4);
EQUAL(offsetof(aclrtPtrAttributes, location), 0);
EQUAL(offsetof(aclrtPtrAttributes, pageSize), 8);
EQUAL(offsetof(aclrtPtrAttributes, rsv), 12);

EQUAL(sizeof(aclrtMallocAttrValue), 8);
ALIGNED(aclrtMallocAttrValue, 4);
EQUAL(sizeof(aclrtMallocAttribute), 12);
ALIGNED(aclrtMallocAttribute, 4);
EQUAL(offsetof(aclrtMallocAttribute, attr), 0);
EQUAL(offsetof(aclrtMallocAttribute, value), 4);
EQUAL(sizeof(aclrtMallocConfig), 16);
ALIGNED(aclrtMallocConfig, 8);
EQUAL(offsetof(aclrtMallocConfig, attrs), 0);
EQUAL(offsetof(aclrtMallocConfig, numAttrs), 8);

EQUAL(sizeof(aclrtMemFabricHandle), 128);
ALIGNED(aclrtMemFabricHandle, 1);

/* The two statuses are inverted. */
EQUAL(ACL_STREAM_STATUS_COMPLETE, 0);
EQUAL(ACL_EVENT_RECORDED_STATUS_COMPLETE, 1);
EQUAL(ACL_MEM_LOCATION_TYPE_DEVICE, 1);
EQUAL(ACL_RT_MEM_ACCESS_FLAGS_READWRITE, 3);
EQUAL(ACL_HBM_MEM_HUGE1G, 10);
EQUAL(ACL_MEM_HUGE1G, 14);
EQUAL(ACL_MEM_MALLOC_HUGE1G_ONLY, 6);
EQUAL(ACL_HOST_REG_PINNED, 0x10000000);

#ifdef STAND_IN_WRONG
/* For the test of the test: this line must not compile. */
EQUAL(sizeof(aclrtMemLocation), 12);
#endif
