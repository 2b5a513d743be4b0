//! Graph capture.

use ascend_sim::{CaptureMode, CaptureStatus, codes};

use crate::entry::entry;
use crate::surface::CANN_8_1;
use crate::types::{AclError, Handle, address, pointer};

/// Begins a capture.
#[unsafe(no_mangle)]
pub extern "C" fn aclmdlRICaptureBegin(stream: Handle, mode: i32) -> AclError {
    let entry = entry("aclmdlRICaptureBegin").since(CANN_8_1);
    entry.does(|sim| {
        entry.not_null(sim, stream)?;
        let mode = CaptureMode::from_value(mode).map_err(|code| entry.refuse(sim, code, "no such mode"))?;
        sim.capture_begin(address(stream), mode)
    })
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
    let entry = entry("aclmdlRICaptureEnd").since(CANN_8_1);
    entry.does(|sim| {
        entry.not_null(sim, stream)?;
        if graph.is_null() {
            return Err(entry.refuse(sim, codes::RT_PARAM_INVALID, "the output is null"));
        }
        let answer = sim.capture_end(address(stream));
        let handle = match answer {
            Ok(handle) => handle,
            // These give the capture up, so there is no graph to speak of.
            Err(107_025 | 107_038 | 507_903) => 0,
            Err(code) => return Err(code),
        };
        // SAFETY: it is not null, so it is valid for a write.
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
        let wanted = CaptureMode::from_value(unsafe { mode.read() });
        let wanted = wanted.map_err(|code| entry.refuse(sim, code, "no such mode"))?;
        let before = match sim.capture_exchange_mode(wanted)? {
            CaptureMode::Global => 0,
            CaptureMode::ThreadLocal => 1,
            CaptureMode::Relaxed => 2,
        };
        // SAFETY: it is not null, so it is valid for a write.
        unsafe { mode.write(before) };
        Ok(())
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
