//! Pools over functions of the program's own, entered and left in every way while growable segments serve all else:
//! memory comes from where its scope says, and no scope outlives its end, whether that is its last line, an early
//! return or a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ascend_alloc::driver::{DeviceId, Driver, PageKind, SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, DevicePtr, PoolId, PoolOptions, PoolSource, RouteFilter};
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
    /// The program's own functions serve what is allocated inside.
    Scope(Vec<Step>, End),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let plain = prop_oneof![
        5 => (1..24u64).prop_map(|mib| Step::Allocate(mib * MIB / 2)),
        4 => any::<usize>().prop_map(Step::Free),
        1 => Just(Step::Empty),
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
                Step::Scope(inner, end) => self.scope(inner, *end, depth),
            }
            self.look();
        }
    }

    fn allocate(&mut self, bytes: u64, inside: bool) {
        let (given, mapped) = (self.own.given.load(Relaxed), self.sim.count("aclrtMapMem"));
        let Ok(ptr) = self.alloc.allocate(0, bytes, 0, STREAM) else { return };
        if inside {
            assert_eq!(self.sim.count("aclrtMapMem"), mapped, "the driver served a scope");
        } else {
            assert_eq!(self.own.given.load(Relaxed), given, "a scope that has ended serves on");
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

    /// The books of allocator and machine agree: I3 and I5.
    fn look(&self) {
        self.alloc.check().unwrap();
        let snapshot = self.alloc.snapshot(0).unwrap();
        let chunks: u64 = snapshot.segments.iter().map(|segment| segment.chunks).sum();
        assert_eq!(chunks, self.sim.mapping_count() as u64, "I3");
        let stats = self.alloc.stats(0).unwrap();
        let held = stats.reserved_bytes.all.current as u64 + stats.cached_handles;
        assert_eq!(held, self.sim.physical_bytes(0), "I5");
        assert_eq!(stats.allocation.all.current as usize, self.live.len());
    }
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
