//! Pools that graphs were captured into sleep, too: what a graph uses is there again when they wake, at the same addresses.
//! https://github.com/fzyzcjy/torch_memory_saver/issues/21, https://github.com/sgl-project/sglang/pull/32718

mod common;

use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{
    CapturedGraph, Config, DeviceAllocator, DevicePtr, Error, PoolId, PoolOptions, RouteFilter, SleepMode,
};
use ascend_sim::exec::CaptureMode;
use ascend_sim::{BackingMode, ExecMode, LAG_NEVER, Sim, SimConfig, Task};

const MIB: u64 = 1 << 20;
const STREAM: Stream = Stream(0);
/// Freed in the capture.
const FREED: u64 = 6 * MIB;

struct Rig {
    sim: Sim,
    allocator: DeviceAllocator,
    pool: PoolId,
}

fn rig() -> Rig {
    let backing = BackingMode::MetadataOnly;
    // Work ends only where somebody waits for it.
    let exec_mode = ExecMode::Deterministic { seed: 1 };
    let sim =
        Sim::new(SimConfig { capacity: 1 << 30, backing, exec_mode, lag: LAG_NEVER, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let allocator = DeviceAllocator::new(Config::parse("check_level:3").unwrap(), driver).unwrap();
    let pool = allocator.create_pool(0, PoolOptions::tagged("graphs")).unwrap();
    Rig { sim, allocator, pool }
}

impl Rig {
    /// A graph with an output of 3 MiB, and what it freed in its capture: 6 MiB and 700 bytes.
    fn graph(&self) -> (CapturedGraph<'_>, DevicePtr, [DevicePtr; 2]) {
        let capture = self.allocator.capture(self.pool, RouteFilter::ThisThread).unwrap();
        let [freed, output, small] =
            [FREED, 3 * MIB, 700].map(|bytes| self.allocator.allocate(0, bytes, 0, STREAM).unwrap());
        self.allocator.deallocate(freed).unwrap();
        self.allocator.deallocate(small).unwrap();
        let graph = capture.finish();
        for (ptr, bytes, value) in [(freed, FREED, 5), (output, 3 * MIB, 6), (small, 700, 7)] {
            self.sim.fill_bytes(ptr.0, bytes, value).unwrap();
        }
        (graph, output, [freed, small])
    }

    fn byte(&self, address: u64) -> u8 {
        let mut byte = [0];
        self.sim.read_bytes(address, &mut byte).unwrap();
        byte[0]
    }

    fn physical(&self) -> u64 {
        self.sim.physical_bytes(0)
    }

    fn finish(self) {
        self.allocator.release_pool(self.pool).unwrap();
        self.allocator.empty_cache(None).unwrap();
        self.allocator.check().unwrap();
        assert!(
            matches!(self.allocator.pool_stats(self.pool), Err(Error::Argument { .. })),
            "the pool is gone"
        );
        assert_eq!((self.physical(), self.sim.reserved_bytes()), (0, 0));
        assert!(self.sim.findings().is_empty(), "{:?}", self.sim.findings());
        assert_eq!(self.sim.count("aclrtMallocHost"), self.sim.count("aclrtFreeHost"));
    }
}

#[test]
fn what_a_graph_freed_in_its_capture_comes_back() {
    for mode in [SleepMode::Offload, SleepMode::Discard] {
        let rig = rig();
        let (graph, output, [freed, small]) = rig.graph();
        let before = rig.physical();
        let slept = rig.allocator.sleep(None, &["graphs"], mode).unwrap();
        assert_eq!((rig.physical(), slept.device_bytes, slept.returned_bytes), (0, before, before));
        assert!(rig.allocator.is_asleep(rig.pool).unwrap());
        let kept = if mode == SleepMode::Offload { before } else { 0 };
        assert_eq!(slept.host_bytes, kept, "all of it, whatever of it is free");
        // Others use the device meanwhile, and no address of the graph.
        let other = rig.allocator.allocate(0, 900 * MIB, 0, STREAM).unwrap();
        rig.sim.fill_bytes(other.0, 900 * MIB, 0xee).unwrap();
        rig.allocator.deallocate(other).unwrap();
        assert!(matches!(rig.allocator.capture(rig.pool, RouteFilter::ThisThread), Err(Error::State { .. })));
        let woken = rig.allocator.wake(None, &["graphs"]).unwrap();
        assert_eq!((woken.mapped_bytes, woken.copied_bytes), (before, kept));
        // The graph runs again.
        for (ptr, bytes, value) in [(freed, FREED, 5), (output, 3 * MIB, 6), (small, 700, 7)] {
            if mode == SleepMode::Offload {
                assert_eq!((rig.byte(ptr.0), rig.byte(ptr.0 + bytes - 1)), (value, value));
            }
            rig.sim.fill_bytes(ptr.0, bytes, 9).unwrap();
        }
        // What it freed serves captures into the pool, and nobody else.
        let elsewhere = rig.allocator.allocate(0, FREED, 0, STREAM).unwrap();
        let capture = rig.allocator.capture(rig.pool, RouteFilter::ThisThread).unwrap();
        let again = rig.allocator.allocate(0, FREED, 0, STREAM).unwrap();
        assert_eq!(again, freed);
        assert_ne!(elsewhere, freed);
        drop(capture);
        for block in [again, elsewhere, output] {
            rig.allocator.deallocate(block).unwrap();
        }
        drop(graph);
        rig.finish();
    }
}

#[test]
fn what_only_a_graph_needed_goes_with_it() {
    let rig = rig();
    let (graph, output, _) = rig.graph();
    rig.allocator.sleep(None, &["graphs"], SleepMode::Offload).unwrap();
    drop(graph);
    assert!(rig.allocator.is_asleep(rig.pool).unwrap(), "a block of it lives");
    let woken = rig.allocator.wake(None, &["graphs"]).unwrap();
    assert!((3 * MIB..8 * MIB).contains(&woken.mapped_bytes), "{woken:?}");
    assert_eq!((rig.byte(output.0), rig.byte(output.0 + 3 * MIB - 1)), (6, 6));
    rig.allocator.deallocate(output).unwrap();
    rig.finish();
}

#[test]
fn a_pool_without_live_blocks_sleeps_for_its_graph() {
    let rig = rig();
    let (graph, output, [freed, _]) = rig.graph();
    rig.allocator.sleep(None, &[], SleepMode::Offload).unwrap();
    rig.allocator.deallocate(output).unwrap();
    assert!(rig.allocator.is_asleep(rig.pool).unwrap(), "the graph wants its memory");
    rig.allocator.wake(None, &[]).unwrap();
    assert_eq!((rig.byte(freed.0), rig.byte(output.0)), (5, 6));
    rig.allocator.sleep(None, &[], SleepMode::Offload).unwrap();
    assert_eq!(rig.physical(), 0);
    drop(graph);
    assert!(!rig.allocator.is_asleep(rig.pool).unwrap(), "nobody wants any");
    assert_eq!(rig.physical(), 0);
    let block = rig.allocator.allocate_in(rig.pool, MIB, 0, STREAM).unwrap();
    rig.allocator.deallocate(block).unwrap();
    rig.finish();
}

/// The allocator knows the streams that blocks were asked for and recorded on; a graph runs on any.
#[test]
fn a_graph_that_runs_is_waited_for() {
    let rig = rig();
    let (graph, output, [freed, _]) = rig.graph();
    let untold = rig.sim.create_stream().unwrap();
    rig.sim.submit(untold, Task::new("a graph").writes(freed.0, FREED, 3)).unwrap();
    rig.allocator.sleep(None, &["graphs"], SleepMode::Discard).unwrap();
    assert!(rig.sim.findings().is_empty(), "{:?}", rig.sim.findings());
    assert!(rig.sim.stream_query(untold).unwrap(), "it has ended");
    rig.allocator.wake(None, &["graphs"]).unwrap();
    rig.allocator.deallocate(output).unwrap();
    drop(graph);
    rig.finish();
}

/// A graph uses blocks of other pools, too: weights sleep only once it has passed.
/// https://github.com/vllm-project/vllm-ascend/pull/15702
#[test]
fn a_graph_that_runs_on_blocks_of_another_pool_is_waited_for() {
    for mode in [SleepMode::Offload, SleepMode::Discard] {
        let rig = rig();
        let weights = rig.allocator.create_pool(0, PoolOptions::tagged("weights")).unwrap();
        let [own, side] = [(); 2].map(|()| Stream(rig.sim.create_stream().unwrap()));
        let block = rig.allocator.allocate_in(weights, 8 * MIB, 0, own).unwrap();
        rig.sim.submit(own.0, Task::new("load").writes(block.0, 8 * MIB, 1)).unwrap();
        rig.sim.synchronize_stream(own.0).unwrap();
        let capture = rig.allocator.capture(rig.pool, RouteFilter::Stream(own)).unwrap();
        rig.sim.capture_begin(own.0, CaptureMode::Relaxed).unwrap();
        rig.sim.submit(own.0, Task::new("infer").reads(block.0, 8 * MIB, 1)).unwrap();
        let model = rig.sim.capture_end(own.0).unwrap();
        let graph = capture.finish();
        rig.sim.graph_execute(model, side.0).unwrap();
        rig.allocator.sleep(None, &["weights"], mode).unwrap();
        assert!(rig.sim.findings().is_empty(), "{:?}", rig.sim.findings());
        assert!(rig.sim.stream_query(side.0).unwrap(), "it has ended");
        rig.allocator.wake(None, &["weights"]).unwrap();
        // Without a graph only the streams of the pool are waited for.
        drop(graph);
        rig.sim.graph_destroy(model).unwrap();
        let waits = rig.sim.count("aclrtSynchronizeDevice");
        rig.allocator.sleep(None, &["weights"], mode).unwrap();
        assert_eq!(rig.sim.count("aclrtSynchronizeDevice"), waits);
        rig.allocator.deallocate(block).unwrap();
        rig.allocator.release_pool(weights).unwrap();
        rig.finish();
    }
}

/// While a stream is captured without a word to the allocator, nobody may wait for the device.
#[test]
fn a_graph_that_cannot_be_waited_for_keeps_other_pools_awake() {
    let rig = rig();
    let (graph, output, _) = rig.graph();
    let weights = rig.allocator.create_pool(0, PoolOptions::tagged("weights")).unwrap();
    let block = rig.allocator.allocate_in(weights, MIB, 0, STREAM).unwrap();
    rig.sim.fill_bytes(block.0, MIB, 8).unwrap();
    let untold = rig.sim.create_stream().unwrap();
    rig.sim.capture_begin(untold, CaptureMode::Relaxed).unwrap();
    let refused = rig.allocator.sleep(None, &["weights"], SleepMode::Offload);
    assert!(matches!(refused, Err(Error::State { .. })), "{refused:?}");
    let model = rig.sim.capture_end(untold).unwrap();
    assert!(!rig.allocator.is_asleep(weights).unwrap());
    assert_eq!(rig.byte(block.0), 8);
    rig.allocator.sleep(None, &["weights"], SleepMode::Offload).unwrap();
    rig.allocator.wake(None, &["weights"]).unwrap();
    assert_eq!(rig.byte(block.0), 8);
    rig.sim.graph_destroy(model).unwrap();
    [block, output].into_iter().for_each(|block| rig.allocator.deallocate(block).unwrap());
    drop(graph);
    rig.allocator.release_pool(weights).unwrap();
    rig.finish();
}

/// Memory of a pool that a capture got through a route inside of it is the graph's as well.
#[test]
fn pools_inside_of_a_capture_sleep_with_what_the_graph_uses() {
    let rig = rig();
    let inner = rig.allocator.create_pool(0, PoolOptions::tagged("inner")).unwrap();
    let capture = rig.allocator.capture(rig.pool, RouteFilter::ThisThread).unwrap();
    let route = rig.allocator.route(inner, RouteFilter::ThisThread).unwrap();
    let freed = rig.allocator.allocate(0, FREED, 0, STREAM).unwrap();
    let live = rig.allocator.allocate(0, MIB, 0, STREAM).unwrap();
    rig.allocator.deallocate(freed).unwrap();
    drop(route);
    let graph = capture.finish();
    rig.sim.fill_bytes(freed.0, FREED, 4).unwrap();
    rig.allocator.sleep(None, &["inner"], SleepMode::Offload).unwrap();
    assert_eq!(rig.physical(), 0);
    rig.allocator.wake(None, &["inner"]).unwrap();
    assert_eq!((rig.byte(freed.0), rig.byte(freed.0 + FREED - 1)), (4, 4));
    rig.allocator.deallocate(live).unwrap();
    drop(graph);
    rig.allocator.release_pool(inner).unwrap();
    rig.finish();
}

/// Free blocks of a pool that does not split are whole after a sleep, too: the next capture needs no more than the last one.
#[test]
fn blocks_that_are_not_split_are_not_merged_by_a_sleep() {
    let rig = rig();
    let mut options = PoolOptions::tagged("whole");
    options.no_split = true;
    let pool = rig.allocator.create_pool(0, options).unwrap();
    let capture = || {
        let capture = rig.allocator.capture(pool, RouteFilter::ThisThread).unwrap();
        // Neighbours within one chunk and beyond it.
        let blocks =
            [3, 5, 8, 40].map(|half| rig.allocator.allocate(0, half * MIB / 2 - 512, 0, STREAM).unwrap());
        blocks.iter().for_each(|&block| rig.allocator.deallocate(block).unwrap());
        (capture.finish(), blocks)
    };
    let (first, blocks) = capture();
    let reserved = || rig.allocator.pool_stats(pool).unwrap().reserved_bytes.all.current;
    let before = reserved();
    for mode in [SleepMode::Offload, SleepMode::Discard] {
        rig.allocator.sleep(None, &["whole"], mode).unwrap();
        rig.allocator.wake(None, &["whole"]).unwrap();
        let (graph, again) = capture();
        assert_eq!((again, reserved()), (blocks, before), "{mode:?}");
        drop(graph);
    }
    drop(first);
    rig.allocator.release_pool(pool).unwrap();
    rig.finish();
}

/// Each driver call of falling asleep and waking fails once: the graph's memory is whole, or asleep and comes back.
#[test]
fn failing_calls_lose_nothing_of_a_graph() {
    let calls =
        ["aclrtUnmapMem", "aclrtFreePhysical", "aclrtMallocPhysical", "aclrtMapMem", "aclrtMemcpyAsync"];
    for call in
        calls.into_iter().chain(["aclrtSynchronizeDevice", "aclrtSynchronizeStream", "aclrtMallocHost"])
    {
        for at in 1..=3 {
            let rig = rig();
            let (graph, output, [freed, _]) = rig.graph();
            rig.sim.fail(call, at, 507_899, false).unwrap();
            let slept = rig.allocator.sleep(None, &["graphs"], SleepMode::Offload);
            let woken = rig.allocator.wake(None, &["graphs"]);
            rig.sim.clear_faults();
            rig.allocator.wake(None, &["graphs"]).unwrap();
            assert_eq!((rig.byte(freed.0), rig.byte(output.0)), (5, 6), "{call} {at}: {slept:?} {woken:?}");
            rig.allocator.check().unwrap();
            rig.allocator.deallocate(output).unwrap();
            drop(graph);
            rig.allocator.release_pool(rig.pool).unwrap();
            rig.allocator.empty_cache(None).unwrap();
            assert_eq!(rig.physical(), 0, "{call} {at}");
            assert!(rig.sim.findings().is_empty(), "{:?}", rig.sim.findings());
        }
    }
}

/// Another thread releases the graph while its pool is on its way.
#[test]
fn a_graph_may_go_while_its_pool_falls_asleep_or_wakes() {
    let calls = ["aclrtRecordEvent", "aclrtMemcpyAsync", "aclrtUnmapMem", "aclrtFreePhysical"];
    let waking = ["aclrtMallocPhysical", "aclrtMapMem", "aclrtMemcpyAsync"];
    let all = calls.map(|call| (call, false)).into_iter().chain(waking.map(|call| (call, true)));
    for ((call, late), lives) in all.flat_map(|when| [(when, true), (when, false)]) {
        let rig = common::gated::Rig::new();
        let pool = rig.pool("graphs");
        rig.alloc.begin_capture(pool, RouteFilter::ThisThread).unwrap();
        let [freed, output] = [FREED, 3 * MIB].map(|bytes| rig.alloc.allocate(0, bytes, 0, STREAM).unwrap());
        rig.alloc.deallocate(freed).unwrap();
        rig.alloc.end_route(pool).unwrap();
        rig.sim.fill_bytes(output.0, 3 * MIB, 6).unwrap();
        if !lives {
            rig.alloc.deallocate(output).unwrap();
        }
        let release = || {
            let (_, alloc) = rig.weak();
            rig.once_at(call, move || {
                let released = std::thread::spawn(move || alloc.upgrade().unwrap().release_graph(pool));
                released.join().unwrap().unwrap();
            });
        };
        if !late {
            release();
        }
        rig.alloc.sleep(None, &["graphs"], SleepMode::Offload).unwrap();
        rig.alloc.check().unwrap();
        assert_eq!(rig.alloc.is_asleep(pool).unwrap(), late || lives, "{call} {late} {lives}");
        assert_eq!(rig.sim.physical_bytes(0), 0);
        if late {
            release();
        }
        rig.alloc.wake(None, &["graphs"]).unwrap();
        rig.alloc.check().unwrap();
        assert!(!rig.alloc.is_asleep(pool).unwrap(), "{call} {late} {lives}");
        assert_eq!(rig.alloc.pool_stats(pool).unwrap().graphs, 0, "{call} {late}");
        if lives {
            let mut byte = [0];
            rig.sim.read_bytes(output.0 + 3 * MIB - 1, &mut byte).unwrap();
            assert_eq!(byte, [6], "{call} {late}");
            rig.alloc.deallocate(output).unwrap();
        }
        rig.alloc.release_pool(pool).unwrap();
        rig.finish();
    }
}
