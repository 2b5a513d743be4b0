/*
 * The header alone, compiled as C and as C++: what its types are, and that its functions can be taken for what
 * frameworks ask for. With WRONG defined it must not compile.
 */
#include "ascend_alloc.h"

/* A negative array length where the condition does not hold; works in C99 and C++11, without libraries. */
#define CHECK(name, condition) typedef char name[(condition) ? 1 : -1]

CHECK(status_is_an_int32, sizeof(ascend_alloc_status) == 4);
CHECK(size_is_a_word, sizeof(size_t) == sizeof(void *));
CHECK(ok_is_0, ASCEND_ALLOC_STATUS_OK == 0);
CHECK(argument_is_1, ASCEND_ALLOC_STATUS_ARGUMENT == 1);
CHECK(config_is_2, ASCEND_ALLOC_STATUS_CONFIG == 2);
CHECK(library_is_3, ASCEND_ALLOC_STATUS_LIBRARY == 3);
CHECK(driver_is_4, ASCEND_ALLOC_STATUS_DRIVER == 4);
CHECK(state_is_5, ASCEND_ALLOC_STATUS_STATE == 5);
CHECK(out_of_memory_is_6, ASCEND_ALLOC_STATUS_OUT_OF_MEMORY == 6);
CHECK(internal_is_7, ASCEND_ALLOC_STATUS_INTERNAL == 7);
CHECK(fork_is_8, ASCEND_ALLOC_STATUS_FORK == 8);
CHECK(unsupported_is_9, ASCEND_ALLOC_STATUS_UNSUPPORTED == 9);
CHECK(size_comes_first, offsetof(ascend_alloc_stats_t, struct_size) == 0 &&
                            offsetof(ascend_alloc_request_t, struct_size) == 0 &&
                            offsetof(ascend_alloc_block_info_t, struct_size) == 0 &&
                            offsetof(ascend_alloc_pool_options_t, struct_size) == 0 &&
                            offsetof(ascend_alloc_pool_stats_t, struct_size) == 0 &&
                            offsetof(ascend_alloc_sleep_report_t, struct_size) == 0 &&
                            offsetof(ascend_alloc_buffer_options_t, struct_size) == 0 &&
                            offsetof(ascend_alloc_buffer_info_t, struct_size) == 0 &&
                            offsetof(ascend_alloc_event_t, struct_size) == 0);
#ifdef WRONG
CHECK(wrong, sizeof(ascend_alloc_status) == 8);
#endif

/* The pair that torch_npu and MindSpore take, and the other functions whose signatures are fixed. */
extern void *(*take_malloc)(size_t size, int device, void *stream);
extern void (*take_free)(void *ptr, size_t size, int device, void *stream);
extern int (*take_init)(const char *conf);
extern int (*take_record)(void *ptr, void *stream);
extern int (*take_destroyed)(int device, void *stream);
extern int (*take_device)(int device);
extern int (*take_stats)(int device, ascend_alloc_stats_t *out);
extern int (*take_fraction)(double fraction, int device);
extern int (*take_base)(void *ptr, void **base, size_t *size);
extern const char *(*take_text)(void);
void *(*take_malloc)(size_t size, int device, void *stream) = ascend_alloc_malloc;
void (*take_free)(void *ptr, size_t size, int device, void *stream) = ascend_alloc_free;
int (*take_init)(const char *conf) = ascend_alloc_init;
int (*take_record)(void *ptr, void *stream) = ascend_alloc_record_stream;
int (*take_destroyed)(int device, void *stream) = ascend_alloc_stream_destroyed;
int (*take_device)(int device) = ascend_alloc_empty_cache;
int (*take_stats)(int device, ascend_alloc_stats_t *out) = ascend_alloc_stats;
int (*take_fraction)(double fraction, int device) = ascend_alloc_set_memory_fraction;
int (*take_base)(void *ptr, void **base, size_t *size) = ascend_alloc_base;
const char *(*take_text)(void) = ascend_alloc_last_error;
