/* What torch_npu insists on when it starts: the options of the operator compiler. */
#include <stddef.h>
#include <string.h>

int aclSetCompileopt(int option, const char *value) {
    (void)option;
    (void)value;
    return 0;
}

static const char state[] = "disable";

size_t aclGetCompileoptSize(int option) {
    (void)option;
    return sizeof state;
}

int aclGetCompileopt(int option, char *value, size_t length) {
    (void)option;
    if (value == NULL || length < sizeof state) return 100000;
    memcpy(value, state, sizeof state);
    return 0;
}
