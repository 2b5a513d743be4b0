//! Page-locked host memory: allocated, registered, mapped for devices, and copied through.
//!
//! [`PinnedAllocator`] caches what is slow to take of the driver. Its heap is the one that manages device memory
//! (`core`), with the host in the place of the device:
//!
//! ```text
//! PinnedAllocator ─► front    blocks of one length at hand, pointers to lengths: no lock, no hash
//!        │
//!        └─────────► DeviceAllocator: blocks, regions, streams and epochs, limits, ages
//!                          │
//!                          └─► source: the host as a device with one stream that is always done
//!                                 │          and the streams of all devices by number (streams)
//!                                 └─► the driver
//! PinnedBuffer, Pinned           memory with an owner: a slice, a container's allocator
//! HostRegistry                   memory of others, registered for as long as a guard lives
//! KernelPtr                      device addresses for kernels, which no copy takes
//! StagingRing, advise            pageable data through page-locked buffers; which way of copying to take
//! ```
//!
//! A *region* is what one driver call gives; a *block* is a piece of it. Other words are those of the design.
//!
//! # Freeing with and without device synchronisation
//!
//! | | what is waited for | when |
//! |---|---|---|
//! | [`deallocate`](PinnedAllocator::deallocate) | nothing; the block is reused when the streams recorded on it have passed | at reuse |
//! | [`deallocate_synchronized`](PinnedAllocator::deallocate_synchronized) | the devices, then the block is free for anybody | now |
//! | [`FreeOrder::Epochs`] | regions go back once the recorded streams have passed; `aclrtFreeHost` | when memory is given back |
//! | [`FreeOrder::DeviceSync`] | also the device: `aclrtFreeHostWithDevSync`, or a wait and `aclrtFreeHost` | when memory is given back |
//!
//! Neither `aclrtFreeHost` nor reuse waits by itself: uses that are not recorded are only safe with the second or the
//! last row.
//!
//! # Limits
//!
//! Blocks are multiples of 512 bytes, so requests below 4 KiB may waste more than an eighth. A block that a captured
//! graph copies from or to must stay live as long as the graph: captures are not followed for host memory beyond
//! recording no event in them.

mod allocator;
mod buffer;
#[cfg(feature = "allocator-api2")]
mod container;
mod content;
mod emptying;
mod ends;
mod front;
mod observe;
mod options;
mod pages;
mod register;
mod source;
mod stats;
mod streams;
mod transfer;
mod worker;

pub use allocator::PinnedAllocator;
pub use buffer::{InFlight, PinnedBuffer, Plain};
#[cfg(feature = "allocator-api2")]
pub use container::Pinned;
pub use options::{FreeOrder, PinnedForm, PinnedOptions};
pub use pages::PageMemory;
pub use register::{HostMemory, HostRegistry, Registered};
pub use stats::{DurationStat, PinnedStats};
pub use transfer::{Method, Progress, StagingRing, Workload, advise};

/// The start of a page-locked block, as the allocator hands it out.
///
/// It is a value: copies of it name the same block. Where the block lies is [`address`](Self::address).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostPtr {
    address: u64,
    /// Where the allocator finds what it knows of the block.
    slot: u32,
}

impl HostPtr {
    /// What a request of zero bytes gives.
    pub const NULL: Self = Self { address: 0, slot: u32::MAX };

    /// The address.
    #[must_use]
    pub fn address(self) -> u64 {
        self.address
    }

    /// Whether this is [`NULL`](Self::NULL).
    #[must_use]
    pub fn is_null(self) -> bool {
        self.address == 0
    }

    /// The address as a pointer. What lies there is valid for as long as the block is live.
    #[must_use]
    pub fn as_ptr(self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.address as usize)
    }
}

/// Where kernels on a device find host memory.
///
/// It is no [`DevicePtr`](crate::DevicePtr): copies, fills and queries of the driver must not be given it, so no
/// call of this crate that copies takes it, and it cannot be turned into one. Memory with one address for host and
/// device is copied by its host address.
///
/// ```compile_fail
/// # use ascend_alloc::{DevicePtr, host::KernelPtr};
/// fn copy_to(target: DevicePtr) {}
/// fn wrong(pointer: KernelPtr) {
///     copy_to(pointer);
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelPtr {
    address: u64,
    common: bool,
}

impl KernelPtr {
    pub(crate) fn new(address: u64, common: bool) -> Self {
        Self { address, common }
    }

    /// The value to be passed as an argument of a kernel.
    #[must_use]
    pub fn for_kernel(self) -> u64 {
        self.address
    }

    /// Whether host and device use the same address for the memory.
    #[must_use]
    pub fn is_common(self) -> bool {
        self.common
    }
}
