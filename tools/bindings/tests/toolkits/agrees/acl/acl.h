#include "acl_mdl.h"
VISIBLE aclError aclInit(const char *path);
