//! Page-locked memory with an owner, as a slice.

#![allow(
    clippy::result_large_err,
    reason = "what could not be done comes back with what it was to be done to"
)]

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::streams::HOST;
use super::{HostPtr, KernelPtr, PinnedAllocator};
use crate::alloc::DevicePtr;
use crate::driver::{DeviceId, HostCopy, Stream};
use crate::error::{Error, Result};

/// Values of which every pattern of bytes is one, so that a device may write them.
///
/// # Safety
///
/// Every pattern of bytes is a valid value of the type, and the type has no padding.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

macro_rules! plain {
    ($($name:ty),*) => {
        $(
            // SAFETY: a number without padding, of which every pattern of bytes is valid.
            unsafe impl Plain for $name {}
        )*
    };
}
plain!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64);

// SAFETY: an array has the padding and the invalid patterns of its elements, which is none.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// A page-locked slice, given back when dropped.
///
/// Copies that were queued with [`upload`](Self::upload) or [`download`](Self::download) own the buffer until they
/// have been waited for, so nobody reads what a device still writes.
pub struct PinnedBuffer<T: Plain> {
    owner: Arc<PinnedAllocator>,
    ptr: HostPtr,
    len: usize,
    values: PhantomData<T>,
}

// SAFETY: the buffer owns its memory alone, as a `Box<[T]>` would, and the allocator takes calls of any thread.
unsafe impl<T: Plain> Send for PinnedBuffer<T> {}
// SAFETY: as above; through a shared reference it is only read.
unsafe impl<T: Plain> Sync for PinnedBuffer<T> {}

impl<T: Plain> PinnedBuffer<T> {
    /// A buffer of `len` values, all bytes zero.
    ///
    /// # Errors
    ///
    /// As [`PinnedAllocator::allocate`]; [`Error::Size`] when the bytes cannot be counted.
    pub fn zeroed(owner: Arc<PinnedAllocator>, len: usize) -> Result<Self> {
        Self::aligned(owner, len, core::mem::align_of::<T>() as u64)
    }

    /// The same, beginning at a page, so that it can be registered.
    ///
    /// # Errors
    ///
    /// As [`zeroed`](Self::zeroed).
    pub fn zeroed_at_page(owner: Arc<PinnedAllocator>, len: usize) -> Result<Self> {
        let page = owner.page_size();
        Self::aligned(owner, len, page)
    }

    fn aligned(owner: Arc<PinnedAllocator>, len: usize, align: u64) -> Result<Self> {
        let size = core::mem::size_of::<T>();
        let bytes = len.checked_mul(size).filter(|&bytes| isize::try_from(bytes).is_ok());
        let bytes = bytes.ok_or(Error::Size {
            requested: u64::MAX,
            reason: "more than the address space of the host; ask for less".into(),
        })? as u64;
        let ptr = owner.allocate(bytes, align)?;
        if bytes > 0 {
            // SAFETY: the block is live, at least so long, and nobody else has it.
            unsafe { ptr.as_ptr().write_bytes(0, bytes as usize) };
        }
        Ok(Self { owner, ptr, len, values: PhantomData })
    }

    /// A buffer with these values.
    ///
    /// # Errors
    ///
    /// As [`zeroed`](Self::zeroed).
    pub fn from_slice(owner: Arc<PinnedAllocator>, values: &[T]) -> Result<Self> {
        let mut buffer = Self::zeroed(owner, values.len())?;
        buffer.copy_from_slice(values);
        Ok(buffer)
    }

    /// Where the values begin. Values without bytes need no block.
    fn start(&self) -> *mut T {
        if self.ptr.is_null() { core::ptr::dangling_mut() } else { self.ptr.as_ptr().cast() }
    }

    /// The block.
    #[must_use]
    pub fn ptr(&self) -> HostPtr {
        self.ptr
    }

    /// Whether it lies in a region of `aclrtMallocHost`.
    pub(super) fn is_in_region(&self) -> bool {
        self.owner.source.is_in_region(self.ptr.address())
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        core::mem::size_of_val::<[T]>(self) as u64
    }

    /// Where kernels find the buffer.
    ///
    /// # Errors
    ///
    /// As [`PinnedAllocator::kernel_ptr`].
    pub fn kernel_ptr(&self) -> Result<KernelPtr> {
        self.owner.kernel_ptr(self.ptr)
    }

    /// Tells that work queued on a stream of a device uses the buffer: its memory is not reused before that is done.
    /// Whoever queues work that writes the buffer must not look at it, or change it under work that reads it, before
    /// that work is done. On a device that the driver does not know no work runs, so nothing is recorded.
    pub fn record_use(&self, device: DeviceId, stream: Stream) {
        // The block is live for as long as the buffer is there.
        let recorded = self.owner.record_use(self.ptr, device, stream);
        debug_assert!(!matches!(recorded, Err(Error::Pointer { .. })), "{recorded:?}");
    }

    /// Queues a copy of the buffer to device memory.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] when the copy is refused; the buffer comes back with it.
    pub fn upload(
        self,
        target: DevicePtr,
        device: DeviceId,
        stream: Stream,
    ) -> Result<InFlight<T>, (Error, Self)> {
        self.queue(target, device, stream, false)
    }

    /// Queues a copy of device memory into the whole buffer.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] when the copy is refused; the buffer comes back with it.
    pub fn download(
        self,
        source: DevicePtr,
        device: DeviceId,
        stream: Stream,
    ) -> Result<InFlight<T>, (Error, Self)> {
        self.queue(source, device, stream, true)
    }

    fn queue(
        self,
        there: DevicePtr,
        device: DeviceId,
        stream: Stream,
        to_host: bool,
    ) -> Result<InFlight<T>, (Error, Self)> {
        let bytes = self.bytes();
        let mut number = HOST;
        if bytes > 0 {
            self.record_use(device, stream);
            let copy = HostCopy { host: self.ptr.address(), device: there.address(), bytes, to_host };
            // SAFETY: the buffer owns the range and goes into the answer, which gives it out once the stream was waited
            // for; dropped before, its memory waits for the stream.
            if let Err(error) = unsafe { self.owner.driver().copy_async(device, copy, stream) } {
                return Err((error.into(), self));
            }
            number = self.owner.number(device, stream);
        }
        Ok(InFlight { buffer: self, number })
    }
}

impl<T: Plain> Deref for PinnedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the block is live, aligned for the type, holds `len` values that were written, and nobody writes it
        // while the reference lives.
        unsafe { core::slice::from_raw_parts(self.start(), self.len) }
    }
}

impl<T: Plain> DerefMut for PinnedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the buffer is borrowed alone.
        unsafe { core::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}

impl<T: Plain> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        let freed = self.owner.deallocate(self.ptr);
        debug_assert!(freed.is_ok(), "{freed:?}");
    }
}

impl<T: Plain> core::fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PinnedBuffer").field("ptr", &self.ptr).field("len", &self.len).finish_non_exhaustive()
    }
}

/// A copy that was queued, with the buffer it reads or writes. Dropping it gives the buffer back without waiting: its
/// memory is reused once the stream has passed.
#[derive(Debug)]
#[must_use = "dropping it gives the buffer up"]
pub struct InFlight<T: Plain> {
    buffer: PinnedBuffer<T>,
    /// The stream's; the host's where nothing was to be copied.
    number: Stream,
}

impl<T: Plain> InFlight<T> {
    /// Waits for the stream, or for its device where the stream has ended, as the runtime or
    /// [`stream_destroyed`](PinnedAllocator::stream_destroyed) told or the driver answers; the buffer.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] when the wait fails; the copy comes back with it, because it may still run.
    pub fn wait(self) -> Result<PinnedBuffer<T>, (Error, Self)> {
        match self.buffer.owner.wait_for(self.number) {
            Ok(()) => Ok(self.buffer),
            Err(error) => Err((error.into(), self)),
        }
    }
}
