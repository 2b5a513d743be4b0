//! Free memory that is claimed by its address, so that nobody else gets it.

mod common;

use ascend_alloc::driver::Stream;
use ascend_alloc::{DevicePtr, PoolOptions, SleepMode};
use common::{CLASSIC, M, Setup};

const NOBODY: u64 = 0x1000;

#[test]
fn free_memory_of_a_range_is_handed_out_to_nobody_else() {
    for conf in ["", CLASSIC] {
        let world = Setup::default().conf(conf).build();
        let allocate = |size| world.alloc.allocate(0, size, 0, Stream(0)).unwrap();
        let free = |block| world.alloc.deallocate(block).unwrap();
        for size in [700, 100 << 10, 3 * M, 5 * M, 40 * M] {
            let blocks: Vec<_> = (0..6).map(|_| allocate(size)).collect();
            let (bad, kept) = (blocks[2], blocks[3]);
            blocks.iter().filter(|&&block| block != kept).for_each(|&block| free(block));
            let mut claimed = Vec::new();
            while let Some((block, bytes)) = world.alloc.claim(0, bad.0 + 512.min(size / 2), 64).unwrap() {
                claimed.push((block, bytes));
                world.alloc.check().unwrap();
            }
            assert!(!claimed.is_empty(), "{conf} {size}");
            let inside =
                |address: u64| claimed.iter().any(|&(at, len)| at.0 <= address && address < at.0 + len);
            assert!(inside(bad.0 + 512.min(size / 2)), "{conf} {size}: {claimed:x?}");
            assert!(!inside(kept.0), "a live block was handed out");
            // Whoever asks now gets other memory.
            let others: Vec<_> = (0..12).map(|_| allocate(size)).collect();
            for other in &others {
                let apart = |&(at, len): &(DevicePtr, u64)| other.0 + size <= at.0 || at.0 + len <= other.0;
                assert!(claimed.iter().all(apart), "{conf} {size}: {other:x?} in {claimed:x?}");
            }
            others.into_iter().for_each(free);
            free(kept);
            // Blocks like others: they can be freed, and are whole again.
            claimed.into_iter().for_each(|(block, _)| world.alloc.deallocate(block).unwrap());
            world.alloc.check().unwrap();
            world.alloc.empty_cache(None).unwrap();
            assert_eq!(world.reserved(), 0, "{conf} {size}");
        }
        world.close();
    }
}

#[test]
fn claimed_blocks_count_and_are_moved_by_nobody() {
    let mut world = Setup::default().build();
    let s0 = world.stream();
    let block = world.alloc(64 * M, s0);
    world.free(block);
    let (claimed, bytes) = world.alloc.claim(0, block.0 + 9 * M, 4096).unwrap().unwrap();
    assert_eq!((claimed.0, bytes), (block.0 + 8 * M, 2 * M), "the chunk of the page");
    assert_eq!(world.stats().allocated_bytes.all.current, 2 * M as i64);
    world.alloc.empty_cache(None).unwrap();
    assert_eq!(world.reserved(), 2 * M, "the others go");
    assert_eq!(world.alloc.claim(0, block.0 + 9 * M, 4096).unwrap(), None);
    world.alloc.deallocate(claimed).unwrap();
    world.close();
}

#[test]
fn where_nothing_is_free_nothing_is_claimed() {
    let mut world = Setup::default().build();
    assert_eq!(world.alloc.claim(0, NOBODY, u64::MAX).unwrap(), None, "nothing is held yet");
    assert!(world.alloc.claim(99, NOBODY, 1).is_err());
    let s0 = world.stream();
    let live = world.alloc(4 * M, s0);
    assert_eq!(world.alloc.claim(0, live.0, 4 * M).unwrap(), None);
    assert_eq!(world.alloc.claim(0, live.0, 0).unwrap(), None);
    let pool = world.alloc.create_pool(0, PoolOptions::tagged("sleeper")).unwrap();
    let asleep = world.alloc.allocate_in(pool, 4 * M, 0, s0).unwrap();
    let gap = world.alloc.allocate_in(pool, 4 * M, 0, s0).unwrap();
    let last = world.alloc.allocate_in(pool, 4 * M, 0, s0).unwrap();
    world.alloc.deallocate(gap).unwrap();
    world.alloc.sleep(None, &["sleeper"], SleepMode::Discard).unwrap();
    assert_eq!(world.alloc.claim(0, gap.0, 4 * M).unwrap(), None, "it has no memory");
    world.alloc.wake(None, &["sleeper"]).unwrap();
    [asleep, last].into_iter().for_each(|block| world.alloc.deallocate(block).unwrap());
    world.alloc.release_pool(pool).unwrap();
    world.free(live);
    world.close();
}

/// A range without bytes has no page in it.
#[test]
fn nothing_lies_in_an_empty_range() {
    let mut world = Setup::default().build();
    let s0 = world.stream();
    let block = world.alloc(64 * M, s0);
    world.free(block);
    for inside in [0, 512, 2 * M, 9 * M + 77] {
        assert_eq!(world.alloc.claim(0, block.0 + inside, 0).unwrap(), None, "{inside}");
    }
    assert_eq!(world.stats().allocated_bytes.all.current, 0);
    world.close();
}
