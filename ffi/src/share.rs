//! Sharing blocks with other processes, and with other devices of this one.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::BTreeMap;
use std::sync::Arc;

use allocator::driver::{DeviceId, ShareForm};
use allocator::{DevicePtr, Export, ExportOptions, ImportedBlock, Importers, SharedHandle};
use parking_lot::Mutex;

use crate::arguments::{self, Versioned};
use crate::process::{self, Failure, argument};
use crate::{guard, one_handle};

static EXPORTS: Mutex<BTreeMap<u64, Arc<Export>>> = Mutex::new(BTreeMap::new());
static IMPORTS: Mutex<BTreeMap<u64, ImportedBlock>> = Mutex::new(BTreeMap::new());
static LAST: AtomicU64 = AtomicU64::new(0);

/// How the chunks of an exported block are named.
#[repr(i32)]
#[derive(Clone, Copy, Debug)]
pub enum AscendAllocShareForm {
    /// A number, on one server. All versions of the runtime library have it.
    V1 = 0,
    /// A number, on one server, by the calls of the second version (CANN 8.5 and later); where the runtime library lacks them,
    /// as the first.
    V2 = 1,
    /// 128 bytes, for servers that share memory over a fabric.
    Fabric = 2,
}

/// How a block is exported; all zero but for struct_size is for every process of this server.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AscendAllocExportOptions {
    /// Set by the caller to the size of this struct; later versions grow at the end.
    pub struct_size: usize,
    /// The processes that may import, by the numbers that ascend_alloc_process_id gives in them.
    pub processes: *const i32,
    /// How many; not looked at unless only_processes is not 0.
    pub process_count: usize,
    /// Not 0: only those processes, and those that ascend_alloc_export_allow adds. 0: any on this server.
    pub only_processes: c_int,
    /// A value of ascend_alloc_share_form.
    pub form: c_int,
}

// SAFETY: `repr(C)`, the size first, numbers and a pointer.
unsafe impl Versioned for AscendAllocExportOptions {
    const FIRST: usize = size_of::<Self>();
}

impl Default for AscendAllocExportOptions {
    fn default() -> Self {
        let struct_size = size_of::<Self>();
        Self { struct_size, processes: core::ptr::null(), process_count: 0, only_processes: 0, form: 0 }
    }
}

/// This process as others name it in ascend_alloc_export_options_t, for memory of the device. Callable from any
/// thread.
///
/// # Safety
///
/// process_id is null or valid for a write. Else as ascend_alloc_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_process_id(device: c_int, process_id: *mut i32) -> c_int {
    guard::status(|| {
        let place = arguments::place(process_id, "process_id")?;
        // SAFETY: the caller's promise.
        let number = unsafe { process::allocator() }?.process_id(process::device(device)?)?;
        // SAFETY: the caller's promise.
        unsafe { place.write(number) };
        Ok(())
    })
}

/// Exports the live block that begins at ptr. options may be null. The number of the export, never 0 and never used
/// again, goes to *export_number; ascend_alloc_export_message gives what importers need. The block stays live until
/// ascend_alloc_export_release, also when it is freed; that must not come before all importers are done, which they
/// have to tell in their own way. Importers get whole chunks: neighbouring blocks in the first and last one too.
///
/// ASCEND_ALLOC_STATUS_STATE for memory that cannot be exported: in segments that cannot grow, of pools that sleep, and
/// where a chunk was exported before for other importers (for any, or for named ones), if only by an export whose list of
/// processes the driver refused. A list has at most 65535 of them. While it is exported the block
/// cannot be shrunk, and its pool cannot sleep. Callable from any thread.
///
/// # Safety
///
/// options is null or points to as many bytes as its struct_size says, and at least to that field; its processes point
/// to so many numbers. export_number is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_export(
    ptr: *mut c_void,
    options: *const AscendAllocExportOptions,
    export_number: *mut u64,
) -> c_int {
    guard::status(|| {
        let place = arguments::place(export_number, "export_number")?;
        let chosen = match options.is_null() {
            true => ExportOptions::default(),
            // SAFETY: the caller's promise.
            false => unsafe { export_options(options) }?,
        };
        process::existing()?;
        let Some(process) = process::process_if_set_up() else { return Ok(()) };
        let made = process.allocator.export(DevicePtr(ptr.addr() as u64), &chosen)?;
        let number = LAST.fetch_add(1, Relaxed) + 1;
        EXPORTS.lock().insert(number, Arc::new(made));
        // SAFETY: the caller's promise.
        unsafe { place.write(number) };
        Ok(())
    })
}

/// The message that another process passes to ascend_alloc_import: at most room bytes of it to buffer, and its whole
/// length to length. Nothing is written to a buffer that is too small. Callable from any thread.
///
/// # Safety
///
/// buffer is null, with a room of 0, or valid for writes of room bytes; length is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_export_message(
    export_number: u64,
    buffer: *mut c_void,
    room: usize,
    length: *mut usize,
) -> c_int {
    guard::status(|| {
        arguments::writable(length, "length")?;
        if buffer.is_null() && room > 0 {
            return Err(argument(format!("buffer is null and room is {room}, expected 0 with null")));
        }
        let message = find(export_number)?.handle().to_bytes();
        // SAFETY: the caller's promise.
        unsafe { arguments::answer(length, "length", message.len()) }?;
        if message.len() <= room {
            // SAFETY: the buffer has room for all of it.
            unsafe { message.as_ptr().copy_to_nonoverlapping(buffer.cast::<u8>(), message.len()) };
        }
        Ok(())
    })
}

/// Lets more processes import a block that was exported with only_processes. ASCEND_ALLOC_STATUS_STATE once the device was
/// reset. Callable from any thread.
///
/// # Safety
///
/// processes points to count numbers, or count is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_export_allow(
    export_number: u64,
    processes: *const i32,
    count: usize,
) -> c_int {
    guard::status(|| {
        // SAFETY: the caller's promise.
        let processes = unsafe { numbers(processes, count, "processes") }?;
        let export = find(export_number)?;
        Ok(export.allow(&processes)?)
    })
}

/// Ends an export. Callable from any thread. In a forked child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_export_release(export_number: u64) -> c_int {
    guard::release(|| {
        let found = EXPORTS.lock().remove(&export_number);
        found.map(drop).ok_or_else(|| unknown("export", export_number))
    })
}

/// Maps a block that another process has exported, for use by the device and first on the stream. Its address here goes
/// to *ptr, its bytes to *size, which may be null, and the number of the import, never 0 and never used again, to
/// *import_number. All imports of one message for one device share one mapping; other devices of the process import it for
/// themselves, which needs aclrtMemSetAccess, and lose it with a reset of the first one. Not freed by its address. A message that is not whole
/// or not ours is refused, with ASCEND_ALLOC_STATUS_STATE one of this process. The exporter must not end the export
/// before; in which order its work and the work here touch the block is for the two processes to arrange.
///
/// Callable from any thread. Given up with ascend_alloc_import_release.
///
/// # Safety
///
/// message points to length bytes; the others are null or valid for a write. Else as ascend_alloc_malloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_import(
    message: *const c_void,
    length: usize,
    device: c_int,
    stream: *mut c_void,
    ptr: *mut *mut c_void,
    size: *mut usize,
    import_number: *mut u64,
) -> c_int {
    guard::status(|| {
        let place = arguments::place(import_number, "import_number")?;
        let address = arguments::place(ptr, "ptr")?;
        arguments::writable(size, "size")?;
        let device = process::device(device)?;
        arguments::place(message.cast_mut().cast::<u8>(), "message")?;
        process::size(length)?;
        // SAFETY: the caller's promise.
        let bytes = unsafe { core::slice::from_raw_parts(message.cast::<u8>(), length) };
        let handle = SharedHandle::from_bytes(bytes)?;
        // SAFETY: the caller's promise.
        let process = unsafe { process::process() }?;
        let made = process.allocator.import(device, &handle, process::stream(stream))?;
        let number = LAST.fetch_add(1, Relaxed) + 1;
        // SAFETY: the caller's promise.
        unsafe {
            address.write(process::pointer(made.ptr().address()));
            arguments::answer(size, "size", made.bytes() as usize)?;
            place.write(number);
        }
        IMPORTS.lock().insert(number, made);
        Ok(())
    })
}

/// Tells that work on the stream uses the imported block too. Callable from any thread. In a forked child it does nothing
/// and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_import_record_stream(import_number: u64, stream: *mut c_void) -> c_int {
    guard::release(|| {
        let imports = IMPORTS.lock();
        let import = imports.get(&import_number).ok_or_else(|| unknown("import", import_number))?;
        import.record_stream(process::stream(stream));
        Ok(())
    })
}

/// Gives an import up: with the last of one message its memory is unmapped, once the streams that used it have passed.
/// Callable from any thread. In a forked child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_import_release(import_number: u64) -> c_int {
    guard::release(|| {
        let found = IMPORTS.lock().remove(&import_number);
        found.map(drop).ok_or_else(|| unknown("import", import_number))
    })
}

/// Lets work on other devices of this process use the memory of the device: all that is mapped now and all that will
/// be. The links between the devices are opened in both directions. Replaces what was set before; a count of 0 sets none.
/// Access that was given to mapped memory stays: ACL cannot take it away. The device itself, and devices that cannot
/// reach it, are refused. After a failure the peers are those from before. A reset of one of the devices
/// closes its links: set them again then. Callable from any thread.
///
/// # Safety
///
/// peers points to count numbers, or count is 0. Else as ascend_alloc_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_set_peers(device: c_int, peers: *const i32, count: usize) -> c_int {
    guard::status(|| {
        let device = process::device(device)?;
        // SAFETY: the caller's promise.
        let peers = unsafe { numbers(peers, count, "peers") }?;
        let known = |peer: i32| {
            let wrong = |_| argument(format!("peers have {peer}, expected devices, of numbers from 0 on"));
            DeviceId::try_from(peer).map_err(wrong)
        };
        let peers = peers.into_iter().map(known).collect::<Result<Vec<DeviceId>, Failure>>()?;
        // SAFETY: the caller's promise.
        one_handle::set_peers(unsafe { process::process() }?, device, &peers)
    })
}

/// # Safety
///
/// As [`ascend_alloc_export`].
unsafe fn export_options(options: *const AscendAllocExportOptions) -> Result<ExportOptions, Failure> {
    const V1: c_int = AscendAllocShareForm::V1 as c_int;
    const V2: c_int = AscendAllocShareForm::V2 as c_int;
    const FABRIC: c_int = AscendAllocShareForm::Fabric as c_int;
    // SAFETY: the caller's promise.
    let options = unsafe { arguments::options(options, "options") }?;
    let form = match options.form {
        V1 => ShareForm::V1,
        V2 => ShareForm::V2,
        FABRIC => ShareForm::Fabric,
        form => return Err(argument(format!("form is {form}, expected a value of ascend_alloc_share_form"))),
    };
    let mut chosen = ExportOptions::default().named(form);
    if options.only_processes != 0 {
        // SAFETY: the caller's promise.
        let processes = unsafe { numbers(options.processes, options.process_count, "options->processes") }?;
        chosen.importers = Importers::Processes(processes);
    }
    Ok(chosen)
}

/// # Safety
///
/// `list` points to `count` numbers.
unsafe fn numbers(list: *const i32, count: usize, name: &str) -> Result<Vec<i32>, Failure> {
    /// More than anybody has; guards against a count that is garbage.
    const MOST: usize = 1 << 20;
    if count == 0 {
        return Ok(Vec::new());
    }
    arguments::place(list.cast_mut(), name)?;
    if count > MOST {
        return Err(argument(format!("{name} are {count}, expected at most {MOST}")));
    }
    // SAFETY: not null, aligned, and the caller's promise.
    Ok(unsafe { core::slice::from_raw_parts(list, count) }.to_vec())
}

fn find(export_number: u64) -> Result<Arc<Export>, Failure> {
    EXPORTS.lock().get(&export_number).cloned().ok_or_else(|| unknown("export", export_number))
}

fn unknown(kind: &str, number: u64) -> Failure {
    argument(format!("{kind} is {number}, expected a number from ascend_alloc_{kind}"))
}
