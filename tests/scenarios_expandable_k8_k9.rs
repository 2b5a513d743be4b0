//! Public bug reports as scripts, in expandable mode: devices and threads, observers, limits and errors (the
//! kinds K8 and K9 of the collection). The others are in `scenarios_expandable`.

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};

use ascend_alloc::error::OutOfMemoryCause;
use ascend_alloc::hook::{Action, MemoryEvent};
use ascend_sim::{ExecMode, Task};
use common::{G, M, Setup, refused_by_driver, scripts};

#[test]
fn b35_the_current_device_is_left_alone() {
    for conf in ["", common::CLASSIC] {
        let mut world = Setup::default().devices(2).conf(conf).build();
        let s1 = world.stream_on(1);
        let s2 = world.stream_on(0);
        world.set_device(1);
        let a = world.try_alloc(1, 4 * M, 0, s1).expect("memory");
        world.free(a);
        world.alloc.empty_cache(Some(1)).expect("emptied");
        world.verify();
        // Nothing was asked about a device that was never used.
        let before = world.sim.counters();
        let zeros = ascend_alloc::Stats { max_split_size: -1, ..ascend_alloc::Stats::default() };
        assert_eq!(world.alloc.stats(0).expect("zeros"), zeros);
        assert!(world.alloc.snapshot(0).expect("nothing").segments.is_empty());
        world.alloc.empty_cache(None).expect("emptied");
        assert_eq!(world.alloc.trim(0, 0).expect("nothing"), 0);
        assert_eq!(world.calls_since(&before), BTreeMap::new());
        // A thread without a device frees, and still has none.
        let b = world.try_alloc(1, 4 * M, 0, s1).expect("memory");
        let other = world.stream_on(1);
        world.record(b, other);
        world.work(other, "t", b);
        world.live.remove(&b.0);
        std::thread::scope(|scope| {
            let (alloc, sim) = (&world.alloc, &world.sim);
            scope.spawn(move || {
                alloc.deallocate(b).expect("freed");
                alloc.empty_cache(Some(1)).expect("emptied");
                assert_eq!(sim.get_device(), Err(107_002));
            });
        });
        world.verify();
        // A block of device 0 is freed while device 1 is current.
        let c = world.try_alloc(0, 4 * M, 0, s2).expect("memory");
        let third = world.stream_on(0);
        world.record(c, third);
        world.work(third, "t", c);
        world.free(c);
        world.alloc.empty_cache(None).expect("emptied");
        world.verify();
        world.close();
    }
}

/// B40: an observer that uses the allocator while it is told.
#[test]
fn b40_an_observer_may_use_the_allocator() {
    let mut world = Setup::default().build();
    let s0 = world.stream();
    let x = world.alloc(300 * M, s0);
    let seen = Arc::new(AtomicU64::new(0));
    let inside = Arc::new(AtomicBool::new(false));
    let alloc = Arc::downgrade(&world.alloc);
    let observer = {
        let (seen, inside) = (seen.clone(), inside.clone());
        move |event: &MemoryEvent| {
            if event.action != Action::OutOfMemory || inside.swap(true, Relaxed) {
                return;
            }
            assert_eq!(event.bytes, 900 * M);
            let alloc = alloc.upgrade().expect("alive");
            assert_eq!(alloc.stats(0).expect("statistics").num_ooms, 1);
            assert!(!alloc.snapshot(0).expect("a snapshot").segments.is_empty());
            alloc.deallocate(x).expect("freed");
            let small = alloc.allocate(0, 512, 0, s0).expect("memory");
            alloc.deallocate(small).expect("freed");
            inside.store(false, Relaxed);
            seen.fetch_add(1, Relaxed);
        }
    };
    world.alloc.set_event_hook(Some(Arc::new(observer)));
    let report = world.alloc.allocate(0, 900 * M, 0, s0);
    assert!(matches!(report, Err(ascend_alloc::Error::OutOfMemory(_))), "{report:?}");
    assert_eq!(seen.load(Relaxed), 1);
    world.alloc.set_event_hook(None);
    world.live.remove(&x.0);
    world.verify();
    world.alloc(900 * M, s0);
    world.close();
}

/// B40: an observer that panics breaks nothing.
#[test]
fn b40_an_observer_may_panic() {
    let mut world = Setup::default().build();
    let s0 = world.stream();
    let a = world.alloc(20 * M, s0);
    world.alloc.set_event_hook(Some(Arc::new(|_: &MemoryEvent| panic!("the observer"))));
    let alloc = world.alloc.clone();
    let free = std::panic::AssertUnwindSafe(|| alloc.deallocate(a));
    std::panic::catch_unwind(free).expect_err("the observer's panic comes through");
    world.alloc.set_event_hook(None);
    drop(alloc);
    world.live.remove(&a.0);
    world.verify();
    let b = world.alloc(20 * M, s0);
    assert_eq!(b, a, "the free was done");
    world.close();
}

/// B40: an observer that panics when it is told that memory is out; the panic comes through, and nothing else.
#[test]
fn b40_an_observer_of_a_failure_may_panic() {
    for conf in ["", common::CLASSIC] {
        let mut world = Setup::default().conf(conf).build();
        let s0 = world.stream();
        let a = world.alloc(600 * M, s0);
        world.alloc.set_event_hook(Some(Arc::new(|event: &MemoryEvent| {
            if event.action == Action::OutOfMemory {
                std::panic::resume_unwind(Box::new("the observer"));
            }
        })));
        let request = std::panic::AssertUnwindSafe(|| world.alloc.allocate(0, 600 * M, 0, s0));
        let thrown = std::panic::catch_unwind(request).expect_err("the observer's panic comes through");
        assert_eq!(thrown.downcast_ref::<&str>(), Some(&"the observer"));
        world.verify();
        assert_eq!((world.stats().num_ooms, world.allocated()), (1, 600 * M));
        let alloc = &world.alloc;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let small = alloc.allocate(0, 512, 0, s0).expect("memory");
                alloc.deallocate(small).expect("freed");
            });
        });
        world.alloc.set_event_hook(None);
        world.free(a);
        world.alloc(600 * M, s0);
        world.close();
    }
}

/// B40: what the hook is told, in order, of a life of memory.
#[test]
fn b40_the_hook_is_told_of_everything() {
    let mut world = Setup::default().build();
    let (s0, s1) = (world.stream(), world.stream());
    let (send, events) = mpsc::channel();
    let send = std::sync::Mutex::new(send);
    world.alloc.set_event_hook(Some(Arc::new(move |event: &MemoryEvent| {
        send.lock().expect("no panic").send(*event).expect("somebody listens");
    })));
    let told = |expected: &[(Action, u64)]| {
        // One event a chunk or one a range: the bytes of neighbouring events add up.
        let mut actions: Vec<(Action, u64)> = Vec::new();
        for event in events.try_iter() {
            let event: MemoryEvent = event;
            match actions.last_mut() {
                Some((action, bytes)) if *action == event.action => *bytes += event.bytes,
                _ => actions.push((event.action, event.bytes)),
            }
        }
        assert_eq!(actions, expected);
    };
    let a = world.alloc(600 * M, s0);
    told(&[(Action::Map, 600 * M), (Action::Allocate, 600 * M)]);
    world.work(s1, "t1", a);
    world.record(a, s1);
    world.free(a);
    told(&[(Action::FreeRequested, 600 * M)]);
    world.finish(s1);
    let b = world.alloc(600 * M, s0);
    told(&[(Action::FreeCompleted, 600 * M), (Action::Allocate, 600 * M)]);
    world.alloc_fails(600 * M, s0);
    told(&[(Action::OutOfMemory, 600 * M)]);
    world.free(b);
    told(&[(Action::FreeRequested, 600 * M), (Action::FreeCompleted, 600 * M)]);
    world.alloc.empty_cache(None).expect("emptied");
    told(&[(Action::Wait, 0), (Action::Unmap, 600 * M)]);
    world.alloc.set_event_hook(None);
    world.close();
}

/// B40: a request that waits on the host holds no lock.
#[test]
fn b40_a_wait_holds_no_lock() {
    let mut setup = Setup::default();
    setup.sim.exec_mode = ExecMode::Threads;
    // The task begins at once and ends when it is told.
    setup.sim.lag = 0;
    let mut world = setup.build();
    let (s0, s1) = (world.stream(), world.stream());
    let y = world.alloc(20 * M, s1);
    let a = world.alloc(600 * M, s0);
    let (release, released) = mpsc::channel::<()>();
    let (began, has_begun) = mpsc::channel::<()>();
    let t1 = Task::new("t1").writes(a.0, 600 * M, world.live[&a.0].tag).works(move || {
        began.send(()).expect("somebody waits");
        released.recv().expect("released");
    });
    world.sim.on_device(0, || world.sim.submit(s0.0, t1)).unwrap().expect("queued");
    world.driver.hold(s0);
    has_begun.recv().expect("begun");
    world.live.remove(&a.0);
    world.live.remove(&y.0);
    world.alloc.deallocate(a).expect("freed");
    let alloc = &world.alloc;
    std::thread::scope(|scope| {
        // 700M on another stream need chunks of A to move, which must wait for t1.
        let large = scope.spawn(|| alloc.allocate(0, 700 * M, 0, s1));
        let small = scope.spawn(|| {
            while alloc.stats(0).expect("statistics").calls.record_event == 0 {
                std::thread::yield_now();
            }
            alloc.deallocate(y).expect("freed");
            let small = alloc.allocate(0, 512, 0, s1).expect("memory");
            release.send(()).expect("t1 waits");
            small
        });
        let small = small.join().expect("no panic");
        let large = large.join().expect("no panic").expect("memory");
        alloc.deallocate(small).expect("freed");
        alloc.deallocate(large).expect("freed");
    });
    world.verify();
    world.close();
}

/// B40: while a request waits, another thread takes what it hoped for. The request finds nothing and says so.
#[test]
fn b40_what_was_waited_for_is_given_once() {
    for conf in ["device_waits:False", common::CLASSIC] {
        let mut world = Setup::default().conf(conf).build();
        let (s0, s1) = (world.stream(), world.stream());
        let a = world.alloc(600 * M, s0);
        world.work(s1, "t1", a);
        world.record(a, s1);
        world.free(a);
        let (alloc, taken) = (Arc::downgrade(&world.alloc), Arc::new(AtomicU64::new(0)));
        let take = {
            let taken = taken.clone();
            move |call: &'static str| {
                if call == common::gate::PASSED && taken.load(Relaxed) == 0 {
                    let alloc = alloc.upgrade().expect("alive");
                    let other = std::thread::spawn(move || alloc.allocate(0, 600 * M, 0, s0));
                    let block = other.join().expect("no panic").expect("memory");
                    taken.store(block.address(), Relaxed);
                }
            }
        };
        world.driver.watch(Some(Arc::new(take)));
        let answer = world.alloc.allocate(0, 600 * M, 0, s0);
        world.driver.watch(None);
        assert_eq!(taken.load(Relaxed), a.address(), "{conf}");
        assert!(matches!(answer, Err(ascend_alloc::Error::OutOfMemory(_))), "{conf}: {answer:?}");
        assert_eq!((world.stats().num_ooms, world.allocated()), (1, 600 * M), "{conf}");
        world.alloc.deallocate(a).expect("the other thread's");
        assert_eq!(world.alloc(600 * M, s0), a, "{conf}");
        world.close();
    }
}

/// B40: after a failure of any call another thread can allocate.
#[test]
fn b40_no_lock_stays_taken_after_a_failure() {
    let calls = [
        "aclrtReserveMemAddress",
        "aclrtMallocPhysical",
        "aclrtMapMem",
        "aclrtMemSetAccess",
        "aclrtGetMemInfo",
        "aclrtMemGetAllocationGranularity",
    ];
    for call in calls {
        let mut world = Setup::default().build();
        let s0 = world.stream();
        world.sim.fail(call, 1, 507_899, false).expect("a function");
        let first = world.try_alloc(0, 4 * M, 0, s0);
        if call != "aclrtReserveMemAddress" {
            refused_by_driver(first, 507_899);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let small = world.alloc.allocate(0, 512, 0, s0).expect("memory");
                world.alloc.deallocate(small).expect("freed");
            });
        });
        world.verify();
        world.close();
    }
}

#[test]
fn b43_memory_fraction() {
    let mut world = Setup::default().capacity(1000 * M).build();
    world.alloc.set_memory_fraction(0, 0.5).expect("set");
    let s0 = world.stream();
    let a = world.alloc(300 * M, s0);
    world.free(a);
    let b = world.alloc(400 * M, s0);
    let stats = world.stats();
    assert_eq!(b, a);
    assert_eq!((stats.reserved_bytes.all.peak as u64, stats.num_alloc_retries), (400 * M, 0));
    let before = world.sim.counters();
    let report = world.alloc_fails(200 * M, s0);
    assert_eq!((report.cause, report.limit), (OutOfMemoryCause::Limit, Some(500 * M)));
    let calls = world.calls_since(&before);
    for call in ["aclrtMallocPhysical", "aclrtMapMem", "aclrtMallocAlign32"] {
        assert_eq!(calls.get(call), None, "{call}");
    }
    assert_eq!(world.stats().num_ooms, 1);
    world.alloc.set_memory_fraction(0, 0.2).expect("set");
    let report = world.alloc_fails(512, s0);
    assert_eq!((report.cause, report.limit), (OutOfMemoryCause::Limit, Some(200 * M)));
    world.free(b);
    world.alloc.empty_cache(Some(0)).expect("emptied");
    world.alloc(100 * M, s0);
    world.close();
}

#[test]
fn b43_fractions() {
    scripts::b43_fractions(Setup::default());
}

/// B46 with 42 MiB instead of 20, so that one chunk must be made beside the 20 that are idle.
#[test]
fn b46_codes_are_kept() {
    let mut world = Setup::default().build();
    let (s0, s1) = (world.stream(), world.stream());
    let cached = world.alloc(40 * M, s1);
    world.work(s1, "t1", cached);
    world.free(cached);
    world.sim.fail("aclrtMallocPhysical", 1, 507_899, false).expect("a function");
    refused_by_driver(world.try_alloc(0, 42 * M, 0, s0), 507_899);
    world.verify();
    let stats = world.stats();
    assert_eq!((stats.num_ooms, stats.num_alloc_retries), (0, 0));
    assert_eq!((world.reserved(), stats.cached_handles), (40 * M, 0), "stays cached");
    world.sim.fail("aclrtMallocPhysical", 1, 207_001, false).expect("a function");
    let a = world.alloc(42 * M, s0);
    world.work(s0, "first use of A", a);
    let stats = world.stats();
    assert_eq!((stats.num_ooms, stats.num_alloc_retries), (0, 1));
    world.close();
}

#[test]
fn b46_a_device_is_set_up_the_second_time() {
    scripts::b46_a_device_is_set_up_the_second_time(Setup::default());
}

#[test]
fn b46_advice_fits_the_configuration() {
    for (conf, wanted, advises) in [("", 2 * G, false), (common::CLASSIC, 256 * M, true)] {
        let mut world = Setup::default().conf(conf).build();
        let s0 = world.stream();
        // One fixed block, of which every second part is idle: with growable segments that would be put together.
        let whole = world.alloc(1008 * M, s0);
        world.free(whole);
        let parts: Vec<_> = (0..14).map(|_| world.alloc(72 * M, s0)).collect();
        parts.iter().step_by(2).for_each(|&part| world.free(part));
        let report = world.alloc_fails(wanted, s0);
        assert_eq!(report.advice().contains("expandable_segments:True"), advises, "{}", report.advice());
        let text = ascend_alloc::Error::OutOfMemory(Box::new(report)).to_string();
        assert!(text.contains(&wanted.to_string()), "{text}");
        world.close();
    }
}
