//! Pools of captured graphs: addresses that stay, streams that are left alone, and going back.

mod common;

use std::sync::{Arc, Mutex};

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, DevicePtr, Error, PoolId, PoolOptions, RouteFilter, SleepMode};
use ascend_sim::{BackingMode, CaptureMode, Sim, SimConfig, Task};

const MIB: u64 = 1 << 20;

struct Rig {
    sim: Sim,
    allocator: DeviceAllocator,
    /// The stream that is captured.
    stream: Stream,
    pool: PoolId,
}

fn rig(capacity: u64) -> Rig {
    let sim = Sim::new(SimConfig { capacity, backing: BackingMode::MetadataOnly, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    let stream = Stream(sim.create_stream().unwrap());
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let allocator = DeviceAllocator::new(Config::parse("check_level:3").unwrap(), driver).unwrap();
    let pool = allocator.create_pool(0, PoolOptions::tagged("graph")).unwrap();
    Rig { sim, allocator, stream, pool }
}

impl Rig {
    fn begin(&self) {
        self.sim.capture_begin(self.stream.0, CaptureMode::Global).unwrap();
    }

    fn filter(&self) -> RouteFilter {
        RouteFilter::CapturedWith(self.stream)
    }

    fn end(&self) -> u64 {
        self.sim.capture_end(self.stream.0).unwrap()
    }

    fn on_stream(&self, bytes: u64) -> DevicePtr {
        self.allocator.allocate(0, bytes, 0, self.stream).unwrap()
    }

    fn reserved(&self) -> i64 {
        self.allocator.pool_stats(self.pool).unwrap().reserved_bytes.all.current
    }

    fn live(&self) -> i64 {
        self.allocator.pool_stats(self.pool).unwrap().allocated_bytes.all.current
    }
}

#[test]
fn addresses_of_a_graph_stay_mapped_until_it_is_gone() {
    let rig = rig(64 * MIB);
    rig.begin();
    let capture = rig.allocator.capture(rig.pool, rig.filter()).unwrap();
    let block = rig.on_stream(40 * MIB);
    rig.allocator.deallocate(block).unwrap();
    let graph = capture.finish();
    rig.end();
    assert_eq!(rig.reserved(), 42 * MIB as i64);
    rig.allocator.empty_cache(None).unwrap();
    assert_eq!(rig.reserved(), 42 * MIB as i64, "the graph's addresses stay");
    let refused = rig.allocator.allocate(0, 30 * MIB, 0, Stream(0));
    assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
    assert_eq!(rig.reserved(), 42 * MIB as i64);
    drop(graph);
    let granted = rig.allocator.allocate(0, 30 * MIB, 0, Stream(0)).unwrap();
    rig.allocator.deallocate(granted).unwrap();
    rig.allocator.check().unwrap();
}

#[test]
fn a_failed_capture_leaves_nothing_behind() {
    let rig = rig(64 * MIB);
    rig.begin();
    let capture = rig.allocator.capture(rig.pool, rig.filter()).unwrap();
    let block = rig.on_stream(20 * MIB);
    drop(capture);
    rig.end();
    let outside = rig.on_stream(20 * MIB);
    assert_eq!(rig.live(), 20 * MIB as i64 + 512, "the route ended with the capture");
    for ptr in [block, outside] {
        rig.allocator.deallocate(ptr).unwrap();
    }
    rig.allocator.release_pool(rig.pool).unwrap();
    rig.allocator.empty_cache(None).unwrap();
    assert_eq!((rig.sim.physical_bytes(0), rig.sim.reserved_bytes()), (0, 0));
    assert!(rig.allocator.pool_stats(rig.pool).is_err(), "the pool is gone too");
    rig.allocator.check().unwrap();
}

#[test]
fn streams_of_one_capture_share_its_pool_and_get_no_event() {
    let rig = rig(1 << 30);
    let joined = Stream(rig.sim.create_stream().unwrap());
    let apart = Stream(rig.sim.create_stream().unwrap());
    let events = [rig.sim.create_event_ex(1).unwrap(), rig.sim.create_event_ex(1).unwrap()];
    rig.begin();
    rig.sim.record_event(events[0], rig.stream.0).unwrap();
    rig.sim.stream_wait_event(joined.0, events[0]).unwrap();
    let capture = rig.allocator.capture(rig.pool, rig.filter()).unwrap();
    let first = rig.on_stream(2 * MIB);
    let second = rig.allocator.allocate(0, 2 * MIB, 0, joined).unwrap();
    let third = rig.allocator.allocate(0, 2 * MIB, 0, apart).unwrap();
    assert_eq!(rig.live(), 2 * (2 * MIB as i64 + 512));
    rig.allocator.record_stream(first, joined).unwrap();
    let recorded = rig.sim.count("aclrtRecordEvent");
    rig.allocator.deallocate(first).unwrap();
    // Nothing tells when the captured streams have passed: the block waits, whoever asks.
    let stats = rig.allocator.pool_stats(rig.pool).unwrap();
    assert_eq!(stats.active_bytes.all.current - stats.allocated_bytes.all.current, 2 * MIB as i64 + 512);
    let other = rig.on_stream(2 * MIB);
    assert_ne!(other, first);
    assert_eq!(rig.sim.count("aclrtRecordEvent"), recorded, "no captured stream was touched");
    rig.sim.record_event(events[1], joined.0).unwrap();
    rig.sim.stream_wait_event(rig.stream.0, events[1]).unwrap();
    let graph = capture.finish();
    rig.end();
    rig.sim.synchronize_device().unwrap();
    rig.allocator.empty_cache(None).unwrap();
    assert_eq!(rig.live(), rig.allocator.pool_stats(rig.pool).unwrap().active_bytes.all.current);
    for ptr in [second, third, other] {
        rig.allocator.deallocate(ptr).unwrap();
    }
    drop(graph);
    assert!(rig.sim.findings().is_empty(), "{:?}", rig.sim.findings());
    rig.allocator.check().unwrap();
}

#[test]
fn running_out_of_memory_does_not_break_a_capture() {
    let rig = rig(32 * MIB);
    let other = Stream(rig.sim.create_stream().unwrap());
    // Work behind which memory is held back, so that the device would be waited for.
    let used = rig.allocator.allocate(0, 8 * MIB, 0, other).unwrap();
    rig.sim.submit(other.0, Task::new("kernel").writes(used.0, MIB, 1)).unwrap();
    rig.allocator.deallocate(used).unwrap();
    rig.begin();
    let capture = rig.allocator.capture(rig.pool, rig.filter()).unwrap();
    let block = rig.on_stream(4 * MIB);
    let other = rig.on_stream(3 * MIB);
    rig.allocator.deallocate(other).unwrap();
    // What the captured stream freed could only be had by waiting for the device, which a capture forbids.
    let refused = rig.allocator.allocate(0, 29 * MIB, 0, rig.stream);
    assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
    assert_eq!(rig.on_stream(3 * MIB), other, "the capture goes on");
    rig.allocator.deallocate(other).unwrap();
    let graph = capture.finish();
    rig.sim.graph_destroy(rig.end()).unwrap();
    drop(graph);
    rig.allocator.deallocate(block).unwrap();
    rig.allocator.check().unwrap();
}

#[test]
fn a_small_request_gets_what_is_large_before_it_fails_in_a_capture() {
    let rig = rig(32 * MIB);
    rig.begin();
    let capture = rig.allocator.capture(rig.pool, rig.filter()).unwrap();
    let large = rig.on_stream(31 * MIB);
    rig.allocator.deallocate(large).unwrap();
    let small = rig.on_stream(MIB / 2);
    assert_eq!((small, rig.reserved()), (large, 32 * MIB as i64));
    drop(capture);
    rig.end();
    rig.allocator.deallocate(small).unwrap();
    rig.allocator.check().unwrap();
}

#[test]
fn a_checkpoint_brings_the_same_blocks_back() {
    let rig = rig(1 << 30);
    let graph = rig.allocator.capture(rig.pool, RouteFilter::All).unwrap().finish();
    let on = |bytes| rig.allocator.allocate_in(rig.pool, bytes, 0, rig.stream).unwrap();
    let sizes = [3 * MIB, 700, 30 * MIB, MIB, 5 * MIB, 512];
    let blocks = sizes.map(on);
    for at in [1, 4] {
        rig.allocator.deallocate(blocks[at]).unwrap();
    }
    let kept = [0, 2, 3, 5].map(|at| (blocks[at], sizes[at]));
    let checkpoint = rig.allocator.checkpoint(rig.pool).unwrap();
    assert_eq!(checkpoint.blocks().count(), kept.len());
    let before = (rig.live(), rig.reserved());

    // The pool goes on: old blocks are freed, new ones cross their borders.
    for (block, _) in kept {
        rig.allocator.deallocate(block).unwrap();
    }
    let later = [on(40 * MIB), on(2000), on(9 * MIB)];
    let mapped = rig.sim.count("aclrtMapMem");
    let restored = rig.allocator.restore(&checkpoint).unwrap();
    let mut freed = later.to_vec();
    freed.sort();
    assert_eq!(restored.freed, freed);
    let mut allocated = kept.map(|(block, _)| block).to_vec();
    allocated.sort();
    assert_eq!(restored.allocated, allocated);
    assert_eq!(rig.live(), before.0);
    assert!(rig.reserved() >= before.1);
    assert_eq!(rig.sim.count("aclrtMapMem"), mapped, "no driver call");
    for (block, bytes) in kept {
        assert_eq!(rig.allocator.block_info(block).unwrap().requested, bytes);
    }
    rig.allocator.check().unwrap();
    assert_eq!(rig.allocator.checkpoint(rig.pool).unwrap(), checkpoint);

    // Twice is as good as once, and the blocks are ordinary ones.
    assert_eq!(rig.allocator.restore(&checkpoint).unwrap().allocated, allocated);
    for block in allocated {
        rig.allocator.deallocate(block).unwrap();
    }
    assert_eq!(rig.live(), 0);
    drop(graph);
    rig.allocator.check().unwrap();
}

#[test]
fn a_checkpoint_of_memory_that_moved_away_is_refused() {
    let rig = rig(64 * MIB);
    let block = rig.allocator.allocate_in(rig.pool, 20 * MIB, 0, rig.stream).unwrap();
    let checkpoint = rig.allocator.checkpoint(rig.pool).unwrap();
    rig.allocator.deallocate(block).unwrap();
    // No graph holds the pool: its chunks go where they are wanted.
    let taken = rig.allocator.allocate(0, 60 * MIB, 0, rig.stream).unwrap();
    let refused = rig.allocator.restore(&checkpoint);
    assert!(matches!(refused, Err(Error::State { .. })), "{refused:?}");
    assert_eq!(rig.live(), 0);
    rig.allocator.deallocate(taken).unwrap();
    assert!(matches!(rig.allocator.release_graph(rig.pool), Err(Error::State { .. })));
    assert!(rig.allocator.checkpoint(PoolId::default_of(0)).is_err());
    rig.allocator.check().unwrap();
}

#[test]
fn graphs_share_a_pool_and_the_last_one_frees_it() {
    let rig = rig(64 * MIB);
    let mut graphs = Vec::new();
    let mut addresses = Vec::new();
    for _ in 0..3 {
        rig.begin();
        let capture = rig.allocator.capture(rig.pool, rig.filter()).unwrap();
        let block = rig.on_stream(16 * MIB);
        addresses.push(block);
        rig.allocator.deallocate(block).unwrap();
        graphs.push(capture.finish());
        rig.end();
    }
    assert!(addresses.iter().all(|&address| address == addresses[0]), "captures use the same memory");
    assert_eq!(rig.allocator.pool_stats(rig.pool).unwrap().graphs, 3);
    rig.allocator.release_pool(rig.pool).unwrap();
    while let Some(graph) = graphs.pop() {
        rig.allocator.empty_cache(None).unwrap();
        assert_eq!(rig.reserved(), 18 * MIB as i64);
        drop(graph);
    }
    rig.allocator.empty_cache(None).unwrap();
    assert_eq!(rig.sim.physical_bytes(0), 0);
    assert!(rig.allocator.pool_stats(rig.pool).is_err());
}

#[test]
fn emptying_the_cache_waits_for_the_end_of_a_capture() {
    let rig = rig(64 * MIB);
    let cached = rig.allocator.allocate(0, 10 * MIB, 0, Stream(0)).unwrap();
    rig.allocator.deallocate(cached).unwrap();
    rig.begin();
    let capture = rig.allocator.capture(rig.pool, rig.filter()).unwrap();
    let block = rig.on_stream(4 * MIB);
    rig.allocator.deallocate(block).unwrap();
    let before = rig.sim.counters();
    rig.allocator.empty_cache(None).unwrap();
    assert_eq!(rig.allocator.trim(0, 0).unwrap(), 0);
    assert_eq!(rig.sim.counters(), before, "nothing is given back during a capture");
    drop(capture);
    rig.end();
    rig.allocator.empty_cache(None).unwrap();
    assert_eq!(rig.allocator.stats(0).unwrap().reserved_bytes.all.current, 0);
    rig.allocator.check().unwrap();
}

/// A capture may begin in another thread while the cache is emptied: what was only waited for stays.
#[test]
fn a_capture_that_begins_meanwhile_stops_the_emptying() {
    let mut world = common::Setup::default().build();
    let (side, captured) = (world.stream(), world.stream());
    let block = world.alloc(10 * MIB, side);
    world.work(side, "work", block);
    world.free(block);
    let pool = world.alloc.create_pool(0, PoolOptions::default()).unwrap();
    let begun = Arc::new(Mutex::new(None));
    let (alloc, number) = (Arc::downgrade(&world.alloc), begun.clone());
    world.driver.watch(Some(Arc::new(move |call| {
        if call == common::gate::PASSED {
            let alloc = alloc.upgrade().unwrap();
            *number.lock().unwrap() = Some(alloc.begin_capture(pool, RouteFilter::Stream(captured)).unwrap());
        }
    })));
    world.alloc.empty_cache(None).unwrap();
    world.driver.watch(None);
    assert!(begun.lock().unwrap().is_some(), "the emptying waited");
    assert_eq!(world.reserved(), 10 * MIB, "nothing is given back during a capture");
    world.alloc.end_route(pool).unwrap();
    world.alloc.release_graph(pool).unwrap();
    world.alloc.empty_cache(None).unwrap();
    assert_eq!(world.reserved(), 0);
    world.close();
}

/// The same for a pool that falls asleep: what is captured may use its memory.
#[test]
fn a_capture_that_begins_meanwhile_keeps_a_pool_awake() {
    let rig = common::gated::Rig::new();
    let (pool, graphs, side) = (rig.pool("weights"), rig.pool("graphs"), rig.stream());
    let block = rig.alloc.allocate_in(pool, 10 * MIB, 0, side).unwrap();
    let weak = rig.weak().1;
    rig.once_at(common::gate::PASSED, move || {
        weak.upgrade().unwrap().begin_capture(graphs, RouteFilter::ThisThread).unwrap();
    });
    let refused = rig.alloc.sleep(None, &["weights"], SleepMode::Discard);
    assert!(matches!(refused, Err(Error::State { .. })), "{refused:?}");
    assert!(!rig.alloc.is_asleep(pool).unwrap() && rig.sim.is_backed(block.0, 10 * MIB));
    rig.alloc.end_route(graphs).unwrap();
    rig.alloc.release_graph(graphs).unwrap();
    rig.alloc.sleep(None, &["weights"], SleepMode::Discard).unwrap();
    assert!(rig.alloc.is_asleep(pool).unwrap());
    rig.alloc.deallocate(block).unwrap();
    rig.finish();
}

/// The graph gets the addresses of a pool that is entered inside of its capture.
#[test]
fn addresses_of_a_pool_inside_a_capture_stay_for_the_graph() {
    let rig = rig(256 * MIB);
    let user = rig.allocator.create_pool(0, PoolOptions::default()).unwrap();
    let held = |pool| rig.allocator.pool_stats(pool).unwrap().reserved_bytes.all.current / MIB as i64;
    let enter = |bytes| {
        let inside = rig.allocator.route(user, RouteFilter::ThisThread).unwrap();
        let block = rig.on_stream(bytes);
        drop(inside);
        rig.allocator.deallocate(block).unwrap();
        block
    };
    let capture_one = |bytes| {
        let capture = rig.allocator.capture(rig.pool, RouteFilter::Stream(rig.stream)).unwrap();
        (enter(bytes), capture)
    };
    // What fails leaves nothing behind.
    drop(capture_one(20 * MIB));
    rig.allocator.empty_cache(None).unwrap();
    assert_eq!(held(user), 0);
    let (block, capture) = capture_one(20 * MIB);
    let first = capture.finish();
    rig.allocator.empty_cache(None).unwrap();
    assert!(rig.sim.is_backed(block.0, 20 * MIB), "the graph's address is not mapped");
    let second = capture_one(10 * MIB).1.finish();
    // The other way round, too: neither keeps the other for ever.
    let other = rig.allocator.capture(user, RouteFilter::Stream(rig.stream)).unwrap();
    let outer = rig.allocator.route(rig.pool, RouteFilter::ThisThread).unwrap();
    rig.allocator.deallocate(rig.on_stream(10 * MIB)).unwrap();
    drop(outer);
    let third = other.finish();
    drop(first);
    rig.allocator.empty_cache(None).unwrap();
    let large = rig.allocator.allocate(0, 200 * MIB, 0, rig.stream).unwrap();
    assert!(rig.sim.is_backed(block.0, 20 * MIB), "the graph's address is not mapped");
    rig.allocator.deallocate(large).unwrap();
    drop(second);
    rig.allocator.empty_cache(None).unwrap();
    assert!(held(user) > 0 && held(rig.pool) > 0, "the third graph has addresses of both");
    drop(third);
    rig.allocator.empty_cache(None).unwrap();
    assert_eq!((held(user), held(rig.pool)), (0, 0));
    // Blocks of other streams are none of the capture's.
    let capture = rig.allocator.capture(rig.pool, RouteFilter::Stream(Stream(77))).unwrap();
    enter(20 * MIB);
    let graph = capture.finish();
    rig.allocator.empty_cache(None).unwrap();
    assert_eq!(held(user), 0);
    drop(graph);
    rig.allocator.check().unwrap();
}

/// Blocks that were used on another stream wait for it until a capture has ended. The next one can have them.
#[test]
fn captures_in_a_row_use_the_same_memory() {
    let mut world = common::Setup::default().build();
    let alloc = world.alloc.clone();
    let (home, other, side) = (world.stream(), world.stream(), world.stream());
    let pool = alloc.create_pool(0, PoolOptions::default()).unwrap();
    let graphs: Vec<_> = (0..6)
        .map(|at| {
            let capture = alloc.capture(pool, RouteFilter::All).unwrap();
            let block = world.alloc(64 * MIB, if at < 3 { home } else { other });
            if at != 2 {
                world.record(block, side);
            }
            world.free(block);
            capture.finish()
        })
        .collect();
    assert_eq!(world.reserved(), 64 * MIB);
    drop(graphs);
    alloc.release_pool(pool).unwrap();
    drop(alloc);
    world.close();
}

#[test]
fn recorded_blocks_are_freed_or_erased_before_a_checkpoint_is_restored() {
    let rig = rig(64 * MIB);
    let other = Stream(rig.sim.create_stream().unwrap());
    let block = rig.allocator.allocate_in(rig.pool, 3 * MIB, 0, rig.stream).unwrap();
    let checkpoint = rig.allocator.checkpoint(rig.pool).unwrap();
    rig.allocator.record_stream(block, other).unwrap();
    // So that nobody is asked whether the stream has passed.
    let capture = rig.allocator.capture(rig.pool, RouteFilter::All).unwrap();
    let refused = rig.allocator.restore(&checkpoint);
    assert!(matches!(refused, Err(Error::State { .. })), "{refused:?}");
    rig.allocator.erase_stream(block, other).unwrap();
    assert_eq!(rig.allocator.restore(&checkpoint).unwrap().allocated, [block]);
    drop(capture);
    rig.allocator.deallocate(block).unwrap();
}

#[test]
fn a_pool_that_is_given_up_serves_until_its_last_memory_is_gone() {
    let rig = rig(64 * MIB);
    let on = || rig.allocator.allocate_in(rig.pool, 3 * MIB, 0, rig.stream);
    let block = on().unwrap();
    rig.allocator.release_pool(rig.pool).unwrap();
    assert!(matches!(rig.allocator.release_pool(rig.pool), Err(Error::Argument { name: "pool", .. })));
    rig.allocator.deallocate(on().unwrap()).unwrap();
    rig.allocator.deallocate(block).unwrap();
    rig.allocator.empty_cache(None).unwrap();
    let gone = on();
    assert!(matches!(gone, Err(Error::Argument { name: "pool", .. })), "{gone:?}");
}

/// Blocks that other streams used are theirs until they have passed; that is found out when a restore needs to know.
#[test]
fn a_checkpoint_is_restored_once_the_streams_of_its_blocks_have_passed() {
    let mut world = common::Setup::default().build();
    let alloc = world.alloc.clone();
    let (home, side, ended) = (world.stream(), world.stream(), world.stream());
    let pool = alloc.create_pool(0, PoolOptions::default()).unwrap();
    let capture = alloc.capture(pool, RouteFilter::All).unwrap();
    let [freed, live] = [5 * MIB, 9 * MIB].map(|bytes| world.alloc(bytes, home));
    let checkpoint = alloc.checkpoint(pool).unwrap();
    for (ptr, label) in [(freed, "freed"), (live, "live")] {
        world.work(side, label, ptr);
        world.record(ptr, side);
        world.record(ptr, ended);
    }
    world.free(freed);
    let during = alloc.restore(&checkpoint);
    assert!(matches!(during, Err(Error::State { .. })), "no stream is asked during a capture: {during:?}");
    drop(capture);
    for _ in 0..2 {
        let busy = alloc.restore(&checkpoint);
        assert!(matches!(busy, Err(Error::State { .. })), "{busy:?}");
    }
    assert_eq!(alloc.block_info(live).unwrap().requested, 9 * MIB);
    world.finish(side);
    world.destroy(ended);
    let restored = alloc.restore(&checkpoint).unwrap();
    assert_eq!((restored.freed, restored.allocated), (vec![live], vec![freed, live]));
    let calls = world.sim.counters();
    assert_eq!(alloc.restore(&checkpoint).unwrap().freed, [freed, live]);
    assert_eq!(world.sim.counters(), calls, "nobody uses the blocks: nothing is asked");
    world.note_new(0, freed, 5 * MIB, 0, home);
    alloc.release_pool(pool).unwrap();
    drop(alloc);
    world.close();
}

/// Where no event can be had, a stream is waited for alone; where that is refused too, the device is.
#[test]
fn a_checkpoint_is_restored_although_no_event_can_be_had() {
    for (function, refused, told) in
        [("aclrtRecordEvent", 1, true), ("aclrtRecordEvent", u64::MAX, true), ("aclrtRecordEvent", 1, false)]
    {
        let mut world = common::Setup::default().build();
        let alloc = world.alloc.clone();
        let (home, side) = (world.stream(), world.stream());
        let pool = alloc.create_pool(0, PoolOptions::default()).unwrap();
        let live = alloc.allocate_in(pool, 9 * MIB, 0, home).unwrap();
        world.note_new(0, live, 9 * MIB, 0, home);
        let checkpoint = alloc.checkpoint(pool).unwrap();
        world.work(side, "live", live);
        world.record(live, side);
        world.finish(side);
        if !told {
            world.sim.on_device(0, || world.sim.destroy_stream(side.0)).unwrap().unwrap();
            world.driver.forget(side);
        }
        world.sim.fail(function, 1, 507_899, refused == u64::MAX).unwrap();
        for _ in 0..2 {
            let restored = alloc.restore(&checkpoint);
            assert_eq!(restored.unwrap().allocated, [live], "{function} refused, stream there: {told}");
        }
        world.sim.clear_faults();
        assert_eq!(world.sim.count("aclrtSynchronizeDevice"), u64::from(!told));
        alloc.release_pool(pool).unwrap();
        drop(alloc);
        world.close();
    }
}

/// The handle of a stream that is gone never comes to the driver again.
#[test]
fn a_block_comes_back_after_its_stream_has_ended() {
    let rig = rig(64 * MIB);
    let graph = rig.allocator.capture(rig.pool, RouteFilter::All).unwrap();
    let block = rig.on_stream(5 * MIB);
    let graph = graph.finish();
    let checkpoint = rig.allocator.checkpoint(rig.pool).unwrap();
    rig.allocator.stream_destroyed(0, rig.stream).unwrap();
    rig.sim.destroy_stream(rig.stream.0).unwrap();
    rig.sim.set_logging(true);
    for _ in 0..3 {
        rig.allocator.restore(&checkpoint).unwrap();
    }
    assert_eq!(rig.allocator.block_info(block).unwrap().stream, rig.stream);
    rig.allocator.deallocate(block).unwrap();
    drop(graph);
    rig.allocator.empty_cache(None).unwrap();
    assert_eq!(rig.reserved(), 0);
    let handle = format!("{:#x}", rig.stream.0);
    let calls = rig.sim.take_log();
    assert!(!calls.is_empty() && calls.iter().all(|call| !call.arguments.contains(&handle)), "{calls:#?}");
    rig.allocator.check().unwrap();
}

#[test]
fn restoring_large_fixed_blocks_keeps_their_count() {
    let sim = Sim::new(SimConfig { backing: BackingMode::MetadataOnly, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    let conf = Config::parse("expandable_segments:False,max_split_size_mb:32,check_level:3").unwrap();
    let allocator = DeviceAllocator::new(conf, Arc::new(SimDriver::new(sim))).unwrap();
    let pool = allocator.create_pool(0, PoolOptions::default()).unwrap();
    let block = allocator.allocate_in(pool, 40 * MIB, 0, Stream(0)).unwrap();
    let checkpoint = allocator.checkpoint(pool).unwrap();
    allocator.restore(&checkpoint).unwrap();
    assert_eq!(allocator.stats(0).unwrap().oversize_allocations.current, 1);
    allocator.deallocate(block).unwrap();
    assert_eq!(allocator.stats(0).unwrap().oversize_allocations.current, 0);
}

/// Graphs of many sizes share a pool: what one needs, all have, whatever order they are captured in.
/// https://github.com/vllm-project/vllm/pull/11743, https://github.com/pytorch/pytorch/pull/166975
#[test]
fn graphs_of_all_sizes_take_what_the_largest_needs() {
    for sizes in [[64, 32, 16, 8], [8, 16, 32, 64]] {
        let rig = rig(1 << 30);
        let graphs = sizes.map(|mib| {
            let capture = rig.allocator.capture(rig.pool, rig.filter()).unwrap();
            rig.begin();
            let block = rig.on_stream(mib * MIB - 32);
            rig.allocator.deallocate(block).unwrap();
            rig.end();
            capture.finish()
        });
        assert_eq!(rig.reserved(), 64 * MIB as i64, "{sizes:?}");
        drop(graphs);
    }
}

/// What was recorded on another stream and freed in a capture waits for its end, and serves the next one.
/// https://github.com/pytorch/pytorch/pull/175817
#[test]
fn what_is_recorded_in_captures_serves_the_next() {
    let rig = rig(1 << 30);
    let side = Stream(rig.sim.create_stream().unwrap());
    let graphs = [0; 5].map(|_| {
        let capture = rig.allocator.capture(rig.pool, rig.filter()).unwrap();
        rig.begin();
        let block = rig.on_stream(64 * MIB - 32);
        rig.allocator.record_stream(block, side).unwrap();
        rig.allocator.deallocate(block).unwrap();
        rig.end();
        capture.finish()
    });
    assert_eq!(rig.reserved(), 64 * MIB as i64);
    drop(graphs);
    rig.allocator.empty_cache(None).unwrap();
    assert_eq!((rig.reserved(), rig.sim.physical_bytes(0)), (0, 0));
}
