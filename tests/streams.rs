//! Several streams: who waits for whom, single streams before the device, streams that end unseen.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ascend_alloc::driver::Stream;
use ascend_alloc::error::OutOfMemoryCause;
use ascend_alloc::{DevicePtr, EmptyOptions, Error, PoolId, PoolOptions, PoolSource, RouteFilter, SleepMode};
use ascend_sim::{CaptureMode, Task, WAIT_FOREVER};
use common::{CLASSIC, M, Setup, World};
use fastrand::Rng;

/// The calls since `before` by which the host or a stream waits.
fn waits(world: &World, before: &BTreeMap<&'static str, u64>) -> BTreeMap<&'static str, u64> {
    let mut calls = world.calls_since(before);
    calls.retain(|name, _| name.contains("Synchronize") || name.contains("WaitEvent"));
    calls
}

/// A world in which no event can be had, with a block freed under running work on each of two streams.
fn without_events(sizes: [u64; 2]) -> (World, [Stream; 2], [DevicePtr; 2]) {
    let mut setup = Setup::default().capacity(64 * M);
    setup.sim.max_events = 0;
    let mut world = setup.build();
    let streams = [world.stream(), world.stream()];
    let blocks = [world.alloc(sizes[0], streams[0]), world.alloc(sizes[1], streams[1])];
    for (stream, block) in streams.into_iter().zip(blocks) {
        world.work(stream, "earlier work", block);
        world.free(block);
    }
    (world, streams, blocks)
}

#[test]
fn without_events_one_stream_is_waited_for_and_not_the_device() {
    for sizes in [[40 * M, 20 * M], [20 * M, 40 * M]] {
        let (mut world, streams, blocks) = without_events(sizes);
        let s0 = world.stream();
        let before = world.sim.counters();
        let c = world.alloc(40 * M, s0);
        world.work(s0, "first use", c);
        world.verify();
        // The stream that holds most back is the one that is waited for; the other one runs on.
        let most = usize::from(sizes[1] > sizes[0]);
        assert_eq!(c, blocks[most]);
        assert_eq!(waits(&world, &before), [("aclrtSynchronizeStream", 1)].into());
        assert_eq!(world.stats().calls.wait_stream, 1);
        assert!(!world.sim.executor().stream_query(0, streams[1 - most].0).unwrap(), "nobody waited for it");
        world.close();
    }
}

#[test]
fn without_events_a_second_stream_is_waited_for_only_when_the_first_was_not_enough() {
    let (mut world, ..) = without_events([30 * M, 30 * M]);
    let s0 = world.stream();
    let before = world.sim.counters();
    let c = world.alloc(50 * M, s0);
    world.work(s0, "first use", c);
    world.verify();
    assert_eq!(waits(&world, &before), [("aclrtSynchronizeStream", 2)].into());
    world.close();
}

#[test]
fn a_captured_stream_is_never_waited_for() {
    let (mut world, streams, blocks) = without_events([20 * M, 40 * M]);
    // The stream that holds most back is being captured by somebody who does not tell the allocator.
    world.finish(streams[1]);
    let sim = world.sim.clone();
    let on_device = |call: &dyn Fn() -> bool| assert!(sim.on_device(0, call).unwrap());
    on_device(&|| sim.capture_begin(streams[1].0, CaptureMode::Relaxed).is_ok());
    let s0 = world.stream();
    let before = world.sim.counters();
    let c = world.alloc(20 * M, s0);
    world.work(s0, "first use", c);
    world.verify();
    assert_eq!(c, blocks[0]);
    assert_eq!(waits(&world, &before), [("aclrtSynchronizeStream", 1)].into());
    let report = world.alloc_fails(40 * M, s0);
    assert_eq!(report.cause, OutOfMemoryCause::Device);
    on_device(&|| sim.capture_end(streams[1].0).is_ok());
    let before = world.sim.counters();
    let d = world.alloc(40 * M, s0);
    world.work(s0, "first use", d);
    world.verify();
    assert_eq!(waits(&world, &before), [("aclrtSynchronizeStream", 1)].into());
    world.close();
}

#[test]
fn waits_on_the_device_can_be_switched_off() {
    for on in [true, false] {
        let conf = if on { "" } else { "device_waits:False" };
        let mut world = Setup::default().capacity(64 * M).conf(conf).build();
        let (s0, s1) = (world.stream(), world.stream());
        let a = world.alloc(60 * M, s1);
        world.work(s1, "earlier work", a);
        world.free(a);
        let before = world.sim.counters();
        let b = world.alloc(60 * M, s0);
        world.work(s0, "first use", b);
        world.verify();
        assert_eq!(b, a);
        let expected = if on { "aclrtStreamWaitEvent" } else { "aclrtSynchronizeEvent" };
        assert_eq!(waits(&world, &before), [(expected, 1)].into());
        world.close();
    }
}

#[test]
fn with_room_to_spare_nobody_waits() {
    let mut world = Setup::default().build();
    let streams: Vec<Stream> = (0..4).map(|_| world.stream()).collect();
    let before = world.sim.counters();
    for round in 0..32 {
        let stream = streams[round % streams.len()];
        let block = world.alloc(8 * M, stream);
        world.work(stream, "work that never ends", block);
        world.free(block);
    }
    // Streams may wait for others on the device; the host does not.
    let host = waits(&world, &before).keys().any(|name| name.contains("Synchronize"));
    assert!(!host, "{:?}", waits(&world, &before));
    assert!(world.reserved() <= streams.len() as u64 * 8 * M, "each stream uses its own memory again");
    world.close();
}

/// Ten streams on a device that is done with everything at once: no memory stays behind on a quiet stream.
#[test]
fn ten_streams_need_hardly_more_than_one() {
    let mut rng = Rng::with_seed(5);
    for phase in [1, 40] {
        let mut setup = Setup { scripted: false, ..Setup::default() }.capacity(16 << 30);
        setup.sim.lag = 0;
        let mut world = setup.build();
        world.contents = false;
        let streams: Vec<Stream> = (0..10).map(|_| world.stream()).collect();
        let sizes: Vec<u64> = (0..24).map(|_| rng.u64(M..64 * M)).collect();
        let mut live: Vec<(DevicePtr, u64)> = Vec::new();
        let (mut sum, mut peak) = (0, 0);
        for step in 0..1_000 {
            let stream = streams[step / phase % streams.len()];
            let bytes = sizes[rng.usize(..sizes.len())];
            while sum + bytes > 2 << 30 {
                let (ptr, bytes) = live.swap_remove(rng.usize(..live.len()));
                world.free(ptr);
                sum -= bytes;
            }
            let ptr = world.alloc(bytes, stream);
            world.work(stream, "use", ptr);
            live.push((ptr, bytes));
            sum += bytes;
            peak = peak.max(sum);
        }
        let reserved = world.stats().reserved_bytes.all.peak as u64;
        assert!(reserved * 100 <= peak * 105, "{reserved} bytes reserved for {peak}");
        assert_eq!(world.stats().num_sync_all_streams, 0);
        live.into_iter().for_each(|(ptr, _)| world.free(ptr));
        world.close();
    }
}

/// Streams end without a word, and new ones have their handles. As the end of a stream waits for its work, what
/// was freed or recorded on the old one is over.
#[test]
fn streams_that_end_unseen_do_no_harm_although_their_handles_come_again() {
    for seed in 0..16 {
        let mut rng = Rng::with_seed(seed);
        let mut setup = Setup { scripted: false, ..Setup::default() }.capacity(256 * M);
        setup.sim.lag = rng.u64(0..200);
        let mut world = setup.build();
        world.reused_handles = true;
        world.sim.executor().set_stream_handle_reuse(true);
        let mut streams: Vec<Stream> = (0..4).map(|_| world.stream()).collect();
        let mut again = 0;
        for _ in 0..200 {
            let at = rng.usize(..streams.len());
            match rng.u8(..10) {
                0 => {
                    let old = streams[at];
                    // The end of a stream waits for its work; the checker counts only waits of their own.
                    world.sim.executor().synchronize_stream(0, old.0, WAIT_FOREVER).expect("waited");
                    let ended = || world.sim.destroy_stream(old.0);
                    world.sim.on_device(0, ended).unwrap().expect("destroyed");
                    streams[at] = world.stream();
                    again += usize::from(streams[at] == old);
                }
                1..=4 => {
                    let used: u64 = world.live.values().map(|block| block.bytes).sum();
                    let bytes = rng.u64(1..24 * M);
                    if used + bytes < 160 * M {
                        let ptr = world.alloc(bytes, streams[at]);
                        world.work(streams[at], "first use", ptr);
                    }
                }
                kind => {
                    let Some(address) = rng.choice(world.live.keys().copied().collect::<Vec<_>>()) else {
                        continue;
                    };
                    let home = world.live[&address].stream;
                    if kind < 7 && streams.contains(&home) {
                        world.share(streams[at], "shared use", DevicePtr(address));
                    } else {
                        world.free(DevicePtr(address));
                    }
                }
            }
            world.sim.executor().tick(1);
        }
        assert!(again > 0, "seed {seed}: no handle came again");
        world.verify();
        assert_eq!(world.stats().num_ooms, 0);
        world.free_all();
        world.close();
    }
}

/// What they freed is found without a word once nothing is queued elsewhere; before, the request grows.
#[test]
fn what_streams_leave_that_end_unseen_holds_nobody_up() {
    let mut world = Setup::default().build();
    let busy = world.stream();
    let other = world.alloc(M, busy);
    world.work(busy, "long work", other);
    for round in 1..=2 {
        let stream = world.stream();
        let a = world.alloc(100 * M, stream);
        world.work(stream, "work", a);
        world.free(a);
        world.sim.on_device(0, || world.sim.destroy_stream(stream.0)).unwrap().expect("destroyed");
        assert_eq!((world.reserved(), world.stats().num_sync_all_streams), (100 * M * round + 2 * M, 0));
    }
    world.finish(busy);
    let stream = world.stream();
    let a = world.alloc(200 * M, stream);
    world.work(stream, "work", a);
    assert_eq!((world.reserved(), world.stats().num_sync_all_streams), (202 * M, 1));
    assert_eq!((world.stats().num_alloc_retries, world.stats().num_ooms), (0, 0));
    world.verify();
    world.free(a);
    world.free(other);
    world.close();
}

/// Free neighbours of two streams that are busy stay apart, however many epochs of a third one end meanwhile, and
/// become one as soon as both have passed.
#[test]
fn neighbours_of_busy_streams_are_looked_at_once_for_each_epoch_that_ends() {
    const BLOCKS: u64 = 12;
    // Each end of an epoch is a look at every pair. Were a pair remembered twice each time, this would not end.
    const ENDS: u64 = 64;
    let mut world = Setup::default().capacity(292 * M).build();
    let busy = [world.stream(), world.stream()];
    let third = world.stream();
    let blocks: Vec<DevicePtr> = (0..BLOCKS)
        .map(|at| {
            let stream = busy[at as usize % 2];
            let block = world.alloc(4 * M - 512, stream);
            world.work(stream, "long work", block);
            block
        })
        .collect();
    let first = blocks.iter().min().copied();
    // With this there is no room for as much again beside them.
    let rest = world.alloc(200 * M, third);
    for block in blocks {
        world.free(block);
    }
    let options = EmptyOptions { wait: false, ..EmptyOptions::default() };
    let before = world.sim.counters();
    for round in 0..ENDS {
        let block = world.alloc(8 * M + round * (M / 2), third);
        world.free(block);
        world.alloc.empty_cache_with(Some(0), &options).expect("emptied");
        world.verify();
    }
    let ended = world.calls_since(&before).get("aclrtQueryEventStatus").copied().unwrap_or(0);
    assert!(ended >= ENDS, "{ended} events were asked for");
    busy.into_iter().for_each(|stream| world.finish(stream));
    let before = world.sim.counters();
    let whole = world.alloc(BLOCKS * (4 * M - 512), third);
    assert_eq!(Some(whole), first, "all of them are one");
    assert!(!world.calls_since(&before).contains_key("aclrtMapMem"));
    world.free(rest);
    world.close();
}

/// What a destroyed stream freed opens only when the device was waited for. Where that is refused, because a graph
/// is being captured that nobody told the allocator of, the request grows instead.
#[test]
fn a_device_that_may_not_be_waited_for_is_asked_once() {
    let mut world = Setup::default().capacity(256 * M).build();
    let (gone, captured, s0) = (world.stream(), world.stream(), world.stream());
    let block = world.alloc(40 * M, gone);
    world.free(block);
    world.destroy(gone);
    let sim = world.sim.clone();
    let on_device = |call: &dyn Fn() -> bool| assert!(sim.on_device(0, call).unwrap());
    on_device(&|| sim.capture_begin(captured.0, CaptureMode::Relaxed).is_ok());
    let before = world.sim.counters();
    let other = world.alloc(40 * M, s0);
    assert_ne!(other, block);
    assert_eq!(waits(&world, &before), [("aclrtSynchronizeDevice", 1)].into());
    on_device(&|| sim.capture_end(captured.0).is_ok());
    world.close();
}

/// A stream of another device, or of a context of somebody's own, gets no event here, and a wait for the device says
/// nothing about it: it is waited for alone.
#[test]
fn a_stream_of_another_device_is_waited_for_alone() {
    for home in [false, true] {
        let mut world = Setup::default().capacity(64 * M).devices(2).build();
        world.alloc.set_peers(0, &[1]).expect("a link");
        let (s0, other) = (world.stream(), world.stream_on(1));
        let a = world.alloc(60 * M, if home { other } else { s0 });
        let task = Task::new("work elsewhere").writes(a.0, 60 * M, world.live[&a.0].tag);
        world.sim.on_device(1, || world.sim.submit(other.0, task)).unwrap().expect("queued");
        if !home {
            world.record(a, other);
        }
        world.free(a);
        let before = world.sim.counters();
        let b = world.alloc(60 * M, s0);
        world.work(s0, "first use", b);
        world.verify();
        assert_eq!(waits(&world, &before), [("aclrtSynchronizeStream", 1)].into(), "home: {home}");
        world.close();
    }
}

/// The same for a pool that is put to sleep.
#[test]
fn a_pool_that_sleeps_waits_for_streams_of_other_devices() {
    let world = Setup::default().capacity(64 * M).devices(2).build();
    world.alloc.set_peers(0, &[1]).expect("a link");
    let (s0, other) = (world.stream(), world.stream_on(1));
    let pool = world.alloc.create_pool(0, PoolOptions::tagged("weights")).expect("a pool");
    let a = world.alloc.allocate_in(pool, 20 * M, 0, s0).expect("memory");
    let task = Task::new("work elsewhere").writes(a.0, 20 * M, 1);
    world.sim.on_device(1, || world.sim.submit(other.0, task)).unwrap().expect("queued");
    world.alloc.record_stream(a, other).expect("recorded");
    let before = world.sim.counters();
    world.alloc.sleep(Some(0), &["weights"], SleepMode::Discard).expect("asleep");
    assert_eq!(waits(&world, &before).get("aclrtSynchronizeStream"), Some(&1));
    assert!(world.sim.executor().stream_query(1, other.0).unwrap(), "it runs on without memory");
    world.alloc.wake(Some(0), &["weights"]).expect("awake");
    world.alloc.deallocate(a).expect("freed");
    world.close();
}

/// The device is not asked to wait for a stream that is being captured and nobody else.
#[test]
fn a_captured_stream_is_no_reason_to_wait_for_the_device() {
    let mut world = Setup::default().capacity(64 * M).build();
    let (s0, s1) = (world.stream(), world.stream());
    let a = world.alloc(40 * M, s1);
    world.work(s1, "earlier work", a);
    world.free(a);
    world.finish(s1);
    let sim = world.sim.clone();
    let on_device = |call: &dyn Fn() -> bool| assert!(sim.on_device(0, call).unwrap());
    on_device(&|| sim.capture_begin(s1.0, CaptureMode::Relaxed).is_ok());
    let before = world.sim.counters();
    world.alloc_fails(50 * M, s0);
    world.alloc.empty_cache(None).expect("nothing to give back");
    assert_eq!(waits(&world, &before), [].into());
    on_device(&|| sim.capture_end(s1.0).is_ok());
    world.close();
}

/// What a destroyed stream freed opens only when the device was waited for. With room to spare that is done where nobody
/// else works; others would be waited for, too.
#[test]
fn with_room_to_spare_the_device_is_not_waited_for_while_others_work() {
    for freed in [false, true] {
        let mut world = Setup::default().capacity(256 * M).build();
        let (gone, busy, s0) = (world.stream(), world.stream(), world.stream());
        let working = world.alloc(20 * M, busy);
        world.work(busy, "long work", working);
        let block = world.alloc(40 * M, gone);
        world.free(block);
        if freed {
            world.free(working);
        }
        world.destroy(gone);
        let before = world.sim.counters();
        let other = world.alloc(40 * M, s0);
        assert_ne!(other, block);
        let host: Vec<_> = waits(&world, &before).into_keys().filter(|name| name.contains("Sync")).collect();
        assert_eq!(host, [""; 0], "freed: {freed}");
        world.finish(busy);
        let (before, held) = (world.sim.counters(), world.reserved());
        world.alloc(40 * M, s0);
        assert_eq!(world.reserved(), held, "freed: {freed}");
        assert_eq!(waits(&world, &before), [("aclrtSynchronizeDevice", 1)].into(), "freed: {freed}");
        world.close();
    }
}

/// Memory of the program's own, none of the device's: one block, while it is there.
struct Elsewhere(AtomicBool);

impl PoolSource for Elsewhere {
    fn allocate(&self, _device: u32, bytes: u64, _stream: Stream) -> Option<u64> {
        (bytes <= 10 * M && self.0.swap(false, Ordering::Relaxed)).then_some(1 << 45)
    }

    fn free(&self, _device: u32, _address: u64, _bytes: u64) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A pool whose memory stays with it: a graph has its addresses, or it has another source than the device.
fn apart(world: &World, by_graph: bool) -> PoolId {
    let mut options = PoolOptions::default();
    options.source = (!by_graph).then_some(Arc::new(Elsewhere(true.into())) as Arc<dyn PoolSource>);
    let pool = world.alloc.create_pool(0, options).expect("a pool");
    if by_graph {
        world.alloc.begin_capture(pool, RouteFilter::Stream(Stream(1))).expect("begun");
        world.alloc.end_route(pool).expect("ended");
    }
    pool
}

/// What a pool keeps to itself serves no other one, so no other request waits for the streams that still use it, and one of
/// a pool that has its memory from elsewhere waits for no stream that uses the device's.
#[test]
fn nobody_waits_for_memory_that_cannot_be_had() {
    let of_graphs = [(false, false), (true, false), (true, true), (false, true)];
    let cases = of_graphs.map(|(recorded, gone)| (true, true, recorded, gone)).into_iter();
    for case in cases.chain([(false, true, false, false), (false, false, false, false)]) {
        let (by_graph, held_there, recorded, gone) = case;
        let mut world = Setup::default().capacity(64 * M).build();
        let (s0, s1, s2) = (world.stream(), world.stream(), world.stream());
        let (pool, default) = (apart(&world, by_graph), PoolId::default_of(0));
        let (held, asked) = if held_there { (pool, default) } else { (default, pool) };
        let busy = world.alloc(2 * M, s1);
        world.work(s1, "work", busy);
        if recorded {
            world.share(s2, "work", busy);
        }
        let ptr = world.alloc.allocate_in(held, 10 * M, 0, s1).expect("memory");
        if recorded {
            world.alloc.record_stream(ptr, s2).expect("recorded");
        }
        world.alloc.deallocate(ptr).expect("freed");
        if gone {
            world.destroy(s2);
            world.destroy(s1);
        }
        let before = world.sim.counters();
        let answer = world.alloc.allocate_in(asked, 63 * M, 0, s0);
        assert!(matches!(answer, Err(Error::OutOfMemory(_))), "{answer:?}");
        assert_eq!(waits(&world, &before), BTreeMap::new(), "{case:?}");
        if asked == default {
            // With room to spare neither.
            let ptr = world.alloc.allocate(0, 40 * M, 0, s0).expect("memory");
            assert_eq!(waits(&world, &before), BTreeMap::new(), "{case:?}");
            world.alloc.deallocate(ptr).expect("freed");
        }
        if held == pool && !gone && !by_graph {
            // The pool's own requests do.
            let ptr = world.alloc.allocate_in(pool, 10 * M, 0, s0).expect("memory");
            assert!(!waits(&world, &before).is_empty(), "{case:?}");
            world.alloc.deallocate(ptr).expect("freed");
        }
        if by_graph {
            world.alloc.release_graph(pool).expect("a graph");
        }
        world.alloc.release_pool(pool).expect("released");
        world.close();
    }
}

/// A block stopped waiting for a stream when its own was made to wait on the device, and is part of another one when the
/// stream ends.
#[test]
fn a_stream_ends_that_a_block_waited_for_which_is_gone() {
    for conf in ["", "front_cache:False"] {
        let mut world = Setup::default().conf(conf).capacity(64 * M).build();
        world.sim.executor().set_destroy_waits(false);
        let (s0, s1) = (world.stream(), world.stream());
        let of_it = world.alloc(4 * M, s1);
        let before = world.alloc(8 * M, s0);
        let shared = world.alloc(40 * M, s0);
        world.share(s1, "t1", shared);
        world.free(shared);
        let again = world.alloc(40 * M, s0);
        assert_eq!(
            (again, world.stats().calls.stream_wait),
            (shared, 1),
            "{conf}: the stream waits for the other"
        );
        world.free(of_it);
        let of_it = world.alloc(4 * M, s1);
        world.free(before);
        world.free(again);
        world.alloc(48 * M, s0);
        world.destroy(s1);
        world.alloc_fails(40 * M, s0);
        world.free(of_it);
        world.alloc.empty_cache(None).expect("emptied");
        world.verify();
        world.close();
    }
}

/// A server makes a stream for each client. Free blocks that earlier streams have left serve each new one, however many
/// streams there are that have none any more.
#[test]
fn what_many_streams_have_left_serves_the_next() {
    for conf in ["", CLASSIC] {
        let mut setup = Setup { scripted: false, ..Setup::default() }.conf(conf);
        setup.sim.lag = 0;
        let mut world = setup.build();
        for _ in 0..300 {
            let stream = world.stream();
            let block = world.alloc(4 * M, stream);
            world.work(stream, "a client", block);
            world.free(block);
        }
        let stats = world.stats();
        assert!(world.reserved() <= 20 * M, "{conf}: {} MiB", world.reserved() / M);
        assert!(stats.calls.map + stats.calls.malloc <= 2, "{conf}: {:?}", stats.calls);
        world.close();
    }
}

#[test]
fn every_handle_is_a_stream_of_its_own() {
    let world = Setup::default().capacity(256 * M).build();
    for handle in [0, 1, 1 << 63, u64::MAX - 2, u64::MAX - 1, u64::MAX] {
        let stream = Stream(handle);
        for bytes in [4096, 3 * M] {
            let block = world.alloc.allocate(0, bytes, 0, stream).unwrap();
            assert_eq!(world.alloc.block_info(block).unwrap().stream, stream);
            world.alloc.deallocate(block).unwrap();
            let snapshot = world.alloc.snapshot(0).unwrap();
            let mut blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
            let freed = blocks.find(|freed| freed.address == block.0).expect("it is kept");
            assert_eq!(freed.stream, stream, "nobody else may have it at once");
        }
        if handle != 0 {
            world.alloc.stream_destroyed(0, stream).unwrap();
        }
        world.alloc.check().unwrap();
    }
}
