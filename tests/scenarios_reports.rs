//! More public reports, beyond bug-scenarios.md, about streams and memory pressure: each as a script in own words, with
//! what its reporter would expect.

mod common;

use std::sync::{Arc, Mutex};

use ascend_alloc::driver::{DeviceId, Stream};
use ascend_alloc::error::OutOfMemoryCause;
use ascend_alloc::{
    DevicePtr, Error, GrowableBuffer, GrowableOptions, PoolOptions, PoolSource, RouteFilter, SleepMode,
};
use ascend_sim::{CaptureMode, CaptureStatus, Sim};
use common::{CLASSIC, G, K, M, Setup, World};

const MODES: [&str; 4] = ["", "device_waits:False", "large_segment_size_mb:12", CLASSIC];

fn modes() -> impl Iterator<Item = (&'static str, World)> {
    MODES.into_iter().map(|conf| (conf, Setup::default().conf(conf).capacity(256 * M).build()))
}

/// <https://github.com/cupy/cupy/issues/7678>: the limit counted what was free already.
#[test]
fn a_limit_does_not_count_what_is_free() {
    for (conf, mut world) in modes() {
        let (s0, s1) = (world.stream(), world.stream());
        world.alloc.set_memory_limit(0, Some(128 * M)).expect("a limit");
        for (bytes, stream) in [(64 * M, s0), (96 * M, s1), (3 * M, s0), (100 * M, s0), (128 * M, s1)] {
            let ptr = world.alloc(bytes, stream);
            world.work(stream, "use", ptr);
            world.share(s1, "side", ptr);
            assert!(world.reserved() <= 128 * M, "{conf}");
            world.free(ptr);
        }
        world.close();
    }
}

/// <https://github.com/modular/modular/issues/6801>: large blocks that come and go between small ones that stay, freed
/// while the device is behind.
#[test]
fn what_is_freed_behind_running_work_serves_a_larger_request() {
    for (conf, mut world) in modes().take(3) {
        let s0 = world.stream();
        for _ in 0..12 {
            let large = world.alloc(100 * M, s0);
            world.work(s0, "step", large);
            world.alloc(2 * M, s0);
            world.free(large);
        }
        let before = world.sim.counters();
        let larger = world.alloc(200 * M, s0);
        let calls = world.calls_since(&before);
        assert_eq!(calls.get("aclrtSynchronizeDevice"), None, "{conf}");
        assert_eq!(world.allocated(), 224 * M, "{conf}");
        world.work(s0, "larger", larger);
        world.close();
    }
}

/// Memory of the device by way of functions, as a plug-in for a pool has it.
struct Plug {
    sim: Sim,
    given: Mutex<u64>,
}

impl PoolSource for Plug {
    fn allocate(&self, device: DeviceId, bytes: u64, _: Stream) -> Option<u64> {
        let address = self.sim.on_device(device, || self.sim.malloc_align32(bytes, 0)).ok()?.ok()?;
        *self.given.lock().unwrap() += bytes;
        Some(address)
    }

    fn free(&self, device: DeviceId, address: u64, bytes: u64) {
        self.sim.on_device(device, || self.sim.free(address)).unwrap().expect("freed");
        *self.given.lock().unwrap() -= bytes;
    }
}

/// <https://github.com/pytorch/pytorch/issues/159674>: in a pool with functions of its own nothing was given back before
/// the request failed.
#[test]
fn a_pool_with_functions_gives_back_before_it_fails() {
    for (conf, world) in modes() {
        let alloc = world.alloc.clone();
        let s0 = world.stream();
        let plug = Arc::new(Plug { sim: world.sim.clone(), given: Mutex::default() });
        let source: Arc<dyn PoolSource> = plug.clone();
        let mut options = PoolOptions::tagged("plug");
        options.source = Some(source);
        let pool = alloc.create_pool(0, options).unwrap();
        for mib in [120, 140, 200, 250] {
            let route = alloc.route(pool, RouteFilter::ThisThread).unwrap();
            let ptr =
                alloc.allocate(0, mib * M, 0, s0).unwrap_or_else(|error| panic!("{conf}: {mib}: {error}"));
            drop(route);
            alloc.deallocate(ptr).unwrap();
            assert!(*plug.given.lock().unwrap() <= 256 * M);
        }
        alloc.release_pool(pool).unwrap();
        assert_eq!(*plug.given.lock().unwrap(), 0, "{conf}: nobody else can use it");
        world.alloc.check().unwrap();
    }
}

/// <https://github.com/vllm-project/vllm-ascend/issues/9563>: each round of sleep and wake left more memory with the
/// process.
#[test]
fn rounds_of_sleep_and_wake_leave_no_more_each_time() {
    let mut world = Setup::default().capacity(256 * M).build();
    let alloc = world.alloc.clone();
    let s0 = world.stream();
    let pool = alloc.create_pool(0, PoolOptions::tagged("weights")).unwrap();
    let weights = alloc.allocate_in(pool, 100 * M, 0, s0).unwrap();
    world.note_new(0, weights, 100 * M, 0, s0);
    let mut after_sleep = Vec::new();
    for round in 0..8 {
        let workspace = world.alloc((40 + round) * M, s0);
        let small = world.alloc(300 * K, s0);
        world.work(s0, "step", workspace);
        world.free(workspace);
        alloc.sleep(Some(0), &["weights"], SleepMode::Discard).unwrap();
        world.asleep.insert(weights.0);
        after_sleep.push(world.sim.physical_bytes(0));
        // Another model takes nearly all that was given up.
        let held = world.sim.physical_bytes(0);
        world.sim.set_foreign_bytes(0, 256 * M - held - 2 * M);
        assert!(matches!(alloc.wake(Some(0), &["weights"]), Err(Error::OutOfMemory(_))));
        world.sim.set_foreign_bytes(0, 150 * M);
        alloc.wake(Some(0), &["weights"]).expect("what the default pool has idle serves");
        world.sim.set_foreign_bytes(0, 0);
        world.asleep.clear();
        world.write_marks(weights.0, &world.live[&weights.0]);
        world.free(small);
    }
    assert!(after_sleep.iter().all(|&held| held <= 50 * M), "{after_sleep:?}");
    alloc.sleep(Some(0), &["weights"], SleepMode::Discard).unwrap();
    alloc.empty_cache(None).unwrap();
    assert_eq!(world.sim.physical_bytes(0), 0);
    alloc.wake(Some(0), &["weights"]).unwrap();
    world.write_marks(weights.0, &world.live[&weights.0]);
    world.free(weights);
    alloc.release_pool(pool).unwrap();
    drop(alloc);
    world.close();
}

/// <https://github.com/pytorch/pytorch/issues/193982>: an event recorded on a stream that a thread captures was asked
/// about by a request on another stream.
#[test]
fn a_stream_that_somebody_captures_is_asked_nothing() {
    for (conf, mut world) in modes() {
        let (captured, s0) = (world.stream(), world.stream());
        let [pending, spare, large] = [9, 9, 100].map(|mib| world.alloc(mib * M, s0));
        world.free(spare);
        world
            .sim
            .on_device(0, || world.sim.capture_begin(captured.0, CaptureMode::ThreadLocal))
            .unwrap()
            .unwrap();
        for ptr in [pending, large] {
            world.record(ptr, captured);
            world.free(ptr);
        }
        let ptr = world.alloc(9 * M, s0);
        let report = world.alloc_fails(200 * M, s0);
        assert!(report.pending.iter().any(|held| held.stream == captured), "{conf}: {report}");
        let status = world.sim.on_device(0, || world.sim.capture_get_info(captured.0)).unwrap().unwrap().0;
        assert_eq!(status, CaptureStatus::Active, "{conf}");
        world.sim.on_device(0, || world.sim.capture_end(captured.0)).unwrap().unwrap();
        let after = world.alloc(200 * M, s0);
        world.free(after);
        world.free(ptr);
        world.close();
    }
}

/// <https://github.com/pytorch/pytorch/issues/196258>: with another device current, memory was unmapped under running work.
#[test]
fn emptying_waits_for_the_device_that_is_emptied() {
    for conf in MODES {
        let mut world = Setup::default().conf(conf).devices(2).build();
        let (s0, other) = (world.stream_on(0), world.stream_on(1));
        let ptr = world.alloc(40 * M, s0);
        world.work(s0, "t", ptr);
        world.free(ptr);
        world.set_device(1);
        let kept = world.try_alloc(1, 4 * M, 0, other).unwrap();
        world.work(other, "u", kept);
        world.alloc.empty_cache(Some(0)).unwrap();
        world.verify();
        assert_eq!((world.reserved(), world.sim.get_device()), (0, Ok(1)), "{conf}");
        world.close();
    }
}

/// <https://github.com/AMReX-Codes/amrex/pull/4531>: vectors that grow one after the other took twice their memory.
#[test]
fn vectors_that_grow_one_after_the_other_take_one_more() {
    for conf in ["", "large_segment_size_mb:12"] {
        let mut world = Setup::default().conf(conf).capacity(4 * G).build();
        let s0 = world.stream();
        let mut vectors: Vec<DevicePtr> = (0..16).map(|_| world.alloc(48 * M, s0)).collect();
        for vector in &mut vectors {
            let larger = world.alloc(50 * M, s0);
            world.free(core::mem::replace(vector, larger));
        }
        let peak = 17 * 50 * M;
        assert!(world.reserved() <= peak + peak / 20, "{conf}: {}", world.reserved());
        world.close();
    }
}

/// <https://github.com/pytorch/pytorch/issues/126766> and <https://github.com/pytorch/pytorch/issues/121932>: the text broke
/// off for absurd sizes, and did not say what graphs hold.
#[test]
fn the_text_says_what_there_is_whatever_was_asked_for() {
    let mut world = Setup::default().capacity(256 * M).build();
    let alloc = world.alloc.clone();
    let s0 = world.stream();
    let pool = alloc.create_pool(0, PoolOptions::tagged("decode graph")).unwrap();
    let capture = alloc.capture(pool, RouteFilter::ThisThread).unwrap();
    let ptr = alloc.allocate(0, 90 * M, 0, s0).unwrap();
    alloc.deallocate(ptr).unwrap();
    let graph = capture.finish();
    for bytes in [200 * M, 1_000_000_000_000] {
        let report = world.alloc_fails(bytes, s0);
        assert_eq!((report.cause, report.device_free), (OutOfMemoryCause::Device, 166 * M));
        assert!(
            report.remedies.iter().any(|remedy| remedy.change.contains("graph") && remedy.bytes >= 90 * M)
        );
        let text = report.to_string();
        for part in ["166 MiB free of 256 MiB", "decode graph", "90 MiB idle"] {
            assert!(text.contains(part), "{part:?} is missing: {text}");
        }
    }
    drop(graph);
    alloc.release_pool(pool).unwrap();
    drop(alloc);
    world.close();
}

/// <https://github.com/NVIDIA/cuda-python/pull/2474>: address space that frees behind running work still held was not
/// waited for.
#[test]
fn address_space_behind_running_work_is_had_by_waiting() {
    for conf in ["", "device_waits:False"] {
        let mut setup = Setup::default().conf(conf).capacity(256 * M);
        setup.sim.va_budget = Some(2 * G);
        let mut world = setup.build();
        let (s0, s1) = (world.stream(), world.stream());
        let probe = world.alloc(4 * M, s0);
        let options = || GrowableOptions::up_to(G).at_least(G).beginning_with(20 * M);
        let first = GrowableBuffer::new(world.alloc.clone(), 0, s0, options()).expect("address space");
        world.work(s0, "t", probe);
        drop(first);
        let larger = GrowableOptions::up_to(G + G / 8).at_least(G + G / 8).beginning_with(20 * M);
        let second = GrowableBuffer::new(world.alloc.clone(), 0, s1, larger);
        let second = second.or_else(|_| GrowableBuffer::new(world.alloc.clone(), 0, s1, options()));
        let second = second.unwrap_or_else(|error| panic!("{conf}: {error}"));
        world.alloc.check().unwrap();
        drop(second);
        world.close();
    }
}

/// <https://github.com/ml-explore/mlx/issues/2099>: a function that runs on a stream frees memory while a request waits
/// for that stream.
#[test]
fn a_function_on_a_stream_may_free_while_a_request_waits_for_it() {
    for (conf, mut world) in modes() {
        let (s0, s1) = (world.stream(), world.stream());
        let large = world.alloc(200 * M, s0);
        let other = world.alloc(4 * M, s0);
        world.work(s0, "t", large);
        let (alloc, done) = (world.alloc.clone(), Arc::new(Mutex::new(false)));
        let told = done.clone();
        let work = move || {
            alloc.deallocate(other).expect("freed");
            alloc.stats(0).expect("statistics");
            *told.lock().unwrap() = true;
        };
        world
            .sim
            .on_device(0, || world.sim.executor().launch_host_func(0, s0.0, Box::new(work)))
            .unwrap()
            .unwrap();
        world.live.remove(&other.0);
        world.live.remove(&large.0);
        world.alloc.deallocate(large).expect("freed");
        let ptr = world.try_alloc(0, 230 * M, 0, s1).unwrap_or_else(|error| panic!("{conf}: {error}"));
        assert!(*done.lock().unwrap(), "{conf}: the stream has passed it");
        world.free(ptr);
        world.close();
    }
}

/// <https://github.com/pytorch/pytorch/issues/50925>: giving memory back waited for all of the device, and so for work that
/// another thread was still queueing the second half of.
#[test]
fn a_request_waits_for_no_stream_that_holds_nothing_it_lacks() {
    for (conf, mut world) in modes() {
        let (s0, s1, collective) = (world.stream(), world.stream(), world.stream());
        let [_stays, goes, used] =
            [(100, s0), (100, s1), (20, collective)].map(|(mib, stream)| world.alloc(mib * M, stream));
        world.work(s1, "step", goes);
        world.work(collective, "first half", used);
        world.free(goes);
        let before = world.sim.counters();
        let ptr = world.alloc(110 * M, s0);
        let calls = world.calls_since(&before);
        assert_eq!(calls.get("aclrtSynchronizeDevice"), None, "{conf}");
        assert!(!world.sim.executor().stream_query(0, collective.0).unwrap(), "{conf}: it still runs");
        world.free(ptr);
        world.close();
    }
}

/// <https://github.com/PaddlePaddle/PaddleCustomDevice/pull/1026>: what was noted of streams outlived them.
#[test]
fn streams_that_come_and_go_leave_no_events_and_no_memory_behind() {
    for (conf, mut world) in modes() {
        let s0 = world.stream();
        for round in 0..200 {
            let side = world.stream();
            let ptr = world.alloc(10 * M, s0);
            world.share(side, "side", ptr);
            world.free(ptr);
            if round % 2 == 0 {
                world.finish(side);
            }
            world.destroy(side);
        }
        world.finish(s0);
        world.alloc(40 * M, s0);
        let events = world.sim.count("aclrtCreateEventExWithFlag") - world.sim.count("aclrtDestroyEvent");
        assert!(events <= 16, "{conf}: {events} events");
        assert!(world.reserved() <= 60 * M, "{conf}: {} are held", world.reserved());
        world.close();
    }
}
