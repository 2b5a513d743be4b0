//! The C functions by name, from a library that was loaded or from the program itself, and their structs.

use core::ffi::{c_char, c_int, c_void};

/// Tells once that nobody will use a `user` pointer again.
pub(crate) type Release = Option<unsafe extern "C" fn(*mut c_void)>;
pub(crate) type EventHook = Option<unsafe extern "C" fn(*const Event, *mut c_void)>;
pub(crate) type MemoryCallback = Option<unsafe extern "C" fn(c_int, usize, *mut c_void) -> c_int>;
pub(crate) type Visit = Option<unsafe extern "C" fn(*const SegmentEntry, *const BlockEntry, *mut c_void)>;

macro_rules! structs {
    ($($name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {$(
        /// The struct of that name of `ascend_alloc.h`.
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)]
        pub struct $name { $(pub $field: $kind),* }

        impl $name {
            /// All zero but for the size, where it has one.
            #[must_use]
            pub fn zero() -> Self {
                // SAFETY: numbers, null pointers and functions that are not there.
                unsafe { core::mem::zeroed() }
            }
        }
    )*};
}

structs! {
    Request {
        struct_size: usize, size: usize, alignment: usize, stream: *mut c_void, pool: u64, device: c_int, flags: u32,
    }
    BufferOptions { struct_size: usize, max_size: usize, least_max_size: usize, size: usize, pool: u64 }
    BufferEntry {
        struct_size: usize, ptr: *mut c_void, size: usize, max_size: usize, mapped: usize, stream: *mut c_void,
        device: c_int,
    }
    Event {
        struct_size: usize, action: c_int, device: c_int, ptr: *mut c_void, size: usize, stream: *mut c_void,
    }
    Stat { current: i64, peak: i64, allocated: i64, freed: i64 }
    StatArray { all: Stat, small: Stat, large: Stat }
    Duration { total: u64, max: u64, min: u64, count: u64, avg: u64 }
    HostStats {
        struct_size: usize, active_requests: Stat, active_bytes: Stat, allocations: Stat, allocated_bytes: Stat,
        num_host_alloc: i64, num_host_free: i64, host_alloc_time: Duration, host_free_time: Duration,
    }
    PoolOptions {
        struct_size: usize, tag: *const c_char, soft_limit: usize,
        source_malloc: Option<unsafe extern "C" fn(usize, c_int, *mut c_void, *mut c_void) -> *mut c_void>,
        source_free: Option<unsafe extern "C" fn(*mut c_void, usize, c_int, *mut c_void)>,
        source_user: *mut c_void, no_split: c_int, use_on_oom: c_int,
    }
    PoolStats {
        struct_size: usize, allocated_bytes: StatArray, active_bytes: StatArray, reserved_bytes: StatArray,
        reserved_address_space: i64, graphs: i64,
    }
    ExportOptions {
        struct_size: usize, processes: *const i32, process_count: usize, only_processes: c_int, form: c_int,
    }
    SleepReport { struct_size: usize, pools: u64, bytes: u64, device_bytes: u64, host_bytes: u64 }
    Stats {
        struct_size: usize, allocation: StatArray, segment: StatArray, active: StatArray, inactive_split: StatArray,
        allocated_bytes: StatArray, reserved_bytes: StatArray, active_bytes: StatArray,
        inactive_split_bytes: StatArray, requested_bytes: StatArray, oversize_allocations: Stat,
        oversize_segments: Stat, num_alloc_retries: i64, num_ooms: i64, num_sync_all_streams: i64,
        num_device_alloc: i64, num_device_free: i64, max_split_size: i64, reserved_address_space: i64,
        cached_handles: i64, sleeping_bytes: i64, chunks_moved: i64, map_calls: i64, unmap_calls: i64,
        malloc_physical_calls: i64, free_physical_calls: i64, wait_calls: i64,
        size_mismatches: i64,
    }
    BlockEntryInfo {
        struct_size: usize, ptr: *mut c_void, size: usize, requested: usize, segment: *mut c_void,
        segment_size: usize, stream: *mut c_void, pool: u64, device: c_int,
    }
    SegmentEntry {
        struct_size: usize, ptr: *mut c_void, size: usize, allocated: usize, active: usize, requested: usize,
        base: *mut c_void, stream: *mut c_void, pool: u64, device: c_int, is_small: c_int, is_expandable: c_int,
        is_asleep: c_int,
    }
    BlockEntry {
        struct_size: usize, ptr: *mut c_void, size: usize, requested: usize, stream: *mut c_void, state: c_int,
    }
}

macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $answer:ty)?;)*) => {
        /// The functions of `ascend_alloc.h`, without `ascend_alloc_` before their names.
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)]
        pub struct Functions { $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $answer)?),* }

        impl Functions {
            /// Their full names.
            pub const NAMES: &[&str] = &[$(concat!("ascend_alloc_", stringify!($name))),*];

            /// Takes each function from where `find` knows it.
            ///
            /// # Panics
            ///
            /// One is missing.
            ///
            /// # Safety
            ///
            /// What is found is the function of that name of this repository's C library.
            #[must_use]
            pub unsafe fn find(find: &dyn Fn(&str) -> Option<*const c_void>) -> Self {
                $(
                    let name = concat!("ascend_alloc_", stringify!($name));
                    let address = find(name).unwrap_or_else(|| panic!("{name} is missing"));
                    // SAFETY: the caller's promise; a function and a pointer have one size on all machines here.
                    let $name = unsafe {
                        core::mem::transmute::<*const c_void, unsafe extern "C" fn($($argument),*) $(-> $answer)?>(address)
                    };
                )*
                Self { $($name),* }
            }
        }
    };
}

type P = *mut c_void;

functions! {
    last_error() -> *const c_char;
    last_status() -> c_int;
    init(*const c_char) -> c_int;
    malloc(usize, c_int, P) -> P;
    free(P, usize, c_int, P);
    release(P) -> c_int;
    allocate(*const Request, *mut P) -> c_int;
    grow_in_place(P, usize, *mut c_int) -> c_int;
    shrink_in_place(P, usize) -> c_int;
    record_stream(P, P) -> c_int;
    erase_stream(P, P) -> c_int;
    stream_destroyed(c_int, P) -> c_int;
    device_was_reset(c_int) -> c_int;
    empty_cache(c_int) -> c_int;
    trim(c_int, usize, *mut usize) -> c_int;
    register_acl_allocator(c_int, P) -> c_int;
    unregister_acl_allocator(c_int, P) -> c_int;
    buffer_create(c_int, P, *const BufferOptions, *mut u64) -> c_int;
    buffer_resize(u64, usize) -> c_int;
    buffer_record_stream(u64, P) -> c_int;
    buffer_info(u64, *mut BufferEntry) -> c_int;
    buffer_destroy(u64) -> c_int;
    checkpoint(u64, *mut u64) -> c_int;
    checkpoint_restore(u64, *mut P, usize, *mut usize, *mut P, usize, *mut usize) -> c_int;
    checkpoint_release(u64) -> c_int;
    set_event_hook(EventHook, P, Release) -> c_int;
    add_memory_callback(MemoryCallback, P, Release, *mut u64) -> c_int;
    remove_memory_callback(u64) -> c_int;
    host_malloc(usize, c_int) -> P;
    host_free(P) -> c_int;
    host_record_stream(P, c_int, P) -> c_int;
    host_empty_cache() -> c_int;
    host_empty_cache_waiting() -> c_int;
    host_get_stats(c_int, *mut HostStats) -> c_int;
    pool_create(c_int, *const PoolOptions, *mut u64) -> c_int;
    pool_release(u64) -> c_int;
    pool_default(c_int) -> u64;
    pool_empty_cache(u64, *mut usize) -> c_int;
    pool_malloc(u64, usize, P) -> P;
    pool_stats(u64, *mut PoolStats) -> c_int;
    pool_begin(u64, c_int, P) -> c_int;
    pool_end(u64) -> c_int;
    capture_begin(u64, c_int, P) -> c_int;
    graph_release(u64) -> c_int;
    process_id(c_int, *mut i32) -> c_int;
    export(P, *const ExportOptions, *mut u64) -> c_int;
    export_message(u64, P, usize, *mut usize) -> c_int;
    export_allow(u64, *const i32, usize) -> c_int;
    export_release(u64) -> c_int;
    import(*const c_void, usize, c_int, P, *mut P, *mut usize, *mut u64) -> c_int;
    import_record_stream(u64, P) -> c_int;
    import_release(u64) -> c_int;
    set_peers(c_int, *const i32, usize) -> c_int;
    sleep(c_int, *const *const c_char, usize, c_int, *mut SleepReport) -> c_int;
    wake(c_int, *const *const c_char, usize, *mut SleepReport) -> c_int;
    is_asleep(u64, *mut c_int) -> c_int;
    stats(c_int, *mut Stats) -> c_int;
    reset_peak_stats(c_int) -> c_int;
    reset_accumulated_stats(c_int) -> c_int;
    set_memory_fraction(f64, c_int) -> c_int;
    block_info(P, *mut BlockEntryInfo) -> c_int;
    base(P, *mut P, *mut usize) -> c_int;
    snapshot_json(c_int, *mut c_char, usize, *mut usize) -> c_int;
    tagged_malloc(usize, c_int, P) -> P;
    tagged_free(P, usize, c_int, P);
    set_tag(*const c_char) -> c_int;
    get_tag(*mut c_char, usize, *mut usize) -> c_int;
    set_host_copy(*const c_char, c_int) -> c_int;
    pause(*const c_char, c_int) -> c_int;
    resume(*const c_char) -> c_int;
    snapshot_visit(c_int, Visit, P) -> c_int;
}
