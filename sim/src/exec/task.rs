//! Tasks: what is queued to a stream.

use core::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

/// What a task does when it runs. It must not call back into the executor to wait for anything:
/// on a device that is a deadlock, here the wait answers
/// [`INTERNAL_ERROR`](super::codes::INTERNAL_ERROR).
pub type Work = Box<dyn FnOnce() + Send>;

/// What a task does as often as it runs, in a captured graph also more than once.
pub type Repeat = Arc<dyn Fn() + Send + Sync>;

/// One range that a task reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// First byte.
    pub start: u64,
    /// Length in bytes; a range past the end of the address space is cut there.
    pub len: u64,
    /// Whether the task writes the range (it may read it too).
    pub write: bool,
    /// The program object that the range belongs to. Accesses with the same tag never conflict: the
    /// program orders them itself. Zero is no object: such an access conflicts with every other.
    pub tag: u64,
}

/// Work for a stream: a name, the memory it uses, and what it does.
#[derive(Default)]
pub struct Task {
    /// A name for reports.
    pub label: &'static str,
    /// Everything the task reads or writes.
    pub accesses: SmallVec<[Access; 2]>,
    /// What it does when it runs, if anything.
    pub work: Option<Work>,
}

impl Task {
    /// A task that touches nothing and does nothing.
    #[must_use]
    pub fn new(label: &'static str) -> Self {
        Self { label, accesses: SmallVec::new(), work: None }
    }

    /// The task also reads `len` bytes from `start`, of the object `tag`.
    #[must_use]
    pub fn reads(mut self, start: u64, len: u64, tag: u64) -> Self {
        self.accesses.push(Access { start, len, write: false, tag });
        self
    }

    /// The task also writes (and may read) `len` bytes from `start`, of the object `tag`.
    #[must_use]
    pub fn writes(mut self, start: u64, len: u64, tag: u64) -> Self {
        self.accesses.push(Access { start, len, write: true, tag });
        self
    }

    /// What the task does when it runs. In a captured graph it does nothing: a graph runs more than
    /// once (see [`Executor::submit_repeatable`](super::Executor::submit_repeatable)).
    #[must_use]
    pub fn works(mut self, work: impl FnOnce() + Send + 'static) -> Self {
        self.work = Some(Box::new(work));
        self
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("label", &self.label)
            .field("accesses", &self.accesses)
            .field("work", &self.work.is_some())
            .finish()
    }
}
