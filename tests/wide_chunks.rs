//! Chunks of several granules: larger handles for large growth, and pages of 1 GiB beside those of 2 MiB.

mod common;

use ascend_alloc::{DevicePtr, EmptyOptions, PoolOptions, SleepMode};
use ascend_sim::Soc;
use common::{G, M, Setup, World, scripts::assert_no_host_wait};

/// Chunks of 20 MiB where a request grows by as much.
const TWENTY: &str = "large_segment_size_mb:20";

fn maps(world: &World) -> u64 {
    world.sim.count("aclrtMapMem")
}

/// How many chunks are mapped in all.
fn chunks(world: &World) -> u64 {
    world.alloc.snapshot(0).expect("a snapshot").segments.iter().map(|segment| segment.chunks).sum()
}

#[test]
fn large_growth_takes_few_chunks_and_no_more_memory() {
    for (conf, expected) in [(TWENTY, 5 + 1), ("large_segment_size_mb:64", 1 + 19), ("", 51)] {
        let mut world = Setup::default().conf(conf).build();
        let s0 = world.stream();
        world.alloc(102 * M, s0);
        assert_eq!((maps(&world), chunks(&world), world.reserved()), (expected, expected, 102 * M), "{conf}");
        world.close();
    }
}

/// A request that grows by less than a wide chunk gets what it lacks.
#[test]
fn small_growth_takes_small_chunks() {
    let mut world = Setup::default().conf(TWENTY).build();
    let s0 = world.stream();
    for bytes in [512, 3 * M, 18 * M] {
        let ptr = world.alloc(bytes, s0);
        assert_eq!(chunks(&world) * 2 * M, world.reserved(), "{bytes}");
        world.free(ptr);
    }
    // What is there is used: only the rest is new.
    let before = maps(&world);
    world.alloc(36 * M, s0);
    assert_eq!(maps(&world) - before, 9);
    world.close();
}

/// A wide chunk lies wholly in the block it is made for, so that no other block is ever tied to it by that.
#[test]
fn wide_chunks_do_not_reach_beyond_their_block() {
    let mut world = Setup::default().conf(TWENTY).build();
    let s0 = world.stream();
    let a = world.alloc(M + 4096, s0);
    // Begins in the middle of a chunk and ends in the middle of one.
    let b = world.alloc(45 * M, s0);
    assert_eq!(b.0, a.0 + world.block(a));
    assert_eq!(chunks(&world), 1 + 2 + 3);
    world.free(b);
    let freed = world.alloc.trim(0, 0).expect("trimmed");
    world.verify();
    assert_eq!((freed, chunks(&world)), (46 * M, 1));
    world.close();
}

/// Where memory is short, an idle wide chunk is given back whole, and taken anew as what is needed.
#[test]
fn idle_wide_chunks_serve_whoever_needs_memory() {
    let mut world = Setup::default().conf(TWENTY).capacity(100 * M).build();
    let s0 = world.stream();
    let blocks: Vec<DevicePtr> = (0..5).map(|_| world.alloc(20 * M, s0)).collect();
    assert_eq!(chunks(&world), 5);
    world.free(blocks[0]);
    world.free(blocks[2]);
    world.free(blocks[4]);
    let before = world.sim.counters();
    let large = world.alloc(60 * M, s0);
    assert_no_host_wait(&world.calls_since(&before));
    assert_eq!(world.reserved(), 100 * M);
    world.free(large);
    // The same for blocks of other sizes.
    let more: Vec<DevicePtr> = (0..30).map(|_| world.alloc(2 * M, s0)).collect();
    assert_eq!((world.reserved(), world.stats().num_ooms), (100 * M, 0));
    more.into_iter().for_each(|ptr| world.free(ptr));
    world.close();
}

/// Live blocks in a wide chunk keep all of it; the rest of it still serves, and nothing else is kept.
#[test]
fn a_wide_chunk_stays_while_anything_of_it_is_live() {
    let mut world = Setup::default().conf(TWENTY).build();
    let (s0, s1) = (world.stream(), world.stream());
    let a = world.alloc(40 * M, s0);
    world.free(a);
    let small = world.alloc(3 * M, s0);
    assert_eq!(small, a);
    world.alloc.trim(0, 0).expect("trimmed");
    world.verify();
    assert_eq!((world.reserved(), chunks(&world)), (20 * M, 1), "the second one is gone");
    let before = maps(&world);
    let beside = world.alloc(17 * M, s1);
    assert_eq!((maps(&world), beside.0), (before, small.0 + 3 * M));
    world.free(small);
    world.free(beside);
    world.close();
}

/// Work that may still use a part of it keeps a wide chunk where it is.
#[test]
fn a_wide_chunk_in_use_is_not_unmapped() {
    let mut world = Setup::default().conf(TWENTY).build();
    let s0 = world.stream();
    let a = world.alloc(40 * M, s0);
    world.work(s0, "t1", a);
    world.free(a);
    let options = EmptyOptions { wait: false, ..EmptyOptions::default() };
    assert_eq!(world.alloc.empty_cache_with(None, &options).expect("emptied"), 0);
    world.finish(s0);
    assert_eq!(world.alloc.empty_cache_with(None, &options).expect("emptied"), 40 * M);
    world.verify();
    world.close();
}

/// A device that has room, but none for a wide chunk, gives small ones.
#[test]
fn small_chunks_are_made_where_there_are_no_wide_ones() {
    let mut world = Setup::default().conf(TWENTY).capacity(100 * M).build();
    let s0 = world.stream();
    world.alloc(70 * M, s0);
    world.sim.set_foreign_bytes(0, 6 * M);
    // 24 MiB are left: one wide chunk and two small ones.
    let a = world.alloc(24 * M, s0);
    assert_eq!(world.reserved(), 94 * M);
    world.free(a);
    world.alloc.trim(0, 0).expect("trimmed");
    // Wide ones fail for a reason of their own.
    world.sim.fail("aclrtMallocPhysical", 1, 207_001, false).expect("a function");
    let before = chunks(&world);
    let a = world.alloc(24 * M, s0);
    assert_eq!((chunks(&world) - before, world.stats().num_ooms), (12, 0));
    world.free(a);
    world.alloc.trim(0, 0).expect("trimmed");
    // A driver that has no such chunks is asked only once.
    world.sim.fail("aclrtMallocPhysical", 1, 207_000, false).expect("a function");
    for _ in 0..2 {
        let before = world.sim.count("aclrtMallocPhysical");
        let a = world.alloc(24 * M, s0);
        let refused = u64::from(world.stats().num_ooms == 0 && before == world.sim.count("aclrtMapMem") + 1);
        assert!(world.sim.count("aclrtMallocPhysical") - before <= 13 + refused);
        world.free(a);
        world.alloc.trim(0, 0).expect("trimmed");
        world.verify();
    }
    world.close();
}

fn one_gib(capacity: u64) -> World {
    let mut setup = Setup::default().conf("page_size:1g").padded();
    setup.sim.capacity = capacity;
    setup.build()
}

/// Pages of 1 GiB are used where a request covers one, and small requests take 2 MiB.
#[test]
fn pages_of_a_gib_beside_those_of_two_mib() {
    let mut world = one_gib(8 * G);
    let s0 = world.stream();
    world.alloc(512, s0);
    assert_eq!(world.reserved(), 2 * M);
    world.alloc(30 * M, s0);
    assert_eq!(world.reserved(), 34 * M, "the pad of 32 bytes takes one more");
    world.sim.set_logging(true);
    let large = world.alloc(2 * G + 10 * M, s0);
    let log = world.sim.take_log();
    world.sim.set_logging(false);
    let made = |attr: &str| {
        let made = log.iter().filter(|entry| entry.function == "aclrtMallocPhysical");
        made.filter(|entry| entry.arguments.contains(attr)).count()
    };
    assert_eq!((made("attr=10"), made("attr=4")), (2, 6), "ACL_HBM_MEM_HUGE1G and ACL_HBM_MEM_HUGE");
    assert!(large.0.is_multiple_of(G));
    assert_eq!(world.reserved(), 2 * G + 46 * M);
    // A second one finds a place as well, and what is between them is only address space.
    world.alloc(G, s0);
    assert_eq!((world.reserved(), world.stats().segment.large.current), (3 * G + 48 * M, 1));
    world.free(large);
    world.alloc.empty_cache(None).expect("emptied");
    world.verify();
    assert_eq!(world.reserved(), G + 2 * M + 34 * M);
    world.close();
}

/// The device has no page of 1 GiB left, or the part has none at all: 2 MiB ones do.
#[test]
fn without_pages_of_a_gib_small_ones_serve() {
    let mut world = one_gib(3 * G);
    let s0 = world.stream();
    world.alloc(1500 * M, s0);
    // Less than a GiB is left beside this one.
    world.sim.set_foreign_bytes(0, 500 * M);
    world.alloc(1025 * M, s0);
    assert_eq!(world.stats().num_ooms, 0);
    world.sim.set_foreign_bytes(0, 0);
    world.close();

    let mut setup = Setup::default().conf("page_size:1g");
    setup.sim.capacity = 3 * G;
    assert_eq!(setup.sim.soc, Soc::Ascend950, "this part has no such pages");
    let mut world = setup.build();
    let s0 = world.stream();
    world.alloc(1500 * M, s0);
    assert_eq!(world.reserved(), 1500 * M);
    world.close();
}

/// Idle pages of 1 GiB are out of nobody's reach.
#[test]
fn idle_pages_of_a_gib_serve_small_requests() {
    let mut world = one_gib(3 * G);
    let s0 = world.stream();
    let large = world.alloc(2 * G, s0);
    let beside = world.alloc(900 * M, s0);
    world.free(large);
    // There is no room for these but where the large one was.
    let a = world.alloc(600 * M, s0);
    let b = world.alloc(1100 * M, s0);
    assert_eq!(world.stats().num_ooms, 0);
    for ptr in [a, b, beside] {
        world.free(ptr);
    }
    world.close();
}

/// Pools sleep and wake with wide chunks, and graphs keep them.
#[test]
fn a_pool_with_wide_chunks_sleeps() {
    let world = Setup::default().conf(TWENTY).build();
    let s0 = world.stream();
    let pool = world.alloc.create_pool(0, PoolOptions::tagged("weights")).expect("a pool");
    let ptr = world.alloc.allocate_in(pool, 64 * M, 0, s0).expect("memory");
    world.sim.write_bytes(ptr.0 + 30 * M, b"kept").expect("mapped");
    assert_eq!(chunks(&world), 3 + 2);
    let slept = world.alloc.sleep(None, &["weights"], SleepMode::Offload).expect("asleep");
    assert_eq!((slept.returned_bytes, world.sim.physical_bytes(0)), (64 * M, 0));
    world.alloc.check().expect("sound");
    world.alloc.wake(None, &["weights"]).expect("awake");
    let mut bytes = [0; 4];
    world.sim.read_bytes(ptr.0 + 30 * M, &mut bytes).expect("mapped");
    assert_eq!(&bytes, b"kept");
    world.alloc.deallocate(ptr).expect("freed");
    world.alloc.release_pool(pool).expect("released");
    world.close();
}

/// Growing in place may take wide chunks; shrinking frees whole ones only.
#[test]
fn growing_and_shrinking_in_place() {
    let mut world = Setup::default().conf(TWENTY).build();
    let s0 = world.stream();
    let a = world.alloc(10 * M, s0);
    world.live.remove(&a.0);
    let before = maps(&world);
    assert!(world.alloc.grow_in_place(a, 52 * M).expect("no error"));
    assert_eq!(maps(&world) - before, 2 + 1, "42 MiB more");
    world.alloc.shrink_in_place(a, 25 * M).expect("shrunk");
    world.alloc.check().expect("sound");
    let freed = world.alloc.trim(0, 0).expect("trimmed");
    assert_eq!(freed, 22 * M, "the chunk that the block still ends in stays");
    world.alloc.deallocate(a).expect("freed");
    world.close();
}

/// A place across a wide chunk takes all of it, since it moves whole or not at all; given back it serves there and elsewhere.
#[test]
fn a_wide_chunk_that_lies_across_the_place_is_taken_apart() {
    let mut world = Setup::default().conf("large_segment_size_mb:12").build();
    let s0 = world.stream();
    let [both, small, last] = [24, 2, 12].map(|mib| world.alloc(mib * M, s0));
    world.free(last);
    let last = world.alloc(10 * M, s0);
    let stays = world.alloc(3 * M / 2, s0);
    world.free(small);
    world.alloc.trim(0, 0).expect("trimmed");
    world.free(both);
    world.free(last);
    world.alloc.set_memory_limit(0, Some(world.reserved())).expect("a limit");
    // Two wide chunks are idle, a hole of one granule is behind them, then ten MiB of one that is in use.
    assert_eq!((chunks(&world), world.reserved(), stays.0 - both.0), (3, 36 * M, 36 * M));
    let block = world.alloc(30 * M, s0);
    assert_eq!((block.0 - both.0, world.reserved()), (6 * M, 32 * M));
    world.close();
}

/// Pages of 1 GiB need an alignment that may cost more memory than there is.
#[test]
fn a_page_of_a_gib_is_done_without_where_its_place_costs_too_much() {
    let mut world = Setup::default().conf("page_size:1g").capacity(4 * G).build();
    let s0 = world.stream();
    let page = world.alloc(G, s0);
    world.free(page);
    let stays = world.alloc(60 * M, s0);
    world.alloc.set_memory_limit(0, Some(G + 440 * M)).expect("a limit");
    // Behind the block 964 MiB are there that cannot be moved. At the next multiple of a GiB all would be new.
    let block = world.alloc(1400 * M, s0);
    assert_eq!((block.0 - stays.0, world.reserved()), (60 * M, G + 436 * M));
    world.close();
}
