/* What operators need beside no-ops that return 0: objects for their arguments, each of its own, so that a
 * framework can tell them from a failure. They hold nothing. */
#include <stdlib.h>

#define OBJECT(name)                                  \
    void *aclCreate##name(void) { return malloc(1); } \
    int aclDestroy##name(void *object) {              \
        free(object);                                 \
        return 0;                                     \
    }

OBJECT(Tensor)
OBJECT(TensorList)
OBJECT(Scalar)
OBJECT(ScalarList)
OBJECT(IntArray)
OBJECT(BoolArray)
OBJECT(FloatArray)

/* Not 0, for "no": the executor of an operator is asked for anew each time. */
int aclSetAclOpExecutorRepeatable(void *executor) {
    (void)executor;
    return 1;
}
