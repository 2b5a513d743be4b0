//! The C library of ascend-alloc: `libascend_alloc.so` and `libascend_alloc.a`.
//!
//! ```text
//!   C caller ─► entry points ─► guard: catches panics, knows forked children, keeps status and text
//!                    │
//!                    ├─► arguments: nulls, alignment, sizes of structs, texts
//!                    └─► process: the one allocator of the process, on the vendor's runtime library
//! ```
//!
//! | module | entry points |
//! |---|---|
//! | here | init, malloc and free, requests with attributes, streams, cache |
//! | `stats` | statistics, limits, blocks, snapshots |
//! | `pools` | pools, routes and captures |
//! | `checkpoint` | checkpoints of pools |
//! | `sleep` | sleep and wake by tag |
//! | `tagged` | what sleep-mode allocators of serving frameworks offer |
//! | `buffers` | growing buffers |
//! | `share` | exports and imports between processes, peers |
//! | `hook` | the event hook and memory callbacks |
//! | `acl_allocator` | allocators of ACL's own hook |
//! | `host` | page-locked host memory |
//! | `history` | events, files of them, traces, contexts |
//!
//! The header `include/ascend_alloc.h` is generated from these files; the comments of public items are written
//! for readers of the header. Objects are named by numbers or addresses that are looked up, never followed. No
//! panic leaves an entry point. Nothing else is exported: neither an `acl*` name, which would take the place
//! of the vendor's function in the whole process, nor Rust symbols.

mod acl_allocator;
mod arguments;
mod buffers;
mod checkpoint;
mod ending;
mod fork;
mod guard;
mod history;
mod hook;
mod host;
mod one_handle;
mod pools;
mod process;
mod share;
mod sleep;
mod snapshot;
mod stats;
mod submit;
mod tagged;
mod walk;

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;

use allocator::{DeviceAllocator, DevicePtr};

pub use arguments::AscendAllocRelease;
use arguments::Versioned;
pub use process::AscendAllocStatus;
use process::Failure;

/// The version of this library as text, such as "0.1.0".
///
/// The text is valid as long as the library is loaded. Callable from any thread at any time.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(text) => text,
            Err(_) => panic!("a version has no zero byte"),
        };
    VERSION.as_ptr()
}

/// What went wrong in the calling thread's last call of this library, as text in UTF-8; null if that call
/// succeeded. This function, ascend_alloc_last_status and ascend_alloc_version are no such calls.
///
/// The text is valid until the thread's next call of this library. It is meant for people: its wording
/// may change.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_last_error() -> *const c_char {
    guard::last_error()
}

/// The status of the calling thread's last call of this library, of use after ascend_alloc_malloc and
/// ascend_alloc_free, which cannot answer one.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_last_status() -> c_int {
    guard::last_status()
}

/// Loads the vendor's runtime library, initialises it if nobody has, and sets the allocator of this process
/// up. Without this call the first ascend_alloc_malloc does the same with a null conf.
///
/// conf is a configuration text as in the environment variable ASCEND_ALLOC_CONF, ended by a zero byte,
/// or null. What it says goes before what the environment variables say, key by key. Warnings about
/// settings without effect are written to standard error.
///
/// The allocator is set up once and stays until the process ends: a second call is refused with
/// ASCEND_ALLOC_STATUS_STATE and changes nothing. After any other failure nothing is set up, and the call
/// may be tried again. Callable from any thread; of several at once one succeeds.
///
/// # Safety
///
/// conf is null or points to a text that ends with a zero byte. The library that the environment
/// names, or that the process has loaded, is the vendor's runtime library or behaves like it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_init(conf: *const c_char) -> c_int {
    guard::status(|| {
        // SAFETY: the caller's promise; the text is copied before this returns.
        let text = (!conf.is_null()).then(|| unsafe { CStr::from_ptr(conf) });
        // SAFETY: the caller's promise.
        unsafe { process::init(text) }
    })
}

/// A block of at least size bytes of memory of the device for work on the stream; its address is a
/// multiple of 512. The content is not defined.
///
/// device is the number that aclrtSetDevice takes; stream an aclrtStream of that device, null for its
/// default stream. A size of 0 gives null and is no error. For every other size null means that
/// there is no block: ascend_alloc_last_error says why, ascend_alloc_last_status which kind of failure it was. A
/// size above PTRDIFF_MAX, which is what a negative number becomes, and a negative device are refused.
///
/// Callable from any thread. The thread's current device and context are not changed. The signature is
/// the one that torch_npu's NPUPluggableAllocator and MindSpore's PluggableAllocator ask for.
///
/// # Safety
///
/// stream is null or a live stream of the device. Unless ascend_alloc_init was called before, what it
/// asks of the environment holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_malloc(size: usize, device: c_int, stream: *mut c_void) -> *mut c_void {
    let run = || {
        let bytes = process::size(size)?;
        let device = process::device(device)?;
        if bytes == 0 {
            return Ok(ptr::null_mut());
        }
        // SAFETY: the caller's promise.
        let allocator = unsafe { process::allocator() }?;
        let block = allocator.allocate(device, bytes, 0, process::stream(stream))?;
        Ok(process::pointer(block.address()))
    };
    guard::run(run).unwrap_or(ptr::null_mut())
}

/// Gives a block back, however it was allocated: by any function of this library that hands out blocks. Null is
/// accepted.
///
/// Work already queued on the block's stream may still run: the memory is handed out again only where that
/// is in order. The caller queues no new work on it.
///
/// The block knows its size, device and stream, and that decides: the device and the stream, which may be destroyed
/// by then, are not looked at, and a size does no harm that is neither 0 nor what was asked for, but is counted
/// (size_mismatches in ascend_alloc_stats_t). A pointer that is not the start of a live block, also one that was given back
/// before, changes nothing; ascend_alloc_last_error says what was wrong.
///
/// Callable from any thread, whatever its current device. In a forked child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_free(ptr: *mut c_void, size: usize, device: c_int, stream: *mut c_void) {
    let _not_needed = (device, stream);
    // The signature has no room for an answer; status and text are kept.
    let _kept: c_int = free(ptr, |allocator, ptr| allocator.deallocate_sized(ptr, size as u64));
}

/// The same as ascend_alloc_free, with the status as answer.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_release(ptr: *mut c_void) -> c_int {
    free(ptr, DeviceAllocator::deallocate)
}

#[inline(always)]
fn free(
    ptr: *mut c_void,
    give_back: impl FnOnce(&DeviceAllocator, DevicePtr) -> allocator::Result<()>,
) -> c_int {
    guard::release(|| {
        if ptr.is_null() {
            return Ok(());
        }
        let allocator = process::existing()?;
        give_back(allocator, DevicePtr(ptr.addr() as u64))?;
        ending::after_free(allocator);
        Ok(())
    })
}

/// Attributes of a request.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum AscendAllocFlag {
    /// The block is one physical handle, mapped as one piece, and nothing else lies in it. Of use where memory is
    /// registered with a network card or a collective and only the first handle of a range is seen.
    ///
    /// The price: the block is rounded up to whole steps of 2 MiB, requests from 1 to 10 MiB to 20 MiB; it takes
    /// three calls of the runtime library, which must find that much memory in one piece; once
    /// freed it serves only such requests, whole; it counts in the statistics (but its calls of the runtime library
    /// do not) and towards the limits; it cannot grow, move or sleep. ascend_alloc_empty_cache gives free ones back.
    OneHandle = 1,
}

/// A request with everything that can be asked for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AscendAllocRequest {
    /// Set by the caller to the size of this struct; later versions grow at the end.
    pub struct_size: usize,
    /// Bytes.
    pub size: usize,
    /// 0 or 1 for the least alignment, 512; else a power of two, at most 1 GiB. 0 with ONE_HANDLE, whose
    /// blocks lie at multiples of 2 MiB.
    pub alignment: usize,
    /// The stream; null for the device's default one.
    pub stream: *mut c_void,
    /// The pool the block is to come from, whatever routes there are; 0 for where the routes lead.
    pub pool: u64,
    /// The device; that of the pool if there is one.
    pub device: c_int,
    /// Sum of ascend_alloc_flag values.
    pub flags: u32,
}

// SAFETY: `repr(C)`, the size first, numbers and a pointer that nobody follows.
unsafe impl Versioned for AscendAllocRequest {
    const FIRST: usize = size_of::<Self>();
}

impl Default for AscendAllocRequest {
    fn default() -> Self {
        let struct_size = size_of::<Self>();
        Self { struct_size, size: 0, alignment: 0, stream: ptr::null_mut(), pool: 0, device: 0, flags: 0 }
    }
}

/// A block as the request describes; its address goes to *out. Else as ascend_alloc_malloc. *out is null after a
/// failure.
///
/// Callable from any thread. The block is given back with ascend_alloc_free or ascend_alloc_release.
///
/// # Safety
///
/// request is null or points to as many bytes as its struct_size says, and at least to that field; out is null or
/// valid for a write. Else as ascend_alloc_malloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_allocate(
    request: *const AscendAllocRequest,
    out: *mut *mut c_void,
) -> c_int {
    guard::status(|| {
        let place = arguments::place(out, "out")?;
        // SAFETY: the caller's promise.
        unsafe { place.write(ptr::null_mut()) };
        // SAFETY: the caller's promise.
        let request = unsafe { arguments::options(request, "request") }?;
        // SAFETY: the caller's promise.
        let block = unsafe { allocate(&request) }?;
        // SAFETY: the caller's promise.
        unsafe { place.write(process::pointer(block.address())) };
        Ok(())
    })
}

/// # Safety
///
/// As [`ascend_alloc_malloc`].
unsafe fn allocate(request: &AscendAllocRequest) -> Result<DevicePtr, process::Failure> {
    const ONE_HANDLE: u32 = AscendAllocFlag::OneHandle as u32;
    let bytes = process::size(request.size)?;
    let (align, stream) = (request.alignment as u64, process::stream(request.stream));
    if request.flags & !ONE_HANDLE != 0 {
        return Err(process::argument(format!(
            "flags is {:#x}, expected a sum of ascend_alloc_flag",
            request.flags
        )));
    }
    // SAFETY: the caller's promise.
    let process = unsafe { process::process() }?;
    if request.flags & ONE_HANDLE != 0 {
        if request.pool != 0 || align > 1 {
            let text = "one-handle blocks have a pool and an alignment of their own; pass 0 for both";
            return Err(process::argument(text.to_owned()));
        }
        return one_handle::allocate(process, process::device(request.device)?, bytes, stream);
    }
    Ok(match request.pool {
        0 => process.allocator.allocate(process::device(request.device)?, bytes, align, stream)?,
        pool => process.allocator.allocate_in(pools::id(pool)?, bytes, align, stream)?,
    })
}

/// Grows a live block to size bytes without moving it. *grown, which may be null, says whether there was room
/// behind it: 1 or 0. What is put behind the block is, as a new block, in order for the block's own stream: other
/// streams, recorded before or not, must be made to wait for that stream anew before they touch it. After a failure the
/// block is unchanged. Callable from any thread.
///
/// # Safety
///
/// grown is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_grow_in_place(
    ptr: *mut c_void,
    size: usize,
    grown: *mut c_int,
) -> c_int {
    guard::status(|| {
        arguments::writable(grown, "grown")?;
        let bytes = process::size(size)?;
        let answer = process::existing()?.grow_in_place(DevicePtr(ptr.addr() as u64), bytes)?;
        // SAFETY: the caller's promise.
        unsafe { arguments::answer(grown, "grown", c_int::from(answer)) }
    })
}

/// Shrinks a live block to size bytes without moving it; what is cut off is freed like a block. A block of more
/// than 1 MiB keeps at least 1 MiB, and every block its last 512 bytes. A size of 0, or of more than was asked for, is
/// refused. Callable from any thread.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_shrink_in_place(ptr: *mut c_void, size: usize) -> c_int {
    guard::status(|| {
        let bytes = process::size(size)?;
        Ok(process::existing()?.shrink_in_place(DevicePtr(ptr.addr() as u64), bytes)?)
    })
}

/// Tells that work on the stream uses the block too: once the block is given back, its memory is not handed out
/// again before that stream has passed that point. The block's own stream needs no telling. Null is accepted.
///
/// Callable from any thread. In a forked child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_record_stream(ptr: *mut c_void, stream: *mut c_void) -> c_int {
    guard::release(|| match ptr.is_null() {
        true => Ok(()),
        false => {
            Ok(process::existing()?.record_stream(DevicePtr(ptr.addr() as u64), process::stream(stream))?)
        }
    })
}

/// Undoes ascend_alloc_record_stream: the caller has seen to it that the stream's work with the block is over, or
/// comes before what the block's own stream does next. A stream that was not recorded changes nothing. Null
/// is accepted.
///
/// Callable from any thread. In a forked child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_erase_stream(ptr: *mut c_void, stream: *mut c_void) -> c_int {
    guard::release(|| match ptr.is_null() {
        true => Ok(()),
        false => {
            Ok(process::existing()?.erase_stream(DevicePtr(ptr.addr() as u64), process::stream(stream))?)
        }
    })
}

/// Tells that a stream is being destroyed, where the runtime library does not tell by itself (before CANN 8.5): to
/// be called before it is, while no other call that could record an event on it is in progress. The library never
/// passes the handle to the runtime library again. Blocks of the stream stay valid, and its free memory is everybody's
/// once the work queued on it is over. An allocator registered with ascend_alloc_register_acl_allocator for it is
/// unregistered. Telling twice does no harm. The default stream (null) cannot be destroyed and is refused.
///
/// Callable from any thread. In a forked child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_stream_destroyed(device: c_int, stream: *mut c_void) -> c_int {
    guard::release(|| {
        let (device, stream) = (process::device(device)?, process::stream(stream));
        acl_allocator::heed();
        acl_allocator::end(device, stream)?;
        process::if_set_up().map_or(Ok(()), |allocator| allocator.stream_destroyed(device, stream))?;
        host::stream_destroyed(device, stream)
    })
}

/// Tells that a device was reset, where the runtime library does not tell by itself (before CANN 8.5). Everything
/// on it is forgotten without a call of the runtime library; giving a block back that was live is accepted once and
/// does nothing, and no new block has its address before that. Pools stay, empty; graphs and sleep have ended,
/// peers are to be set again. Calls of other threads that were waiting for the runtime library fail with
/// ASCEND_ALLOC_STATUS_STATE.
///
/// Callable from any thread. In a forked child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_device_was_reset(device: c_int) -> c_int {
    guard::release(|| {
        let device = process::device(device)?;
        process::if_set_up().map_or(Ok(()), |allocator| allocator.device_was_reset(device))?;
        one_handle::device_was_reset(device);
        Ok(())
    })
}

/// Gives all free memory of a device, or of all devices for -1, back. Waits for the streams that used it; what is freed
/// meanwhile may stay. Nothing goes back while a graph is being captured on the device.
///
/// Callable from any thread. In a forked child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_empty_cache(device: c_int) -> c_int {
    guard::release(|| {
        let device = process::device_or_all(device)?;
        acl_allocator::heed();
        let Some(process) = process::process_if_set_up() else { return Ok(()) };
        let emptied = process.allocator.empty_cache(device);
        let given_back = one_handle::try_again(&process.driver, device);
        emptied.map_err(Failure::from).and(given_back)
    })
}

/// Hands out free memory that lies in size bytes from address on, as one block, so that nobody else gets it: for memory
/// that is bad. *block gets its first address, or NULL when none of the range is free, and *claimed, which may be null,
/// its bytes; it may reach beyond the range. A range may hold several pieces: call until there is none. Live blocks are
/// left alone, and memory that waits for streams or is with the device because its pool sleeps; the chunks of what was
/// claimed before stay when their pool falls asleep. The block belongs to the caller, counts as allocated, and can be freed
/// like any other; no work may use it: what was queued on its memory need
/// not be over. Waits for nothing, and asks nothing of the device.
///
/// Callable from any thread.
///
/// # Safety
///
/// block is valid for a write, claimed null or valid for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_claim(
    device: c_int,
    address: *const c_void,
    size: usize,
    block: *mut *mut c_void,
    claimed: *mut usize,
) -> c_int {
    guard::status(|| {
        let block = arguments::place(block, "block")?;
        arguments::writable(claimed, "claimed")?;
        let device = process::device(device)?;
        let from = address.addr() as u64;
        let answer =
            process::if_set_up().map_or(Ok(None), |allocator| allocator.claim(device, from, size as u64))?;
        let (ptr, bytes) = answer.map_or((0, 0), |(ptr, bytes)| (ptr.0, bytes));
        // SAFETY: the caller's promise.
        unsafe {
            block.write(core::ptr::with_exposed_provenance_mut(ptr as usize));
            arguments::answer(claimed, "claimed", bytes as usize)
        }
    })
}

/// Gives idle memory of the device back until at most keep bytes are held, or nothing more is known to be idle.
/// Waits for nothing. *freed, which may be null, gets the bytes given back.
///
/// Callable from any thread. In a forked child it does nothing and succeeds, with 0 bytes.
///
/// # Safety
///
/// freed is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_trim(device: c_int, keep: usize, freed: *mut usize) -> c_int {
    let run = || {
        let device = process::device(device)?;
        process::if_set_up().map_or(Ok(0), |allocator| Ok(allocator.trim(device, keep as u64)?))
    };
    // SAFETY: the caller's promise.
    unsafe { guard::freed(freed, run) }
}
