//! Events in old and new ("Ex") mode.
//!
//! A record is a place on a stream and what the stream knew there. It is done when the place is.
//! A destroyed event stays, without a handle, until the operations queued for it are done.

use std::sync::Arc;

use super::capture::CapturedRecord;
use super::clock::Snapshot;
use super::codes;
use crate::made::Made;

/// Event flag: the event can be waited for by streams, and reset.
pub const EVENT_SYNC: u32 = 0x1;
/// Event flag: the event marks the progress of a stream.
pub const EVENT_CAPTURE_STREAM_PROGRESS: u32 = 0x2;
/// Event flag: the event has a time.
pub const EVENT_TIME_LINE: u32 = 0x8;
/// Event flag: only the device looks at the event.
pub const EVENT_DEVICE_USE_ONLY: u32 = 0x10;
/// Event flag: for work outside a captured graph; stands alone.
pub const EVENT_EXTERNAL: u32 = 0x20;
/// Event flag: shared with other processes; stands alone.
pub const EVENT_IPC: u32 = 0x40;
/// The flags of an event made without any (`aclrtCreateEvent`): it can do everything.
pub const EVENT_DEFAULT: u32 = EVENT_SYNC | EVENT_CAPTURE_STREAM_PROGRESS | EVENT_TIME_LINE;

const KNOWN: u32 = EVENT_DEFAULT | EVENT_DEVICE_USE_ONLY | EVENT_EXTERNAL | EVENT_IPC;

/// Tells other processes of an event's records, and this one of theirs. Its methods must not call the
/// executor.
pub trait EventMirror: Send + Sync {
    /// A record was queued, by this process.
    fn recorded(&self);
    /// A record queued by this process is done.
    fn done(&self);
    /// How many records all processes queued so far.
    fn count(&self) -> u64;
    /// Whether the first `count` records of all processes are done.
    fn is_done(&self, count: u64) -> bool;
    /// Whether a process is gone whose records are not done: they never will be.
    fn is_lost(&self) -> bool;
    /// What it is called among processes: process and number.
    fn name(&self) -> (u32, u32);
}

/// One event.
pub(super) struct Event {
    pub(super) device: u32,
    pub(super) flags: u32,
    /// New mode: recording again overwrites, and there is nothing to reset.
    pub(super) ex: bool,
    /// The last record that was not reset.
    pub(super) record: Option<Snapshot>,
    /// When the last record was done, in nanoseconds.
    pub(super) time: Option<u64>,
    /// Whether the event holds one of the device's events: from its first record on.
    pub(super) hardware: bool,
    /// Operations queued for the event that are not done.
    pub(super) pending: u32,
    /// Those of them that are waits.
    pub(super) pending_waits: u32,
    pub(super) destroyed: bool,
    /// The capture that the last record belongs to.
    pub(super) captured: Option<CapturedRecord>,
    /// Other processes that share it.
    pub(super) mirror: Option<Arc<dyn EventMirror>>,
    /// The call that created it.
    pub(super) made: Made,
}

impl Event {
    /// A new event, if the flags go together.
    pub(super) fn new(device: u32, flags: u32, ex: bool) -> Result<Self, i32> {
        check_event_flags(flags)?;
        Ok(Self {
            device,
            flags,
            ex,
            record: None,
            time: None,
            hardware: false,
            pending: 0,
            pending_waits: 0,
            destroyed: false,
            captured: None,
            mirror: None,
            made: Made::now(),
        })
    }

    /// Refuses what an external event cannot do.
    pub(super) fn not_external(&self) -> Result<(), i32> {
        refuse_if(self.flags & EVENT_EXTERNAL != 0, codes::FEATURE_NOT_SUPPORT)
    }

    /// Refuses what only an event of the old mode can do.
    pub(super) fn old_mode_only(&self) -> Result<(), i32> {
        refuse_if(self.ex, codes::FEATURE_NOT_SUPPORT)
    }

    /// Refuses what needs the flag `SYNC`, or `IPC`, which stands alone and can be waited for too.
    pub(super) fn needs_sync(&self) -> Result<(), i32> {
        refuse_if(self.flags & (EVENT_SYNC | EVENT_IPC) == 0, codes::FEATURE_NOT_SUPPORT)
    }
}

/// Whether an event can be made with these flags.
///
/// # Errors
/// `PARAM_INVALID` for no flags, unknown ones, and ones that do not go together.
pub fn check_event_flags(flags: u32) -> Result<(), i32> {
    let alone = flags & (EVENT_EXTERNAL | EVENT_IPC);
    let sound = flags != 0 && flags & !KNOWN == 0 && (alone == 0 || flags.count_ones() == 1);
    refuse_if(!sound, codes::PARAM_INVALID)
}

/// An error with a code if the condition holds.
pub(super) fn refuse_if(condition: bool, code: i32) -> Result<(), i32> {
    if condition { Err(code) } else { Ok(()) }
}
