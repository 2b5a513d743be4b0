//! Copies and fills: as ACL calls, now or on a stream, and as a test's own look at device memory.
//!
//! The direction of a copy follows from the addresses, as on the device: an address in one of the
//! windows is a device's, everything else is host memory, pinned if the driver knows it.

use smallvec::smallvec;

use super::handles::Handle;
use super::jobs::{Job, Jobs, Kind};
use crate::call::Call;
use crate::codes;
use crate::exec::HostOp;
use crate::made::Made;
use crate::refusal::{Answer, refuse};
use crate::sim::Sim;

/// The highest kind that synchronous copies take.
const LAST_KIND: u32 = 5;
/// The highest kind that copies on a stream take.
const LAST_ASYNC_KIND: u32 = 7;

/// Values of `aclrtMemcpyKind`.
mod kind {
    pub(super) const TO_DEVICE: u32 = 1;
    pub(super) const TO_HOST: u32 = 2;
    pub(super) const DEFAULT: u32 = 4;
    pub(super) const BUFFERED_TO_DEVICE: u32 = 5;
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
        self.call(Call::Memcpy, arguments, || match copy_job(to, room, from, count, kind, LAST_KIND)? {
            // SAFETY: the caller vouches for host memory.
            Some(job) => unsafe { self.at_once(&[job]) },
            None => Ok(()),
        })
    }

    /// `aclrtMemset`: at once, behind nothing that is queued.
    ///
    /// # Errors
    /// The ACL code: 100000 for null (unless `count` is 0), 107000 for a count above `room`, for device
    /// memory that is not mapped and host memory that ACL has not allocated, 107030 while a capture
    /// forbids it.
    ///
    /// # Safety
    /// As [`memcpy`](Self::memcpy), for a target in host memory.
    pub unsafe fn memset(&self, to: u64, room: u64, value: i32, count: u64) -> Result<(), i32> {
        let arguments = format_args!("to={to:#x}, max={room}, value={value}, count={count}");
        self.call(Call::Memset, arguments, || match fill_job(to, room, value, count)? {
            // SAFETY: the caller vouches for host memory.
            Some(job) => unsafe { self.fill_at_once(job, (to, count)) },
            None => Ok(()),
        })
    }

    /// `aclrtMemsetD32`: `count` times four bytes, at once.
    ///
    /// # Errors
    /// As [`memset`](Self::memset); 107000 for an address that is no multiple of 4.
    ///
    /// # Safety
    /// As [`memcpy`](Self::memcpy), for a target in host memory.
    pub unsafe fn memset_d32(&self, to: u64, room: u64, value: u32, count: u64) -> Result<(), i32> {
        let arguments = format_args!("to={to:#x}, max={room}, value={value:#x}, count={count}");
        self.call(Call::MemsetD32, arguments, || match fill_words_job(to, room, value, count)? {
            // SAFETY: the caller vouches for host memory.
            Some(job) => unsafe { self.fill_at_once(job, (to, count * 4)) },
            None => Ok(()),
        })
    }

    /// `aclrtMemcpyAsync`: behind what is queued on the stream. With host memory that is not pinned
    /// it waits for the stream and copies at once.
    ///
    /// # Errors
    /// As [`memcpy`](Self::memcpy); 207000 from host to host, 107000 with memory that is not pinned
    /// on a captured stream or with a kind that does not fit it, 107041 with such memory while a
    /// capture forbids it.
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
        // SAFETY: the caller vouches for host memory until the copy has run.
        unsafe { self.queue_copy(Call::MemcpyAsync, to, room, from, count, kind, stream) }
    }

    /// `aclrtMemcpyAsyncWithCondition`: as [`memcpy_async`](Self::memcpy_async), which decides by the
    /// memory whether it can be asynchronous, as this call does.
    ///
    /// # Errors
    /// As [`memcpy_async`](Self::memcpy_async).
    ///
    /// # Safety
    /// As [`memcpy_async`](Self::memcpy_async).
    pub unsafe fn memcpy_async_with_condition(
        &self,
        to: u64,
        room: u64,
        from: u64,
        count: u64,
        kind: u32,
        stream: u64,
    ) -> Result<(), i32> {
        // SAFETY: the caller vouches for host memory until the copy has run.
        unsafe { self.queue_copy(Call::MemcpyAsyncWithCondition, to, room, from, count, kind, stream) }
    }

    /// # Safety
    /// As [`memcpy_async`](Self::memcpy_async).
    #[allow(clippy::too_many_arguments)] // those of the ACL call
    unsafe fn queue_copy(
        &self,
        call: Call,
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
        self.call(call, arguments, || {
            let Some(job) = copy_job(to, room, from, count, kind, LAST_ASYNC_KIND)? else { return Ok(()) };
            self.current()?;
            let pinned = self.copy_is_pinned(&[job], kind)?;
            // SAFETY: the caller vouches for host memory until the copy has run.
            unsafe { self.on_stream(call, smallvec![job], stream, pinned) }
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
            // SAFETY: the caller vouches for host memory until the fill has run.
            unsafe { self.queue_fill(Call::MemsetAsync, job, (to, count), stream) }
        })
    }

    /// `aclrtMemsetD32Async`: `count` times four bytes, behind what is queued on the stream.
    ///
    /// # Errors
    /// As [`memset_d32`](Self::memset_d32).
    ///
    /// # Safety
    /// As [`memcpy`](Self::memcpy), until the fill has run.
    pub unsafe fn memset_d32_async(
        &self,
        to: u64,
        room: u64,
        value: u32,
        count: u64,
        stream: u64,
    ) -> Result<(), i32> {
        let arguments =
            format_args!("to={to:#x}, max={room}, value={value:#x}, count={count}, stream={stream:#x}");
        self.call(Call::MemsetD32Async, arguments, || {
            let Some(job) = fill_words_job(to, room, value, count)? else { return Ok(()) };
            // SAFETY: the caller vouches for host memory until the fill has run.
            unsafe { self.queue_fill(Call::MemsetD32Async, job, (to, count * 4), stream) }
        })
    }

    /// # Safety
    /// As [`memset_async`](Self::memset_async).
    unsafe fn queue_fill(&self, call: Call, job: Job, range: (u64, u64), stream: u64) -> Answer<()> {
        self.context_for(&[Handle::Stream(stream)])?;
        self.check_fill(range)?;
        // SAFETY: the caller's promise.
        unsafe { self.on_stream(call, smallvec![job], stream, true) }
    }

    /// # Safety
    /// As [`memset`](Self::memset).
    unsafe fn fill_at_once(&self, job: Job, range: (u64, u64)) -> Answer<()> {
        self.current()?;
        self.check_fill(range)?;
        // SAFETY: the caller's promise.
        unsafe { self.at_once(&[job]) }
    }

    /// Host memory can be filled only where ACL has allocated it.
    fn check_fill(&self, (to, len): (u64, u64)) -> Answer<()> {
        let memory = self.inner.memory.lock();
        if memory.is_device(to) || memory.is_pinned_block(to, len) {
            return Ok(());
        }
        refuse(codes::RT_PARAM_INVALID, "host memory that ACL has not allocated")
    }

    /// Whether copies of that kind on a stream need not stop it; refused where the kind does not fit
    /// the memory.
    pub(super) fn copy_is_pinned(&self, jobs: &[Job], kind: u32) -> Answer<bool> {
        let memory = self.inner.memory.lock();
        let mut all = true;
        for job in jobs {
            let &Job::Copy { to, from, count } = job else { continue };
            let (target, source) = (Kind::of(&memory, to, count), Kind::of(&memory, from, count));
            let fits = match (target, source) {
                (Kind::Device, Kind::Device) => true,
                // The direction of known memory is corrected whatever the kind says.
                (Kind::Device, Kind::Pinned) | (Kind::Pinned, Kind::Device) => true,
                (Kind::Device, Kind::Pageable) => {
                    matches!(kind, kind::TO_DEVICE | kind::DEFAULT | kind::BUFFERED_TO_DEVICE)
                }
                (Kind::Pageable, Kind::Device) => matches!(kind, kind::TO_HOST | kind::DEFAULT),
                _ => return refuse(codes::RT_FEATURE_NOT_SUPPORT, "host to host on a stream"),
            };
            if !fits {
                return refuse(codes::RT_PARAM_INVALID, "the kind does not fit memory that is not pinned");
            }
            all &= target != Kind::Pageable && source != Kind::Pageable;
        }
        Ok(all)
    }

    /// Copies device memory out, for looking at it: not an ACL call, not seen by the use checker.
    ///
    /// # Errors
    /// 107000 if the range is not wholly mapped device memory.
    pub fn read_bytes(&self, address: u64, out: &mut [u8]) -> Result<(), i32> {
        self.check_device(address, out.len() as u64)?;
        let to = out.as_mut_ptr().expose_provenance() as u64;
        self.move_unseen(&Job::Copy { to, from: address, count: out.len() as u64 })
    }

    /// Overwrites device memory: not an ACL call, not seen by the use checker.
    ///
    /// # Errors
    /// 107000 if the range is not wholly mapped device memory.
    pub fn write_bytes(&self, address: u64, bytes: &[u8]) -> Result<(), i32> {
        self.check_device(address, bytes.len() as u64)?;
        let from = bytes.as_ptr().expose_provenance() as u64;
        self.move_unseen(&Job::Copy { to: address, from, count: bytes.len() as u64 })
    }

    /// Sets device memory to one byte: not an ACL call, not seen by the use checker. In the
    /// metadata-only mode the size costs nothing.
    ///
    /// # Errors
    /// 107000 if the range is not wholly mapped device memory.
    pub fn fill_bytes(&self, address: u64, bytes: u64, value: u8) -> Result<(), i32> {
        self.check_device(address, bytes)?;
        self.move_unseen(&Job::Fill { to: address, pattern: [value; 4], count: bytes })
    }

    /// Copies device memory to device memory: not an ACL call, not seen by the use checker.
    ///
    /// # Errors
    /// 107000 if one of the ranges is not wholly mapped device memory.
    pub fn copy_bytes(&self, to: u64, from: u64, bytes: u64) -> Result<(), i32> {
        self.check_device(to, bytes)?;
        self.check_device(from, bytes)?;
        self.move_unseen(&Job::Copy { to, from, count: bytes })
    }

    fn check_device(&self, start: u64, len: u64) -> Result<(), i32> {
        let memory = self.inner.memory.lock();
        let whole = len == 0 || (memory.is_device(start) && memory.first_hole(start, len).is_none());
        if whole { Ok(()) } else { Err(codes::RT_PARAM_INVALID) }
    }

    fn move_unseen(&self, job: &Job) -> Result<(), i32> {
        // SAFETY: the callers pass device memory, which is resolved, or memory of a slice they
        // borrow for as long as this takes.
        unsafe { self.inner.perform(job, false) }.map_err(|refusal| refusal.code)
    }

    /// Whether every byte of a range has memory behind it.
    #[must_use]
    pub fn is_backed(&self, address: u64, bytes: u64) -> bool {
        self.inner.memory.lock().first_hole(address, bytes).is_none()
    }

    /// Tells the use checker that the host reads or writes a range now.
    pub fn touch(&self, operation: HostOp, address: u64, bytes: u64) {
        Made::leave();
        self.inner.executor.host_touch(operation, address, bytes);
    }
}

/// The checks of `aclrtMemcpy` on its arguments; `None` if there is nothing to do.
fn copy_job(to: u64, room: u64, from: u64, count: u64, kind: u32, last: u32) -> Answer<Option<Job>> {
    if count == 0 {
        return Ok(None);
    }
    if to == 0 || from == 0 || kind > last {
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
    Ok(Some(Job::Fill { to, pattern: [value as u8; 4], count }))
}

/// The checks of `aclrtMemsetD32` on its arguments; `None` if there is nothing to do.
fn fill_words_job(to: u64, room: u64, value: u32, count: u64) -> Answer<Option<Job>> {
    if count == 0 {
        return Ok(None);
    }
    if to == 0 {
        return refuse(codes::INVALID_PARAM, "null address");
    }
    let Some(bytes) = count.checked_mul(4).filter(|_| to.is_multiple_of(4)) else {
        return refuse(codes::RT_PARAM_INVALID, "the address must be a multiple of 4");
    };
    check_room(room, bytes)?;
    Ok(Some(Job::Fill { to, pattern: value.to_le_bytes(), count: bytes }))
}

pub(super) fn check_room(room: u64, count: u64) -> Answer<()> {
    if count > room {
        return refuse(codes::RT_PARAM_INVALID, "more bytes than the target has room for");
    }
    Ok(())
}

/// Jobs of several copies at once.
pub(super) fn collect_jobs(jobs: impl Iterator<Item = Job>) -> Jobs {
    jobs.collect()
}
