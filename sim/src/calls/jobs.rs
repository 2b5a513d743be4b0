//! What copies and fills do, once their arguments are checked: at once, or on a stream.
//!
//! No lock is held while bytes move (see the memory's module `transfer`), so copies of many threads
//! run side by side, and a long one holds nobody up but those who would take its memory away.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use super::handles::Handle;
use crate::call::Call;
use crate::codes;
use crate::devices::Here;
use crate::exec::{HostOp, Task, WAIT_FOREVER};
use crate::hooks::ExceptionInfo;
use crate::made::Made;
use crate::memory::{Memory, Span};
use crate::refusal::{Answer, Refusal, refuse};
use crate::report::MisuseKind;
use crate::sim::{Inner, Sim};

/// One copy or fill, its arguments checked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    Copy { to: u64, from: u64, count: u64 },
    Fill { to: u64, pattern: [u8; 4], count: u64 },
}

/// The jobs of one call.
pub(super) type Jobs = SmallVec<[Job; 1]>;

/// What memory is, as far as a copy cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// In a window of the devices.
    Device,
    /// Host memory the driver has pinned.
    Pinned,
    /// Any other host memory.
    Pageable,
}

impl Kind {
    pub(super) fn of(memory: &Memory, start: u64, len: u64) -> Self {
        if memory.is_device(start) {
            Self::Device
        } else if memory.is_pinned(start, len) {
            Self::Pinned
        } else {
            Self::Pageable
        }
    }
}

impl Job {
    /// The range that is written, and the one that is read.
    fn ranges(&self) -> (u64, Option<u64>, u64) {
        match *self {
            Self::Copy { to, from, count } => (to, Some(from), count),
            Self::Fill { to, count, .. } => (to, None, count),
        }
    }
}

impl Sim {
    /// Does jobs now, on behalf of the host.
    ///
    /// # Safety
    /// A side that is host memory must be valid for the job's bytes, the target for writes, and no
    /// other thread may write the bytes read or touch the bytes written meanwhile.
    pub(super) unsafe fn at_once(&self, jobs: &[Job]) -> Answer<()> {
        let context = self.context()?;
        let executor = &self.inner.executor;
        Inner::executed(executor.check_synchronous_copy(context))?;
        self.check_devices(jobs, true)?;
        for job in jobs {
            let (to, from, count) = job.ranges();
            if let Some(from) = from {
                executor.host_touch(HostOp::Read, from, count);
            }
            executor.host_touch(HostOp::Write, to, count);
            // SAFETY: the caller's promise.
            if let Err(refusal) = unsafe { self.inner.perform(job, false) } {
                self.inner.note_use_after_end(job, Made::now(), refusal);
                return Err(refusal);
            }
        }
        Ok(())
    }

    /// Refuses copies between places that they cannot go between, and with the stricter answers those
    /// between devices that are not linked in both directions.
    fn check_devices(&self, jobs: &[Job], at_once: bool) -> Answer<()> {
        let mut crossed = SmallVec::<[(u32, u32); 1]>::new();
        let memory = self.inner.memory.lock();
        for job in jobs {
            let &Job::Copy { to, from, .. } = job else { continue };
            memory.check_copy(to, from, at_once)?;
            if self.strict() {
                crossed.extend(memory.crossed(to, from));
            }
        }
        drop(memory);
        let linked = |(one, other): &(u32, u32)| {
            let devices = self.inner.devices.lock();
            devices.peers.contains(&(*one, *other)) && devices.peers.contains(&(*other, *one))
        };
        if !crossed.iter().all(linked) {
            return refuse(codes::RT_PARAM_INVALID, "strict: the devices are not linked in both directions");
        }
        Ok(())
    }

    /// Queues jobs, or does them at once behind the stream if they concern pageable memory.
    ///
    /// # Safety
    /// As [`at_once`](Self::at_once), until the jobs have run. Pinned memory of the simulator's own
    /// need not be: that is checked again then.
    pub(super) unsafe fn on_stream(&self, call: Call, jobs: Jobs, stream: u64, pinned: bool) -> Answer<()> {
        self.context_for(&[Handle::Stream(stream)])?;
        let here = self.here()?;
        let executor = &self.inner.executor;
        if !pinned {
            if Inner::executed(executor.is_capturing(here.context, stream))? {
                return refuse(codes::RT_PARAM_INVALID, "memory that is not pinned on a captured stream");
            }
            if executor.check_synchronous_copy(here.context).is_err() {
                return refuse(
                    codes::RT_CAPTURE_MODE_BLOCK_ASYNC,
                    "a capture forbids memory that is not pinned",
                );
            }
            Inner::executed(executor.synchronize_stream(here.context, stream, WAIT_FOREVER))?;
            self.report_fault(here.device)?;
            // SAFETY: the caller's promise.
            return unsafe { self.at_once(&jobs) };
        }
        self.check_devices(&jobs, false)?;
        let mut task = Task::new(call.name());
        for job in &jobs {
            let (to, from, count) = job.ranges();
            if let Some(from) = from {
                task = task.reads(from, count, 0);
            }
            task = task.writes(to, count, 0);
        }
        let (weak, made) = (Arc::downgrade(&self.inner), Made::now());
        let work = Arc::new(move || {
            let Some(inner) = weak.upgrade() else { return };
            for job in &jobs {
                // SAFETY: the caller vouched for registered memory until now; that pinned memory is
                // still pinned is checked.
                if let Err(refusal) = unsafe { inner.perform(job, true) } {
                    inner.fail(job, here, stream, made, refusal);
                    return;
                }
            }
        });
        Inner::executed(executor.submit_repeatable(here.context, stream, task, work))
    }
}

impl Inner {
    /// Moves or sets bytes, on whichever side they are. With `pinned` host memory that the driver
    /// does not have pinned is refused instead of touched.
    ///
    /// # Safety
    /// As [`Sim::at_once`]; for host memory only if it is pinned, with `pinned`.
    pub(super) unsafe fn perform(&self, job: &Job, pinned: bool) -> Answer<()> {
        let (to, from, count) = job.ranges();
        let (target, source, uses) = {
            let mut memory = self.memory.lock();
            // SAFETY: the caller's promise.
            let target = unsafe { side(&memory, to, count, pinned)? };
            let source = match from {
                // SAFETY: the caller's promise.
                Some(from) => Some(unsafe { side(&memory, from, count, pinned)? }),
                None => None,
            };
            let uses = [memory.begin_use(to, count), memory.begin_use(from.unwrap_or(to), count)];
            (target, source, uses)
        };
        let result = match (job, &source) {
            // SAFETY: device memory in use stays mapped; host memory is the caller's promise.
            (Job::Copy { .. }, Some(source)) => unsafe { target.copy_from(source) },
            // SAFETY: the same.
            (Job::Fill { pattern, .. }, _) => unsafe { target.fill(*pattern) },
            (Job::Copy { .. }, None) => Ok(()),
        };
        let mut memory = self.memory.lock();
        for used in &uses {
            memory.end_use(used);
        }
        drop(memory);
        self.moved.notify_all();
        result
    }

    /// Waits until nobody copies from or to the range, with the lock.
    pub(crate) fn wait_unused<'a>(&'a self, start: u64, len: u64) -> parking_lot::MutexGuard<'a, Memory> {
        let mut memory = self.memory.lock();
        while memory.is_in_use(start, len) {
            self.moved.wait(&mut memory);
        }
        memory
    }

    /// Waits until what is asked of the memory no longer holds, with the lock.
    pub(crate) fn wait_while(&self, busy: impl Fn(&Memory) -> bool) -> parking_lot::MutexGuard<'_, Memory> {
        let mut memory = self.memory.lock();
        while busy(&memory) {
            self.moved.wait(&mut memory);
        }
        memory
    }

    /// Queued work met memory that was not there: a finding, an exception of the program's, and the
    /// code that the next wait answers.
    #[cold]
    fn fail(&self, job: &Job, here: Here, stream: u64, made: Made, refusal: Refusal) {
        let why = self.explain(job, true).unwrap_or_else(|| refusal.why.to_owned());
        let device = here.device;
        let text = format!("{made}, queued to stream {stream:#x} of device {device}, failed: {why}");
        self.found(MisuseKind::UseAfterEnd, text);
        if let Some(fault) = self.faulted.get(device as usize) {
            fault.store(true, Relaxed);
        }
        let info = self.executor.stream_info(here.context, stream).map(|info| info.id);
        self.hooks.failed(&ExceptionInfo {
            task: self.executor.submitted(here.context, stream).unwrap_or(0) as u32,
            stream: info.unwrap_or(0),
            thread: made.thread(),
            device,
            error: codes::RT_AICORE_TRAP_WRITE_OVERFLOW as u32,
        });
    }

    /// A finding if a refused copy or fill concerns memory that was there before.
    #[cold]
    fn note_use_after_end(&self, job: &Job, made: Made, refusal: Refusal) {
        if refusal.code == codes::RT_PARAM_INVALID
            && let Some(why) = self.explain(job, false)
        {
            self.found(MisuseKind::UseAfterEnd, format!("{made} failed: {why}"));
        }
    }

    /// Where the memory of a job went, if it was there; host memory counts only with `pinned`.
    fn explain(&self, job: &Job, pinned: bool) -> Option<String> {
        let (to, from, count) = job.ranges();
        let memory = self.memory.lock();
        for (start, verb) in [(Some(to), "writes"), (from, "reads")] {
            let Some(start) = start else { continue };
            let end = start.saturating_add(count);
            if !memory.is_device(start) {
                if pinned && !memory.is_pinned(start, count) {
                    return Some(format!(
                        "it {verb} {start:#x}..{end:#x}, host memory that is not pinned any more"
                    ));
                }
                continue;
            }
            let Some(hole) = memory.first_hole(start, count) else { continue };
            let Some((made, ended)) = memory.last_mapping(hole) else { continue };
            return Some(format!(
                "it {verb} {start:#x}..{end:#x}, but nothing is mapped at {hole:#x}: use after {ended}; it \
                 was there by {made}"
            ));
        }
        None
    }
}

/// One side of a job.
///
/// # Safety
/// As [`Inner::perform`].
unsafe fn side(memory: &Memory, start: u64, len: u64, pinned: bool) -> Answer<Span> {
    match Kind::of(memory, start, len) {
        Kind::Device => memory.resolve(start, len),
        Kind::Pageable if pinned => {
            refuse(codes::RT_PARAM_INVALID, "host memory that is not pinned any more")
        }
        // SAFETY: the caller's promise; pinned blocks in use are not given back.
        _ => Ok(unsafe { Span::host(start, len) }),
    }
}
