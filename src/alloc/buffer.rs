//! The allocator trait for generic code, and an owning buffer.

use core::alloc::Layout;
use std::sync::Arc;

use super::{DeviceAllocator, DevicePtr};
use crate::driver::{DeviceId, Stream};
use crate::error::Result;

/// A source of device memory, in the manner of [`GlobalAlloc`](std::alloc::GlobalAlloc). Object-safe.
///
/// # Safety
///
/// A block that [`allocate`](Self::allocate) returns is memory of the device from its first to its last
/// byte, overlaps no other live block, and stays so until it is deallocated.
pub unsafe trait DeviceAlloc: Send + Sync {
    /// A block for `layout` on `device`, for use on `stream`; sizes in bytes. A layout of size zero
    /// gives [`DevicePtr::NULL`].
    ///
    /// # Errors
    ///
    /// As [`DeviceAllocator::allocate`].
    fn allocate(&self, device: DeviceId, layout: Layout, stream: Stream) -> Result<DevicePtr>;

    /// Gives a block back.
    ///
    /// # Safety
    ///
    /// `ptr` came from this allocator, is live, and no work that touches it is queued from now on.
    ///
    /// # Errors
    ///
    /// As [`DeviceAllocator::deallocate`].
    unsafe fn deallocate(&self, ptr: DevicePtr) -> Result<()>;

    /// Grows a block in place to `bytes`; false when there is no room.
    ///
    /// # Safety
    ///
    /// `ptr` came from this allocator and is live.
    ///
    /// # Errors
    ///
    /// As [`DeviceAllocator::grow_in_place`].
    unsafe fn grow(&self, ptr: DevicePtr, bytes: u64) -> Result<bool>;

    /// Shrinks a block in place to `bytes`.
    ///
    /// # Safety
    ///
    /// `ptr` came from this allocator and is live, and no work that touches the bytes cut off is
    /// queued from now on.
    ///
    /// # Errors
    ///
    /// As [`DeviceAllocator::shrink_in_place`].
    unsafe fn shrink(&self, ptr: DevicePtr, bytes: u64) -> Result<()>;

    /// Tells that work on `stream` uses the block too.
    ///
    /// # Errors
    ///
    /// As [`DeviceAllocator::record_stream`].
    fn record_stream(&self, ptr: DevicePtr, stream: Stream) -> Result<()>;
}

// SAFETY: a block is cut from the free memory of one segment under the device's lock, or taken from
// a slot of the front cache under its flag, and is in neither place until it is freed; segments
// are disjoint ranges of the driver, and a block is handed out only when it is mapped throughout.
unsafe impl DeviceAlloc for DeviceAllocator {
    fn allocate(&self, device: DeviceId, layout: Layout, stream: Stream) -> Result<DevicePtr> {
        let (bytes, align) = Self::parts(layout);
        Self::allocate(self, device, bytes, align, stream)
    }

    unsafe fn deallocate(&self, ptr: DevicePtr) -> Result<()> {
        Self::deallocate(self, ptr)
    }

    unsafe fn grow(&self, ptr: DevicePtr, bytes: u64) -> Result<bool> {
        self.grow_in_place(ptr, bytes)
    }

    unsafe fn shrink(&self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        self.shrink_in_place(ptr, bytes)
    }

    fn record_stream(&self, ptr: DevicePtr, stream: Stream) -> Result<()> {
        Self::record_stream(self, ptr, stream)
    }
}

/// A block that frees itself when dropped.
pub struct DeviceBuffer {
    source: Arc<dyn DeviceAlloc>,
    ptr: DevicePtr,
    bytes: u64,
    device: DeviceId,
}

impl DeviceBuffer {
    /// A buffer of `bytes` bytes on `device`, for use on `stream`.
    ///
    /// # Errors
    ///
    /// As [`DeviceAlloc::allocate`]; [`Error::Size`](crate::Error::Size) beyond what a layout can say.
    pub fn new(source: Arc<dyn DeviceAlloc>, device: DeviceId, bytes: u64, stream: Stream) -> Result<Self> {
        const ALIGN: usize = crate::core::UNIT as usize;
        let layout = usize::try_from(bytes).ok().and_then(|size| Layout::from_size_align(size, ALIGN).ok());
        let layout = layout.ok_or(crate::Error::Size {
            requested: bytes,
            reason: "larger than the address space of the host; ask for less".into(),
        })?;
        let ptr = source.allocate(device, layout, stream)?;
        Ok(Self { source, ptr, bytes, device })
    }

    /// Where it begins.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Bytes asked for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The device it lies on.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Tells that work on `stream` uses the buffer too.
    ///
    /// # Errors
    ///
    /// As [`DeviceAllocator::record_stream`].
    pub fn record_stream(&self, stream: Stream) -> Result<()> {
        self.source.record_stream(self.ptr, stream)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: the buffer owns the block, and with it goes the last way to name the block to new
        // work. The result can only be an error if the allocator's own state is broken.
        let freed = unsafe { self.source.deallocate(self.ptr) };
        debug_assert!(freed.is_ok(), "{freed:?}");
    }
}

impl core::fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("device", &self.device)
            .field("ptr", &self.ptr)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
