//! The Rust interface.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use ascend_alloc::driver::{Driver, Stream};
use ascend_alloc::hook::CallbackId;
use ascend_alloc::host::{HostPtr, PinnedAllocator, PinnedOptions};
use ascend_alloc::stats::StatArray;
use ascend_alloc::{
    BlockState, Config, DeviceAllocator, DevicePtr, Error, Export, ExportOptions, GrowableBuffer,
    GrowableOptions, ImportedBlock, PoolCheckpoint, PoolId, PoolOptions, RouteFilter, SharedHandle,
    SleepMode,
};

use super::{
    Answer, BlockInfo, Books, BufferInfo, Filter, FreeMemory, Hook, HostBooks, Kind, Piece, PoolChoice,
    Refusal, Stretch, Surface,
};

/// Objects by number.
struct Table<T>(Mutex<(u64, BTreeMap<u64, T>)>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(Mutex::new((0, BTreeMap::new())))
    }
}

impl<T> Table<T> {
    fn with<R>(&self, run: impl FnOnce(&mut (u64, BTreeMap<u64, T>)) -> R) -> R {
        run(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, value: T) -> u64 {
        self.with(|(last, all)| {
            *last += 1;
            all.insert(*last, value);
            *last
        })
    }

    fn take(&self, number: u64) -> Answer<T> {
        self.with(|(_, all)| all.remove(&number)).ok_or_else(|| unknown(number))
    }

    fn get<R>(&self, number: u64, run: impl FnOnce(&mut T) -> R) -> Answer<R> {
        self.with(|(_, all)| all.get_mut(&number).map(run)).ok_or_else(|| unknown(number))
    }
}

fn unknown(number: u64) -> Refusal {
    Refusal { kind: Kind::Argument, text: format!("there is no object {number}") }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::OutOfMemory(_) => Kind::OutOfMemory,
            Error::Driver(_) => Kind::Driver,
            Error::State { .. } => Kind::State,
            Error::Pointer { .. } | Error::Size { .. } | Error::Argument { .. } => Kind::Argument,
            _ => Kind::Other,
        };
        Self { kind, text: error.to_string() }
    }
}

/// An allocator of device memory and one of page-locked memory on one driver.
pub struct RustSurface {
    alloc: Arc<DeviceAllocator>,
    host: Arc<PinnedAllocator>,
    pools: Table<PoolId>,
    buffers: Table<GrowableBuffer>,
    checkpoints: Table<PoolCheckpoint>,
    exports: Table<Export>,
    imports: Table<ImportedBlock>,
    callbacks: Table<CallbackId>,
    pinned: Mutex<BTreeMap<u64, HostPtr>>,
}

impl RustSurface {
    /// New allocators.
    ///
    /// # Errors
    ///
    /// The driver refuses what an allocator cannot do without.
    pub fn new(config: &Config, driver: Arc<dyn Driver>) -> Answer<Self> {
        let options = PinnedOptions { check_level: config.check_level, ..PinnedOptions::default() };
        Ok(Self {
            alloc: Arc::new(DeviceAllocator::new(config.clone(), driver.clone())?),
            host: Arc::new(PinnedAllocator::new(options, driver)?),
            pools: Table::default(),
            buffers: Table::default(),
            checkpoints: Table::default(),
            exports: Table::default(),
            imports: Table::default(),
            callbacks: Table::default(),
            pinned: Mutex::default(),
        })
    }

    /// The allocator of device memory.
    #[must_use]
    pub fn allocator(&self) -> &Arc<DeviceAllocator> {
        &self.alloc
    }

    fn pool(&self, number: u64) -> Answer<PoolId> {
        self.pools.get(number, |pool| *pool)
    }

    fn pinned(&self, address: u64) -> Answer<HostPtr> {
        let pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        pinned.get(&address).copied().ok_or_else(|| unknown(address))
    }
}

fn route(filter: Filter) -> RouteFilter {
    match filter {
        Filter::All => RouteFilter::All,
        Filter::Thread => RouteFilter::ThisThread,
        Filter::Stream(stream) => RouteFilter::Stream(Stream(stream)),
    }
}

impl Surface for RustSurface {
    fn allocate(&self, device: u32, bytes: u64, align: u64, stream: u64) -> Answer<u64> {
        Ok(self.alloc.allocate(device, bytes, align, Stream(stream))?.0)
    }

    fn allocate_in(&self, pool: u64, bytes: u64, stream: u64) -> Answer<u64> {
        Ok(self.alloc.allocate_in(self.pool(pool)?, bytes, 0, Stream(stream))?.0)
    }

    fn free(&self, address: u64) -> Answer<()> {
        Ok(self.alloc.deallocate(DevicePtr(address))?)
    }

    fn record(&self, address: u64, stream: u64) -> Answer<()> {
        Ok(self.alloc.record_stream(DevicePtr(address), Stream(stream))?)
    }

    fn erase(&self, address: u64, stream: u64) -> Answer<()> {
        Ok(self.alloc.erase_stream(DevicePtr(address), Stream(stream))?)
    }

    fn grow(&self, address: u64, bytes: u64) -> Answer<bool> {
        Ok(self.alloc.grow_in_place(DevicePtr(address), bytes)?)
    }

    fn shrink(&self, address: u64, bytes: u64) -> Answer<()> {
        Ok(self.alloc.shrink_in_place(DevicePtr(address), bytes)?)
    }

    fn block(&self, address: u64) -> Answer<BlockInfo> {
        let info = self.alloc.block_info(DevicePtr(address))?;
        Ok(BlockInfo {
            device: info.device,
            address: info.address,
            bytes: info.bytes,
            requested: info.requested,
            stream: info.stream.0,
            segment: info.segment,
            segment_bytes: info.segment_bytes,
        })
    }

    fn stream_destroyed(&self, device: u32, stream: u64) -> Answer<()> {
        self.host.stream_destroyed(device, Stream(stream))?;
        Ok(self.alloc.stream_destroyed(device, Stream(stream))?)
    }

    fn device_was_reset(&self, device: u32) -> Answer<()> {
        Ok(self.alloc.device_was_reset(device)?)
    }

    fn trim(&self, device: u32, keep: u64) -> Answer<u64> {
        Ok(self.alloc.trim(device, keep)?)
    }

    fn empty(&self, device: i32) -> Answer<()> {
        Ok(self.alloc.empty_cache(u32::try_from(device).ok())?)
    }

    fn set_fraction(&self, device: u32, fraction: f64) -> Answer<()> {
        Ok(self.alloc.set_memory_fraction(device, fraction)?)
    }

    fn set_limits(&self, device: u32, hard: Option<u64>, soft: Option<u64>) -> Option<Answer<()>> {
        let both =
            self.alloc.set_memory_limit(device, hard).and_then(|()| self.alloc.set_soft_limit(device, soft));
        Some(both.map_err(Refusal::from))
    }

    fn set_peers(&self, device: u32, peers: &[u32]) -> Answer<()> {
        Ok(self.alloc.set_peers(device, peers)?)
    }

    fn books(&self, device: u32) -> Answer<Books> {
        let stats = self.alloc.stats(device)?;
        let now = |array: StatArray| array.all.current;
        Ok(Books {
            allocations: now(stats.allocation),
            allocated: now(stats.allocated_bytes),
            allocated_peak: stats.allocated_bytes.all.peak,
            requested: now(stats.requested_bytes),
            active: now(stats.active_bytes),
            reserved: now(stats.reserved_bytes),
            segments: now(stats.segment),
            sleeping: stats.sleeping_bytes as i64,
            cached_handles: stats.cached_handles as i64,
            address_space: stats.reserved_address_space as i64,
        })
    }

    fn reset_peaks(&self, device: u32) -> Answer<()> {
        Ok(self.alloc.reset_peak_stats(device)?)
    }

    fn reset_sums(&self, device: u32) -> Answer<()> {
        Ok(self.alloc.reset_accumulated_stats(device)?)
    }

    fn snapshot(&self, device: u32) -> Answer<Vec<Stretch>> {
        let snapshot = self.alloc.snapshot(device)?;
        let stretches = snapshot.segments.into_iter().map(|segment| Stretch {
            address: segment.address,
            bytes: segment.total_size,
            is_asleep: segment.is_asleep,
            chunks: Some(segment.chunks),
            pieces: segment
                .blocks
                .into_iter()
                .map(|block| Piece {
                    address: block.address,
                    bytes: block.size,
                    requested: block.requested_size,
                    live: block.state == BlockState::ActiveAllocated,
                    active: block.state != BlockState::Inactive,
                })
                .collect(),
        });
        Ok(stretches.collect())
    }

    fn set_hook(&self, hook: Option<Hook>) -> Answer<()> {
        let hook = hook.map(|hook| {
            let told: ascend_alloc::hook::EventHook = Arc::new(move |event| hook(event.device));
            told
        });
        self.alloc.set_event_hook(hook);
        Ok(())
    }

    fn add_callback(&self, callback: FreeMemory) -> Answer<u64> {
        let id = self.alloc.add_memory_callback(Arc::new(move |device, _bytes| callback(device)));
        Ok(self.callbacks.add(id))
    }

    fn remove_callback(&self, number: u64) -> Answer<()> {
        let id = self.callbacks.take(number)?;
        if self.alloc.remove_memory_callback(id) { Ok(()) } else { Err(unknown(number)) }
    }

    fn create_pool(&self, device: u32, choice: PoolChoice) -> Answer<u64> {
        let mut options = PoolOptions::tagged(choice.tag);
        options.no_split = choice.no_split;
        options.use_on_oom = choice.use_on_oom;
        options.soft_limit = (choice.soft_limit > 0).then_some(choice.soft_limit);
        Ok(self.pools.add(self.alloc.create_pool(device, options)?))
    }

    fn release_pool(&self, pool: u64) -> Answer<()> {
        Ok(self.alloc.release_pool(self.pool(pool)?)?)
    }

    fn begin_route(&self, pool: u64, filter: Filter) -> Answer<()> {
        self.alloc.begin_route(self.pool(pool)?, route(filter))?;
        Ok(())
    }

    fn begin_capture(&self, pool: u64, filter: Filter) -> Answer<()> {
        self.alloc.begin_capture(self.pool(pool)?, route(filter))?;
        Ok(())
    }

    fn end_route(&self, pool: u64) -> Answer<()> {
        Ok(self.alloc.end_route(self.pool(pool)?)?)
    }

    fn release_graph(&self, pool: u64) -> Answer<()> {
        Ok(self.alloc.release_graph(self.pool(pool)?)?)
    }

    fn checkpoint(&self, pool: u64) -> Answer<u64> {
        Ok(self.checkpoints.add(self.alloc.checkpoint(self.pool(pool)?)?))
    }

    fn restore(&self, checkpoint: u64) -> Answer<(Vec<u64>, Vec<u64>)> {
        let restored = self.checkpoints.get(checkpoint, |checkpoint| self.alloc.restore(checkpoint))??;
        let addresses = |blocks: Vec<DevicePtr>| blocks.into_iter().map(|ptr| ptr.0).collect();
        Ok((addresses(restored.freed), addresses(restored.allocated)))
    }

    fn release_checkpoint(&self, checkpoint: u64) -> Answer<()> {
        self.checkpoints.take(checkpoint).map(drop)
    }

    fn sleep(&self, device: u32, tag: &str, keep: bool) -> Answer<()> {
        let mode = if keep { SleepMode::Offload } else { SleepMode::Discard };
        self.alloc.sleep(Some(device), &[tag], mode)?;
        Ok(())
    }

    fn wake(&self, device: u32, tag: &str) -> Answer<()> {
        self.alloc.wake(Some(device), &[tag])?;
        Ok(())
    }

    fn is_asleep(&self, pool: u64) -> Answer<bool> {
        Ok(self.alloc.is_asleep(self.pool(pool)?)?)
    }

    fn create_buffer(&self, device: u32, stream: u64, max: u64, bytes: u64) -> Answer<u64> {
        let options = GrowableOptions::up_to(max).beginning_with(bytes);
        let buffer = GrowableBuffer::new(self.alloc.clone(), device, Stream(stream), options)?;
        Ok(self.buffers.add(buffer))
    }

    fn resize_buffer(&self, buffer: u64, bytes: u64) -> Answer<()> {
        // The table is not locked meanwhile: a memory callback may come back here.
        let mut taken = self.buffers.take(buffer)?;
        let answer = taken.resize(bytes);
        self.buffers.with(|(_, all)| all.insert(buffer, taken));
        Ok(answer?)
    }

    fn record_buffer(&self, buffer: u64, stream: u64) -> Answer<()> {
        Ok(self.buffers.get(buffer, |buffer| buffer.record_stream(Stream(stream)))??)
    }

    fn buffer(&self, buffer: u64) -> Answer<BufferInfo> {
        self.buffers.get(buffer, |buffer| BufferInfo {
            address: buffer.ptr().0,
            bytes: buffer.bytes(),
            max_bytes: buffer.max_bytes(),
            mapped_bytes: buffer.mapped_bytes(),
        })
    }

    fn destroy_buffer(&self, buffer: u64) -> Answer<()> {
        self.buffers.take(buffer).map(drop)
    }

    fn export(&self, address: u64) -> Answer<(u64, Vec<u8>)> {
        let export = self.alloc.export(DevicePtr(address), &ExportOptions::default())?;
        let message = export.handle().to_bytes();
        Ok((self.exports.add(export), message))
    }

    fn release_export(&self, export: u64) -> Answer<()> {
        self.exports.take(export).map(drop)
    }

    fn import(&self, message: &[u8], device: u32, stream: u64) -> Answer<(u64, u64, u64)> {
        let handle = SharedHandle::from_bytes(message)?;
        let block = self.alloc.import(device, &handle, Stream(stream))?;
        let (address, bytes) = (block.ptr().0, block.bytes());
        Ok((self.imports.add(block), address, bytes))
    }

    fn record_import(&self, import: u64, stream: u64) -> Answer<()> {
        self.imports.get(import, |block| block.record_stream(Stream(stream)))
    }

    fn release_import(&self, import: u64) -> Answer<()> {
        self.imports.take(import).map(drop)
    }

    fn host_allocate(&self, bytes: u64) -> Answer<u64> {
        let ptr = self.host.allocate(bytes, 0)?;
        if !ptr.is_null() {
            self.pinned.lock().unwrap_or_else(PoisonError::into_inner).insert(ptr.address(), ptr);
        }
        Ok(ptr.address())
    }

    fn host_free(&self, address: u64) -> Answer<()> {
        let ptr = self.pinned(address)?;
        self.host.deallocate(ptr)?;
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
        Ok(())
    }

    fn host_record(&self, address: u64, device: u32, stream: u64) -> Answer<()> {
        Ok(self.host.record_use(self.pinned(address)?, device, Stream(stream))?)
    }

    fn host_empty(&self, waiting: bool) -> Answer<()> {
        if waiting {
            self.host.empty_cache_waiting()?
        } else {
            self.host.empty_cache()?
        };
        Ok(())
    }

    fn host_books(&self) -> Answer<HostBooks> {
        let stats = self.host.stats();
        Ok(HostBooks {
            active_requests: stats.active_requests.current,
            active: stats.active_bytes.current,
            held: stats.allocated_bytes.current,
        })
    }

    fn check(&self) -> Result<(), Vec<String>> {
        self.alloc.check()?;
        self.host.check()
    }
}
