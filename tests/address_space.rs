//! Address space that runs out: what nobody needs goes back before a request does without.

mod common;

use ascend_alloc::driver::Stream;
use ascend_alloc::{DevicePtr, GrowableBuffer, GrowableOptions, PoolOptions, RouteFilter};
use common::{G, M, Setup, World};

const STREAM: Stream = Stream(0);

/// A machine of small devices, each of whose pools reserves 1 GiB at a time, that has so much address space.
fn world(conf: &str, devices: u32, space: u64) -> World {
    let mut setup = Setup::default().devices(devices).conf(conf);
    setup.sim.va_budget = Some(space);
    setup.build()
}

fn buffer(world: &World, max: u64, bytes: u64) -> GrowableBuffer {
    let options = GrowableOptions::up_to(max).beginning_with(bytes);
    GrowableBuffer::new(world.alloc.clone(), 0, STREAM, options).unwrap()
}

/// Whether a block is at an address that was reserved, so that its memory can move.
fn is_reserved(world: &World, block: DevicePtr) -> bool {
    world.alloc.block_info(block).unwrap().segment_bytes >= G && world.sim.count("aclrtMallocAlign32") == 0
}

#[test]
fn pools_that_come_and_go_do_not_use_it_up() {
    for no_split in [false, true] {
        let mut world = world("", 1, 16 * G);
        world.contents = false;
        let kept = world.alloc.create_pool(0, PoolOptions::default()).unwrap();
        let first = world.alloc.allocate_in(kept, 4 * M, 0, STREAM).unwrap();
        world.alloc.release_pool(kept).unwrap();
        for round in 0..100 {
            let mut options = PoolOptions::tagged("tenant");
            options.no_split = no_split;
            let pool = world.alloc.create_pool(0, options).unwrap();
            let blocks =
                [3 * M, 700, 5 * M].map(|bytes| world.alloc.allocate_in(pool, bytes, 0, STREAM).unwrap());
            assert!(blocks.iter().all(|&block| is_reserved(&world, block)), "{round}");
            blocks.into_iter().for_each(|block| world.alloc.deallocate(block).unwrap());
            world.alloc.release_pool(pool).unwrap();
        }
        // Whoever still has a block of a pool that was released is not disturbed.
        assert!(world.sim.is_backed(first.0, 4 * M));
        world.alloc.check().unwrap();
        world.alloc.deallocate(first).unwrap();
        world.close();
    }
}

/// In whatever chunks: with `large_segment_size_mb` those of a buffer have several granules.
#[test]
fn buffers_that_are_gone_make_room_for_other_memory() {
    for conf in ["", "large_segment_size_mb:20"] {
        for device in [0, 1] {
            let world = world(conf, 2, 4 * G);
            let buffers = [buffer(&world, G, 40 * M), buffer(&world, 3 * G, 30 * M)];
            drop(buffers);
            let block = world.alloc.allocate(device, 4 * M, 0, STREAM).unwrap();
            assert!(is_reserved(&world, block), "{conf} {device}");
            world.alloc.check().unwrap();
            world.alloc.deallocate(block).unwrap();
            world.close();
        }
    }
}

/// Reservations with nothing in them, of pools that are in use too.
#[test]
fn what_is_reserved_for_nothing_makes_room_for_a_buffer() {
    let world = world("", 1, 4 * G);
    let block = world.alloc.allocate(0, 4 * M, 0, STREAM).unwrap();
    let mut whole = buffer(&world, 3 * G, 1020 * M);
    world.alloc.deallocate(block).unwrap();
    // The chunks of the block move to the buffer.
    whole.resize(G).unwrap();
    let next = buffer(&world, G, 0);
    assert_eq!((next.max_bytes(), world.stats().segment.all.current), (G, 2));
    drop((whole, next));
    world.close();
}

/// Work that is being captured may hold any address.
#[test]
fn nothing_goes_while_a_graph_is_captured() {
    let world = world("", 1, 4 * G);
    drop(buffer(&world, 4 * G, 8 * M));
    let pool = world.alloc.create_pool(0, PoolOptions::default()).unwrap();
    let capture = world.alloc.capture(pool, RouteFilter::ThisThread).unwrap();
    let fixed = world.alloc.allocate(0, 4 * M, 0, STREAM).unwrap();
    assert_eq!((world.sim.count("aclrtReleaseMemAddress"), world.sim.count("aclrtUnmapMem")), (0, 0));
    assert!(!is_reserved(&world, fixed));
    drop(capture);
    let block = world.alloc.allocate(0, 4 * M, 0, STREAM).unwrap();
    assert!(world.alloc.block_info(block).unwrap().segment_bytes >= G);
    [fixed, block].into_iter().for_each(|block| world.alloc.deallocate(block).unwrap());
    world.alloc.release_pool(pool).unwrap();
    world.close();
}
