//! Moving bytes without the lock around [`Memory`].
//!
//! A copy goes through three steps: under the lock both ranges are *resolved* into parts that say
//! where their bytes are, and noted as in use; without the lock bytes move; under the lock the note
//! is dropped. What is in use cannot be unmapped (busy, as on the device) and is not given back:
//! whoever frees it waits. So parts stay valid while bytes move.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::backing::Place;
#[cfg(target_os = "linux")]
use super::shared::SharedFile;
use super::sparse::Sparse;
use super::{Mapping, Memory, Origin};
use crate::codes;
use crate::refusal::{Answer, Refusal, refuse};

/// Copies go in steps of this: ranges that overlap give what steps in ascending order give.
const STEP: u64 = 64 << 10;

/// A stretch of bytes in one place.
#[derive(Clone, Debug)]
struct Part {
    len: u64,
    home: Home,
}

/// Where bytes are.
#[derive(Clone, Debug)]
enum Home {
    /// At this address of the process.
    Address(u64),
    /// In this table, from that offset on.
    Table(Arc<Mutex<Sparse>>, u64),
    /// In this file, from that offset on.
    #[cfg(target_os = "linux")]
    File(Arc<SharedFile>, u64),
}

/// What matters of mapped memory to those who copy it.
#[derive(Clone, Copy, Debug)]
struct PlaceOf {
    pool: usize,
    /// It is a chunk's.
    chunk: bool,
    /// It is a block of another process, on another device than the one it was imported for.
    far: bool,
}

/// A resolved range.
#[derive(Clone, Debug, Default)]
pub(crate) struct Span(SmallVec<[Part; 1]>);

/// A note that a range is in use; to be given to [`Memory::end_use`].
#[derive(Debug)]
pub(crate) struct InUse(u64);

/// The ranges in use.
#[derive(Debug, Default)]
pub(super) struct Uses {
    ranges: Vec<(u64, u64, u64)>,
    next: u64,
}

impl Memory {
    /// Where the bytes of a range of device memory are; refused if it is not wholly mapped.
    pub(crate) fn resolve(&self, start: u64, len: u64) -> Answer<Span> {
        let mut parts = SmallVec::new();
        let (mut address, mut left) = (start, len);
        while left > 0 {
            let Some((base, mapping)) = self.mapping_of(address) else {
                return refuse(codes::RT_PARAM_INVALID, "the range is not wholly mapped device memory");
            };
            let offset = address - base;
            let len = left.min(mapping.len - offset);
            let Some(chunk) = self.chunks.get(&mapping.chunk) else {
                return refuse(codes::RT_DRV_INTERNAL_ERROR, "the simulator's tables contradict one another");
            };
            let home = match &chunk.place {
                Place::Table(table) => Home::Table(Arc::clone(table), offset),
                #[cfg(target_os = "linux")]
                Place::Shared(file) if !self.backing.is_mapped() => Home::File(Arc::clone(file), offset),
                #[cfg(target_os = "linux")]
                Place::File(_) | Place::Shared(_) => Home::Address(address),
            };
            parts.push(Part { len, home });
            address += len;
            left -= len;
        }
        Ok(Span(parts))
    }

    /// Refuses copies that the devices' places forbid: between the host and imported memory of another
    /// device; at once, also of such memory at all, and of a chunk between two devices.
    pub(crate) fn check_copy(&self, to: u64, from: u64, at_once: bool) -> Answer<()> {
        let (target, source) = (self.place_at(to), self.place_at(from));
        let far = [target, source].into_iter().flatten().any(|place| place.far);
        if far && !(self.is_device(to) && self.is_device(from)) {
            return refuse(
                codes::RT_PARAM_INVALID,
                "the host cannot copy imported memory that is on another device",
            );
        }
        let chunk = [target, source].into_iter().flatten().any(|place| place.chunk);
        if at_once && (far || (chunk && self.crossed(to, from).is_some())) {
            return refuse(
                codes::RT_PARAM_INVALID,
                "a chunk between devices, or imported memory of another one, is copied on a stream only",
            );
        }
        Ok(())
    }

    /// The two devices that a copy goes between, if it does.
    pub(crate) fn crossed(&self, to: u64, from: u64) -> Option<(u32, u32)> {
        let (target, source) = (self.place_at(to)?.pool, self.place_at(from)?.pool);
        let devices = target != source && target != self.host_pool() && source != self.host_pool();
        devices.then_some((target as u32, source as u32))
    }

    fn place_at(&self, address: u64) -> Option<PlaceOf> {
        let (_, mapping) = self.mapping_of(address)?;
        let chunk = self.chunks.get(&mapping.chunk)?;
        let import = mapping.origin == Origin::Import;
        Some(PlaceOf {
            pool: chunk.pool,
            chunk: mapping.origin == Origin::Handle,
            far: import && chunk.prop.location.id as usize != chunk.pool,
        })
    }

    /// Notes that a range, of a device or of pinned host memory, is being copied from or to.
    pub(crate) fn begin_use(&mut self, start: u64, len: u64) -> InUse {
        let number = self.uses.next;
        self.uses.next += 1;
        self.uses.ranges.push((number, start, start.saturating_add(len)));
        InUse(number)
    }

    /// The copy is over. True if nothing is in use any more.
    pub(crate) fn end_use(&mut self, used: &InUse) -> bool {
        self.uses.ranges.retain(|(number, ..)| *number != used.0);
        self.uses.ranges.is_empty()
    }

    /// Whether any byte of a range is being copied from or to.
    pub(crate) fn is_in_use(&self, start: u64, len: u64) -> bool {
        let end = start.saturating_add(len);
        self.uses.ranges.iter().any(|&(_, from, to)| from < end && start < to)
    }

    /// Whether any memory of a chunk is being copied from or to.
    pub(crate) fn chunk_in_use(&self, handle: u64) -> bool {
        self.uses_any(|mapping| mapping.chunk == handle)
    }

    /// Whether any memory of a device (or of the host, the last pool) is being copied from or to.
    pub(crate) fn pool_in_use(&self, pool: usize) -> bool {
        self.uses_any(|mapping| self.chunks.get(&mapping.chunk).is_some_and(|chunk| chunk.pool == pool))
    }

    /// Whether anything is being copied.
    pub(crate) fn any_in_use(&self) -> bool {
        !self.uses.ranges.is_empty()
    }

    fn uses_any(&self, wanted: impl Fn(&Mapping) -> bool) -> bool {
        self.any_in_use()
            && self
                .mappings
                .iter()
                .any(|(&start, mapping)| wanted(mapping) && self.is_in_use(start, mapping.len))
    }
}

impl Span {
    /// `len` bytes of host memory.
    ///
    /// # Safety
    /// As long as the span is used, the memory must be valid for reads (as a source) or writes (as a
    /// target), and nobody else may touch it in a way that conflicts.
    pub(crate) unsafe fn host(start: u64, len: u64) -> Self {
        Self(SmallVec::from_elem(Part { len, home: Home::Address(start) }, 1))
    }

    /// Sets all bytes to what a pattern repeats; the pattern has 1 or 4 bytes.
    ///
    /// # Safety
    /// Every part at an address of the process must still be mapped, writable, and not be touched by
    /// Rust code elsewhere: it is device memory in use, or host memory somebody vouches for.
    pub(crate) unsafe fn fill(&self, pattern: [u8; 4]) -> Answer<()> {
        let plain = pattern.iter().all(|&byte| byte == pattern[0]);
        let mut done = 0;
        for part in &self.0 {
            if plain {
                // SAFETY: the caller's promise.
                unsafe { part.fill(pattern[0])? };
            } else {
                // SAFETY: the caller's promise.
                unsafe { part.fill_pattern(pattern, done)? };
            }
            done += part.len;
        }
        Ok(())
    }

    /// Copies all bytes from a span of the same length, in ascending steps.
    ///
    /// # Safety
    /// As [`fill`](Self::fill), for both spans.
    pub(crate) unsafe fn copy_from(&self, from: &Self) -> Answer<()> {
        let mut buffer = Vec::new();
        let (mut targets, mut sources) = (self.0.iter(), from.0.iter());
        let (mut target, mut source) = (targets.next(), sources.next());
        let (mut to_offset, mut from_offset) = (0, 0);
        while let (Some(to), Some(from)) = (target, source) {
            let step = (to.len - to_offset).min(from.len - from_offset).min(STEP);
            // SAFETY: the caller's promise; the offsets stay inside the parts.
            unsafe { to.copy_step(to_offset, from, from_offset, step, &mut buffer)? };
            to_offset += step;
            from_offset += step;
            if to_offset == to.len {
                (target, to_offset) = (targets.next(), 0);
            }
            if from_offset == from.len {
                (source, from_offset) = (sources.next(), 0);
            }
        }
        Ok(())
    }
}

impl Part {
    /// # Safety
    /// As [`Span::fill`].
    unsafe fn fill(&self, byte: u8) -> Answer<()> {
        match &self.home {
            Home::Address(address) => {
                // SAFETY: the caller's promise.
                unsafe { std::ptr::write_bytes(pointer(*address), byte, size(self.len)?) };
                Ok(())
            }
            Home::Table(table, offset) => {
                table.lock().fill(*offset, self.len, byte);
                Ok(())
            }
            #[cfg(target_os = "linux")]
            Home::File(file, offset) => file.fill(*offset, self.len, byte).map_err(|()| broken()),
        }
    }

    /// Repeats four bytes; `done` bytes were filled before this part.
    ///
    /// # Safety
    /// As [`Span::fill`].
    unsafe fn fill_pattern(&self, pattern: [u8; 4], done: u64) -> Answer<()> {
        let mut buffer = vec![0; size(self.len.min(STEP))?];
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = pattern[(done as usize + index) % 4];
        }
        let mut offset = 0;
        while offset < self.len {
            // STEP is a multiple of 4, so every step begins with the same byte of the pattern.
            let step = (self.len - offset).min(STEP);
            // SAFETY: the caller's promise.
            unsafe { self.write(offset, &buffer[..size(step)?])? };
            offset += step;
        }
        Ok(())
    }

    /// # Safety
    /// As [`Span::copy_from`]; both offsets with `step` lie inside the parts.
    unsafe fn copy_step(
        &self,
        to: u64,
        source: &Self,
        from: u64,
        step: u64,
        buffer: &mut Vec<u8>,
    ) -> Answer<()> {
        if let (Home::Address(target), Home::Address(origin)) = (&self.home, &source.home) {
            // SAFETY: the caller's promise; `copy` allows the two to overlap.
            unsafe { std::ptr::copy(pointer(*origin + from), pointer(*target + to), size(step)?) };
            return Ok(());
        }
        if let (Home::Table(target, target_offset), Home::Table(origin, origin_offset)) =
            (&self.home, &source.home)
        {
            let uniform = origin.lock().uniform(origin_offset + from, step);
            if let Some(byte) = uniform {
                target.lock().fill(target_offset + to, step, byte);
                return Ok(());
            }
        }
        buffer.resize(size(step)?, 0);
        // SAFETY: the caller's promise.
        unsafe {
            source.read(from, buffer)?;
            self.write(to, buffer)
        }
    }

    /// # Safety
    /// As [`Span::copy_from`]; the offset with the buffer lies inside the part.
    unsafe fn read(&self, offset: u64, out: &mut [u8]) -> Answer<()> {
        match &self.home {
            Home::Address(address) => {
                // SAFETY: the caller's promise; the buffer is memory of its own.
                unsafe {
                    std::ptr::copy_nonoverlapping(pointer(*address + offset), out.as_mut_ptr(), out.len());
                };
                Ok(())
            }
            Home::Table(table, start) => {
                table.lock().read(start + offset, out);
                Ok(())
            }
            #[cfg(target_os = "linux")]
            Home::File(file, start) => file.read(start + offset, out).map_err(|()| broken()),
        }
    }

    /// # Safety
    /// As [`Span::copy_from`]; the offset with the bytes lies inside the part.
    unsafe fn write(&self, offset: u64, bytes: &[u8]) -> Answer<()> {
        match &self.home {
            Home::Address(address) => {
                // SAFETY: the caller's promise; the bytes are memory of their own.
                unsafe {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer(*address + offset), bytes.len());
                };
                Ok(())
            }
            Home::Table(table, start) => {
                table.lock().write(start + offset, bytes);
                Ok(())
            }
            #[cfg(target_os = "linux")]
            Home::File(file, start) => file.write(start + offset, bytes).map_err(|()| broken()),
        }
    }
}

fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

fn size(bytes: u64) -> Answer<usize> {
    usize::try_from(bytes)
        .or_else(|_| refuse(codes::RT_PARAM_INVALID, "more bytes than this machine can address"))
}

#[cfg(target_os = "linux")]
fn broken() -> Refusal {
    Refusal::new(codes::HOST_LIMIT, "this machine could not read or write the file behind the memory")
}
