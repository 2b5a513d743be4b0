#![cfg(test)]
//! The heap checker is what most tests trust, so it is tested itself: it names whatever is broken on purpose.

use std::sync::{Arc, OnceLock};

use ascend_sim::{LAG_NEVER, Sim, SimConfig, Soc};

use super::{DeviceAllocator, DevicePtr, PoolId, PoolOptions};
use crate::config::Config;
use crate::core::Core;
use crate::core::block::{BlockId, State};
use crate::core::tally::{BYTES, COUNT, REQUESTED};
use crate::driver::{SimDriver, Stream};

const M: u64 = 1 << 20;

/// An allocator with a block of each kind, and where they are.
struct Heap {
    sim: Sim,
    alloc: DeviceAllocator,
    /// Live, of a length that is no multiple of a granule.
    live: DevicePtr,
    /// Recorded on another stream and not freed.
    recorded: DevicePtr,
    pool: PoolId,
}

fn heap() -> Heap {
    let machine = SimConfig { soc: Soc::Ascend950, lag: LAG_NEVER, ..SimConfig::default() };
    let sim = Sim::new(machine);
    sim.set_device(0).unwrap();
    let config = Config::parse("front_cache:False,large_segment_size_mb:20").unwrap();
    let alloc = DeviceAllocator::new(config, Arc::new(SimDriver::new(sim.clone()))).unwrap();
    let other = Stream(sim.create_stream().unwrap());
    let allocate = |bytes| alloc.allocate(0, bytes, 0, Stream(0)).unwrap();
    let live = allocate(5 * M + 4096);
    let [gap, recorded, waiting, _last] = [8, 6, 46, 2].map(|size| allocate(size * M));
    for ptr in [recorded, waiting] {
        alloc.record_stream(ptr, other).unwrap();
    }
    alloc.deallocate(gap).unwrap();
    alloc.deallocate(waiting).unwrap();
    let pool = alloc.create_pool(0, PoolOptions::default()).unwrap();
    alloc.allocate_in(pool, 3 * M, 0, Stream(0)).unwrap();
    Heap { sim, alloc, live, recorded, pool }
}

/// The first block in this state.
fn first(core: &Core, state: State) -> BlockId {
    let mut all = core.blocks.iter();
    all.find(|(_, block)| block.state == state).map(|(id, _)| id).expect("the heap has one of each kind")
}

/// The block that begins at a pointer.
fn at(core: &Core, ptr: DevicePtr) -> BlockId {
    let mut all = core.blocks.iter();
    all.find(|(_, block)| block.addr == ptr.0).map(|(id, _)| id).expect("it is live")
}

/// A heap that is sound, until this is done to it, after which the checker says something with this in it.
#[track_caller]
fn says(expected: &str, break_it: impl Fn(&mut Core, &Heap)) {
    let heap = heap();
    heap.alloc.check().unwrap();
    let state = heap.alloc.devices.first().and_then(OnceLock::get).expect("it is used");
    break_it(&mut state.core.lock(), &heap);
    let faults = heap.alloc.check().expect_err("it is broken");
    assert!(faults.iter().any(|fault| fault.contains(expected)), "{expected}: {faults:#?}");
    // A broken heap cannot be given back.
    core::mem::forget(heap.alloc);
    drop(heap.sim);
}

#[test]
fn blocks_that_do_not_tile_their_segment() {
    says("I2: block at", |core, heap| {
        let id = at(core, heap.live);
        core.blocks[id].addr += 512;
    });
    says("I2: blocks of the segment at", |core, _| {
        core.segments.iter_mut().for_each(|(_, segment)| segment.len += 512);
    });
    says("I2: hole at", |core, heap| {
        let id = at(core, heap.live);
        core.blocks[id].state = State::Hole;
    });
    says("I2: granule", |core, heap| {
        let id = at(core, heap.live);
        core.blocks[id].state = State::Hole;
    });
    says("I4: Free blocks at", |core, heap| {
        // Its neighbour is free.
        let id = at(core, heap.live);
        core.blocks[id].state = State::Free;
    });
}

#[test]
fn chunks_that_are_counted_wrong() {
    says("I3: segment at", |core, _| {
        core.segments.iter_mut().for_each(|(_, segment)| segment.mapped += core.limits.granule);
    });
    says("I3: ", |core, _| core.physical += 512);
    says("I3: wide chunks: 1", |core, _| core.wide_chunks += 10);
    says("I3: the wide chunk at", |core, _| {
        let wide =
            core.segments.iter_mut().find(|(_, segment)| !segment.wide.is_empty()).expect("46 MiB have one");
        let span = wide.1.wide.values_mut().next().expect("it is not empty");
        *span += 9;
    });
    says("I3: granule", |core, _| {
        let wide =
            core.segments.iter_mut().find(|(_, segment)| !segment.wide.is_empty()).expect("46 MiB have one");
        let span = wide.1.wide.values_mut().next().expect("it is not empty");
        *span -= 1;
    });
    says("I1: reserved", |core, _| core.tally.reserved.stats[2].current += 512);
}

#[test]
fn lists_that_hold_the_wrong_blocks() {
    says("I5: block at", |core, _| {
        let id = first(core, State::Free);
        core.blocks[id].home = 1;
    });
    says("I5: a hole list holds", |core, _| {
        let id = first(core, State::Hole);
        core.blocks[id].state = State::Busy;
    });
    says("I5: ", |core, _| {
        let id = first(core, State::Free);
        core.blocks[id].indexed = false;
    });
    says("I5: block at", |core, _| core.idle = crate::core::block::List::default());
    says("I5: holes: 2 exist, 0 in lists", |core, _| {
        let classes: Vec<_> = core.pools.indices().flat_map(crate::core::segment::Class::all).collect();
        for class in classes {
            core.pools[class] = crate::core::block::List::default();
        }
    });
    says("I5: a list holds a block that is gone", |core, _| {
        let idle = core.idle.head;
        core.blocks[idle].list_next = 4_000_000;
    });
}

#[test]
fn sums_that_the_blocks_deny() {
    for quantity in [COUNT, BYTES] {
        says("I1: allocated", |core, _| core.tally.flow.up[quantity][1] += 1);
        says("I1: waiting", |core, _| core.tally.flow.waiting[quantity][1] += 1);
    }
    says(" requested, ", |core, _| core.tally.flow.up[REQUESTED][1] += 9_000_000_000);
    says("I1: pool", |core, heap| {
        let index = core.pools.find(heap.pool.serial).expect("it is there");
        core.pools.get_mut(index).allocated.stats[0].current += 512;
    });
}

#[test]
fn streams_that_wait_for_the_wrong_things() {
    says("I6: blocks of stream 0:", |core, _| core.streams[0].out += 1);
    says("I6: stream 0 completed", |core, _| core.streams[0].completed = core.streams[0].open);
    says("I6: a block waits for nobody", |core, _| core.waits.clear());
    says("I6: recorded streams", |core, heap| {
        let id = at(core, heap.recorded);
        core.recorded.entry(id).or_default().push(0);
    });
    says("I9: live block", |core, heap| {
        let id = at(core, heap.live);
        core.blocks[id].len -= 512;
    });
}
