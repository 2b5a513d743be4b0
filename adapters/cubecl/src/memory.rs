//! cubecl's memory management with its pools passed by, and its walks made rare.

use std::sync::Arc;

use cubecl_ir::MemoryDeviceProperties;
use cubecl_server::logging::ServerLogger;
use cubecl_server::memory_management::{
    Cleanup, ErrorGraph, ManagedMemoryHandle, MemoryAllocationMode, MemoryConfiguration, MemoryManagement,
    MemoryManagementOptions, PageUpdate,
};
use cubecl_server::server::IoError;
use cubecl_server::storage::ComputeStorage;

/// What may be reserved between two walks, as a part of what is allocated.
const SHARE: u64 = 256;

/// The tensors of one stream: each reservation is one allocation of the storage, and its free is one deallocation.
///
/// cubecl has no free. A handle that was dropped is found by a walk over all of them, which cubecl makes at every
/// reservation. Here it is made when a 256th of the allocated bytes has been reserved since the last one: so much new memory at
/// most is taken where dropped tensors could have served, and a small tensor costs no walk. Until then what was dropped counts as
/// allocated, however much it is; [`reclaim`](Self::reclaim) frees it at once.
pub struct TensorMemory<S> {
    management: MemoryManagement<S>,
    /// Bytes reserved since the last walk.
    since: u64,
}

impl<S: ComputeStorage> TensorMemory<S> {
    /// The memory over a storage, which it owns from now on.
    #[must_use]
    pub fn new(storage: S, properties: &MemoryDeviceProperties, logger: Arc<ServerLogger>) -> Self {
        let options = MemoryManagementOptions::new("ascend").mode(MemoryAllocationMode::Dedicated);
        let config = MemoryConfiguration::default();
        let management = MemoryManagement::from_configuration(storage, properties, config, logger, options);
        Self { management, since: 0 }
    }

    /// Memory for a tensor of `size` bytes.
    ///
    /// # Errors
    ///
    /// What the storage answers. [`reclaim`](Self::reclaim) may help where
    /// [`may_succeed_after_reclaim`](IoError::may_succeed_after_reclaim) says so.
    pub fn reserve(&mut self, size: u64, failures: &mut ErrorGraph) -> Result<ManagedMemoryHandle, IoError> {
        self.since = self.since.saturating_add(size);
        let mut update = PageUpdate::AddOnly;
        if self.since >= self.management.bytes_allocated() / SHARE {
            self.since = 0;
            update = PageUpdate::Allow;
        }
        self.management.reserve(size, update, failures)
    }

    /// Frees every tensor that nobody holds.
    pub fn reclaim(&mut self, failures: &mut ErrorGraph) {
        self.since = 0;
        self.management.cleanup(Cleanup::Explicit, failures);
    }

    /// cubecl's management behind it, to bind, to look addresses up and to report.
    pub fn management(&mut self) -> &mut MemoryManagement<S> {
        &mut self.management
    }

    /// The same, to look at.
    #[must_use]
    pub fn view(&self) -> &MemoryManagement<S> {
        &self.management
    }
}

impl<S> core::fmt::Debug for TensorMemory<S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TensorMemory").field("since", &self.since).finish_non_exhaustive()
    }
}
