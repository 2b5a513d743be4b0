//! The history of events, files of it, traces, and who causes what.

use core::ffi::{c_char, c_int, c_void};
use core::fmt::Write;
use std::ffi::CString;
use std::path::Path;

use allocator::history::{Action, ContextId, Event, HistoryOptions, context, intern, set_context};
use allocator::{DeviceAllocator, PoolId};

use crate::process::{self, Failure, argument};
use crate::{arguments, guard, pools};

/// What happened, in a history.
#[repr(i32)]
#[derive(Clone, Copy, Debug)]
pub enum AscendAllocHistoryAction {
    /// A block was handed out.
    Alloc = 0,
    /// A block was given back while other streams may still use it.
    FreeRequested = 1,
    /// The memory of a block can be used again; without a request before, it was given back at this moment.
    FreeCompleted = 2,
    /// A live block is used on a further stream.
    StreamUse = 3,
    /// Physical memory was put behind a range.
    SegmentMap = 4,
    /// Physical memory was taken from behind a range.
    SegmentUnmap = 5,
    /// A fixed segment was taken from the driver.
    SegmentAlloc = 6,
    /// A fixed segment was given back to the driver.
    SegmentFree = 7,
    /// Physical memory was moved from another address, which was unmapped before.
    ChunkMove = 8,
    /// Pools were put to sleep.
    Sleep = 9,
    /// Pools were woken.
    Wake = 10,
    /// The host waited for a stream, or for the device (stream null).
    Wait = 11,
    /// A request failed for lack of memory; size is what the library could still take of the device by its own count.
    Oom = 12,
    /// A snapshot with its events was taken.
    Snapshot = 13,
    /// The program said something; the text is the context.
    UserDefined = 14,
    /// The program said that it waited for a stream.
    HostWait = 15,
    /// Something that a later version of the library tells.
    Other = 16,
}

/// One event of a history. Sizes in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AscendAllocHistoryEntry {
    /// The size of this struct as the library knows it; it may grow at the end.
    pub struct_size: usize,
    /// Its number: from 1 in the order in which things happened, over all devices.
    pub sequence: u64,
    /// When, in nanoseconds of a clock that is read now and then only.
    pub time_ns: u64,
    /// First address concerned, or null.
    pub ptr: *mut c_void,
    /// Size of the block or range.
    pub size: usize,
    /// Bytes asked for, or 0.
    pub requested: usize,
    /// The stream concerned.
    pub stream: *mut c_void,
    /// The pool concerned, by the number of ascend_alloc_pool_create; 0 for the default one.
    pub pool: u64,
    /// The pool's tag, or null.
    pub tag: *const c_char,
    /// Who caused it, or null.
    pub context: *const c_char,
    /// The device.
    pub device: c_int,
    /// A value of ascend_alloc_history_action.
    pub action: c_int,
}

/// Is told of an event, valid with its texts during the call only. Called without any lock; it may call this library.
/// Nothing may be thrown out of it.
pub type AscendAllocHistoryVisit =
    Option<unsafe extern "C" fn(event: *const AscendAllocHistoryEntry, user: *mut c_void)>;

/// Keeps the newest entries events from now on, of all devices together, mostly 24 bytes each; 0 ends that and frees them. The same
/// as ascend_alloc_history_record_with(entries, 0, 0). Callable from any thread. With 0, in a forked child it does nothing
/// and succeeds.
///
/// # Safety
///
/// Unless ascend_alloc_init was called before, what it asks of the environment holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_history_record(entries: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { ascend_alloc_history_record_with(entries, 0, 0) }
}

/// The same; with uses not 0 the streams that blocks are recorded on and what ascend_alloc_host_waited says are kept too,
/// with stacks not 0 the stack is captured for allocations and frees of threads that have set no context, which takes
/// microseconds for each. Callable from any thread, in a forked child as ascend_alloc_history_record.
///
/// # Safety
///
/// As ascend_alloc_history_record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_history_record_with(
    entries: usize,
    uses: c_int,
    stacks: c_int,
) -> c_int {
    if entries == 0 {
        return guard::release(|| {
            process::if_set_up().map(DeviceAllocator::stop_history);
            Ok(())
        });
    }
    guard::status(|| {
        // SAFETY: the caller's promise.
        let allocator = unsafe { process::allocator() }?;
        let options = HistoryOptions { entries: entries as u64, uses: uses != 0, stacks: stacks != 0 };
        allocator.start_history(&options);
        Ok(())
    })
}

/// The events of a device that the history has, as JSON: {"device":0,"lost":count,"events":[...]}. An event has
/// "sequence", "time_ns", "action" (the words of PyTorch where it has one: "alloc", "free_requested", "free_completed",
/// "segment_map" and so on), "address", "size", "requested_size", "stream", "pool", "tag" and "context" (a text or
/// null). lost counts the events of all devices that are no longer known. Numbers are decimal; sizes bytes.
///
/// Writes as ascend_alloc_snapshot_json does. Callable from any thread.
///
/// # Safety
///
/// buffer is null, with a room of 0, or valid for writes of room bytes; length is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_history_json(
    device: c_int,
    buffer: *mut c_char,
    room: usize,
    length: *mut usize,
) -> c_int {
    guard::status(|| {
        arguments::writable(length, "length")?;
        let id = process::known_device(device)?;
        let kept = process::if_set_up().map(DeviceAllocator::history).unwrap_or_default();
        let mut text = format!(r#"{{"device":{id},"lost":{},"events":["#, kept.lost);
        for (index, event) in kept.events.iter().filter(|event| event.device == id).enumerate() {
            text.push_str(if index > 0 { "," } else { "" });
            push_event(&mut text, event);
        }
        text.push_str("]}");
        // SAFETY: the caller's promise.
        unsafe { arguments::copy_text(&text, buffer, room, length) }
    })
}

fn push_event(text: &mut String, event: &Event) {
    let pool = pools::shown(PoolId { device: event.device, serial: event.pool });
    // Writing to a text cannot fail.
    let _ = write!(
        text,
        r#"{{"sequence":{},"time_ns":{},"action":"{}","address":{},"size":{},"requested_size":{},"stream":{},"pool":{pool},"tag":"#,
        event.sequence,
        event.time,
        event.action.name(),
        event.address,
        event.size,
        event.requested,
        event.stream.0,
    );
    push_context(text, event.tag);
    text.push_str(r#","context":"#);
    push_context(text, event.context);
    text.push('}');
}

/// A context as a text in quotation marks, or null.
fn push_context(text: &mut String, id: Option<ContextId>) {
    let Some(known) = id.and_then(context) else { return text.push_str("null") };
    text.push('"');
    for letter in known.to_string().chars() {
        match letter {
            '"' | '\\' => text.extend(['\\', letter]),
            letter if letter.is_control() => {
                // Writing to a text cannot fail.
                let _ = write!(text, "\\u{:04x}", u32::from(letter));
            }
            letter => text.push(letter),
        }
    }
    text.push('"');
}

/// Tells visit of all events since the history was started or this was called last, by number, and writes to lost,
/// which may be null, how many of those are no longer known. The history goes on. Callable from any thread.
///
/// # Safety
///
/// visit may be called with user, by this thread, until this returns; lost is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_history_drain(
    visit: AscendAllocHistoryVisit,
    user: *mut c_void,
    lost: *mut u64,
) -> c_int {
    guard::status(|| {
        let Some(visit) = visit else { return Err(argument("visit is null".to_owned())) };
        arguments::writable(lost, "lost")?;
        let batch = process::if_set_up().map(DeviceAllocator::drain_history).unwrap_or_default();
        for event in &batch.events {
            let (tag, context) = (text_of(event.tag), text_of(event.context));
            let entry = of_event(event, tag.as_ref(), context.as_ref());
            // SAFETY: the caller's promise; the texts live until after the call.
            unsafe { visit(&raw const entry, user) };
        }
        // SAFETY: the caller's promise.
        unsafe { arguments::answer(lost, "lost", batch.lost) }
    })
}

/// A context as a text of C; what is behind a zero byte in it is cut off.
fn text_of(id: Option<ContextId>) -> Option<CString> {
    let text = id.and_then(context)?.to_string();
    let whole = text.split('\0').next().unwrap_or_default();
    CString::new(whole).ok()
}

fn of_event(event: &Event, tag: Option<&CString>, context: Option<&CString>) -> AscendAllocHistoryEntry {
    let pointer = |text: Option<&CString>| text.map_or(core::ptr::null(), |text| text.as_ptr());
    AscendAllocHistoryEntry {
        struct_size: size_of::<AscendAllocHistoryEntry>(),
        sequence: event.sequence,
        time_ns: event.time,
        ptr: process::pointer(event.address),
        size: event.size as usize,
        requested: event.requested as usize,
        stream: process::pointer(event.stream.0),
        pool: pools::shown(PoolId { device: event.device, serial: event.pool }),
        tag: pointer(tag),
        context: pointer(context),
        device: event.device as c_int,
        action: action_of(event.action) as c_int,
    }
}

fn action_of(action: Action) -> AscendAllocHistoryAction {
    use AscendAllocHistoryAction as C;
    match action {
        Action::Allocate => C::Alloc,
        Action::FreeRequested => C::FreeRequested,
        Action::FreeCompleted => C::FreeCompleted,
        Action::StreamUse => C::StreamUse,
        Action::SegmentMap => C::SegmentMap,
        Action::SegmentUnmap => C::SegmentUnmap,
        Action::SegmentAlloc => C::SegmentAlloc,
        Action::SegmentFree => C::SegmentFree,
        Action::ChunkMove => C::ChunkMove,
        Action::Sleep => C::Sleep,
        Action::Wake => C::Wake,
        Action::Wait => C::Wait,
        Action::OutOfMemory => C::Oom,
        Action::Snapshot => C::Snapshot,
        Action::UserDefined => C::UserDefined,
        Action::HostWait => C::HostWait,
        _ => C::Other,
    }
}

/// Says who causes what the calling thread does from now on, in histories and snapshots; null for nobody. The text is copied;
/// each text is kept once for the process, the first 1024 bytes of it, and 65 536 different ones at most. Costs a lookup, so a
/// text should stand for many requests. In a forked child it does nothing and succeeds.
///
/// # Safety
///
/// text is null or ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_set_context(text: *const c_char) -> c_int {
    guard::release(|| {
        // SAFETY: the caller's promise.
        let text = unsafe { arguments::text(text, "text") }?;
        set_context(text.map(intern));
        Ok(())
    })
}

/// Says something to the history and to a trace, where it is a marker. Nothing while nobody keeps events. Callable from any
/// thread. In a forked child it does nothing and succeeds.
///
/// # Safety
///
/// text ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_mark(text: *const c_char) -> c_int {
    guard::release(|| {
        // SAFETY: the caller's promise.
        let text = unsafe { wanted(text, "text") }?;
        if let Some(allocator) = process::if_set_up() {
            allocator.mark(text);
        }
        Ok(())
    })
}

/// Tells that the program has waited on the host for a stream: a trace that is recorded has that then. It changes nothing
/// else. Callable from any thread. In a forked child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_host_waited(device: c_int, stream: *mut c_void) -> c_int {
    guard::release(|| {
        let device = process::device(device)?;
        let stream = process::stream(stream);
        process::if_set_up().map_or(Ok(()), |allocator| Ok(allocator.note_host_wait(device, stream)?))
    })
}

/// Begins to record a trace that `ascend-alloc replay` reads, compressed if path ends with .zst; %p in it stands for the process.
/// What is live stands at its beginning. A trace that is being recorded ends. A trace is about one device: the first that
/// appears; each other one gets a file of its own, with ".deviceN" before the first dot of its name. The variable ASCEND_ALLOC_TRACE does the same
/// from the start of the process. Callable from any thread.
///
/// # Safety
///
/// As ascend_alloc_history_record; path ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_trace_start(path: *const c_char) -> c_int {
    guard::status(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { file(path) }?;
        // SAFETY: the caller's promise.
        Ok(unsafe { process::allocator() }?.start_trace(path)?)
    })
}

/// Ends the trace that is being recorded and writes the rest of it. Nothing where there is none. Callable from any
/// thread. In a forked child it does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_trace_stop() -> c_int {
    guard::release(|| {
        process::if_set_up().map(DeviceAllocator::stop_trace);
        Ok(())
    })
}

/// Begins to write all events to a file, compressed if path ends with .zst; %p in it stands for the process. Beyond most_bytes the
/// file gets a number before the first dot of its name and another one is begun; of most_files (at least 1), those that an
/// earlier process put aside under the same name among them, the oldest is removed. A file that is being written ends. docs/history.md has the format. Callable from any thread.
///
/// # Safety
///
/// As ascend_alloc_history_record; path ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_history_file_start(
    path: *const c_char,
    most_bytes: u64,
    most_files: c_int,
) -> c_int {
    guard::status(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { file(path) }?;
        let files = u32::try_from(most_files).ok().filter(|&files| files > 0);
        let files =
            files.ok_or_else(|| argument(format!("most_files is {most_files}, expected 1 or more")))?;
        if most_bytes == 0 {
            return Err(argument("most_bytes is 0, expected 1 or more".to_owned()));
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { process::allocator() }?.start_history_file(path, most_bytes, files)?)
    })
}

/// Ends that file and writes the rest of it. Nothing where there is none. Callable from any thread. In a forked child it
/// does nothing and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_history_file_stop() -> c_int {
    guard::release(|| {
        process::if_set_up().map(DeviceAllocator::stop_history_file);
        Ok(())
    })
}

/// Writes what has happened so far to all files that are being written. ASCEND_ALLOC_STATUS_STATE when that takes more than
/// five seconds; it goes on then. Callable from any thread. In a forked child, whose parent writes them, it does nothing and
/// succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_flush_files() -> c_int {
    guard::release(|| match process::if_set_up().map(DeviceAllocator::flush_files) {
        Some(false) => Err(Failure {
            status: process::AscendAllocStatus::State,
            text: "the files are not written yet after five seconds; writing goes on".to_owned(),
        }),
        _ => Ok(()),
    })
}

/// How often something could not be written: statistics, history, traces, reports. Callable from any thread.
#[unsafe(no_mangle)]
pub extern "C" fn ascend_alloc_failed_writes() -> u64 {
    guard::everywhere(|| Ok(process::if_set_up().map_or(0, DeviceAllocator::failed_writes))).unwrap_or(0)
}

/// Writes all memory of all devices at this moment to a file: a pickle that PyTorch's memory tools read, or JSON if path ends with
/// .json. With events not 0 the events of the history are in it. The file is replaced as a whole. Callable from any thread.
///
/// # Safety
///
/// As ascend_alloc_history_record; path ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_snapshot_write(path: *const c_char, events: c_int) -> c_int {
    guard::status(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { file(path) }?;
        // SAFETY: the caller's promise.
        let snapshot = unsafe { process::allocator() }?.full_snapshot(events != 0);
        snapshot.write(Path::new(path)).map_err(|error| argument(format!("file {path}: {error}")))
    })
}

/// The path of a file.
///
/// # Safety
///
/// As [`arguments::text`].
unsafe fn file<'a>(path: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    match unsafe { wanted(path, "path") }? {
        "" => Err(argument("path is empty, expected the name of a file".to_owned())),
        path => Ok(path),
    }
}

/// A text that must be there.
///
/// # Safety
///
/// As [`arguments::text`].
unsafe fn wanted<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    unsafe { arguments::text(text, name) }?.ok_or_else(|| argument(format!("{name} is null")))
}
