//! Free memory that is claimed by its address, so that nobody else gets it.

mod common;

use ascend_alloc::driver::Stream;
use ascend_alloc::{DevicePtr, Error, GrowableBuffer, GrowableOptions, PoolOptions, SleepMode};
use common::{CLASSIC, K, M, Setup};

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

/// A bad page may lie behind a growing buffer, or where one was: it is nobody's there too.
#[test]
fn memory_of_growing_buffers_is_claimed_and_freed_like_any_other() {
    for empty in [false, true] {
        let world = Setup::default().conf("check_level:3").build();
        let options = GrowableOptions::up_to(64 * M).beginning_with(16 * M);
        let mut buffer = GrowableBuffer::new(world.alloc.clone(), 0, Stream(0), options.clone()).unwrap();
        let bad = buffer.ptr().0 + if empty { 0 } else { 8 * M };
        buffer.resize(if empty { 0 } else { 4 * M }).unwrap();
        let (claimed, bytes) = world.alloc.claim(0, bad, 4096).unwrap().unwrap();
        assert!(claimed.0 <= bad && bad < claimed.0 + bytes);
        assert!(!world.alloc.grow_in_place(claimed, 32 * M).unwrap(), "the rest is the buffer's");
        let grown = buffer.resize(32 * M);
        assert!(matches!(grown, Err(Error::OutOfMemory(_))), "it would get the bad page: {grown:?}");
        assert_eq!(buffer.bytes(), if empty { 0 } else { 4 * M });
        drop(buffer);
        // The next buffer of that size begins elsewhere.
        let next = GrowableBuffer::new(world.alloc.clone(), 0, Stream(0), options).unwrap();
        assert!(bad < next.ptr().0 || next.ptr().0 + next.max_bytes() <= bad);
        drop(next);
        assert_eq!(world.stats().allocated_bytes.all.current, bytes as i64);
        world.alloc.deallocate(claimed).unwrap();
        world.close();
    }
}

/// Whoever restores or puts to sleep a pool has to do with its blocks, and none of them has that memory.
#[test]
fn claimed_blocks_stay_out_of_what_is_done_to_their_pool() {
    let world = Setup::default().build();
    let pool = world.alloc.create_pool(0, PoolOptions::tagged("sleeper")).unwrap();
    let blocks = [4 * M; 3].map(|bytes| world.alloc.allocate_in(pool, bytes, 0, Stream(0)).unwrap());
    let full = world.alloc.checkpoint(pool).unwrap();
    world.alloc.deallocate(blocks[1]).unwrap();
    let (claimed, bytes) = world.alloc.claim(0, blocks[1].0, 4096).unwrap().unwrap();
    let now = world.alloc.checkpoint(pool).unwrap();
    let refused = world.alloc.restore(&full);
    assert!(matches!(refused, Err(Error::State { .. })), "{refused:?}");
    let restored = world.alloc.restore(&now).unwrap();
    assert_eq!(
        (restored.freed, restored.allocated),
        (vec![blocks[0], blocks[2]], vec![blocks[0], blocks[2]])
    );
    let slept = world.alloc.sleep(None, &["sleeper"], SleepMode::Offload).unwrap();
    assert_eq!(slept.host_bytes, 8 * M, "nobody reads a bad page");
    // Nor does the device get it back, to give it to somebody else.
    assert_eq!((slept.returned_bytes, slept.device_bytes), (12 * M - bytes, 12 * M - bytes));
    assert_eq!((world.reserved(), world.sim.physical_bytes(0)), (bytes, bytes));
    assert!(world.sim.is_backed(claimed.0, bytes));
    // A snapshot tells what has memory from what has none.
    let segments = world.alloc.snapshot(0).unwrap().segments;
    let with: Vec<_> = segments.iter().filter(|segment| !segment.is_asleep).collect();
    assert_eq!(with.iter().map(|segment| segment.total_size).sum::<u64>(), bytes);
    assert_eq!((with[0].address, with[0].chunks, segments.len()), (claimed.0, bytes / (2 * M), 3));
    assert_eq!(world.alloc.sleep(None, &["sleeper"], SleepMode::Discard).unwrap().pools, 0);
    world.alloc.empty_cache(None).unwrap();
    assert_eq!(world.reserved(), bytes);
    assert_eq!(world.alloc.wake(None, &["sleeper"]).unwrap().copied_bytes, 8 * M);
    assert_eq!(world.stats().allocated_bytes.all.current, 8 * M as i64 + bytes as i64);
    [blocks[0], claimed, blocks[2]].into_iter().for_each(|block| world.alloc.deallocate(block).unwrap());
    world.alloc.release_pool(pool).unwrap();
    world.close();
}

/// Between large blocks there may be less than a large block can have; then three begin close together.
#[test]
fn a_short_piece_between_large_blocks_is_a_block_of_its_own() {
    for conf in ["", "front_cache:False"] {
        let world = Setup::default().conf(conf).build();
        let allocate = |size| world.alloc.allocate(0, size, 0, Stream(0)).unwrap();
        let (wide, behind, last) = (allocate(M + 200 * K), allocate(M + 200 * K), allocate(3 * M));
        world.alloc.deallocate(wide).unwrap();
        world.alloc.trim(0, u64::MAX).unwrap();
        let before = allocate(M + 512);
        assert_eq!(before, wide, "in the place of the one that was freed");
        let (gap, bytes) = world.alloc.claim(0, before.0 + M + 100 * K, 64).unwrap().expect("free");
        assert_eq!(gap.0 + bytes, behind.0, "all that is between the two");
        world.alloc.check().unwrap();
        for (block, size) in [(before, M + 512), (gap, bytes), (behind, M + 200 * K), (last, 3 * M)] {
            let info = world.alloc.block_info(block).unwrap();
            assert_eq!((info.address, info.requested), (block.0, size), "{conf}");
        }
        for block in [behind, gap, before, last] {
            world.alloc.deallocate(block).unwrap();
            world.alloc.check().unwrap();
            assert!(world.alloc.deallocate(block).is_err(), "{conf}: freed twice");
        }
        world.close();
    }
}
