//! Page-locked memory for the content of sleeping pools.

use super::{HostPtr, PinnedAllocator};
use crate::alloc::ContentStore;
use crate::driver::DeviceId;
use crate::error::Result;

// SAFETY: a live block is page-locked memory of its length, which copies of every device can reach and which nobody
// else gets before it was freed.
unsafe impl ContentStore for PinnedAllocator {
    fn take(&self, _device: DeviceId, bytes: u64) -> Result<u64> {
        self.allocate(bytes, 0).map(HostPtr::address)
    }

    fn largest(&self) -> u64 {
        self.options().largest_request
    }

    fn give_back(&self, _device: DeviceId, address: u64) {
        // Refused only for what is no live block of this allocator, which the caller rules out.
        let _ = self.find(address).and_then(|ptr| self.deallocate(ptr));
    }
}
