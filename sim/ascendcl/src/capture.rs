//! Graph capture.

use std::ffi::c_void;

use ascend_sim::{CaptureStatus, codes};

use crate::callbacks::{HostFunc, work};
use crate::entry::entry;
use crate::surface::{CANN_8_1, CANN_9_0};
use crate::types::{AclError, Handle, address, pointer};

/// Begins a capture.
#[unsafe(no_mangle)]
pub extern "C" fn aclmdlRICaptureBegin(stream: Handle, mode: i32) -> AclError {
    entry("aclmdlRICaptureBegin").since(CANN_8_1).does(|sim| sim.capture_begin_raw(address(stream), mode))
}

/// State of a capture and its graph. One of the outputs may be null.
///
/// # Safety
/// Each output is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclmdlRICaptureGetInfo(
    stream: Handle,
    status: *mut u32,
    graph: *mut Handle,
) -> AclError {
    let entry = entry("aclmdlRICaptureGetInfo").since(CANN_8_1);
    entry.does(|sim| {
        entry.not_null(sim, stream)?;
        if status.is_null() && graph.is_null() {
            return Err(entry.refuse(sim, codes::INVALID_PARAM, "both outputs are null"));
        }
        let (found, handle) = sim.capture_get_info(address(stream))?;
        if !status.is_null() {
            let number = match found {
                CaptureStatus::None => 0,
                CaptureStatus::Active => 1,
                CaptureStatus::Invalidated => 2,
            };
            // SAFETY: it is not null, so it is valid for a write.
            unsafe { status.write(number) };
        }
        if !graph.is_null() {
            // SAFETY: it is not null, so it is valid for a write.
            unsafe { graph.write(pointer(handle)) };
        }
        Ok(())
    })
}

/// Ends a capture; the graph, or null if the capture was given up.
///
/// # Safety
/// `graph` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclmdlRICaptureEnd(stream: Handle, graph: *mut Handle) -> AclError {
    entry("aclmdlRICaptureEnd").since(CANN_8_1).does(|sim| {
        let answer = sim.capture_end_into(address(stream), !graph.is_null());
        let handle = match answer {
            Ok(handle) => handle,
            // These give the capture up, so there is no graph to speak of.
            Err(107_025 | 107_038 | 507_903) => 0,
            Err(code) => return Err(code),
        };
        // SAFETY: without an output the call was refused, with a code that is none of these.
        unsafe { graph.write(pointer(handle)) };
        answer.map(drop)
    })
}

/// Swaps the calling thread's capture mode.
///
/// # Safety
/// `mode` is null or valid for reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclmdlRICaptureThreadExchangeMode(mode: *mut i32) -> AclError {
    let entry = entry("aclmdlRICaptureThreadExchangeMode").since(CANN_8_1);
    entry.does(|sim| {
        entry.not_null(sim, mode)?;
        // SAFETY: it is not null, so it is valid for a read.
        let before = sim.capture_exchange_mode_raw(unsafe { mode.read() })?;
        // SAFETY: as above, for a write.
        unsafe { mode.write(before) };
        Ok(())
    })
}

/// Lets tasks captured from now on belong to a group that can be updated.
#[unsafe(no_mangle)]
pub extern "C" fn aclmdlRICaptureTaskGrpBegin(stream: Handle) -> AclError {
    entry("aclmdlRICaptureTaskGrpBegin").since(CANN_8_1).does(|sim| sim.task_group_begin(address(stream)))
}

/// Ends that; the group.
///
/// # Safety
/// `group` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclmdlRICaptureTaskGrpEnd(stream: Handle, group: *mut Handle) -> AclError {
    let entry = entry("aclmdlRICaptureTaskGrpEnd").since(CANN_8_1);
    // SAFETY: the caller's promise.
    unsafe { entry.gives(group, |sim| sim.task_group_end(address(stream)).map(pointer)) }
}

/// Lets tasks queued from now on replace those of a group.
#[unsafe(no_mangle)]
pub extern "C" fn aclmdlRICaptureTaskUpdateBegin(stream: Handle, group: Handle) -> AclError {
    let entry = entry("aclmdlRICaptureTaskUpdateBegin").since(CANN_8_1);
    entry.does(|sim| sim.task_update_begin(address(stream), address(group)))
}

/// Ends that.
#[unsafe(no_mangle)]
pub extern "C" fn aclmdlRICaptureTaskUpdateEnd(stream: Handle) -> AclError {
    entry("aclmdlRICaptureTaskUpdateEnd").since(CANN_8_1).does(|sim| sim.task_update_end(address(stream)))
}

/// Runs a graph and waits for it for at most so many milliseconds.
#[unsafe(no_mangle)]
pub extern "C" fn aclmdlRIExecute(graph: Handle, timeout: i32) -> AclError {
    entry("aclmdlRIExecute").since(CANN_8_1).does(|sim| sim.graph_run(address(graph), timeout))
}

/// Ends runs of a graph.
#[unsafe(no_mangle)]
pub extern "C" fn aclmdlRIAbort(graph: Handle) -> AclError {
    entry("aclmdlRIAbort").since(CANN_8_1).does(|sim| sim.graph_abort(address(graph)))
}

/// Has a function called when a graph is destroyed.
///
/// # Safety
/// The function may be called once with `user`, from the thread that destroys the graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclmdlRIDestroyRegisterCallback(
    graph: Handle,
    function: HostFunc,
    user: *mut c_void,
) -> AclError {
    let entry = entry("aclmdlRIDestroyRegisterCallback").since(CANN_9_0);
    entry.does(|sim| {
        entry.not_null(sim, graph)?;
        // SAFETY: the caller's promise.
        let Some(work) = (unsafe { work(function, user) }) else {
            return Err(entry.refuse(sim, codes::INVALID_PARAM, "the function is null"));
        };
        sim.graph_on_destroy(address(graph), work)
    })
}

/// Queues one run of a graph.
#[unsafe(no_mangle)]
pub extern "C" fn aclmdlRIExecuteAsync(graph: Handle, stream: Handle) -> AclError {
    let entry = entry("aclmdlRIExecuteAsync").since(CANN_8_1);
    entry.does(|sim| sim.graph_execute(address(graph), address(stream)))
}

/// Destroys a graph.
#[unsafe(no_mangle)]
pub extern "C" fn aclmdlRIDestroy(graph: Handle) -> AclError {
    entry("aclmdlRIDestroy").since(CANN_8_1).does(|sim| sim.graph_destroy(address(graph)))
}
