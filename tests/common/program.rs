//! Random programs: everything a program may do with an allocator, in any order, with work queued as a
//! program would queue it.
//!
//! - A block is written on its own stream when it is allocated, and used there once more before it is
//!   freed.
//! - Another stream that uses it first waits for its stream on the device, and is recorded.
//! - A stream that was destroyed queues nothing any more; its blocks live on until they are freed.

mod odd;

use super::pooled::Pooled;
use super::*;
use ascend_alloc::config::{ROUNDUP_INTERVALS, SetAccess};

/// What a program may do besides allocating and freeing.
#[derive(Clone, Copy, Debug)]
pub struct Flavor {
    pub expandable: bool,
    /// Whether calls of the driver fail now and then.
    pub faults: bool,
    /// Whether streams are destroyed.
    pub mortal: bool,
    pub devices: u32,
    pub operations: usize,
    /// Whether there are pools, captures and sleep.
    pub pools: bool,
}

/// A stream of the program.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    pub device: DeviceId,
    pub stream: Stream,
}

/// A running program.
pub struct Program {
    pub world: World,
    pub rng: fastrand::Rng,
    pub flavor: Flavor,
    pub lanes: Vec<Lane>,
    pub pooled: Pooled,
    /// Streams that are gone: blocks of theirs may live on.
    dead: BTreeSet<(DeviceId, Stream)>,
    /// Freed addresses, to be freed again in vain.
    stale: Vec<DevicePtr>,
    /// Highest allocated bytes by device since the last reset of peaks.
    peaks: Vec<i64>,
    /// Successful requests by device since the last reset of sums.
    pub requests: Vec<i64>,
    fraction: f64,
    /// Whether address space may run out.
    space_is_short: bool,
    pub armed: bool,
    pub log: Log,
}

/// What was done so far; printed when the test fails.
#[derive(Default)]
pub struct Log(Vec<String>);

impl Log {
    pub fn push(&mut self, line: String) {
        self.0.push(line);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.iter().for_each(|line| eprintln!("  {line}"));
        }
    }
}

/// Runs one program from its first call to its last and looks at everything after each.
pub fn run(seed: u64, flavor: Flavor) {
    let mut program = Program::new(seed, flavor);
    for _ in 0..flavor.operations {
        program.step();
        program.verify();
    }
    program.finish();
}

impl Program {
    pub fn new(seed: u64, flavor: Flavor) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut setup = Setup { scripted: false, ..Setup::default() }.devices(flavor.devices);
        setup.sim.capacity = [8, 32, 100, 256, 1024][rng.usize(..5)] * M;
        setup.sim.lag = [0, 1, 3, 20, LAG_NEVER][rng.usize(..5)];
        if rng.bool() {
            setup = setup.padded();
        }
        if rng.u8(..8) == 0 {
            setup.sim.max_events = rng.u32(1..4);
        }
        if rng.u8(..8) == 0 {
            setup.sim.va_budget = Some(rng.u64(..4) * G + rng.u64(..64) * GRANULE);
        }
        setup.conf.roundup_power2_divisions = [[0, 0, 0, 4, 8][rng.usize(..5)]; ROUNDUP_INTERVALS];
        setup.conf.base_addr_aligned = [0, 0, 0, 16 * K][rng.usize(..4)];
        setup.conf.reservation = [0, 0, G, 2 * G][rng.usize(..4)];
        setup.conf.set_access = [SetAccess::Auto, SetAccess::On, SetAccess::Off][rng.usize(..3)];
        setup.conf.decay_ms = [0, 0, 0, 50][rng.usize(..4)];
        if setup.sim.capacity <= 100 * M && rng.u8(..8) == 0 {
            setup.sim.backing = BackingMode::Mapped;
        }
        setup.conf.expandable_segments = flavor.expandable;
        if flavor.expandable {
            setup.conf.large_segment_size = [20, 20, 12, 40][rng.usize(..4)] * M;
        }
        setup.conf.decay_ops = [0, 0, 0, 60][rng.usize(..4)];
        setup.conf.soft_limit = [None, None, None, Some(setup.sim.capacity / 2)][rng.usize(..4)];
        setup.conf.front_cache = rng.u8(..4) > 0;
        setup.conf.epoch_frees = [64, 72][rng.usize(..2)];
        setup.conf.headroom = [0.0, 0.02, 1.0][rng.usize(..3)];
        if !flavor.expandable && rng.u8(..4) == 0 {
            setup.conf.garbage_collection_threshold = Some(0.7);
        }
        if !flavor.expandable && rng.u8(..4) == 0 {
            setup.conf.max_split_size = Some(32 * M);
        }
        let mut log = Log(Vec::new());
        log.push(format!("seed {seed} {flavor:?}"));
        log.push(format!("{:?}, {}", setup.sim, setup.conf));
        let space_is_short = setup.sim.va_budget.is_some();
        let mut world = setup.build();
        if rng.u8(..3) == 0 {
            world.sim.executor().set_stream_handle_reuse(true);
            world.sim.executor().set_event_handle_reuse(true);
            world.sim.executor().set_destroy_waits(rng.bool());
        }
        world.reused_handles = true;
        let mut lanes = Vec::new();
        for device in 0..flavor.devices {
            lanes.push(Lane { device, stream: Stream(0) });
            for _ in 0..rng.usize(1..4) {
                lanes.push(Lane { device, stream: world.stream_on(device) });
            }
        }
        Self {
            world,
            rng,
            flavor,
            lanes,
            pooled: Pooled::default(),
            dead: BTreeSet::new(),
            stale: Vec::new(),
            peaks: vec![0; flavor.devices as usize],
            requests: vec![0; flavor.devices as usize],
            fraction: 1.0,
            space_is_short,
            armed: false,
            log,
        }
    }

    /// One random operation.
    pub fn step(&mut self) {
        if self.flavor.pools && self.rng.u8(..4) == 0 {
            return self.pool_step();
        }
        match self.rng.u8(..100) {
            0..38 => self.allocate(),
            38..66 => self.free(),
            66..73 => self.share(),
            73..76 => self.grow(),
            76..80 => self.shrink(),
            80..83 => self.trim(),
            83..84 => self.empty(),
            84..91 => self.pass_time(),
            91..93 => self.lane_changes(),
            93..95 => self.nonsense(),
            95..97 => self.settings(),
            97..98 => self.toggle_hook(),
            _ => self.fault(),
        }
    }

    /// Everything that must hold between two calls.
    #[track_caller]
    pub fn verify(&mut self) {
        if self.world.live.len() < 200 {
            self.world.verify();
        }
        for device in 0..self.flavor.devices {
            let stats = self.world.alloc.stats(device).expect("statistics");
            let peak = &mut self.peaks[device as usize];
            *peak = (*peak).max(stats.allocated_bytes.all.current);
            assert_eq!(stats.allocated_bytes.all.peak, *peak, "peak of device {device}");
            let requests = self.requests[device as usize];
            assert_eq!(stats.allocation.all.allocated, requests, "requests of device {device}");
        }
    }

    /// Frees everything and ends; nothing may be left.
    pub fn finish(mut self) {
        self.world.sim.clear_faults();
        self.world.alloc.set_event_hook(None);
        self.log.push("end".to_owned());
        self.end_routes();
        let blocks: Vec<u64> = self.world.live.keys().copied().collect();
        for address in blocks {
            self.last_uses(DevicePtr(address));
            self.world.live.remove(&address);
            self.world.asleep.remove(&address);
            self.world.alloc.deallocate(DevicePtr(address)).expect("freed");
        }
        self.end_pools();
        self.verify();
        self.world.alloc.empty_cache(None).expect("emptied");
        self.verify();
        for device in 0..self.flavor.devices {
            let stats = self.world.alloc.stats(device).expect("statistics");
            let left = (stats.active.all.current, stats.reserved_bytes.all.current, stats.cached_handles);
            assert_eq!(left, (0, 0, 0), "I6: device {device}");
            assert_eq!((stats.segment.all.current, stats.reserved_address_space), (0, 0), "I6: {device}");
        }
        // The log stays until the end, so that a failure below reports it too.
        let Self { world, log: _log, flavor, .. } = self;
        let World { sim, alloc, .. } = world;
        drop(Arc::into_inner(alloc).expect("nobody else has the allocator"));
        assert_nothing_held(&sim, flavor.devices, !flavor.faults);
    }

    pub fn lane(&mut self) -> Lane {
        self.lanes[self.rng.usize(..self.lanes.len())]
    }

    fn some_block(&mut self) -> Option<DevicePtr> {
        let count = self.world.live.len();
        let pick = self.rng.usize(..count.max(1));
        self.world.live.keys().nth(pick).map(|&address| DevicePtr(address))
    }

    pub fn size(&mut self) -> u64 {
        let rng = &mut self.rng;
        match rng.u8(..20) {
            0..5 => rng.u64(1..4 * K),
            5..9 => rng.u64(4 * K..=M),
            9..10 => M + rng.u64(..1024) - 512,
            10..13 => rng.u64(M + 1..4 * M),
            13..15 => rng.u64(1..8) * GRANULE,
            15..17 => rng.u64(4 * M..24 * M),
            17..18 => rng.u64(20 * M..80 * M),
            18..19 => [1000, 4 * K, 64 * K, 3 * M][rng.usize(..4)],
            _ => self.world.capacity / rng.u64(1..5),
        }
    }

    fn allocate(&mut self) {
        let lane = self.lane();
        let bytes = self.size();
        let align = if self.rng.u8(..12) == 0 { 1 << self.rng.u32(..23) } else { 0 };
        self.log.push(format!("allocate {bytes} align {align} on {lane:?}"));
        if let Some(pool) = self.routed(lane.device) {
            let answer = self.world.alloc.allocate(lane.device, bytes, 0, lane.stream);
            self.log.push(format!("  routed {answer:x?}"));
            return self.take_in(answer, pool, lane.stream, bytes);
        }
        let answer = self.world.try_alloc(lane.device, bytes, align, lane.stream);
        self.log.push(format!("  {answer:x?}"));
        match answer {
            Ok(ptr) => {
                self.requests[lane.device as usize] += 1;
                self.use_on(lane.stream, "first", ptr);
            }
            Err(Error::OutOfMemory(_)) => self.must_be_full(lane.device, bytes, align),
            Err(Error::Driver(error)) => assert!(self.armed, "{error}"),
            Err(error) => panic!("{error}"),
        }
    }

    /// Whether a device has classic segments, or would get them now: by its settings, or because a reservation was refused.
    fn has_classic(&self, device: DeviceId) -> bool {
        let snapshot = self.world.alloc.snapshot(device).expect("a snapshot");
        !self.world.alloc.expandable_segments()
            || snapshot.segments.iter().any(|segment| !segment.is_expandable)
    }

    /// With chunks that move, memory is out only when there are not enough for the live blocks and the
    /// request together.
    fn must_be_full(&self, device: DeviceId, bytes: u64, align: u64) {
        // A wide chunk keeps all its granules while anything in it is live.
        let wide = self.world.alloc.config().sets_chunk_size();
        if wide
            || self.has_classic(device)
            || self.armed
            || self.space_is_short
            || self.pooled.restrain(device)
        {
            return;
        }
        let live = self.world.live.iter().filter(|(_, block)| block.device == device);
        let granules: BTreeSet<u64> = live
            .flat_map(|(&address, block)| address / GRANULE..=(address + block.bytes - 1) / GRANULE)
            .collect();
        // The block may begin and end in the middle of a chunk.
        let need = (bytes + bytes / 4 + 16 * K + align).div_ceil(GRANULE) + 1;
        let limit = (self.world.capacity as f64 * self.fraction) as u64;
        let most = limit.min(self.world.capacity) / GRANULE;
        assert!(granules.len() as u64 + need > most, "{} chunks live, {need} asked, {most}", granules.len());
    }

    /// Queues a task that uses a live block to a stream that may use it.
    pub fn use_on(&mut self, stream: Stream, label: &'static str, ptr: DevicePtr) {
        if !self.pooled.is_awake(self.world.live[&ptr.0].pool) {
            return;
        }
        self.world.work(stream, label, ptr);
    }

    /// The uses every program makes before it frees.
    fn last_uses(&mut self, ptr: DevicePtr) {
        let block = self.world.live[&ptr.0].clone();
        if self.dead.contains(&(block.device, block.stream)) {
            return;
        }
        self.use_on(block.stream, "last", ptr);
        for user in block.recorded {
            if !self.dead.contains(&(block.device, user))
                && self.world.try_order(block.device, block.stream, user)
            {
                self.use_on(user, "last there", ptr);
            }
        }
    }

    fn free(&mut self) {
        let Some(ptr) = self.some_block() else { return };
        self.log.push(format!("free {ptr:x?}"));
        if self.rng.u8(..4) > 0 {
            self.last_uses(ptr);
        }
        self.world.live.remove(&ptr.0);
        self.world.asleep.remove(&ptr.0);
        self.world.alloc.deallocate(ptr).expect("freed");
        self.stale.push(ptr);
        self.follow_sleep();
    }

    fn share(&mut self) {
        let Some(ptr) = self.some_block() else { return };
        let block = self.world.live[&ptr.0].clone();
        let users: Vec<Lane> =
            self.lanes.iter().copied().filter(|lane| lane.device == block.device).collect();
        let user = users[self.rng.usize(..users.len())].stream;
        if self.dead.contains(&(block.device, block.stream)) || !self.pooled.is_awake(block.pool) {
            return;
        }
        self.log.push(format!("share {ptr:x?} with {user:x?}"));
        if user == block.stream {
            self.world.alloc.record_stream(ptr, user).expect("recorded");
            return;
        }
        if !self.world.try_order(block.device, block.stream, user) {
            return;
        }
        self.world.work(user, "shared", ptr);
        self.world.alloc.record_stream(ptr, user).expect("recorded");
        let recorded = &mut self.world.live.get_mut(&ptr.0).expect("live").recorded;
        if !recorded.contains(&user) {
            recorded.push(user);
        }
    }

    fn grow(&mut self) {
        let Some(ptr) = self.some_block() else { return };
        let block = self.world.live[&ptr.0].clone();
        let bytes = block.requested + [0, 1, 512, 100 * K, M, 5 * M, 40 * M][self.rng.usize(..7)];
        let home_is_dead = self.dead.contains(&(block.device, block.stream));
        self.log.push(format!("grow {ptr:x?} from {} to {bytes}", block.requested));
        let answer = self.world.alloc.grow_in_place(ptr, bytes);
        self.log.push(format!("  {answer:?}"));
        match answer {
            Ok(true) => {
                self.resized(ptr, bytes);
                if !home_is_dead {
                    self.use_on(block.stream, "grown", ptr);
                }
            }
            Ok(false) => {}
            Err(Error::State { .. }) => assert!(!self.pooled.is_awake(block.pool)),
            Err(Error::Driver(error)) => assert!(self.armed, "{error}"),
            Err(error) => panic!("{error}"),
        }
    }

    fn shrink(&mut self) {
        let Some(ptr) = self.some_block() else { return };
        if !self.pooled.is_awake(self.world.live[&ptr.0].pool) {
            return;
        }
        let requested = self.world.live[&ptr.0].requested;
        let bytes = if self.rng.bool() { self.rng.u64(1..=requested) } else { requested.div_ceil(2) };
        self.log.push(format!("shrink {ptr:x?} from {requested} to {bytes}"));
        self.world.alloc.shrink_in_place(ptr, bytes).expect("shrunk");
        self.resized(ptr, bytes);
    }

    /// The shadow follows a block's new size; its bytes are compared before and marked anew.
    fn resized(&mut self, ptr: DevicePtr, bytes: u64) {
        let info = self.world.alloc.block_info(ptr).expect("live");
        assert_eq!(info.requested, bytes);
        assert!(info.bytes >= bytes + self.world.sim.soc().tail_pad());
        let mut block = self.world.live[&ptr.0].clone();
        block.requested = bytes.min(block.requested);
        if block.requested == bytes {
            // The mark at the end was cut off.
            self.world.check_marks_until(ptr.0, &self.world.live[&ptr.0], bytes);
        } else {
            self.world.check_marks(ptr.0, &block);
        }
        (block.requested, block.bytes) = (bytes, info.bytes);
        self.world.write_marks(ptr.0, &block);
        self.world.live.insert(ptr.0, block);
    }

    fn trim(&mut self) {
        let device = self.lane().device;
        let keep = [0, 4 * M, 20 * M, u64::MAX][self.rng.usize(..4)];
        let before = self.world.sim.physical_bytes(device);
        self.log.push(format!("trim {device} to {keep}"));
        match self.world.alloc.trim(device, keep) {
            Ok(back) => {
                let after = self.world.sim.physical_bytes(device);
                assert_eq!(before - after, back, "bytes given back");
                assert!(back == 0 || after >= keep.saturating_sub(64 * M).min(before), "more than asked for");
            }
            Err(Error::Driver(error)) => assert!(self.armed, "{error}"),
            Err(error) => panic!("{error}"),
        }
    }

    fn empty(&mut self) {
        let device = if self.rng.bool() { Some(self.lane().device) } else { None };
        self.log.push(format!("empty {device:?}"));
        match self.world.alloc.empty_cache(device) {
            Ok(()) => self.must_be_empty(device),
            Err(Error::Driver(error)) => assert!(self.armed, "{error}"),
            Err(error) => panic!("{error}"),
        }
    }

    /// After emptying, chunks stay only where a live block lies.
    fn must_be_empty(&self, device: Option<DeviceId>) {
        if self.armed {
            return;
        }
        for id in device.map_or(0..self.flavor.devices, |id| id..id + 1) {
            if self.has_classic(id) || self.pooled.restrain(id) {
                continue;
            }
            let awake = |block: &Live| self.pooled.is_awake(block.pool);
            let live = self.world.live.iter().filter(|(_, block)| block.device == id && awake(block));
            let granules: BTreeSet<u64> = live
                .flat_map(|(&address, block)| address / GRANULE..=(address + block.bytes - 1) / GRANULE)
                .collect();
            let (held, least) = (self.world.sim.physical_bytes(id), granules.len() as u64 * GRANULE);
            // A wide chunk stays whole where a live block lies in it.
            let config = self.world.alloc.config();
            let wide = config.sets_chunk_size().then_some(config.large_segment_size / GRANULE);
            let most = least * wide.unwrap_or(1);
            assert!((least..=most).contains(&held), "emptied: {held} bytes are held, {least} used");
        }
    }

    fn pass_time(&mut self) {
        match self.rng.u8(..4) {
            0 => {
                self.world.sim.advance(self.rng.u64(..100) * 1_000_000);
                self.world.sim.tick(self.rng.u64(1..6));
            }
            1 => _ = self.world.sim.executor().run_some(self.rng.u64(1..8)),
            2 => {
                let lane = self.lane();
                self.world.sim.executor().run_stream(lane.device, lane.stream.0).expect("a stream");
            }
            _ => self.world.sim.tick(1),
        }
    }

    /// A stream comes or goes.
    fn lane_changes(&mut self) {
        let lane = self.lane();
        if self.rng.bool() || lane.stream == Stream(0) || !self.flavor.mortal {
            if self.lanes.len() < 12 {
                let stream = self.world.stream_on(lane.device);
                if self.dead.contains(&(lane.device, stream)) {
                    // The handle came back while blocks of the old stream live: this program keeps out of
                    // that, because its shadow names streams by their handles.
                    return;
                }
                self.log.push(format!("new stream {stream:x?} on {}", lane.device));
                self.lanes.push(Lane { device: lane.device, stream });
            }
            return;
        }
        self.log.push(format!("destroy {lane:x?}"));
        self.lanes.retain(|other| (other.device, other.stream) != (lane.device, lane.stream));
        let stream = lane.stream.0;
        let sim = &self.world.sim;
        sim.on_device(lane.device, || sim.destroy_stream(stream)).unwrap().expect("destroyed");
        self.world.alloc.stream_destroyed(lane.device, lane.stream).expect("told");
        let block_of = |block: &&Live| block.device == lane.device && block.stream == lane.stream;
        let recorded = |block: &&Live| block.device == lane.device && block.recorded.contains(&lane.stream);
        let mut blocks = self.world.live.values();
        if blocks.any(|block| block_of(&block) || recorded(&block)) {
            self.dead.insert((lane.device, lane.stream));
        }
    }
}
