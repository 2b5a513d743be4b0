//! Random programs that are short of memory: whatever is refused must be refused again after the cache was emptied.

mod common;

use std::sync::Arc;

use ascend_alloc::driver::{PageKind, Stream};
use ascend_alloc::{DevicePtr, Error, PoolId, PoolOptions, RouteFilter, SleepMode};
use ascend_alloc::{GrowableBuffer, GrowableOptions};
use ascend_sim::{LAG_NEVER, Task};
use common::program::Log;
use common::{G, K, M, Setup, World};

/// A live block of the program.
struct Held {
    ptr: DevicePtr,
    home: Stream,
    users: Vec<Stream>,
}

/// A program that empties the cache whenever it is refused something, and asks again.
struct Asker {
    world: World,
    rng: fastrand::Rng,
    streams: Vec<Stream>,
    pools: Vec<PoolId>,
    graphs: Vec<PoolId>,
    capturing: Option<PoolId>,
    asleep: bool,
    blocks: Vec<Held>,
    buffers: Vec<GrowableBuffer>,
    refused: u32,
    log: Log,
}

/// A device, settings and limits of all kinds.
fn setup(rng: &mut fastrand::Rng) -> Setup {
    let mut setup = Setup { scripted: false, ..Setup::default() };
    let pages = rng.u8(..8) == 0;
    setup.sim.capacity = if pages { rng.u64(2..6) * G } else { [16, 32, 64, 100, 256][rng.usize(..5)] * M };
    setup.sim.lag = [0, 3, 20, 200, LAG_NEVER][rng.usize(..5)];
    if rng.bool() {
        setup = setup.padded();
    }
    if rng.u8(..6) == 0 {
        setup.sim.max_events = rng.u32(1..4);
    }
    let (conf, mib) = (&mut setup.conf, setup.sim.capacity / M);
    if pages {
        conf.page_size = PageKind::Huge1G;
    } else if rng.u8(..3) > 0 {
        conf.large_segment_size = rng.u64(11..41) * M;
    }
    conf.expandable_segments = rng.u8(..5) > 0;
    conf.headroom = [0.0, 0.02, 0.02, 1.0][rng.usize(..4)];
    conf.front_cache = rng.u8(..4) > 0;
    conf.device_waits = rng.u8(..3) > 0;
    conf.memory_limit = (rng.u8(..3) == 0).then(|| mib * rng.u64(30..101) / 100 * M);
    conf.soft_limit = (rng.u8(..4) == 0).then(|| (mib * rng.u64(10..101) / 100).max(1) * M);
    conf.garbage_collection_threshold = (rng.u8(..4) == 0).then(|| rng.u32(2..10) as f64 / 10.0);
    if !conf.expandable_segments && rng.u8(..3) == 0 {
        conf.max_split_size = Some(rng.u64(41..80) * M);
    }
    setup
}

impl Asker {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let setup = setup(&mut rng);
        let mut log = Log::default();
        log.push(format!("seed {seed} {:?} {}", setup.sim, setup.conf));
        let mut world = setup.build();
        world.contents = false;
        let mut streams: Vec<Stream> = (0..rng.usize(..4)).map(|_| world.stream()).collect();
        streams.push(Stream(0));
        let mut pools = Vec::new();
        for _ in 0..[0, 0, 1, 2][rng.usize(..4)] {
            let mut options = PoolOptions::tagged("tag");
            options.no_split = rng.u8(..6) == 0;
            options.use_on_oom = rng.u8(..3) == 0;
            options.soft_limit = (rng.u8(..4) == 0).then_some(8 * M);
            log.push(format!("pool {options:?}"));
            pools.push(world.alloc.create_pool(0, options).expect("a pool"));
        }
        Self {
            world,
            rng,
            streams,
            pools,
            graphs: Vec::new(),
            capturing: None,
            asleep: false,
            blocks: Vec::new(),
            buffers: Vec::new(),
            refused: 0,
            log,
        }
    }

    fn stream(&mut self) -> Stream {
        self.streams[self.rng.usize(..self.streams.len())]
    }

    fn size(&mut self) -> u64 {
        let rng = &mut self.rng;
        match rng.u8(..20) {
            0..3 => rng.u64(1..4 * K),
            3..6 => rng.u64(4 * K..=M),
            6..9 => rng.u64(M + 1..4 * M),
            9..12 => rng.u64(1..8) * 2 * M,
            12..16 => rng.u64(4 * M..24 * M),
            16..18 => rng.u64(10 * M..80 * M),
            _ => self.world.capacity / rng.u64(1..9),
        }
    }

    /// Asks; where that is refused for lack of memory, empties the cache and asks again.
    #[track_caller]
    fn ask<T>(&mut self, what: impl Fn(&mut Self) -> Result<T, Error>) -> Option<T> {
        match what(self) {
            Ok(answer) => return Some(answer),
            Err(Error::OutOfMemory(error)) => self.log.push(format!("  refused {error:?}")),
            // A pool that sleeps.
            Err(Error::State { .. }) if self.asleep || self.capturing.is_some() => return None,
            Err(error) => panic!("{error}"),
        }
        self.refused += 1;
        if self.capturing.is_none() {
            self.world.alloc.empty_cache(None).expect("emptied");
            assert!(what(self).is_err(), "emptying helps");
        }
        None
    }

    fn allocate(&mut self) {
        let (home, bytes) = (self.stream(), self.size());
        let align = if self.rng.u8(..12) == 0 { 1 << self.rng.u32(9..24) } else { 0 };
        let pool = (self.rng.u8(..3) == 0 && !self.pools.is_empty())
            .then(|| self.pools[self.rng.usize(..self.pools.len())]);
        self.log.push(format!("allocate {bytes} align {align} on {home:?} in {pool:?}"));
        let alloc = self.world.alloc.clone();
        let ptr = self.ask(|_| match pool {
            Some(pool) => alloc.allocate_in(pool, bytes, align, home),
            None => alloc.allocate(0, bytes, align, home),
        });
        if let Some(ptr) = ptr {
            self.log.push(format!("  {ptr:x?}"));
            self.blocks.push(Held { ptr, home, users: Vec::new() });
        }
    }

    fn work(&self, stream: Stream) {
        let sim = &self.world.sim;
        sim.on_device(0, || sim.submit(stream.0, Task::new("work"))).unwrap().expect("queued");
    }

    fn free(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        let at = self.rng.usize(..self.blocks.len());
        let block = self.blocks.swap_remove(at);
        self.log.push(format!("free {:x?}", block.ptr));
        if self.rng.bool() && self.capturing.is_none() {
            self.work(block.home);
            block.users.iter().for_each(|&user| self.work(user));
        }
        self.world.alloc.deallocate(block.ptr).expect("freed");
        self.follow_sleep();
    }

    fn record(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        let (user, at) = (self.stream(), self.rng.usize(..self.blocks.len()));
        let block = &mut self.blocks[at];
        self.log.push(format!("record {:x?} on {user:?}", block.ptr));
        self.world.alloc.record_stream(block.ptr, user).expect("recorded");
        block.users.push(user);
    }

    fn resize(&mut self) {
        let bytes = self.size().min(self.world.capacity);
        if self.buffers.len() < 2 || self.rng.u8(..4) == 0 {
            let options = GrowableOptions::up_to(self.world.capacity).beginning_with(bytes);
            let (home, alloc) = (self.stream(), self.world.alloc.clone());
            self.log.push(format!("buffer {bytes} on {home:?}"));
            let made = self.ask(|_| GrowableBuffer::new(Arc::clone(&alloc), 0, home, options.clone()));
            return self.buffers.extend(made);
        }
        let at = self.rng.usize(..self.buffers.len());
        if self.rng.u8(..4) == 0 {
            self.log.push(format!("drop buffer {at}"));
            self.buffers.swap_remove(at);
            return;
        }
        self.log.push(format!("resize buffer {at} to {bytes}"));
        self.ask(|asker| asker.buffers[at].resize(bytes));
    }

    fn capture(&mut self) {
        if let Some(pool) = self.capturing.take() {
            self.log.push("end of capture".to_owned());
            return self.world.alloc.end_route(pool).expect("ended");
        }
        if self.rng.bool() {
            if let Some(pool) = self.graphs.pop() {
                self.log.push(format!("release a graph of {pool:?}"));
                self.world.alloc.release_graph(pool).expect("released");
            }
        } else if !self.pools.is_empty() && !self.asleep {
            let pool = self.pools[self.rng.usize(..self.pools.len())];
            self.log.push(format!("capture {pool:?}"));
            self.world.alloc.begin_capture(pool, RouteFilter::ThisThread).expect("begun");
            self.capturing = Some(pool);
            self.graphs.push(pool);
        }
    }

    fn sleep_or_wake(&mut self) {
        if self.pools.is_empty() || self.capturing.is_some() {
            return;
        }
        let alloc = self.world.alloc.clone();
        self.log.push(format!("sleeps: {}, change that", self.asleep));
        if self.asleep {
            self.ask(|_| alloc.wake(Some(0), &["tag"]));
        } else if self.graphs.is_empty() {
            // Fixed blocks and streams in use keep a pool awake.
            let answer = alloc.sleep(Some(0), &["tag"], SleepMode::Discard);
            assert!(matches!(answer, Ok(_) | Err(Error::State { .. })), "{answer:?}");
        }
        self.follow_sleep();
    }

    fn follow_sleep(&mut self) {
        self.asleep = self.pools.iter().any(|&pool| self.world.alloc.is_asleep(pool).expect("a pool"));
    }

    fn surroundings(&mut self) {
        let percent = self.rng.u64(..101);
        let (capacity, held) = (self.world.capacity, self.world.sim.physical_bytes(0));
        self.log.push(format!("{percent} percent"));
        match self.rng.u8(..4) {
            0 => self.world.sim.set_foreign_bytes(0, (capacity * percent / 300).min(capacity - held)),
            1 => {
                self.world.alloc.set_memory_limit(0, Some(capacity * percent.max(30) / 100)).expect("a limit")
            }
            2 => drop(self.world.alloc.trim(0, capacity * percent / 100).expect("trimmed")),
            _ => self.world.sim.tick(percent / 10),
        }
    }

    fn step(&mut self) {
        match self.rng.u8(..100) {
            0..48 => self.allocate(),
            48..80 => self.free(),
            80..85 => self.record(),
            85..89 => self.resize(),
            89..92 => self.capture(),
            92..95 => self.sleep_or_wake(),
            _ => self.surroundings(),
        }
    }

    fn close(mut self) {
        if let Some(pool) = self.capturing.take() {
            self.world.alloc.end_route(pool).expect("ended");
        }
        self.buffers.clear();
        for block in &self.blocks {
            self.world.alloc.deallocate(block.ptr).expect("freed");
        }
        for &pool in &self.graphs {
            self.world.alloc.release_graph(pool).expect("released");
        }
        for &pool in &self.pools {
            self.world.alloc.release_pool(pool).expect("released");
        }
        self.world.close();
    }
}

#[test]
fn emptying_the_cache_helps_nobody_who_was_refused() {
    let mut refused = 0;
    for seed in 0..60 {
        let mut asker = Asker::new(seed);
        for _ in 0..150 {
            asker.step();
        }
        refused += asker.refused;
        asker.close();
    }
    assert!(refused > 500, "{refused} requests were refused");
}
