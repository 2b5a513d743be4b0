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
  /*
   The process was forked from one that uses the devices; a child cannot use them.
   */
  ASCEND_ALLOC_STATUS_FORK = 8,
  /*
   This build or this runtime library cannot do that.
   */
  ASCEND_ALLOC_STATUS_UNSUPPORTED = 9,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ascend_alloc_status ascend_alloc_status;
#else
typedef int32_t ascend_alloc_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 Attributes of a request.
 */
enum ascend_alloc_flag
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   The block is one physical handle, mapped as one piece, and nothing else lies in it. Of use where memory is
   registered with a network card or a collective and only the first handle of a range is seen.

   The price: the block is rounded up to whole steps of 2 MiB, requests from 1 to 10 MiB to 20 MiB; it takes
   three calls of the runtime library, which must find that much memory in one piece; once
   freed it serves only such requests, whole; it counts in the statistics (but its calls of the runtime library
   do not) and towards the limits; it cannot grow, move or sleep. ascend_alloc_empty_cache gives free ones back.
   */
  ASCEND_ALLOC_FLAG_ONE_HANDLE = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ascend_alloc_flag ascend_alloc_flag;
#else
typedef uint32_t ascend_alloc_flag;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 Which requests a route takes.
 */
enum ascend_alloc_filter
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   All of the device.
   */
  ASCEND_ALLOC_FILTER_ALL = 0,
  /*
   Those of the calling thread.
   */
  ASCEND_ALLOC_FILTER_THREAD = 1,
  /*
   Those for one stream.
   */
  ASCEND_ALLOC_FILTER_STREAM = 2,
  /*
   Those for one stream, and for streams that are captured into the same graph as it.
   */
  ASCEND_ALLOC_FILTER_CAPTURE = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ascend_alloc_filter ascend_alloc_filter;
#else
typedef int32_t ascend_alloc_filter;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 What becomes of the content of blocks whose pool sleeps.
 */
enum ascend_alloc_sleep_mode
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   It is lost.
   */
  ASCEND_ALLOC_SLEEP_MODE_DISCARD = 0,
  /*
   It is kept in page-locked host memory and copied back.
   */
  ASCEND_ALLOC_SLEEP_MODE_HOST_COPY = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ascend_alloc_sleep_mode ascend_alloc_sleep_mode;
#else
typedef int32_t ascend_alloc_sleep_mode;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 What happened to memory.
 */
enum ascend_alloc_action
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   A block was handed out.
   */
  ASCEND_ALLOC_ACTION_ALLOCATE = 0,
  /*
   A block was given back; other streams may still use it.
   */
  ASCEND_ALLOC_ACTION_FREE_REQUESTED = 1,
  /*
   The memory of a freed block can be used again.
   */
  ASCEND_ALLOC_ACTION_FREE_COMPLETED = 2,
  /*
   Physical memory was put behind a range, or a segment that cannot grow taken.
   */
  ASCEND_ALLOC_ACTION_MAP = 3,
  /*
   Physical memory was taken from behind a range, or a segment that cannot grow given back.
   */
  ASCEND_ALLOC_ACTION_UNMAP = 4,
  /*
   A chunk was put at another address.
   */
  ASCEND_ALLOC_ACTION_MOVE = 5,
  /*
   The host waited for an event or the device.
   */
  ASCEND_ALLOC_ACTION_WAIT = 6,
  /*
   A request failed for lack of memory.
   */
  ASCEND_ALLOC_ACTION_OUT_OF_MEMORY = 7,
  /*
   Something that this version of the header has no name for.
   */
  ASCEND_ALLOC_ACTION_OTHER = 99,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ascend_alloc_action ascend_alloc_action;
#else
typedef int32_t ascend_alloc_action;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 How the chunks of an exported block are named.
 */
enum ascend_alloc_share_form
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   A number, on one server. All versions of the runtime library have it.
   */
  ASCEND_ALLOC_SHARE_FORM_V1 = 0,
  /*
   A number, on one server, by the calls of the second version (CANN 8.5 and later); where the runtime library lacks them,
   as the first.
   */
  ASCEND_ALLOC_SHARE_FORM_V2 = 1,
  /*
   128 bytes, for servers that share memory over a fabric.
   */
  ASCEND_ALLOC_SHARE_FORM_FABRIC = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ascend_alloc_share_form ascend_alloc_share_form;
#else
typedef int32_t ascend_alloc_share_form;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 The state of a block in a snapshot.
 */
enum ascend_alloc_block_state
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   Free.
   */
  ASCEND_ALLOC_BLOCK_STATE_INACTIVE = 0,
  /*
   Handed out.
   */
  ASCEND_ALLOC_BLOCK_STATE_ALLOCATED = 1,
  /*
   Given back; other streams may still use it.
   */
  ASCEND_ALLOC_BLOCK_STATE_PENDING_FREE = 2,
  /*
   Between two states, in another thread's call.
   */
  ASCEND_ALLOC_BLOCK_STATE_IN_TRANSIT = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ascend_alloc_block_state ascend_alloc_block_state;
#else
typedef int32_t ascend_alloc_block_state;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 What happened, in a history.
 */
enum ascend_alloc_history_action
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   A block was handed out.
   */
  ASCEND_ALLOC_HISTORY_ACTION_ALLOC = 0,
  /*
   A block was given back while other streams may still use it.
   */
  ASCEND_ALLOC_HISTORY_ACTION_FREE_REQUESTED = 1,
  /*
   The memory of a block can be used again; without a request before, it was given back at this moment.
   */
  ASCEND_ALLOC_HISTORY_ACTION_FREE_COMPLETED = 2,
  /*
   A live block is used on a further stream.
   */
  ASCEND_ALLOC_HISTORY_ACTION_STREAM_USE = 3,
  /*
   Physical memory was put behind a range.
   */
  ASCEND_ALLOC_HISTORY_ACTION_SEGMENT_MAP = 4,
  /*
   Physical memory was taken from behind a range.
   */
  ASCEND_ALLOC_HISTORY_ACTION_SEGMENT_UNMAP = 5,
  /*
   A fixed segment was taken from the driver.
   */
  ASCEND_ALLOC_HISTORY_ACTION_SEGMENT_ALLOC = 6,
  /*
   A fixed segment was given back to the driver.
   */
  ASCEND_ALLOC_HISTORY_ACTION_SEGMENT_FREE = 7,
  /*
   Physical memory was moved from another address, which was unmapped before.
   */
  ASCEND_ALLOC_HISTORY_ACTION_CHUNK_MOVE = 8,
  /*
   Pools were put to sleep.
   */
  ASCEND_ALLOC_HISTORY_ACTION_SLEEP = 9,
  /*
   Pools were woken.
   */
  ASCEND_ALLOC_HISTORY_ACTION_WAKE = 10,
  /*
   The host waited for a stream, or for the device (stream null).
   */
  ASCEND_ALLOC_HISTORY_ACTION_WAIT = 11,
  /*
   A request failed for lack of memory; size is what the library could still take of the device by its own count.
   */
  ASCEND_ALLOC_HISTORY_ACTION_OOM = 12,
  /*
   A snapshot with its events was taken.
   */
  ASCEND_ALLOC_HISTORY_ACTION_SNAPSHOT = 13,
  /*
   The program said something; the text is the context.
   */
  ASCEND_ALLOC_HISTORY_ACTION_USER_DEFINED = 14,
  /*
   The program said that it waited for a stream.
   */
  ASCEND_ALLOC_HISTORY_ACTION_HOST_WAIT = 15,
  /*
   Something that a later version of the library tells.
   */
  ASCEND_ALLOC_HISTORY_ACTION_OTHER = 16,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ascend_alloc_history_action ascend_alloc_history_action;
#else
typedef int32_t ascend_alloc_history_action;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 A request with everything that can be asked for.
 */
typedef struct ascend_alloc_request_t {
  /*
   Set by the caller to the size of this struct; later versions grow at the end.
   */
  size_t struct_size;
  /*
   Bytes.
   */
  size_t size;
  /*
   0 or 1 for the least alignment, 512; else a power of two, at most 1 GiB. 0 with ONE_HANDLE, whose
   blocks lie at multiples of 2 MiB.
   */
  size_t alignment;
  /*
   The stream; null for the device's default one.
   */
  void *stream;
  /*
   The pool the block is to come from, whatever routes there are; 0 for where the routes lead.
   */
  uint64_t pool;
  /*
   The device; that of the pool if there is one.
   */
  int device;
  /*
   Sum of ascend_alloc_flag values.
   */
  uint32_t flags;
} ascend_alloc_request_t;

/*
 What is asked of a growing buffer. Sizes in bytes.
 */
typedef struct ascend_alloc_buffer_options_t {
  /*
   Set by the caller to the size of this struct; later versions grow at the end.
   */
  size_t struct_size;
  /*
   The size it can grow to. Costs address space, not memory.
   */
  size_t max_size;
  /*
   The least maximum that will do where the device does not grant all the address space; 0: any. At least size is
   always wanted.
   */
  size_t least_max_size;
  /*
   The size it begins with; may be 0.
   */
  size_t size;
  /*
   The pool it counts to; 0 for where the routes lead.
   */
  uint64_t pool;
} ascend_alloc_buffer_options_t;

/*
 What is known of a growing buffer. Sizes in bytes.
 */
typedef struct ascend_alloc_buffer_info_t {
  /*
   Set by the caller to the size of this struct; later versions grow at the end.
   */
  size_t struct_size;
  /*
   Where it begins, for as long as it lives.
   */
  void *ptr;
  /*
   Its present size.
   */
  size_t size;
  /*
   The size it can grow to; also more than was asked for, where a reservation of another buffer serves again.
   */
  size_t max_size;
  /*
   Bytes of memory behind it: whole chunks.
   */
  size_t mapped;
  /*
   The stream it is for.
   */
  void *stream;
  /*
   The device it lies on.
   */
  int device;
} ascend_alloc_buffer_info_t;

/*
 One event of a history. Sizes in bytes.
 */
typedef struct ascend_alloc_history_entry_t {
  /*
   The size of this struct as the library knows it; it may grow at the end.
   */
  size_t struct_size;
  /*
   Its number: from 1 in the order in which things happened, over all devices.
   */
  uint64_t sequence;
  /*
   When, in nanoseconds of a clock that is read now and then only.
   */
  uint64_t time_ns;
  /*
   First address concerned, or null.
   */
  void *ptr;
  /*
   Size of the block or range.
   */
  size_t size;
  /*
   Bytes asked for, or 0.
   */
  size_t requested;
  /*
   The stream concerned.
   */
  void *stream;
  /*
   The pool concerned, by the number of ascend_alloc_pool_create; 0 for the default one.
   */
  uint64_t pool;
  /*
   The pool's tag, or null.
   */
  const char *tag;
  /*
   Who caused it, or null.
   */
  const char *context;
  /*
   The device.
   */
  int device;
  /*
   A value of ascend_alloc_history_action.
   */
  int action;
} ascend_alloc_history_entry_t;

/*
 Is told of an event, valid with its texts during the call only. Called without any lock; it may call this library.
 Nothing may be thrown out of it.
 */
typedef void (*ascend_alloc_history_visit_t)(const struct ascend_alloc_history_entry_t *event, void *user);

/*
 One event.
 */
typedef struct ascend_alloc_event_t {
  /*
   The size of this struct as the library knows it; it may grow at the end.
   */
  size_t struct_size;
  /*
   A value of ascend_alloc_action.
   */
  int action;
  /*
   The device.
   */
  int device;
  /*
   First address concerned; null where there is none.
   */
  void *ptr;
  /*
   Bytes concerned: of the block, of the range, or of the failed request.
   */
  size_t size;
  /*
   The stream concerned.
   */
  void *stream;
} ascend_alloc_event_t;

/*
 A function that is told of events. The event is valid during the call only. Called without any lock, by the thread
 that caused the event, after it happened; it may call this library, and is not told of what it causes by that. Nothing
 may be thrown out of it.
 */
typedef void (*ascend_alloc_hook_t)(const struct ascend_alloc_event_t *event, void *user);

/*
 The function that is told when a [`User`] is not handed out any more.
 */
typedef void (*ascend_alloc_release_t)(void *user);

/*
 A function that is asked to free memory of a device when a request lacks so many bytes of it; 1: it freed
 something, blocks of this library or memory it had from the device itself, 0: not. Called without any lock, by the
 thread whose request is short, before anything is waited for; it may call this library, also from other threads: while a
 thread is in a callback its own requests call none, no callback is entered a second time before it has returned, and one
 that is added meanwhile is for later requests. A request of another thread that would fail meanwhile waits for the
 callback, one second at most. Nothing may be thrown out of it.
 */
typedef int (*ascend_alloc_memory_callback_t)(int device, size_t size, void *user);

/*
 One statistic over time.
 */
typedef struct ascend_alloc_stat_t {
  /*
   The value now.
   */
  int64_t current;
  /*
   The highest value since the peaks were reset.
   */
  int64_t peak;
  /*
   Sum of all increases since the sums were reset.
   */
  int64_t allocated;
  /*
   Sum of all decreases since the sums were reset.
   */
  int64_t freed;
} ascend_alloc_stat_t;

/*
 How long calls of one kind took, in microseconds.
 */
typedef struct ascend_alloc_duration_stat_t {
  /*
   All calls together.
   */
  uint64_t total;
  /*
   The longest.
   */
  uint64_t max;
  /*
   The shortest; 0 when there was none.
   */
  uint64_t min;
  /*
   How many.
   */
  uint64_t count;
  /*
   The mean; 0 when there was none.
   */
  uint64_t avg;
} ascend_alloc_duration_stat_t;

/*
 Statistics of page-locked memory taken through a device, with the names and meanings of PyTorch's host
 allocator. Sizes in bytes.
 */
typedef struct ascend_alloc_host_stats_t {
  /*
   Set by the caller to the size of this struct; later versions grow at the end.
   */
  size_t struct_size;
  /*
   Blocks in use or waiting for streams, a count.
   */
  struct ascend_alloc_stat_t active_requests;
  /*
   Their bytes, as rounded.
   */
  struct ascend_alloc_stat_t active_bytes;
  /*
   Regions held, a count.
   */
  struct ascend_alloc_stat_t allocations;
  /*
   Page-locked memory held, in use or free.
   */
  struct ascend_alloc_stat_t allocated_bytes;
  /*
   How often memory was taken of the runtime library.
   */
  int64_t num_host_alloc;
  /*
   How often it was given back.
   */
  int64_t num_host_free;
  /*
   How long the calls took that took memory.
   */
  struct ascend_alloc_duration_stat_t host_alloc_time;
  /*
   How long the calls took that gave it back.
   */
  struct ascend_alloc_duration_stat_t host_free_time;
} ascend_alloc_host_stats_t;

/*
 Gives memory of the device to a pool: the address of size bytes, a multiple of 512, for use first on the
 stream; null when there is none. Called without any lock, by the thread that allocates; it must not
 allocate from the same pool, must not give memory that this library has handed out (the request then fails, and the
 memory stays with the source), and nothing may be thrown out of it. Else it may call this library; what would have
 to wait for the call that it was called for fails (ASCEND_ALLOC_STATUS_STATE or ASCEND_ALLOC_STATUS_OUT_OF_MEMORY).
 */
typedef void *(*ascend_alloc_source_malloc_t)(size_t size, int device, void *stream, void *user);

/*
 Takes memory back that the function above gave: address and size as then. No queued work uses it any more. Not called
 for what went with a reset of the device. Called without any lock, by the thread that gives memory back; else as the
 function above.
 */
typedef void (*ascend_alloc_source_free_t)(void *ptr, size_t size, int device, void *user);

/*
 What can be chosen for a pool; all zero but for struct_size is an ordinary one. Sizes in bytes.
 */
typedef struct ascend_alloc_pool_options_t {
  /*
   Set by the caller to the size of this struct; later versions grow at the end.
   */
  size_t struct_size;
  /*
   A name for people, and for putting pools to sleep; null for none. Several pools may have the same. Copied.
   */
  const char *tag;
  /*
   Above this it takes idle memory from elsewhere before it asks the device; segments that cannot grow, for which
   nothing can be moved, are given back first where they are idle. 0 for never. Nothing fails because of it.
   */
  size_t soft_limit;
  /*
   Where its memory comes from, if not from the device's driver; null for that. It then neither grows
   nor moves nor sleeps, and counts towards no limit. Pools with the same functions and source_user share a source: if
   that is short, it gets idle memory of all of them back first.
   */
  ascend_alloc_source_malloc_t source_malloc;
  /*
   Takes that memory back; not null if source_malloc is not.
   */
  ascend_alloc_source_free_t source_free;
  /*
   Passed to both.
   */
  void *source_user;
  /*
   Not 0: free blocks are handed out whole or not at all, and merged only when whole chunks of them are wanted
   elsewhere.
   */
  int no_split;
  /*
   Not 0: its free blocks serve the default pool before that runs out of memory. While any lent block lives, the pool
   cannot be put to sleep; a restored checkpoint leaves lent blocks alone. Lent blocks do not grow in place.
   */
  int use_on_oom;
  /*
   The kind of its segments: 0 as the setting expandable_segments says, 1 those that grow by chunks, whatever it says, so that
   the pool can sleep and its blocks can be exported, -1 fixed blocks. Without effect beside source_malloc.
   */
  int expandable;
} ascend_alloc_pool_options_t;

/*
 A statistic for all blocks, and apart for small ones (at most 1 MiB) and large ones.
 */
typedef struct ascend_alloc_stat_array_t {
  /*
   All blocks.
   */
  struct ascend_alloc_stat_t all;
  /*
   Small blocks.
   */
  struct ascend_alloc_stat_t small_pool;
  /*
   Large blocks.
   */
  struct ascend_alloc_stat_t large_pool;
} ascend_alloc_stat_array_t;

/*
 Statistics of a pool. Sizes in bytes.
 */
typedef struct ascend_alloc_pool_stats_t {
  /*
   Set by the caller to the size of this struct; later versions grow at the end.
   */
  size_t struct_size;
  /*
   Bytes handed out, rounded.
   */
  struct ascend_alloc_stat_array_t allocated_bytes;
  /*
   Bytes handed out or waiting for streams.
   */
  struct ascend_alloc_stat_array_t active_bytes;
  /*
   Bytes with physical memory behind them.
   */
  struct ascend_alloc_stat_array_t reserved_bytes;
  /*
   Address space reserved.
   */
  int64_t reserved_address_space;
  /*
   Graphs whose addresses are baked in.
   */
  int64_t graphs;
} ascend_alloc_pool_stats_t;

/*
 Whether a route takes the requests for a stream: 0 or not. Called without any lock, by the thread that
 allocates; it must not allocate from this device, and nothing may be thrown out of it.
 */
typedef int (*ascend_alloc_accepts_t)(void *stream, void *user);

/*
 How a block is exported; all zero but for struct_size is for every process of this server.
 */
typedef struct ascend_alloc_export_options_t {
  /*
   Set by the caller to the size of this struct; later versions grow at the end.
   */
  size_t struct_size;
  /*
   The processes that may import, by the numbers that ascend_alloc_process_id gives in them.
   */
  const int32_t *processes;
  /*
   How many; not looked at unless only_processes is not 0.
   */
  size_t process_count;
  /*
   Not 0: only those processes, and those that ascend_alloc_export_allow adds. 0: any on this server.
   */
  int only_processes;
  /*
   A value of ascend_alloc_share_form.
   */
  int form;
} ascend_alloc_export_options_t;

/*
 What putting pools to sleep brought, or waking them took. Sizes in bytes.
 */
typedef struct ascend_alloc_sleep_report_t {
  /*
   Set by the caller to the size of this struct; later versions grow at the end.
   */
  size_t struct_size;
  /*
   Pools that fell asleep (or gave up what a call that failed had left behind them) or woke.
   */
  uint64_t pools;
  /*
   Physical memory given back to the device, or put behind the pools again.
   */
  uint64_t bytes;
  /*
   By how much the free memory grew that the device itself reports; 0 for waking.
   */
  uint64_t device_bytes;
  /*
   Content kept on the host, or copied back from there.
   */
  uint64_t host_bytes;
} ascend_alloc_sleep_report_t;

/*
 Statistics of a device, with PyTorch's names and meanings. Sizes in bytes.
 */
typedef struct ascend_alloc_stats_t {
  /*
   Set by the caller to the size of this struct; later versions grow at the end.
   */
  size_t struct_size;
  /*
   Blocks handed out, a count.
   */
  struct ascend_alloc_stat_array_t allocation;
  /*
   Segments, a count: a reservation counts as one.
   */
  struct ascend_alloc_stat_array_t segment;
  /*
   Blocks handed out or waiting for streams, a count.
   */
  struct ascend_alloc_stat_array_t active;
  /*
   Free pieces of segments that cannot grow, a count.
   */
  struct ascend_alloc_stat_array_t inactive_split;
  /*
   Bytes handed out, rounded.
   */
  struct ascend_alloc_stat_array_t allocated_bytes;
  /*
   Bytes with physical memory behind them.
   */
  struct ascend_alloc_stat_array_t reserved_bytes;
  /*
   Bytes handed out or waiting for streams.
   */
  struct ascend_alloc_stat_array_t active_bytes;
  /*
   Free pieces of segments that cannot grow, bytes.
   */
  struct ascend_alloc_stat_array_t inactive_split_bytes;
  /*
   Bytes handed out, as asked for.
   */
  struct ascend_alloc_stat_array_t requested_bytes;
  /*
   Blocks of at least max_split_size in segments that cannot grow.
   */
  struct ascend_alloc_stat_t oversize_allocations;
  /*
   Segments of at least max_split_size that cannot grow.
   */
  struct ascend_alloc_stat_t oversize_segments;
  /*
   Requests that succeeded only after memory had been given back.
   */
  int64_t num_alloc_retries;
  /*
   Requests that failed for lack of memory.
   */
  int64_t num_ooms;
  /*
   How often all streams were waited for.
   */
  int64_t num_sync_all_streams;
  /*
   Ranges taken from the device.
   */
  int64_t num_device_alloc;
  /*
   Ranges given back to the device.
   */
  int64_t num_device_free;
  /*
   max_split_size in force, or -1.
   */
  int64_t max_split_size;
  /*
   Address space reserved.
   */
  int64_t reserved_address_space;
  /*
   Chunks held without an address.
   */
  int64_t cached_handles;
  /*
   Active blocks without memory behind them, because their pool sleeps.
   */
  int64_t sleeping_bytes;
  /*
   Chunks moved from one address to another without asking the device, a count.
   */
  int64_t chunks_moved;
  /*
   Calls of the runtime library that map memory.
   */
  int64_t map_calls;
  /*
   Calls that unmap memory.
   */
  int64_t unmap_calls;
  /*
   Calls that create physical memory.
   */
  int64_t malloc_physical_calls;
  /*
   Calls that free physical memory.
   */
  int64_t free_physical_calls;
  /*
   How often the host waited for an event, a stream or the device.
   */
  int64_t wait_calls;
  /*
   Frees whose caller said another size than it had asked for, a count; see ascend_alloc_free.
   */
  int64_t size_mismatches;
} ascend_alloc_stats_t;

/*
 What the library knows of a live block. Sizes in bytes.
 */
typedef struct ascend_alloc_block_info_t {
  /*
   Set by the caller to the size of this struct; later versions grow at the end.
   */
  size_t struct_size;
  /*
   Its first address.
   */
  void *ptr;
  /*
   Bytes of the block; at least what was asked for.
   */
  size_t size;
  /*
   Bytes asked for.
   */
  size_t requested;
  /*
   First address of its segment.
   */
  void *segment;
  /*
   Bytes of address space of its segment.
   */
  size_t segment_size;
  /*
   The stream it was allocated for.
   */
  void *stream;
  /*
   The pool it belongs to, by the number of ascend_alloc_pool_create; 0 for the default one.
   */
  uint64_t pool;
  /*
   The device it lies on.
   */
  int device;
} ascend_alloc_block_info_t;

/*
 Hands everything over to the runtime library that was queued before the call, for the stream, or for the whole
 device where all is not 0; answers 0, or another number where that is not possible in this thread. Called without
 any lock, by the thread that allocates or frees; it may wait for other threads and call this library, which does not
 call it again in that thread: there it counts as not possible. Nothing may be thrown out of it.
 */
typedef int (*ascend_alloc_submit_t)(int device, void *stream, int all, void *user);

/*
 A segment of a snapshot: a stretch with memory behind it. Sizes in bytes.
 */
typedef struct ascend_alloc_segment_entry_t {
  /*
   The size of this struct as the library knows it; it may grow at the end.
   */
  size_t struct_size;
  /*
   Its first address.
   */
  void *ptr;
  /*
   Its size; the blocks tile it.
   */
  size_t size;
  /*
   Bytes of blocks handed out.
   */
  size_t allocated;
  /*
   Bytes of blocks handed out or waiting for streams.
   */
  size_t active;
  /*
   Bytes asked for in active blocks.
   */
  size_t requested;
  /*
   First address of the reservation it is part of.
   */
  void *base;
  /*
   The stream of its first block.
   */
  void *stream;
  /*
   The pool it belongs to, by the number of ascend_alloc_pool_create; 0 for the default one.
   */
  uint64_t pool;
  /*
   The device.
   */
  int device;
  /*
   Not 0: its blocks count as small.
   */
  int is_small;
  /*
   Not 0: it grows and shrinks.
   */
  int is_expandable;
  /*
   Not 0: its pool sleeps.
   */
  int is_asleep;
} ascend_alloc_segment_entry_t;

/*
 A block of a snapshot. Sizes in bytes.
 */
typedef struct ascend_alloc_block_entry_t {
  /*
   The size of this struct as the library knows it; it may grow at the end.
   */
  size_t struct_size;
  /*
   Its first address.
   */
  void *ptr;
  /*
   Its size.
   */
  size_t size;
  /*
   The size asked for, while it is active.
   */
  size_t requested;
  /*
   Its stream.
   */
  void *stream;
  /*
   A value of ascend_alloc_block_state.
   */
  int state;
} ascend_alloc_block_entry_t;

/*
 Is told of a segment, before its blocks, or of a block of the segment told last; the other is null. Both are valid
 during the call only. Called without any lock; it may call this library. Nothing may be thrown out of it.
 */
typedef void (*ascend_alloc_visit_t)(const struct ascend_alloc_segment_entry_t *segment,
                                     const struct ascend_alloc_block_entry_t *block,
                                     void *user);

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
 succeeded. This function, ascend_alloc_last_status and ascend_alloc_version are no such calls.

 The text is valid until the thread's next call of this library. It is meant for people: its wording
 may change.
 */
const char *ascend_alloc_last_error(void);

/*
 The status of the calling thread's last call of this library, of use after ascend_alloc_malloc and
 ascend_alloc_free, which cannot answer one.
 */
int ascend_alloc_last_status(void);

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
int ascend_alloc_init(const char *conf);

/*
 A block of at least size bytes of memory of the device for work on the stream; its address is a
 multiple of 512. The content is not defined.

 device is the number that aclrtSetDevice takes; stream an aclrtStream of that device, null for its
 default stream. A size of 0 gives null and is no error. For every other size null means that
 there is no block: ascend_alloc_last_error says why, ascend_alloc_last_status which kind of failure it was. A
 size above PTRDIFF_MAX, which is what a negative number becomes, and a negative device are refused.

 Callable from any thread. The thread's current device and context are not changed. The signature is
 the one that torch_npu's NPUPluggableAllocator and MindSpore's PluggableAllocator ask for.

 # Safety

 stream is null or a live stream of the device. Unless ascend_alloc_init was called before, what it
 asks of the environment holds.
 */
void *ascend_alloc_malloc(size_t size, int device, void *stream);

/*
 Gives a block back, however it was allocated: by any function of this library that hands out blocks. Null is
 accepted.

 Work already queued on the block's stream may still run: the memory is handed out again only where that
 is in order. The caller queues no new work on it.

 The block knows its size, device and stream, and that decides: the device and the stream, which may be destroyed
 by then, are not looked at, and a size does no harm that is neither 0 nor what was asked for, but is counted
 (size_mismatches in ascend_alloc_stats_t). A pointer that is not the start of a live block, also one that was given back
 before, changes nothing; ascend_alloc_last_error says what was wrong.

 Callable from any thread, whatever its current device. In a forked child it does nothing and succeeds.
 */
void ascend_alloc_free(void *ptr,
                       size_t size,
                       int device,
                       void *stream);

/*
 The same as ascend_alloc_free, with the status as answer.
 */
int ascend_alloc_release(void *ptr);

/*
 A block as the request describes; its address goes to *out. Else as ascend_alloc_malloc. *out is null after a
 failure.

 Callable from any thread. The block is given back with ascend_alloc_free or ascend_alloc_release.

 # Safety

 request is null or points to as many bytes as its struct_size says, and at least to that field; out is null or
 valid for a write. Else as ascend_alloc_malloc.
 */
int ascend_alloc_allocate(const struct ascend_alloc_request_t *request,
                          void **out);

/*
 Grows a live block to size bytes without moving it. *grown, which may be null, says whether there was room
 behind it: 1 or 0. What is put behind the block is, as a new block, in order for the block's own stream: other
 streams, recorded before or not, must be made to wait for that stream anew before they touch it. After a failure the
 block is unchanged. Callable from any thread.

 # Safety

 grown is null or valid for a write.
 */
int ascend_alloc_grow_in_place(void *ptr,
                               size_t size,
                               int *grown);

/*
 Shrinks a live block to size bytes without moving it; what is cut off is freed like a block. A block of more
 than 1 MiB keeps at least 1 MiB, and every block its last 512 bytes. A size of 0, or of more than was asked for, is
 refused. Callable from any thread.
 */
int ascend_alloc_shrink_in_place(void *ptr,
                                 size_t size);

/*
 Tells that work on the stream uses the block too: once the block is given back, its memory is not handed out
 again before that stream has passed that point. The block's own stream needs no telling. Null is accepted.

 Callable from any thread. In a forked child it does nothing and succeeds.
 */
int ascend_alloc_record_stream(void *ptr, void *stream);

/*
 Undoes ascend_alloc_record_stream: the caller has seen to it that the stream's work with the block is over, or
 comes before what the block's own stream does next. A stream that was not recorded changes nothing. Null
 is accepted.

 Callable from any thread. In a forked child it does nothing and succeeds.
 */
int ascend_alloc_erase_stream(void *ptr,
                              void *stream);

/*
 Tells that a stream is being destroyed, where the runtime library does not tell by itself (before CANN 8.5): to
 be called before it is, while no other call that could record an event on it is in progress. The library never
 passes the handle to the runtime library again. Blocks of the stream stay valid, and its free memory is everybody's
 once the work queued on it is over. An allocator registered with ascend_alloc_register_acl_allocator for it is
 unregistered. Telling twice does no harm. The default stream (null) cannot be destroyed and is refused.

 Callable from any thread. In a forked child it does nothing and succeeds.
 */
int ascend_alloc_stream_destroyed(int device,
                                  void *stream);

/*
 Tells that a device was reset, where the runtime library does not tell by itself (before CANN 8.5). Everything
 on it is forgotten without a call of the runtime library; giving a block back that was live is accepted once and
 does nothing, and no new block has its address before that. Pools stay, empty; graphs and sleep have ended,
 peers are to be set again. Calls of other threads that were waiting for the runtime library fail with
 ASCEND_ALLOC_STATUS_STATE.

 Callable from any thread. In a forked child it does nothing and succeeds.
 */
int ascend_alloc_device_was_reset(int device);

/*
 Gives all free memory of a device, or of all devices for -1, back. Waits for the streams that used it; what is freed
 meanwhile may stay. Nothing goes back while a graph is being captured on the device.

 Callable from any thread. In a forked child it does nothing and succeeds.
 */
int ascend_alloc_empty_cache(int device);

/*
 Hands out free memory that lies in size bytes from address on, as one block, so that nobody else gets it: for memory
 that is bad. *block gets its first address, or NULL when none of the range is free, and *claimed, which may be null,
 its bytes; it may reach beyond the range. A range may hold several pieces: call until there is none. Live blocks are
 left alone, and memory that waits for streams or is with the device because its pool sleeps; the chunks of what was
 claimed before stay when their pool falls asleep. The block belongs to the caller, counts as allocated, and can be freed
 like any other; no work may use it: what was queued on its memory need
 not be over. Waits for nothing, and asks nothing of the device.

 Callable from any thread.

 # Safety

 block is valid for a write, claimed null or valid for one.
 */
int ascend_alloc_claim(int device,
                       const void *address,
                       size_t size,
                       void **block,
                       size_t *claimed);

/*
 Gives idle memory of the device back until at most keep bytes are held, or nothing more is known to be idle.
 Waits for nothing. *freed, which may be null, gets the bytes given back.

 Callable from any thread. In a forked child it does nothing and succeeds, with 0 bytes.

 # Safety

 freed is null or valid for a write.
 */
int ascend_alloc_trim(int device, size_t keep, size_t *freed);

/*
 Registers this library as allocator of a stream with aclrtAllocatorRegister, so that GE graphs and operators of
 ACL that run on it take their workspaces from here. Registering a stream twice does no harm. ACL refuses the
 default stream (null).

 The registration ends with ascend_alloc_unregister_acl_allocator, with ascend_alloc_stream_destroyed, and from
 CANN 8.5 on with the stream itself. Callable from any thread that has a context of the device.

 # Safety

 stream is a live stream of the device. Unless ascend_alloc_init was called before, what it asks of the
 environment holds.
 */
int ascend_alloc_register_acl_allocator(int device,
                                        void *stream);

/*
 Ends what ascend_alloc_register_acl_allocator began. To be called when no operator is running on the stream that
 has taken a workspace; blocks still out can be given back all the same. A stream that is not registered is no
 error. Callable from any thread. In a forked child it does nothing and succeeds.
 */
int ascend_alloc_unregister_acl_allocator(int device,
                                          void *stream);

/*
 Device memory that changes its size and never its address. Address space for the maximum is reserved at once;
 memory is put behind it chunk by chunk (2 MiB on all parts seen so far), and nothing is ever copied. Its
 number, never 0 and never used again, goes to *buffer.

 Callable from any thread. Given up with ascend_alloc_buffer_destroy; it cannot be freed by its address.

 # Safety

 options is null or points to as many bytes as its struct_size says, and at least to that field; buffer is
 null or valid for a write. Else as ascend_alloc_malloc.
 */
int ascend_alloc_buffer_create(int device,
                               void *stream,
                               const struct ascend_alloc_buffer_options_t *options,
                               uint64_t *buffer);

/*
 Makes the buffer size bytes long, where it is. What is kept keeps its content; what is new has none defined. What
 is cut off goes back in the order of the stream; nobody may queue new work on it. The rest of the last chunk stays
 with the buffer, so there the program sees to the order of streams itself. After a failure the buffer is as it was.

 Callable from any thread; calls for one buffer take turns.
 */
int ascend_alloc_buffer_resize(uint64_t buffer,
                               size_t size);

/*
 Tells that work on the stream uses the buffer too, from now until it is empty or destroyed.
 ASCEND_ALLOC_STATUS_STATE while it is empty: there is nothing to use. Callable from any thread. In a forked child it does nothing and succeeds.
 */
int ascend_alloc_buffer_record_stream(uint64_t buffer,
                                      void *stream);

/*
 What is known of the buffer. Callable from any thread.

 # Safety

 out is null or points to as many bytes as its struct_size says, and at least to that field.
 */
int ascend_alloc_buffer_info(uint64_t buffer, struct ascend_alloc_buffer_info_t *out);

/*
 Frees the buffer like any block. Callable from any thread. In a forked child it does nothing and succeeds.
 */
int ascend_alloc_buffer_destroy(uint64_t buffer);

/*
 Remembers which blocks of the pool are live, with their sizes and streams; changes nothing. The checkpoint's
 number, never 0 and never used again, goes to *checkpoint. The default pool has none.

 Callable from any thread. Forgotten with ascend_alloc_checkpoint_release.

 # Safety

 checkpoint is null or valid for a write.
 */
int ascend_alloc_checkpoint(uint64_t pool, uint64_t *checkpoint);

/*
 Frees every live block of the checkpoint's pool (but not those lent to the default pool or claimed), and hands out the
 blocks of the checkpoint at their old addresses; they are then the caller's to free. The caller sees to it that work
 on the pool's memory runs in order across the change. Streams that live blocks are recorded on, or freed ones wait for,
 are asked whether they have passed what is queued on them.

 The freed addresses go to freed, at most freed_room of them, and the number of all to *freed_count; those handed
 out likewise. Arrays may be null with a room of 0, counts may be null.

 ASCEND_ALLOC_STATUS_STATE when other streams have not passed what uses blocks of the pool, when live blocks are
 exported, when memory of the checkpoint is not mapped any more, was claimed, or serves a growing buffer or the default
 pool by now, when the pool sleeps, and when the device was reset since: nothing has changed then. Callable from any
 thread. The checkpoint can be restored again.

 # Safety

 The arrays are null, with a room of 0, or valid for writes of so many addresses; counts are null or valid for a
 write.
 */
int ascend_alloc_checkpoint_restore(uint64_t checkpoint,
                                    void **freed,
                                    size_t freed_room,
                                    size_t *freed_count,
                                    void **allocated,
                                    size_t allocated_room,
                                    size_t *allocated_count);

/*
 Forgets a checkpoint; no block changes. Callable from any thread. In a forked child it does nothing and succeeds.
 */
int ascend_alloc_checkpoint_release(uint64_t checkpoint);

/*
 Tells that the process is ending: everything free goes back to the devices now, and from now on whenever the
 last live block of all devices has been given back. Waits for the streams that used it. Everything else
 works as before. The library's own holds on devices end too, so that the framework's reset of a device resets it.
 For frameworks that give their last blocks back while they shut down and then reset the devices; to be called
 before that begins.

 Callable from any thread. In a forked child it does nothing and succeeds.

 # Safety

 The caller has open (aclrtSetDevice) the devices on which there are live blocks.
 */
int ascend_alloc_finish(void);

/*
 Keeps the newest entries events from now on, of all devices together, mostly 24 bytes each; 0 ends that and frees them. The same
 as ascend_alloc_history_record_with(entries, 0, 0). Callable from any thread. With 0, in a forked child it does nothing
 and succeeds.

 # Safety

 Unless ascend_alloc_init was called before, what it asks of the environment holds.
 */
int ascend_alloc_history_record(size_t entries);

/*
 The same; with uses not 0 the streams that blocks are recorded on and what ascend_alloc_host_waited says are kept too,
 with stacks not 0 the stack is captured for allocations and frees of threads that have set no context, which takes
 microseconds for each. Callable from any thread, in a forked child as ascend_alloc_history_record.

 # Safety

 As ascend_alloc_history_record.
 */
int ascend_alloc_history_record_with(size_t entries,
                                     int uses,
                                     int stacks);

/*
 The events of a device that the history has, as JSON: {"device":0,"lost":count,"events":[...]}. An event has
 "sequence", "time_ns", "action" (the words of PyTorch where it has one: "alloc", "free_requested", "free_completed",
 "segment_map" and so on), "address", "size", "requested_size", "stream", "pool", "tag" and "context" (a text or
 null). lost counts the events of all devices that are no longer known. Numbers are decimal; sizes bytes.

 Writes as ascend_alloc_snapshot_json does. Callable from any thread.

 # Safety

 buffer is null, with a room of 0, or valid for writes of room bytes; length is null or valid for a write.
 */
int ascend_alloc_history_json(int device,
                              char *buffer,
                              size_t room,
                              size_t *length);

/*
 Tells visit of all events since the history was started or this was called last, by number, and writes to lost,
 which may be null, how many of those are no longer known. The history goes on. Callable from any thread.

 # Safety

 visit may be called with user, by this thread, until this returns; lost is null or valid for a write.
 */
int ascend_alloc_history_drain(ascend_alloc_history_visit_t visit,
                               void *user,
                               uint64_t *lost);

/*
 Says who causes what the calling thread does from now on, in histories and snapshots; null for nobody. The text is copied;
 each text is kept once for the process, the first 1024 bytes of it, and 65 536 different ones at most. Costs a lookup, so a
 text should stand for many requests. In a forked child it does nothing and succeeds.

 # Safety

 text is null or ends with a zero byte.
 */
int ascend_alloc_set_context(const char *text);

/*
 Says something to the history and to a trace, where it is a marker. Nothing while nobody keeps events. Callable from any
 thread. In a forked child it does nothing and succeeds.

 # Safety

 text ends with a zero byte.
 */
int ascend_alloc_mark(const char *text);

/*
 Tells that the program has waited on the host for a stream: a trace that is recorded has that then. It changes nothing
 else. Callable from any thread. In a forked child it does nothing and succeeds.
 */
int ascend_alloc_host_waited(int device,
                             void *stream);

/*
 Begins to record a trace that `ascend-alloc replay` reads, compressed if path ends with .zst; %p in it stands for the process.
 What is live stands at its beginning. A trace that is being recorded ends. A trace is about one device: the first that
 appears; each other one gets a file of its own, with ".deviceN" before the first dot of its name. The variable ASCEND_ALLOC_TRACE does the same
 from the start of the process. Callable from any thread.

 # Safety

 As ascend_alloc_history_record; path ends with a zero byte.
 */
int ascend_alloc_trace_start(const char *path);

/*
 Ends the trace that is being recorded and writes the rest of it. Nothing where there is none. Callable from any
 thread. In a forked child it does nothing and succeeds.
 */
int ascend_alloc_trace_stop(void);

/*
 Begins to write all events to a file, compressed if path ends with .zst; %p in it stands for the process. Beyond most_bytes the
 file gets a number before the first dot of its name and another one is begun; of most_files (at least 1), those that an
 earlier process put aside under the same name among them, the oldest is removed. A file that is being written ends. docs/history.md has the format. Callable from any thread.

 # Safety

 As ascend_alloc_history_record; path ends with a zero byte.
 */
int ascend_alloc_history_file_start(const char *path,
                                    uint64_t most_bytes,
                                    int most_files);

/*
 Ends that file and writes the rest of it. Nothing where there is none. Callable from any thread. In a forked child it
 does nothing and succeeds.
 */
int ascend_alloc_history_file_stop(void);

/*
 Writes what has happened so far to all files that are being written. ASCEND_ALLOC_STATUS_STATE when that takes more than
 five seconds; it goes on then. Callable from any thread. In a forked child, whose parent writes them, it does nothing and
 succeeds.
 */
int ascend_alloc_flush_files(void);

/*
 How often something could not be written: statistics, history, traces, reports. Callable from any thread.
 */
uint64_t ascend_alloc_failed_writes(void);

/*
 Writes all memory of all devices at this moment to a file: a pickle that PyTorch's memory tools read, or JSON if path ends with
 .json. With events not 0 the events of the history are in it. The file is replaced as a whole. Callable from any thread.

 # Safety

 As ascend_alloc_history_record; path ends with a zero byte.
 */
int ascend_alloc_snapshot_write(const char *path,
                                int events);

/*
 Sets the one function that is told of every event, or removes it (null). While one is set every call takes the
 slow way. Once nobody will call it any more, which can be a moment after it was replaced, release is called with
 user; it may be null. After a failure release is called before this returns.

 Callable from any thread. Sets the allocator up if nobody has. In a forked child removing does nothing and succeeds.

 # Safety

 hook may be called with user from any thread until release is called, and release once from any. Else as
 ascend_alloc_init.
 */
int ascend_alloc_set_event_hook(ascend_alloc_hook_t hook,
                                void *user,
                                ascend_alloc_release_t release);

/*
 Adds a function that frees memory; they are called in the order they were added, one by one, until the request can be
 served. Its number, never 0 and never used again, goes to *callback_number. Once nobody will call it any more,
 release is called with user; it may be null. After a failure release is called before this returns.

 Callable from any thread. Sets the allocator up if nobody has.

 # Safety

 callback may be called with user from any thread until release is called, and release once from any;
 callback_number is null or valid for a write. Else as ascend_alloc_init.
 */
int ascend_alloc_add_memory_callback(ascend_alloc_memory_callback_t callback,
                                     void *user,
                                     ascend_alloc_release_t release,
                                     uint64_t *callback_number);

/*
 Removes such a function; it may still be running in another thread. Callable from any thread. In a forked child it
 does nothing and succeeds.
 */
int ascend_alloc_remove_memory_callback(uint64_t callback_number);

/*
 Page-locked host memory of at least size bytes at a multiple of 512, taken through the device, which
 copies with any device may use. The content is not defined; freed memory is kept for later requests as
 the pinned_* settings say. A size of 0 gives null and is no error; for every other size null
 means that ascend_alloc_last_status says why. Callable from any thread.

 # Safety

 As ascend_alloc_malloc.
 */
void *ascend_alloc_host_malloc(size_t size, int device);

/*
 Gives page-locked host memory back; null is accepted. Copies that were told with
 ascend_alloc_host_record_stream may still run: the memory is reused when their streams have passed.
 Callable from any thread. In a forked child it does nothing and succeeds.
 */
int ascend_alloc_host_free(void *ptr);

/*
 Tells that work queued on a stream of a device uses a page-locked block: once freed, it is not reused before that
 stream has passed the free. Null is accepted. Callable from any thread. In a forked child it does nothing and
 succeeds.
 */
int ascend_alloc_host_record_stream(void *ptr,
                                    int device,
                                    void *stream);

/*
 Gives free page-locked memory of all devices back. Waits for nothing (but for a device that was reset since, because
 its events are gone): what streams may still use stays.
 Callable from any thread. In a forked child it does nothing and succeeds.
 */
int ascend_alloc_host_empty_cache(void);

/*
 The same, but waits for the streams that used the memory. Callable from any thread. In a forked child it does nothing
 and succeeds.
 */
int ascend_alloc_host_empty_cache_waiting(void);

/*
 The statistics of page-locked memory taken through a device; all zero while there is none. Callable from any
 thread.

 # Safety

 stats is null or points to as many bytes as its struct_size says, and at least to that field.
 */
int ascend_alloc_host_get_stats(int device, struct ascend_alloc_host_stats_t *stats);

/*
 A new pool of the device, empty; its number, never 0 and never used again, goes to *pool. options may be
 null. Sets the allocator up if nobody has.

 Callable from any thread. Given up with ascend_alloc_pool_release.

 # Safety

 options is null or points to as many bytes as its struct_size says, and at least to that field; its tag is
 null or a text that ends with a zero byte; its functions may be called, from any thread, for as long as the
 pool has memory. pool is null or valid for a write. Else as ascend_alloc_malloc.
 */
int ascend_alloc_pool_create(int device, const struct ascend_alloc_pool_options_t *options, uint64_t *pool);

/*
 The number of the device's default pool, for ascend_alloc_pool_begin: requests inside go there whatever routes
 are outside. 0 for a device that is not there, as far as that is known: once the allocator is set up.

 Callable from any thread.
 */
uint64_t ascend_alloc_pool_default(int device);

/*
 Gives up the hold on a pool that ascend_alloc_pool_create made, which is possible once. Live blocks stay valid; what is
 idle serves other pools, and the pool is gone with its last memory. Until then other calls still take its number. Once
 nobody holds it any more, idle memory of source_malloc goes back to source_free, because it serves no other pool (while
 a graph is captured on the device, when that has ended); what is still in use goes with ascend_alloc_empty_cache.
 ASCEND_ALLOC_STATUS_STATE for the pools that the library makes itself: of tags, of one-handle blocks, and while caching
 is off.

 Callable from any thread. In a forked child it does nothing and succeeds.
 */
int ascend_alloc_pool_release(uint64_t pool);

/*
 Switches caching of the device off (on is 0) or on again (on is not 0). While it is off, each request that no pool is
 named for, and no route begun later takes, gets a fixed block of the driver's, which goes back to it with its free; that
 waits for the streams that used it. A block that was handed out before goes back where it came from. For finding
 programs that use memory after its free, and how much one needs at least; the blocks are those of a pool with the tag
 uncached. *before, which may be null, gets 1 if caching was on and 0 if not. Refused while a graph is captured on the
 device. Sets the allocator up if nobody has.

 Callable from any thread.

 # Safety

 before is null or valid for a write. Else as ascend_alloc_init.
 */
int ascend_alloc_set_caching(int device,
                             int on,
                             int *before);

/*
 Gives all free memory of the pool back; waits for the streams that used it. Nothing goes back while a graph is being
 captured on the device. *freed, which may be null, gets the
 bytes. Callable from any thread. In a forked child it does nothing and succeeds, with 0 bytes.

 # Safety

 freed is null or valid for a write.
 */
int ascend_alloc_pool_empty_cache(uint64_t pool,
                                  size_t *freed);

/*
 A block from the pool, whatever routes there are; else as ascend_alloc_malloc.

 # Safety

 As ascend_alloc_malloc.
 */
void *ascend_alloc_pool_malloc(uint64_t pool, size_t size, void *stream);

/*
 Statistics of a pool; not of the default one. Callable from any thread.

 # Safety

 out is null or points to as many bytes as its struct_size says, and at least to that field.
 */
int ascend_alloc_pool_stats(uint64_t pool, struct ascend_alloc_pool_stats_t *out);

/*
 From now on requests that the filter, a value of ascend_alloc_filter, takes go to the pool, until
 ascend_alloc_pool_end. The newest route that takes a request wins, so that routes nest. stream is looked at by
 the filters that name one. The pool is held meanwhile. No graph is captured by this alone.

 Callable from any thread.
 */
int ascend_alloc_pool_begin(uint64_t pool,
                            int filter,
                            void *stream);

/*
 The same for requests for streams that a function accepts. Once nobody will call it any more, which can be
 some time after the route has ended, release is called with user; it may be null. After a failure
 release is called before this returns.

 # Safety

 accepts may be called with user from any thread until release is called, and release once from any.
 */
int ascend_alloc_pool_begin_with(uint64_t pool,
                                 ascend_alloc_accepts_t accepts,
                                 void *user,
                                 ascend_alloc_release_t release);

/*
 Ends the newest route to the pool that this thread began, or if it began none the newest of all; also one of a
 capture. Routes of one thread end in the order opposite to the one they began in; another order is refused with
 ASCEND_ALLOC_STATUS_STATE.

 Callable from any thread. In a forked child it does nothing and succeeds.
 */
int ascend_alloc_pool_end(uint64_t pool);

/*
 Begins to capture a graph into the pool: as ascend_alloc_pool_begin, and the pool's addresses stay mapped until
 ascend_alloc_graph_release. Until ascend_alloc_pool_end ends the capture, nothing of the whole device's memory
 is moved, given back or waited for: a request that free and new memory cannot serve fails. Several graphs may share a
 pool if they never run at the same time, and run in the order they were captured in or use no results of one another. The default pool is refused;
 ASCEND_ALLOC_STATUS_STATE while the pool sleeps. To be called before the driver begins to capture: streams that may
 still use the pool's free memory are asked now, by an event each, and no event that another thread is recording comes
 into the graph. Where a route that begins later, also that of another capture, sends a request that the filter takes to
 another pool, the addresses of that one stay mapped too (those of the default pool do not).

 Callable from any thread.
 */
int ascend_alloc_capture_begin(uint64_t pool,
                               int filter,
                               void *stream);

/*
 The same with a function, as ascend_alloc_pool_begin_with.

 # Safety

 As ascend_alloc_pool_begin_with.
 */
int ascend_alloc_capture_begin_with(uint64_t pool,
                                    ascend_alloc_accepts_t accepts,
                                    void *user,
                                    ascend_alloc_release_t release);

/*
 A graph captured into the pool is gone, or its capture has failed: once for each
 ascend_alloc_capture_begin, also after a reset of the device, which ends all graphs: those that it has ended come first,
 and their release does nothing else. ASCEND_ALLOC_STATUS_STATE when all were released.

 Callable from any thread. In a forked child it does nothing and succeeds.
 */
int ascend_alloc_graph_release(uint64_t pool);

/*
 This process as others name it in ascend_alloc_export_options_t, for memory of the device. Callable from any
 thread.

 # Safety

 process_id is null or valid for a write. Else as ascend_alloc_init.
 */
int ascend_alloc_process_id(int device, int32_t *process_id);

/*
 Exports the live block that begins at ptr. options may be null. The number of the export, never 0 and never used
 again, goes to *export_number; ascend_alloc_export_message gives what importers need. The block stays live until
 ascend_alloc_export_release, also when it is freed; that must not come before all importers are done, which they
 have to tell in their own way. Importers get whole chunks: neighbouring blocks in the first and last one too.

 ASCEND_ALLOC_STATUS_STATE for memory that cannot be exported: in segments that cannot grow, of pools that sleep, and
 where a chunk was exported before for other importers (for any, or for named ones), if only by an export whose list of
 processes the driver refused. A list has at most 65535 of them. While it is exported the block
 cannot be shrunk, and its pool cannot sleep. Callable from any thread.

 # Safety

 options is null or points to as many bytes as its struct_size says, and at least to that field; its processes point
 to so many numbers. export_number is null or valid for a write.
 */
int ascend_alloc_export(void *ptr,
                        const struct ascend_alloc_export_options_t *options,
                        uint64_t *export_number);

/*
 The message that another process passes to ascend_alloc_import: at most room bytes of it to buffer, and its whole
 length to length. Nothing is written to a buffer that is too small. Callable from any thread.

 # Safety

 buffer is null, with a room of 0, or valid for writes of room bytes; length is null or valid for a write.
 */
int ascend_alloc_export_message(uint64_t export_number,
                                void *buffer,
                                size_t room,
                                size_t *length);

/*
 Lets more processes import a block that was exported with only_processes. ASCEND_ALLOC_STATUS_STATE once the device was
 reset. Callable from any thread.

 # Safety

 processes points to count numbers, or count is 0.
 */
int ascend_alloc_export_allow(uint64_t export_number,
                              const int32_t *processes,
                              size_t count);

/*
 Ends an export. Callable from any thread. In a forked child it does nothing and succeeds.
 */
int ascend_alloc_export_release(uint64_t export_number);

/*
 Maps a block that another process has exported, for use by the device and first on the stream. Its address here goes
 to *ptr, its bytes to *size, which may be null, and the number of the import, never 0 and never used again, to
 *import_number. All imports of one message for one device share one mapping; other devices of the process import it for
 themselves, which needs aclrtMemSetAccess, and lose it with a reset of the first one. Not freed by its address. A message that is not whole
 or not ours is refused, with ASCEND_ALLOC_STATUS_STATE one of this process. The exporter must not end the export
 before; in which order its work and the work here touch the block is for the two processes to arrange.

 Callable from any thread. Given up with ascend_alloc_import_release.

 # Safety

 message points to length bytes; the others are null or valid for a write. Else as ascend_alloc_malloc.
 */
int ascend_alloc_import(const void *message,
                        size_t length,
                        int device,
                        void *stream,
                        void **ptr,
                        size_t *size,
                        uint64_t *import_number);

/*
 Tells that work on the stream uses the imported block too. Callable from any thread. In a forked child it does nothing
 and succeeds.
 */
int ascend_alloc_import_record_stream(uint64_t import_number,
                                      void *stream);

/*
 Gives an import up: with the last of one message its memory is unmapped, once the streams that used it have passed.
 Callable from any thread. In a forked child it does nothing and succeeds.
 */
int ascend_alloc_import_release(uint64_t import_number);

/*
 Lets work on other devices of this process use the memory of the device: all that is mapped now and all that will
 be. The links between the devices are opened in both directions. Replaces what was set before; a count of 0 sets none.
 Access that was given to mapped memory stays: ACL cannot take it away. The device itself, and devices that cannot
 reach it, are refused. After a failure the peers are those from before. A reset of one of the devices
 closes its links: set them again then. Callable from any thread.

 # Safety

 peers points to count numbers, or count is 0. Else as ascend_alloc_init.
 */
int ascend_alloc_set_peers(int device,
                           const int32_t *peers,
                           size_t count);

/*
 Puts all pools with one of the tags to sleep (count 0: all pools but the default ones and those with a
 source), on one device or on all (-1): their memory goes back to the device, their addresses and live blocks stay.
 Waits for the streams that used them, and while a captured graph lives on the device, into whatever pool it was
 captured, for all of its streams. Until they wake, nobody may queue work on their blocks or run graphs that use them;
 other memory is used as always, and blocks may be freed. What a graph has freed in its capture is kept and comes back as live blocks do. Pools that sleep already stay as they are, but memory that a call which
 failed left behind them goes back. mode is a value of
 ascend_alloc_sleep_mode; content is kept in page-locked memory as of ascend_alloc_host_malloc, which stays cached after
 waking. out may be null.

 For each device it is done for all its pools or for none. ASCEND_ALLOC_STATUS_ARGUMENT when no pool has a tag that
 is named, ASCEND_ALLOC_STATUS_STATE when a pool cannot sleep: the default one, one with a source, with
 fixed, exported or lent blocks, and all while a graph is captured on the device or another thread puts the pool to
 sleep or wakes it. Callable from any thread.

 # Safety

 tags points to count texts that end with a zero byte, or count is 0. out is null or points to as many bytes as its
 struct_size says, and at least to that field.
 */
int ascend_alloc_sleep(int device,
                       const char *const *tags,
                       size_t count,
                       int mode,
                       struct ascend_alloc_sleep_report_t *out);

/*
 Wakes all pools with one of the tags (count 0: all), on one device or on all (-1): memory is put behind their
 blocks at the same addresses, and kept content is back when the call returns. Pools that are awake stay as they
 are. out may be null. For each device it is done for all its pools or for none: after
 ASCEND_ALLOC_STATUS_OUT_OF_MEMORY they sleep as before, with their content. Callable from any thread.

 # Safety

 As ascend_alloc_sleep.
 */
int ascend_alloc_wake(int device,
                      const char *const *tags,
                      size_t count,
                      struct ascend_alloc_sleep_report_t *out);

/*
 Whether a pool sleeps: 1 or 0 goes to *asleep. Callable from any thread.

 # Safety

 asleep is null or valid for a write.
 */
int ascend_alloc_is_asleep(uint64_t pool, int *asleep);

/*
 The statistics of a device; all zero while it has not been used.

 out->struct_size is set by the caller. Callable from any thread, also in a forked child, which
 reads them as they were at the fork.

 # Safety

 out is null or points to as many bytes as its struct_size says, and at least to that field.
 */
int ascend_alloc_stats(int device, struct ascend_alloc_stats_t *out);

/*
 Lets all peaks of the device start again from the current values. Callable from any thread. In a forked child it
 does nothing and succeeds.
 */
int ascend_alloc_reset_peak_stats(int device);

/*
 Lets all sums and counts of events of the device start again from zero. Callable from any thread. In a forked
 child it does nothing and succeeds.
 */
int ascend_alloc_reset_accumulated_stats(int device);

/*
 Limits the physical memory held on the device to a fraction of its total: more than 0, at most 1,
 which removes this limit. Where the configuration sets one in bytes too, the smaller counts. Memory already held is
 not given back. Sets the allocator up if nobody has.

 Callable from any thread.

 # Safety

 Unless ascend_alloc_init was called before, what it asks of the environment holds.
 */
int ascend_alloc_set_memory_fraction(double fraction,
                                     int device);

/*
 The most physical memory, in bytes, that this library may hold on the device goes to *limit, whoever set that, the
 configuration or ascend_alloc_set_memory_fraction; SIZE_MAX where there is no limit. Sets the allocator up if nobody has.

 Callable from any thread.

 # Safety

 limit is null or valid for a write. Else as ascend_alloc_init.
 */
int ascend_alloc_memory_limit(int device,
                              size_t *limit);

/*
 What is known of the live block that begins at ptr. Callable from any thread.

 # Safety

 out is null or points to as many bytes as its struct_size says, and at least to that field.
 */
int ascend_alloc_block_info(void *ptr, struct ascend_alloc_block_info_t *out);

/*
 The first address of the segment that the live block beginning at ptr lies in, and the bytes of address
 space of that segment. Only part of it need have memory behind it. base and size may be null.

 Callable from any thread.

 # Safety

 base and size are null or valid for a write.
 */
int ascend_alloc_base(void *ptr, void **base, size_t *size);

/*
 All memory of a device at one moment, as JSON: {"device":0,"cached_handles":bytes,"segments":[...]}. A
 segment has "address", "total_size", "allocated_size", "active_size", "requested_size", "segment_type"
 ("small" or "large"), "is_expandable", "base", "pool" (its number, 0 for the default one), "is_asleep", "stream" (of its
 first block) and "blocks"; a block has "address", "size", "requested_size", "stream" and "state":
 "active_allocated", "active_pending_free", "inactive" or "in_transit". Numbers are decimal; sizes bytes.

 Writes as snprintf does: at most room bytes with the zero behind them, and the length of the whole text
 without the zero to length, which may be null. Memory may change between two calls, so one that asks for the
 length and one that reads can differ. Callable from any thread.

 # Safety

 buffer is null, with a room of 0, or valid for writes of room bytes; length is null or valid for a write.
 */
int ascend_alloc_snapshot_json(int device,
                               char *buffer,
                               size_t room,
                               size_t *length);

/*
 For frameworks that keep work in a queue of their own before the runtime library gets it, as torch_npu does: sets
 the one function that is called before this library records an event on a stream or waits for a stream or a
 device, or removes it (null). Without it memory could be handed to another stream before work that
 is still queued has used it. Where the function cannot do it, no event is recorded, and memory is
 found elsewhere. Once nobody will call it any more, release is called with user; it may be null.
 After a failure release is called before this returns.

 Callable from any thread. Sets the allocator up if nobody has. In a forked child removing does nothing and succeeds.

 # Safety

 submit may be called with user from any thread until release is called, and release once from any. Else as
 ascend_alloc_init.
 */
int ascend_alloc_set_submit_hook(ascend_alloc_submit_t submit,
                                 void *user,
                                 ascend_alloc_release_t release);

/*
 A block of the calling thread's tag; else as ascend_alloc_malloc, whose signature it has.

 # Safety

 As ascend_alloc_malloc.
 */
void *ascend_alloc_tagged_malloc(size_t size, int device, void *stream);

/*
 Gives such a block back, also while it is paused. The same as ascend_alloc_free.
 */
void ascend_alloc_tagged_free(void *ptr, size_t size, int device, void *stream);

/*
 From now on ascend_alloc_tagged_malloc gives the calling thread blocks of this tag; null for "default". The
 tag "sleep_persistent" is left out when all tags are paused. The text is copied.

 # Safety

 tag is null or a text that ends with a zero byte.
 */
int ascend_alloc_set_tag(const char *tag);

/*
 The calling thread's tag, written as snprintf does: at most room bytes with the zero behind them, and the length
 of the whole tag without the zero to length, which may be null.

 # Safety

 buffer is null, with a room of 0, or valid for writes of room bytes; length is null or valid for a write.
 */
int ascend_alloc_get_tag(char *buffer,
                         size_t room,
                         size_t *length);

/*
 Whether the content of a tag's blocks is kept on the host when it is paused: 0, as at first, or not 0. tag is null
 for "default". Counts for pauses from now on, also of tags nobody has used yet. Callable from any thread.

 # Safety

 tag is null or a text that ends with a zero byte.
 */
int ascend_alloc_set_host_copy(const char *tag,
                               int enabled);

/*
 Gives the memory of the tag's blocks, on all devices, back and keeps their addresses; null: of all tags but
 "sleep_persistent". host_copy: 0 loses the content, 1 keeps it on the host, -1 does for each tag as
 ascend_alloc_set_host_copy says. Waits for work that uses the blocks. What is paused already stays so; memory that a call
 which failed left behind it goes back.

 Tags whose content is kept come first; after a failure those that were paused before it stay paused, and a resume
 brings them back. Callable from any thread.

 # Safety

 tag is null or a text that ends with a zero byte.
 */
int ascend_alloc_pause(const char *tag,
                       int host_copy);

/*
 Puts memory behind the tag's blocks again, at their old addresses and with what was kept of their content; null:
 of all tags. What is not paused stays as it is. After ASCEND_ALLOC_STATUS_OUT_OF_MEMORY the tags are paused as
 before, on the device without memory and those with higher numbers. Callable from any thread.

 # Safety

 tag is null or a text that ends with a zero byte.
 */
int ascend_alloc_resume(const char *tag);

/*
 Tells visit of all memory of a device at one moment: segments by address, each followed by its blocks by address.

 Callable from any thread.

 # Safety

 visit may be called with user, by this thread, until this returns.
 */
int ascend_alloc_snapshot_visit(int device,
                                ascend_alloc_visit_t visit,
                                void *user);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ASCEND_ALLOC_H */
