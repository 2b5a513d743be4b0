/* What torch_npu insists on: first the options of the operator compiler, which it asks for when it starts. */
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

/* The cores and the cache of the part, for its description. */
int aclGetDeviceCapability(unsigned device, int question, long long *value) {
    static const long long answers[] = {20, 40, 192LL << 20};
    (void)device;
    if (value == NULL || question < 0 || question > 2) return 100000;
    *value = answers[question];
    return 0;
}
