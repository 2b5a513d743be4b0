/* A toolkit made up for the test: other spelling, newer values, older calls; nothing disagrees. */
#ifndef AGREES_ACL_BASE_H
#define AGREES_ACL_BASE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#define VISIBLE __attribute__((visibility("default")))
typedef int32_t aclError;
typedef void *aclrtStream, *aclrtContext;
VISIBLE const char *aclGetRecentErrMsg();
#endif
