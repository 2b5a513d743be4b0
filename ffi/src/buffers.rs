//! Growing buffers.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::BTreeMap;
use std::sync::Arc;

use allocator::{GrowableBuffer, GrowableOptions};
use parking_lot::Mutex;

use crate::arguments::{self, Versioned};
use crate::process::{self, Failure, argument};
use crate::{guard, pools};

type Shared = Arc<Mutex<GrowableBuffer>>;

static BUFFERS: Mutex<BTreeMap<u64, Shared>> = Mutex::new(BTreeMap::new());
static LAST: AtomicU64 = AtomicU64::new(0);

/// What is asked of a growing buffer. Sizes in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AscendAllocBufferOptions {
    /// Set by the caller to the size of this struct; later versions grow at the end.
    pub struct_size: usize,
    /// The size it can grow to. Costs address space, not memory.
    pub max_size: usize,
    /// The least maximum that will do where the device does not grant all the address space; 0: any. At least size is
    /// always wanted.
    pub least_max_size: usize,
    /// The size it begins with; may be 0.
    pub size: usize,
    /// The pool it counts to; 0 for where the routes lead.
    pub pool: u64,
}

// SAFETY: `repr(C)`, the size first, and only numbers.
unsafe impl Versioned for AscendAllocBufferOptions {
    const FIRST: usize = size_of::<Self>();
}

impl Default for AscendAllocBufferOptions {
    fn default() -> Self {
        Self { struct_size: size_of::<Self>(), max_size: 0, least_max_size: 0, size: 0, pool: 0 }
    }
}

/// What is known of a growing buffer. Sizes in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AscendAllocBufferInfo {
    /// Set by the caller to the size of this struct; later versions grow at the end.
    pub struct_size: usize,
    /// Where it begins, for as long as it lives.
    pub ptr: *mut c_void,
    /// Its present size.
    pub size: usize,
    /// The size it can grow to; also more than was asked for, where a reservation of another buffer serves again.
    pub max_size: usize,
    /// Bytes of memory behind it: whole chunks.
    pub mapped: usize,
    /// The stream it is for.
    pub stream: *mut c_void,
    /// The device it lies on.
    pub device: c_int,
}

// SAFETY: `repr(C)`, the size first, numbers and pointers that nobody follows.
unsafe impl Versioned for AscendAllocBufferInfo {
    const FIRST: usize = size_of::<Self>();
}

/// Device memory that changes its size and never its address. Address space for the maximum is reserved at once;
/// memory is put behind it chunk by chunk (2 MiB on all parts seen so far), and nothing is ever copied. Its
/// number, never 0 and never used again, goes to *buffer.
///
/// Callable from any thread. Given up with ascend_alloc_buffer_destroy; it cannot be freed by its address.
///
/// # Safety
///
/// options is null or points to as many bytes as its struct_size says, and at least to that field; buffer is
/// null or valid for a write. Else as ascend_alloc_malloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_buffer_create(
    device: c_int,
    stream: *mut c_void,
    options: *const AscendAllocBufferOptions,
    buffer: *mut u64,
) -> c_int {
    guard::status(|| {
        let place = arguments::place(buffer, "buffer")?;
        let device = process::device(device)?;
        // SAFETY: the caller's promise.
        let options = unsafe { arguments::options(options, "options") }?;
        let mut chosen = GrowableOptions::up_to(process::size(options.max_size)?)
            .beginning_with(process::size(options.size)?)
            .at_least(process::size(options.least_max_size)?);
        if options.pool != 0 {
            chosen = chosen.in_pool(pools::id(options.pool)?);
        }
        // SAFETY: the caller's promise.
        let process = unsafe { process::process() }?;
        let made = GrowableBuffer::new(process.allocator.clone(), device, process::stream(stream), chosen)?;
        let number = LAST.fetch_add(1, Relaxed) + 1;
        BUFFERS.lock().insert(number, Arc::new(Mutex::new(made)));
        // SAFETY: the caller's promise.
        unsafe { place.write(number) };
        Ok(())
    })
}

/// Makes the buffer size bytes long, where it is. What is kept keeps its content; what is new has none defined. What
/// is cut off goes back in the order of the stream; nobody may queue new work on it. The rest of the last chunk stays
/// with the buffer, so there the program sees to the order of streams itself. After a failure the buffer is as it was.
///
/// Callable from any thread; calls for one buffer take turns.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_buffer_resize(buffer: u64, size: usize) -> c_int {
    guard::status(|| {
        let bytes = process::size(size)?;
        Ok(find(buffer)?.lock().resize(bytes)?)
    })
}

/// Tells that work on the stream uses the buffer too, from now until it is empty or destroyed.
/// ASCEND_ALLOC_STATUS_STATE while it is empty: there is nothing to use. Callable from any thread. In a forked child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_buffer_record_stream(buffer: u64, stream: *mut c_void) -> c_int {
    guard::release(|| Ok(find(buffer)?.lock().record_stream(process::stream(stream))?))
}

/// What is known of the buffer. Callable from any thread.
///
/// # Safety
///
/// out is null or points to as many bytes as its struct_size says, and at least to that field.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_buffer_info(buffer: u64, out: *mut AscendAllocBufferInfo) -> c_int {
    guard::status(|| {
        // SAFETY: the caller's promise.
        let size = unsafe { arguments::sized(out, "out") }?;
        let found = find(buffer)?;
        let found = found.lock();
        let value = AscendAllocBufferInfo {
            struct_size: size,
            ptr: process::pointer(found.ptr().address()),
            size: found.bytes() as usize,
            max_size: found.max_bytes() as usize,
            mapped: found.mapped_bytes() as usize,
            stream: process::pointer(found.stream().0),
            device: found.device() as c_int,
        };
        // SAFETY: as above.
        unsafe { arguments::fill(out, size, &value) };
        Ok(())
    })
}

/// Frees the buffer like any block. Callable from any thread. In a forked child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_buffer_destroy(buffer: u64) -> c_int {
    guard::release(|| {
        let found = BUFFERS.lock().remove(&buffer).ok_or_else(|| unknown(buffer))?;
        // Without the lock of the table, which others may want meanwhile.
        drop(found);
        Ok(())
    })
}

fn find(buffer: u64) -> Result<Shared, Failure> {
    BUFFERS.lock().get(&buffer).cloned().ok_or_else(|| unknown(buffer))
}

fn unknown(buffer: u64) -> Failure {
    argument(format!("buffer is {buffer}, expected a number from ascend_alloc_buffer_create"))
}
