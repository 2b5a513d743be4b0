//! Page-locked memory for containers: `Vec<T, Pinned>`, `Box<T, Pinned>`.

use core::alloc::Layout;
use core::ptr::NonNull;
use std::sync::Arc;

use allocator_api2::alloc::{AllocError, Allocator};

use super::PinnedAllocator;

/// An allocator of page-locked memory for containers of `allocator-api2`.
///
/// ```
/// use std::sync::Arc;
/// use allocator_api2::{boxed::Box, vec::Vec};
/// use ascend_alloc::driver::SimDriver;
/// use ascend_alloc::host::{Pinned, PinnedAllocator, PinnedOptions};
///
/// # fn main() -> ascend_alloc::Result<()> {
/// let driver = Arc::new(SimDriver::new(ascend_sim::Sim::new(ascend_sim::SimConfig::default())));
/// let pinned = Pinned::new(Arc::new(PinnedAllocator::new(PinnedOptions::default(), driver)?));
/// let mut numbers = Vec::new_in(pinned.clone());
/// numbers.extend(0..1000_u32);
/// let boxed = Box::new_in([7_u8; 64], pinned);
/// assert_eq!((numbers[999], boxed[3]), (999, 7));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Pinned(Arc<PinnedAllocator>);

impl Pinned {
    /// Memory of that allocator.
    #[must_use]
    pub fn new(allocator: Arc<PinnedAllocator>) -> Self {
        Self(allocator)
    }

    /// The allocator, to record uses of a container's memory with (`find` gives its block).
    #[must_use]
    pub fn allocator(&self) -> &Arc<PinnedAllocator> {
        &self.0
    }
}

// SAFETY: a block is memory of this process from its first to its last byte until it is given back, whoever holds a
// clone; clones are handles of one allocator, so each can give back what another took.
unsafe impl Allocator for Pinned {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            let dangling = core::ptr::without_provenance_mut(layout.align());
            let dangling = NonNull::new(dangling).ok_or(AllocError)?;
            return Ok(NonNull::slice_from_raw_parts(dangling, 0));
        }
        let ptr = self.0.allocate(layout.size() as u64, layout.align() as u64).map_err(|_| AllocError)?;
        let start = NonNull::new(ptr.as_ptr()).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(start, layout.size()))
    }

    unsafe fn deallocate(&self, ptr: NonNull<u8>, layout: Layout) {
        if layout.size() == 0 {
            return;
        }
        let freed = self.0.find(ptr.addr().get() as u64).and_then(|block| self.0.deallocate(block));
        debug_assert!(freed.is_ok(), "{freed:?}");
    }
}
