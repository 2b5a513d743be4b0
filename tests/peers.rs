//! Other devices of one process that may use a device's memory.
#![cfg(target_os = "linux")]

mod common;

use std::collections::HashMap;

use ascend_alloc::driver::Stream;
use ascend_alloc::{
    BlockState, DevicePtr, Error, GrowableBuffer, GrowableOptions, PoolId, PoolOptions, SleepMode,
};
use ascend_sim::{BackingMode, Location, SimConfig, Soc, Task};
use common::other::{Other, Rig, play_the_other};
use common::{M, growing};

const STREAM: Stream = Stream(0);

/// What the other process does; started by the tests below.
#[test]
#[ignore = "the part of another process, started by the other tests"]
fn the_other_process() {
    play_the_other();
}

/// What was imported before is mapped as well.
#[test]
fn peers_reach_what_was_imported_before() {
    let rig = Rig::on(SimConfig { devices: 2, soc: Soc::Ascend950, ..SimConfig::default() });
    let mut other = Other::start("sim");
    let handle = other.export(3 * M);
    let block = rig.alloc.import(0, &handle, STREAM).unwrap();
    let granted = || rig.machine().get_access(block.ptr().0 & !(2 * M - 1), Location::device(1));
    assert_ne!(granted(), Ok(3));
    rig.alloc.set_peers(0, &[1]).unwrap();
    assert_eq!(granted(), Ok(3));
    drop(block);
    rig.alloc.empty_cache(None).unwrap();
    assert_eq!(rig.alloc.imported_bytes(0).unwrap(), 0);
}

/// As B17.
#[test]
fn peers_reach_all_that_is_mapped() {
    let rig = Rig::on(SimConfig { devices: 3, soc: Soc::Ascend950, ..SimConfig::default() });
    let sim = rig.machine();
    let grants = |address: u64, device: u32| sim.get_access(address, Location::device(device)).unwrap();
    let all = |ptr: DevicePtr, bytes: u64, device: u32| {
        (ptr.0..ptr.0 + bytes).step_by(2 << 20).all(|address| grants(address, device) == 3)
    };
    let a = rig.alloc.allocate(0, 20 * M, 0, STREAM).unwrap();
    let b = rig.alloc.allocate(0, 20 * M, 0, STREAM).unwrap();
    assert_eq!(sim.count("aclrtMemSetAccess"), 20);
    assert!(!all(a, 20 * M, 1), "nobody has asked for that yet");
    rig.alloc.set_peers(0, &[1]).unwrap();
    assert_eq!((rig.alloc.peers(0).unwrap(), rig.alloc.peers(1).unwrap()), (vec![1], vec![]));
    assert_eq!(sim.count("aclrtMemSetAccess"), 40);
    assert_eq!((sim.peer_access_status(0, 1), sim.peer_access_status(1, 0)), (Ok(1), Ok(1)));
    let c = rig.alloc.allocate(0, 20 * M, 0, STREAM).unwrap();
    assert_eq!(sim.count("aclrtMemSetAccess"), 60, "new chunks are granted to the owner and the peer");
    assert!(all(a, 20 * M, 1) && all(b, 20 * M, 1) && all(c, 20 * M, 1));
    assert!(!all(a, 20 * M, 2));
    // Chunks that move take no grant along: they get it anew.
    rig.alloc.deallocate(a).unwrap();
    rig.alloc.deallocate(c).unwrap();
    let moved = sim.count("aclrtUnmapMem");
    let d = rig.alloc.allocate(0, 38 * M, 0, STREAM).unwrap();
    assert!(sim.count("aclrtUnmapMem") > moved);
    assert!(all(d, 38 * M, 1));
    rig.alloc.set_peers(0, &[2, 1, 1]).unwrap();
    assert!(all(d, 38 * M, 2) && all(b, 20 * M, 2));
    // Growing in place, and buffers that grow.
    let options = GrowableOptions::up_to(32 * M).beginning_with(6 * M);
    let buffer = GrowableBuffer::new(rig.alloc.clone(), 0, STREAM, options).unwrap();
    assert!(all(buffer.ptr(), 6 * M, 2));
    // Without peers nothing more is granted.
    rig.alloc.set_peers(0, &[]).unwrap();
    let before = sim.count("aclrtMemSetAccess");
    let e = rig.alloc.allocate(0, 20 * M, 0, STREAM).unwrap();
    assert!(grants(e.0 + 18 * M, 1) != 3 && sim.count("aclrtMemSetAccess") <= before + 11);
    rig.alloc.check().unwrap();
}

/// B17: what a device's own work may touch.
#[test]
fn b17_work_of_a_peer_needs_the_grant() {
    let rig = Rig::on(SimConfig { devices: 2, soc: Soc::Ascend950, ..SimConfig::default() });
    let sim = rig.machine();
    let stream = sim.on_device(1, || sim.create_stream()).unwrap().unwrap();
    let refused = |block: DevicePtr| {
        let touch = Task::new("touch").reads(block.0, 20 * M, 0);
        sim.on_device(1, || sim.submit(stream, touch)).unwrap().unwrap();
        sim.on_device(1, || sim.synchronize_stream(stream)).unwrap().unwrap();
        sim.take_findings().len()
    };
    let allocate = || rig.alloc.allocate(0, 20 * M, 0, STREAM).unwrap();
    let (a, b) = (allocate(), allocate());
    assert_eq!([a, b].map(refused), [1; 2]);
    rig.alloc.set_peers(0, &[1]).unwrap();
    let c = allocate();
    assert_eq!([a, b, c].map(refused), [0; 3]);
    // Mapped anew: moved chunks, and new ones.
    rig.alloc.deallocate(a).unwrap();
    rig.alloc.deallocate(c).unwrap();
    let moved = rig.alloc.allocate(0, 38 * M, 0, STREAM).unwrap();
    assert!(sim.count("aclrtUnmapMem") > 0);
    assert_eq!(refused(moved), 0);
    rig.alloc.deallocate(moved).unwrap();
    rig.alloc.empty_cache(None).unwrap();
    assert_eq!([allocate(), b].map(refused), [0; 2]);
    rig.alloc.check().unwrap();
}

#[test]
fn peers_that_cannot_be_change_nothing() {
    let rig = Rig::on(SimConfig { devices: 2, soc: Soc::Ascend950, ..SimConfig::default() });
    let sim = rig.machine();
    for peers in [&[0][..], &[5], &[1, 0]] {
        let answer = rig.alloc.set_peers(0, peers);
        assert!(matches!(answer, Err(Error::Argument { name: "peers", .. })), "{peers:?}: {answer:?}");
    }
    let unknown = rig.alloc.set_peers(7, &[1]);
    assert!(matches!(unknown, Err(Error::Argument { name: "device", .. })), "{unknown:?}");
    let block = rig.alloc.allocate(0, 20 * M, 0, STREAM).unwrap();
    sim.fail("aclrtMemSetAccess", 4, 507_899, false).unwrap();
    assert!(matches!(rig.alloc.set_peers(0, &[1]), Err(Error::Driver(_))));
    assert_eq!(rig.alloc.peers(0).unwrap(), Vec::<u32>::new());
    rig.alloc.set_peers(0, &[1]).unwrap();
    // A grant that fails undoes the map.
    let before = (rig.live_bytes(), sim.mapping_count(), sim.physical_bytes(0));
    sim.fail("aclrtMemSetAccess", 2, 507_899, false).unwrap();
    let answer = rig.alloc.allocate(0, 20 * M, 0, STREAM);
    assert!(matches!(answer, Err(Error::Driver(_))), "{answer:?}");
    assert_eq!((rig.live_bytes(), sim.mapping_count(), sim.physical_bytes(0)), before);
    rig.alloc.deallocate(block).unwrap();
    rig.alloc.check().unwrap();
    // A library without the call: the error says so, whether something is mapped or not.
    for emptied in [false, true] {
        let rig = Rig::on(SimConfig { devices: 2, ..SimConfig::default() });
        rig.machine().set_missing(&["aclrtMemSetAccess"]).unwrap();
        if !emptied {
            rig.alloc.allocate(0, 20 * M, 0, STREAM).unwrap();
        }
        let answer = rig.alloc.set_peers(0, &[1]);
        let text = answer.unwrap_err().to_string();
        assert!(text.contains("no symbol aclrtMemSetAccess"), "{text}");
        rig.alloc.allocate(0, 8 * M, 0, STREAM).unwrap();
    }
    // Fixed blocks need the links alone.
    let config = SimConfig { devices: 2, ..SimConfig::default() };
    let rig = Rig::with(config, "expandable_segments:False");
    rig.machine().set_missing(&["aclrtMemSetAccess"]).unwrap();
    rig.alloc.allocate(0, 20 * M, 0, STREAM).unwrap();
    rig.alloc.set_peers(0, &[1]).unwrap();
    assert_eq!(rig.alloc.peers(0).unwrap(), [1]);
    let links = [(0, 1), (1, 0)].map(|(from, to)| rig.machine().peer_access_status(from, to));
    assert_eq!(links, [Ok(1); 2]);
    rig.alloc.allocate(0, 40 * M, 0, STREAM).unwrap();
    let options = GrowableOptions::up_to(32 * M).beginning_with(6 * M);
    let buffer = GrowableBuffer::new(rig.alloc.clone(), 0, STREAM, options);
    assert!(buffer.unwrap_err().to_string().contains("no symbol aclrtMemSetAccess"));
    rig.alloc.check().unwrap();
}

/// A reset, of the device or of its peer, closes the links between them and takes what was granted: setting peers again
/// has to open and grant everything.
#[test]
fn a_reset_ends_what_was_set() {
    for reset in [0, 1] {
        let rig = Rig::on(SimConfig { devices: 3, soc: Soc::Ascend950, ..SimConfig::default() });
        let sim = rig.machine();
        for device in [2, 1, 0] {
            sim.set_device(device).unwrap();
        }
        let before = rig.alloc.allocate(0, 6 * M, 0, STREAM).unwrap();
        rig.alloc.set_peers(0, &[1, 2]).unwrap();
        rig.alloc.set_peers(1, &[0]).unwrap();
        sim.reset_device_force(reset).unwrap();
        rig.alloc.device_was_reset(reset as u32).unwrap();
        sim.set_device(reset).unwrap();
        sim.set_device(0).unwrap();
        let left = if reset == 0 { vec![] } else { vec![2] };
        assert_eq!((rig.alloc.peers(0).unwrap(), rig.alloc.peers(1).unwrap()), (left, vec![]));
        let later = rig.alloc.allocate(0, 6 * M, 0, STREAM).unwrap();
        let chunks = |ptr: DevicePtr| (ptr.0 & !(2 * M - 1)..ptr.0 + 6 * M).step_by(2 << 20);
        let access = |at: u64| sim.get_access(at, Location::device(1)).unwrap();
        assert!(chunks(later).skip(1).all(|at| access(at) == 0), "it is not a peer any more");
        let granted = sim.count("aclrtMemSetAccess");
        rig.alloc.set_peers(0, &[1]).unwrap();
        assert_eq!((sim.peer_access_status(0, 1), sim.peer_access_status(1, 0)), (Ok(1), Ok(1)));
        // The chunk that both share is granted once.
        let mapped = rig.alloc.stats(0).unwrap().reserved_bytes.all.current as u64 / (2 * M);
        assert_eq!(sim.count("aclrtMemSetAccess") - granted, mapped, "all that is mapped");
        assert!(chunks(later).all(|at| access(at) == 3));
        [before, later].into_iter().for_each(|ptr| rig.alloc.deallocate(ptr).unwrap());
        rig.alloc.check().unwrap();
    }
}

/// The call takes the driver's numbers.
#[test]
fn peers_are_translated() {
    let visible_devices = Some(vec![1, 3]);
    let rig = Rig::on(SimConfig { devices: 4, visible_devices, ..SimConfig::default() });
    rig.alloc.set_peers(0, &[1]).unwrap();
    let block = rig.alloc.allocate(0, 4 * M, 0, STREAM).unwrap();
    let access = |device| rig.machine().get_access(block.0 & !(2 * M - 1), Location::device(device));
    assert_eq!((access(3), access(2)), (Ok(3), Ok(0)));
}

/// Threads allocate and free while the set of peers changes: in the end every chunk is granted.
#[test]
fn peers_are_set_while_others_map() {
    let backing = BackingMode::MetadataOnly;
    // While other threads run, the checker sees counts and blocks of different moments.
    let rig = Rig::with(SimConfig { capacity: 64 * M, devices: 2, backing, ..SimConfig::default() }, "");
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let rig = &rig;
            scope.spawn(move || {
                rig.machine().set_device(0).unwrap();
                let stream = Stream(rig.machine().create_stream().unwrap());
                let mut random = fastrand::Rng::with_seed(thread);
                for _ in 0..150 {
                    let block = rig.alloc.allocate(0, random.u64(M..20 * M), 0, stream).unwrap();
                    rig.alloc.deallocate(block).unwrap();
                }
            });
        }
        for peers in [&[1][..], &[], &[1], &[], &[1]] {
            rig.alloc.set_peers(0, peers).unwrap();
            std::thread::yield_now();
        }
    });
    let block = rig.alloc.allocate(0, 40 * M, 0, STREAM).unwrap();
    let mut granted = HashMap::new();
    for segment in rig.alloc.snapshot(0).unwrap().segments {
        let first = segment.address & !(2 * M - 1);
        for address in (first..segment.address + segment.total_size).step_by(2 << 20) {
            let access = rig.machine().get_access(address, Location::device(1)).unwrap();
            *granted.entry(access).or_insert(0) += 1;
        }
    }
    assert!(granted.len() == 1 && granted[&3] >= 20, "{granted:?}");
    rig.alloc.deallocate(block).unwrap();
    rig.alloc.check().unwrap();
}

/// Whatever maps, moves, sleeps or fails: every live byte is within reach of every peer.
#[test]
fn every_live_block_is_within_reach_of_the_peers() {
    for seed in 0..30 {
        let conf = ["", "large_segment_size_mb:12", "front_cache:False"][seed % 3];
        let machine = SimConfig { devices: 3, capacity: 96 * M, ..growing::Rig::machine() };
        let growing::Rig { sim, alloc } = growing::Rig::on(machine, conf);
        let streams = [(); 2].map(|()| Stream(sim.create_stream().unwrap()));
        let pool = alloc.create_pool(0, PoolOptions::tagged("p")).unwrap();
        let options = GrowableOptions::up_to(40 * M);
        let mut buffer = GrowableBuffer::new(alloc.clone(), 0, STREAM, options).unwrap();
        let (mut rng, mut live) = (fastrand::Rng::with_seed(seed as u64), Vec::new());
        for _ in 0..200 {
            match rng.u8(..16) {
                0..6 => {
                    let of = if rng.bool() { pool } else { PoolId::default_of(0) };
                    let most = if rng.bool() { M } else { 16 * M };
                    live.extend(alloc.allocate_in(of, rng.u64(1..most), 0, streams[rng.usize(..2)]));
                }
                6..10 if !live.is_empty() => {
                    alloc.deallocate(live.swap_remove(rng.usize(..live.len()))).unwrap();
                }
                10 => {
                    let peers = [&[][..], &[1], &[2], &[1, 2]][rng.usize(..4)];
                    let before = alloc.peers(0).unwrap();
                    let set = alloc.set_peers(0, peers);
                    assert_eq!(alloc.peers(0).unwrap(), if set.is_ok() { peers } else { &before });
                }
                11 => drop(alloc.sleep(Some(0), &["p"], SleepMode::Discard)),
                12 => drop(alloc.wake(Some(0), &["p"])),
                13 => drop(buffer.resize(rng.u64(..40 * M))),
                14 => {
                    let calls = ["aclrtUnmapMem", "aclrtMapMem", "aclrtMallocPhysical", "aclrtMemSetAccess"];
                    sim.fail(calls[rng.usize(..4)], rng.u64(1..6), 507_899, false).unwrap();
                }
                _ => sim.clear_faults(),
            }
            let snapshot = alloc.snapshot(0).unwrap();
            let awake = snapshot.segments.iter().filter(|segment| !segment.is_asleep);
            let blocks = awake.flat_map(|segment| &segment.blocks);
            for block in blocks.filter(|block| block.state == BlockState::ActiveAllocated) {
                let chunks = (block.address..block.address + block.size).step_by(2 << 20);
                for at in chunks.chain([block.address + block.size - 1]) {
                    for peer in alloc.peers(0).unwrap() {
                        assert_eq!(sim.get_access(at, Location::device(peer)), Ok(3), "{seed}: {at:#x}");
                    }
                }
            }
            alloc.check().unwrap();
        }
    }
}
