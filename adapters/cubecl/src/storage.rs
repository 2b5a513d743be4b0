//! Device memory of the allocator as a storage of cubecl.

use std::collections::HashMap;
use std::sync::Arc;

use ascend_alloc::driver::{DeviceId, Stream};
use ascend_alloc::{DeviceAllocator, DevicePtr, Error};
use cubecl_environment::backtrace::BackTrace;
use cubecl_ir::MemoryDeviceProperties;
use cubecl_server::server::IoError;
use cubecl_server::storage::{ComputeStorage, StorageHandle, StorageId, StorageUtilization};

/// The alignment of every block, bytes.
pub const ALIGNMENT: u64 = 512;

/// Device memory for one stream of one device, out of an allocator that any number of storages share.
///
/// Made for `MemoryAllocationMode::Dedicated`, where cubecl's own pools pass everything through: each tensor is
/// then one block of the allocator. [`TensorMemory`](crate::TensorMemory) puts the two together. In the other modes
/// it works too, but two caches lie on one another, and the allocator sees pages where it could see tensors.
///
/// A block is freed in the order of its stream, at once in [`dealloc`](ComputeStorage::dealloc): the allocator
/// knows which streams were
/// [recorded](AscendResource::record_use) and hands the memory out again only where that is in order, so nothing is left for
/// [`flush`](ComputeStorage::flush) to do. Dropping the storage frees what it still holds.
pub struct AscendStorage {
    allocator: Arc<DeviceAllocator>,
    device: DeviceId,
    stream: Stream,
    blocks: HashMap<StorageId, Block>,
    allocated: u64,
    refused: Option<Error>,
}

/// A live block of the allocator.
#[derive(Clone, Copy, Debug)]
struct Block {
    ptr: DevicePtr,
    bytes: u64,
}

impl AscendStorage {
    /// A storage for work on `stream` of `device`. It takes no memory yet.
    #[must_use]
    pub fn new(allocator: Arc<DeviceAllocator>, device: DeviceId, stream: Stream) -> Self {
        Self { allocator, device, stream, blocks: HashMap::new(), allocated: 0, refused: None }
    }

    /// The allocator behind it.
    #[must_use]
    pub fn allocator(&self) -> &Arc<DeviceAllocator> {
        &self.allocator
    }

    /// The stream whose order its blocks are allocated and freed in.
    #[must_use]
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// Why the last [`alloc`](ComputeStorage::alloc) that failed did, once: cubecl's errors have no room for the
    /// whole report.
    pub fn take_refusal(&mut self) -> Option<Error> {
        self.refused.take()
    }

    /// The error for cubecl. Out of memory must be told apart from a size that never fits: only then does cubecl give
    /// memory back and ask again.
    fn refuse(&mut self, size: u64, error: Error) -> IoError {
        let backtrace = BackTrace::capture();
        let answer = match &error {
            Error::OutOfMemory(_) => IoError::OutOfMemory { size, backtrace },
            Error::Size { .. } => IoError::BufferTooBig { size, backtrace },
            other => IoError::Unknown { description: other.to_string(), backtrace },
        };
        self.refused = Some(error);
        answer
    }
}

impl core::fmt::Debug for AscendStorage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AscendStorage")
            .field("device", &self.device)
            .field("stream", &self.stream)
            .field("blocks", &self.blocks.len())
            .field("allocated", &self.allocated)
            .finish_non_exhaustive()
    }
}

impl ComputeStorage for AscendStorage {
    type Resource = AscendResource;

    fn alignment(&self) -> usize {
        ALIGNMENT as usize
    }

    fn get(&mut self, handle: &StorageHandle) -> Result<AscendResource, IoError> {
        let refused = |reason: String| IoError::StorageHandleNotFound {
            reason: reason.into(),
            backtrace: BackTrace::capture(),
        };
        let Some(block) = self.blocks.get(&handle.id) else {
            return Err(refused(format!("{} was never allocated here, or is deallocated", handle.id)));
        };
        let (offset, size) = (handle.offset(), handle.size());
        if offset.checked_add(size).is_none_or(|end| end > block.bytes) {
            let bytes = block.bytes;
            return Err(refused(format!(
                "{} has {bytes} bytes, asked for {size} from {offset} on",
                handle.id
            )));
        }
        Ok(AscendResource { block: block.ptr, offset, size, device: self.device, stream: self.stream })
    }

    fn alloc(&mut self, size: u64) -> Result<StorageHandle, IoError> {
        let ptr = match self.allocator.allocate(self.device, size, 0, self.stream) {
            Ok(ptr) => ptr,
            Err(error) => return Err(self.refuse(size, error)),
        };
        let id = StorageId::new();
        self.blocks.insert(id, Block { ptr, bytes: size });
        self.allocated += size;
        Ok(StorageHandle::new(id, StorageUtilization { offset: 0, size }))
    }

    fn dealloc(&mut self, id: StorageId) {
        if let Some(block) = self.blocks.remove(&id) {
            self.allocated -= block.bytes;
            // The block is live: only its owner, this storage, frees it.
            let freed = self.allocator.deallocate(block.ptr);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
    }

    fn flush(&mut self) {}

    fn bytes_allocated(&self) -> u64 {
        self.allocated
    }
}

impl Drop for AscendStorage {
    fn drop(&mut self) {
        for (_, block) in self.blocks.drain() {
            let freed = self.allocator.deallocate(block.ptr);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
    }
}

/// A range of device memory: the whole of a block or a part of it.
///
/// It is a value and keeps nothing alive; cubecl hands it out beside a binding that does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AscendResource {
    block: DevicePtr,
    offset: u64,
    size: u64,
    device: DeviceId,
    stream: Stream,
}

impl AscendResource {
    /// The first byte, an address of the device; 0 for an empty buffer.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        DevicePtr(self.block.address() + self.offset)
    }

    /// The block it lies in, as the allocator knows it.
    #[must_use]
    pub fn block(&self) -> DevicePtr {
        self.block
    }

    /// Bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// The stream the block was allocated for. Work on another stream must be ordered behind what this one wrote, and
    /// must be [told](Self::record_use) of.
    #[must_use]
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// Tells the allocator that work on `stream` uses the block too: once freed, its memory is not handed out again
    /// before that stream has passed the free.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`] when the block is freed already.
    pub fn record_use(&self, allocator: &DeviceAllocator, stream: Stream) -> Result<(), Error> {
        if self.block.is_null() {
            return Ok(());
        }
        allocator.record_stream(self.block, stream)
    }
}

/// What cubecl wants to know of the device's memory: its bytes, and the alignment.
///
/// # Errors
///
/// [`Error::Driver`] when the driver does not say.
pub fn properties(
    driver: &dyn ascend_alloc::driver::Driver,
    device: DeviceId,
) -> Result<MemoryDeviceProperties, Error> {
    let total = driver.memory_info(device)?.total;
    Ok(MemoryDeviceProperties::new(total, ALIGNMENT).with_max_memory(total))
}
