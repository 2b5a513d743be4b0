//! Memory is short: each rung of the ladder alone, framework callbacks, and threads that need memory at once.

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};

use ascend_alloc::driver::Stream;
use ascend_alloc::stats::LadderSteps;
use ascend_alloc::{DeviceAllocator, DevicePtr, Error};
use common::{CLASSIC, M, Setup, World, scripts::assert_no_host_wait};

/// The steps that were taken since `before`, by name, without those that were not.
fn steps_since(world: &World, before: &LadderSteps) -> BTreeMap<&'static str, u64> {
    let now = world.stats().ladder.by_name().into_iter();
    now.zip(before.by_name())
        .map(|((name, count), (_, earlier))| (name, count - earlier))
        .filter(|&(_, count)| count > 0)
        .collect()
}

/// Plays a request that needs exactly the steps given.
#[track_caller]
fn needs(world: &mut World, bytes: u64, stream: Stream, expected: &[(&'static str, u64)]) -> DevicePtr {
    let before = world.stats().ladder;
    let ptr = world.alloc(bytes, stream);
    world.work(stream, "first use", ptr);
    let expected: BTreeMap<_, _> = expected.iter().copied().collect();
    assert_eq!(steps_since(world, &before), expected);
    ptr
}

#[test]
fn a_free_block_needs_no_ladder() {
    let mut world = Setup::default().build();
    let s0 = world.stream();
    let a = world.alloc(20 * M, s0);
    world.free(a);
    let b = needs(&mut world, 10 * M, s0, &[]);
    assert_eq!(b, a);
    world.close();
}

#[test]
fn the_front_gives_its_blocks_back() {
    let mut world = Setup::default().build();
    let s0 = world.stream();
    // One chunk full of small blocks that rest in the front.
    let blocks = [world.alloc(M, s0), world.alloc(M, s0)];
    blocks.into_iter().for_each(|block| world.free(block));
    needs(&mut world, 900 << 10, s0, &[("requests", 1), ("flushed", 1)]);
    world.close();
}

#[test]
fn quiescent_blocks_of_another_stream_serve() {
    let mut world = Setup::default().build();
    let (s0, s1) = (world.stream(), world.stream());
    let a = world.alloc(400 * M, s0);
    world.work(s0, "t1", a);
    world.free(a);
    world.finish(s0);
    // Nobody knows yet that t1 is over: an event is recorded and asked.
    let steps = [("requests", 1), ("flushed", 1), ("closed", 1), ("queried", 1)];
    let b = needs(&mut world, 400 * M, s1, &steps);
    assert_eq!(b, a);
    world.close();
}

#[test]
fn chunks_move_before_anybody_waits() {
    let mut world = Setup::default().capacity(64 * M).build();
    let s0 = world.stream();
    let blocks: Vec<DevicePtr> = (0..8).map(|_| world.alloc(8 * M, s0)).collect();
    for &block in blocks.iter().step_by(2) {
        world.free(block);
    }
    let before = world.sim.counters();
    let steps = [("requests", 1), ("flushed", 1), ("closed", 1), ("queried", 1), ("mapped", 1)];
    needs(&mut world, 32 * M, s0, &steps);
    let calls = world.calls_since(&before);
    assert_eq!(calls.get("aclrtMallocPhysical"), None, "the device is full, and nobody asks");
    assert_no_host_wait(&calls);
    world.close();
}

/// Idle memory that cannot move is given back, as much as is lacking.
#[test]
fn idle_classic_segments_are_given_back() {
    let mut world = Setup::default().conf(CLASSIC).capacity(100 * M).build();
    let s0 = world.stream();
    let blocks: Vec<DevicePtr> = (0..4).map(|_| world.alloc(20 * M, s0)).collect();
    for &block in &blocks {
        world.free(block);
    }
    // 20 MiB are free on the device, so 30 MiB lack 10 MiB: one segment.
    let steps =
        [("requests", 1), ("flushed", 1), ("closed", 1), ("queried", 1), ("fetched", 2), ("released", 1)];
    let before = world.sim.counters();
    needs(&mut world, 30 * M, s0, &steps);
    assert_eq!(world.calls_since(&before).get("aclrtFree"), Some(&1));
    assert_eq!(world.reserved(), 90 * M);
    world.close();
}

/// A classic request on a device full of idle chunks takes as many of them as it lacks.
#[test]
fn idle_chunks_are_given_back_for_a_classic_segment() {
    let mut world = Setup::default().capacity(64 * M).build();
    let s0 = world.stream();
    let a = world.alloc(40 * M, s0);
    world.free(a);
    // No more address space: the next request that no free block serves gets a classic segment.
    world.sim.set_va_budget(Some(0));
    let b = world.alloc(512, s0);
    assert_eq!(world.reserved(), 42 * M, "there was room for it");
    let c = world.alloc(50 * M, s0);
    world.verify();
    assert!(world.live[&c.0].bytes >= 50 * M);
    assert!(world.stats().ladder.released > 0 || world.stats().ladder.mapped > 1);
    world.free(b);
    world.free(c);
    world.sim.set_va_budget(None);
    world.close();
}

/// A full device whose idle memory is held back by running work.
fn held_back(conf: &str) -> (World, [Stream; 2], DevicePtr) {
    let mut world = Setup::default().conf(conf).capacity(64 * M).build();
    let streams = [world.stream(), world.stream()];
    let a = world.alloc(60 * M, streams[0]);
    world.work(streams[0], "t1", a);
    world.free(a);
    (world, streams, a)
}

#[test]
fn the_stream_waits_on_the_device_before_the_host_does() {
    let (mut world, [_, s1], a) = held_back("");
    let before = world.sim.counters();
    let steps = [("requests", 1), ("flushed", 1), ("closed", 1), ("queried", 1), ("joined", 1)];
    let b = needs(&mut world, 60 * M, s1, &steps);
    assert_eq!(b, a);
    let calls = world.calls_since(&before);
    assert_eq!(calls.get("aclrtStreamWaitEvent"), Some(&1));
    assert_no_host_wait(&calls);
    world.close();
}

#[test]
fn the_host_waits_for_one_event() {
    let (mut world, [_, s1], _) = held_back(CLASSIC);
    let before = world.sim.counters();
    let b = world.alloc(60 * M, s1);
    world.work(s1, "first use", b);
    let calls = world.calls_since(&before);
    assert_eq!(calls.get("aclrtSynchronizeEvent"), Some(&1));
    assert_eq!(calls.get("aclrtSynchronizeDevice"), None);
    assert_eq!((world.stats().ladder.waited, world.stats().ladder.synchronized), (1, 0));
    world.close();
}

#[test]
fn the_host_waits_for_the_stream_where_no_event_can_be_had_and_for_the_device_where_that_is_refused() {
    // The last wait for the stream is not made, and not counted: nothing can be learned about it.
    for (refused, waits) in [
        (&["aclrtRecordEvent"][..], (1, 0)),
        (&["aclrtRecordEvent", "aclrtSynchronizeStream"], (1, 1)),
        (&["aclmdlRICaptureGetInfo"], (0, 1)),
    ] {
        let count = |world: &World| {
            ["aclrtSynchronizeStream", "aclrtSynchronizeDevice"].map(|call| world.sim.count(call))
        };
        let (mut world, [s0, s1], _) = held_back("");
        for function in refused {
            world.sim.fail(function, 1, 507_899, true).expect("a function");
        }
        let before = count(&world);
        let b = world.alloc(60 * M, s1);
        let made = count(&world);
        world.sim.clear_faults();
        world.work(s1, "first use", b);
        world.verify();
        let ladder = world.stats().ladder;
        assert_eq!((ladder.waited, ladder.synchronized), waits, "{refused:?}");
        assert_eq!((made[0] - before[0], made[1] - before[1]), waits, "{refused:?}");
        world.finish(s0);
        world.close();
    }
}

#[test]
fn a_request_that_nothing_serves_climbs_to_the_end_and_leaves_nothing() {
    let mut world = Setup::default().capacity(64 * M).build();
    let s0 = world.stream();
    world.alloc(40 * M, s0);
    let before = world.stats().ladder;
    world.alloc_fails(40 * M, s0);
    let steps = steps_since(&world, &before);
    assert_eq!((steps["requests"], steps["failed"]), (1, 1), "{steps:?}");
    assert_eq!(steps.get("waited").or(steps.get("synchronized")), None, "there was nothing to wait for");
    assert_eq!((world.reserved(), world.stats().cached_handles), (40 * M, 0));
    world.calls_before.push(world.stats().calls);
    world.alloc.reset_accumulated_stats(0).expect("reset");
    assert_eq!(world.stats().ladder, LadderSteps::default());
    world.close();
}

// ---- callbacks ----

/// Blocks that a framework would give up if asked.
type Hoard = Arc<Mutex<Vec<DevicePtr>>>;

/// A callback that frees one block of a hoard at each call, and how often it was called.
fn hoarder(
    alloc: &Arc<DeviceAllocator>,
    hoard: &Hoard,
) -> (ascend_alloc::hook::MemoryCallback, Arc<AtomicU64>) {
    let (alloc, hoard, calls) = (Arc::downgrade(alloc), hoard.clone(), Arc::new(AtomicU64::new(0)));
    let counted = calls.clone();
    let callback = move |device: u32, bytes: u64| {
        assert_eq!(device, 0);
        assert!(bytes > 0);
        counted.fetch_add(1, SeqCst);
        let taken = hoard.lock().unwrap().pop();
        taken.is_some_and(|ptr| alloc.upgrade().unwrap().deallocate(ptr).is_ok())
    };
    (Arc::new(callback), calls)
}

fn hoard_block(world: &World, hoard: &Hoard, bytes: u64, stream: Stream) {
    let ptr = world.alloc.allocate(0, bytes, 0, stream).expect("memory");
    hoard.lock().unwrap().push(ptr);
}

#[test]
fn callbacks_are_asked_before_anybody_waits_and_only_as_many_as_needed() {
    for conf in ["", CLASSIC] {
        let world = Setup::default().conf(conf).capacity(64 * M).build();
        let s0 = world.stream();
        let (first, second) = (Hoard::default(), Hoard::default());
        let (one, calls_one) = hoarder(&world.alloc, &first);
        let (two, calls_two) = hoarder(&world.alloc, &second);
        let (nothing, calls_nothing) = hoarder(&world.alloc, &Hoard::default());
        let ids = [nothing, one, two].map(|callback| world.alloc.add_memory_callback(callback));
        hoard_block(&world, &first, 30 * M, s0);
        hoard_block(&world, &second, 30 * M, s0);
        let counts = || [&calls_nothing, &calls_one, &calls_two].map(|calls| calls.load(SeqCst));
        // With room to spare nobody is asked.
        assert_eq!(counts(), [0, 0, 0], "{conf}");
        let before = world.sim.counters();
        let a = world.alloc.allocate(0, 30 * M, 0, s0).expect("memory");
        assert_eq!(counts(), [1, 1, 0], "{conf}: the second has enough");
        assert_no_host_wait(&world.calls_since(&before));
        assert_eq!(world.stats().ladder.asked, 2);
        // Removed callbacks are not called.
        assert!(world.alloc.remove_memory_callback(ids[2]));
        assert!(!world.alloc.remove_memory_callback(ids[2]));
        let full = world.alloc.allocate(0, 30 * M, 0, s0);
        assert!(matches!(full, Err(Error::OutOfMemory(_))), "{full:?}");
        assert_eq!(counts(), [2, 2, 0], "{conf}");
        let kept = second.lock().unwrap().pop().expect("kept");
        world.alloc.deallocate(kept).expect("freed");
        world.alloc.deallocate(a).expect("freed");
        world.close();
    }
}

/// A callback that takes its turn anew each time is not asked for ever.
#[test]
fn a_callback_that_adds_another_is_called_once_a_request() {
    let world = Setup::default().capacity(64 * M).build();
    let s0 = world.stream();
    let calls = Arc::new(AtomicUsize::new(0));
    fn add(alloc: &Arc<DeviceAllocator>, calls: &Arc<AtomicUsize>) {
        let (weak, count) = (Arc::downgrade(alloc), Arc::clone(calls));
        alloc.add_memory_callback(Arc::new(move |_, _| {
            // Ends a program that would go on for ever.
            assert!(count.fetch_add(1, SeqCst) < 100);
            add(&weak.upgrade().expect("it asks"), &count);
            false
        }));
    }
    let held = world.alloc.allocate(0, 30 * M, 0, s0).expect("memory");
    add(&world.alloc, &calls);
    for called in [1, 3] {
        let full = world.alloc.allocate(0, 40 * M, 0, s0);
        assert!(matches!(full, Err(Error::OutOfMemory(_))), "{full:?}");
        assert_eq!(calls.load(SeqCst), called, "those that were there when it began");
    }
    world.alloc.deallocate(held).expect("freed");
    world.close();
}

/// What is freed in a callback waits for streams like anything else.
#[test]
fn what_a_callback_frees_follows_the_order_of_streams() {
    let mut world = Setup::default().capacity(64 * M).build();
    let (s0, s1) = (world.stream(), world.stream());
    let hoard = Hoard::default();
    let ptr = world.alloc(60 * M, s0);
    world.work(s0, "t1", ptr);
    world.live.remove(&ptr.0);
    hoard.lock().unwrap().push(ptr);
    let (callback, calls) = hoarder(&world.alloc, &hoard);
    world.alloc.add_memory_callback(callback);
    let b = world.alloc(60 * M, s1);
    world.work(s1, "first use of B", b);
    world.verify();
    assert_eq!((calls.load(SeqCst), world.stats().ladder.joined), (1, 1));
    world.close();
}

/// A callback may use the allocator in every way, and never finds itself called again meanwhile.
#[test]
fn a_callback_may_use_the_allocator() {
    let mut world = Setup::default().capacity(64 * M).build();
    let s0 = world.stream();
    let hoard = Hoard::default();
    hoard_block(&world, &hoard, 60 * M, s0);
    let (alloc, depth) = (Arc::downgrade(&world.alloc), Arc::new(AtomicU64::new(0)));
    let (held, runs) = (hoard.clone(), depth.clone());
    world.alloc.add_memory_callback(Arc::new(move |_, _| {
        let alloc = alloc.upgrade().unwrap();
        assert_eq!(runs.fetch_add(1, SeqCst), 0, "called again");
        // Too much even now: fails, without a callback.
        assert!(matches!(alloc.allocate(0, 40 * M, 0, s0), Err(Error::OutOfMemory(_))));
        let small = alloc.allocate(0, 1000, 0, s0).expect("room");
        let elsewhere = alloc.clone();
        let other = std::thread::spawn(move || {
            assert!(matches!(elsewhere.allocate(0, 40 * M, 0, s0), Err(Error::OutOfMemory(_))));
            elsewhere.allocate(0, 1000, 0, s0).expect("room")
        });
        let other = other.join().expect("no panic");
        for ptr in held.lock().unwrap().drain(..).chain([small, other]) {
            alloc.deallocate(ptr).expect("freed");
        }
        alloc.empty_cache(None).expect("emptied");
        alloc.check().expect("sound");
        alloc.stats(0).expect("statistics");
        runs.fetch_sub(1, SeqCst);
        true
    }));
    let a = world.alloc(60 * M, s0);
    world.work(s0, "first use", a);
    assert_eq!(world.stats().ladder.asked, 1);
    assert_eq!(depth.load(SeqCst), 0);
    world.close();
}

/// A callback that panics passes on; nothing stays locked or marked.
#[test]
fn a_callback_may_panic() {
    let mut world = Setup::default().capacity(64 * M).build();
    let s0 = world.stream();
    world.alloc(60 * M, s0);
    let calm = Arc::new(AtomicBool::new(false));
    let told = calm.clone();
    world.alloc.add_memory_callback(Arc::new(move |_, _| {
        assert!(told.load(SeqCst), "a callback's own trouble");
        false
    }));
    let alloc = world.alloc.clone();
    let answer = std::thread::spawn(move || alloc.allocate(0, 30 * M, 0, s0)).join();
    assert!(answer.is_err(), "the panic is passed on");
    world.verify();
    calm.store(true, SeqCst);
    world.alloc_fails(30 * M, s0);
    assert_eq!(world.stats().ladder.asked, 1, "the one that panicked did not come back to be counted");
    world.close();
}

/// A request that would fail while another thread's callback is freeing memory gets that memory.
#[test]
fn a_callback_in_another_thread_is_waited_for() {
    let world = Setup::default().capacity(64 * M).build();
    let s0 = world.stream();
    let hoard = Hoard::default();
    hoard_block(&world, &hoard, 60 * M, s0);
    let (alloc, held) = (Arc::downgrade(&world.alloc), hoard.clone());
    let entered = Arc::new(Barrier::new(2));
    let gate = entered.clone();
    let first = AtomicBool::new(true);
    world.alloc.add_memory_callback(Arc::new(move |_, _| {
        if !first.swap(false, SeqCst) {
            return false;
        }
        gate.wait();
        gate.wait();
        let freed: Vec<DevicePtr> = held.lock().unwrap().drain(..).collect();
        freed.iter().for_each(|&ptr| alloc.upgrade().unwrap().deallocate(ptr).expect("freed"));
        true
    }));
    let ask = |bytes: u64| {
        let alloc = world.alloc.clone();
        std::thread::spawn(move || alloc.allocate(0, bytes, 0, s0))
    };
    let one = ask(24 * M);
    entered.wait();
    let two = ask(24 * M);
    entered.wait();
    for thread in [one, two] {
        let ptr = thread.join().unwrap().expect("both get it");
        world.alloc.deallocate(ptr).expect("freed");
    }
    world.close();
}

// ---- threads ----

/// Lets the first call of that name block between the two waits at the barrier.
fn block_first(world: &World, call: &'static str) -> Arc<Barrier> {
    let barrier = Arc::new(Barrier::new(2));
    let (gate, first) = (barrier.clone(), AtomicBool::new(true));
    world.driver.watch(Some(Arc::new(move |name| {
        if name == call && first.swap(false, SeqCst) {
            gate.wait();
            gate.wait();
        }
    })));
    barrier
}

fn ask(world: &World, bytes: u64, stream: Stream) -> std::thread::JoinHandle<Result<DevicePtr, Error>> {
    let alloc = world.alloc.clone();
    std::thread::spawn(move || alloc.allocate(0, bytes, 0, stream))
}

/// While one thread's driver call runs, others allocate what is free, map what is not, and free.
#[test]
fn others_allocate_and_free_while_one_maps() {
    for call in ["aclrtMallocPhysical", "aclrtMapMem"] {
        let mut world = Setup::default().build();
        let (s0, s1) = (world.stream(), world.stream());
        let a = world.alloc(20 * M, s1);
        let b = world.alloc(20 * M, s1);
        world.free(a);
        let barrier = block_first(&world, call);
        let slow = ask(&world, 100 * M, s0);
        barrier.wait();
        // None of these may wait for the call above, or the test would not end.
        let c = world.alloc.allocate(0, 10 * M, 0, s1).expect("a free block");
        let d = world.alloc.allocate(0, 200 * M, 0, s1).expect("new memory");
        let e = world.alloc.allocate(0, 1000, 0, s0).expect("a small one");
        world.alloc.deallocate(c).expect("freed");
        world.alloc.record_stream(d, s0).expect("recorded");
        world.alloc.trim(0, 0).expect("trimmed");
        world.alloc.check().expect("sound");
        barrier.wait();
        let slow = slow.join().unwrap().expect("memory");
        world.driver.watch(None);
        for ptr in [d, e, slow] {
            world.alloc.deallocate(ptr).expect("freed");
        }
        world.live.remove(&b.0);
        world.alloc.deallocate(b).expect("freed");
        world.close();
    }
}

/// Two threads need memory at once, and there is enough for both, whether the first makes chunks or moves them.
#[test]
fn two_threads_that_need_memory_both_get_it() {
    let cases = [
        ("headroom:1", "aclrtMallocPhysical"),
        ("headroom:1", "aclrtMapMem"),
        ("headroom:0", "aclrtUnmapMem"),
        ("headroom:0", "aclrtMapMem"),
    ];
    for (conf, call) in cases {
        let mut world = Setup::default().conf(conf).capacity(128 * M).build();
        let s0 = world.stream();
        let blocks: Vec<DevicePtr> = (0..16).map(|_| world.alloc(6 * M, s0)).collect();
        for &block in blocks.iter().step_by(2) {
            world.free(block);
        }
        // 48 MiB idle in pieces, 32 MiB free on the device: two times 40 MiB fit exactly.
        let barrier = block_first(&world, call);
        let one = ask(&world, 40 * M, s0);
        barrier.wait();
        let two = ask(&world, 40 * M, s0);
        barrier.wait();
        for thread in [one, two] {
            let ptr = thread.join().unwrap().unwrap_or_else(|error| panic!("{conf} {call}: {error}"));
            world.alloc.deallocate(ptr).expect("freed");
        }
        world.driver.watch(None);
        world.close();
    }
}

/// What another thread is giving back at the moment is not missing: the request waits for it.
#[test]
fn memory_on_its_way_back_serves_who_needs_it() {
    for (conf, call) in [("", "aclrtFreePhysical"), ("", "aclrtUnmapMem"), (CLASSIC, "aclrtFree")] {
        let mut world = Setup::default().conf(conf).capacity(128 * M).build();
        let s0 = world.stream();
        let a = world.alloc(100 * M, s0);
        world.free(a);
        let barrier = block_first(&world, call);
        let alloc = world.alloc.clone();
        let giver = std::thread::spawn(move || alloc.empty_cache(None));
        barrier.wait();
        let taker = ask(&world, 100 * M, s0);
        // The request stands where it would fail before the call goes on.
        while world.stats().ladder.awaited == 0 {
            std::thread::yield_now();
        }
        barrier.wait();
        giver.join().unwrap().expect("emptied");
        let ptr = taker.join().unwrap().unwrap_or_else(|error| panic!("{call}: {error}"));
        world.alloc.deallocate(ptr).expect("freed");
        world.driver.watch(None);
        world.close();
    }
}

/// Two requests of which only one fits: one gets it, the other fails, and nothing stays behind.
#[test]
fn of_two_requests_that_do_not_fit_together_one_is_served() {
    let mut world = Setup::default().capacity(100 * M).build();
    let s0 = world.stream();
    let first = world.alloc(512, s0);
    for _ in 0..20 {
        let barrier = Arc::new(Barrier::new(2));
        let threads = [0, 1].map(|_| {
            let (alloc, barrier) = (world.alloc.clone(), barrier.clone());
            std::thread::spawn(move || {
                barrier.wait();
                alloc.allocate(0, 60 * M, 0, s0)
            })
        });
        let answers = threads.map(|thread| thread.join().unwrap());
        let served: Vec<DevicePtr> =
            answers.iter().filter_map(|answer| answer.as_ref().ok().copied()).collect();
        assert_eq!(served.len(), 1, "{answers:?}");
        world.alloc.deallocate(served[0]).expect("freed");
        world.alloc.empty_cache(None).expect("emptied");
        world.verify();
    }
    world.free(first);
    world.close();
}

// ---- other processes ----

/// Whether a request must be served: all sizes are whole chunks, so the sum fits or it does not.
fn fits(world: &World, foreign: u64, bytes: u64) -> bool {
    let live: u64 = world.live.values().map(|block| block.bytes).sum();
    live + bytes + foreign <= world.capacity
}

/// Another process takes and returns memory at random: nothing fails as long as the sum fits.
#[test]
fn other_processes_take_and_return_memory() {
    for seed in 0..24 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let conf = ["", "", "headroom:0.5", "headroom:0"][rng.usize(..4)];
        let mut world = Setup { scripted: false, ..Setup::default().conf(conf) };
        world.sim.capacity = 256 * M;
        world.sim.lag = [0, 2, ascend_sim::LAG_NEVER][rng.usize(..3)];
        let mut world = world.build();
        let streams = [world.stream(), world.stream(), world.stream()];
        let mut foreign = 0;
        for step in 0..150 {
            match rng.u8(..10) {
                0..2 => {
                    // It gets what is free on the device at that moment, at most.
                    let free = world.capacity - world.sim.physical_bytes(0);
                    foreign = rng.u64(0..=free / (2 * M)) * 2 * M;
                    world.sim.set_foreign_bytes(0, foreign);
                }
                2..7 => {
                    let (bytes, stream) = (rng.u64(1..=24) * 2 * M, streams[rng.usize(..3)]);
                    let fits = fits(&world, foreign, bytes);
                    match world.try_alloc(0, bytes, 0, stream) {
                        Ok(ptr) => {
                            assert!(fits, "seed {seed}, step {step}: more than there is");
                            world.work(stream, "use", ptr);
                        }
                        Err(error) => assert!(!fits, "seed {seed}, step {step}: {error}"),
                    }
                }
                _ => {
                    let picked = rng.usize(..world.live.len().max(1));
                    if let Some(&address) = world.live.keys().nth(picked) {
                        world.free(DevicePtr(address));
                    }
                }
            }
            world.verify();
        }
        world.sim.set_foreign_bytes(0, 0);
        world.close();
    }
}
