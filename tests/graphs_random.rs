//! Random captures inside of one another and of routes, with pools that sleep between them, beside a model of what each graph
//! holds: its addresses stay mapped while it lives, serve nobody but captures into their pool, and keep their content.
//!
//! `ASCEND_ALLOC_SEED=N` runs one seed alone, `ASCEND_ALLOC_PROGRAMS=N` runs N times as many.

use std::collections::BTreeMap;
use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{
    Capture, CapturedGraph, Config, DeviceAllocator, DevicePtr, Error, PoolId, PoolOptions, PoolRoute,
    RouteFilter, SleepMode,
};
use ascend_sim::{BackingMode, Sim, SimConfig};

const MIB: u64 = 1 << 20;
const POOLS: usize = 4;
const STREAMS: usize = 2;

/// Memory that somebody holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    pool: PoolId,
    bytes: u64,
    /// What every byte of it is; nothing where others may have written since.
    value: Option<u8>,
}

/// Stretches that a graph got, by address.
type Got = BTreeMap<u64, Held>;

/// What sends requests to a pool.
enum Scope<'a> {
    Route(PoolRoute<'a>),
    Capture(Capture<'a>, Got),
}

struct Entered<'a> {
    pool: PoolId,
    /// The only stream whose requests it takes.
    only: Option<Stream>,
    scope: Scope<'a>,
}

struct Program<'a> {
    sim: Sim,
    allocator: &'a DeviceAllocator,
    random: fastrand::Rng,
    streams: [Stream; STREAMS],
    pools: [PoolId; POOLS],
    live: Got,
    entered: Vec<Entered<'a>>,
    graphs: Vec<(CapturedGraph<'a>, Got)>,
    value: u8,
}

impl<'a> Program<'a> {
    fn step(&mut self) {
        match self.random.u8(..20) {
            0..6 => self.allocate(),
            6..12 => self.free(),
            12..15 => self.enter(),
            15..18 => self.leave(),
            18 if !self.graphs.is_empty() => {
                let at = self.random.usize(..self.graphs.len());
                drop(self.graphs.swap_remove(at));
                self.allocator.empty_cache(None).expect("nothing refuses");
            }
            _ => self.sleep_and_wake(),
        }
        self.verify();
    }

    fn allocate(&mut self) {
        let stream = self.streams[self.random.usize(..STREAMS)];
        let bytes = [700, MIB - 32, 3 * MIB, self.random.u64(1..12 * MIB)][self.random.usize(..4)];
        let takes = |entered: &Entered<'_>| entered.only.is_none_or(|only| only == stream);
        let newest = self.entered.iter().rposition(takes);
        let expected = newest.map_or(PoolId::default_of(0), |at| self.entered[at].pool);
        let ptr = match self.allocator.allocate(0, bytes, 0, stream) {
            Ok(ptr) => ptr,
            Err(Error::OutOfMemory(_)) => return,
            Err(error) => panic!("{error}"),
        };
        let info = self.allocator.block_info(ptr).expect("live");
        assert_eq!(info.pool, expected);
        for (&at, held) in self.graphs.iter().flat_map(|(_, got)| got) {
            let apart = at + held.bytes <= ptr.0 || ptr.0 + info.bytes <= at;
            assert!(apart || held.pool == expected, "{info:x?} is a graph's: {held:x?} at {at:x}");
        }
        self.value = self.value.wrapping_add(1);
        self.sim.fill_bytes(ptr.0, info.bytes, self.value).expect("mapped");
        let held = Held { pool: expected, bytes: info.bytes, value: Some(self.value) };
        self.forget_content(ptr.0, info.bytes);
        self.live.insert(ptr.0, held);
        // All captures that take it, up to the newest scope, have it in their graphs.
        let inside = newest.map_or(0, |at| at + 1);
        for entered in self.entered[..inside].iter_mut().filter(|entered| takes(entered)) {
            if let Scope::Capture(_, got) = &mut entered.scope {
                got.insert(ptr.0, held);
            }
        }
    }

    /// What graphs have in a stretch may be written over now.
    fn forget_content(&mut self, address: u64, bytes: u64) {
        let begun = self.entered.iter_mut().filter_map(|entered| match &mut entered.scope {
            Scope::Capture(_, got) => Some(got),
            Scope::Route(_) => None,
        });
        for (&at, held) in self.graphs.iter_mut().map(|(_, got)| got).chain(begun).flatten() {
            if at < address + bytes && address < at + held.bytes {
                held.value = None;
            }
        }
    }

    fn free(&mut self) {
        let at = self.random.usize(..self.live.len().max(1));
        if let Some(&address) = self.live.keys().nth(at) {
            self.live.remove(&address);
            self.allocator.deallocate(DevicePtr(address)).expect("live");
        }
    }

    fn enter(&mut self) {
        if self.entered.len() == 5 {
            return;
        }
        let pool = self.pools[self.random.usize(..POOLS)];
        let only = self.random.bool().then(|| self.streams[self.random.usize(..STREAMS)]);
        let filter = only.map_or(RouteFilter::ThisThread, RouteFilter::Stream);
        let scope = match self.random.bool() {
            true => Scope::Route(self.allocator.route(pool, filter).expect("a pool")),
            false => Scope::Capture(self.allocator.capture(pool, filter).expect("awake"), Got::new()),
        };
        self.entered.push(Entered { pool, only, scope });
    }

    /// Ends one scope, not always the innermost.
    fn leave(&mut self) {
        if self.entered.is_empty() {
            return;
        }
        let at = self.random.usize(..self.entered.len());
        match self.entered.remove(at).scope {
            Scope::Route(route) => drop(route),
            Scope::Capture(capture, _) if self.random.u8(..4) == 0 => drop(capture),
            Scope::Capture(capture, got) => self.graphs.push((capture.finish(), got)),
        }
    }

    fn sleep_and_wake(&mut self) {
        let capturing = self.entered.iter().any(|entered| matches!(entered.scope, Scope::Capture(..)));
        let slept = self.allocator.sleep(None, &["graphs"], SleepMode::Offload);
        assert_eq!(matches!(slept, Err(Error::State { .. })), capturing, "{slept:?}");
        if !capturing {
            slept.expect("nothing refuses");
            for pool in self.pools {
                let held = self.allocator.pool_stats(pool).expect("a pool").reserved_bytes.all.current;
                assert_eq!(held, 0, "{pool:?} sleeps");
            }
            self.allocator.wake(None, &["graphs"]).expect("what it gave is there");
        }
    }

    fn verify(&self) {
        self.allocator.check().expect("whole");
        let begun = self.entered.iter().filter_map(|entered| match &entered.scope {
            Scope::Capture(_, got) => Some(got),
            Scope::Route(_) => None,
        });
        let graphs = self.graphs.iter().map(|(_, got)| got).chain(begun).flatten();
        // What a graph has of the default pool is not held for it.
        for (&address, held) in self.live.iter().chain(graphs.filter(|(_, held)| held.pool.serial != 0)) {
            assert!(self.sim.is_backed(address, held.bytes), "{held:x?} at {address:x} is not mapped");
            let value = held.value.unwrap_or_default();
            for at in [address, address + held.bytes - 1] {
                let mut byte = [value];
                self.sim.read_bytes(at, &mut byte).expect("mapped");
                assert!(
                    held.value.is_none_or(|value| byte == [value]),
                    "{held:x?} at {at:x} lost its content"
                );
            }
        }
        for pool in self.pools {
            let of_pool = self.live.values().filter(|held| held.pool == pool);
            let allocated: u64 = of_pool.map(|held| held.bytes).sum();
            let stats = self.allocator.pool_stats(pool).expect("a pool");
            assert_eq!(stats.allocated_bytes.all.current as u64, allocated, "{pool:?}");
        }
    }
}

fn run(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let capacity = [48, 96, 512][random.usize(..3)] * MIB;
    let sim = Sim::new(SimConfig { capacity, backing: BackingMode::MetadataOnly, ..SimConfig::default() });
    sim.set_device(0).expect("a device");
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let allocator = DeviceAllocator::new(Config::default(), driver).expect("an allocator");
    let streams = [(); STREAMS].map(|()| Stream(sim.create_stream().expect("a stream")));
    let pools =
        [(); POOLS].map(|()| allocator.create_pool(0, PoolOptions::tagged("graphs")).expect("a pool"));
    let mut program = Program {
        sim: sim.clone(),
        allocator: &allocator,
        random,
        streams,
        pools,
        live: Got::new(),
        entered: Vec::new(),
        graphs: Vec::new(),
        value: 0,
    };
    (0..100).for_each(|_| program.step());
    let Program { live, entered, graphs, .. } = program;
    drop((entered, graphs));
    live.keys().for_each(|&address| allocator.deallocate(DevicePtr(address)).expect("live"));
    pools.iter().for_each(|&pool| allocator.release_pool(pool).expect("held"));
    allocator.empty_cache(None).expect("nothing refuses");
    assert_eq!((sim.physical_bytes(0), sim.reserved_bytes()), (0, 0));
    assert!(pools.iter().all(|&pool| allocator.pool_stats(pool).is_err()), "a pool is left");
    assert_eq!(sim.count("aclrtMallocHost"), sim.count("aclrtFreeHost"));
}

#[test]
fn graphs_keep_what_they_got() {
    let number = |name| std::env::var(name).ok().map(|text: String| text.parse::<u64>().expect("a number"));
    let seeds = match number("ASCEND_ALLOC_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..60 * number("ASCEND_ALLOC_PROGRAMS").unwrap_or(1),
    };
    for seed in seeds {
        println!("ASCEND_ALLOC_SEED={seed}");
        run(seed);
    }
}
