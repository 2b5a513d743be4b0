//! The ways of managing memory that are compared, behind one face.

use std::collections::HashMap;
use std::sync::Arc;

use ascend_alloc::driver::{Driver, PageKind, SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator};
use ascend_alloc_cli::meter::{Call, Counting, Metered, Probe, Timing};
use ascend_alloc_cli::trace::Trace;
use ascend_alloc_cubecl::storage::{self, ALIGNMENT};
use ascend_alloc_cubecl::{AscendStorage, TensorMemory};
use ascend_sim::{BackingMode, Sim, SimConfig};
use cubecl_environment::backtrace::BackTrace;
use cubecl_ir::MemoryDeviceProperties;
use cubecl_server::logging::ServerLogger;
use cubecl_server::memory_management::relocation::{CopyQueue, RelocationReason, StorageCopy};
use cubecl_server::memory_management::{
    Cleanup, ErrorGraph, ManagedMemoryHandle, MemoryAllocationMode, MemoryConfiguration, MemoryManagement,
    MemoryManagementOptions, PageUpdate,
};
use cubecl_server::server::{IoError, ServerError};
use cubecl_server::storage::{ComputeStorage, StorageHandle, StorageId, StorageUtilization};

const DEVICE: u32 = 0;

/// What was counted.
pub struct Figures {
    /// Physical memory of the device at its peak, bytes in its pages.
    pub peak: u64,
    /// Calls of cubecl's storage.
    pub storage_calls: u64,
    /// Calls of the device's driver for memory.
    pub driver_calls: u64,
}

/// A device's memory under one management.
pub trait Memory {
    /// Memory for one tensor, as a server of cubecl reserves it: once more after giving back, when it is refused.
    fn reserve(&mut self, stream: u16, bytes: u64) -> Result<ManagedMemoryHandle, IoError>;
    /// Another stream uses the memory.
    fn record(&mut self, handle: &ManagedMemoryHandle, own: u16, stream: u16);
    /// What was counted so far.
    fn figures(&mut self) -> Figures;
    /// CPU time spent in the driver, if that was measured.
    fn driver_nanos(&self) -> u64;
}

type Build<P> = fn(&Trace, u64, P) -> Result<Box<dyn Memory>, String>;

/// A way, with what is counted or timed around the driver.
pub struct Way {
    /// Its name in the table.
    pub name: &'static str,
    /// Builds it with counted driver calls.
    pub counting: Build<Counting>,
    /// Builds it with timed driver calls.
    pub timing: Build<Timing>,
}

/// All that are compared.
pub const WAYS: [Way; 5] = [
    Way { name: "cubecl, adaptive (its default)", counting: adaptive, timing: adaptive },
    Way { name: "cubecl, exclusive pages", counting: exclusive, timing: exclusive },
    Way { name: "cubecl, persistent", counting: persistent, timing: persistent },
    Way { name: "ascend-alloc, a walk at every call", counting: walking, timing: walking },
    Way { name: "ascend-alloc", counting: ours, timing: ours },
];

fn adaptive<P: Reading>(trace: &Trace, device: u64, probe: P) -> Result<Box<dyn Memory>, String> {
    own(trace, device, probe, MemoryConfiguration::Adaptive, MemoryAllocationMode::Auto)
}

fn exclusive<P: Reading>(trace: &Trace, device: u64, probe: P) -> Result<Box<dyn Memory>, String> {
    own(trace, device, probe, MemoryConfiguration::ExclusivePages, MemoryAllocationMode::Auto)
}

fn persistent<P: Reading>(trace: &Trace, device: u64, probe: P) -> Result<Box<dyn Memory>, String> {
    own(trace, device, probe, MemoryConfiguration::Adaptive, MemoryAllocationMode::Persistent)
}

/// cubecl's pools over blocks of the device, as its backends for CUDA and HIP have them over theirs.
fn own<P: Reading>(
    trace: &Trace,
    device: u64,
    probe: P,
    config: MemoryConfiguration,
    mode: MemoryAllocationMode,
) -> Result<Box<dyn Memory>, String> {
    let bench = Bench::new(device, probe);
    let properties = MemoryDeviceProperties::new(device / 4, ALIGNMENT).with_max_memory(device);
    let memories = trace.streams.iter().map(|_| {
        let storage = BlockStorage {
            driver: bench.driver.clone(),
            blocks: HashMap::new(),
            gone: Vec::new(),
            allocated: 0,
        };
        let options = MemoryManagementOptions::new("own").mode(mode);
        let logger = Arc::new(ServerLogger::default());
        MemoryManagement::from_configuration(
            Counted::new(storage),
            &properties,
            config.clone(),
            logger,
            options,
        )
    });
    let memories = memories.collect();
    Ok(Box::new(Pools { memories, bench, failures: ErrorGraph::default() }))
}

/// cubecl's management with its pools passed by, over our allocator, as cubecl calls it.
fn walking<P: Reading>(trace: &Trace, device: u64, probe: P) -> Result<Box<dyn Memory>, String> {
    tensors(trace, device, probe, true)
}

/// The same as our server has it.
fn ours<P: Reading>(trace: &Trace, device: u64, probe: P) -> Result<Box<dyn Memory>, String> {
    tensors(trace, device, probe, false)
}

fn tensors<P: Reading>(
    trace: &Trace,
    device: u64,
    probe: P,
    walking: bool,
) -> Result<Box<dyn Memory>, String> {
    let bench = Bench::new(device, probe);
    let allocator = bench.allocator()?;
    let properties = storage::properties(&*bench.driver, DEVICE).map_err(|error| error.to_string())?;
    let streams = bench.streams(trace)?;
    let memories = streams.iter().map(|&stream| {
        let storage = Counted::new(AscendStorage::new(allocator.clone(), DEVICE, stream));
        TensorMemory::new(storage, &properties, Arc::new(ServerLogger::default()))
    });
    let memories = memories.collect();
    let failures = ErrorGraph::default();
    Ok(Box::new(Tensors { memories, streams, allocator, bench, failures, walking }))
}

/// Our memory, one for each stream over one allocator.
struct Tensors<P> {
    memories: Vec<TensorMemory<Counted<AscendStorage>>>,
    streams: Vec<Stream>,
    allocator: Arc<DeviceAllocator>,
    bench: Bench<P>,
    failures: ErrorGraph,
    /// Whether dropped tensors are looked for at every reservation.
    walking: bool,
}

impl<P: Reading> Tensors<P> {
    fn ask(&mut self, stream: u16, bytes: u64) -> Result<ManagedMemoryHandle, IoError> {
        let memory = &mut self.memories[usize::from(stream)];
        if self.walking {
            return memory.management().reserve(bytes, PageUpdate::Allow, &mut self.failures);
        }
        memory.reserve(bytes, &mut self.failures)
    }
}

impl<P: Reading> Memory for Tensors<P> {
    fn reserve(&mut self, stream: u16, bytes: u64) -> Result<ManagedMemoryHandle, IoError> {
        if let Ok(handle) = self.ask(stream, bytes) {
            return Ok(handle);
        }
        for memory in &mut self.memories {
            memory.reclaim(&mut self.failures);
        }
        self.ask(stream, bytes)
    }

    fn record(&mut self, handle: &ManagedMemoryHandle, own: u16, stream: u16) {
        let memory = self.memories[usize::from(own)].management();
        let resource = memory.get_resource(handle.clone().binding(), None, None).expect("the tensor is live");
        resource.record_use(&self.allocator, self.streams[usize::from(stream)]).expect("the block is live");
    }

    fn figures(&mut self) -> Figures {
        let calls = |memory: &mut TensorMemory<Counted<AscendStorage>>| memory.management().storage().calls;
        self.bench.figures(self.memories.iter_mut().map(calls).sum())
    }

    fn driver_nanos(&self) -> u64 {
        self.bench.driver.probe().nanos()
    }
}

/// What is read of a probe at the end.
pub trait Reading: Probe + 'static {
    fn calls(&self) -> u64 {
        0
    }
    fn nanos(&self) -> u64 {
        0
    }
}

impl Reading for Counting {
    fn calls(&self) -> u64 {
        let counted = [
            Call::Reserve,
            Call::Release,
            Call::MallocPhysical,
            Call::FreePhysical,
            Call::Map,
            Call::Unmap,
            Call::SetAccess,
            Call::Malloc,
            Call::Free,
        ];
        counted.into_iter().map(|call| self.tried(call)).sum()
    }
}

impl Reading for Timing {
    fn nanos(&self) -> u64 {
        Timing::nanos(self)
    }
}

/// A simulated device with a metered driver.
struct Bench<P> {
    sim: Sim,
    driver: Arc<Metered<SimDriver, P>>,
}

impl<P: Reading> Bench<P> {
    fn new(capacity: u64, probe: P) -> Self {
        let backing = BackingMode::MetadataOnly;
        let sim = Sim::new(SimConfig { capacity, backing, checker: false, ..SimConfig::default() });
        let driver = Arc::new(Metered::new(SimDriver::new(sim.clone()), probe));
        Self { sim, driver }
    }

    fn allocator(&self) -> Result<Arc<DeviceAllocator>, String> {
        let allocator = DeviceAllocator::new(Config::default(), self.driver.clone());
        Ok(Arc::new(allocator.map_err(|error| error.to_string())?))
    }

    fn figures(&self, storage_calls: u64) -> Figures {
        let peak = self.sim.physical_peak(DEVICE);
        Figures { peak, storage_calls, driver_calls: self.driver.probe().calls() }
    }

    fn streams(&self, trace: &Trace) -> Result<Vec<Stream>, String> {
        let create = |_: &u64| self.sim.executor().create_stream(DEVICE).map(Stream);
        let others: Result<Vec<_>, i32> = trace.streams.iter().skip(1).map(create).collect();
        let others = others.map_err(|code| format!("the simulator refuses a stream with {code}"))?;
        Ok(std::iter::once(Stream(0)).chain(others).collect())
    }
}

/// cubecl's memory management, one for each stream.
struct Pools<S: ComputeStorage, P> {
    memories: Vec<MemoryManagement<Counted<S>>>,
    bench: Bench<P>,
    failures: ErrorGraph,
}

impl<S: ComputeStorage, P: Reading> Memory for Pools<S, P> {
    fn reserve(&mut self, stream: u16, bytes: u64) -> Result<ManagedMemoryHandle, IoError> {
        let memory = &mut self.memories[usize::from(stream)];
        let error = match memory.reserve(bytes, PageUpdate::Allow, &mut self.failures) {
            Ok(handle) => return Ok(handle),
            Err(error) => error,
        };
        match error {
            IoError::PageSizesExhausted { .. } => {
                memory.relocate(&mut NoCopies, RelocationReason::ArenaFull, &mut self.failures);
            }
            _ => {
                for memory in &mut self.memories {
                    memory.cleanup(Cleanup::Explicit, &mut self.failures);
                }
            }
        }
        self.memories[usize::from(stream)].reserve(bytes, PageUpdate::Allow, &mut self.failures)
    }

    /// Nothing: cubecl would have to keep the block until that stream is done, and is spared it here.
    fn record(&mut self, _handle: &ManagedMemoryHandle, _own: u16, _stream: u16) {}

    fn figures(&mut self) -> Figures {
        self.bench.figures(self.memories.iter_mut().map(|memory| memory.storage().calls).sum())
    }

    fn driver_nanos(&self) -> u64 {
        self.bench.driver.probe().nanos()
    }
}

/// Where relocated bytes would be copied; here nothing has any.
struct NoCopies;

impl<S: ComputeStorage> CopyQueue<S> for NoCopies {
    fn wait_device(&mut self) -> Result<(), ServerError> {
        Ok(())
    }

    fn copy(&mut self, _storage: &mut S, _copy: &StorageCopy) -> Result<(), IoError> {
        Ok(())
    }

    fn wait_copies(&mut self) -> Result<(), ServerError> {
        Ok(())
    }
}

/// A storage whose calls are counted.
struct Counted<S> {
    inner: S,
    calls: u64,
}

impl<S> Counted<S> {
    fn new(inner: S) -> Self {
        Self { inner, calls: 0 }
    }
}

impl<S: ComputeStorage> ComputeStorage for Counted<S> {
    type Resource = S::Resource;

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn get(&mut self, handle: &StorageHandle) -> Result<S::Resource, IoError> {
        self.inner.get(handle)
    }

    fn alloc(&mut self, size: u64) -> Result<StorageHandle, IoError> {
        self.calls += 1;
        self.inner.alloc(size)
    }

    fn dealloc(&mut self, id: StorageId) {
        self.calls += 1;
        self.inner.dealloc(id);
    }

    fn flush(&mut self) {
        self.calls += 1;
        self.inner.flush();
    }

    fn bytes_allocated(&self) -> u64 {
        self.inner.bytes_allocated()
    }
}

/// Each block of cubecl is one block of the device; frees wait for the flush.
struct BlockStorage<P> {
    driver: Arc<Metered<SimDriver, P>>,
    blocks: HashMap<StorageId, (u64, u64)>,
    gone: Vec<StorageId>,
    allocated: u64,
}

impl<P: Probe> ComputeStorage for BlockStorage<P> {
    type Resource = u64;

    fn alignment(&self) -> usize {
        ALIGNMENT as usize
    }

    fn get(&mut self, handle: &StorageHandle) -> Result<u64, IoError> {
        match self.blocks.get(&handle.id) {
            Some((address, _)) => Ok(address + handle.offset()),
            None => Err(IoError::StorageHandleNotFound {
                reason: "no block".into(),
                backtrace: BackTrace::capture(),
            }),
        }
    }

    fn alloc(&mut self, size: u64) -> Result<StorageHandle, IoError> {
        // What waits to be given back goes first, so that it is never counted beside what replaces it.
        self.flush();
        let address = match size {
            0 => 0,
            _ => self
                .driver
                .malloc(DEVICE, size, PageKind::Huge)
                .map_err(|_| IoError::OutOfMemory { size, backtrace: BackTrace::capture() })?,
        };
        let id = StorageId::new();
        self.blocks.insert(id, (address, size));
        self.allocated += size;
        Ok(StorageHandle::new(id, StorageUtilization { offset: 0, size }))
    }

    fn dealloc(&mut self, id: StorageId) {
        self.gone.push(id);
    }

    fn flush(&mut self) {
        for id in self.gone.drain(..) {
            if let Some((address, size)) = self.blocks.remove(&id) {
                self.allocated -= size;
                if size > 0 {
                    self.driver.free(DEVICE, address).expect("the block is live");
                }
            }
        }
    }

    fn bytes_allocated(&self) -> u64 {
        self.allocated
    }
}
