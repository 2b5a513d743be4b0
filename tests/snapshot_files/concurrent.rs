//! Snapshots of an allocator that is in use: PyTorch's page can play each of them backwards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::history::HistoryOptions;
use ascend_alloc::snapshot_file::{Action, BlockKind, Document, Limits, pickle};
use ascend_alloc::{Config, DeviceAllocator, PoolOptions, RouteFilter, SleepMode};
use ascend_sim::{Sim, SimConfig};

const MIB: u64 = 1 << 20;

/// Plays the events of device 0 backwards as the page does; what it fails at. Also how many events there were.
fn play(document: &Document) -> Result<usize, String> {
    let mut segments: Vec<(u64, u64)> = document
        .segments
        .iter()
        .map(|segment| (segment.address, segment.address + segment.total_size))
        .collect();
    let mut blocks = BTreeMap::new();
    for block in document.segments.iter().flat_map(|segment| &segment.blocks) {
        if block.kind != BlockKind::Inactive {
            blocks.insert(block.address, block.kind == BlockKind::PendingFree);
        }
    }
    for (index, entry) in document.trace(0).iter().enumerate().rev() {
        let (start, end) = (entry.addr, entry.addr + entry.size);
        let fail = |what: &str| {
            Err(format!("event {index}, {} {start:#x} {}: {what}", entry.action.word(), entry.size))
        };
        match entry.action {
            Action::FreeCompleted => {
                if blocks.insert(start, true).is_some() {
                    return fail("the block is there still");
                }
            }
            Action::FreeRequested => match blocks.get_mut(&start) {
                Some(waits @ true) => *waits = false,
                _ => return fail("no block that waits"),
            },
            Action::Alloc => {
                if blocks.remove(&start).is_none() {
                    return fail("no block");
                }
            }
            Action::SegmentMap | Action::SegmentAlloc => {
                let Some(at) = segments.iter().position(|&(first, last)| first <= start && end <= last)
                else {
                    return fail("no segment");
                };
                let (first, last) = segments.swap_remove(at);
                segments
                    .extend([(first, start), (end, last)].into_iter().filter(|(first, last)| first < last));
            }
            Action::SegmentUnmap | Action::SegmentFree => {
                if segments.iter().any(|&(first, last)| first < end && start < last) {
                    return fail("memory is there twice");
                }
                let (mut start, mut end) = (start, end);
                segments.retain(|&(first, last)| {
                    let touches = last == start || first == end;
                    (start, end) = if touches { (start.min(first), end.max(last)) } else { (start, end) };
                    !touches
                });
                segments.push((start, end));
            }
            _ => continue,
        }
        // The page looks for the segment of each block it draws.
        if index % 16 == 0 {
            for &block in blocks.keys() {
                if !segments.iter().any(|&(first, last)| first <= block && block < last) {
                    return fail(&format!("block {block:#x} is in no segment"));
                }
            }
        }
    }
    Ok(document.trace(0).len())
}

/// What an allocator says at this moment, as somebody reads it from its file.
fn document(allocator: &DeviceAllocator) -> Document {
    let bytes = allocator.full_snapshot(true).to_pickle(pickle::Protocol::Four).unwrap();
    Document::from_tree(&pickle::read(&bytes, &Limits::default()).unwrap()).unwrap()
}

fn figure(document: &Document, name: &str) -> i64 {
    document.figures.iter().find(|(key, _)| key == name).expect(name).1
}

fn allocator(settings: &str) -> DeviceAllocator {
    let sim = Sim::new(SimConfig { capacity: 1024 * MIB, ..SimConfig::default() });
    DeviceAllocator::new(Config::parse(settings).unwrap(), Arc::new(SimDriver::new(sim))).unwrap()
}

/// What a thread of a program does.
fn work(allocator: &DeviceAllocator, seed: u64, stop: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut held = Vec::new();
    while !stop.load(Relaxed) {
        match random.u32(..100) {
            0 => allocator.empty_cache(None).unwrap(),
            1..50 if held.len() < 40 => {
                let bytes = if random.bool() { random.u64(1..MIB) } else { random.u64(1..12 * MIB) };
                held.extend(allocator.allocate(0, bytes, 0, Stream(0)).ok());
            }
            _ if !held.is_empty() => {
                let ptr = held.swap_remove(random.usize(..held.len()));
                allocator.deallocate(ptr).unwrap();
            }
            _ => {}
        }
    }
    held.into_iter().for_each(|ptr| allocator.deallocate(ptr).unwrap());
}

#[test]
fn snapshots_of_a_busy_allocator_can_be_played() {
    for settings in ["", "expandable_segments:False"] {
        let allocator = allocator(settings);
        allocator.start_history(&HistoryOptions { entries: 1500, ..HistoryOptions::default() });
        let stop = AtomicBool::new(false);
        let mut events = 0;
        std::thread::scope(|scope| {
            for seed in 0..3 {
                let (allocator, stop) = (&allocator, &stop);
                scope.spawn(move || work(allocator, seed, stop));
            }
            // Threads may take longer to begin than all snapshots take.
            while allocator.stats(0).unwrap().allocation.all.allocated < 1500 {
                std::thread::yield_now();
            }
            for round in 0..15 {
                let document = document(&allocator);
                match play(&document) {
                    Ok(played) => events += played,
                    Err(reason) => {
                        stop.store(true, Relaxed);
                        panic!("{settings:?}, round {round}: {reason}");
                    }
                }
            }
            stop.store(true, Relaxed);
        });
        assert!(events > 1000, "{events} events");
        // When nobody works everything agrees.
        let document = document(&allocator);
        play(&document).unwrap();
        assert_eq!(figure(&document, "events_left_out"), 0);
        assert_eq!(document.totals(0).active, 0);
    }
}

#[test]
fn sleeping_pools_can_be_played_and_count_no_memory() {
    let allocator = allocator("");
    allocator.start_history(&HistoryOptions::default());
    let pool = allocator.create_pool(0, PoolOptions::tagged("weights")).unwrap();
    let route = allocator.route(pool, RouteFilter::ThisThread).unwrap();
    let weights = allocator.allocate(0, 100 * MIB, 0, Stream(0)).unwrap();
    drop(route);
    let other = allocator.allocate(0, 10 * MIB, 0, Stream(0)).unwrap();
    allocator.sleep(None, &["weights"], SleepMode::Discard).unwrap();
    let asleep = document(&allocator);
    play(&asleep).unwrap();
    let reserved = |document: &Document| {
        document.totals(0).reserved as i64 + figure(document, "device_0_cached_handles")
    };
    assert_eq!(reserved(&asleep), figure(&asleep, "device_0_reserved_bytes"));
    assert!(reserved(&asleep) < 20 * MIB as i64);
    assert!(asleep.segments.iter().any(|segment| segment.is_asleep && segment.allocated_size >= 100 * MIB));
    allocator.wake(None, &["weights"]).unwrap();
    let awake = document(&allocator);
    play(&awake).unwrap();
    assert_eq!(reserved(&awake), figure(&awake, "device_0_reserved_bytes"));
    assert!(awake.segments.iter().all(|segment| !segment.is_asleep));
    for ptr in [weights, other] {
        allocator.deallocate(ptr).unwrap();
    }
    allocator.release_pool(pool).unwrap();
}
