//! Idle memory: it decays by itself, and goes when the cache is emptied, by pool and age.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use ascend_alloc::driver::Stream;
use ascend_alloc::{Age, DevicePtr, EmptyOptions, Error, PoolOptions};
use common::gate::PASSED;
use common::{CLASSIC, M, Setup, World, scripts::assert_no_host_wait};

const SECOND: u64 = 1_000_000_000;

/// Frees that the core counts, to let time pass in operations.
fn pass_frees(world: &World, count: u64, stream: Stream) {
    for _ in 0..count {
        let ptr = world.alloc.allocate(0, 3 * M, 0, stream).expect("memory");
        world.alloc.deallocate(ptr).expect("freed");
    }
}

/// Although what comes and goes lies at its edge, so that they are one free block again and again.
#[test]
fn idle_memory_decays_by_operations() {
    let mut world = Setup::default().conf("decay_ops:500,front_cache:False").build();
    let s0 = world.stream();
    let kept = world.alloc(2 * M, s0);
    let idle = world.alloc(200 * M, s0);
    let small = world.alloc(4 * M, s0);
    world.free(idle);
    let before = world.reserved();
    // Work goes on beside it, in memory that is not idle for long.
    world.free(small);
    pass_frees(&world, 400, s0);
    world.verify();
    assert_eq!(world.reserved(), before, "not old enough");
    let (mut last, mut least) = (before, u64::MAX);
    for _ in 0..40 {
        pass_frees(&world, 72, s0);
        world.verify();
        let now = world.reserved();
        assert!(last - now <= 32 * M, "{} bytes in one go", last - now);
        least = least.min(now);
        last = now;
    }
    assert!(least <= 12 * M, "{least} bytes are still held");
    world.free(kept);
    world.close();
}

#[test]
fn idle_memory_decays_by_time() {
    for (conf, off) in [("decay_ms:5000,front_cache:False", false), ("front_cache:False", true)] {
        let mut world = Setup::default().conf(conf).build();
        let s0 = world.stream();
        let idle = world.alloc(40 * M, s0);
        let small = world.alloc(4 * M, s0);
        world.free(idle);
        world.free(small);
        pass_frees(&world, 300, s0);
        world.sim.advance(4 * SECOND);
        pass_frees(&world, 300, s0);
        assert!(world.reserved() >= 40 * M, "{conf}: too early");
        for _ in 0..10 {
            world.sim.advance(SECOND);
            pass_frees(&world, 100, s0);
            world.verify();
        }
        assert_eq!(world.reserved() < 20 * M, !off, "{conf}: {}", world.reserved());
        world.close();
    }
}

/// Small pairs that the front cache serves, to let time pass in a program that never comes to the core.
fn pass_front_frees(world: &World, count: u64, stream: Stream) {
    for _ in 0..count {
        let ptr = world.alloc.allocate(0, 4096, 0, stream).expect("memory");
        world.alloc.deallocate(ptr).expect("freed");
    }
}

/// A settled program is served by the front cache alone; what it does not use any more goes all the same.
#[test]
fn idle_memory_decays_beside_the_front_cache() {
    for conf in ["decay_ops:2000", "decay_ms:5000", "decay_ops:2000,expandable_segments:False"] {
        let mut world = Setup::default().conf(conf).build();
        let s0 = world.stream();
        let idle = world.alloc(200 * M, s0);
        world.free(idle);
        pass_front_frees(&world, 1000, s0);
        world.sim.advance(4 * SECOND);
        pass_front_frees(&world, 500, s0);
        assert!(world.reserved() >= 200 * M, "{conf}: too early");
        let requests = world.stats().ladder.requests;
        for _ in 0..30 {
            world.sim.advance(SECOND);
            let before = world.reserved();
            pass_front_frees(&world, 500, s0);
            world.verify();
            let gone = before - world.reserved();
            assert!(gone <= 9 * 32 * M, "{conf}: {gone} bytes with 500 frees");
        }
        assert!(world.reserved() <= 8 * M, "{conf}: {}", world.reserved());
        assert!(world.stats().ladder.requests - requests <= 60, "{conf}: the front serves nearly all");
        world.close();
    }
}

/// What rests or waits in the front cache and is not asked for any more decays like what is free in the core.
#[test]
fn blocks_at_rest_decay() {
    for conf in ["decay_ops:2000", "decay_ms:5000"] {
        let mut world = Setup::default().conf(conf).build();
        let (s0, s1) = (world.stream(), world.stream());
        let sizes = (0..60u64).map(|step| (1 << 20) - 4096 * step);
        let blocks: Vec<DevicePtr> = sizes.map(|bytes| world.alloc(bytes, s0)).collect();
        for (at, &ptr) in blocks.iter().enumerate() {
            if at % 2 == 0 {
                world.alloc.record_stream(ptr, s1).unwrap();
            }
            world.free(ptr);
        }
        assert!(world.reserved() >= 50 * M);
        for _ in 0..40 {
            world.sim.advance(SECOND);
            pass_front_frees(&world, 1000, s0);
            world.verify();
        }
        assert!(world.reserved() <= 8 * M, "{conf}: {}", world.reserved());
        world.close();
    }
}

#[test]
fn idle_fixed_blocks_decay_too() {
    let mut world =
        Setup::default().conf("expandable_segments:False,decay_ops:300,front_cache:False").build();
    let s0 = world.stream();
    let (a, b) = (world.alloc(40 * M, s0), world.alloc(60 * M, s0));
    world.free(a);
    world.free(b);
    let small = world.alloc(3 * M, s0);
    world.free(small);
    for _ in 0..10 {
        pass_frees(&world, 100, s0);
        world.verify();
    }
    assert!(world.reserved() <= 60 * M, "{}", world.reserved());
    world.close();
}

/// Memory that running work may still use does not decay, and nobody waits for it.
#[test]
fn what_is_in_use_does_not_decay() {
    let mut world = Setup::default().conf("decay_ops:100,front_cache:False").build();
    let (s0, s1) = (world.stream(), world.stream());
    let a = world.alloc(40 * M, s0);
    world.work(s0, "t1", a);
    world.free(a);
    let before = world.sim.counters();
    pass_frees(&world, 1000, s1);
    world.verify();
    let held: u64 = world.alloc.snapshot(0).unwrap().segments.iter().map(|segment| segment.total_size).sum();
    assert!(held >= 40 * M);
    assert_no_host_wait(&world.calls_since(&before));
    world.finish(s0);
    world.close();
}

fn empty(world: &World, options: &EmptyOptions) -> u64 {
    let freed = world.alloc.empty_cache_with(Some(0), options).expect("emptied");
    world.verify();
    freed
}

#[test]
fn emptying_by_age_takes_only_what_is_old() {
    let mut world = Setup::default().conf("front_cache:False").build();
    let s0 = world.stream();
    let blocks: Vec<DevicePtr> = (0..6).map(|_| world.alloc(10 * M, s0)).collect();
    world.free(blocks[0]);
    pass_frees(&world, 50, s0);
    let ages = |age: Age| EmptyOptions { min_age: Some(age), ..EmptyOptions::default() };
    // What the frees above used is young; nothing else is as old as that.
    assert_eq!(empty(&world, &ages(Age::Frees(1000))), 0);
    world.sim.advance(10 * SECOND);
    assert_eq!(empty(&world, &ages(Age::Time(Duration::from_secs(20)))), 0);
    world.free(blocks[2]);
    let freed = empty(&world, &ages(Age::Time(Duration::from_secs(5))));
    assert!(freed > 0, "the first block has been free for ten seconds");
    let held = world.reserved();
    world.sim.advance(10 * SECOND);
    let freed = empty(&world, &ages(Age::Time(Duration::from_secs(5))));
    assert_eq!(freed, held - world.reserved());
    assert_eq!(world.reserved(), 40 * M, "only live blocks are left");
    world.free(blocks[4]);
    assert_eq!(empty(&world, &ages(Age::Frees(2))), 0);
    pass_frees(&world, 5, s0);
    world.close();
}

/// Cutting a piece off an idle block does not make the rest old, nor young.
#[test]
fn the_rest_of_a_block_keeps_its_age() {
    let mut world = Setup::default().conf("front_cache:False").build();
    let s0 = world.stream();
    let a = world.alloc(40 * M, s0);
    world.free(a);
    world.sim.advance(10 * SECOND);
    let old = |seconds: u64| EmptyOptions {
        min_age: Some(Age::Time(Duration::from_secs(seconds))),
        ..EmptyOptions::default()
    };
    // Looked at now, so that the clock knows the free.
    assert_eq!(empty(&world, &old(1000)), 0);
    world.alloc(10 * M, s0);
    assert_eq!(empty(&world, &old(5)), 0, "known to be free only since the look above");
    world.sim.advance(6 * SECOND);
    assert_eq!(empty(&world, &old(5)), 30 * M);
    world.close();
}

#[test]
fn emptying_a_pool_leaves_the_others() {
    for conf in ["", CLASSIC] {
        let mut world = Setup::default().conf(conf).build();
        let s0 = world.stream();
        let pool = world.alloc.create_pool(0, PoolOptions::tagged("weights")).expect("a pool");
        let a = world.alloc(30 * M, s0);
        let b = world.alloc.allocate_in(pool, 50 * M, 0, s0).expect("memory");
        world.alloc.deallocate(b).expect("freed");
        world.free(a);
        let of_pool = EmptyOptions { pool: Some(pool), ..EmptyOptions::default() };
        assert_eq!(empty(&world, &of_pool), 50 * M, "{conf}");
        assert_eq!(world.reserved(), 30 * M, "{conf}");
        assert_eq!(empty(&world, &EmptyOptions::default()), 30 * M);
        // The device goes without saying; another one is a mistake, and so is a pool that is gone.
        assert_eq!(world.alloc.empty_cache_with(None, &of_pool).expect("emptied"), 0);
        let elsewhere = world.alloc.empty_cache_with(Some(1), &of_pool);
        assert!(matches!(elsewhere, Err(Error::Argument { name: "pool", .. })), "{elsewhere:?}");
        world.alloc.release_pool(pool).expect("released");
        let gone = world.alloc.empty_cache_with(None, &of_pool);
        assert!(matches!(gone, Err(Error::Argument { .. })), "{gone:?}");
        world.close();
    }
}

/// Without waiting, what work may still use stays.
#[test]
fn emptying_without_waiting_leaves_what_is_in_use() {
    let mut world = Setup::default().build();
    let (s0, s1) = (world.stream(), world.stream());
    let a = world.alloc(30 * M, s0);
    let b = world.alloc(50 * M, s1);
    world.work(s0, "t1", a);
    world.free(a);
    world.free(b);
    let before = world.sim.counters();
    let options = EmptyOptions { wait: false, ..EmptyOptions::default() };
    assert_eq!(empty(&world, &options), 50 * M);
    assert_no_host_wait(&world.calls_since(&before));
    assert_eq!(empty(&world, &EmptyOptions::default()), 30 * M);
    world.close();
}

/// The host waits for the streams that hold memory back that is to go, and for no others: of one pool.
#[test]
fn emptying_a_pool_waits_for_its_streams_only() {
    for dead in [false, true] {
        let mut world = Setup::default().build();
        let (s0, s1, s2) = (world.stream(), world.stream(), world.stream());
        let pool = world.alloc.create_pool(0, PoolOptions::tagged("weights")).expect("a pool");
        let block = world.alloc.allocate_in(pool, 50 * M, 0, s0).expect("memory");
        // As `World` does not know of the block, nothing is verified.
        let other = world.try_alloc(0, 20 * M, 0, s1).expect("memory");
        world.work(s1, "work elsewhere", other);
        world.live.clear();
        world.alloc.deallocate(other).expect("freed");
        if dead {
            // Only a wait for the device would tell.
            world.finish(s1);
            world.sim.on_device(0, || world.sim.destroy_stream(s1.0)).unwrap().expect("destroyed");
            world.driver.forget(s1);
            world.alloc.stream_destroyed(0, s1).expect("told");
        }
        world.alloc.record_stream(block, s2).expect("recorded");
        world.alloc.deallocate(block).expect("freed");
        let before = world.sim.counters();
        let of_pool = EmptyOptions { pool: Some(pool), ..EmptyOptions::default() };
        assert_eq!(empty(&world, &of_pool), 50 * M);
        let calls = world.calls_since(&before);
        let waited = calls.get("aclrtSynchronizeEvent").copied().unwrap_or(0);
        assert!(waited <= 2 && !calls.contains_key("aclrtSynchronizeDevice"), "{calls:?}");
        if !dead {
            assert!(!world.sim.executor().stream_query(0, s1.0).unwrap(), "it was waited for");
        }
        world.close();
    }
}

/// The same for memory of a minimum age: who frees at this moment is not waited for.
#[test]
fn emptying_by_age_waits_for_nobody_whose_memory_is_young() {
    for conf in ["front_cache:False", "front_cache:False,expandable_segments:False"] {
        let mut world = Setup::default().conf(conf).build();
        let (s0, s1) = (world.stream(), world.stream());
        let (old, young) = (world.alloc(30 * M, s0), world.alloc(50 * M, s1));
        world.work(s1, "work", young);
        world.free(old);
        world.alloc.trim(0, u64::MAX).expect("known to be over");
        let age = |seconds| EmptyOptions {
            min_age: Some(Age::Time(Duration::from_secs(seconds))),
            ..EmptyOptions::default()
        };
        // Looked at now, so that the clock knows the free.
        assert_eq!(empty(&world, &age(1000)), 0);
        world.sim.advance(10 * SECOND);
        world.free(young);
        let before = world.sim.counters();
        assert_eq!(empty(&world, &age(5)), 30 * M, "{conf}");
        assert_no_host_wait(&world.calls_since(&before));
        world.close();
    }
}

/// Others free while the host waits: that is no reason to wait on, for the device least of all.
#[test]
fn emptying_does_not_wait_for_what_is_freed_meanwhile() {
    let mut world = Setup::default().build();
    let (s0, s1) = (world.stream(), world.stream());
    let a = world.alloc(20 * M, s0);
    world.work(s0, "work", a);
    world.free(a);
    let (alloc, done) = (Arc::downgrade(&world.alloc), AtomicBool::new(false));
    world.driver.watch(Some(Arc::new(move |call| {
        if call == PASSED && !done.swap(true, SeqCst) {
            let alloc = alloc.upgrade().expect("still there");
            for bytes in [3 * M, 5 * M, 7 * M] {
                let block = alloc.allocate(0, bytes, 0, s1).expect("memory");
                alloc.deallocate(block).expect("freed");
            }
        }
    })));
    let before = world.sim.counters();
    world.alloc.empty_cache(Some(0)).expect("emptied");
    world.driver.watch(None);
    let calls = world.calls_since(&before);
    assert_eq!(calls.get("aclrtSynchronizeEvent"), Some(&1));
    assert!(!calls.contains_key("aclrtSynchronizeDevice") && !calls.contains_key("aclrtSynchronizeStream"));
    world.close();
}

/// What is freed after many frees of the front is as young as anything else.
#[test]
fn fixed_blocks_are_not_older_than_they_are_beside_a_busy_front() {
    let mut world = Setup::default().conf("decay_ops:2000").build();
    let s0 = world.stream();
    pass_front_frees(&world, 20_000, s0);
    // Small blocks have their reservation, large ones get none.
    world.sim.set_va_budget(Some(0));
    let blocks = [0, 1].map(|_| world.alloc(40 * M, s0));
    blocks.into_iter().for_each(|block| world.free(block));
    let held = world.reserved();
    let age = EmptyOptions { min_age: Some(Age::Frees(100)), ..EmptyOptions::default() };
    assert_eq!(empty(&world, &age), 0, "they were freed just now");
    pass_front_frees(&world, 1500, s0);
    assert_eq!(world.reserved(), held, "too early");
    pass_front_frees(&world, 2500, s0);
    assert!(world.reserved() < held, "they have been idle for long enough");
    world.sim.set_va_budget(None);
    world.close();
}

/// The epochs of a destroyed stream are ended by a wait for the device; from then on its memory ages like any.
#[test]
fn memory_of_a_destroyed_stream_decays() {
    for reused in [false, true] {
        let mut world = Setup::default().conf("decay_ops:2000,front_cache:False").capacity(250 * M).build();
        let (s0, gone) = (world.stream(), world.stream());
        let kept = world.alloc(200 * M, s0);
        let idle = world.alloc(50 * M, gone);
        world.free(idle);
        world.finish(gone);
        world.destroy(gone);
        // For this the device is waited for, which ends the wait of all of it.
        let part = world.alloc(10 * M, s0);
        world.free(part);
        assert_eq!(world.reserved(), 250 * M);
        if reused {
            let next = world.stream();
            world.alloc(4096, next);
        }
        pass_frees(&world, 10_000, s0);
        assert!(world.reserved() <= 206 * M, "reused {reused}: {}", world.reserved());
        world.free(kept);
        world.close();
    }
}

/// More blocks than are looked at in one go belong to a stream that never passes their frees: what lies behind these decays.
#[test]
fn memory_decays_behind_what_is_in_use() {
    for conf in ["", ",expandable_segments:False", ",large_segment_size_mb:12"] {
        let conf = format!("decay_ops:500,front_cache:False,device_waits:False{conf}");
        let mut world = Setup::default().conf(&conf).capacity(16 << 30).build();
        world.contents = false;
        let (s0, slow) = (world.stream(), world.stream());
        let allocate = |bytes, stream| world.alloc.allocate(0, bytes, 0, stream).expect("memory");
        let blocks: Vec<DevicePtr> = (0..800).map(|_| allocate(12 * M, slow)).collect();
        let idle: Vec<DevicePtr> = (0..20).map(|_| allocate(12 * M, s0)).collect();
        let ends = allocate(12 * M, s0);
        world.driver.hold(slow);
        blocks.iter().step_by(2).for_each(|&block| world.alloc.deallocate(block).expect("freed"));
        idle.iter().for_each(|&block| world.alloc.deallocate(block).expect("freed"));
        pass_frees(&world, 200, s0);
        let before = world.sim.physical_bytes(0);
        pass_frees(&world, 10_000, s0);
        let gone = before - world.sim.physical_bytes(0);
        assert!(gone >= 200 * M, "{conf}: {gone}");
        world.finish(slow);
        for block in blocks.into_iter().skip(1).step_by(2).chain([ends]) {
            world.alloc.deallocate(block).expect("freed");
        }
        world.close();
    }
}
