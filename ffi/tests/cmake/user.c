/* A program of somebody who has the installed library: prints its version. */
#include <ascend_alloc.h>
#include <stdio.h>

int main(void)
{
    /* The library is really there: a pointer that is nobody's is refused. */
    int unknown = 0;
    if (ascend_alloc_release(&unknown) != ASCEND_ALLOC_STATUS_STATE) {
        return 1;
    }
    puts(ascend_alloc_version());
    return 0;
}
