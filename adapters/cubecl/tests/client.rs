//! The server behind cubecl's own client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::host::{PinnedAllocator, PinnedOptions};
use ascend_alloc::{Config, DeviceAllocator, Error};
use ascend_alloc_cubecl::{AscendServer, Backend};
use ascend_sim::{Sim, SimConfig};
use cubecl_common::bytes::Bytes;
use cubecl_common::device::DeviceId;
use cubecl_ir::metadata::Info;
use cubecl_ir::settings::{Dim3, ExecutionMode, KernelSettings};
use cubecl_ir::{AddressType, ElemType, UIntKind};
use cubecl_server::client::Client;
use cubecl_server::id::KernelId;
use cubecl_server::kernel::{BufferIOAttr, CubeKernel, KernelDefinition, KernelMetadata};
use cubecl_server::memory_management::MemoryScope;
use cubecl_server::server::{CubeCount, Handle, KernelArguments};

const MIB: usize = 1 << 20;

/// A machine, its allocators, and a client.
struct Device {
    sim: Sim,
    allocator: Arc<DeviceAllocator>,
    pinned: Arc<PinnedAllocator>,
    index: u16,
    client: Client,
}

impl Device {
    fn new(config: SimConfig, streams: usize) -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let sim = Sim::new(config);
        let driver = Arc::new(SimDriver::new(sim.clone()));
        let allocator = Arc::new(DeviceAllocator::new(Config::default(), driver.clone()).unwrap());
        let pinned = Arc::new(PinnedAllocator::new(PinnedOptions::default(), driver).unwrap());
        let stream = |_| Stream(sim.executor().create_stream(0).unwrap());
        let streams = (0..streams).map(stream).collect();
        let index = NEXT.fetch_add(1, Ordering::Relaxed);
        let (allocator_, pinned_) = (allocator.clone(), pinned.clone());
        let backend = Backend { allocator: allocator_, pinned: pinned_, device: 0, streams };
        let client = AscendServer::start(index, backend).unwrap();
        Self { sim, allocator, pinned, index, client }
    }

    fn live(&self) -> u64 {
        self.allocator.stats(0).unwrap().requested_bytes.all.current as u64
    }

    /// After everything was dropped: nothing is live, nothing stays on the device, nothing was wrong.
    fn settle(&self) {
        self.client.memory_cleanup().unwrap();
        assert_eq!(self.allocator.stats(0).unwrap().allocation.all.current, 0);
        self.pinned.process_events().unwrap();
        assert_eq!(self.pinned.stats().active_bytes.current, 0);
        assert_eq!(self.sim.physical_bytes(0), 0);
        assert_eq!(self.allocator.check(), Ok(()));
        assert_eq!(self.sim.take_findings(), [] as [String; 0]);
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed * 7 + at / 251) as u8).collect()
}

/// What the client reads, without the bytes that only fill up to the alignment.
fn read(client: &Client, handle: &Handle, len: usize) -> Vec<u8> {
    let bytes = client.read_one(handle.clone()).unwrap();
    assert!(bytes.len() >= len);
    bytes[..len].to_vec()
}

#[test]
fn what_is_written_is_read_back() {
    let device = Device::new(SimConfig { lag: 50, ..SimConfig::default() }, 1);
    let client = &device.client;
    let lengths = [0, 1, 511, 512, 513, 4096, 3 * MIB + 5];
    let handles: Vec<_> = lengths.map(|len| client.create_from_slice(&pattern(len, len))).into();
    for (handle, len) in handles.iter().zip(lengths) {
        assert_eq!(read(client, handle, len), pattern(len, len));
    }
    // A part of a buffer.
    let part = handles[6].clone().offset_start(1024).offset_end(MIB as u64);
    let whole = pattern(lengths[6], lengths[6]);
    assert_eq!(read(client, &part, 2 * MIB - 1024), whole[1024..2 * MIB]);
    // Written again, and from nothing.
    let empty = client.empty(2048);
    client.write(&empty, Bytes::from_bytes_vec(pattern(2048, 3)));
    client.write(&handles[5], Bytes::from_bytes_vec(pattern(4096, 4)));
    assert_eq!(read(client, &empty, 2048), pattern(2048, 3));
    assert_eq!(read(client, &handles[5], 4096), pattern(4096, 4));
    // Several at once, in one block.
    let (a, b) = (pattern(700, 1), pattern(900, 2));
    let several = client.read(vec![handles[2].clone(), empty.clone()]).unwrap();
    assert_eq!((&several[0][..511], &several[1][..]), (&pattern(511, 511)[..], &pattern(2048, 3)[..]));
    let shapes = [a.len(), b.len()];
    let layouts = client.create_tensors_from_slices(
        [(&a, shapes[0]), (&b, shapes[1])]
            .map(|(data, len)| {
                let shape = [len].into();
                (cubecl_server::server::MemoryLayoutDescriptor::contiguous(shape, 1), &data[..])
            })
            .into(),
    );
    assert_eq!(read(client, &layouts[0].memory, 700), a);
    assert_eq!(read(client, &layouts[1].memory, 900), b);
    client.sync_now();
    drop((handles, part, empty, layouts));
    device.settle();
}

/// A descriptor says how much of a buffer is read: the server copies that, whatever else the buffer has.
#[test]
fn as_much_is_read_as_the_descriptor_says() {
    let device = Device::new(SimConfig { lag: 50, ..SimConfig::default() }, 2);
    let client = &device.client;
    let whole = pattern(4096, 5);
    let handle = client.create_from_slice(&whole);
    let part = |shape: &[usize], strides: &[usize], elem_size| {
        handle.clone().copy_descriptor(shape.to_vec().into(), strides.into(), elem_size)
    };
    let parts = || vec![part(&[7, 25], &[25, 1], 4), part(&[], &[], 4), part(&[4096], &[1], 1)];
    let read = client.read_tensor(parts()).unwrap();
    for ((bytes, descriptor), len) in read.iter().zip(parts()).zip([700, 4, 4096]) {
        assert_eq!(bytes[..], whole[..len]);
        assert_eq!(client.read_lazy(descriptor)[..], whole[..len]);
    }
    // Nothing is there to be read of a tensor without elements, whatever its strides say.
    let nothing = client.read_tensor(vec![part(&[0, 5], &[0, 0], 4), part(&[3, 0], &[9, 9], 4)]).unwrap();
    assert!(nothing.iter().all(|bytes| bytes.is_empty()));
    // More than there is cannot be read.
    for (shape, elem_size) in [(4097, 1), (1025, 4), (usize::MAX, 4)] {
        let error = client.read_tensor(vec![part(&[shape], &[1], elem_size)]).unwrap_err().to_string();
        assert!(error.contains("of a buffer of 4096"), "{error}");
    }
    assert_eq!(client.read_one(handle.clone()).unwrap()[..], whole);
    drop(handle);
    device.settle();
}

/// `sync` of the client, waited for.
trait SyncNow {
    fn sync_now(&self);
}

impl SyncNow for Client {
    fn sync_now(&self) {
        cubecl_environment::future::block_on(self.sync()).unwrap();
    }
}

#[test]
fn each_tensor_is_a_block_and_reports_say_so() {
    let device = Device::new(SimConfig::default(), 1);
    let client = &device.client;
    let sizes = [1000, 3 * MIB, 3 * MIB, MIB];
    let handles: Vec<_> = sizes.map(|size| client.empty(size)).into();
    client.sync_now();
    let usage = client.memory_report(MemoryScope::Device).usage();
    let rounded: usize = sizes.iter().map(|size| size.next_multiple_of(512)).sum();
    assert_eq!((usage.number_allocs, usage.bytes_reserved), (4, rounded as u64));
    assert_eq!(device.allocator.stats(0).unwrap().allocation.all.current, 4);
    assert_eq!(device.live(), rounded as u64);

    let resource = client.get_resource::<AscendServer>(handles[1].clone()).unwrap();
    let info = device.allocator.block_info(resource.resource().block()).unwrap();
    assert_eq!((info.requested, info.address), (3 * MIB as u64, resource.resource().ptr().address()));
    drop((handles, resource));
    device.settle();
    assert_eq!(client.memory_report(MemoryScope::Device).usage().bytes_reserved, 0);
}

#[test]
fn out_of_memory_is_reported_where_it_is_read_and_survived() {
    let device = Device::new(SimConfig { capacity: 64 << 20, ..SimConfig::default() }, 2);
    let client = &device.client;
    let first = client.create_from_slice(&pattern(40 * MIB, 1));
    let second = client.create_from_slice(&pattern(40 * MIB, 2));
    let error = client.read_one(second.clone()).unwrap_err().to_string();
    assert!(error.contains("out of device memory"), "{error}");
    assert_eq!(read(client, &first, 40 * MIB), pattern(40 * MIB, 1));
    drop((first, second));
    // There is room as soon as the first is gone; nobody has to clean up.
    let third = client.create_from_slice(&pattern(40 * MIB, 3));
    assert_eq!(read(client, &third, 40 * MIB), pattern(40 * MIB, 3));
    drop(third);
    device.settle();
}

#[test]
fn threads_share_buffers_in_order_on_a_device_that_lags() {
    let device = Device::new(SimConfig { lag: 30, ..SimConfig::default() }, 3);
    let client = &device.client;
    let shared: Vec<_> = (0..4).map(|n| client.create_from_slice(&pattern(100_000, n))).collect();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (shared, sim) = (&shared, &device.sim);
            scope.spawn(move || {
                let mut own: Vec<(Handle, usize)> = Vec::new();
                for round in 0..40 {
                    sim.executor().tick(1);
                    let len = 1 + (round * 7919 + thread * 104_729) % 60_000;
                    own.push((client.create_from_slice(&pattern(len, round)), len));
                    if round % 3 == 0 {
                        assert_eq!(read(client, &shared[round % 4], 100_000), pattern(100_000, round % 4));
                    }
                    if round % 4 == 3 {
                        let (handle, len) = own.remove(0);
                        assert_eq!(read(client, &handle, len), pattern(len, round - own.len()));
                    }
                }
            });
        }
    });
    // Written by this thread, read by another, and the other way round.
    client.write(&shared[0], Bytes::from_bytes_vec(pattern(100_000, 9)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(read(client, &shared[0], 100_000), pattern(100_000, 9));
            client.write(&shared[1], Bytes::from_bytes_vec(pattern(100_000, 8)));
        });
    });
    assert_eq!(read(client, &shared[1], 100_000), pattern(100_000, 8));
    drop(shared);
    client.sync_now();
    device.settle();
}

#[derive(Debug)]
struct Unknown;

impl KernelMetadata for Unknown {
    fn name(&self) -> &'static str {
        "unknown"
    }

    fn id(&self) -> KernelId {
        KernelId::new::<Self>()
    }

    fn address_type(&self) -> ElemType {
        ElemType::UInt(UIntKind::U32)
    }
}

impl CubeKernel for Unknown {
    fn define(&self) -> KernelDefinition {
        let settings = KernelSettings::new(Dim3::new_single(), ExecutionMode::Checked, AddressType::U32);
        let body = cubecl_ir::Scope::root(settings.clone());
        KernelDefinition { body, settings, info: Info::default() }
    }
}

#[test]
fn a_kernel_is_refused_and_its_output_says_so() {
    let device = Device::new(SimConfig::default(), 1);
    let client = &device.client;
    let (input, output) = (client.create_from_slice(&pattern(512, 1)), client.empty(512));
    let arguments = KernelArguments::new()
        .with_buffer_io(input.clone().binding(), BufferIOAttr::ReadOnly)
        .with_buffer_io(output.clone().binding(), BufferIOAttr::WriteOnly);
    client.launch(Box::new(Unknown), CubeCount::new_single(), arguments);
    let error = client.read_one(output.clone()).unwrap_err();
    assert!(error.to_string().contains("needs a compiler"), "{error}");
    assert!(error.is_refusal());
    assert_eq!(read(client, &input, 512), pattern(512, 1));
    // Whoever writes the buffer puts it right.
    client.write(&output, Bytes::from_bytes_vec(pattern(512, 2)));
    assert_eq!(read(client, &output, 512), pattern(512, 2));
    drop((input, output));
    device.settle();
}

#[test]
fn wrong_use_is_refused_with_a_reason() {
    let device = Device::new(SimConfig::default(), 1);
    let client = &device.client;
    let small = client.create_from_slice(&pattern(512, 0));
    client.write(&small, Bytes::from_bytes_vec(vec![1; 513]));
    let error = client.read_one(small.clone()).unwrap_err().to_string();
    assert!(error.contains("513 bytes are written to a buffer of 512"), "{error}");
    drop(small);

    let backend = |streams| Backend {
        allocator: device.allocator.clone(),
        pinned: device.pinned.clone(),
        device: 0,
        streams,
    };
    let taken = AscendServer::start(device.index, backend(vec![Stream(0)]));
    assert!(matches!(taken, Err(Error::State { .. })));
    assert!(matches!(AscendServer::start(999, backend(Vec::new())), Err(Error::Argument { .. })));
    // The same device number leads to the same server.
    let again = Client::load::<AscendServer>(DeviceId { type_id: 0, index_id: device.index });
    assert_eq!(again.service_id(), client.service_id());

    let nowhere = Client::load::<AscendServer>(DeviceId { type_id: 0, index_id: 998 });
    let handle = nowhere.empty(16);
    let error = nowhere.read_one(handle).unwrap_err().to_string();
    assert!(error.contains("AscendServer::start"), "{error}");
    assert!(nowhere.memory_report(MemoryScope::Device).streams.is_empty());
    device.settle();
}
