//! Calls the C functions, linked into this program, with arguments of any kind.
#![no_main]
// The functions are named here, because their crate exports them to C only.
#![allow(unsafe_code)]

use core::ffi::c_void;
use std::path::PathBuf;
use std::sync::LazyLock;

use ascend_alloc_c as _;
use ascend_alloc_fuzz::abi::{Call, Rig};
use proof::surface::Functions;

macro_rules! linked {
    ($($name:ident),* $(,)?) => {
        unsafe extern "C" { $(fn $name();)* }

        fn find(name: &str) -> Option<*const c_void> {
            match name {
                $(stringify!($name) => Some($name as *const c_void),)*
                _ => None,
            }
        }
    };
}

linked! {
    ascend_alloc_last_error, ascend_alloc_last_status, ascend_alloc_init, ascend_alloc_malloc, ascend_alloc_free,
    ascend_alloc_release, ascend_alloc_allocate, ascend_alloc_grow_in_place, ascend_alloc_shrink_in_place,
    ascend_alloc_record_stream, ascend_alloc_erase_stream, ascend_alloc_stream_destroyed, ascend_alloc_empty_cache,
    ascend_alloc_trim, ascend_alloc_register_acl_allocator, ascend_alloc_unregister_acl_allocator,
    ascend_alloc_buffer_create, ascend_alloc_buffer_resize, ascend_alloc_buffer_record_stream,
    ascend_alloc_buffer_info, ascend_alloc_buffer_destroy, ascend_alloc_checkpoint, ascend_alloc_checkpoint_restore,
    ascend_alloc_checkpoint_release, ascend_alloc_set_event_hook, ascend_alloc_add_memory_callback,
    ascend_alloc_remove_memory_callback, ascend_alloc_host_malloc, ascend_alloc_host_free,
    ascend_alloc_host_record_stream, ascend_alloc_host_empty_cache, ascend_alloc_host_empty_cache_waiting,
    ascend_alloc_host_get_stats,
    ascend_alloc_pool_create, ascend_alloc_pool_release, ascend_alloc_pool_default, ascend_alloc_pool_empty_cache,
    ascend_alloc_pool_malloc, ascend_alloc_pool_stats, ascend_alloc_pool_begin, ascend_alloc_pool_end,
    ascend_alloc_capture_begin, ascend_alloc_graph_release, ascend_alloc_process_id, ascend_alloc_export,
    ascend_alloc_export_message, ascend_alloc_export_allow, ascend_alloc_export_release, ascend_alloc_import,
    ascend_alloc_import_record_stream, ascend_alloc_import_release, ascend_alloc_set_peers, ascend_alloc_sleep,
    ascend_alloc_wake, ascend_alloc_is_asleep, ascend_alloc_stats, ascend_alloc_reset_peak_stats,
    ascend_alloc_reset_accumulated_stats, ascend_alloc_set_memory_fraction, ascend_alloc_block_info,
    ascend_alloc_base, ascend_alloc_snapshot_json, ascend_alloc_tagged_malloc, ascend_alloc_tagged_free,
    ascend_alloc_set_tag, ascend_alloc_get_tag, ascend_alloc_set_host_copy, ascend_alloc_pause, ascend_alloc_resume,
    ascend_alloc_snapshot_visit, ascend_alloc_device_was_reset,
}

static RIG: LazyLock<Rig> = LazyLock::new(|| {
    // SAFETY: these are the functions of this repository's C library.
    let functions = unsafe { Functions::find(&find) };
    let mut files =
        vec![std::env::current_exe().expect("this program has a path").with_file_name("libascendcl.so")];
    for folder in ["release", "debug"] {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target");
        files.push(root.join(folder).join("libascendcl.so"));
    }
    // SAFETY: the same; the files are the simulator's library.
    unsafe { Rig::new(functions, &files) }
});

libfuzzer_sys::fuzz_target!(|calls: Vec<Call>| RIG.run(&calls));
