//! A server of cubecl whose memory is ours: everything but kernels.

use std::sync::Arc;

use ascend_alloc::driver::{DeviceId, Driver, Event, Stream};
use ascend_alloc::host::{InFlight, PinnedAllocator, PinnedBuffer};
use ascend_alloc::{DeviceAllocator, Error};
use cubecl_common::bytes::Bytes;
use cubecl_common::device::{self, DeviceService, ServiceId};
use cubecl_common::profile::ProfileDuration;
use cubecl_environment::backtrace::BackTrace;
use cubecl_environment::future::DynFut;
use cubecl_environment::stream::StreamId;
use cubecl_ir::MemoryDeviceProperties;
use cubecl_server::client::Client;
use cubecl_server::compiler::CompilationError;
use cubecl_server::config::memory::MemoryLogLevel;
use cubecl_server::kernel::CubeKernel;
use cubecl_server::logging::ServerLogger;
use cubecl_server::memory_management::{
    Claim, ErrorGraph, ManagedMemoryHandle, MemoryAllocationMode, StreamMemoryReport,
};
use cubecl_server::server::{
    BufferBinding, CopyDescriptor, CubeCount, IoError, KernelArguments, LaunchError, ProfileError,
    ProfilingToken, Server, ServerCommunication, ServerError, ServerStorage, ServerUtilities,
};
use cubecl_server::storage::ManagedResource;
use cubecl_server::timestamp_profiler::TimestampProfiler;

use crate::LaunchMode;
use crate::memory::TensorMemory;
use crate::storage::{self, AscendResource, AscendStorage};

/// What a server works with: one device, the allocators for its memory and for page-locked memory, and streams.
///
/// Streams are the caller's: they live at least as long as the server. Streams of cubecl, one for each thread, are
/// spread over them.
#[derive(Clone, Debug)]
pub struct Backend {
    /// Device memory.
    pub allocator: Arc<DeviceAllocator>,
    /// Page-locked memory for what is read and written; its driver queues the copies.
    pub pinned: Arc<PinnedAllocator>,
    /// The device.
    pub device: DeviceId,
    /// At least one stream of the device; `Stream(0)` is its default stream.
    pub streams: Vec<Stream>,
}

/// The memory side of a backend: create, read, write, report, clean up.
///
/// It has no compiler: a kernel that is launched on it is refused, and what the kernel would have written reports that
/// when it is read. Requests for another mode of allocation are ignored: every tensor is a block of the allocator.
pub struct AscendServer {
    utilities: Arc<ServerUtilities>,
    /// Nothing in a server that was started by [`DeviceService::init`].
    backend: Option<Backend>,
    /// One for each stream of the backend.
    lanes: Vec<Lane>,
    failures: ErrorGraph,
    timestamps: TimestampProfiler,
}

/// A stream with its memory.
struct Lane {
    stream: Stream,
    memory: TensorMemory<AscendStorage>,
    /// Recorded when another stream is to wait for this one; a stream that waits keeps to the record it found.
    event: Option<Event>,
}

impl core::fmt::Debug for AscendServer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AscendServer")
            .field("backend", &self.backend)
            .field("lanes", &self.lanes.len())
            .finish_non_exhaustive()
    }
}

impl AscendServer {
    /// Starts a server on cubecl's device number `index`; the client for it. Other clients for the same index come from
    /// `Client::load::<AscendServer>`. The server lives as long as the process.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] without a stream, [`Error::State`] when the index has a server already, [`Error::Driver`] when
    /// the device does not tell its memory.
    pub fn start(index: u16, backend: Backend) -> Result<Client, Error> {
        if backend.streams.is_empty() {
            return Err(Error::Argument {
                name: "streams",
                value: "none".to_owned(),
                expected: "at least one stream of the device; Stream(0) is its default stream",
            });
        }
        let properties = storage::properties(&**backend.pinned.driver(), backend.device)?;
        let id = device::DeviceId { type_id: 0, index_id: index };
        let server = Self::new(ServiceId::of::<Self>(id), properties, Some(backend));
        Client::try_init(id, server).map_err(|_taken| Error::State {
            operation: "starting a server",
            reason: "the device number has one already; load its client, or take another number",
        })
    }

    fn new(service: ServiceId, memory: MemoryDeviceProperties, backend: Option<Backend>) -> Self {
        let utilities = Arc::new(crate::utilities::utilities(service, memory.clone()));
        let lane = |backend: &Backend, stream| {
            let storage = AscendStorage::new(backend.allocator.clone(), backend.device, stream);
            Lane {
                stream,
                memory: TensorMemory::new(storage, &memory, utilities.logger.clone()),
                event: None,
            }
        };
        let lanes = backend.as_ref().map_or_else(Vec::new, |backend| {
            backend.streams.iter().map(|&stream| lane(backend, stream)).collect()
        });
        let (failures, timestamps) = (ErrorGraph::default(), TimestampProfiler::default());
        Self { utilities, backend, lanes, failures, timestamps }
    }

    /// The backend, or why there is none.
    fn backend(&self) -> Result<&Backend, ServerError> {
        self.backend.as_ref().ok_or_else(|| ServerError::Generic {
            reason: "this device number has no backend; start one with AscendServer::start before its client is loaded"
                .to_owned(),
            backtrace: BackTrace::capture(),
        })
    }

    /// The lane of a stream of cubecl.
    fn lane(&self, stream: StreamId) -> Result<usize, ServerError> {
        self.backend()?;
        Ok((stream.value % self.lanes.len() as u64) as usize)
    }

    /// Memory for `size` bytes; when there is none, once more after everything that nobody holds has gone back.
    fn reserve(&mut self, lane: usize, size: u64) -> Result<ManagedMemoryHandle, IoError> {
        match self.lanes[lane].memory.reserve(size, &mut self.failures) {
            Err(error) if error.may_succeed_after_reclaim() => {}
            answer => return answer,
        }
        for lane in &mut self.lanes {
            lane.memory.reclaim(&mut self.failures);
        }
        let memory = &mut self.lanes[lane].memory;
        let answer = memory.reserve(size, &mut self.failures);
        if let (Err(_), Some(refusal)) = (&answer, memory.management().storage().take_refusal()) {
            let wanted = |level| !matches!(level, MemoryLogLevel::Disabled);
            self.utilities.logger.log_memory(wanted, || refusal.to_string());
        }
        answer
    }

    /// Whether all that is asked for was written, as far as the host knows.
    fn ensure_written<'a>(
        &self,
        handles: impl Iterator<Item = &'a BufferBinding>,
    ) -> Result<(), ServerError> {
        self.backend()?;
        self.failures.reports(handles.filter_map(|handle| {
            let memory = handle.memory.id();
            if !handle.memory.descriptor().is_allocated() {
                return Some(Claim::Unallocated(memory));
            }
            let lane = &self.lanes[self.lane(handle.stream).ok()?];
            let failure = lane.memory.view().failure(&handle.memory, handle.range())?;
            Some(Claim::Failed(failure, memory))
        }))
    }

    /// What a binding means on the device, for work on the lane: after what its own stream does with it now.
    fn resource(&mut self, binding: &BufferBinding, user: usize) -> Result<AscendResource, ServerError> {
        let own = self.lane(binding.stream)?;
        let memory = binding.memory.clone();
        let resource = self.lanes[own].memory.management().get_resource(
            memory,
            binding.offset_start,
            binding.offset_end,
        )?;
        if own != user {
            self.wait(user, own)?;
            let allocator = &self.backend()?.allocator;
            resource.record_use(allocator, self.lanes[user].stream).map_err(generic)?;
        }
        Ok(resource)
    }

    /// After work of the user on memory of a binding: its own stream waits for that.
    fn give_back(&mut self, binding: &BufferBinding, user: usize) -> Result<(), ServerError> {
        let own = self.lane(binding.stream)?;
        if own == user { Ok(()) } else { self.wait(own, user) }
    }

    /// Lets one stream wait on the device for what another has queued so far.
    fn wait(&mut self, waiting: usize, waited_for: usize) -> Result<(), ServerError> {
        let backend = self.backend()?;
        let (device, driver) = (backend.device, backend.pinned.driver().clone());
        let failed = |error| generic(Error::Driver(error));
        let lane = &mut self.lanes[waited_for];
        let event = match lane.event {
            Some(event) => event,
            None => *lane.event.insert(driver.create_event(device).map_err(failed)?),
        };
        driver.record_event(device, event, lane.stream).map_err(failed)?;
        driver.stream_wait_event(device, self.lanes[waiting].stream, event).map_err(failed)
    }

    /// Queues the copy of one buffer to page-locked memory.
    fn download(
        &mut self,
        descriptor: &CopyDescriptor,
        stream: StreamId,
    ) -> Result<InFlight<u8>, ServerError> {
        contiguous(descriptor)?;
        let user = self.lane(stream)?;
        let resource = self.resource(&descriptor.handle, user)?;
        let size = described(descriptor, &resource)?;
        let backend = self.backend()?;
        let buffer = PinnedBuffer::<u8>::zeroed(backend.pinned.clone(), size).map_err(generic)?;
        let (device, on) = (backend.device, self.lanes[user].stream);
        let queued =
            buffer.download(resource.ptr(), device, on).map_err(|(error, _buffer)| generic(error))?;
        self.give_back(&descriptor.handle, user)?;
        Ok(queued)
    }

    /// Queues the copy of data into one buffer.
    fn upload(
        &mut self,
        descriptor: &CopyDescriptor,
        data: &[u8],
        stream: StreamId,
    ) -> Result<(), ServerError> {
        contiguous(descriptor)?;
        let user = self.lane(stream)?;
        let resource = self.resource(&descriptor.handle, user)?;
        if data.len() as u64 > resource.size() {
            let (given, room) = (data.len(), resource.size());
            return Err(ServerError::Validation {
                message: format!(
                    "{given} bytes are written to a buffer of {room}; write no more than it holds"
                ),
                backtrace: BackTrace::capture(),
            });
        }
        let backend = self.backend()?;
        let buffer = PinnedBuffer::from_slice(backend.pinned.clone(), data).map_err(generic)?;
        let (device, on) = (backend.device, self.lanes[user].stream);
        // The buffer is given up here; its memory is reused only when the stream has passed the copy.
        let _queued = buffer.upload(resource.ptr(), device, on).map_err(|(error, _buffer)| generic(error))?;
        self.give_back(&descriptor.handle, user)
    }

    /// Notes that the buffers do not hold what they should, and why.
    fn taint(&mut self, error: ServerError, handles: &[BufferBinding]) {
        let failure = self.failures.insert(error);
        for handle in handles {
            if let Ok(lane) = self.lane(handle.stream) {
                let memory = self.lanes[lane].memory.management();
                memory.taint(&handle.memory, handle.range(), failure, &mut self.failures);
            }
        }
        self.failures.prune(failure);
    }
}

impl Drop for AscendServer {
    fn drop(&mut self) {
        if let Some(backend) = &self.backend {
            for event in self.lanes.iter().filter_map(|lane| lane.event) {
                // An event that cannot be destroyed goes with its device.
                let _destroyed = backend.pinned.driver().destroy_event(backend.device, event);
            }
        }
    }
}

impl DeviceService for AscendServer {
    /// A server without a device: whatever is asked of it is refused with a text that says so. Servers with one are
    /// started by [`AscendServer::start`].
    fn init(device_id: device::DeviceId) -> Self {
        let nothing = MemoryDeviceProperties::new(0, storage::ALIGNMENT);
        Self::new(ServiceId::of::<Self>(device_id), nothing, None)
    }

    fn utilities(&self) -> Arc<dyn core::any::Any + Send + Sync> {
        self.utilities.clone()
    }
}

impl ServerCommunication for AscendServer {}

impl Server for AscendServer {
    fn initialize_memory(
        &mut self,
        memory: ManagedMemoryHandle,
        size: u64,
        stream_id: StreamId,
    ) -> Result<(), ServerError> {
        let placed = self.lane(stream_id).and_then(|lane| {
            let reserved = self.reserve(lane, size)?;
            self.lanes[lane].memory.management().bind(reserved, memory.clone(), 0, &mut self.failures)?;
            Ok(())
        });
        placed.inspect_err(|error| self.failures.fail_unallocated(&memory, error.clone()))
    }

    fn logger(&self) -> Arc<ServerLogger> {
        self.utilities.logger.clone()
    }

    fn utilities(&self) -> Arc<ServerUtilities> {
        self.utilities.clone()
    }

    fn read(
        &mut self,
        descriptors: Vec<CopyDescriptor>,
        stream_id: StreamId,
    ) -> DynFut<Result<Vec<Bytes>, ServerError>> {
        let queued: Result<Vec<_>, ServerError> =
            self.ensure_written(descriptors.iter().map(|descriptor| &descriptor.handle)).and_then(|()| {
                descriptors.iter().map(|descriptor| self.download(descriptor, stream_id)).collect()
            });
        Box::pin(async move {
            let read = |copy: InFlight<u8>| match copy.wait() {
                Ok(buffer) => Ok(Bytes::from_bytes_vec(buffer.to_vec())),
                Err((error, _copy)) => Err(generic(error)),
            };
            let bytes = queued?.into_iter().map(read).collect();
            // Until here the bindings keep the memory that is copied.
            drop(descriptors);
            bytes
        })
    }

    fn write(&mut self, descriptors: Vec<(CopyDescriptor, Bytes)>, stream_id: StreamId) {
        for (descriptor, data) in descriptors {
            match self.upload(&descriptor, &data, stream_id) {
                Ok(()) => {
                    let handle = &descriptor.handle;
                    if let Ok(lane) = self.lane(handle.stream) {
                        let memory = self.lanes[lane].memory.management();
                        memory.written(&handle.memory, handle.range(), &mut self.failures);
                    }
                }
                Err(error) => self.taint(error, core::slice::from_ref(&descriptor.handle)),
            }
        }
    }

    fn sync(&mut self, handles: Vec<BufferBinding>, _stream_id: StreamId) -> DynFut<Result<(), ServerError>> {
        let done = self.backend().and_then(|backend| {
            let driver: &Arc<dyn Driver> = backend.pinned.driver();
            let wait = |lane: &Lane| driver.synchronize_stream(backend.device, lane.stream);
            self.lanes.iter().try_for_each(wait).map_err(|error| generic(Error::Driver(error)))
        });
        let done = done.and_then(|()| self.ensure_written(handles.iter()));
        Box::pin(async move { done })
    }

    fn check(&mut self, handles: Vec<BufferBinding>, _stream_id: StreamId) -> Result<(), ServerError> {
        self.ensure_written(handles.iter())
    }

    unsafe fn launch(
        &mut self,
        kernel: Box<dyn CubeKernel>,
        _count: CubeCount,
        bindings: KernelArguments,
        _stream_id: StreamId,
        launch_mode: LaunchMode,
    ) {
        if !matches!(launch_mode, LaunchMode::Execute) {
            return;
        }
        let reason =
            format!("kernel {} needs a compiler for the device, and this server has none", kernel.name());
        let refused = CompilationError::UnsupportedInstruction { reason, backtrace: BackTrace::capture() };
        let error = ServerError::from(LaunchError::from(refused));
        self.timestamps.failure(&error);
        let written: Vec<_> = bindings.buffers_written(None).cloned().collect();
        self.taint(error, &written);
    }

    fn flush(&mut self, _stream_id: StreamId) -> Result<(), ServerError> {
        self.backend().map(|_| ())
    }

    fn memory_report(&mut self, stream_id: StreamId) -> Option<StreamMemoryReport> {
        let lane = self.lane(stream_id).ok()?;
        let pools = self.lanes[lane].memory.view().memory_report();
        Some(StreamMemoryReport { stream: stream_id, pools, auxiliary: Vec::new() })
    }

    fn stream_ids(&self) -> Vec<StreamId> {
        (0..self.lanes.len() as u64).map(|value| StreamId { value }).collect()
    }

    /// Frees what nobody holds any more, and gives the device back what the allocator keeps.
    fn memory_cleanup(&mut self, stream_id: StreamId) -> Result<(), ServerError> {
        let lane = self.lane(stream_id)?;
        self.lanes[lane].memory.reclaim(&mut self.failures);
        let backend = self.backend()?;
        backend.allocator.empty_cache(Some(backend.device)).map_err(generic)?;
        Ok(())
    }

    fn start_profile(&mut self, _stream_id: StreamId) -> Result<ProfilingToken, ServerError> {
        Ok(self.timestamps.start())
    }

    fn end_profile(
        &mut self,
        _stream_id: StreamId,
        token: ProfilingToken,
    ) -> Result<ProfileDuration, ProfileError> {
        self.timestamps.stop(token)
    }

    fn abandon_profile(&mut self, _stream_id: StreamId, token: ProfilingToken) {
        self.timestamps.abandon(token);
    }

    fn allocation_mode(&mut self, _mode: MemoryAllocationMode, _stream_id: StreamId) {}
}

impl ServerStorage for AscendServer {
    type Storage = AscendStorage;

    fn get_resource(
        &mut self,
        binding: BufferBinding,
        stream_id: StreamId,
    ) -> Result<ManagedResource<AscendResource>, ServerError> {
        self.ensure_written(core::iter::once(&binding))?;
        let user = self.lane(stream_id)?;
        let resource = self.resource(&binding, user)?;
        Ok(ManagedResource::new(binding.memory, resource))
    }
}

/// An error of ours as one of cubecl's.
fn generic(error: Error) -> ServerError {
    ServerError::Generic { reason: error.to_string(), backtrace: BackTrace::capture() }
}

/// Bytes of the elements that a descriptor names; they are the first of its buffer.
fn described(descriptor: &CopyDescriptor, resource: &AscendResource) -> Result<usize, ServerError> {
    let (mut extents, room) = (descriptor.shape.iter(), resource.size());
    let bytes = extents.try_fold(descriptor.elem_size, |bytes, &extent| bytes.checked_mul(extent));
    bytes.filter(|&bytes| bytes as u64 <= room).ok_or_else(|| ServerError::Validation {
        message: format!(
            "{:?} elements of {} bytes are read of a buffer of {room}; read no more than it holds",
            descriptor.shape, descriptor.elem_size
        ),
        backtrace: BackTrace::capture(),
    })
}

/// Only contiguous buffers are copied: the layout this server gives all of them. Without elements any layout is one.
fn contiguous(descriptor: &CopyDescriptor) -> Result<(), IoError> {
    if descriptor.shape.contains(&0) {
        return Ok(());
    }
    let mut wanted = 1;
    for (&extent, &stride) in descriptor.shape.iter().zip(descriptor.strides.iter()).rev() {
        if extent != 1 && stride != wanted {
            return Err(IoError::UnsupportedStrides { backtrace: BackTrace::capture() });
        }
        wanted = wanted.saturating_mul(extent);
    }
    Ok(())
}
