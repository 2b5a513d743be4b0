//! bug-scenarios.md kind K6: captures and nested pools.

use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::error::OutOfMemoryCause;
use ascend_alloc::{Config, DeviceAllocator, Error, PoolId, PoolOptions, RouteFilter};
use ascend_sim::{BackingMode, CaptureMode, Sim, SimConfig, Soc};

const M: u64 = 1 << 20;

struct Rig {
    sim: Sim,
    allocator: DeviceAllocator,
    stream: Stream,
}

fn rig(conf: &str) -> Rig {
    // Without a pad, as the scripts have it.
    let (soc, backing) = (Soc::Ascend950, BackingMode::MetadataOnly);
    let sim = Sim::new(SimConfig { capacity: 1 << 30, soc, backing, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    let stream = Stream(sim.create_stream().unwrap());
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let config = Config::parse(&format!("check_level:3,{conf}")).unwrap();
    Rig { sim, allocator: DeviceAllocator::new(config, driver).unwrap(), stream }
}

impl Rig {
    fn pool(&self) -> PoolId {
        self.allocator.create_pool(0, PoolOptions::default()).unwrap()
    }

    fn reserved(&self) -> u64 {
        self.allocator.stats(0).unwrap().reserved_bytes.all.current as u64
    }

    fn of(&self, pool: PoolId) -> u64 {
        self.allocator.pool_stats(pool).unwrap().allocated_bytes.all.current as u64
    }

    /// A free on another stream than the one it was recorded on is processed as always.
    fn assert_cross_stream_frees_work(&self) {
        let other = Stream(self.sim.create_stream().unwrap());
        let block = self.allocator.allocate(0, 20 * M, 0, self.stream).unwrap();
        self.allocator.record_stream(block, other).unwrap();
        self.allocator.deallocate(block).unwrap();
        let waits = ["aclrtSynchronizeDevice", "aclrtSynchronizeStream", "aclrtSynchronizeEvent"];
        let before = waits.map(|call| self.sim.count(call));
        let again = self.allocator.allocate(0, 20 * M, 0, self.stream).unwrap();
        assert_eq!(again, block, "the other stream has passed it");
        assert_eq!(waits.map(|call| self.sim.count(call)), before);
        self.allocator.deallocate(again).unwrap();
        self.allocator.empty_cache(None).unwrap();
        assert_eq!(self.allocator.stats(0).unwrap().active_bytes.all.current, 0);
    }
}

#[test]
fn b25_an_aborted_capture_keeps_nothing() {
    for ended in [false, true] {
        let rig = rig("");
        let pool = rig.pool();
        rig.sim.capture_begin(rig.stream.0, CaptureMode::Global).unwrap();
        let capture = rig.allocator.capture(pool, RouteFilter::CapturedWith(rig.stream)).unwrap();
        let block = rig.allocator.allocate(0, 64 * M, 0, rig.stream).unwrap();
        rig.allocator.deallocate(block).unwrap();
        if ended {
            // Ending fails: the graph is never made.
            rig.sim.fail("aclmdlRICaptureEnd", 1, 507_903, false).unwrap();
            rig.sim.capture_end(rig.stream.0).unwrap_err();
        }
        drop(capture);
        let _ = rig.sim.capture_end(rig.stream.0);
        rig.allocator.release_pool(pool).unwrap();
        rig.allocator.empty_cache(None).unwrap();
        assert_eq!(rig.reserved(), 0);
        assert!(rig.allocator.pool_stats(pool).is_err(), "the pool is gone");
        rig.assert_cross_stream_frees_work();
        let next = rig.pool();
        let again = rig.allocator.capture(next, RouteFilter::Stream(rig.stream)).unwrap();
        drop(again.finish());
        rig.allocator.check().unwrap();
    }
}

#[test]
fn b25_a_live_block_outlives_the_aborted_capture() {
    let rig = rig("");
    let pool = rig.pool();
    let capture = rig.allocator.capture(pool, RouteFilter::Stream(rig.stream)).unwrap();
    let block = rig.allocator.allocate(0, 64 * M, 0, rig.stream).unwrap();
    drop(capture);
    rig.allocator.release_pool(pool).unwrap();
    rig.allocator.empty_cache(None).unwrap();
    assert_eq!(rig.of(pool), 64 * M);
    rig.sim.fill_bytes(block.0, 64 * M, 7).unwrap();
    rig.allocator.deallocate(block).unwrap();
    rig.allocator.empty_cache(None).unwrap();
    assert!(rig.allocator.pool_stats(pool).is_err());
    assert_eq!(rig.reserved(), 0);
}

#[test]
fn b26_nothing_is_given_back_while_a_capture_runs() {
    let growable = ["", "per_process_memory_fraction:0.9"];
    let classic = ["expandable_segments:False", "expandable_segments:False,max_split_size_mb:200"];
    for conf in growable.into_iter().chain(classic) {
        let rig = rig(conf);
        let cached = rig.allocator.allocate(0, 600 * M, 0, rig.stream).unwrap();
        rig.allocator.deallocate(cached).unwrap();
        let pool = rig.pool();
        let capture = rig.allocator.capture(pool, RouteFilter::Stream(rig.stream)).unwrap();
        let count = |call| rig.sim.count(call);
        let watched = [
            "aclrtUnmapMem",
            "aclrtFree",
            "aclrtSynchronizeDevice",
            "aclrtSynchronizeStream",
            "aclrtSynchronizeEvent",
            "aclrtStreamWaitEvent",
            "aclrtQueryEventStatus",
            "aclrtRecordEvent",
        ];
        let before = watched.map(count);
        let physical = rig.sim.physical_bytes(0);
        let failed = rig.allocator.allocate(0, 700 * M, 0, rig.stream);
        let Err(Error::OutOfMemory(report)) = failed else { panic!("{conf}: {failed:?}") };
        assert!(report.during_capture && report.to_string().contains("captured"), "{conf}: {report}");
        let limited = conf.starts_with("per_process");
        let cause = if limited { OutOfMemoryCause::Limit } else { OutOfMemoryCause::Device };
        assert_eq!(report.cause, cause, "{conf}");
        assert_eq!(watched.map(count), before, "{conf}: only creating and mapping");
        assert_eq!(rig.sim.physical_bytes(0), physical, "{conf}: what the failed try created went back");
        assert_eq!(rig.allocator.stats(0).unwrap().cached_handles, 0, "{conf}");
        drop(capture);
        let granted = rig.allocator.allocate(0, 700 * M, 0, rig.stream).unwrap();
        rig.allocator.deallocate(granted).unwrap();
        rig.allocator.check().unwrap();
    }
}

#[test]
fn b28_pools_nest_by_thread() {
    let rig = rig("");
    let (outer, inner) = (rig.pool(), rig.pool());
    let allocate = || rig.allocator.allocate(0, 4 * M, 0, rig.stream).unwrap();
    rig.allocator.begin_route(outer, RouteFilter::ThisThread).unwrap();
    let a = allocate();
    rig.allocator.begin_route(inner, RouteFilter::ThisThread).unwrap();
    let b = allocate();
    let c = std::thread::scope(|scope| scope.spawn(allocate).join().unwrap());
    let size = 4 * M;
    assert_eq!((rig.of(outer), rig.of(inner)), (size, size));
    let early = rig.allocator.end_route(outer);
    assert!(matches!(early, Err(Error::State { .. })), "{early:?}");
    assert_eq!(rig.of(inner), size, "routing is unchanged");
    rig.allocator.end_route(inner).unwrap();
    let d = allocate();
    rig.allocator.end_route(outer).unwrap();
    let e = allocate();
    assert_eq!((rig.of(outer), rig.of(inner)), (2 * size, size));
    let stats = rig.allocator.stats(0).unwrap();
    assert_eq!(stats.allocated_bytes.all.current as u64, 5 * size, "c and e are in the default pool");
    let segments = |pool: PoolId| {
        let segments = rig.allocator.snapshot(0).unwrap().segments;
        segments.iter().filter(|segment| segment.pool == pool.serial).count()
    };
    assert_eq!([outer, inner, PoolId::default_of(0)].map(segments), [1; 3]);
    for block in [a, b, c, d, e] {
        rig.allocator.deallocate(block).unwrap();
    }
    rig.allocator.check().unwrap();
}

#[test]
fn b28_captures_and_pools_nest_newest_first() {
    let rig = rig("");
    let (user, graph) = (rig.pool(), rig.pool());
    let allocate = || rig.allocator.allocate(0, 4 * M, 0, rig.stream).unwrap();
    let size = 4 * M;
    // A capture inside a pool of the user takes what is for its stream.
    let route = rig.allocator.route(user, RouteFilter::ThisThread).unwrap();
    let capture = rig.allocator.capture(graph, RouteFilter::Stream(rig.stream)).unwrap();
    let first = allocate();
    assert_eq!((rig.of(user), rig.of(graph)), (0, size));
    // A pool of the user inside the capture takes it back for as long as it is entered.
    let nested = rig.allocator.route(user, RouteFilter::ThisThread).unwrap();
    let second = allocate();
    assert_eq!((rig.of(user), rig.of(graph)), (size, size));
    drop(nested);
    let third = allocate();
    assert_eq!((rig.of(user), rig.of(graph)), (size, 2 * size));
    drop((capture.finish(), route));
    for block in [first, second, third] {
        rig.allocator.deallocate(block).unwrap();
    }
    rig.allocator.check().unwrap();
}
