//! A few scenarios in which every call of the driver fails once, at every place, with every code.
//!
//! After the failing operation the error says what happened, the books are right and nothing is
//! lost; the same operation without the fault then does what it should.

mod common;

use ascend_alloc::driver::{DeviceId, Stream};
use ascend_alloc::{Age, DevicePtr, EmptyOptions, Error, PoolOptions, Result, SleepMode};
use ascend_sim::SimConfig;
use common::{CLASSIC, G, M, Setup, World, assert_nothing_held, growing};

/// Chunks of 20 MiB where a request grows by as much.
const WIDE: &str = "large_segment_size_mb:20";

/// Codes a call may fail with: no memory, refused by the driver, no context, not supported.
const CODES: [i32; 4] = [207_001, 507_899, 107_002, 207_000];

/// Every call of the driver the allocator makes.
const CALLS: [&str; 18] = [
    "aclrtGetMemInfo",
    "aclrtMemGetAllocationGranularity",
    "aclrtReserveMemAddress",
    "aclrtReleaseMemAddress",
    "aclrtMallocPhysical",
    "aclrtFreePhysical",
    "aclrtMapMem",
    "aclrtUnmapMem",
    "aclrtMemSetAccess",
    "aclrtMallocAlign32",
    "aclrtFree",
    "aclrtCreateEventExWithFlag",
    "aclrtRecordEvent",
    "aclrtQueryEventStatus",
    "aclrtStreamWaitEvent",
    "aclrtSynchronizeEvent",
    "aclrtSynchronizeDevice",
    "aclmdlRICaptureGetInfo",
];

/// A prepared machine and the operation that is to fail.
struct Scenario {
    name: &'static str,
    setup: fn() -> Setup,
    prepare: fn(&mut World) -> Vec<Stream>,
    /// What is tried; once with the fault and once without. A block it hands out is noted by the world.
    operate: fn(&mut World, &[Stream]) -> Result<()>,
}

fn request(world: &mut World, device: DeviceId, bytes: u64, stream: Stream) -> Result<()> {
    let ptr = world.try_alloc(device, bytes, 0, stream)?;
    world.work(stream, "first use", ptr);
    Ok(())
}

const SCENARIOS: [Scenario; 16] = [
    Scenario {
        name: "the first request of a device",
        setup: Setup::default,
        prepare: |world| vec![world.stream()],
        operate: |world, streams| request(world, 0, 20 * M, streams[0]),
    },
    Scenario {
        name: "a request that moves chunks of another stream and makes some",
        setup: Setup::default,
        prepare: |world| {
            let streams = vec![world.stream(), world.stream()];
            let a = world.alloc(12 * M, streams[0]);
            let b = world.alloc(8 * M, streams[0]);
            world.alloc(2 * M, streams[0]);
            world.work(streams[0], "t1", a);
            world.free(a);
            world.free(b);
            streams
        },
        operate: |world, streams| request(world, 0, 24 * M, streams[1]),
    },
    Scenario {
        name: "a request that needs what work still uses",
        setup: || Setup::default().capacity(32 * M),
        prepare: |world| {
            let streams = vec![world.stream(), world.stream(), world.stream()];
            let a = world.alloc(12 * M, streams[0]);
            let b = world.alloc(12 * M, streams[0]);
            world.work(streams[0], "t1", a);
            world.share(streams[1], "t2", a);
            world.work(streams[0], "t3", b);
            world.free(a);
            world.free(b);
            streams
        },
        operate: |world, streams| request(world, 0, 28 * M, streams[2]),
    },
    Scenario {
        name: "growing in place",
        setup: Setup::default,
        prepare: |world| {
            let streams = vec![world.stream()];
            let a = world.alloc(6 * M, streams[0]);
            world.work(streams[0], "t1", a);
            streams
        },
        operate: |world, _| {
            let (&address, block) = world.live.iter().next().expect("a block");
            let bytes = block.requested + 6 * M;
            let grown = world.alloc.grow_in_place(DevicePtr(address), bytes)?;
            if grown {
                let info = world.alloc.block_info(DevicePtr(address)).expect("live");
                let mut block = world.live[&address].clone();
                (block.requested, block.bytes) = (bytes, info.bytes);
                world.write_marks(address, &block);
                world.live.insert(address, block);
            }
            if grown { Ok(()) } else { Err(no_room(bytes)) }
        },
    },
    Scenario {
        name: "trimming",
        setup: Setup::default,
        prepare: idle_memory,
        operate: |world, _| world.alloc.trim(0, 4 * M).map(|_| ()),
    },
    Scenario {
        name: "emptying",
        setup: Setup::default,
        prepare: idle_memory,
        operate: |world, _| world.alloc.empty_cache(None),
    },
    Scenario {
        name: "a classic request",
        setup: || Setup::default().conf(CLASSIC),
        prepare: |world| vec![world.stream()],
        operate: |world, streams| request(world, 0, 20 * M, streams[0]),
    },
    Scenario {
        name: "a classic request that needs what is cached",
        setup: || Setup::default().conf(CLASSIC).capacity(64 * M),
        prepare: |world| {
            let streams = vec![world.stream(), world.stream()];
            let a = world.alloc(24 * M, streams[0]);
            let b = world.alloc(24 * M, streams[0]);
            world.work(streams[0], "t1", a);
            world.share(streams[1], "t2", b);
            world.free(a);
            world.free(b);
            streams
        },
        operate: |world, streams| request(world, 0, 48 * M, streams[1]),
    },
    Scenario {
        name: "emptying classic segments",
        setup: || Setup::default().conf(CLASSIC),
        prepare: idle_memory,
        operate: |world, _| world.alloc.empty_cache(None),
    },
    Scenario {
        name: "a request that takes wide chunks",
        setup: || Setup::default().conf(WIDE),
        prepare: |world| vec![world.stream()],
        operate: |world, streams| request(world, 0, 45 * M, streams[0]),
    },
    Scenario {
        name: "a request that needs the memory of idle wide chunks",
        setup: || Setup::default().conf(WIDE).capacity(64 * M),
        prepare: |world| {
            let streams = vec![world.stream(), world.stream()];
            let blocks = [20, 4, 20, 4].map(|mib| world.alloc(mib * M, streams[0]));
            world.work(streams[0], "t1", blocks[0]);
            world.free(blocks[0]);
            world.free(blocks[2]);
            streams
        },
        operate: |world, streams| request(world, 0, 46 * M, streams[1]),
    },
    Scenario {
        name: "emptying wide chunks by age",
        setup: || Setup::default().conf(WIDE),
        prepare: |world| {
            let streams = vec![world.stream()];
            let blocks = [41, 3, 25].map(|mib| world.alloc(mib * M, streams[0]));
            blocks.iter().for_each(|&block| world.work(streams[0], "t", block));
            world.free(blocks[0]);
            world.free(blocks[2]);
            streams
        },
        operate: |world, _| {
            let options = EmptyOptions { min_age: Some(Age::Frees(0)), ..EmptyOptions::default() };
            world.alloc.empty_cache_with(None, &options).map(|_| ())
        },
    },
    Scenario {
        name: "a request beyond the soft limit",
        setup: || Setup::default().conf("soft_limit_mb:24"),
        prepare: |world| {
            let streams = vec![world.stream(), world.stream()];
            let blocks = [8, 4, 8].map(|mib| world.alloc(mib * M, streams[0]));
            world.work(streams[0], "t1", blocks[2]);
            world.free(blocks[0]);
            world.free(blocks[2]);
            streams
        },
        operate: |world, streams| request(world, 0, 24 * M, streams[1]),
    },
    Scenario {
        name: "a fixed block beyond the soft limit",
        setup: || Setup::default().conf("expandable_segments:False,soft_limit_mb:24"),
        prepare: |world| {
            let streams = vec![world.stream(), world.stream()];
            let blocks = [8, 20].map(|mib| world.alloc(mib * M, streams[0]));
            world.work(streams[0], "t1", blocks[0]);
            blocks.iter().for_each(|&block| world.free(block));
            streams
        },
        operate: |world, streams| request(world, 0, 30 * M, streams[1]),
    },
    Scenario {
        name: "memory that decays",
        setup: || Setup::default().conf("decay_ops:100,front_cache:False"),
        prepare: |world| {
            let streams = vec![world.stream(), world.stream()];
            let blocks = [30, 4, 20, 4].map(|mib| world.alloc(mib * M, streams[0]));
            world.work(streams[0], "t1", blocks[0]);
            world.free(blocks[0]);
            world.free(blocks[2]);
            // A block for the pairs below, so that each of them is served without the driver.
            world.free(blocks[3]);
            streams
        },
        operate: |world, streams| {
            // Whatever goes wrong while memory decays, no call of the program fails.
            for _ in 0..300 {
                let ptr = world.alloc.allocate(0, 4 * M, 0, streams[0])?;
                world.alloc.deallocate(ptr).expect("freed");
            }
            Ok(())
        },
    },
    Scenario {
        name: "a request that needs the memory of a stream that is gone",
        setup: || Setup::default().capacity(32 * M),
        prepare: |world| {
            world.sim.executor().set_destroy_waits(false);
            let streams = [world.stream(), world.stream()];
            let a = world.alloc(28 * M, streams[0]);
            world.work(streams[0], "t1", a);
            world.free(a);
            world.destroy(streams[0]);
            vec![streams[1]]
        },
        operate: |world, streams| request(world, 0, 28 * M, streams[0]),
    },
];

/// Free memory of two streams, with live blocks between.
fn idle_memory(world: &mut World) -> Vec<Stream> {
    let streams = vec![world.stream(), world.stream()];
    let blocks: Vec<DevicePtr> = (0..6).map(|n| world.alloc((4 + n) * M, streams[n as usize % 2])).collect();
    let small = world.alloc(1000, streams[0]);
    for (n, &block) in blocks.iter().enumerate() {
        world.work(streams[n % 2], "t", block);
    }
    world.share(streams[1], "u", blocks[2]);
    for &block in &[blocks[0], blocks[1], blocks[2], blocks[4], small] {
        world.free(block);
    }
    streams
}

const NO_ROOM: &str = "no room behind the block";

fn no_room(requested: u64) -> Error {
    Error::Size { requested, reason: NO_ROOM.into() }
}

/// What a failed operation may say.
fn assert_right_error(error: &Error, code: i32, what: &str) {
    match error {
        Error::OutOfMemory(_) => assert_eq!(code, 207_001, "{what}: {error}"),
        Error::Driver(error) => assert_eq!(error.code, code, "{what}: {error}"),
        Error::Size { reason, .. } if reason == NO_ROOM => {}
        error => panic!("{what}: {error}"),
    }
}

/// How often each call is made when nothing fails.
fn calls_of(scenario: &Scenario) -> Vec<(&'static str, u64)> {
    let mut world = (scenario.setup)().build();
    let streams = (scenario.prepare)(&mut world);
    let before = world.sim.counters();
    (scenario.operate)(&mut world, &streams).unwrap_or_else(|error| panic!("{}: {error}", scenario.name));
    world.verify();
    let calls = world.calls_since(&before);
    CALLS.iter().map(|&call| (call, calls.get(call).copied().unwrap_or(0))).collect()
}

/// Plays a scenario with one fault. `always` lets all calls from the `k`-th on fail until the operation is over.
fn play(scenario: &Scenario, call: &str, k: u64, code: i32, always: bool) {
    let what = format!("{}: call {k} of {call} answers {code}, always: {always}", scenario.name);
    let mut world = (scenario.setup)().build();
    let streams = (scenario.prepare)(&mut world);
    let live: Vec<u64> = world.live.keys().copied().collect();
    let allocated = world.allocated();
    world.sim.fail(call, k, code, always).expect("a function");
    let answer = (scenario.operate)(&mut world, &streams);
    world.sim.clear_faults();
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.verify()));
    assert!(checked.is_ok(), "{what}");
    match &answer {
        Ok(()) => {}
        Err(error) => {
            assert_right_error(error, code, &what);
            assert!(world.live.keys().eq(live.iter()), "{what}");
            assert_eq!(world.allocated(), allocated, "{what}");
            // No chunk is kept without an address.
            let held = matches!(call, "aclrtFreePhysical");
            assert!(held || world.stats().cached_handles == 0, "{what}: chunks are kept");
            (scenario.operate)(&mut world, &streams)
                .unwrap_or_else(|error| panic!("{what}: the second time: {error}"));
            world.verify();
        }
    }
    // Nothing is lost: everything can be freed, and the machine gets all back.
    world.free_all();
    world.alloc.empty_cache(None).unwrap_or_else(|error| panic!("{what}: emptied: {error}"));
    world.verify();
    assert_eq!(world.reserved(), 0, "{what}");
    let World { sim, alloc, devices, .. } = world;
    drop(alloc);
    assert_nothing_held(&sim, devices, false);
}

/// Plays every fault of the scenarios with these numbers.
fn play_all(scenarios: core::ops::Range<usize>) {
    for scenario in &SCENARIOS[scenarios] {
        for (call, count) in calls_of(scenario) {
            // One more than are made: a fault that does not strike changes nothing.
            for k in 1..=count + 1 {
                for code in CODES {
                    play(scenario, call, k, code, false);
                    if code != 107_002 {
                        play(scenario, call, k, code, true);
                    }
                }
            }
        }
    }
}

#[test]
fn requests() {
    play_all(0..3);
}

#[test]
fn growing_and_giving_back() {
    play_all(3..6);
}

#[test]
fn classic_segments() {
    play_all(6..9);
}

#[test]
fn wide_chunks() {
    play_all(9..12);
}

#[test]
fn limits_and_decay() {
    play_all(12..15);
}

#[test]
fn streams_that_are_gone() {
    play_all(15..16);
}

/// The scenarios do what their names say, or the faults would not strike where they should.
#[test]
fn the_scenarios_reach_the_calls() {
    let mut reached: Vec<&str> = Vec::new();
    for scenario in &SCENARIOS {
        reached.extend(calls_of(scenario).iter().filter(|(_, count)| *count > 0).map(|(call, _)| *call));
    }
    for call in CALLS.iter().filter(|call| **call != "aclrtSynchronizeDevice") {
        assert!(reached.contains(call), "{call} is made by no scenario");
    }
}

/// A device-wide wait that fails can be made again: the memory behind it is not lost.
#[test]
fn a_failed_device_wait_is_made_again() {
    let mut world = Setup::default().build();
    world.sim.executor().set_destroy_waits(false);
    let (s0, s1) = (world.stream(), world.stream());
    let a = world.alloc(600 * M, s0);
    world.share(s1, "t1", a);
    world.sim.on_device(0, || world.sim.destroy_stream(s1.0)).unwrap().expect("destroyed");
    world.free(a);
    world.sim.fail("aclrtSynchronizeDevice", 1, 507_899, false).expect("a function");
    common::refused_by_driver(world.try_alloc(0, 600 * M, 0, s0), 507_899);
    world.verify();
    let b = world.alloc(600 * M, s0);
    world.work(s0, "first use of B", b);
    world.verify();
    world.close();
}

/// Other processes take the memory and give it back.
#[test]
fn other_processes_take_memory() {
    let mut world = Setup::default().build();
    let s0 = world.stream();
    let a = world.alloc(100 * M, s0);
    world.sim.set_foreign_bytes(0, 900 * M);
    let report = world.alloc_fails(200 * M, s0);
    assert_eq!((report.device_free, report.device_total), (24 * M, G));
    world.alloc(24 * M, s0);
    world.free(a);
    world.alloc(100 * M, s0);
    world.sim.set_foreign_bytes(0, 0);
    world.alloc(200 * M, s0);
    world.close();
}

/// A chunk that a copy engine holds cannot be unmapped; everything else can.
#[test]
fn a_busy_chunk_stays() {
    let mut world = Setup::default().build();
    let s0 = world.stream();
    let a = world.alloc(20 * M, s0);
    world.work(s0, "t1", a);
    world.free(a);
    world.sim.hold(a.0 + 8 * M, 2 * M);
    common::refused_by_driver(world.alloc.empty_cache(None), 507_899);
    world.verify();
    assert_eq!(world.reserved(), 2 * M, "all but the busy one are gone");
    assert!(world.sim.unhold(a.0 + 8 * M, 2 * M));
    world.alloc.empty_cache(None).expect("emptied");
    assert_eq!(world.reserved(), 0);
    world.close();
}

/// Calls of which two fail.
const TWO: [&str; 11] = [
    "aclrtMallocPhysical",
    "aclrtMapMem",
    "aclrtUnmapMem",
    "aclrtFreePhysical",
    "aclrtMemSetAccess",
    "aclrtReserveMemAddress",
    "aclrtRecordEvent",
    "aclrtQueryEventStatus",
    "aclrtMallocHost",
    "aclrtMemcpyAsync",
    "aclrtSynchronizeEvent",
];

/// What a failed call has undone may fail as well: nothing is lost all the same.
#[test]
fn two_calls_fail() {
    let pairs = TWO.into_iter().flat_map(|first| TWO.map(|second| (first, second)));
    for ((first, second), (k, code)) in pairs
        .filter(|(first, second)| first != second)
        .flat_map(|pair| [(1, 507_899), (3, 207_001)].map(|fault| (pair, fault)))
    {
        let machine = SimConfig { devices: 2, capacity: 96 * M, ..growing::Rig::machine() };
        let rig = growing::Rig::on(machine, "");
        let (sim, alloc, streams) = (&rig.sim, &rig.alloc, [rig.stream(), rig.stream()]);
        alloc.set_peers(0, &[1]).unwrap();
        let pool = alloc.create_pool(0, PoolOptions::tagged("kept")).unwrap();
        let kept = alloc.allocate_in(pool, 10 * M, 0, streams[0]).unwrap();
        sim.fill_bytes(kept.0, 10 * M, 7).unwrap();
        let mut buffer = rig.buffer(30 * M, 6 * M, streams[1]).unwrap();
        let mut live: Vec<_> = (0..6).map(|_| alloc.allocate(0, 6 * M, 0, streams[1]).unwrap()).collect();
        for at in [4, 2, 0] {
            alloc.deallocate(live.remove(at)).unwrap();
        }
        sim.fail(first, k, code, false).unwrap();
        sim.fail(second, 1, 507_899, k == 3).unwrap();
        live.extend(alloc.allocate(0, 50 * M, 0, streams[0]));
        live.extend(alloc.allocate(0, 700, 0, streams[0]));
        let _refused = buffer.resize(20 * M);
        let _refused = alloc.sleep(None, &["kept"], SleepMode::Offload);
        live.extend(alloc.allocate(0, 12 * M, 0, streams[1]));
        let _refused = alloc.wake(None, &["kept"]);
        let _refused = buffer.resize(2 * M);
        let _refused = alloc.empty_cache(None);
        sim.clear_faults();
        let what = format!("{first} {k} {code}, {second}");
        alloc.check().unwrap_or_else(|faults| panic!("{what}: {faults:?}"));
        live.into_iter().for_each(|ptr| alloc.deallocate(ptr).unwrap());
        drop(buffer);
        alloc.wake(None, &["kept"]).unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut found = [0; 64];
        for at in [0, 5 * M, 10 * M - 64] {
            sim.read_bytes(kept.0 + at, &mut found).unwrap();
            assert_eq!(found, [7; 64], "{what}");
        }
        let large =
            alloc.allocate(0, 80 * M, 0, streams[0]).unwrap_or_else(|error| panic!("{what}: {error}"));
        alloc.deallocate(large).unwrap();
        alloc.deallocate(kept).unwrap();
        alloc.release_pool(pool).unwrap();
        rig.close();
    }
}
