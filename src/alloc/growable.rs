//! Buffers that grow and shrink where they are.

use std::sync::Arc;

use super::device::Caller;
use super::pools::{PoolId, known};
use super::requests::Guard;
use super::{DeviceAllocator, DevicePtr};
use crate::core::UNIT;
use crate::core::block::BlockId;
use crate::core::plan::Request;
use crate::core::pool::PoolIndex;
use crate::core::segment::Class;
use crate::driver::{DeviceId, Stream};
use crate::error::{Error, PointerKind, Result};
use crate::hook::Action;

/// What can be chosen for a [`GrowableBuffer`]. Sizes in bytes.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct GrowableOptions {
    /// The size it can grow to. Costs address space, not memory.
    pub max_bytes: u64,
    /// The least maximum that will do where the device does not grant all the address space. At least `bytes` is
    /// always wanted.
    pub least_max_bytes: u64,
    /// The size it begins with.
    pub bytes: u64,
    /// The pool it counts to; without one, where routes send it, else the default pool.
    pub pool: Option<PoolId>,
}

impl GrowableOptions {
    /// An empty buffer that can grow to `max_bytes`; any smaller maximum will do as well.
    #[must_use]
    pub fn up_to(max_bytes: u64) -> Self {
        Self { max_bytes, ..Self::default() }
    }

    /// Beginning with `bytes` bytes.
    #[must_use]
    pub fn beginning_with(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }

    /// No maximum below `bytes` will do.
    #[must_use]
    pub fn at_least(self, bytes: u64) -> Self {
        Self { least_max_bytes: bytes, ..self }
    }

    /// Of that pool.
    #[must_use]
    pub fn in_pool(self, pool: PoolId) -> Self {
        Self { pool: Some(pool), ..self }
    }
}

/// Device memory that changes its size and never its address.
///
/// Address space for the maximum is reserved at first; memory is put behind it chunk by chunk as the buffer
/// grows, and nothing is ever copied. What is cut off when it shrinks goes back in stream order: work queued
/// before may still use it, and it serves others once that work is over. Dropping frees the buffer
/// like any block; its address space serves the next buffer of about that size.
///
/// It takes whole chunks (2 MiB on all parts seen so far), so each buffer wastes one in the worst case. All
/// reservations of a process together may take 8 TiB, so 10 000 buffers can have a maximum of 512 MiB each, but not of 1 GiB.
///
/// Moving it to another thread is fine, and so is asking it anything from several threads; changing its size
/// needs `&mut`. The block cannot be freed or resized by its address ([`Error::State`]).
///
/// ```
/// use std::sync::Arc;
/// use ascend_alloc::driver::{SimDriver, Stream};
/// use ascend_alloc::{Config, DeviceAllocator, GrowableBuffer, GrowableOptions};
///
/// # fn main() -> ascend_alloc::Result<()> {
/// let driver = Arc::new(SimDriver::new(ascend_sim::Sim::new(ascend_sim::SimConfig::default())));
/// let allocator = Arc::new(DeviceAllocator::new(Config::default(), driver)?);
/// let mut buffer = GrowableBuffer::new(allocator, 0, Stream(0), GrowableOptions::up_to(1 << 30))?;
/// let ptr = buffer.ptr();
/// buffer.resize(3 << 20)?;
/// assert_eq!((buffer.ptr(), buffer.mapped_bytes()), (ptr, 4 << 20));
/// buffer.resize(1 << 20)?;
/// assert_eq!(buffer.mapped_bytes(), 2 << 20);
/// # Ok(())
/// # }
/// ```
pub struct GrowableBuffer {
    allocator: Arc<DeviceAllocator>,
    device: DeviceId,
    stream: Stream,
    place: Place,
    ptr: DevicePtr,
    max_bytes: u64,
    bytes: u64,
    mapped: u64,
}

/// Where a buffer is in the core of its device.
#[derive(Clone, Copy)]
struct Place {
    /// Its segment.
    segment: u32,
    /// How often the device had been reset when it was made.
    generation: u64,
}

impl GrowableBuffer {
    /// A buffer on `device` for use on `stream`.
    ///
    /// The address space is the maximum if the device grants it, else half of that, and so on down to the least
    /// maximum; [`max_bytes`](Self::max_bytes) says what it became. It can also be more than was asked for, where
    /// a reservation is taken over from a buffer that is gone.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] without the address space (its cause says so) or the memory, [`Error::Driver`] where the
    /// device has no virtual memory, [`Error::Size`] for a maximum that no device can have or that is less
    /// than `bytes`, [`Error::Argument`] for an unknown device or pool, or a pool with a source of its own,
    /// [`Error::State`] while the pool sleeps. Nothing has changed then.
    pub fn new(
        allocator: Arc<DeviceAllocator>,
        device: DeviceId,
        stream: Stream,
        options: GrowableOptions,
    ) -> Result<Self> {
        let (place, address, max_bytes) = {
            let state = allocator.device(device)?;
            let caller = allocator.caller(state);
            match options.pool {
                Some(pool) if pool.device != device => return Err(super::pools::unknown(pool)),
                Some(pool) => caller.open_growing(pool.serial, stream, &options)?,
                None => {
                    allocator.routed(state, stream, |pool| caller.open_growing(pool, stream, &options))?
                }
            }
        };
        let ptr = DevicePtr(address);
        let mut buffer =
            Self { allocator: allocator.clone(), device, stream, place, ptr, max_bytes, bytes: 0, mapped: 0 };
        // Only now that the segment has an owner, because the hook may panic.
        let caller = allocator.caller(allocator.device(device)?);
        caller.tell(caller.device.core.lock());
        if let Err(error) = buffer.resize(options.bytes) {
            drop(buffer);
            // Nobody has used the address space yet: it is not kept for others.
            caller.tell(caller.retire(caller.device.core.lock(), place.segment));
            return Err(error);
        }
        Ok(buffer)
    }

    /// Where it begins, for as long as it lives; also while it is empty.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Its present size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The size it can grow to.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Bytes of memory behind it: its size and the pad in whole chunks.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.mapped
    }

    /// The device it lies on.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// The stream it is for.
    #[must_use]
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// Makes it `bytes` bytes long, where it is. What is kept keeps its content; what is new has none defined.
    ///
    /// Growing never waits for work of the buffer's own stream. Where another stream that was
    /// [recorded](Self::record_stream) may still use chunks that were cut off before, the buffer's stream waits for it on the
    /// device. The rest of the last chunk stays with the buffer, so there the program sees to that order itself.
    /// No work queued from now on may use what is cut off.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] (whose `requested` is what was lacking to the new size), [`Error::Size`] above
    /// [`max_bytes`](Self::max_bytes), [`Error::State`] when its pool sleeps and it would grow, or its
    /// device was reset and the buffer is gone with it,
    /// [`Error::Driver`] when the driver refuses. The buffer is unchanged then.
    pub fn resize(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.max_bytes {
            let most = self.max_bytes;
            let reason = format!("more than the buffer's maximum, {most}; make a larger one and copy").into();
            return Err(Error::Size { requested: bytes, reason });
        }
        let state = self.allocator.device(self.device)?;
        self.mapped = self.allocator.caller(state).resize_growing(self.place, self.stream, bytes)?;
        self.bytes = bytes;
        self.allocator.watch(state, 2);
        Ok(())
    }

    /// Tells that work on `stream` uses the buffer too, from now until it is empty or dropped.
    ///
    /// # Errors
    ///
    /// [`Error::State`] while the buffer is empty: there is nothing to use. [`Error::Pointer`] once its device was reset.
    pub fn record_stream(&self, stream: Stream) -> Result<()> {
        if self.bytes == 0 {
            return Err(Error::State {
                operation: "recording a stream on a growing buffer",
                reason: "the buffer is empty; make it larger first",
            });
        }
        let state = self.allocator.device(self.device)?;
        if state.was_reset(self.place.generation) {
            // Another block may have its address by now.
            return Err(Error::Pointer { address: self.ptr.0, kind: PointerKind::NotLive });
        }
        state.record_stream(&self.allocator.map, self.ptr.0, stream)?;
        self.allocator.watch(state, 2);
        Ok(())
    }
}

impl Drop for GrowableBuffer {
    fn drop(&mut self) {
        // The device exists, or the buffer would not.
        if let Ok(state) = self.allocator.device(self.device) {
            self.allocator.caller(state).close_growing(self.place);
            self.allocator.watch(state, 2);
        }
    }
}

impl core::fmt::Debug for GrowableBuffer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GrowableBuffer")
            .field("device", &self.device)
            .field("ptr", &self.ptr)
            .field("bytes", &self.bytes)
            .field("max_bytes", &self.max_bytes)
            .finish_non_exhaustive()
    }
}

impl Caller<'_> {
    /// A growing segment of a pool for a buffer: its number, first address and most bytes. The hook is to be told then.
    fn open_growing(
        &self,
        pool: u64,
        stream: Stream,
        options: &GrowableOptions,
    ) -> Result<(Place, u64, u64)> {
        let limits = &self.device.limits;
        let mut core = self.device.core.lock();
        let least = options.bytes.max(options.least_max_bytes).max(1);
        let (Some(wish), Some(least)) = (core.growing_len(options.max_bytes), core.growing_len(least)) else {
            let reason = "more than any device has; ask for less".into();
            return Err(Error::Size { requested: options.max_bytes, reason });
        };
        // Not in granules: a maximum below the size is a mistake also where both need one granule.
        if wish < least || options.max_bytes < options.bytes.max(options.least_max_bytes) {
            let GrowableOptions { bytes, least_max_bytes, .. } = options;
            let reason = format!(
                "as the maximum of a growing buffer; expected 1 or more, its size ({bytes}) or more, and its least \
                 maximum ({least_max_bytes}) or more"
            );
            return Err(Error::Size { requested: options.max_bytes, reason: reason.into() });
        }
        let index = known(&core, PoolId { device: limits.device, serial: pool })?;
        let class = Class::growing(index);
        if core.is_sourced(class) {
            return Err(Error::Argument {
                name: "pool",
                value: pool.to_string(),
                expected: "a pool whose memory comes from the driver: only that can be put behind an address",
            });
        }
        if core.is_asleep(index) {
            return Err(asleep());
        }
        let id = self.device.enter(&mut core, self.map, stream, wish, None);
        let mut request = Request::new(least, least, UNIT, class, id, stream);
        if let Some(segment) = core.take_over(class, wish, id) {
            request.extends = Some(segment);
        } else {
            // While the lock is left the pool must not go.
            core.pools.get_mut(index).holders += 1;
            core = self.reserve(core, &mut request, class, (wish, least));
            core.let_go(index);
        }
        let Some(segment) = request.extends else {
            let error = match request.failure.take() {
                Some(Error::Driver(error)) if error.is_out_of_memory() => core.out_of_memory(&request),
                Some(error) => error,
                None => core.out_of_memory(&request),
            };
            self.tell(core);
            return Err(self.complete(error));
        };
        let place = Place { segment, generation: core.generation };
        Ok((place, core.segments[segment as usize].base, core.growing_most(segment)))
    }

    /// Changes the size of the buffer in a segment; the bytes mapped behind it then.
    fn resize_growing(&self, place: Place, stream: Stream, bytes: u64) -> Result<u64> {
        let mut core = self.device.core.lock();
        if core.generation != place.generation {
            let reason = "its device was reset, and the buffer is gone with it";
            return Err(Error::State { operation: "resizing a buffer", reason });
        }
        let segment = place.segment;
        let Some(len) = core.growing_len(bytes) else {
            return Err(Error::Size {
                requested: bytes,
                reason: "more than any device has; ask for less".into(),
            });
        };
        let block = core.buffer_block(segment);
        if block.is_some_and(|id| core.is_exported(id) && len < core.blocks[id].len) {
            let reason = "it is exported to other processes; end that first";
            return Err(Error::State { operation: "shrinking a buffer", reason });
        }
        let (old, requested) = block.map_or((0, 0), |id| (core.blocks[id].len, core.blocks[id].requested));
        match block {
            Some(id) if bytes == 0 => self.free_growing(core, id),
            Some(id) if len <= old => self.cut_growing(core, id, len, bytes),
            _ if len > old => {
                if core.is_asleep(core.segments[segment as usize].class.pool()) {
                    return Err(asleep());
                }
                let home = match block {
                    Some(id) => core.blocks[id].home,
                    None => self.device.enter(&mut core, self.map, stream, len, None),
                };
                let class = core.segments[segment as usize].class;
                let mut request = Request::new(bytes - requested, len - old, UNIT, class, home, stream);
                request.extends = Some(segment);
                // A stream that is gone cannot wait for others.
                request.joined = !core.streams[home as usize].alive;
                self.extend_growing(core, segment, request, (old, requested))?;
            }
            _ => {}
        }
        Ok(len)
    }

    /// Puts memory behind a buffer; `before` are its bytes and those asked for.
    fn extend_growing(
        &self,
        core: Guard<'_>,
        segment: u32,
        mut request: Request,
        before: (u64, u64),
    ) -> Result<()> {
        let (mut core, more) = match self.serve(core, &mut request) {
            Ok(served) => served,
            Err(error) => return Err(self.complete(error)),
        };
        let address = core.blocks[more].addr;
        let id = core.attach(segment, more);
        let (len, requested) = (core.blocks[id].len, core.blocks[id].requested);
        let raised = if before.0 == 0 {
            self.device.publish(&mut core, self.map, id);
            core.tally.charge(false, len, requested)
        } else {
            core.tally.resize(false, (before.0, len), (before.1, requested))
        };
        if raised {
            self.device.settle_peaks(&mut core);
        }
        core.note(Action::Allocate, address, request.len, request.handle);
        core.keep_resized(id, before);
        self.tell(core);
        Ok(())
    }

    /// Shortens a buffer's block to `len` bytes, or only what is asked for of it.
    fn cut_growing(&self, mut core: Guard<'_>, id: BlockId, len: u64, bytes: u64) {
        let block = &core.blocks[id];
        let (old, requested, address, home) = (block.len, block.requested, block.addr, block.home);
        core.blocks[id].requested = bytes;
        let waits = len < old && core.cut_tail(id, len);
        core.keep_resized(id, (old, requested));
        if len < old {
            let class = core.class_of(id);
            core.note_cut(address + len, old - len, home, class, waits);
        }
        let raised = core.tally.resize(false, (old, len), (requested, bytes));
        if raised || waits {
            self.device.settle_peaks(&mut core);
        }
        let pool = core.class_of(id).pool();
        self.end_free(core, pool);
    }

    /// Frees the block of a buffer, unless exports keep it for now.
    fn free_growing<'a>(&'a self, mut core: Guard<'a>, id: BlockId) {
        let address = core.blocks[id].addr;
        core.starts.remove(&address);
        if core.outlast(id) {
            return;
        }
        self.free_unpublished(core, id);
    }

    /// Frees a live block that cannot be freed by its address any more.
    pub(super) fn free_unpublished<'a>(&'a self, mut core: Guard<'a>, id: BlockId) {
        let pool = core.class_of(id).pool();
        core.free(id, None);
        if core.is_asleep(pool) {
            // Nothing is queued on memory of a pool that sleeps, so this cannot fail.
            let _ = self.free_asleep(core, pool);
            return;
        }
        self.end_free(core, pool);
    }

    /// What comes after memory of a pool was freed: where nothing is kept, it goes back.
    fn end_free<'a>(&'a self, core: Guard<'a>, pool: PoolIndex) {
        match core.keeps_nothing(pool) {
            true => self.give_back_freed(core, pool),
            false => self.after_free(core),
        }
    }

    /// Frees a buffer and leaves its segment vacant.
    fn close_growing(&self, place: Place) {
        let mut core = self.device.core.lock();
        if core.generation != place.generation {
            return;
        }
        let segment = place.segment;
        let (block, pool) = (core.buffer_block(segment), core.segments[segment as usize].class.pool());
        core.vacate(segment);
        if let Some(id) = block {
            self.free_growing(core, id);
            core = self.device.core.lock();
        } else if core.keeps_nothing(pool) {
            return self.give_back_freed(core, pool);
        }
        if let Some(surplus) = core.surplus_vacant() {
            if core.tokens > 0 && core.capturing == 0 {
                core = self.learn(core);
            }
            core = self.retire(core, surplus);
        }
        self.tell(core);
    }
}

fn asleep() -> Error {
    Error::State { operation: "growing a buffer", reason: "its pool sleeps; wake it first" }
}
