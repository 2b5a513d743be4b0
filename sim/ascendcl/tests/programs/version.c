/* Prints the version of the library it is given. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

int main(int argc, char **argv) {
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    int (*version)(int32_t *, int32_t *, int32_t *) =
        (int (*)(int32_t *, int32_t *, int32_t *))dlsym(library, "aclrtGetVersion");
    int32_t major, minor, patch;
    if (version == NULL || version(&major, &minor, &patch) != 0) {
        return 1;
    }
    printf("%d.%d.%d\n", (int)major, (int)minor, (int)patch);
    return 0;
}
