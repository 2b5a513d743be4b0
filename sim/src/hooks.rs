//! Functions of the program that are called when devices and streams change or work goes wrong.
//!
//! They are called without any lock of the simulator, by the thread whose call caused the change
//! (or, for an exception, by the worker that met it).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

/// A step of `aclrtSetDevice` or `aclrtResetDevice`: `aclrtDeviceState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceState {
    SetPre = 0,
    SetPost = 1,
    ResetPre = 2,
    ResetPost = 3,
}

/// A step in the life of a stream: `aclrtStreamState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamState {
    /// It has just been created.
    Created = 1,
    /// It is about to be destroyed.
    Ending = 2,
}

/// Called with a device (process's number) and a value of `aclrtDeviceState`.
pub type DeviceStateCallback = Arc<dyn Fn(i32, u32) + Send + Sync>;
/// Called with a stream and a value of `aclrtStreamState`.
pub type StreamStateCallback = Arc<dyn Fn(u64, u32) + Send + Sync>;
/// Called with a device (process's number), the stage (0 before the abort, 1 after) and the time
/// limit in milliseconds; anything but 0 as the answer makes the abort fail.
pub type TaskAbortCallback = Arc<dyn Fn(i32, u32, u32) -> i32 + Send + Sync>;
/// Called with what went wrong.
pub type ExceptionCallback = Arc<dyn Fn(&ExceptionInfo) + Send + Sync>;

/// What a program learns of a failed task: `aclrtExceptionInfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExceptionInfo {
    /// The position of the task on its stream.
    pub task: u32,
    /// The number of the stream.
    pub stream: u32,
    /// The thread that queued the task, by the order in which threads first called.
    pub thread: u32,
    /// The driver's number of the device.
    pub device: u32,
    /// The ACL code.
    pub error: u32,
}

/// The program's functions.
#[derive(Default)]
pub(crate) struct Hooks {
    devices: Mutex<BTreeMap<String, DeviceStateCallback>>,
    streams: Mutex<BTreeMap<String, StreamStateCallback>>,
    aborts: Mutex<BTreeMap<String, TaskAbortCallback>>,
    exception: Mutex<Option<ExceptionCallback>>,
}

impl Hooks {
    pub(crate) fn set_device(&self, name: &str, call: Option<DeviceStateCallback>) {
        set(&self.devices, name, call);
    }

    pub(crate) fn set_stream(&self, name: &str, call: Option<StreamStateCallback>) {
        set(&self.streams, name, call);
    }

    pub(crate) fn set_abort(&self, name: &str, call: Option<TaskAbortCallback>) {
        set(&self.aborts, name, call);
    }

    pub(crate) fn set_exception(&self, call: Option<ExceptionCallback>) {
        *self.exception.lock() = call;
    }

    pub(crate) fn device_changed(&self, device: i32, state: DeviceState) {
        for call in all(&self.devices) {
            call(device, state as u32);
        }
    }

    pub(crate) fn stream_changed(&self, stream: u64, state: StreamState) {
        for call in all(&self.streams) {
            call(stream, state as u32);
        }
    }

    /// What the program's functions say to an abort: the first answer that is not 0.
    pub(crate) fn aborting(&self, device: i32, stage: u32, timeout: u32) -> i32 {
        let answers = all(&self.aborts).into_iter().map(|call| call(device, stage, timeout));
        answers.fold(0, |first, answer| if first == 0 { answer } else { first })
    }

    pub(crate) fn failed(&self, info: &ExceptionInfo) {
        let call = self.exception.lock().clone();
        if let Some(call) = call {
            call(info);
        }
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

fn set<T: Clone>(hooks: &Mutex<BTreeMap<String, T>>, name: &str, call: Option<T>) {
    let mut hooks = hooks.lock();
    match call {
        Some(call) => drop(hooks.insert(name.to_owned(), call)),
        None => drop(hooks.remove(name)),
    }
}

/// The functions, to be called without the lock.
fn all<T: Clone>(hooks: &Mutex<BTreeMap<String, T>>) -> Vec<T> {
    let hooks = hooks.lock();
    if hooks.is_empty() { Vec::new() } else { hooks.values().cloned().collect() }
}
