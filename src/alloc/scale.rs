#![cfg(test)]
//! Large numbers: what one call looks at does not grow with what there is besides.

use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ascend_sim::{BackingMode, LAG_NEVER, Sim, SimConfig};

use super::{
    CapturedGraph, DeviceAllocator, DevicePtr, GrowableBuffer, GrowableOptions, PoolId, PoolOptions,
    RouteFilter, SleepMode,
};
use crate::config::Config;
use crate::core::steps;
use crate::driver::{SimDriver, Stream};

const M: u64 = 1 << 20;

/// An allocator with these settings on devices of 64 GiB, and so many streams.
fn with(
    config: &str,
    streams: u64,
    change: impl FnOnce(&mut SimConfig),
) -> (Arc<DeviceAllocator>, Vec<Stream>) {
    let mut machine = SimConfig {
        devices: 4,
        capacity: 64 << 30,
        backing: BackingMode::MetadataOnly,
        max_streams: 4096,
        ..SimConfig::default()
    };
    change(&mut machine);
    let sim = Sim::new(machine);
    sim.set_device(0).unwrap();
    let config = Config::parse(config).unwrap();
    let alloc = DeviceAllocator::new(config, Arc::new(SimDriver::new(sim.clone()))).unwrap();
    let streams = (0..streams).map(|_| Stream(sim.create_stream().unwrap())).collect();
    (Arc::new(alloc), streams)
}

fn plain(config: &str, streams: u64) -> (Arc<DeviceAllocator>, Vec<Stream>) {
    with(config, streams, |_| {})
}

/// A block of a stream of device 0.
fn take(alloc: &DeviceAllocator, bytes: u64, stream: Stream) -> DevicePtr {
    alloc.allocate(0, bytes, 0, stream).unwrap()
}

fn pools(alloc: &DeviceAllocator, count: u64) -> Vec<PoolId> {
    let options = |at| PoolOptions::tagged(&format!("pool {at}"));
    (0..count).map(|at| alloc.create_pool(0, options(at)).unwrap()).collect()
}

/// Some work takes about as many steps with ten times as much besides.
fn is_alone(steps: impl Fn(u64) -> u64) {
    let (few, many) = (steps(30), steps(300));
    assert!(many <= few + few / 2 + 60, "{few} steps beside 30, {many} beside 300");
}

/// Ten times as much work takes about ten times as many steps.
fn is_even(steps: impl Fn(u64) -> u64) {
    let (few, many) = (steps(30), steps(300));
    assert!(many <= 13 * few + 300, "{few} steps for 30, {many} for 300");
}

#[test]
fn a_request_that_finds_nothing_does_not_look_at_idle_streams() {
    is_alone(|count| {
        let (alloc, streams) = plain("", count);
        for &stream in &streams {
            for bytes in [4000, 3 * M] {
                alloc.deallocate(take(&alloc, bytes, stream)).unwrap();
            }
        }
        alloc.empty_cache(None).unwrap();
        steps::count(|| take(&alloc, 40 * M, Stream(0)))
    });
}

#[test]
fn a_request_that_finds_nothing_does_not_look_at_what_waits_in_vain() {
    is_alone(|count| {
        let (alloc, streams) = with("front_cache:False", 1, |machine| machine.lag = LAG_NEVER);
        take(&alloc, 12 << 30, Stream(0));
        let blocks: Vec<_> = (0..count).map(|_| take(&alloc, 4000, Stream(0))).collect();
        for block in blocks {
            alloc.record_stream(block, streams[0]).unwrap();
            alloc.deallocate(block).unwrap();
        }
        for _ in 0..3 {
            take(&alloc, 40 * M, Stream(0));
        }
        steps::count(|| take(&alloc, 40 * M, Stream(0)))
    });
}

#[test]
fn emptying_the_cache_looks_at_each_stream_once() {
    is_even(|count| {
        let (alloc, streams) = with("", count, |machine| machine.max_events = 8);
        for &stream in &streams {
            alloc.deallocate(take(&alloc, 3 * M, stream)).unwrap();
        }
        steps::count(|| alloc.empty_cache(None))
    });
}

#[test]
fn a_new_stream_does_not_look_at_all_that_were_destroyed() {
    is_alone(|count| {
        let (alloc, streams) = plain("", count + 1);
        for &stream in &streams[1..] {
            take(&alloc, 4000, stream);
            alloc.stream_destroyed(0, stream).unwrap();
        }
        steps::count(|| take(&alloc, 4000, streams[0]))
    });
}

#[test]
fn numbers_of_destroyed_streams_are_used_again() {
    let (alloc, streams) = plain("", 600);
    for &stream in &streams[..300] {
        // Of each second one a block lives on.
        take(&alloc, 4000, stream);
        alloc.stream_destroyed(0, stream).unwrap();
    }
    for &stream in &streams[300..] {
        alloc.deallocate(take(&alloc, 4000, stream)).unwrap();
        alloc.empty_cache(None).unwrap();
        alloc.stream_destroyed(0, stream).unwrap();
    }
    let state = alloc.devices[0].get().expect("it is used");
    let known = state.core.lock().streams.len();
    assert!(known < 400, "{known} streams are known for 300 with blocks");
}

#[test]
fn pools_come_and_go_beside_many() {
    is_alone(|count| {
        let (alloc, _) = plain("", 0);
        for pool in pools(&alloc, count) {
            alloc.allocate_in(pool, 4000, 0, Stream(0)).unwrap();
        }
        steps::count(|| {
            let pool = pools(&alloc, 1)[0];
            let block = alloc.allocate_in(pool, 3 * M, 0, Stream(0)).unwrap();
            alloc.deallocate(block).unwrap();
            alloc.release_pool(pool).unwrap();
            alloc.stats(0).unwrap();
        })
    });
}

#[test]
fn the_number_of_a_pool_that_is_gone_is_used_again() {
    let (alloc, _) = plain("", 0);
    let all = pools(&alloc, 50);
    all[10..].iter().for_each(|&pool| alloc.release_pool(pool).unwrap());
    pools(&alloc, 30);
    let state = alloc.devices[0].get().expect("it is used");
    let core = state.core.lock();
    assert_eq!(core.pools.indices().max(), Some(40), "40 pools and the default one");
}

/// A graph in a pool of its own, with free memory.
fn graph(alloc: &DeviceAllocator) -> CapturedGraph<'_> {
    let capture = alloc.capture(pools(alloc, 1)[0], RouteFilter::All).unwrap();
    let block = take(alloc, 3 * M, Stream(0));
    take(alloc, 4000, Stream(0));
    alloc.deallocate(block).unwrap();
    capture.finish()
}

#[test]
fn graphs_come_and_go_beside_many() {
    is_alone(|count| {
        let (alloc, _) = plain("", 0);
        let _graphs: Vec<_> = (0..count).map(|_| graph(&alloc)).collect();
        steps::count(|| drop(graph(&alloc)))
    });
}

#[test]
fn a_request_that_finds_nothing_looks_at_each_graph_a_few_times_at_most() {
    is_even(|count| {
        let (alloc, streams) = with("", 1, |machine| machine.lag = LAG_NEVER);
        take(&alloc, 12 << 30, Stream(0));
        alloc.deallocate(take(&alloc, 60 * M, streams[0])).unwrap();
        let _graphs: Vec<_> = (0..count).map(|_| graph(&alloc)).collect();
        steps::count(|| take(&alloc, 400 * M, streams[0]))
    });
}

#[test]
fn without_caching_a_free_does_not_look_at_other_blocks() {
    is_alone(|count| {
        let (alloc, streams) = plain("", 1);
        alloc.deallocate(take(&alloc, 3 * M, streams[0])).unwrap();
        alloc.set_caching(0, false).unwrap();
        let blocks: Vec<_> = (0..count).map(|_| take(&alloc, 4000, Stream(0))).collect();
        alloc.record_stream(blocks[0], streams[0]).unwrap();
        let before = alloc.stats(0).unwrap();
        let steps = steps::count(|| alloc.deallocate(blocks[0]).unwrap());
        let after = alloc.stats(0).unwrap();
        assert_eq!(after.num_device_free - before.num_device_free, 1);
        // An event for each of the two streams that used it, and nothing for others.
        assert!(after.calls.record_event - before.calls.record_event <= 2);
        steps
    });
}

#[test]
fn streams_that_blocks_are_recorded_on_come_and_go_beside_many_blocks() {
    is_alone(|count| {
        let (alloc, streams) = plain("", 100);
        let blocks: Vec<_> = (0..100 + 30 * count).map(|_| take(&alloc, 4000, Stream(0))).collect();
        // A walk through all blocks is worth its while once in so many frees.
        let steps = steps::count(|| {
            for (&stream, &block) in streams.iter().zip(&blocks) {
                alloc.record_stream(block, stream).unwrap();
                alloc.stream_destroyed(0, stream).unwrap();
            }
        });
        steps.saturating_sub(2 * blocks.len() as u64)
    });
}

#[test]
fn routes_of_other_threads_and_streams_are_not_looked_at() {
    is_alone(|count| {
        let (alloc, streams) = plain("", count + 1);
        let pool = pools(&alloc, 1)[0];
        let of = |&stream: &Stream| alloc.route(pool, RouteFilter::Stream(stream)).unwrap();
        let _others: Vec<_> = streams[1..].iter().map(of).collect();
        steps::count(|| {
            let routes = [of(&streams[0]), alloc.route(pool, RouteFilter::ThisThread).unwrap()];
            take(&alloc, 4000, streams[0]);
            drop(routes);
            take(&alloc, 4000, streams[0]);
        })
    });
}

#[test]
fn small_segments_are_not_looked_at_when_garbage_is_collected() {
    is_alone(|count| {
        let (alloc, _) = plain("expandable_segments:False,garbage_collection_threshold:0.001", 0);
        let blocks: Vec<_> = (0..count).map(|_| take(&alloc, M, Stream(0))).collect();
        blocks.into_iter().for_each(|block| alloc.deallocate(block).unwrap());
        take(&alloc, 64 * M, Stream(0));
        steps::count(|| take(&alloc, 64 * M, Stream(0)))
    });
}

/// A pool with the tag "mine" beside so many others, each with a block.
fn own_pool(others: u64) -> (Arc<DeviceAllocator>, PoolId) {
    let (alloc, _) = plain("", 0);
    let own = alloc.create_pool(0, PoolOptions::tagged("mine")).unwrap();
    for pool in pools(&alloc, others).into_iter().chain([own]) {
        alloc.allocate_in(pool, 3 * M, 0, Stream(0)).unwrap();
    }
    (alloc, own)
}

#[test]
fn pools_sleep_and_wake_one_by_one_beside_many() {
    is_alone(|count| {
        let (alloc, _) = own_pool(count);
        steps::count(|| {
            alloc.sleep(Some(0), &["mine"], SleepMode::Discard).unwrap();
            alloc.wake(Some(0), &["mine"]).unwrap();
        })
    });
}

#[test]
fn a_pool_goes_back_to_a_checkpoint_beside_many() {
    is_alone(|count| {
        let (alloc, own) = own_pool(count);
        steps::count(|| {
            let checkpoint = alloc.checkpoint(own).unwrap();
            alloc.restore(&checkpoint).unwrap()
        })
    });
}

/// Every second block is gone, and the streams of all have ended since.
#[test]
fn going_back_to_a_checkpoint_looks_at_each_block_and_stream_a_few_times() {
    is_even(|count| {
        let (alloc, streams) = plain("", count);
        let pool = alloc.create_pool(0, PoolOptions::default()).unwrap();
        let take = |&stream| alloc.allocate_in(pool, 3 * M, 0, stream).unwrap();
        let blocks: Vec<_> = streams.iter().map(take).collect();
        let checkpoint = alloc.checkpoint(pool).unwrap();
        blocks.iter().step_by(2).for_each(|&block| alloc.deallocate(block).unwrap());
        streams.iter().for_each(|&stream| alloc.stream_destroyed(0, stream).unwrap());
        let steps = steps::count(|| {
            let restored = alloc.restore(&checkpoint).unwrap();
            assert_eq!(restored.allocated, blocks);
        });
        alloc.check().unwrap();
        steps
    });
}

#[test]
fn a_snapshot_looks_at_each_segment_a_few_times() {
    is_even(|count| {
        let (alloc, _) = plain("", 0);
        let options = GrowableOptions::up_to(16 * M).beginning_with(M);
        let buffer = || GrowableBuffer::new(alloc.clone(), 0, Stream(0), options.clone()).unwrap();
        let buffers: Vec<_> = (0..count).map(|_| buffer()).collect();
        let steps = steps::count(|| alloc.snapshot(0).unwrap());
        drop(buffers);
        steps
    });
}

#[test]
fn a_failed_request_looks_at_each_pool_and_stream_a_few_times() {
    is_even(|count| {
        let (alloc, streams) = plain("", count);
        for (pool, &stream) in pools(&alloc, count).into_iter().zip(&streams) {
            let block = alloc.allocate_in(pool, 4000, 0, stream).unwrap();
            alloc.deallocate(block).unwrap();
        }
        steps::count(|| alloc.allocate(0, 65 << 30, 0, Stream(0)).unwrap_err())
    });
}

#[test]
fn a_free_of_a_fixed_block_asks_no_other_device() {
    let (alloc, _) = plain("expandable_segments:False", 0);
    let blocks: Vec<_> = (0..4).map(|id| alloc.allocate(id, 3 * M, 0, Stream(0)).unwrap()).collect();
    let others = alloc.devices.iter().take(3).filter_map(OnceLock::get);
    // Nobody who has to wait for the lock of another device comes to an end.
    let _locks: Vec<_> = others.map(|state| state.core.lock()).collect();
    let (done, is_done) = channel();
    let (other, block) = (alloc.clone(), blocks[3]);
    let free = std::thread::spawn(move || {
        other.record_stream(block, Stream(8)).unwrap();
        other.deallocate(block).unwrap();
        let _received = done.send(());
    });
    let answer = is_done.recv_timeout(Duration::from_secs(20));
    drop(_locks);
    free.join().unwrap();
    assert_eq!(answer, Ok(()), "it waits for a device that it has nothing to do with");
}
