//! Counters of the statistics: what rises falls again.

mod common;

use ascend_alloc::driver::Stream;
use ascend_alloc::history::HistoryOptions;
use ascend_alloc::{DeviceAlloc, DevicePtr};
use common::{K, M, Setup};

/// A block that grows beyond the size from which on blocks are not split counts as one of these until it is freed.
#[test]
fn a_block_that_grows_large_counts_as_oversize() {
    let world = Setup::default().conf("expandable_segments:False,max_split_size_mb:20").build();
    let oversize = || world.stats().oversize_allocations;
    // For its alignment it lies in a larger fixed block.
    let block = world.alloc.allocate(0, 15 * M, 16 * M, Stream(0)).unwrap();
    assert_eq!(oversize().current, 0);
    // SAFETY: the block is this test's.
    let grown = unsafe { world.alloc.grow(block, 24 * M) }.unwrap();
    let expected = i64::from(grown);
    assert_eq!((oversize().current, oversize().peak), (expected, expected), "grown: {grown}");
    world.alloc.deallocate(block).unwrap();
    assert_eq!((oversize().current, oversize().freed), (0, expected));
    world.close();
}

/// A piece that is cut off a block and waits for other streams is active by itself: it comes and goes once.
#[test]
fn a_piece_that_waits_is_counted_as_active_once() {
    let mut world = Setup::default().build();
    let (s0, s1) = (world.stream(), world.stream());
    let block = world.alloc(8 * M, s0);
    world.record(block, s1);
    world.work(s1, "a use", block);
    let sums = |world: &common::World| {
        let stats = world.stats();
        let pair = |stat: ascend_alloc::stats::StatArray| (stat.all.allocated, stat.all.freed);
        (pair(stats.active), pair(stats.active_bytes), pair(stats.allocated_bytes))
    };
    let m = M as i64;
    assert_eq!(sums(&world), ((1, 0), (8 * m, 0), (8 * m, 0)));
    world.alloc.shrink_in_place(block, 6 * M).unwrap();
    assert_eq!(sums(&world), ((2, 0), (8 * m, 0), (8 * m, 2 * m)), "2 MiB still wait");
    world.finish(s1);
    world.alloc.trim(0, u64::MAX).unwrap();
    assert_eq!(sums(&world), ((2, 1), (8 * m, 2 * m), (8 * m, 2 * m)));
    world.alloc.deallocate(block).unwrap();
    world.alloc.empty_cache(None).unwrap();
    assert_eq!(sums(&world), ((2, 2), (8 * m, 8 * m), (8 * m, 8 * m)));
}

/// The caller of a free says how many bytes it had asked for: another number is counted, whoever takes the block back, and
/// changes nothing else.
#[test]
fn a_free_that_says_another_size_is_counted() {
    let history = |world: &common::World| world.alloc.start_history(&HistoryOptions::default());
    let nothing = |_: &common::World| ();
    for conf in
        ["", "expandable_segments:False", "decay_ops:1000", "front_cache:False", "roundup_power2_divisions:4"]
    {
        for prepare in [history, nothing as fn(&common::World)] {
            let mut world = Setup::default().conf(conf).build();
            let (s0, s1) = (world.stream(), world.stream());
            prepare(&world);
            let mut expected = 0;
            for bytes in [1, 512, 700 * K, M + 1, 20 * M, 300 * M] {
                for (said, differs) in
                    [(bytes, false), (0, false), (bytes + 1, true), (1 << 50, true), (bytes - 1, bytes > 1)]
                {
                    for recorded in [false, true] {
                        let block = world.alloc(bytes, s0);
                        if recorded {
                            world.record(block, s1);
                        }
                        world.free_sized(block, said);
                        expected += u64::from(differs);
                        assert_eq!(
                            world.stats().size_mismatches,
                            expected,
                            "{conf} {bytes} {said} {recorded}"
                        );
                        world.alloc.deallocate_sized(block, said + 7).unwrap_err();
                        assert_eq!(world.stats().size_mismatches, expected, "a refused free says nothing");
                    }
                }
            }
            assert_eq!(world.stats().allocated_bytes.all.current, 0);
            let block = world.alloc.allocate(0, 3 * M, 0, s0).unwrap();
            // What counts is what it was last asked for with.
            let resized = world.alloc.shrink_in_place(block, 5 * M / 2).is_ok();
            world.alloc.deallocate_sized(block, if resized { 5 * M / 2 } else { 3 * M }).unwrap();
            world.alloc.deallocate_sized(DevicePtr::NULL, 5).unwrap();
            assert_eq!(world.stats().size_mismatches, expected);
            world.verify();
            world.alloc.reset_accumulated_stats(0).unwrap();
            assert_eq!(world.stats().size_mismatches, 0);
        }
    }
}
