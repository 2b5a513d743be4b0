/*
 * The header alone, compiled as C and as C++: what its types are, and that its functions can be taken for what
 * frameworks ask for. With WRONG defined it must not compile.
 */
#include "ascend_alloc.h"

/* A negative array length where the condition does not hold; works in C99 and C++11, without libraries. */
#define CHECK(name, condition) typedef char name[(condition) ? 1 : -1]

CHECK(status_is_an_int32, sizeof(ascend_alloc_status) == 4);
CHECK(size_is_a_word, sizeof(ptrdiff_t) == sizeof(void *));
CHECK(ok_is_0, ASCEND_ALLOC_STATUS_OK == 0);
CHECK(argument_is_1, ASCEND_ALLOC_STATUS_ARGUMENT == 1);
CHECK(config_is_2, ASCEND_ALLOC_STATUS_CONFIG == 2);
CHECK(library_is_3, ASCEND_ALLOC_STATUS_LIBRARY == 3);
CHECK(driver_is_4, ASCEND_ALLOC_STATUS_DRIVER == 4);
CHECK(state_is_5, ASCEND_ALLOC_STATUS_STATE == 5);
CHECK(out_of_memory_is_6, ASCEND_ALLOC_STATUS_OUT_OF_MEMORY == 6);
CHECK(internal_is_7, ASCEND_ALLOC_STATUS_INTERNAL == 7);
#ifdef WRONG
CHECK(wrong, sizeof(ascend_alloc_status) == 8);
#endif

/* The pair that torch_npu and MindSpore take. */
typedef void *(*pluggable_malloc)(ptrdiff_t size, int device, void *stream);
typedef void (*pluggable_free)(void *ptr, ptrdiff_t size, int device, void *stream);

extern pluggable_malloc take_malloc;
extern pluggable_free take_free;
pluggable_malloc take_malloc = ascend_alloc_malloc;
pluggable_free take_free = ascend_alloc_free;
