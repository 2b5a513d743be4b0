//! Large pageable data through a ring of page-locked buffers, and which way of copying to take.
//!
//! ```text
//! pageable data   |  0  |  1  |  2  |  3  |  4  | ...
//! host copies        └─► a    └─► b    └─► a ...        the host fills b while the device reads a
//! device copies            └─────► device     └─────► device
//! ```

use std::sync::Arc;

use super::{HostPtr, PinnedAllocator};
use crate::alloc::DevicePtr;
use crate::driver::{DeviceId, Driver, Event, HostCopy, Stream};
use crate::error::{Error, Result};

/// How far a transfer has come; bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Of the caller's data: for an upload, bytes that have left it; for a download, bytes that are there.
    pub done: u64,
    /// All there are.
    pub total: u64,
}

/// Page-locked buffers through which pageable data is copied, the host's part of the copy beside the device's.
///
/// Two pieces are enough to overlap; more smooth out what the host does unevenly. Dropping the ring waits for the copies
/// under way.
#[derive(Debug)]
pub struct StagingRing {
    pinned: Arc<PinnedAllocator>,
    device: DeviceId,
    piece: u64,
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    ptr: HostPtr,
    event: Option<Event>,
    pending: Pending,
}

/// A copy from or to a buffer that nobody has waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    /// There is none.
    Nothing,
    /// The buffer's event was recorded behind it.
    Event,
    /// It is on the stream of this number, without an event.
    Stream(Stream),
}

impl StagingRing {
    /// A ring of `pieces` buffers of `piece` bytes, for copies to and from a device.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for no pieces, empty ones, or a device the driver does not know; as
    /// [`PinnedAllocator::allocate`].
    pub fn new(pinned: Arc<PinnedAllocator>, device: DeviceId, pieces: usize, piece: u64) -> Result<Self> {
        if pieces == 0 || piece == 0 || usize::try_from(piece).is_err() {
            return Err(Error::Argument {
                name: "pieces, piece",
                value: format!("{pieces}, {piece}"),
                expected: "at least one buffer of at least one byte",
            });
        }
        pinned.know(device)?;
        let mut ring = Self { pinned, device, piece, slots: Vec::new() };
        for _ in 0..pieces {
            let ptr = ring.pinned.allocate(piece, 0)?;
            ring.slots.push(Slot { ptr, event: None, pending: Pending::Nothing });
        }
        Ok(ring)
    }

    /// Copies `source` to device memory, behind what is queued on the stream. When it returns, the data has left
    /// `source`, and the last pieces may still be under way on the stream.
    ///
    /// # Errors
    ///
    /// [`Error::State`] while the stream is captured into a graph, which would copy what the buffers hold when it runs;
    /// [`Error::Driver`] when a copy or a wait fails; a part of the data may be on the device then.
    pub fn upload(
        &mut self,
        source: &[u8],
        target: DevicePtr,
        stream: Stream,
        mut progress: impl FnMut(Progress),
    ) -> Result<()> {
        self.refuse_captures(stream)?;
        let total = source.len() as u64;
        let mut done = 0;
        for (index, part) in source.chunks(self.piece as usize).enumerate() {
            let at = index % self.slots.len();
            self.settle(at)?;
            let bytes = part.len() as u64;
            // SAFETY: the slot's block is live, at least a piece long, no copy uses it, and it overlaps no data of the
            // caller.
            unsafe {
                core::ptr::copy_nonoverlapping(part.as_ptr(), self.slots[at].ptr.as_ptr(), part.len());
            }
            self.queue(at, target.address() + done, bytes, stream, false)?;
            done += bytes;
            progress(Progress { done, total });
        }
        Ok(())
    }

    /// Copies device memory into `target`, behind what is queued on the stream. When it returns, all data is there.
    ///
    /// # Errors
    ///
    /// As [`upload`](Self::upload); a part of `target` may be written then.
    pub fn download(
        &mut self,
        target: &mut [u8],
        source: DevicePtr,
        stream: Stream,
        mut progress: impl FnMut(Progress),
    ) -> Result<()> {
        self.refuse_captures(stream)?;
        let total = target.len() as u64;
        let pieces = total.div_ceil(self.piece);
        let (mut queued, mut done) = (0, 0);
        for (index, part) in target.chunks_mut(self.piece as usize).enumerate() {
            while queued < pieces && queued < index as u64 + self.slots.len() as u64 {
                let offset = queued * self.piece;
                let at = (queued % self.slots.len() as u64) as usize;
                self.settle(at)?;
                self.queue(at, source.address() + offset, self.piece.min(total - offset), stream, true)?;
                queued += 1;
            }
            let at = index % self.slots.len();
            self.settle(at)?;
            // SAFETY: the slot's block is live, at least a piece long, the copy that wrote it is done, and it overlaps
            // no data of the caller.
            unsafe {
                core::ptr::copy_nonoverlapping(self.slots[at].ptr.as_ptr(), part.as_mut_ptr(), part.len());
            }
            done += part.len() as u64;
            progress(Progress { done, total });
        }
        Ok(())
    }

    fn refuse_captures(&self, stream: Stream) -> Result<()> {
        if !self.pinned.driver().is_capturing(self.device, stream)? {
            return Ok(());
        }
        Err(Error::State {
            operation: "copying through a staging ring",
            reason: "the stream is being captured, and the graph would copy what the ring's buffers hold when it runs; \
                     copy before or after the capture, or from memory that lives as long as the graph",
        })
    }

    /// Waits for the copy that uses a buffer.
    fn settle(&mut self, at: usize) -> Result<()> {
        let slot = &mut self.slots[at];
        let driver = self.pinned.driver();
        let waited = match (slot.pending, slot.event) {
            (Pending::Event, Some(event)) => driver.synchronize_event(self.device, event),
            (Pending::Stream(number), _) => self.pinned.wait_for(number),
            (Pending::Event, None) | (Pending::Nothing, _) => Ok(()),
        };
        match waited {
            // It was destroyed, or went with a reset: the device is done with the copy when it is done with all.
            Err(error) if error.is_unknown_handle() => {
                driver.synchronize_device(self.device)?;
                slot.drop_event(&**driver, self.device);
            }
            answer => answer?,
        }
        slot.pending = Pending::Nothing;
        Ok(())
    }

    /// Queues a copy from or to a buffer, and an event behind it.
    fn queue(&mut self, at: usize, there: u64, bytes: u64, stream: Stream, to_host: bool) -> Result<()> {
        let driver = Arc::clone(self.pinned.driver());
        let ptr = self.slots[at].ptr;
        self.pinned.record_use(ptr, self.device, stream)?;
        let copy = HostCopy { host: ptr.address(), device: there, bytes, to_host };
        // SAFETY: the block is the ring's, it is not touched before `settle` has waited, and once freed it waits for the
        // stream.
        unsafe { driver.copy_async(self.device, copy, stream) }?;
        let slot = &mut self.slots[at];
        slot.pending = Pending::Stream(self.pinned.number(self.device, stream));
        let event = slot.event.map_or_else(|| driver.create_event(self.device), Ok);
        let recorded = event.and_then(|event| {
            slot.event = Some(event);
            driver.record_event(self.device, event, stream)
        });
        match recorded {
            Ok(()) => slot.pending = Pending::Event,
            // Without an event the stream is waited for. An event that went with a reset is made anew the next time.
            Err(error) => {
                if error.is_unknown_handle() {
                    slot.drop_event(&*driver, self.device);
                }
                self.settle(at)?;
            }
        }
        Ok(())
    }
}

impl Slot {
    fn drop_event(&mut self, driver: &dyn Driver, device: DeviceId) {
        if let Some(event) = self.event.take() {
            // An event that cannot be destroyed is gone with its device.
            let _destroyed = driver.destroy_event(device, event);
        }
    }
}

impl Drop for StagingRing {
    fn drop(&mut self) {
        for at in 0..self.slots.len() {
            // Whether the wait succeeds or not, the memory waits for its stream.
            let _settled = self.settle(at);
        }
        let driver = Arc::clone(self.pinned.driver());
        for mut slot in self.slots.drain(..) {
            slot.drop_event(&*driver, self.device);
            let freed = self.pinned.deallocate(slot.ptr);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
    }
}

/// What is to be copied, and how it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Bytes of the data.
    pub bytes: u64,
    /// Device memory that is free for it.
    pub device_free: u64,
    /// How often it is moved.
    pub repeats: u64,
    /// Whether the copy is to run beside computation.
    pub overlapped: bool,
    /// Whether the device reads (nearly) all of it, rather than a few places.
    pub dense: bool,
}

/// A way to bring data to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Keep the data in page-locked memory, and copy asynchronously.
    PageLocked,
    /// Map the data into the device's address space, and let kernels read it over the bus in one pass.
    ZeroCopy,
    /// Copy pageable memory once (`aclrtMemcpy`, or a [`StagingRing`] where it is large).
    Plain,
}

/// The way that the vendor's guidance names for a workload: zero copy for what does not fit into the device or is read
/// sparsely once, page-locked memory for what moves often or beside computation, a plain copy for what moves once and
/// is read densely.
#[must_use]
pub fn advise(workload: Workload) -> Method {
    if workload.bytes > workload.device_free {
        return Method::ZeroCopy;
    }
    if workload.overlapped || workload.repeats > 1 {
        return Method::PageLocked;
    }
    if workload.dense { Method::Plain } else { Method::ZeroCopy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_follows_the_guidance() {
        let once =
            Workload { bytes: 1 << 20, device_free: 1 << 30, repeats: 1, overlapped: false, dense: true };
        assert_eq!(advise(once), Method::Plain);
        assert_eq!(advise(Workload { dense: false, ..once }), Method::ZeroCopy);
        assert_eq!(advise(Workload { repeats: 100, bytes: 4096, ..once }), Method::PageLocked);
        assert_eq!(advise(Workload { overlapped: true, ..once }), Method::PageLocked);
        assert_eq!(advise(Workload { bytes: 2 << 30, repeats: 9, ..once }), Method::ZeroCopy);
    }
}
