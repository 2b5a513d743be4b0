//! Copies of many pieces by one call: rows of a rectangle, and batches.

use super::copies::{check_room, collect_jobs};
use super::jobs::{Job, Jobs};
use crate::call::Call;
use crate::codes::{self, location};
use crate::memory::Location;
use crate::refusal::{Answer, Refusal, refuse};
use crate::sim::Sim;

/// The highest kind that rectangles take.
const LAST_KIND: u32 = 4;

/// A rectangle of bytes to copy: `aclrtMemcpy2d`. Pitches are the bytes from one row to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pitched {
    /// First byte of the target.
    pub to: u64,
    /// Pitch of the target.
    pub to_pitch: u64,
    /// First byte of the source.
    pub from: u64,
    /// Pitch of the source.
    pub from_pitch: u64,
    /// Bytes of a row.
    pub width: u64,
    /// Number of rows.
    pub height: u64,
}

/// One copy of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchCopy {
    /// First byte of the target.
    pub to: u64,
    /// Bytes the target has room for.
    pub room: u64,
    /// First byte of the source.
    pub from: u64,
    /// Bytes to copy.
    pub count: u64,
}

/// Where the copies of a part of a batch go from and to: `aclrtMemcpyBatchAttr`. Devices by the
/// process's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchAttribute {
    /// Where the targets are.
    pub to: Location,
    /// Where the sources are.
    pub from: Location,
}

/// Why a batch was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRefusal {
    /// The ACL code.
    pub code: i32,
    /// The copy that is to blame; `usize::MAX` if it is none in particular.
    pub index: usize,
}

impl Sim {
    /// `aclrtMemcpy2d`: at once.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, an empty rectangle and unknown kinds, 107000 for a row longer
    /// than a pitch and device memory that is not mapped, 107030 while a capture forbids it.
    ///
    /// # Safety
    /// As [`memcpy`](Self::memcpy), for every row.
    pub unsafe fn memcpy_2d(&self, area: &Pitched, kind: u32) -> Result<(), i32> {
        self.call(Call::Memcpy2d, format_args!("{area:?}, kind={kind}"), || {
            let jobs = rows(area, kind)?;
            // SAFETY: the caller vouches for host memory.
            unsafe { self.at_once(&jobs) }
        })
    }

    /// `aclrtMemcpy2dAsync`: behind what is queued on the stream.
    ///
    /// # Errors
    /// As [`memcpy_2d`](Self::memcpy_2d), and those of [`memcpy_async`](Self::memcpy_async).
    ///
    /// # Safety
    /// As [`memcpy_async`](Self::memcpy_async), for every row.
    pub unsafe fn memcpy_2d_async(&self, area: &Pitched, kind: u32, stream: u64) -> Result<(), i32> {
        self.call(Call::Memcpy2dAsync, format_args!("{area:?}, kind={kind}, stream={stream:#x}"), || {
            let jobs = rows(area, kind)?;
            self.current()?;
            let pinned = self.copy_is_pinned(&jobs, kind)?;
            // SAFETY: the caller vouches for host memory until the copies have run.
            unsafe { self.on_stream(Call::Memcpy2dAsync, jobs, stream, pinned) }
        })
    }

    /// `aclrtMemcpyBatch`: at once. The attribute `n` counts for the copies from `first[n]` on, up to
    /// `first[n + 1]`.
    ///
    /// # Errors
    /// 100000 for an empty batch or none or too many attributes, 107000 for copies and attributes
    /// that do not fit together, 107001 for an unknown device, and those of [`memcpy`](Self::memcpy).
    ///
    /// # Safety
    /// As [`memcpy`](Self::memcpy), for every copy.
    pub unsafe fn memcpy_batch(
        &self,
        copies: &[BatchCopy],
        attributes: &[BatchAttribute],
        first: &[usize],
    ) -> Result<(), BatchRefusal> {
        let mut index = usize::MAX;
        let answer = self.call(Call::MemcpyBatch, format_args!("copies={}", copies.len()), || {
            let jobs = self.batch(copies, attributes, first, &mut index)?;
            // SAFETY: the caller vouches for host memory.
            unsafe { self.at_once(&jobs) }
        });
        answer.map_err(|code| BatchRefusal { code, index })
    }

    /// `aclrtMemcpyBatchAsync`: behind what is queued on the stream.
    ///
    /// # Errors
    /// As [`memcpy_batch`](Self::memcpy_batch), and those of [`memcpy_async`](Self::memcpy_async).
    ///
    /// # Safety
    /// As [`memcpy_async`](Self::memcpy_async), for every copy.
    pub unsafe fn memcpy_batch_async(
        &self,
        copies: &[BatchCopy],
        attributes: &[BatchAttribute],
        first: &[usize],
        stream: u64,
    ) -> Result<(), BatchRefusal> {
        /// The kind that takes the direction from the memory.
        const DEFAULT: u32 = 4;
        let mut index = usize::MAX;
        let arguments = format_args!("copies={}, stream={stream:#x}", copies.len());
        let answer = self.call(Call::MemcpyBatchAsync, arguments, || {
            let jobs = self.batch(copies, attributes, first, &mut index)?;
            let pinned = self.copy_is_pinned(&jobs, DEFAULT)?;
            // SAFETY: the caller vouches for host memory until the copies have run.
            unsafe { self.on_stream(Call::MemcpyBatchAsync, jobs, stream, pinned) }
        });
        answer.map_err(|code| BatchRefusal { code, index })
    }

    /// The checks of a batch; `blamed` is the copy at fault.
    fn batch(
        &self,
        copies: &[BatchCopy],
        attributes: &[BatchAttribute],
        first: &[usize],
        blamed: &mut usize,
    ) -> Answer<Jobs> {
        if copies.is_empty() || attributes.is_empty() || attributes.len() > copies.len() {
            return refuse(codes::INVALID_PARAM, "no copies, no attributes, or more attributes than copies");
        }
        let ascending = first.windows(2).all(|pair| pair[0] < pair[1]);
        let inside = first.last().is_some_and(|&last| last < copies.len());
        if first.len() != attributes.len() || first.first() != Some(&0) || !ascending || !inside {
            return refuse(
                codes::RT_PARAM_INVALID,
                "the attributes do not begin at ascending copies from 0 on",
            );
        }
        self.current()?;
        for attribute in attributes {
            self.check_attribute_place(attribute)?;
        }
        let memory = self.inner.memory.lock();
        for (index, copy) in copies.iter().enumerate() {
            let part = first.partition_point(|&start| start <= index) - 1;
            let fits =
                |address, place: Location| memory.is_device(address) == (place.kind == location::DEVICE);
            let attribute = &attributes[part];
            let sound = copy.to != 0 && copy.from != 0 && copy.count != 0;
            if !sound || !fits(copy.to, attribute.to) || !fits(copy.from, attribute.from) {
                *blamed = index;
                return refuse(codes::RT_PARAM_INVALID, "a copy is empty or not where its attribute says");
            }
            check_room(copy.room, copy.count).inspect_err(|_| *blamed = index)?;
        }
        Ok(collect_jobs(copies.iter().map(|copy| Job::Copy {
            to: copy.to,
            from: copy.from,
            count: copy.count,
        })))
    }

    fn check_attribute_place(&self, attribute: &BatchAttribute) -> Answer<()> {
        for place in [attribute.to, attribute.from] {
            match place.kind {
                location::HOST => {}
                location::DEVICE => drop(self.inner.devices.lock().driver_id(place.id)?),
                _ => return refuse(codes::RT_PARAM_INVALID, "a place that cannot be copied to or from"),
            }
        }
        if attribute.to.kind == location::HOST && attribute.from.kind == location::HOST {
            return Err(Refusal::new(codes::RT_FEATURE_NOT_SUPPORT, "a batch from host to host"));
        }
        Ok(())
    }
}

/// The checks of `aclrtMemcpy2d` on its arguments, and the copies of its rows.
fn rows(area: &Pitched, kind: u32) -> Answer<Jobs> {
    let &Pitched { to, to_pitch, from, from_pitch, width, height } = area;
    if to == 0 || from == 0 || width == 0 || height == 0 || kind > LAST_KIND {
        return refuse(codes::INVALID_PARAM, "null address, an empty rectangle or an unknown kind");
    }
    if width > to_pitch || width > from_pitch {
        return refuse(codes::RT_PARAM_INVALID, "a row is longer than a pitch");
    }
    let fits =
        |start: u64, pitch: u64| pitch.checked_mul(height).and_then(|len| start.checked_add(len)).is_some();
    if !fits(to, to_pitch) || !fits(from, from_pitch) {
        return refuse(codes::RT_PARAM_INVALID, "the rectangle passes the end of the address space");
    }
    if width == to_pitch && width == from_pitch {
        return Ok(collect_jobs(std::iter::once(Job::Copy { to, from, count: width * height })));
    }
    let row = |row| Job::Copy { to: to + row * to_pitch, from: from + row * from_pitch, count: width };
    Ok(collect_jobs((0..height).map(row)))
}
