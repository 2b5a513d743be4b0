//! Sharing between processes: chunks and events by handles, blocks of `aclrtMalloc` by keys.

use std::ffi::{c_char, c_void};

use ascend_sim::{Share, Sim};

use crate::entry::{Entry, entry};
use crate::surface::{CANN_8_2, CANN_8_5};
use crate::text;
use crate::types::{AclError, Handle, IpcEventHandle, address, pointer};

/// More processes than this are refused by the model, whoever they are.
const MOST_PIDS: usize = 65_535;
/// The kind of shareable handle that is a number of 8 bytes.
const DEFAULT: u32 = 1;
/// The kind that is 128 bytes.
const FABRIC: u32 = 2;

/// Names a chunk for other processes.
///
/// # Safety
/// `shared` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemExportToShareableHandle(
    handle: Handle,
    handle_type: u32,
    flags: u64,
    shared: *mut u64,
) -> AclError {
    let entry = entry("aclrtMemExportToShareableHandle");
    // SAFETY: the caller's promise.
    unsafe { entry.gives(shared, |sim| sim.export_handle(address(handle), handle_type, flags)) }
}

/// Takes a chunk that another process has named.
///
/// # Safety
/// `handle` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemImportFromShareableHandle(
    shared: u64,
    device: i32,
    handle: *mut Handle,
) -> AclError {
    let entry = entry("aclrtMemImportFromShareableHandle");
    // SAFETY: the caller's promise.
    unsafe { entry.gives(handle, |sim| sim.import_handle(shared, device).map(pointer)) }
}

/// Lets processes take a chunk that this process has named.
///
/// # Safety
/// `pids` is null or valid for reads of `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemSetPidToShareableHandle(
    shared: u64,
    pids: *const i32,
    count: usize,
) -> AclError {
    let entry = entry("aclrtMemSetPidToShareableHandle");
    entry.does(|sim| {
        // SAFETY: the caller's promise.
        let pids = unsafe { processes(entry, sim, pids, count) }?;
        sim.set_share_pids(shared, &pids)
    })
}

/// Names a chunk for other processes, in one of two forms.
///
/// # Safety
/// `shared` is null or valid for a write of the form's size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemExportToShareableHandleV2(
    handle: Handle,
    flags: u64,
    kind: u32,
    shared: *mut c_void,
) -> AclError {
    let entry = entry("aclrtMemExportToShareableHandleV2").since(CANN_8_5);
    entry.does(|sim| {
        entry.not_null(sim, shared)?;
        let share = sim.export_handle_v2(address(handle), flags, kind)?;
        // SAFETY: it is not null, so it is valid for the form's size.
        unsafe { shared.cast::<u8>().copy_from_nonoverlapping(share.as_ptr(), size_of_form(kind)) };
        Ok(())
    })
}

/// Takes a chunk that another process has named, for the current device.
///
/// # Safety
/// `shared` is null or valid for a read of the form's size, `handle` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemImportFromShareableHandleV2(
    shared: *const c_void,
    kind: u32,
    flags: u64,
    handle: *mut Handle,
) -> AclError {
    let entry = entry("aclrtMemImportFromShareableHandleV2").since(CANN_8_5);
    // SAFETY: the caller's promise.
    unsafe {
        entry.gives(handle, |sim| {
            let share = share(entry, sim, shared, kind)?;
            sim.import_handle_v2(&share, kind, flags).map(pointer)
        })
    }
}

/// Lets processes take a chunk that this process has named.
///
/// # Safety
/// `shared` is null or valid for a read of the form's size, `pids` is null or valid for reads of
/// `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemSetPidToShareableHandleV2(
    shared: *const c_void,
    kind: u32,
    pids: *const i32,
    count: usize,
) -> AclError {
    let entry = entry("aclrtMemSetPidToShareableHandleV2").since(CANN_8_5);
    entry.does(|sim| {
        // SAFETY: the caller's promise.
        let (share, pids) =
            unsafe { (share(entry, sim, shared, kind)?, processes(entry, sim, pids, count)?) };
        sim.set_share_pids_v2(&share, kind, &pids)
    })
}

/// Names a block for other processes.
///
/// # Safety
/// `key` is null or valid for writes of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtIpcMemGetExportKey(
    start: Handle,
    size: usize,
    key: *mut c_char,
    len: usize,
    flags: u64,
) -> AclError {
    let entry = entry("aclrtIpcMemGetExportKey").since(CANN_8_2);
    entry.does(|sim| {
        entry.not_null(sim, key)?;
        let text = sim.ipc_export_key(address(start), size as u64, len, flags)?;
        // SAFETY: it is not null, so it is valid for `len` bytes.
        unsafe { text::print(&text, key, len) };
        Ok(())
    })
}

/// Lets processes take a block that this process has named.
///
/// # Safety
/// `key` is null or a text that ends with a zero, `pids` is null or valid for reads of `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtIpcMemSetImportPid(
    key: *const c_char,
    pids: *const i32,
    count: usize,
) -> AclError {
    let entry = entry("aclrtIpcMemSetImportPid").since(CANN_8_2);
    entry.does(|sim| {
        // SAFETY: the caller's promise.
        let (key, pids) = unsafe { (entry.read_text(sim, key)?, processes(entry, sim, pids, count)?) };
        sim.ipc_set_import_pids(&key, &pids)
    })
}

/// Takes a block that another process has named.
///
/// # Safety
/// `out` is null or valid for a write, `key` is null or a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtIpcMemImportByKey(
    out: *mut Handle,
    key: *const c_char,
    flags: u64,
) -> AclError {
    let entry = entry("aclrtIpcMemImportByKey").since(CANN_8_2);
    // SAFETY: the caller's promise.
    unsafe { entry.gives(out, |sim| sim.ipc_import(&entry.read_text(sim, key)?, flags).map(pointer)) }
}

/// Gives a block of another process back, or ends a key of this one.
///
/// # Safety
/// `key` is null or a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtIpcMemClose(key: *const c_char) -> AclError {
    let entry = entry("aclrtIpcMemClose").since(CANN_8_2);
    // SAFETY: the caller's promise.
    entry.does(|sim| sim.ipc_close(&unsafe { entry.read_text(sim, key) }?))
}

/// Sets an attribute of a shared block, of which the parts played have none.
///
/// # Safety
/// `key` is null or a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtIpcMemSetAttr(key: *const c_char, _attribute: u32, _value: u64) -> AclError {
    let entry = entry("aclrtIpcMemSetAttr").since(CANN_8_5);
    // SAFETY: the caller's promise.
    entry.does(|sim| sim.ipc_set_attr(&unsafe { entry.read_text(sim, key) }?))
}

/// Lets processes of other machines take a block, which the parts played cannot.
///
/// # Safety
/// `key` is null or a text that ends with a zero. The list is not read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtIpcMemImportPidInterServer(
    key: *const c_char,
    pids: *const c_void,
    _count: usize,
) -> AclError {
    let entry = entry("aclrtIpcMemImportPidInterServer").since(CANN_8_5);
    entry.does(|sim| {
        entry.not_null(sim, pids)?;
        // SAFETY: the caller's promise.
        sim.ipc_set_pids_inter_server(&unsafe { entry.read_text(sim, key) }?)
    })
}

/// Names an event for other processes.
///
/// # Safety
/// `handle` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtIpcGetEventHandle(event: Handle, handle: *mut IpcEventHandle) -> AclError {
    let entry = entry("aclrtIpcGetEventHandle").since(CANN_8_5);
    // SAFETY: the caller's promise.
    unsafe { entry.gives(handle, |sim| sim.ipc_event_handle(address(event)).map(IpcEventHandle)) }
}

/// An event that stands for another process's.
///
/// # Safety
/// `event` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtIpcOpenEventHandle(handle: IpcEventHandle, event: *mut Handle) -> AclError {
    let entry = entry("aclrtIpcOpenEventHandle").since(CANN_8_5);
    // SAFETY: the caller's promise.
    unsafe { entry.gives(event, |sim| sim.ipc_open_event(&handle.0).map(pointer)) }
}

/// Bytes of a form of shareable handle; 0 for forms that do not exist.
fn size_of_form(kind: u32) -> usize {
    match kind {
        DEFAULT => 8,
        FABRIC => 128,
        _ => 0,
    }
}

/// # Safety
/// `shared` is null or valid for a read of the form's size.
unsafe fn share(entry: Entry, sim: &Sim, shared: *const c_void, kind: u32) -> Result<Share, i32> {
    entry.not_null(sim, shared)?;
    let mut share: Share = [0; 128];
    // SAFETY: it is not null, so it is valid for the form's size.
    unsafe { share.as_mut_ptr().copy_from_nonoverlapping(shared.cast(), size_of_form(kind)) };
    Ok(share)
}

/// # Safety
/// `pids` is null or valid for reads of `count` numbers.
unsafe fn processes(entry: Entry, sim: &Sim, pids: *const i32, count: usize) -> Result<Vec<i32>, i32> {
    entry.not_null(sim, pids)?;
    if count > MOST_PIDS {
        // Too many whoever they are, so a wild count need not be followed.
        return Ok(vec![0; MOST_PIDS + 1]);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { entry.read_list(pids, count) })
}
