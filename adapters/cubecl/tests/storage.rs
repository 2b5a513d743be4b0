//! The storage by itself, and under cubecl's memory management.

use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, Error};
use ascend_alloc_cubecl::{AscendStorage, TensorMemory, storage};
use ascend_sim::{Sim, SimConfig, Task};
use cubecl_ir::MemoryDeviceProperties;
use cubecl_server::logging::ServerLogger;
use cubecl_server::memory_management::{ErrorGraph, ManagedMemoryHandle};
use cubecl_server::server::IoError;
use cubecl_server::storage::{ComputeStorage, StorageHandle, StorageUtilization};

const MIB: u64 = 1 << 20;

fn machine(config: SimConfig) -> (Sim, Arc<DeviceAllocator>) {
    let sim = Sim::new(config);
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let allocator = DeviceAllocator::new(Config::default(), driver).unwrap();
    (sim, Arc::new(allocator))
}

fn live(allocator: &DeviceAllocator) -> i64 {
    allocator.stats(0).unwrap().requested_bytes.all.current
}

/// Nothing is wrong, and nothing is left on the device once the allocator is gone.
fn close(sim: &Sim, allocator: Arc<DeviceAllocator>) {
    assert_eq!(allocator.check(), Ok(()));
    assert_eq!(allocator.stats(0).unwrap().allocation.all.current, 0);
    drop(allocator);
    assert_eq!(sim.physical_bytes(0), 0);
    assert_eq!(sim.take_findings(), [] as [String; 0]);
}

fn part(handle: &StorageHandle, offset: u64, size: u64) -> StorageHandle {
    StorageHandle::new(handle.id, StorageUtilization { offset, size })
}

#[test]
fn blocks_are_aligned_and_offsets_are_added() {
    let (sim, allocator) = machine(SimConfig::default());
    let mut storage = AscendStorage::new(allocator.clone(), 0, Stream(0));
    assert_eq!(storage.alignment(), 512);
    for size in [1, 511, 512, 513, 3 * MIB + 7] {
        let handle = storage.alloc(size).unwrap();
        let whole = storage.get(&handle).unwrap();
        assert_eq!((whole.ptr().address() % 512, whole.size()), (0, size));
        assert_eq!(whole.block(), whole.ptr());
        assert_eq!(allocator.block_info(whole.block()).unwrap().requested, size);

        let last = storage.get(&part(&handle, size - 1, 1)).unwrap();
        assert_eq!(last.ptr().address(), whole.ptr().address() + size - 1);
        assert_eq!((last.block(), last.size()), (whole.block(), 1));
        for (offset, size) in [(1, size), (0, size + 1), (u64::MAX, 2)] {
            let answer = storage.get(&part(&handle, offset, size));
            assert!(matches!(answer, Err(IoError::StorageHandleNotFound { .. })), "{offset} {size}");
        }
    }
    drop(storage);
    close(&sim, allocator);
}

#[test]
fn nothing_takes_no_memory_and_has_a_handle_all_the_same() {
    let (sim, allocator) = machine(SimConfig::default());
    let mut storage = AscendStorage::new(allocator.clone(), 0, Stream(0));
    let handles = [storage.alloc(0).unwrap(), storage.alloc(0).unwrap()];
    assert_ne!(handles[0].id, handles[1].id);
    for handle in &handles {
        let resource = storage.get(handle).unwrap();
        assert!(resource.ptr().is_null() && resource.size() == 0);
        resource.record_use(&allocator, Stream(0)).unwrap();
        assert!(storage.get(&part(handle, 0, 1)).is_err());
        storage.dealloc(handle.id);
        assert!(storage.get(handle).is_err());
    }
    assert_eq!((storage.bytes_allocated(), sim.physical_bytes(0)), (0, 0));
    drop(storage);
    close(&sim, allocator);
}

#[test]
fn freed_blocks_go_back_at_once_and_bytes_are_counted() {
    let (sim, allocator) = machine(SimConfig::default());
    let mut storage = AscendStorage::new(allocator.clone(), 0, Stream(0));
    let first = storage.alloc(3 * MIB).unwrap();
    let second = storage.alloc(5 * MIB).unwrap();
    assert_eq!((storage.bytes_allocated(), live(&allocator)), (8 * MIB, 8 * MIB as i64));
    let place = storage.get(&first).unwrap().ptr();
    storage.dealloc(first.id);
    assert_eq!((storage.bytes_allocated(), live(&allocator)), (5 * MIB, 5 * MIB as i64));
    // An id that is gone is nobody's any more.
    storage.dealloc(first.id);
    assert_eq!(storage.bytes_allocated(), 5 * MIB);
    assert!(matches!(storage.get(&first), Err(IoError::StorageHandleNotFound { .. })));
    // The same stream may have the memory at once.
    let third = storage.alloc(3 * MIB).unwrap();
    assert_eq!(storage.get(&third).unwrap().ptr(), place);
    storage.flush();
    storage.dealloc(second.id);
    drop(storage);
    close(&sim, allocator);
}

#[test]
fn out_of_memory_is_told_from_sizes_that_never_fit() {
    let (sim, allocator) = machine(SimConfig { capacity: 64 * MIB, ..SimConfig::default() });
    let mut storage = AscendStorage::new(allocator.clone(), 0, Stream(0));
    let held = storage.alloc(40 * MIB).unwrap();
    let refused = storage.alloc(40 * MIB).unwrap_err();
    assert!(matches!(refused, IoError::OutOfMemory { size, .. } if size == 40 * MIB), "{refused}");
    assert!(refused.may_succeed_after_reclaim());
    assert!(
        matches!(storage.take_refusal(), Some(Error::OutOfMemory(report)) if report.requested == 40 * MIB)
    );
    assert!(storage.take_refusal().is_none());

    let never = storage.alloc(u64::MAX).unwrap_err();
    assert!(matches!(never, IoError::BufferTooBig { .. }), "{never}");
    assert!(!never.may_succeed_after_reclaim());

    storage.dealloc(held.id);
    let fits = storage.alloc(40 * MIB).unwrap();
    assert!(storage.get(&fits).is_ok());
    drop(storage);
    close(&sim, allocator);
}

#[test]
fn memory_in_use_on_another_stream_is_not_handed_out() {
    let (sim, allocator) = machine(SimConfig { lag: 1_000, ..SimConfig::default() });
    let other = Stream(sim.executor().create_stream(0).unwrap());
    let mut storage = AscendStorage::new(allocator.clone(), 0, Stream(0));
    let handle = storage.alloc(8 * MIB).unwrap();
    let resource = storage.get(&handle).unwrap();
    let task = Task::new("reads on another stream").reads(resource.ptr().address(), resource.size(), 1);
    sim.executor().submit(0, other.0, task).unwrap();
    resource.record_use(&allocator, other).unwrap();
    storage.dealloc(handle.id);

    // The read is not done, so the same bytes are elsewhere now.
    let next = storage.alloc(8 * MIB).unwrap();
    let fresh = storage.get(&next).unwrap();
    assert_ne!(fresh.ptr(), resource.ptr());
    let task = Task::new("writes").writes(fresh.ptr().address(), fresh.size(), 2);
    sim.executor().submit(0, 0, task).unwrap();
    sim.executor().tick(2_000);
    storage.dealloc(next.id);
    drop(storage);
    close(&sim, allocator);
}

struct Managed {
    memory: TensorMemory<AscendStorage>,
    failures: ErrorGraph,
}

impl Managed {
    fn new(allocator: &Arc<DeviceAllocator>) -> Self {
        let storage = AscendStorage::new(allocator.clone(), 0, Stream(0));
        let properties = MemoryDeviceProperties::new(1 << 30, storage::ALIGNMENT);
        let memory = TensorMemory::new(storage, &properties, Arc::new(ServerLogger::default()));
        Self { memory, failures: ErrorGraph::default() }
    }

    fn reserve(&mut self, bytes: u64) -> Result<ManagedMemoryHandle, IoError> {
        self.memory.reserve(bytes, &mut self.failures)
    }
}

#[test]
fn every_tensor_is_a_block_of_the_allocator() {
    let (sim, allocator) = machine(SimConfig::default());
    let mut managed = Managed::new(&allocator);
    let sizes = [1, 1000, 4096, MIB + 1, 3 * MIB, 3 * MIB, 64 * MIB];
    let handles: Vec<_> = sizes.iter().map(|&size| managed.reserve(size).unwrap()).collect();
    let stats = allocator.stats(0).unwrap();
    assert_eq!(stats.allocation.all.current as usize, sizes.len());
    // cubecl rounds to the alignment, to nothing else.
    let rounded: u64 = sizes.iter().map(|size| size.next_multiple_of(512)).sum();
    assert_eq!(live(&allocator) as u64, rounded);
    let report = managed.memory.view().memory_report();
    assert_eq!(report.dedicated.usage.bytes_reserved, rounded);
    assert_eq!(report.usage().bytes_in_use, sizes.iter().sum::<u64>());

    drop(handles);
    managed.memory.reclaim(&mut managed.failures);
    assert_eq!(live(&allocator), 0);
    drop(managed);
    close(&sim, allocator);
}

#[test]
fn a_full_device_serves_again_after_handles_are_dropped() {
    let (sim, allocator) = machine(SimConfig { capacity: 64 * MIB, ..SimConfig::default() });
    let mut managed = Managed::new(&allocator);
    let mut handles = Vec::new();
    let refused = loop {
        match managed.reserve(7 * MIB) {
            Ok(handle) => handles.push(handle),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, IoError::OutOfMemory { .. }), "{refused}");
    assert!(handles.len() >= 8, "{}", handles.len());
    handles.truncate(4);
    // The frees reach the allocator with the next large reservation, which finds their room whole.
    let large = managed.reserve(30 * MIB).unwrap();
    drop((large, handles));
    managed.memory.reclaim(&mut managed.failures);
    drop(managed);
    close(&sim, allocator);
}

#[test]
fn dropped_tensors_are_freed_before_they_count() {
    let (sim, allocator) = machine(SimConfig { capacity: 2 << 30, ..SimConfig::default() });
    let mut managed = Managed::new(&allocator);
    let held = managed.reserve(512 * MIB).unwrap();
    // Small tensors that come and go: what lingers is never more than a 256th of what is held.
    for round in 0..2000u64 {
        drop(managed.reserve(1024 * (1 + round % 7)).unwrap());
        let lingering = live(&allocator) as u64 - 512 * MIB;
        assert!(lingering <= 515 * MIB / 256 + 7168, "round {round}: {lingering}");
    }
    // A large one lets all of them go first.
    let large = managed.reserve(64 * MIB).unwrap();
    assert_eq!(live(&allocator) as u64, 576 * MIB);
    drop((held, large));
    managed.memory.reclaim(&mut managed.failures);
    assert_eq!(live(&allocator), 0);
    drop(managed);
    close(&sim, allocator);
}
