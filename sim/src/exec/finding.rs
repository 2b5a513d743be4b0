//! What the use checker reports, in words a person can read.

use core::fmt;

use crate::made::NO_CALL;

/// Two uses of the same bytes that nothing orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The use that was queued earlier.
    pub first: TaskUse,
    /// The use that came later and is not ordered behind the first.
    pub second: Party,
    /// First byte that both touch.
    pub start: u64,
    /// How many bytes both touch.
    pub len: u64,
    /// Its place among all findings of the process, by the time at which they were made.
    pub order: u64,
}

/// One side of a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Party {
    /// A task on a stream.
    Task(TaskUse),
    /// A host operation, which counts as done when it is called.
    Host {
        /// The operation.
        operation: HostOp,
        /// First byte it concerns.
        start: u64,
        /// How many bytes it concerns.
        len: u64,
        /// Virtual time of the call, in ticks.
        tick: u64,
        /// The call that did it, in words; "no call" for the simulator's own interface.
        call: String,
    },
}

/// A task's use of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskUse {
    /// The task's label.
    pub label: &'static str,
    /// The device.
    pub device: u32,
    /// The stream's handle; of the default stream too.
    pub stream: u64,
    /// Whether that is the device's default stream.
    pub default_stream: bool,
    /// The position of the task on its stream: the number that
    /// [`Executor::submitted`](super::Executor::submitted) gave right after the task was queued.
    pub number: u64,
    /// The program object (an allocation) that the bytes belong to; zero for none.
    pub tag: u64,
    /// Whether the task writes the bytes.
    pub write: bool,
    /// Virtual time when the task was queued, in ticks.
    pub tick: u64,
    /// The call that queued it, in words; "no call" for the simulator's own interface.
    pub call: String,
}

/// What the host does with a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostOp {
    /// The mapping is removed; the range's history ends here.
    Unmap,
    /// The block is given back to the driver; the range's history ends here.
    Free,
    /// The reservation is released; the range's history ends here.
    Release,
    /// The host reads the bytes (a synchronous copy from the device).
    Read,
    /// The host writes the bytes (a synchronous copy to the device, or a fill).
    Write,
}

impl HostOp {
    /// Whether unfinished readers matter too, not only writers.
    pub(super) fn writes(self) -> bool {
        self != Self::Read
    }

    /// Whether the range's history ends with the operation.
    pub(super) fn clears(self) -> bool {
        matches!(self, Self::Unmap | Self::Free | Self::Release)
    }
}

impl fmt::Display for HostOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unmap => "unmap",
            Self::Free => "free",
            Self::Release => "release",
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

impl fmt::Display for TaskUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = if self.write { "writes" } else { "reads" };
        match self.call.strip_prefix(self.label) {
            // Copies and fills are named after their calls.
            Some(number) if number.starts_with(" (") => f.write_str(&self.call)?,
            _ if self.call == NO_CALL => write!(f, "task \"{}\"", self.label)?,
            _ => write!(f, "task \"{}\" of {}", self.label, self.call)?,
        }
        write!(f, " (which {access} it, no. {} of ", self.number)?;
        if self.default_stream {
            f.write_str("the default stream")?;
        } else {
            write!(f, "stream {:#x}", self.stream)?;
        }
        write!(f, " on device {}", self.device)?;
        if self.tick != 0 {
            write!(f, ", queued at tick {}", self.tick)?;
        }
        if self.tag != 0 {
            write!(f, ", tag {}", self.tag)?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task(task) => task.fmt(f),
            Self::Host { operation, start, len, tick, call } => {
                let end = start.saturating_add(*len);
                write!(f, "host {operation} of {start:#x}..{end:#x} by {call}")?;
                if *tick != 0 { write!(f, " at tick {tick}") } else { Ok(()) }
            }
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.start.saturating_add(self.len);
        write!(f, "unordered use of {:#x}..{end:#x} ({} bytes): ", self.start, self.len)?;
        match &self.second {
            Party::Task(second) => {
                write!(f, "{second} is not ordered behind {}: no event or wait lies between", self.first)
            }
            host @ Party::Host { .. } => {
                write!(f, "{host}, but the host has not waited for {}", self.first)
            }
        }
    }
}
