//! Streams: ordered queues, each on a slot.
//!
//! A slot outlives its stream's handle: operations already queued still run. It passes to a new
//! stream when nothing is queued and the host knows the last operation to be done; numbers count
//! on, so (slot, number) names one operation for ever and "done" is one comparison.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::ThreadId;

use super::clock::{Clock, Place, Snapshot};
use super::task::Work;
use crate::made::Made;

/// Something queued to a stream.
pub(super) enum Op {
    /// A task or host function. `own` work is the simulator's (copies, fills): any thread may run it.
    Task { work: Option<Work>, own: bool },
    /// The record of an event, by its index.
    Record { event: u32 },
    /// A callback for a subscribed thread. While a blocking one runs it stays the head, without
    /// `work`.
    Callback { work: Option<Work>, thread: u64, block: bool },
    /// Later operations wait for a place on another stream, the record of an event.
    Wait { on: Place, event: u32 },
}

impl Op {
    /// A task that does nothing.
    pub(super) const NOTHING: Self = Self::Task { work: None, own: false };
}

/// Whether a slot has a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// The stream has a handle.
    Live,
    /// The handle is gone; the slot waits until the host knows all its operations to be done.
    Destroyed,
    /// The slot waits for a new stream.
    Free,
}

/// The stream on one slot.
///
/// Invariant: `done` + operations in `queue` + one while `runner` is set = `last`.
pub(super) struct Stream {
    pub(super) device: u32,
    /// The number of the context it belongs to.
    pub(super) context: u32,
    pub(super) handle: u64,
    pub(super) default: bool,
    pub(super) life: Life,
    /// What is queued, with the tick at which it was.
    pub(super) queue: VecDeque<(u64, Op)>,
    /// Threads mode: up to this number operations need not wait for the lag, as somebody waits for
    /// them.
    pub(super) forced: u64,
    /// Number of the last operation queued.
    pub(super) last: u64,
    /// Number of the last operation done.
    pub(super) done: u64,
    /// What the stream knows of other streams.
    pub(super) clock: Arc<Clock>,
    /// The thread that runs the head's closure at the moment.
    pub(super) runner: Option<ThreadId>,
    /// Streams on other slots that wait for an operation of this one (threads mode).
    pub(super) waiters: Vec<(u64, u32)>,
    /// Whether the slot stands in the list of streams with work (see the schedulers).
    pub(super) listed: bool,
    /// A code that the next wait for the stream answers, after work on it failed.
    pub(super) failure: Option<i32>,
    /// The program's thread that takes callbacks.
    pub(super) subscriber: Option<u64>,
    /// Whether a host function was ever queued, which excludes callbacks.
    pub(super) host_functions: bool,
    /// The capture the stream takes part in.
    pub(super) capture: Option<u64>,
    /// A group of captured tasks is open.
    pub(super) group_open: bool,
    /// A group is being updated: what is queued describes its tasks and does not run.
    pub(super) updating: bool,
    /// As created: 0 is the highest.
    pub(super) priority: u32,
    /// As created.
    pub(super) flags: u32,
    /// What every wait answers after an abort.
    pub(super) aborted: Option<i32>,
    /// The call that created it.
    pub(super) made: Made,
}

impl Stream {
    /// A stream whose numbers go on after `last`.
    pub(super) fn new(device: u32, default: bool, last: u64) -> Self {
        Self {
            device,
            context: device,
            handle: 0,
            default,
            life: Life::Live,
            queue: VecDeque::new(),
            forced: 0,
            last,
            done: last,
            clock: Arc::default(),
            runner: None,
            waiters: Vec::new(),
            listed: false,
            failure: None,
            subscriber: None,
            host_functions: false,
            capture: None,
            group_open: false,
            updating: false,
            priority: 0,
            flags: 0,
            aborted: None,
            made: Made::now(),
        }
    }

    /// Whether everything queued is done.
    pub(super) fn is_idle(&self) -> bool {
        self.done == self.last
    }

    /// Makes tasks and callbacks that have not begun empty. Records and waits stay, so that what is
    /// ordered by them stays ordered.
    pub(super) fn drop_work(&mut self) {
        for (_, op) in &mut self.queue {
            if matches!(op, Op::Task { .. } | Op::Callback { .. }) {
                *op = Op::NOTHING;
            }
        }
    }

    /// Everything queued up to now.
    pub(super) fn snapshot(&self, slot: u32) -> Snapshot {
        Snapshot { place: Place { slot, number: self.last }, clock: Arc::clone(&self.clock) }
    }
}
