//! bug-scenarios.md B49: growable segments are switched off and on while blocks live, and pools over functions of the
//! program's own are entered and left in every way meanwhile: memory comes from where its scope says, and no scope
//! outlives its end, whether that is its last line, an early return or a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ascend_alloc::driver::{DeviceId, Driver, PageKind, SimDriver, Stream};
use ascend_alloc::{
    Config, DeviceAllocator, DevicePtr, Error, ExportOptions, GrowableBuffer, GrowableOptions, PoolId,
    PoolOptions, PoolSource, RouteFilter, SleepMode,
};
use ascend_sim::{BackingMode, Sim, SimConfig};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const STREAM: Stream = Stream(0);

/// Memory from the driver itself, counted.
struct Own {
    driver: Arc<SimDriver>,
    given: AtomicU64,
    taken: AtomicU64,
}

impl PoolSource for Own {
    fn allocate(&self, device: DeviceId, bytes: u64, _stream: Stream) -> Option<u64> {
        self.given.fetch_add(1, Relaxed);
        self.driver.malloc(device, bytes, PageKind::Huge).ok()
    }

    fn free(&self, device: DeviceId, address: u64, _bytes: u64) {
        self.taken.fetch_add(1, Relaxed);
        self.driver.free(device, address).expect("it was given");
    }
}

/// Programs switch growable segments off, for all or for a while, for the sake of sleep, which elsewhere does not work with
/// them: https://github.com/modelscope/ms-swift/issues/6636, https://github.com/vllm-project/vllm/pull/40812.
#[test]
fn a_pool_keeps_a_kind_of_its_own() {
    for from_the_start in [true, false] {
        let sim = Sim::new(SimConfig { capacity: 256 * MIB, ..SimConfig::default() });
        sim.set_device(0).unwrap();
        let conf = if from_the_start { "expandable_segments:False,check_level:3" } else { "check_level:3" };
        let driver = Arc::new(SimDriver::new(sim.clone()));
        let alloc = Arc::new(DeviceAllocator::new(Config::parse(conf).unwrap(), driver).unwrap());
        let pool = |tag, kind| {
            let mut options = PoolOptions::tagged(tag);
            options.expandable = kind;
            alloc.create_pool(0, options).unwrap()
        };
        let [grows, fixed, like_all] =
            [pool("grows", Some(true)), pool("fixed", Some(false)), pool("all", None)];
        let made = || (sim.count("aclrtMallocPhysical"), sim.count("aclrtMallocAlign32"));
        let mut blocks = vec![alloc.allocate_in(fixed, 4 * MIB, 0, STREAM).unwrap()];
        assert_eq!(made(), (0, 1), "a fixed block");
        alloc.set_expandable_segments(false);
        blocks.push(alloc.allocate_in(like_all, 4 * MIB, 0, STREAM).unwrap());
        assert_eq!(made(), (0, 2), "as the setting says");
        let weights = alloc.allocate_in(grows, 20 * MIB - 32, 0, STREAM).unwrap();
        assert_eq!(made(), (10, 2), "ten chunks");
        let small = alloc.allocate_in(grows, 700, 0, STREAM).unwrap();
        assert_eq!(made(), (11, 2));
        sim.fill_bytes(weights.0, 20 * MIB - 32, 7).unwrap();
        let slept = alloc.sleep(None, &["grows"], SleepMode::Offload).unwrap();
        assert_eq!((slept.device_bytes, slept.pools), (22 * MIB, 1));
        for tag in ["fixed", "all"] {
            assert!(matches!(alloc.sleep(None, &[tag], SleepMode::Discard), Err(Error::State { .. })));
        }
        alloc.wake(None, &["grows"]).unwrap();
        let mut last = [0];
        sim.read_bytes(weights.0 + 20 * MIB - 33, &mut last).unwrap();
        assert_eq!(last, [7]);
        drop(alloc.export(weights, &ExportOptions::default()).unwrap());
        blocks.extend([weights, small]);
        blocks.into_iter().for_each(|block| alloc.deallocate(block).unwrap());
        for pool in [grows, fixed, like_all] {
            alloc.release_pool(pool).unwrap();
        }
        alloc.empty_cache(None).unwrap();
        assert_eq!((sim.physical_bytes(0), sim.reserved_bytes()), (0, 0));
    }
}

/// How a scope ends.
#[derive(Clone, Copy, Debug)]
enum End {
    LastLine,
    EarlyReturn,
    Panic,
}

#[derive(Clone, Debug)]
enum Step {
    /// A block from wherever this thread's scopes say.
    Allocate(u64),
    Free(usize),
    Empty,
    /// Memory taken from now on comes in segments that grow, or in fixed blocks.
    Switch(bool),
    /// The program's own functions serve what is allocated inside.
    Scope(Vec<Step>, End),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let plain = prop_oneof![
        5 => (1..24u64).prop_map(|mib| Step::Allocate(mib * MIB / 2)),
        4 => any::<usize>().prop_map(Step::Free),
        1 => Just(Step::Empty),
        2 => any::<bool>().prop_map(Step::Switch),
    ];
    let step = plain.prop_recursive(3, 40, 8, |inner| {
        let end = prop_oneof![Just(End::LastLine), Just(End::EarlyReturn), Just(End::Panic)];
        (prop::collection::vec(inner, 0..8), end).prop_map(|(steps, end)| Step::Scope(steps, end))
    });
    prop::collection::vec(step, 0..12)
}

struct Program {
    sim: Sim,
    alloc: DeviceAllocator,
    pool: PoolId,
    own: Arc<Own>,
    /// Live blocks, and whether they were allocated inside a scope.
    live: Vec<(DevicePtr, bool)>,
}

impl Program {
    fn new(growable: bool) -> Self {
        let capacity = 512 * MIB;
        let sim =
            Sim::new(SimConfig { capacity, backing: BackingMode::MetadataOnly, ..SimConfig::default() });
        sim.set_device(0).unwrap();
        let driver = Arc::new(SimDriver::new(sim.clone()));
        let config = Config { expandable_segments: growable, check_level: 3, ..Config::default() };
        let alloc = DeviceAllocator::new(config, driver.clone()).unwrap();
        let own = Arc::new(Own { driver, given: AtomicU64::new(0), taken: AtomicU64::new(0) });
        let mut options = PoolOptions::tagged("own");
        options.source = Some(own.clone());
        let pool = alloc.create_pool(0, options).unwrap();
        Self { sim, alloc, pool, own, live: Vec::new() }
    }

    /// Does the steps; `depth` is how many scopes are open.
    fn run(&mut self, steps: &[Step], depth: usize) {
        for step in steps {
            match step {
                Step::Allocate(bytes) => self.allocate(*bytes, depth > 0),
                Step::Free(which) if !self.live.is_empty() => {
                    let (ptr, _) = self.live.swap_remove(which % self.live.len());
                    self.alloc.deallocate(ptr).unwrap();
                }
                Step::Free(_) => {}
                Step::Empty => self.alloc.empty_cache(None).unwrap(),
                Step::Switch(on) => {
                    self.alloc.set_expandable_segments(*on);
                }
                Step::Scope(inner, end) => self.scope(inner, *end, depth),
            }
            self.look();
        }
    }

    fn allocate(&mut self, bytes: u64, inside: bool) {
        let (given, mapped) = (self.own.given.load(Relaxed), self.sim.count("aclrtMapMem"));
        let created = self.sim.count("aclrtMallocPhysical");
        let Ok(ptr) = self.alloc.allocate(0, bytes, 0, STREAM) else { return };
        if inside {
            assert_eq!(self.sim.count("aclrtMapMem"), mapped, "the driver served a scope");
        } else {
            assert_eq!(self.own.given.load(Relaxed), given, "a scope that has ended serves on");
        }
        if !self.alloc.expandable_segments() {
            assert_eq!(self.sim.count("aclrtMallocPhysical"), created, "what grows was switched off");
        }
        assert_eq!(self.alloc.block_info(ptr).unwrap().pool == self.pool, inside, "{ptr:?}");
        self.live.push((ptr, inside));
    }

    fn scope(&mut self, steps: &[Step], end: End, depth: usize) {
        match end {
            End::LastLine => self.begin(|program| program.run(steps, depth + 1)),
            End::EarlyReturn => self.begin(|program| {
                program.run(steps, depth + 1);
                if !program.live.is_empty() {
                    return;
                }
                program.look();
            }),
            End::Panic => {
                let quiet = AssertUnwindSafe(|| {
                    self.begin(|program| {
                        program.run(steps, depth + 1);
                        // Without the hook that would print it.
                        std::panic::resume_unwind(Box::new("left"));
                    });
                });
                let thrown = catch_unwind(quiet).expect_err("it panics");
                if thrown.downcast_ref::<&str>() != Some(&"left") {
                    std::panic::resume_unwind(thrown);
                }
            }
        }
    }

    /// Runs something while this thread's requests go to the pool.
    fn begin(&mut self, run: impl FnOnce(&mut Self)) {
        // `route` borrows the allocator, and the program changes beside it: `Open` ends it as its guard would.
        self.alloc.begin_route(self.pool, RouteFilter::ThisThread).unwrap();
        let open = Open(self);
        run(open.0);
    }

    fn look(&self) {
        self.look_at(self.live.len());
    }

    /// The books of allocator and machine agree, with so many live blocks: I3 and I5.
    fn look_at(&self, live: usize) {
        self.alloc.check().unwrap();
        let snapshot = self.alloc.snapshot(0).unwrap();
        let chunks: u64 = snapshot.segments.iter().map(|segment| segment.chunks).sum();
        assert_eq!(chunks, self.sim.mapping_count() as u64, "I3");
        let stats = self.alloc.stats(0).unwrap();
        let held = stats.reserved_bytes.all.current as u64 + stats.cached_handles;
        assert_eq!(held, self.sim.physical_bytes(0), "I5");
        assert_eq!(stats.allocation.all.current as usize, live);
    }
}

/// How many mappings, unmappings, fixed blocks taken and given back there were so far.
fn calls(sim: &Sim) -> [u64; 4] {
    ["aclrtMapMem", "aclrtUnmapMem", "aclrtMallocAlign32", "aclrtFree"].map(|call| sim.count(call))
}

#[test]
fn b49_growable_segments_are_switched_while_blocks_live() {
    let program = Program::new(true);
    let (alloc, sim) = (&program.alloc, &program.sim);
    let allocate = || alloc.allocate(0, 20 * MIB - 512, 0, STREAM).unwrap();
    let a = allocate();
    assert_eq!(calls(sim), [10, 0, 0, 0]);
    assert!(alloc.set_expandable_segments(false) && !alloc.expandable_segments());
    let b = allocate();
    assert_eq!(calls(sim), [10, 0, 1, 0]);
    assert!(!alloc.set_expandable_segments(true));
    let c = allocate();
    assert_eq!(calls(sim), [20, 0, 1, 0]);
    program.look_at(3);
    // Idle memory of one kind serves before memory of the other is taken.
    alloc.deallocate(a).unwrap();
    alloc.set_expandable_segments(false);
    assert_eq!(allocate(), a);
    alloc.deallocate(b).unwrap();
    alloc.set_expandable_segments(true);
    assert_eq!((allocate(), calls(sim)), (b, [20, 0, 1, 0]));
    for block in [a, b, c] {
        alloc.deallocate(block).unwrap();
    }
    alloc.empty_cache(None).unwrap();
    assert_eq!(calls(sim), [20, 20, 1, 1]);
    assert_eq!(alloc.stats(0).unwrap().reserved_bytes.all.current, 0);
    program.look_at(0);
}

/// A device that is first used after the switch, and settings that only one kind of segments heeds.
#[test]
fn what_is_switched_counts_for_every_device() {
    let sim = Sim::new(SimConfig { devices: 3, backing: BackingMode::MetadataOnly, ..SimConfig::default() });
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let config = Config::parse("expandable_segments:False,base_addr_aligned_kb:16").unwrap();
    let alloc = DeviceAllocator::new(config, driver).unwrap();
    alloc.allocate(0, MIB, 0, STREAM).unwrap();
    assert_eq!(calls(&sim), [0, 0, 1, 0]);
    assert!(!alloc.set_expandable_segments(true));
    for device in 0..3 {
        alloc.allocate(device, 3 * MIB + 512, 0, STREAM).unwrap();
        let second = alloc.allocate(device, 3 * MIB + 512, 0, STREAM).unwrap();
        assert!(second.address().is_multiple_of(16 << 10), "{second:?}");
    }
    let made = calls(&sim);
    assert_eq!((made[0] > 0, made[2]), (true, 1));
    assert!(alloc.set_expandable_segments(false));
    for device in 0..3 {
        alloc.allocate(device, 50 * MIB, 0, STREAM).unwrap();
    }
    assert_eq!(calls(&sim), [made[0], 0, 4, 0]);
    alloc.check().unwrap();
}

/// Threads allocate and free while another one switches, on a device that is too small for both kinds at once.
#[test]
fn switching_while_others_allocate() {
    let program = Program::new(true);
    let (alloc, sim) = (&program.alloc, &program.sim);
    let left = AtomicU64::new(2);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let left = &left;
            scope.spawn(move || {
                sim.set_device(0).unwrap();
                let stream = Stream(sim.create_stream().unwrap());
                let mut random = fastrand::Rng::with_seed(thread);
                let mut live = Vec::new();
                for _ in 0..400 {
                    match alloc.allocate(0, random.u64(1..40 * MIB), 0, stream) {
                        Ok(ptr) if live.len() < 6 => live.push(ptr),
                        Ok(ptr) => alloc.deallocate(ptr).unwrap(),
                        Err(error) => panic!("{error}"),
                    }
                    if random.bool() && !live.is_empty() {
                        alloc.deallocate(live.swap_remove(random.usize(..live.len()))).unwrap();
                    }
                }
                live.into_iter().for_each(|ptr| alloc.deallocate(ptr).unwrap());
                left.fetch_sub(1, Relaxed);
            });
        }
        let mut on = false;
        while left.load(Relaxed) > 0 {
            alloc.set_expandable_segments(on);
            on = !on;
            std::thread::yield_now();
        }
    });
    alloc.empty_cache(None).unwrap();
    program.look_at(0);
    assert_eq!(sim.physical_bytes(0), 0);
}

/// An open scope; it ends however it is left.
struct Open<'a>(&'a mut Program);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let ended = self.0.alloc.end_route(self.0.pool);
        assert!(ended.is_ok() || std::thread::panicking(), "{ended:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn scopes_end_however_they_are_left(steps in steps(), growable in any::<bool>()) {
        let mut program = Program::new(growable);
        program.run(&steps, 0);
        for (ptr, _) in std::mem::take(&mut program.live) {
            program.alloc.deallocate(ptr).unwrap();
        }
        program.alloc.empty_cache(None).unwrap();
        program.look();
        prop_assert_eq!(program.own.given.load(Relaxed), program.own.taken.load(Relaxed));
        prop_assert_eq!(program.sim.physical_bytes(0), 0);
        prop_assert_eq!(program.sim.count("aclrtMapMem"), program.sim.count("aclrtUnmapMem"));
    }
}

/// What happens around blocks that are not cached: uses on other streams, limits, captures, routes, what a driver refuses.
#[test]
fn while_caching_is_off_nothing_is_kept() {
    nothing_is_kept("check_level:3,expandable_segments:True");
    nothing_is_kept("check_level:3,expandable_segments:True,caching:False");
}

fn nothing_is_kept(conf: &str) {
    let sim = Sim::new(SimConfig { capacity: 64 * MIB, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    let conf = Config::parse(conf).unwrap();
    let cached = conf.caching;
    let alloc = DeviceAllocator::new(conf, Arc::new(SimDriver::new(sim.clone()))).unwrap();
    let other = Stream(sim.create_stream().unwrap());
    let reserved = || alloc.stats(0).unwrap().reserved_bytes.all.current as u64;
    assert_eq!(alloc.set_caching(0, false).unwrap(), cached);
    assert!(!alloc.set_caching(0, false).unwrap());
    for bytes in [512, 3 * MIB, 11 * MIB, 39 * MIB] {
        let ptr = alloc.allocate(0, bytes, 0, STREAM).unwrap();
        assert_eq!(reserved(), bytes.next_multiple_of(2 * MIB), "no longer than its block");
        alloc.record_stream(ptr, other).unwrap();
        alloc.deallocate(ptr).unwrap();
        assert_eq!((reserved(), sim.physical_bytes(0)), (0, 0), "{bytes}");
    }
    // A pool that was asked for by name, or by a route begun later, caches as ever.
    let pool = alloc.create_pool(0, PoolOptions::tagged("named")).unwrap();
    let named = alloc.allocate_in(pool, 3 * MIB, 0, STREAM).unwrap();
    alloc.deallocate(named).unwrap();
    let route = alloc.route(pool, RouteFilter::ThisThread).unwrap();
    assert_eq!(alloc.allocate(0, 3 * MIB, 0, STREAM).unwrap(), named);
    alloc.deallocate(named).unwrap();
    drop(route);
    assert_eq!(reserved(), 4 * MIB);
    // What the cache holds does not stand in the way.
    let all = alloc.allocate(0, 61 * MIB, 0, STREAM).unwrap();
    assert!(matches!(alloc.allocate(0, 3 * MIB, 0, STREAM), Err(Error::OutOfMemory(_))));
    // A refused free keeps the block with its pool; the next one takes it along.
    sim.fail("aclrtFree", 1, 507_899, false).unwrap();
    alloc.deallocate(all).unwrap();
    assert_eq!(reserved(), 62 * MIB);
    let next = alloc.allocate(0, 61 * MIB, 0, STREAM).unwrap();
    assert_eq!(next, all);
    alloc.deallocate(next).unwrap();
    assert_eq!(reserved(), 0);
    // A graph needs its addresses: no switch under it, and what is freed meanwhile goes back later.
    let kept = alloc.allocate(0, 3 * MIB, 0, STREAM).unwrap();
    let graph = alloc.create_pool(0, PoolOptions::tagged("graph")).unwrap();
    let capture = alloc.capture(graph, RouteFilter::Stream(other)).unwrap();
    assert!(matches!(alloc.set_caching(0, true), Err(Error::State { .. })));
    let inside = alloc.allocate(0, 3 * MIB, 0, other).unwrap();
    alloc.deallocate(kept).unwrap();
    alloc.deallocate(inside).unwrap();
    assert_eq!(reserved(), 8 * MIB);
    drop(capture);
    assert!(!alloc.set_caching(0, true).unwrap() && alloc.set_caching(0, true).unwrap());
    alloc.check().unwrap();
    drop(alloc);
    assert_eq!(sim.physical_bytes(0), 0);
}

/// Buffers that name no pool are among what is not cached, and no less so because they are not fixed.
#[test]
fn buffers_keep_nothing_while_caching_is_off() {
    let sim = Sim::new(SimConfig { capacity: 64 * MIB, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    let conf = Config::parse("check_level:3").unwrap();
    let alloc = Arc::new(DeviceAllocator::new(conf, Arc::new(SimDriver::new(sim.clone()))).unwrap());
    let other = Stream(sim.create_stream().unwrap());
    alloc.set_caching(0, false).unwrap();
    for last in [7 * MIB, 0] {
        let options = GrowableOptions::up_to(40 * MIB).beginning_with(19 * MIB);
        let mut buffer = GrowableBuffer::new(alloc.clone(), 0, STREAM, options).unwrap();
        assert_eq!(sim.physical_bytes(0), 20 * MIB);
        buffer.record_stream(other).unwrap();
        buffer.resize(7 * MIB).unwrap();
        assert_eq!(sim.physical_bytes(0), 8 * MIB, "what was cut off went back");
        buffer.resize(last).unwrap();
        assert_eq!(sim.physical_bytes(0), last.next_multiple_of(2 * MIB));
        let answer = alloc.sleep(None, &["uncached"], SleepMode::Discard);
        assert!(matches!(answer, Err(Error::State { .. })), "{answer:?}");
        drop(buffer);
        assert_eq!((sim.physical_bytes(0), sim.reserved_bytes()), (0, 0), "after {last}");
    }
    alloc.set_caching(0, true).unwrap();
    alloc.check().unwrap();
}

#[test]
fn caching_stays_off_when_a_device_is_reset() {
    let sim = Sim::new(SimConfig { capacity: 64 * MIB, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    let conf = Config::parse("check_level:3,caching:False").unwrap();
    let alloc = DeviceAllocator::new(conf, Arc::new(SimDriver::new(sim.clone()))).unwrap();
    let lost = alloc.allocate(0, 3 * MIB, 0, STREAM).unwrap();
    sim.reset_device_force(0).unwrap();
    alloc.device_was_reset(0).unwrap();
    sim.set_device(0).unwrap();
    alloc.deallocate(lost).unwrap();
    let ptr = alloc.allocate(0, 3 * MIB, 0, STREAM).unwrap();
    alloc.deallocate(ptr).unwrap();
    assert_eq!((alloc.stats(0).unwrap().reserved_bytes.all.current, sim.physical_bytes(0)), (0, 0));
    assert!(!alloc.set_caching(0, true).unwrap());
    let ptr = alloc.allocate(0, 3 * MIB, 0, STREAM).unwrap();
    alloc.deallocate(ptr).unwrap();
    assert_eq!(sim.physical_bytes(0), 4 * MIB);
    alloc.check().unwrap();
}

/// Blocks of a time without caching are nobody's pool: they are not meant where all pools are put to sleep.
#[test]
fn all_pools_sleep_while_caching_is_off() {
    let sim = Sim::new(SimConfig { capacity: 64 * MIB, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    let alloc = DeviceAllocator::new(Config::default(), Arc::new(SimDriver::new(sim.clone()))).unwrap();
    let pool = alloc.create_pool(0, PoolOptions::tagged("weights")).unwrap();
    let kept = alloc.allocate_in(pool, 10 * MIB - 64, 0, STREAM).unwrap();
    alloc.set_caching(0, false).unwrap();
    let apart = alloc.allocate(0, 6 * MIB - 64, 0, STREAM).unwrap();
    for caching in [false, true] {
        alloc.set_caching(0, caching).unwrap();
        let slept = alloc.sleep(None, &[], SleepMode::Discard).unwrap();
        assert_eq!((slept.pools, slept.returned_bytes, sim.physical_bytes(0)), (1, 10 * MIB, 6 * MIB));
        assert_eq!(alloc.wake(None, &[]).unwrap().pools, 1);
        // By its name it is refused for what it is.
        let answer = alloc.sleep(None, &["uncached"], SleepMode::Discard);
        assert!(matches!(answer, Err(Error::State { .. })), "{answer:?}");
    }
    [kept, apart].into_iter().for_each(|ptr| alloc.deallocate(ptr).unwrap());
    alloc.check().unwrap();
}

/// The pool and the route that serve requests while caching is off are the switch's, whoever knows the pool's name.
#[test]
fn nobody_else_gives_up_what_serves_while_caching_is_off() {
    let sim = Sim::new(SimConfig { capacity: 64 * MIB, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    let alloc = DeviceAllocator::new(Config::default(), Arc::new(SimDriver::new(sim.clone()))).unwrap();
    alloc.set_caching(0, false).unwrap();
    let first = alloc.allocate(0, 3 * MIB, 0, STREAM).unwrap();
    let pool = alloc.block_info(first).unwrap().pool;
    for answer in [alloc.release_pool(pool), alloc.end_route(pool)] {
        assert!(matches!(answer, Err(Error::State { .. })), "{answer:?}");
    }
    // A route of the program's own there is the program's to end.
    alloc.begin_route(pool, RouteFilter::Stream(STREAM)).unwrap();
    alloc.end_route(pool).unwrap();
    let second = alloc.allocate(0, 3 * MIB, 0, STREAM).unwrap();
    assert_eq!(alloc.block_info(second).unwrap().pool, pool, "caching is off still");
    [first, second].into_iter().for_each(|ptr| alloc.deallocate(ptr).unwrap());
    assert_eq!(sim.physical_bytes(0), 0);
    assert!(!alloc.set_caching(0, true).unwrap());
    assert!(matches!(alloc.release_pool(pool), Err(Error::Argument { .. })), "it is gone");
    alloc.check().unwrap();
}

/// What was shrunk goes back whole, and so does what lay before an aligned block: nothing is left in pieces, nor handed out.
#[test]
fn blocks_in_pieces_go_back_while_caching_is_off() {
    let sim = Sim::new(SimConfig { capacity: 256 * MIB, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    let alloc = DeviceAllocator::new(Config::default(), Arc::new(SimDriver::new(sim.clone()))).unwrap();
    let [first, second] = [(); 2].map(|()| Stream(sim.create_stream().unwrap()));
    alloc.set_caching(0, false).unwrap();
    for bytes in [MIB, 20 * MIB] {
        for shrunk in [512, bytes / 3, bytes - 512] {
            let ptr = alloc.allocate(0, bytes, 0, first).unwrap();
            alloc.record_stream(ptr, second).unwrap();
            alloc.shrink_in_place(ptr, shrunk).unwrap();
            let other = alloc.allocate(0, bytes - shrunk, 0, second).unwrap();
            let segments = [ptr, other].map(|ptr| alloc.block_info(ptr).unwrap().segment);
            assert_ne!(segments[0], segments[1], "{bytes} {shrunk}");
            assert!(alloc.grow_in_place(ptr, bytes).unwrap(), "the block is as long as before");
            alloc.shrink_in_place(ptr, shrunk).unwrap();
            [ptr, other].into_iter().for_each(|ptr| alloc.deallocate(ptr).unwrap());
            assert_eq!(sim.physical_bytes(0), 0, "{bytes} {shrunk}");
        }
        for align in [2 * MIB, 8 * MIB, 32 * MIB] {
            let blocks =
                [first, second, first].map(|stream| alloc.allocate(0, bytes, align, stream).unwrap());
            blocks.into_iter().for_each(|ptr| alloc.deallocate(ptr).unwrap());
            assert_eq!(sim.physical_bytes(0), 0, "{bytes} at {align}");
        }
    }
    alloc.set_caching(0, true).unwrap();
    alloc.check().unwrap();
}
