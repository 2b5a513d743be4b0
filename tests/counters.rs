//! Counters of the statistics: what rises falls again.

mod common;

use ascend_alloc::DeviceAlloc;
use ascend_alloc::driver::Stream;
use common::{M, Setup};

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
