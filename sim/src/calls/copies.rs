//! Copies and fills: as ACL calls, now or on a stream, and as a test's own look at device memory.
//!
//! The direction of a copy follows from the addresses, as on the device: an address in one of the
//! windows is a device's, everything else is host memory, pinned if the driver knows it.

use std::sync::atomic::Ordering::Relaxed;

use crate::call::Call;
use crate::codes;
use crate::exec::{HostOp, Task, WAIT_FOREVER};
use crate::refusal::{Answer, refuse};
use crate::sim::{Inner, Sim};

/// The highest copy kind that the calls take.
const LAST_KIND: u32 = 5;

/// What a copy or fill does, checked.
#[derive(Clone, Copy)]
enum Job {
    Copy { to: u64, from: u64, count: u64 },
    Fill { to: u64, byte: u8, count: u64 },
}

impl Sim {
    /// `aclrtMemcpy`: at once, behind nothing that is queued.
    ///
    /// # Errors
    /// The ACL code: 100000 for null (unless `count` is 0) and unknown kinds, 107000 for a count
    /// above `room` and for device memory that is not mapped, 107030 while a capture forbids it.
    ///
    /// # Safety
    /// A side that is host memory must be valid for `count` bytes, the target for writes, and no
    /// other thread may write the bytes read or touch the bytes written meanwhile.
    pub unsafe fn memcpy(&self, to: u64, room: u64, from: u64, count: u64, kind: u32) -> Result<(), i32> {
        let arguments = format_args!("to={to:#x}, max={room}, from={from:#x}, count={count}, kind={kind}");
        self.call(Call::Memcpy, arguments, || match copy_job(to, room, from, count, kind)? {
            // SAFETY: the caller vouches for host memory.
            Some(job) => unsafe { self.at_once(job) },
            None => Ok(()),
        })
    }

    /// `aclrtMemset`: at once, behind nothing that is queued.
    ///
    /// # Errors
    /// The ACL code: 100000 for null (unless `count` is 0), 107000 for a count above `room` and for
    /// device memory that is not mapped, 107030 while a capture forbids it.
    ///
    /// # Safety
    /// As [`memcpy`](Self::memcpy), for a target in host memory.
    pub unsafe fn memset(&self, to: u64, room: u64, value: i32, count: u64) -> Result<(), i32> {
        let arguments = format_args!("to={to:#x}, max={room}, value={value}, count={count}");
        self.call(Call::Memset, arguments, || match fill_job(to, room, value, count)? {
            // SAFETY: the caller vouches for host memory.
            Some(job) => unsafe { self.at_once(job) },
            None => Ok(()),
        })
    }

    /// `aclrtMemcpyAsync`: behind what is queued on the stream. With host memory that is not pinned
    /// it waits for the stream and copies at once.
    ///
    /// # Errors
    /// As [`memcpy`](Self::memcpy); 207000 from host to host, 107000 with memory that is not pinned
    /// on a captured stream.
    ///
    /// # Safety
    /// As [`memcpy`](Self::memcpy), until the copy has run.
    pub unsafe fn memcpy_async(
        &self,
        to: u64,
        room: u64,
        from: u64,
        count: u64,
        kind: u32,
        stream: u64,
    ) -> Result<(), i32> {
        let arguments = format_args!(
            "to={to:#x}, max={room}, from={from:#x}, count={count}, kind={kind}, stream={stream:#x}"
        );
        self.call(Call::MemcpyAsync, arguments, || {
            let Some(job) = copy_job(to, room, from, count, kind)? else { return Ok(()) };
            let (device_side, pinned) = {
                let memory = self.inner.memory.lock();
                let device = |address| memory.is_device(address);
                let fast = |address| memory.is_device(address) || memory.is_pinned(address, count);
                (device(to) || device(from), fast(to) && fast(from))
            };
            if !device_side {
                return refuse(codes::RT_FEATURE_NOT_SUPPORT, "host to host on a stream");
            }
            let task = Task::new("memcpy").reads(from, count, 0).writes(to, count, 0);
            // SAFETY: the caller vouches for host memory until the copy has run.
            unsafe { self.on_stream(job, task, stream, pinned) }
        })
    }

    /// `aclrtMemsetAsync`: behind what is queued on the stream.
    ///
    /// # Errors
    /// As [`memset`](Self::memset).
    ///
    /// # Safety
    /// As [`memcpy`](Self::memcpy), until the fill has run.
    pub unsafe fn memset_async(
        &self,
        to: u64,
        room: u64,
        value: i32,
        count: u64,
        stream: u64,
    ) -> Result<(), i32> {
        let arguments =
            format_args!("to={to:#x}, max={room}, value={value}, count={count}, stream={stream:#x}");
        self.call(Call::MemsetAsync, arguments, || {
            let Some(job) = fill_job(to, room, value, count)? else { return Ok(()) };
            let pinned = {
                let memory = self.inner.memory.lock();
                memory.is_device(to) || memory.is_pinned(to, count)
            };
            let task = Task::new("memset").writes(to, count, 0);
            // SAFETY: the caller vouches for host memory until the fill has run.
            unsafe { self.on_stream(job, task, stream, pinned) }
        })
    }

    /// Queues a job, or does it at once behind the stream if it concerns pageable memory.
    ///
    /// # Safety
    /// As [`memcpy`](Self::memcpy), until the job has run.
    unsafe fn on_stream(&self, job: Job, task: Task, stream: u64, pinned: bool) -> Answer<()> {
        let device = self.current()?;
        let executor = &self.inner.executor;
        if !pinned {
            if Inner::executed(executor.is_capturing(device, stream))? {
                return refuse(codes::RT_PARAM_INVALID, "memory that is not pinned on a captured stream");
            }
            Inner::executed(executor.check_synchronous_copy(device))?;
            Inner::executed(executor.synchronize_stream(device, stream, WAIT_FOREVER))?;
            self.report_fault(device)?;
            // SAFETY: the caller vouches for host memory.
            return unsafe { self.at_once(job) };
        }
        let weak = std::sync::Arc::downgrade(&self.inner);
        let task = task.works(move || {
            let Some(inner) = weak.upgrade() else { return };
            // SAFETY: the caller vouched for host memory until now; pinned memory that was freed
            // meanwhile is what the use checker reports.
            if let Err(refusal) = unsafe { inner.perform(job) } {
                let text = format!("a queued copy or fill on device {device} failed: {}", refusal.why);
                inner.findings.lock().push(text);
                if let Some(fault) = inner.faulted.get(device as usize) {
                    fault.store(true, Relaxed);
                }
            }
        });
        Inner::executed(executor.submit(device, stream, task))
    }

    /// Does a job now, on behalf of the host.
    ///
    /// # Safety
    /// As [`memcpy`](Self::memcpy).
    unsafe fn at_once(&self, job: Job) -> Answer<()> {
        let device = self.current()?;
        let executor = &self.inner.executor;
        Inner::executed(executor.check_synchronous_copy(device))?;
        let (to, count) = match job {
            Job::Copy { to, from, count } => {
                executor.host_touch(HostOp::Read, from, count);
                (to, count)
            }
            Job::Fill { to, count, .. } => (to, count),
        };
        executor.host_touch(HostOp::Write, to, count);
        // SAFETY: the caller vouches for host memory.
        unsafe { self.inner.perform(job) }
    }

    /// Copies device memory out, for looking at it: not an ACL call, not seen by the use checker.
    ///
    /// # Errors
    /// 107000 if the range is not wholly mapped.
    pub fn read_bytes(&self, address: u64, out: &mut [u8]) -> Result<(), i32> {
        self.inner.memory.lock().read(address, out).map_err(|refusal| refusal.code)
    }

    /// Overwrites device memory: not an ACL call, not seen by the use checker.
    ///
    /// # Errors
    /// 107000 if the range is not wholly mapped.
    pub fn write_bytes(&self, address: u64, bytes: &[u8]) -> Result<(), i32> {
        self.inner.memory.lock().write(address, bytes).map_err(|refusal| refusal.code)
    }

    /// Sets device memory to one byte: not an ACL call, not seen by the use checker. In the
    /// metadata-only mode the size costs nothing.
    ///
    /// # Errors
    /// 107000 if the range is not wholly mapped.
    pub fn fill_bytes(&self, address: u64, bytes: u64, value: u8) -> Result<(), i32> {
        self.inner.memory.lock().fill(address, bytes, value).map_err(|refusal| refusal.code)
    }

    /// Copies device memory to device memory: not an ACL call, not seen by the use checker.
    ///
    /// # Errors
    /// 107000 if one of the ranges is not wholly mapped.
    pub fn copy_bytes(&self, to: u64, from: u64, bytes: u64) -> Result<(), i32> {
        self.inner.memory.lock().copy(to, from, bytes).map_err(|refusal| refusal.code)
    }

    /// Whether every byte of a range has memory behind it.
    #[must_use]
    pub fn is_backed(&self, address: u64, bytes: u64) -> bool {
        self.inner.memory.lock().first_hole(address, bytes).is_none()
    }

    /// Tells the use checker that the host reads or writes a range now.
    pub fn touch(&self, operation: HostOp, address: u64, bytes: u64) {
        self.inner.executor.host_touch(operation, address, bytes);
    }
}

impl Inner {
    /// Moves or sets bytes, on whichever side they are.
    ///
    /// # Safety
    /// A side that is host memory must be valid for the job's bytes, the target for writes, and
    /// nobody else may touch them meanwhile.
    unsafe fn perform(&self, job: Job) -> Answer<()> {
        let mut memory = self.memory.lock();
        match job {
            Job::Fill { to, byte, count } if memory.is_device(to) => memory.fill(to, count, byte),
            Job::Fill { to, byte, count } => {
                // SAFETY: the caller vouches for `count` writable bytes of host memory.
                unsafe { std::ptr::write_bytes(host(to), byte, size(count)?) };
                Ok(())
            }
            Job::Copy { to, from, count } => match (memory.is_device(to), memory.is_device(from)) {
                (true, true) => memory.copy(to, from, count),
                (true, false) => {
                    // SAFETY: the caller vouches for `count` readable bytes that nobody writes.
                    let bytes = unsafe { std::slice::from_raw_parts(host(from), size(count)?) };
                    memory.write(to, bytes)
                }
                (false, true) => {
                    // SAFETY: the caller vouches for `count` writable bytes that nobody else touches;
                    // bytes need no initialisation to be overwritten through this slice by a copy.
                    let bytes = unsafe { std::slice::from_raw_parts_mut(host(to), size(count)?) };
                    memory.read(from, bytes)
                }
                (false, false) => {
                    // SAFETY: the caller vouches for both sides; they may overlap.
                    unsafe { std::ptr::copy(host(from), host(to), size(count)?) };
                    Ok(())
                }
            },
        }
    }
}

/// The checks of `aclrtMemcpy` on its arguments; `None` if there is nothing to do.
fn copy_job(to: u64, room: u64, from: u64, count: u64, kind: u32) -> Answer<Option<Job>> {
    if count == 0 {
        return Ok(None);
    }
    if to == 0 || from == 0 || kind > LAST_KIND {
        return refuse(codes::INVALID_PARAM, "null address or unknown kind");
    }
    check_room(room, count)?;
    Ok((to != from).then_some(Job::Copy { to, from, count }))
}

/// The checks of `aclrtMemset` on its arguments; `None` if there is nothing to do.
fn fill_job(to: u64, room: u64, value: i32, count: u64) -> Answer<Option<Job>> {
    if count == 0 {
        return Ok(None);
    }
    if to == 0 {
        return refuse(codes::INVALID_PARAM, "null address");
    }
    check_room(room, count)?;
    // Of the value only the lowest byte counts, as with memset in C.
    Ok(Some(Job::Fill { to, byte: value.to_le_bytes()[0], count }))
}

fn check_room(room: u64, count: u64) -> Answer<()> {
    if count > room {
        return refuse(codes::RT_PARAM_INVALID, "more bytes than the target has room for");
    }
    Ok(())
}

/// The host memory at an address.
fn host(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

fn size(count: u64) -> Answer<usize> {
    usize::try_from(count)
        .or_else(|_| refuse(codes::RT_PARAM_INVALID, "more bytes than this machine can address"))
}
