//! Runs programs on an allocator over two simulated devices, beside a model that knows only what a program can
//! know. After every operation must hold:
//!
//! - the heap checker finds nothing wrong, and neither does the simulator's use checker;
//! - live blocks are disjoint, backed by memory, and keep their first and last bytes;
//! - a refused call changes nothing, a free of a live block is never refused;
//! - counts of live blocks and bytes are the model's, and the physical memory of a device is what the allocator
//!   says it holds.
//!
//! At the end calls work again: everything is freed, all memory goes back, and the device can be
//! filled anew.

mod model;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ascend_alloc::config::Config;
use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{DeviceAllocator, DevicePtr, Error};
use ascend_sim::exec::EVENT_SYNC;
use ascend_sim::{BackingMode, LAG_NEVER, Sim, SimConfig, Soc, Task, WAIT_FOREVER};

use proof::operation::{CODES, Size};

use crate::program::{FAILING, OPTIONAL, Operation, Program, Setup};
use model::{Block, Model};

const MIB: u64 = 1 << 20;
const DEVICES: u32 = 2;
/// Streams of a device, the default stream among them.
const STREAMS: usize = 3;
/// Longer programs find nothing that shorter ones do not, more slowly.
const MOST_OPERATIONS: usize = 150;

/// Runs a program.
///
/// # Panics
///
/// Something that must hold does not; the text says what, and after which operation.
pub fn run(program: &Program) {
    let Some(mut world) = World::new(&program.setup) else { return };
    for (index, operation) in program.operations.iter().take(MOST_OPERATIONS).enumerate() {
        world.perform(operation);
        world.check(&format!("operation {index}: {operation:?}"));
        world.sim.executor().tick(1);
    }
    world.close();
}

struct World {
    allocator: Arc<DeviceAllocator>,
    sim: Sim,
    model: Model,
    /// By device: the raw handles of its streams.
    streams: [[u64; STREAMS]; DEVICES as usize],
    capacity: u64,
    /// The address that was freed last.
    freed: Option<u64>,
    hooked: bool,
    /// Whether a call that takes or gives memory may have failed, so that the books may differ.
    failed: bool,
    limited: bool,
    classic: bool,
}

impl World {
    /// The world of a setup; nothing where the allocator refuses to start without what is missing.
    fn new(setup: &Setup) -> Option<Self> {
        let capacity = (64 + 2 * u64::from(setup.capacity)) * MIB;
        let sim = Sim::new(SimConfig {
            devices: DEVICES,
            capacity,
            soc: if setup.soc_950 { Soc::Ascend950 } else { Soc::Ascend910B },
            backing: BackingMode::MetadataOnly,
            va_budget: (setup.address_space > 0).then(|| u64::from(setup.address_space) << 30),
            lag: if setup.lag == u8::MAX { LAG_NEVER } else { u64::from(setup.lag) },
            ..SimConfig::default()
        });
        let missing = OPTIONAL.iter().enumerate().filter(|(bit, _)| setup.missing >> bit & 1 == 1);
        let missing: Vec<_> = missing.map(|(_, &name)| name).collect();
        sim.set_missing(&missing).expect("the simulator knows them");
        sim.executor().set_destroy_waits(setup.destroy_waits);
        let stream = |device| sim.executor().create_stream(device).expect("there are streams");
        let streams = std::array::from_fn(|device| [0, stream(device as u32), stream(device as u32)]);
        let driver = Arc::new(SimDriver::new(sim.clone()));
        let allocator = Arc::new(DeviceAllocator::new(config(setup), driver).ok()?);
        Some(Self {
            allocator,
            sim,
            model: Model::default(),
            streams,
            capacity,
            freed: None,
            hooked: false,
            failed: false,
            limited: false,
            classic: setup.classic || !missing.is_empty(),
        })
    }

    fn perform(&mut self, operation: &Operation) {
        match *operation {
            Operation::Allocate { size, stream, other_device, align } => {
                self.allocate(size.bytes(), u32::from(other_device), stream, align);
            }
            Operation::Free { block } => {
                if let Some(block) = self.model.remove(block) {
                    self.free(&block);
                }
            }
            Operation::FreeLast => {
                if let Some(block) = self.model.remove_last() {
                    self.free(&block);
                }
            }
            Operation::Misuse { block, offset } => self.misuse(block, offset),
            Operation::Record { block, stream } => self.record(block, stream),
            Operation::Use { block, stream, write } => self.use_block(block, stream, write),
            Operation::Grow { block, size } => self.grow(block, size),
            Operation::Shrink { block, parts } => self.shrink(block, parts),
            Operation::Trim { other_device, keep } => {
                let before = self.sim.physical_bytes(u32::from(other_device));
                if let Ok(given) = self.allocator.trim(u32::from(other_device), u64::from(keep) * MIB) {
                    let after = self.sim.physical_bytes(u32::from(other_device));
                    assert!(given >= before - after, "said {given} of {before} - {after}");
                }
            }
            Operation::EmptyCache { other_device } => {
                // Refused calls are no mistake; what they leave is checked.
                let _refused = self.allocator.empty_cache(other_device.then_some(1));
            }
            Operation::Limit { parts } => {
                let fraction = f64::from(parts) / 256.0;
                let set = self.allocator.set_memory_fraction(0, fraction);
                assert!(set.is_ok() || parts == 0 || self.failed, "{set:?}");
                self.limited = true;
            }
            Operation::Wait { stream, other_device } => {
                let device = u32::from(other_device);
                let stream = self.stream(device, stream);
                self.sim
                    .executor()
                    .synchronize_stream(device, stream, WAIT_FOREVER)
                    .expect("the stream lives");
            }
            Operation::Pass { ticks } => {
                self.sim.executor().tick(u64::from(ticks));
                self.sim.advance(u64::from(ticks) * 1_000_000);
            }
            Operation::Replace { stream, other_device } => self.replace(u32::from(other_device), stream),
            Operation::Fail { call, after, code, always } => {
                let call = FAILING[usize::from(call) % FAILING.len()];
                let code = CODES[usize::from(code) % CODES.len()];
                self.sim.fail(call, u64::from(after % 16) + 1, code, always).expect("the simulator knows it");
                self.failed = true;
            }
            Operation::Heal => self.sim.clear_faults(),
            Operation::Crowd { chunks } => self.sim.set_foreign_bytes(0, u64::from(chunks % 32) * 2 * MIB),
            Operation::Hook => self.hook(),
            Operation::Reset => {
                for device in 0..DEVICES {
                    self.allocator.reset_peak_stats(device).expect("the device exists");
                    self.allocator.reset_accumulated_stats(device).expect("the device exists");
                }
            }
        }
    }

    fn allocate(&mut self, bytes: u64, device: u32, stream: u8, align: Option<u8>) {
        let align = align.map_or(0, |power| 1 << (power % 24));
        let stream = self.stream(device, stream);
        match self.allocator.allocate(device, bytes, align, Stream(stream)) {
            Ok(ptr) if bytes == 0 => assert!(ptr.is_null()),
            Ok(ptr) => {
                assert_eq!(ptr.address() % align.max(512), 0, "{ptr:?} is not aligned to {align}");
                let block = self.model.insert(device, ptr.address(), bytes, stream);
                assert!(self.sim.is_backed(block.address, block.bytes), "no memory behind {block:?}");
                self.write(&block);
            }
            Err(Error::OutOfMemory(report)) => {
                assert_eq!((report.requested, report.device), (bytes, device));
            }
            Err(Error::Size { requested, .. }) => assert_eq!(requested, bytes),
            Err(Error::Driver(_)) if self.failed || self.classic => {}
            Err(error) => panic!("allocate: {error}"),
        }
    }

    fn free(&mut self, block: &Block) {
        self.verify(block);
        self.allocator.deallocate(DevicePtr(block.address)).expect("a live block can be freed");
        self.freed = Some(block.address);
    }

    fn misuse(&mut self, block: u8, offset: u16) {
        let address = match (self.model.get(block), offset) {
            (Some(block), 1..) => block.address.wrapping_add(u64::from(offset)),
            _ => self.freed.unwrap_or(0x1000),
        };
        if self.model.is_start(address) {
            return;
        }
        let ptr = DevicePtr(address);
        let answers = [
            self.allocator.deallocate(ptr).err(),
            self.allocator.record_stream(ptr, Stream(0)).err(),
            self.allocator.grow_in_place(ptr, 1 << 20).err(),
            self.allocator.shrink_in_place(ptr, 1).err(),
            self.allocator.block_info(ptr).err(),
        ];
        for answer in answers {
            assert!(matches!(answer, Some(Error::Pointer { .. })), "{address:#x}: {answer:?}");
        }
    }

    fn record(&mut self, block: u8, stream: u8) {
        let Some(block) = self.model.get(block).cloned() else { return };
        let stream = self.stream(block.device, stream);
        self.allocator.record_stream(DevicePtr(block.address), Stream(stream)).expect("the block is live");
        let Some(&from) = block.streams.first() else { return };
        if block.streams.contains(&stream) {
            return;
        }
        let executor = self.sim.executor();
        let Ok(event) = executor.create_event(block.device, EVENT_SYNC, true) else { return };
        executor.record_event(block.device, event, from).expect("the stream lives");
        executor.stream_wait_event(block.device, stream, event).expect("the stream lives");
        executor.destroy_event(event).expect("the event lives");
        self.model.allow(block.address, stream);
    }

    fn use_block(&self, block: u8, stream: u8, write: bool) {
        let Some(block) = self.model.get(block) else { return };
        let Some(&stream) = block.streams.get(usize::from(stream) % block.streams.len().max(1)) else {
            return;
        };
        let task = Task::new("use");
        let task = match write {
            true => task.writes(block.address, block.bytes, block.tag),
            false => task.reads(block.address, block.bytes, block.tag),
        };
        self.sim.executor().submit(block.device, stream, task).expect("the stream lives");
    }

    fn grow(&mut self, block: u8, size: Size) {
        let Some(block) = self.model.get(block).cloned() else { return };
        let bytes = block.bytes.saturating_add(size.bytes());
        self.verify(&block);
        if let Ok(true) = self.allocator.grow_in_place(DevicePtr(block.address), bytes) {
            let block = self.model.resize(block.address, bytes);
            assert!(self.sim.is_backed(block.address, block.bytes), "no memory behind {block:?}");
            self.write(&block);
        }
    }

    fn shrink(&mut self, block: u8, parts: u8) {
        let Some(block) = self.model.get(block).cloned() else { return };
        let bytes = (block.bytes as u128 * u128::from(parts) / 256) as u64;
        self.verify(&block);
        match self.allocator.shrink_in_place(DevicePtr(block.address), bytes) {
            Ok(()) => {
                let block = self.model.resize(block.address, bytes);
                self.write_end(&block);
            }
            Err(Error::Size { .. }) if bytes == 0 => {}
            Err(error) => panic!("shrink: {error}"),
        }
    }

    fn replace(&mut self, device: u32, stream: u8) {
        let place = 1 + usize::from(stream) % (STREAMS - 1);
        let old = self.streams[device as usize][place];
        self.sim.executor().destroy_stream(device, old, false).expect("the stream lives");
        self.allocator.stream_destroyed(device, Stream(old)).expect("the device exists");
        self.model.forbid(device, old);
        self.streams[device as usize][place] =
            self.sim.executor().create_stream(device).expect("there are streams");
    }

    fn hook(&mut self) {
        self.hooked = !self.hooked;
        if !self.hooked {
            self.allocator.set_event_hook(None);
            return;
        }
        let (weak, told) = (Arc::downgrade(&self.allocator), AtomicU64::new(0));
        self.allocator.set_event_hook(Some(Arc::new(move |event| {
            if let Some(allocator) = weak.upgrade()
                && told.fetch_add(1, Relaxed) < 100
            {
                allocator.stats(event.device).expect("the device of an event exists");
                allocator.snapshot(event.device).expect("the device of an event exists");
            }
        })));
    }

    /// What must hold after every operation.
    fn check(&self, after: &str) {
        if let Err(faults) = self.allocator.check() {
            panic!("{after}: {faults:#?}");
        }
        let findings = self.sim.findings();
        assert!(findings.is_empty(), "{after}: {findings:#?}");
        for device in 0..DEVICES {
            let stats = self.allocator.stats(device).expect("the device exists");
            let (count, bytes) = self.model.totals(device);
            assert_eq!(stats.allocation.all.current, count, "{after}: live blocks");
            assert!(stats.allocated_bytes.all.current >= bytes, "{after}: live bytes");
            assert!(stats.requested_bytes.all.current >= bytes, "{after}: requested bytes");
            let held = stats.reserved_bytes.all.current as u64 + stats.cached_handles;
            let physical = self.sim.physical_bytes(device);
            assert_eq!(held, physical, "{after}: memory held, as the allocator and the device say");
        }
    }

    /// Everything is freed, and the device is whole again.
    fn close(mut self) {
        self.sim.clear_faults();
        self.sim.set_foreign_bytes(0, 0);
        self.allocator.set_event_hook(None);
        if self.limited {
            self.allocator.set_memory_fraction(0, 1.0).expect("the limit can go");
        }
        while let Some(block) = self.model.remove_last() {
            self.free(&block);
        }
        self.check("all is freed");
        for device in 0..DEVICES {
            self.sim.executor().synchronize_device(device, WAIT_FOREVER).expect("the device exists");
        }
        self.allocator.empty_cache(None).expect("all calls work");
        self.check("the cache is empty");
        for device in 0..DEVICES {
            assert_eq!(self.sim.physical_bytes(device), 0, "memory that is free stays with the allocator");
            // Rounding, the pad and the granule of a small segment take less than the other half.
            match self.allocator.allocate(device, self.capacity / 2, 0, Stream(0)) {
                Ok(ptr) => self.allocator.deallocate(ptr).expect("it is live"),
                Err(error) => panic!("half of the empty device {device} is not to be had: {error}"),
            }
        }
        let Self { allocator, sim, .. } = self;
        drop(allocator);
        let findings = sim.findings();
        assert!(findings.is_empty(), "after the allocator is gone: {findings:#?}");
        for device in 0..DEVICES {
            assert_eq!(sim.physical_bytes(device), 0, "memory outlives the allocator");
        }
        assert_eq!(sim.reserved_bytes(), 0, "address space outlives the allocator");
    }

    fn stream(&self, device: u32, stream: u8) -> u64 {
        self.streams[device as usize][usize::from(stream) % STREAMS]
    }

    fn write(&self, block: &Block) {
        let first = &block.pattern()[..block.bytes.min(8) as usize];
        self.sim.write_bytes(block.address, first).expect("the block is backed");
        self.write_end(block);
    }

    /// The last bytes, if the block is long enough to have others.
    fn write_end(&self, block: &Block) {
        if block.bytes >= 16 {
            let end = block.address + block.bytes - 8;
            self.sim.write_bytes(end, &block.pattern()).expect("the block is backed");
        }
    }

    fn verify(&self, block: &Block) {
        let info = self.allocator.block_info(DevicePtr(block.address)).expect("the block is live");
        assert_eq!((info.device, info.requested), (block.device, block.bytes));
        assert!(info.bytes >= block.bytes);
        let mut found = [0; 8];
        let first = &mut found[..block.bytes.min(8) as usize];
        self.sim.read_bytes(block.address, first).expect("the block is backed");
        assert_eq!(*first, block.pattern()[..first.len()], "the first bytes of {block:?}");
        if block.bytes >= 16 {
            let end = block.address + block.bytes - 8;
            self.sim.read_bytes(end, &mut found).expect("the block is backed");
            assert_eq!(found, block.pattern(), "the last bytes of {block:?}");
        }
    }
}

/// The allocator's configuration of a setup.
fn config(setup: &Setup) -> Config {
    let mut config = Config {
        expandable_segments: !setup.classic,
        front_cache: !setup.without_front,
        headroom: f64::from(setup.headroom % 101) / 100.0,
        reservation: u64::from(setup.reservation % 4) << 30,
        epoch_frees: 64 + u32::from(setup.epoch_frees),
        decay_ms: u64::from(setup.decay),
        ..Config::default()
    };
    if setup.divisions < 4 {
        config.roundup_power2_divisions.fill(1 << setup.divisions);
    }
    if setup.classic {
        config.max_split_size = (setup.max_split > 20).then(|| u64::from(setup.max_split) * MIB);
        config.garbage_collection_threshold = setup.collect.then_some(0.9);
    } else if setup.aligned {
        config.base_addr_aligned = 16 << 10;
    }
    config
}
