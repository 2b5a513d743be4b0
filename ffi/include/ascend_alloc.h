/*
 * ascend-alloc: a caching allocator for Ascend NPU memory.
 *
 * For C99 and C++11. Sizes are in bytes. Generated from the Rust sources in ffi/src; do not edit.
 */

#ifndef ASCEND_ALLOC_H
#define ASCEND_ALLOC_H

#include <stddef.h>
#include <stdint.h>

/*
 What a call of this library answers. New values may be added; the numbers stay.
 */
enum ascend_alloc_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   Done.
   */
  ASCEND_ALLOC_STATUS_OK = 0,
  /*
   An argument is wrong.
   */
  ASCEND_ALLOC_STATUS_ARGUMENT = 1,
  /*
   The configuration text or an environment variable with one was refused.
   */
  ASCEND_ALLOC_STATUS_CONFIG = 2,
  /*
   The vendor's runtime library was not found, lacks a function, or would not start.
   */
  ASCEND_ALLOC_STATUS_LIBRARY = 3,
  /*
   The runtime library refused a call.
   */
  ASCEND_ALLOC_STATUS_DRIVER = 4,
  /*
   The call is not possible in the present state, for instance because it was made before.
   */
  ASCEND_ALLOC_STATUS_STATE = 5,
  /*
   The device or the limit set has no memory left for the request.
   */
  ASCEND_ALLOC_STATUS_OUT_OF_MEMORY = 6,
  /*
   A mistake in this library.
   */
  ASCEND_ALLOC_STATUS_INTERNAL = 7,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ascend_alloc_status ascend_alloc_status;
#else
typedef int32_t ascend_alloc_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The version of this library as text, such as "0.1.0".

 The text is valid as long as the library is loaded. Callable from any thread at any time.
 */
const char *ascend_alloc_version(void);

/*
 What went wrong in the calling thread's last call of this library, as text in UTF-8; null if that call
 succeeded. This function and ascend_alloc_version are no such calls.

 The text is valid until the thread's next call of this library. It is meant for people: its wording
 may change.
 */
const char *ascend_alloc_last_error(void);

/*
 Loads the vendor's runtime library, initialises it if nobody has, and sets the allocator of this process
 up. Without this call the first ascend_alloc_malloc does the same with a null conf.

 conf is a configuration text as in the environment variable ASCEND_ALLOC_CONF, ended by a zero byte,
 or null. What it says goes before what the environment variables say, key by key. Warnings about
 settings without effect are written to standard error.

 The allocator is set up once and stays until the process ends: a second call is refused with
 ASCEND_ALLOC_STATUS_STATE and changes nothing. After any other failure nothing is set up, and the call
 may be tried again. Callable from any thread; of several at once one succeeds.

 # Safety

 conf is null or points to a text that ends with a zero byte. The library that the environment
 names, or that the process has loaded, is the vendor's runtime library or behaves like it.
 */
ascend_alloc_status ascend_alloc_init(const char *conf);

/*
 A block of at least size bytes of memory of the device for work on the stream; its address is a
 multiple of 512. The content is not defined.

 device is the number that aclrtSetDevice takes; stream an aclrtStream of that device, null for its
 default stream. A size of 0 gives null and is no error. For every other size null means that
 there is no block: ascend_alloc_last_error says why. A negative size or device is refused.

 Callable from any thread. The thread's current device and context are not changed. The signature is
 the one that torch_npu's NPUPluggableAllocator and MindSpore's PluggableAllocator ask for.

 # Safety

 stream is null or a live stream of the device. Unless ascend_alloc_init was called before, what it
 asks of the environment holds.
 */
void *ascend_alloc_malloc(ptrdiff_t size, int device, void *stream);

/*
 Gives a block back that ascend_alloc_malloc returned. Null is accepted.

 Work already queued on the block's stream may still run: the memory is handed out again only where that
 is in order. The caller queues no new work on it.

 The block knows its size, device and stream, so device and stream are not looked at (the stream may be
 destroyed by then) and a size that differs from the one asked for does no harm; a negative size is
 refused. What is refused changes nothing, and ascend_alloc_last_error says why: a pointer that is
 not the start of a live block, also one that was given back before.

 Callable from any thread.
 */
void ascend_alloc_free(void *ptr, ptrdiff_t size, int device, void *stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ASCEND_ALLOC_H */
