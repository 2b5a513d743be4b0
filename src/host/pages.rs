//! Pageable memory in whole pages, so that it can be registered.

use core::ops::{Deref, DerefMut};
use std::alloc::{Layout, alloc_zeroed, dealloc};

use super::allocator::os_page;
use crate::error::{Error, Result};

/// Ordinary memory of this process that begins at a page and consists of whole pages.
#[derive(Debug)]
pub struct PageMemory {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: the value owns its memory alone, as a `Box<[u8]>` would.
unsafe impl Send for PageMemory {}
// SAFETY: as above; through a shared reference it is only read.
unsafe impl Sync for PageMemory {}

impl PageMemory {
    /// At least `bytes` bytes, all zero.
    ///
    /// # Errors
    ///
    /// [`Error::Size`] for zero bytes, and for more than the system gives.
    pub fn zeroed(bytes: usize) -> Result<Self> {
        let page = os_page() as usize;
        let layout =
            bytes.checked_next_multiple_of(page).and_then(|bytes| Layout::from_size_align(bytes, page).ok());
        let layout = layout.filter(|layout| layout.size() > 0).ok_or(Error::Size {
            requested: bytes as u64,
            reason: "expected one byte up to the address space of the host".into(),
        })?;
        // SAFETY: the layout's size is not 0.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            let reason = "the system has not so much memory; ask for less".into();
            return Err(Error::Size { requested: bytes as u64, reason });
        }
        Ok(Self { start, layout })
    }

    /// The first address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start.expose_provenance() as u64
    }
}

impl Deref for PageMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is that long, initialised, and borrowed.
        unsafe { core::slice::from_raw_parts(self.start, self.layout.size()) }
    }
}

impl DerefMut for PageMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed alone.
        unsafe { core::slice::from_raw_parts_mut(self.start, self.layout.size()) }
    }
}

impl Drop for PageMemory {
    fn drop(&mut self) {
        // SAFETY: it came from `alloc_zeroed` with this layout.
        unsafe { dealloc(self.start, self.layout) };
    }
}
