//! How much memory is held: hard and soft limits, the headroom, the collection threshold.

mod common;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ascend_alloc::driver::Stream;
use ascend_alloc::error::OutOfMemoryCause;
use ascend_alloc::{DevicePtr, Error, GrowableBuffer, GrowableOptions, PoolId, PoolOptions, SleepMode};
use ascend_sim::{SimConfig, Soc};
use common::{G, M, Setup, World, growing, scripts::assert_no_host_wait};

/// Blocks of so many MiB each, freed but for every other one.
fn holes(world: &mut World, count: u64, each: u64, stream: Stream) -> Vec<DevicePtr> {
    let blocks: Vec<DevicePtr> = (0..count).map(|_| world.alloc(each * M, stream)).collect();
    for &block in blocks.iter().step_by(2) {
        world.free(block);
    }
    blocks.into_iter().skip(1).step_by(2).collect()
}

/// Above 512 MiB the driver takes whole GiB of address space, whatever is asked for.
#[test]
fn the_address_space_counted_is_what_the_driver_took() {
    for soc in [Soc::Ascend910B, Soc::Ascend950] {
        let mut setup = Setup::default().conf("reservation_gb:1");
        (setup.sim.soc, setup.sim.capacity) = (soc, 4096 * M);
        let mut world = setup.build();
        let s0 = world.stream();
        let blocks = [world.alloc(1500 * M, s0), world.alloc(M, s0)];
        let taken = world.sim.reserved_bytes();
        assert!(taken > 1500 * M, "{soc:?}: {taken}");
        assert_eq!(world.stats().reserved_address_space, taken, "{soc:?}");
        blocks.into_iter().for_each(|block| world.free(block));
        world.close();
    }
}

// ---- limits ----

/// What counts is what would be mapped, to the chunk: not what is asked for, not a whole segment.
#[test]
fn the_limit_counts_exactly_what_is_mapped() {
    for conf in ["memory_limit_mb:100", "per_process_memory_fraction:0.1"] {
        let mut setup = Setup::default().conf(conf);
        setup.sim.capacity = 1000 * M;
        let mut world = setup.build();
        let s0 = world.stream();
        world.alloc(97 * M, s0);
        assert_eq!(world.reserved(), 98 * M);
        // One MiB of this is there already, so that one chunk is enough.
        world.alloc(3 * M, s0);
        assert_eq!(world.reserved(), 100 * M);
        let report = world.alloc_fails(2 * M, s0);
        assert_eq!((report.cause, report.limit), (OutOfMemoryCause::Limit, Some(100 * M)));
        assert_eq!(world.sim.count("aclrtMallocPhysical"), 50, "the driver was asked beyond the limit");
        world.close();
    }
}

/// The limit has no room for a fixed block: it is the limit that is named, not the device.
#[test]
fn a_fixed_block_beyond_the_limit_is_refused_by_the_limit() {
    let mut world = Setup::default().conf("expandable_segments:False,memory_limit_mb:16").build();
    let s0 = world.stream();
    let report = world.alloc_fails(17 * M, s0);
    assert_eq!((report.cause, report.limit), (OutOfMemoryCause::Limit, Some(16 * M)), "{report}");
    world.alloc(10 * M, s0);
    let report = world.alloc_fails(8 * M, s0);
    assert_eq!((report.cause, report.lacking), (OutOfMemoryCause::Limit, 2 * M), "{report}");
    assert_eq!(world.sim.count("aclrtMallocAlign32"), 1);
    world.close();
    // Where the device refuses as well, it is the device.
    let conf = "expandable_segments:False,memory_limit_mb:64";
    let mut world = Setup::default().conf(conf).capacity(16 * M).build();
    let s0 = world.stream();
    world.alloc(10 * M, s0);
    assert_eq!(world.alloc_fails(8 * M, s0).cause, OutOfMemoryCause::Device);
    world.close();
}

/// Fixed blocks of 20 MiB serve several requests of less than 10. Where there is no room for so much, a request gets a block of
/// its own size, and nobody gives anything back or waits for more.
#[test]
fn a_fixed_block_is_no_larger_than_there_is_room() {
    let cases = [
        ("expandable_segments:False,memory_limit_mb:26", 64),
        ("expandable_segments:False,soft_limit_mb:26", 64),
        ("expandable_segments:False", 26),
    ];
    for (conf, capacity) in cases {
        let mut world = Setup::default().conf(conf).capacity(capacity * M).build();
        let s0 = world.stream();
        world.alloc(12 * M, s0);
        let small = world.alloc(1000, s0);
        world.free(small);
        let before = world.sim.counters();
        world.alloc(5 * M, s0);
        world.alloc(6 * M, s0);
        assert_eq!(world.reserved(), 26 * M, "{conf}");
        let calls = world.calls_since(&before);
        assert!(!calls.contains_key("aclrtFree"), "{conf}: {calls:?}");
        if !conf.contains("soft") {
            // The idle block for small requests is given back, which is not enough.
            let report = world.alloc_fails(3 * M, s0);
            assert_eq!(report.lacking, 2 * M, "{report}");
        }
        world.close();
    }
}

/// What a thread does below a limit: blocks, a pool that sleeps, a growing buffer. How many of its requests the limit refused.
fn crowd_below(rig: &growing::Rig, limit: u64, unit: u64, seed: u64) -> u64 {
    rig.sim.set_device(0).unwrap();
    let (alloc, stream, mut rng) = (&rig.alloc, rig.stream(), fastrand::Rng::with_seed(seed));
    let tag = seed.to_string();
    let pool = alloc.create_pool(0, PoolOptions::tagged(&tag)).unwrap();
    let options = GrowableOptions::up_to(40 * unit);
    let mut buffer = GrowableBuffer::new(alloc.clone(), 0, stream, options).unwrap();
    let (mut live, mut refused): (Vec<DevicePtr>, u64) = (Vec::new(), 0);
    for _ in 0..100 {
        match rng.u8(..10) {
            0..5 => {
                let of = if rng.bool() { pool } else { PoolId::default_of(0) };
                match alloc.allocate_in(of, rng.u64(1..12 * unit), 0, stream) {
                    Ok(ptr) => live.push(ptr),
                    Err(Error::OutOfMemory(report)) => {
                        assert_eq!(report.limit, Some(limit));
                        refused += 1;
                    }
                    Err(error) => assert!(matches!(error, Error::State { .. }), "{error}"),
                }
            }
            5..7 if !live.is_empty() => {
                alloc.deallocate(live.swap_remove(rng.usize(..live.len()))).unwrap();
            }
            7 => drop(buffer.resize(rng.u64(..40 * unit))),
            8 => drop(alloc.sleep(Some(0), &[&tag], SleepMode::Offload)),
            _ => drop(alloc.wake(Some(0), &[&tag])),
        }
        assert!(rig.sim.physical_peak(0) <= limit);
    }
    live.into_iter().for_each(|ptr| alloc.deallocate(ptr).unwrap());
    refused
}

/// Not for a moment, whatever several threads do at once.
#[test]
fn nothing_passes_the_limit() {
    for (conf, limit, unit) in [
        ("memory_limit_mb:64", 64 * M, M),
        ("memory_limit_mb:64,large_segment_size_mb:12", 64 * M, M),
        ("memory_limit_mb:64,expandable_segments:False", 64 * M, M),
        ("memory_limit_mb:3000,page_size:1g", 3000 * M, 50 * M),
        ("memory_limit_mb:64,soft_limit_mb:30", 64 * M, M),
    ] {
        let rig = growing::Rig::on(SimConfig { capacity: 8 * G, ..growing::Rig::machine() }, conf);
        let refused = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (rig, refused) = (&rig, &refused);
                scope.spawn(move || refused.fetch_add(crowd_below(rig, limit, unit, seed), Relaxed));
            }
        });
        assert!(refused.into_inner() > 0, "{conf}");
        rig.alloc.check().unwrap();
    }
}

#[test]
fn the_smaller_of_two_limits_counts_and_either_can_go() {
    let mut world = Setup::default().conf("memory_limit_mb:100").build();
    let s0 = world.stream();
    let limit = |world: &World| world.alloc.memory_limit(0).expect("a device");
    assert_eq!(limit(&world), Some(100 * M));
    world.alloc.set_memory_fraction(0, 0.0625).expect("set");
    assert_eq!(limit(&world), Some(64 * M));
    world.alloc_fails(80 * M, s0);
    world.alloc.set_memory_fraction(0, 1.0).expect("set");
    assert_eq!(limit(&world), Some(100 * M));
    let a = world.alloc(80 * M, s0);
    world.alloc.set_memory_limit(0, Some(40 * M)).expect("set");
    assert_eq!(world.reserved(), 80 * M, "memory already held stays");
    world.alloc_fails(2 * M, s0);
    // Idle memory serves, and what is given back counts.
    world.free(a);
    world.alloc(80 * M, s0);
    world.free_all();
    world.alloc.trim(0, 20 * M).expect("trimmed");
    let b = world.alloc(40 * M, s0);
    assert_eq!(world.reserved(), 40 * M);
    world.alloc.set_memory_limit(0, None).expect("set");
    assert_eq!(limit(&world), None);
    world.alloc(400 * M, s0);
    for wrong in [world.alloc.set_memory_limit(0, Some(0)), world.alloc.set_soft_limit(0, Some(0))] {
        assert!(matches!(wrong, Err(Error::Argument { name: "bytes", .. })), "{wrong:?}");
    }
    assert!(matches!(world.alloc.set_soft_limit(7, Some(M)), Err(Error::Argument { name: "device", .. })));
    world.free(b);
    world.close();
}

/// Beyond the soft limit idle memory is moved first; then memory grows, and nothing fails or waits.
#[test]
fn the_soft_limit_moves_first_and_then_grows() {
    for conf in ["soft_limit_mb:80,headroom:1", "headroom:1"] {
        let mut world = Setup::default().conf(conf).build();
        let s0 = world.stream();
        let limited = conf.contains("soft");
        holes(&mut world, 8, 10, s0);
        let before = world.sim.counters();
        world.alloc(40 * M, s0);
        assert_eq!(world.reserved(), if limited { 80 * M } else { 120 * M }, "{conf}");
        world.alloc(40 * M, s0);
        assert_eq!(world.reserved(), if limited { 120 * M } else { 160 * M }, "{conf}: more than the limit");
        assert_no_host_wait(&world.calls_since(&before));
        assert_eq!(world.stats().num_ooms, 0);
        world.close();
    }
}

/// The same for fixed blocks: idle ones go back before another one is fetched.
#[test]
fn the_soft_limit_gives_fixed_blocks_back_first() {
    let mut world = Setup::default().conf("expandable_segments:False,soft_limit_mb:80").build();
    let s0 = world.stream();
    let blocks: Vec<DevicePtr> = (0..4).map(|_| world.alloc(20 * M, s0)).collect();
    world.free(blocks[0]);
    world.free(blocks[2]);
    world.alloc(30 * M, s0);
    assert_eq!(world.reserved(), 70 * M, "two went, one of them alone was not enough");
    world.alloc(30 * M, s0);
    assert_eq!(world.reserved(), 100 * M);
    assert_eq!(world.stats().num_ooms, 0);
    world.close();
}

/// A soft limit set below what is held gives nothing back by itself, but nothing grows before it did.
#[test]
fn the_soft_limit_can_be_set_while_running() {
    let mut world = Setup::default().build();
    let s0 = world.stream();
    let a = world.alloc(100 * M, s0);
    world.alloc.set_soft_limit(0, Some(50 * M)).expect("set");
    assert_eq!(world.reserved(), 100 * M);
    world.free(a);
    world.alloc(60 * M, s0);
    world.alloc(50 * M, s0);
    assert_eq!(world.reserved(), 110 * M, "the idle 40 MiB served first");
    world.alloc.set_soft_limit(0, None).expect("set");
    world.close();
}

/// The threshold is useful with growable segments too: above it chunks move before new ones are asked for.
#[test]
fn the_collection_threshold_acts_on_growable_segments() {
    for (conf, reserved) in [("garbage_collection_threshold:0.08,headroom:1", 80), ("headroom:1", 120)] {
        let mut setup = Setup::default().conf(conf);
        setup.sim.capacity = 1000 * M;
        let mut world = setup.build();
        let s0 = world.stream();
        holes(&mut world, 8, 10, s0);
        let before = world.sim.counters();
        world.alloc(40 * M, s0);
        assert_eq!(world.reserved(), reserved * M, "{conf}");
        assert_no_host_wait(&world.calls_since(&before));
        world.close();
    }
}

// ---- age ----

/// The headroom is a share of the highest bytes that were live: not of what was asked for in vain.
#[test]
fn a_request_that_failed_gives_no_headroom() {
    let physical = |failed: bool| {
        let mut world = Setup::default().build();
        let s0 = world.stream();
        let kept = world.alloc(100 * M, s0);
        if failed {
            assert!(world.alloc.allocate(0, 1000 * M, 0, s0).is_err());
        }
        world.free(kept);
        let mut random = fastrand::Rng::with_seed(3);
        let (mut live, mut bytes, mut most) = (Vec::new(), 0, 0);
        for _ in 0..400 {
            let wanted = random.u64(2..22) * M;
            while bytes + wanted > 200 * M {
                let (block, size) = live.swap_remove(random.usize(..live.len()));
                world.free(block);
                bytes -= size;
            }
            live.push((world.alloc(wanted, s0), wanted));
            bytes += wanted;
            world.finish(s0);
            most = most.max(world.reserved());
        }
        world.close();
        most
    };
    assert_eq!(physical(true), physical(false));
}
