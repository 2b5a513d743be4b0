//! What a call takes for a plan comes back, or is accounted, on every way out: when the driver refuses, when the device
//! is reset meanwhile, when another thread goes first, when a function of the program panics.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex, OnceLock};

use ascend_alloc::driver::{DeviceId, Stream};
use ascend_alloc::hook::Action;
use ascend_alloc::{
    ContentStore, Error, ExportOptions, GrowableBuffer, GrowableOptions, PoolOptions, PoolSource, Result,
    RouteFilter, SleepMode,
};
use ascend_sim::{Location, Sim};
use common::gate::{NAMED, WAITED, reset, was_reset};
use common::gated::{REFUSED, Rig, reset_weak};
use common::{CLASSIC, Elsewhere, M};

const STREAM: Stream = Stream(0);

// ---- sleep and wake ----

/// Whoever of the two is first: the host memory with the content goes back.
#[test]
fn a_reset_beside_a_wake_leaves_no_host_memory_behind() {
    for _ in 0..50 {
        let rig = Rig::with("check_level:0", 64 * M);
        let pool = rig.pool("weights");
        rig.alloc.allocate_in(pool, 2 * M, 0, STREAM).unwrap();
        rig.alloc.sleep(None, &["weights"], SleepMode::Offload).unwrap();
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                both.wait();
                for _ in 0..40 {
                    rig.alloc.device_was_reset(0).unwrap();
                }
            });
            both.wait();
            let _either = rig.alloc.wake(None, &["weights"]);
        });
        drop(Arc::into_inner(rig.alloc).expect("nobody else has it"));
        assert_eq!(rig.sim.count("aclrtMallocHost"), rig.sim.count("aclrtFreeHost"));
    }
}

/// Its wait is over with the sleep: later its memory would be somebody else's.
#[test]
fn a_used_block_that_is_freed_while_its_pool_falls_asleep_does_not_wait() {
    for call in ["aclrtMemcpyAsync", "aclrtUnmapMem"] {
        let rig = Rig::new();
        let (pool, user) = (rig.pool("weights"), rig.stream());
        let [used, kept] = [8 * M, 4 * M].map(|bytes| rig.alloc.allocate_in(pool, bytes, 0, STREAM).unwrap());
        rig.alloc.record_stream(used, user).unwrap();
        let weak = rig.weak().1;
        rig.once_at(call, move || weak.upgrade().unwrap().deallocate(used).unwrap());
        rig.alloc.sleep(None, &["weights"], SleepMode::Offload).unwrap();
        rig.alloc.wake(None, &["weights"]).unwrap();
        rig.alloc.check().unwrap();
        let again = rig.alloc.allocate_in(pool, 8 * M, 0, STREAM).unwrap();
        assert!(rig.sim.is_backed(again.0, 8 * M));
        [again, kept].into_iter().for_each(|ptr| rig.alloc.deallocate(ptr).unwrap());
        rig.finish();
    }
}

/// A sleep that fails leaves the pool awake; free memory whose chunk the driver did not put back is a hole then.
#[test]
fn free_memory_that_was_not_put_back_is_no_memory() {
    let rig = Rig::new();
    let pool = rig.pool("weights");
    let [a, gap, b] = [4 * M; 3].map(|bytes| rig.alloc.allocate_in(pool, bytes, 0, STREAM).unwrap());
    rig.alloc.deallocate(gap).unwrap();
    rig.sim.fail("aclrtUnmapMem", 5, REFUSED, false).unwrap();
    rig.sim.fail("aclrtMapMem", 3, REFUSED, false).unwrap();
    let slept = rig.alloc.sleep(None, &["weights"], SleepMode::Discard);
    assert!(matches!(slept, Err(Error::Driver(_))), "{slept:?}");
    rig.sim.clear_faults();
    rig.alloc.check().unwrap();
    assert!(!rig.alloc.is_asleep(pool).unwrap());
    let again = rig.alloc.allocate_in(pool, 4 * M, 0, STREAM).unwrap();
    assert!(rig.sim.is_backed(again.0, 4 * M));
    [again, a, b].into_iter().for_each(|ptr| rig.alloc.deallocate(ptr).unwrap());
    rig.finish();
}

/// Copies that could not be waited for may still read the host's memory and write the device's.
#[test]
fn what_a_wake_could_not_wait_for_is_in_use() {
    let rig = Rig::new();
    let (pool, home) = (rig.pool("weights"), rig.stream());
    let block = rig.alloc.allocate_in(pool, 4 * M, 0, home).unwrap();
    rig.alloc.sleep(None, &["weights"], SleepMode::Offload).unwrap();
    rig.gate.hold(STREAM);
    for wait in ["aclrtSynchronizeStream", "aclrtSynchronizeDevice"] {
        rig.sim.fail(wait, 1, REFUSED, true).unwrap();
    }
    let woken = rig.alloc.wake(None, &["weights"]);
    assert!(matches!(woken, Err(Error::Driver(_))), "{woken:?}");
    rig.sim.clear_faults();
    rig.alloc.deallocate(block).unwrap();
    assert_eq!(rig.sim.count("aclrtFreeHost"), 0, "a copy may read it");
    assert!(!rig.alloc.is_asleep(pool).unwrap(), "the last block is gone");
    assert_eq!(rig.alloc.trim(0, 0).unwrap(), 0, "a copy may write it");
    rig.finish();
}

/// The same for copies to the host, which the sleep queued.
#[test]
fn what_a_sleep_could_not_wait_for_is_in_use() {
    for freed_early in [false, true] {
        let rig = Rig::new();
        let (pool, home) = (rig.pool("weights"), rig.stream());
        let block = rig.alloc.allocate_in(pool, 4 * M, 0, home).unwrap();
        rig.gate.hold(STREAM);
        if freed_early {
            let weak = rig.weak().1;
            rig.once_at("aclrtMemcpyAsync", move || weak.upgrade().unwrap().deallocate(block).unwrap());
        }
        for wait in ["aclrtSynchronizeStream", "aclrtSynchronizeDevice"] {
            rig.sim.fail(wait, 1, REFUSED, true).unwrap();
        }
        let slept = rig.alloc.sleep(None, &["weights"], SleepMode::Offload);
        assert!(matches!(slept, Err(Error::Driver(_))), "{slept:?}");
        rig.sim.clear_faults();
        assert!(!rig.alloc.is_asleep(pool).unwrap());
        if !freed_early {
            rig.alloc.deallocate(block).unwrap();
        }
        assert_eq!(rig.alloc.trim(0, 0).unwrap(), 0, "a copy may read it");
        rig.finish();
    }
}

/// A wait covers the copies that were queued before it, and no others.
#[test]
fn a_wait_frees_no_host_memory_that_came_after_it() {
    let rig = Rig::new();
    for tag in ["one", "two"] {
        let pool = rig.pool(tag);
        rig.alloc.allocate_in(pool, 4 * M, 0, STREAM).unwrap();
    }
    let (sim, weak) = rig.weak();
    rig.once_at(WAITED, move || {
        for wait in ["aclrtSynchronizeStream", "aclrtSynchronizeDevice"] {
            sim.fail(wait, 1, REFUSED, true).unwrap();
        }
        let slept = weak.upgrade().unwrap().sleep(None, &["two"], SleepMode::Offload);
        assert!(matches!(slept, Err(Error::Driver(_))), "{slept:?}");
        sim.clear_faults();
    });
    rig.alloc.sleep(None, &["one"], SleepMode::Offload).unwrap();
    assert_eq!((rig.sim.count("aclrtMallocHost"), rig.sim.count("aclrtFreeHost")), (2, 0));
}

/// A fixed block that is on its way belongs to its pool already.
#[test]
fn a_fixed_block_on_its_way_keeps_its_pool_awake() {
    let rig = Rig::new();
    let (full, empty) = (rig.pool("weights"), rig.pool("weights"));
    let kept = rig.alloc.allocate_in(full, 4 * M, 0, STREAM).unwrap();
    // No address space: a fixed block it is.
    rig.sim.fail("aclrtReserveMemAddress", 1, 207_001, true).unwrap();
    let (at_unmap, reached) = channel();
    let (go, wait) = channel::<()>();
    let (weak, wait) = (rig.weak().1, Mutex::new(wait));
    let sleeper = Arc::new(OnceLock::new());
    let (inside, reached) = (sleeper.clone(), Mutex::new(reached));
    rig.gate.watch(Some(Arc::new(move |name| match name {
        "aclrtMallocAlign32" => {
            let (weak, ended) = (weak.clone(), at_unmap.clone());
            let thread = std::thread::spawn(move || {
                let alloc = weak.upgrade().unwrap();
                let slept = alloc.sleep(None, &["weights"], SleepMode::Discard);
                drop(alloc);
                let _nobody_listens_later = ended.send(());
                slept
            });
            inside.set(Mutex::new(Some(thread))).unwrap();
            reached.lock().unwrap().recv().unwrap();
        }
        "aclrtUnmapMem" => {
            let _nobody_listens_later = at_unmap.send(());
            let _dropped = wait.lock().unwrap().recv();
        }
        _ => {}
    })));
    let block = rig.alloc.allocate_in(empty, 4 * M, 0, STREAM).unwrap();
    drop(go);
    let thread = sleeper.get().unwrap().lock().unwrap().take().unwrap();
    let slept = thread.join().unwrap();
    assert!(matches!(slept, Err(Error::State { .. })), "{slept:?}");
    rig.sim.clear_faults();
    rig.gate.watch(None);
    rig.alloc.check().unwrap();
    [kept, block].into_iter().for_each(|ptr| rig.alloc.deallocate(ptr).unwrap());
    rig.finish();
}

/// Nobody gets a chunk of the pool before the peers of now were granted it.
#[test]
fn peers_that_are_set_during_a_wake_reach_what_it_maps() {
    let rig = Rig::new();
    let pool = rig.pool("weights");
    let block = rig.alloc.allocate_in(pool, 4 * M, 0, STREAM).unwrap();
    rig.alloc.sleep(None, &["weights"], SleepMode::Discard).unwrap();
    let weak = rig.weak().1;
    rig.once_at("aclrtMapMem", move || weak.upgrade().unwrap().set_peers(0, &[1]).unwrap());
    rig.alloc.wake(None, &["weights"]).unwrap();
    for chunk in [0, 2 * M] {
        assert_eq!(rig.sim.get_access(block.0 + chunk, Location::device(1)).unwrap(), 3);
    }
    rig.alloc.deallocate(block).unwrap();
    rig.finish();
}

// ---- panics ----

/// Gives host memory of the machine, and panics when told to.
struct Moody {
    sim: Sim,
    panics: AtomicBool,
    left: AtomicU32,
}

// SAFETY: it gives out memory of the simulator's host calls.
unsafe impl ContentStore for Moody {
    fn take(&self, _device: DeviceId, bytes: u64) -> Result<u64> {
        assert!(!self.panics.load(SeqCst) || self.left.fetch_sub(1, SeqCst) > 1, "a store's own trouble");
        Ok(self.sim.malloc_host(bytes).unwrap())
    }

    fn give_back(&self, _device: DeviceId, address: u64) {
        self.sim.free_host(address).unwrap();
        assert!(!self.panics.load(SeqCst), "a store's own trouble");
    }
}

#[test]
fn a_store_that_panics_leaves_the_pool_awake() {
    let rig = Rig::new();
    let pool = rig.pool("weights");
    let block = rig.alloc.allocate_in(pool, 130 * M, 0, STREAM).unwrap();
    let store = Arc::new(Moody { sim: rig.sim.clone(), panics: true.into(), left: 3.into() });
    rig.alloc.keep_content_in(store.clone()).unwrap();
    let slept = catch_unwind(AssertUnwindSafe(|| rig.alloc.sleep(None, &["weights"], SleepMode::Offload)));
    assert!(slept.is_err() || slept.is_ok_and(|answer| answer.is_err()));
    rig.alloc.check().unwrap();
    assert!(!rig.alloc.is_asleep(pool).unwrap());
    store.panics.store(false, SeqCst);
    rig.alloc.sleep(None, &["weights"], SleepMode::Offload).unwrap();
    store.panics.store(true, SeqCst);
    let woken = catch_unwind(AssertUnwindSafe(|| rig.alloc.wake(None, &["weights"])));
    store.panics.store(false, SeqCst);
    woken.expect("nobody is left to be told").unwrap();
    rig.alloc.deallocate(block).unwrap();
    rig.alloc.release_pool(pool).unwrap();
    rig.finish();
}

/// Sets a hook that panics at the first event of that kind; whether it has.
fn panics_at(rig: &Rig, action: Action) -> Arc<AtomicBool> {
    let seen = Arc::new(AtomicBool::new(false));
    let inside = seen.clone();
    rig.alloc.set_event_hook(Some(Arc::new(move |event| {
        assert!(event.action != action || inside.swap(true, SeqCst), "a hook's own trouble");
    })));
    seen
}

#[test]
fn a_hook_that_panics_in_a_sleep_leaves_no_pool_on_its_way() {
    let rig = Rig::new();
    let pool = rig.pool("weights");
    let [freed, block] = [4 * M; 2].map(|bytes| rig.alloc.allocate_in(pool, bytes, 0, STREAM).unwrap());
    rig.alloc.deallocate(freed).unwrap();
    let seen = panics_at(&rig, Action::Wait);
    let slept = catch_unwind(AssertUnwindSafe(|| rig.alloc.sleep(None, &["weights"], SleepMode::Offload)));
    assert!(seen.load(SeqCst) && slept.is_err());
    rig.alloc.set_event_hook(None);
    rig.alloc.wake(None, &["weights"]).unwrap();
    let again = rig.alloc.allocate_in(pool, 4 * M, 0, STREAM).unwrap();
    [again, block].into_iter().for_each(|ptr| rig.alloc.deallocate(ptr).unwrap());
    rig.alloc.release_pool(pool).unwrap();
    rig.finish();
}

#[test]
fn a_hook_that_panics_in_a_wake_loses_no_content() {
    let rig = Rig::with("check_level:2", 16 * M);
    let pool = rig.pool("weights");
    let block = rig.alloc.allocate_in(pool, 8 * M, 0, STREAM).unwrap();
    rig.alloc.sleep(None, &["weights"], SleepMode::Offload).unwrap();
    let idle = rig.alloc.allocate(0, 16 * M - 512, 0, STREAM).unwrap();
    rig.alloc.deallocate(idle).unwrap();
    let seen = panics_at(&rig, Action::Unmap);
    let woken = catch_unwind(AssertUnwindSafe(|| rig.alloc.wake(None, &["weights"])));
    assert!(seen.load(SeqCst) && woken.is_err());
    rig.alloc.set_event_hook(None);
    assert!(!rig.alloc.is_asleep(pool).unwrap());
    rig.alloc.deallocate(block).unwrap();
    rig.finish();
}

#[test]
fn a_hook_that_panics_at_a_free_in_a_sleeping_pool_loses_no_content() {
    let rig = Rig::new();
    let pool = rig.pool("weights");
    let block = rig.alloc.allocate_in(pool, 8 * M, 0, STREAM).unwrap();
    rig.alloc.sleep(None, &["weights"], SleepMode::Offload).unwrap();
    let seen = panics_at(&rig, Action::FreeRequested);
    let freed = catch_unwind(AssertUnwindSafe(|| rig.alloc.deallocate(block)));
    assert!(seen.load(SeqCst) && freed.is_err());
    rig.alloc.set_event_hook(None);
    assert!(!rig.alloc.is_asleep(pool).unwrap(), "the last block is gone");
    rig.finish();
}

#[test]
fn a_hook_that_allocates_is_told_of_others_alone() {
    let rig = Rig::new();
    let told = Arc::new(Mutex::new(Vec::new()));
    let (alloc, list) = (Arc::downgrade(&rig.alloc), told.clone());
    rig.alloc.set_event_hook(Some(Arc::new(move |event| {
        {
            let mut told = list.lock().unwrap();
            told.push((event.action, event.bytes));
            // Ends what would go on until the stack ends.
            assert!(told.len() < 100);
        }
        let alloc = alloc.upgrade().unwrap();
        let block = alloc.allocate(0, M, 0, STREAM).unwrap();
        alloc.deallocate(block).unwrap();
    })));
    let blocks = [3, 5].map(|size| rig.alloc.allocate(0, size * M, 0, STREAM).unwrap());
    blocks.into_iter().for_each(|block| rig.alloc.deallocate(block).unwrap());
    rig.alloc.set_event_hook(None);
    let told = told.lock().unwrap();
    let handed_out: Vec<u64> =
        told.iter().filter(|(action, _)| *action == Action::Allocate).map(|&(_, bytes)| bytes).collect();
    assert_eq!(handed_out, [3 * M, 5 * M], "{told:?}");
    assert!(told.iter().all(|&(_, bytes)| bytes != M), "{told:?}");
    drop(told);
    rig.finish();
}

/// The caller got no address for what was handed out.
#[test]
fn a_hook_that_panics_at_an_allocation_leaves_no_block() {
    let rig = Rig::new();
    for bytes in [512, 4 * M] {
        let seen = panics_at(&rig, Action::Allocate);
        let got = catch_unwind(AssertUnwindSafe(|| rig.alloc.allocate(0, bytes, 0, STREAM)));
        assert!(seen.load(SeqCst) && got.is_err());
        let stats = rig.alloc.stats(0).unwrap();
        assert_eq!((stats.allocation.all.current, stats.allocated_bytes.all.current), (0, 0));
        // The second event of that kind is no reason to panic.
        let block = rig.alloc.allocate(0, bytes, 0, STREAM).unwrap();
        rig.alloc.deallocate(block).unwrap();
        rig.alloc.set_event_hook(None);
    }
    rig.finish();
}

/// The address space of a buffer that nobody got is vacant.
#[test]
fn a_hook_that_panics_where_a_buffer_begins_leaves_its_place_to_others() {
    let rig = Rig::new();
    let mut options = GrowableOptions::up_to(64 * M).beginning_with(8 * M);
    options.pool = Some(rig.pool("weights"));
    drop(GrowableBuffer::new(rig.alloc.clone(), 0, STREAM, options.clone()).unwrap());
    options.pool = None;
    // The place of the first one makes room, of which the hook is told.
    rig.sim.fail("aclrtReserveMemAddress", 1, 207_001, false).unwrap();
    let seen = panics_at(&rig, Action::Unmap);
    let begun = catch_unwind(AssertUnwindSafe(|| GrowableBuffer::new(rig.alloc.clone(), 0, STREAM, options)));
    assert!(seen.load(SeqCst) && begun.is_err());
    rig.alloc.set_event_hook(None);
    rig.alloc.empty_cache(None).unwrap();
    assert_eq!(rig.alloc.stats(0).unwrap().reserved_address_space, 0);
    rig.finish();
}

#[test]
fn a_callback_that_panics_keeps_no_hold_on_a_pool() {
    let rig = Rig::with("check_level:2", 16 * M);
    let pool = rig.pool("weights");
    let id = rig.alloc.add_memory_callback(Arc::new(|_, _| panic!("a callback's own trouble")));
    let asked = catch_unwind(AssertUnwindSafe(|| rig.alloc.allocate_in(pool, 64 * M, 0, STREAM)));
    assert!(asked.is_err() || asked.is_ok_and(|answer| answer.is_err()));
    let block = rig.alloc.allocate_in(pool, 12 * M, 0, STREAM).unwrap();
    let asked = catch_unwind(AssertUnwindSafe(|| rig.alloc.allocate_in(pool, 12 * M, 0, STREAM)));
    assert!(asked.is_err(), "the callback was called");
    assert!(rig.alloc.remove_memory_callback(id));
    rig.alloc.deallocate(block).unwrap();
    rig.alloc.release_pool(pool).unwrap();
    rig.alloc.empty_cache(None).unwrap();
    let stats = rig.alloc.pool_stats(pool);
    assert!(matches!(stats, Err(Error::Argument { .. })), "it is gone: {stats:?}");
    rig.finish();
}

// ---- captures ----

/// A capture, and a graph, from before a reset ended with it.
#[test]
fn what_was_captured_before_a_reset_ends_nothing_that_came_after_it() {
    for finished in [false, true] {
        let rig = Rig::new();
        let pool = rig.pool("graph");
        let old = rig.alloc.capture(pool, RouteFilter::Stream(Stream(7))).unwrap();
        let old = if finished { Ok(old.finish()) } else { Err(old) };
        reset(&rig.sim, &rig.alloc);
        let idle = rig.alloc.allocate(0, 4 * M, 0, STREAM).unwrap();
        rig.alloc.deallocate(idle).unwrap();
        let new = rig.alloc.capture(pool, RouteFilter::Stream(Stream(8))).unwrap();
        drop(old);
        rig.alloc.empty_cache(None).unwrap();
        assert_eq!(rig.sim.count("aclrtUnmapMem"), 0, "a graph is being captured");
        let graph = new.finish();
        assert_eq!(rig.alloc.pool_stats(pool).unwrap().graphs, 1, "a graph holds it");
        drop(graph);
        rig.finish();
    }
}

#[test]
fn a_graph_from_before_a_reset_leaves_a_pool_that_sleeps_alone() {
    let rig = Rig::new();
    let pool = rig.pool("graph");
    let old = rig.alloc.capture(pool, RouteFilter::Stream(Stream(7))).unwrap().finish();
    reset(&rig.sim, &rig.alloc);
    let [kept, freed] = [4 * M; 2].map(|bytes| rig.alloc.allocate_in(pool, bytes, 0, STREAM).unwrap());
    rig.alloc.deallocate(freed).unwrap();
    rig.alloc.sleep(None, &["graph"], SleepMode::Discard).unwrap();
    drop(old);
    rig.alloc.check().unwrap();
    rig.alloc.wake(None, &["graph"]).unwrap();
    rig.alloc.deallocate(kept).unwrap();
    rig.finish();
}

/// Work that is being captured may hold any address, and chunks that were mapped once may be part of it.
#[test]
fn growing_and_waking_give_nothing_back_during_a_capture() {
    let rig = Rig::with("check_level:2", 64 * M);
    let (weights, graph) = (rig.pool("weights"), rig.pool("graph"));
    let block = rig.alloc.allocate(0, 2 * M, 0, STREAM).unwrap();
    let idle = rig.alloc.allocate(0, 6 * M, 0, STREAM).unwrap();
    rig.alloc.deallocate(idle).unwrap();
    rig.sim.fail("aclrtFreePhysical", 1, REFUSED, true).unwrap();
    let emptied = rig.alloc.empty_cache(None);
    assert!(matches!(emptied, Err(Error::Driver(_))), "{emptied:?}");
    rig.sim.clear_faults();
    let cached = rig.cached();
    assert!(cached > 0);
    let capture = rig.alloc.capture(graph, RouteFilter::Stream(Stream(7))).unwrap();
    rig.alloc.grow_in_place(block, 2 * M).unwrap();
    assert_eq!(rig.cached(), cached);
    drop(capture);
    rig.alloc.empty_cache(None).unwrap();

    let asleep = rig.alloc.allocate_in(weights, 8 * M, 0, STREAM).unwrap();
    rig.alloc.sleep(None, &["weights"], SleepMode::Discard).unwrap();
    let idle = rig.alloc.allocate(0, 60 * M, 0, STREAM).unwrap();
    rig.alloc.deallocate(idle).unwrap();
    let capture = rig.alloc.capture(graph, RouteFilter::Stream(Stream(7))).unwrap();
    let (unmapped, freed) = (rig.sim.count("aclrtUnmapMem"), rig.sim.count("aclrtFreePhysical"));
    let woken = rig.alloc.wake(None, &["weights"]);
    assert!(matches!(woken, Err(Error::OutOfMemory(_))), "{woken:?}");
    assert_eq!(rig.sim.count("aclrtUnmapMem"), unmapped, "nothing is moved");
    // What it had made for itself goes back.
    assert!(rig.sim.count("aclrtFreePhysical") <= freed + 1 && rig.cached() == 0);
    drop(capture);
    rig.alloc.wake(None, &["weights"]).unwrap();
    [asleep, block].into_iter().for_each(|ptr| rig.alloc.deallocate(ptr).unwrap());
    rig.finish();
}

/// Restoring changes all or nothing.
#[test]
fn a_checkpoint_is_not_restored_by_half() {
    let rig = Rig::new();
    let pool = rig.pool("graph");
    let [a, b] = [4 * M; 2].map(|bytes| rig.alloc.allocate_in(pool, bytes, 0, STREAM).unwrap());
    let checkpoint = rig.alloc.checkpoint(pool).unwrap();
    let (weak, saved) = (rig.weak().1, checkpoint.clone());
    rig.once_at("aclrtMapMem", move || {
        let restored = weak.upgrade().unwrap().restore(&saved);
        assert!(matches!(restored, Err(Error::State { .. })), "{restored:?}");
    });
    assert!(rig.alloc.grow_in_place(b, 8 * M).unwrap());
    assert_eq!(rig.alloc.block_info(a).unwrap().address, a.0);
    let restored = rig.alloc.restore(&checkpoint).unwrap();
    assert_eq!(restored.allocated, [a, b]);
    [a, b].into_iter().for_each(|ptr| rig.alloc.deallocate(ptr).unwrap());
    rig.finish();
}

// ---- resets ----

#[test]
fn a_block_that_was_growing_when_the_device_was_reset_is_freed_once() {
    let rig = Rig::new();
    let block = rig.alloc.allocate(0, 4 * M, 0, STREAM).unwrap();
    let weak = rig.weak();
    rig.once_at("aclrtMapMem", move || reset_weak(&weak));
    was_reset(rig.alloc.grow_in_place(block, 40 * M));
    rig.alloc.deallocate(block).expect("its owner may free it once");
    let again = rig.alloc.deallocate(block);
    assert!(matches!(again, Err(Error::Pointer { .. })), "{again:?}");
}

#[test]
fn a_name_of_a_chunk_that_is_gone_is_not_kept() {
    let rig = Rig::new();
    let block = rig.alloc.allocate(0, 2 * M, 0, STREAM).unwrap();
    let weak = rig.weak();
    rig.once_at(NAMED, move || reset_weak(&weak));
    was_reset(rig.alloc.export(block, &ExportOptions::default()).map(drop));
    rig.alloc.deallocate(block).unwrap();
}

/// A reservation is gone, too, where grants for other chunks are caught up with after it.
#[test]
fn a_reset_while_grants_are_caught_up_with_takes_the_new_segment() {
    let rig = Rig::new();
    let pool = rig.pool("weights");
    rig.alloc.set_peers(0, &[1]).unwrap();
    rig.alloc.allocate_in(pool, 8 * M, 0, STREAM).unwrap();
    rig.sim.fail("aclrtUnmapMem", 3, REFUSED, false).unwrap();
    rig.sim.fail("aclrtMemSetAccess", 1, REFUSED, true).unwrap();
    let slept = rig.alloc.sleep(None, &["weights"], SleepMode::Discard);
    assert!(matches!(slept, Err(Error::Driver(_))), "{slept:?}");
    rig.sim.clear_faults();
    let weak = rig.weak();
    rig.once_at("aclrtMemSetAccess", move || reset_weak(&weak));
    let buffer = GrowableBuffer::new(rig.alloc.clone(), 0, STREAM, GrowableOptions::up_to(64 * M));
    was_reset(buffer.map(drop));
    rig.alloc.check().unwrap();
}

#[test]
fn a_reset_takes_large_fixed_blocks_out_of_the_statistics() {
    let rig = Rig::with(&format!("{CLASSIC},max_split_size_mb:20"), 256 * M);
    rig.alloc.allocate(0, 40 * M, 0, STREAM).unwrap();
    assert_eq!(rig.alloc.stats(0).unwrap().oversize_segments.current, 1);
    reset(&rig.sim, &rig.alloc);
    let stats = rig.alloc.stats(0).unwrap();
    assert_eq!((stats.oversize_segments.current, stats.oversize_allocations.current), (0, 0));
}

/// The block that was kept back for a stale one was the last one of its pool.
#[test]
fn the_last_stale_block_of_a_sleeping_pool_ends_its_sleep() {
    let rig = Rig::new();
    let pool = rig.pool("weights");
    let stale = rig.alloc.allocate_in(pool, 4 * M, 0, STREAM).unwrap();
    rig.reset_to_the_same_addresses();
    let block = rig.alloc.allocate_in(pool, 4 * M, 0, STREAM).unwrap();
    let kept_back = rig.alloc.snapshot(0).unwrap().segments[0].blocks[0].address;
    assert!(kept_back == stale.0 && block != stale);
    rig.alloc.sleep(None, &["weights"], SleepMode::Offload).unwrap();
    rig.alloc.deallocate(block).unwrap();
    assert!(rig.alloc.is_asleep(pool).unwrap());
    rig.alloc.deallocate(stale).unwrap();
    assert!(!rig.alloc.is_asleep(pool).unwrap());
    assert_eq!(rig.sim.count("aclrtMallocHost"), rig.sim.count("aclrtFreeHost"));
    rig.alloc.check().unwrap();
}

// ---- streams ----

/// A request that looks whether waiting for the device would help, and does not wait, ends nobody's epoch.
#[test]
fn the_epoch_of_a_stream_that_is_gone_is_not_forgotten() {
    let rig = Rig::with("check_level:2,device_waits:False", 4096 * M);
    let peak = rig.alloc.allocate(0, 1200 * M, 0, STREAM).unwrap();
    rig.alloc.deallocate(peak).unwrap();
    rig.alloc.empty_cache(None).unwrap();
    let source: Arc<dyn PoolSource> = Arc::new(Elsewhere(u64::MAX));
    let mut options = PoolOptions::default();
    options.source = Some(source);
    let elsewhere = rig.alloc.create_pool(0, options).unwrap();
    let foreign = rig.alloc.allocate_in(elsewhere, 1200 * M, 0, STREAM).unwrap();
    let much = rig.alloc.allocate(0, 600 * M, 0, STREAM).unwrap();
    let (gone, user) = (rig.stream(), rig.stream());
    let left = rig.alloc.allocate(0, 8 * M, 0, gone).unwrap();
    let waits = rig.alloc.allocate(0, 4 * M, 0, STREAM).unwrap();
    rig.alloc.record_stream(waits, user).unwrap();
    rig.alloc.deallocate(left).unwrap();
    rig.alloc.stream_destroyed(0, gone).unwrap();
    rig.alloc.deallocate(waits).unwrap();
    let again = rig.alloc.allocate(0, 4 * M, 0, STREAM).unwrap();
    [again, foreign, much].into_iter().for_each(|ptr| rig.alloc.deallocate(ptr).unwrap());
    rig.finish();
}
