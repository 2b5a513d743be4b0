//! The history: what is kept, in which order, how much, by whom, and at what cost to others.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::history::{
    Action, Context, Event, HistoryOptions, context, intern, set_context, with_context,
};
use ascend_alloc::host::{PinnedAllocator, PinnedOptions};
use ascend_alloc::{Config, DeviceAllocator, PoolOptions, RouteFilter, SleepMode};
use ascend_sim::{LAG_NEVER, Sim, SimConfig};

const MIB: u64 = 1 << 20;
const S0: Stream = Stream(0);

fn world(conf: &str, devices: u32) -> (Sim, DeviceAllocator) {
    let sim = Sim::new(SimConfig { devices, capacity: 1 << 30, ..SimConfig::default() });
    let config = Config::parse(conf).expect("a configuration");
    let allocator =
        DeviceAllocator::new(config, Arc::new(SimDriver::new(sim.clone()))).expect("an allocator");
    (sim, allocator)
}

fn keep(entries: u64) -> HistoryOptions {
    HistoryOptions { entries, ..HistoryOptions::default() }
}

fn actions(events: &[Event]) -> Vec<Action> {
    events.iter().map(|event| event.action).collect()
}

/// B44: a bounded buffer, the newest kept, memory given back, snapshots with and without events.
#[test]
fn b44_the_buffer_is_bounded_and_keeps_the_newest() {
    let (_, allocator) = world("", 1);
    // So that the loop maps nothing.
    let warm = allocator.allocate(0, 512, 0, S0).unwrap();
    allocator.deallocate(warm).unwrap();
    assert_eq!(allocator.history_status().bytes, 0);

    allocator.start_history(&keep(100));
    for _ in 0..1000 {
        let ptr = allocator.allocate(0, 512, 0, S0).unwrap();
        allocator.deallocate(ptr).unwrap();
    }
    let kept = allocator.history();
    assert_eq!((kept.events.len(), kept.lost), (100, 1900));
    let numbers: Vec<u64> = kept.events.iter().map(|event| event.sequence).collect();
    assert_eq!(numbers, (1901..=2000).collect::<Vec<_>>());
    for pair in kept.events.chunks(2) {
        assert_eq!(actions(pair), [Action::Allocate, Action::FreeCompleted]);
        assert!(pair.iter().all(|event| (event.size, event.requested, event.stream) == (1024, 512, S0)));
    }
    let entry = size_of::<Event>() as u64;
    assert_eq!(entry, 72, "as the documentation says");
    // Lists that are being filled or wait to be used again: 64 events each, one for the core, one for the shard, 8
    // spare.
    let constant = 12 * 64 * entry;
    assert!(allocator.history_status().bytes <= 100 * entry + constant, "{:?}", allocator.history_status());

    let without = allocator.full_snapshot(false);
    let resting = without.segments.iter().flat_map(|segment| &segment.blocks).filter(|block| block.in_front);
    assert_eq!(resting.count(), 1, "the front cache is in use while the history is on");
    assert!(!without.segments.is_empty() && without.devices[0].events.is_empty());
    assert_eq!(allocator.full_snapshot(true).devices[0].events, kept.events);

    allocator.stop_history();
    assert_eq!(allocator.history().events, []);
    let status = allocator.history_status();
    assert_eq!((status.is_on, status.bytes), (false, 0));
    let ptr = allocator.allocate(0, 512, 0, S0).unwrap();
    allocator.deallocate(ptr).unwrap();
    assert_eq!(allocator.history_status().last, status.last, "nothing is noted any more");

    allocator.start_history(&keep(0));
    let ptr = allocator.allocate(0, 512, 0, S0).unwrap();
    allocator.deallocate(ptr).unwrap();
    let kept = allocator.history();
    assert_eq!((kept.events.len(), kept.lost), (0, 2));
}

#[test]
fn what_happens_is_told_in_the_order_in_which_it_happens() {
    let (sim, allocator) = world("", 1);
    sim.set_device(0).unwrap();
    let other = Stream(sim.create_stream().unwrap());
    allocator.start_history(&HistoryOptions { uses: true, ..keep(1000) });
    let weights = allocator.create_pool(0, PoolOptions::tagged("weights")).unwrap();
    let route = allocator.route(weights, RouteFilter::ThisThread).unwrap();
    let pooled = allocator.allocate(0, 3 * MIB, 0, S0).unwrap();
    drop(route);
    allocator.sleep(None, &["weights"], SleepMode::Discard).unwrap();
    allocator.wake(None, &["weights"]).unwrap();
    let used = allocator.allocate(0, 700, 0, S0).unwrap();
    allocator.record_stream(used, other).unwrap();
    allocator.deallocate(used).unwrap();
    allocator.note_host_wait(0, other).unwrap();
    sim.synchronize_stream(other.0).unwrap();
    allocator.empty_cache(None).unwrap();
    assert!(allocator.allocate(0, 2 << 30, 0, S0).is_err());
    allocator.mark("done");

    let events = allocator.history().events;
    let of = |action| events.iter().filter(move |event| event.action == action).collect::<Vec<_>>();
    let at = |action| events.iter().position(|event| event.action == action).unwrap();
    assert!(
        events.windows(2).all(|two| two[0].sequence + 1 == two[1].sequence && two[0].time <= two[1].time)
    );

    let allocated = of(Action::Allocate)[0];
    assert_eq!((allocated.address, allocated.requested), (pooled.address(), 3 * MIB));
    assert_eq!((allocated.size, allocated.pool), (3 * MIB + 512, weights.serial));
    assert_eq!(context(allocated.tag.unwrap()), Some(Context::Text("weights".to_owned())));
    let mapped = of(Action::SegmentMap)[0];
    assert_eq!((mapped.size, mapped.pool), (4 * MIB, weights.serial), "chunks side by side are one event");
    assert!(at(Action::SegmentMap) < at(Action::Allocate));
    assert_eq!(of(Action::Sleep)[0].size, 4 * MIB);
    assert_eq!(of(Action::Wake)[0].size, 4 * MIB);
    assert!(at(Action::Sleep) < at(Action::Wake));

    let of_used: Vec<&Event> = events.iter().filter(|event| event.address == used.address()).collect();
    let told: Vec<Action> = of_used.iter().map(|event| event.action).collect();
    let wanted = [Action::SegmentMap, Action::Allocate, Action::StreamUse, Action::FreeRequested];
    assert_eq!(told[..4], wanted);
    assert_eq!(told[4..], [Action::FreeCompleted, Action::SegmentUnmap]);
    assert_eq!((of_used[2].stream, of_used[3].requested), (other, 700));
    assert_eq!(of(Action::HostWait)[0].stream, other);
    let failed = of(Action::OutOfMemory)[0];
    assert_eq!((failed.requested, failed.size), (2 << 30, (1 << 30) - 4 * MIB));
    assert_eq!(context(events.last().unwrap().context.unwrap()), Some(Context::Text("done".to_owned())));
    assert!(at(Action::OutOfMemory) < at(Action::UserDefined));
}

#[test]
fn a_block_that_waits_in_the_front_is_freed_twice() {
    let (sim, allocator) = world("", 1);
    sim.set_device(0).unwrap();
    let other = Stream(sim.create_stream().unwrap());
    // The first block on another stream makes it known; from then on the front takes them.
    for round in 0..3 {
        if round == 1 {
            allocator.start_history(&keep(1000));
        }
        let ptr = allocator.allocate(0, 4096, 0, S0).unwrap();
        allocator.record_stream(ptr, other).unwrap();
        allocator.deallocate(ptr).unwrap();
    }
    let events = allocator.history().events;
    let blocks: Vec<Action> =
        actions(&events).into_iter().filter(|action| *action != Action::SegmentMap).collect();
    assert_eq!(blocks.iter().filter(|action| **action == Action::FreeRequested).count(), 2);
    replay(&events, &HashMap::new());
}

/// Follows the events: what is live at the end. Panics where they make no sense together.
fn replay(events: &[Event], before: &HashMap<u64, u64>) -> HashMap<u64, u64> {
    let mut live = before.clone();
    let mut waiting: HashMap<u64, u64> = HashMap::new();
    for event in events {
        let ends =
            |address: u64, size: u64| event.address < address + size && address < event.address + event.size;
        match event.action {
            Action::Allocate => {
                let met = live.iter().chain(&waiting).find(|&(&address, &size)| ends(address, size));
                assert_eq!(met, None, "{event:?} overlaps what is active");
                live.insert(event.address, event.size);
            }
            Action::FreeRequested => {
                assert_eq!(live.remove(&event.address), Some(event.size), "{event:?}");
                waiting.insert(event.address, event.size);
            }
            Action::FreeCompleted => {
                let freed = waiting.remove(&event.address).or_else(|| live.remove(&event.address));
                assert!(freed == Some(event.size) || (freed.is_none() && before.is_empty()), "{event:?}");
            }
            _ => {}
        }
    }
    live
}

/// Blocks of many sizes come and go on some streams and threads while another thread takes snapshots and drains:
/// nothing is torn, nothing lost, and the events make sense in their order.
#[test]
fn threads_are_told_of_in_one_order_while_others_read() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 3000;
    let (sim, allocator) = world("", 1);
    sim.set_device(0).unwrap();
    let streams: Vec<Stream> = (0..3).map(|_| Stream(sim.create_stream().unwrap())).collect();
    allocator.start_history(&keep(10_000_000));
    let stop = AtomicBool::new(false);
    let mut drained = Vec::new();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut all = Vec::new();
            while !stop.load(Relaxed) {
                let batch = allocator.drain_history();
                assert_eq!(batch.lost, 0);
                all.extend(batch.events);
                let snapshot = allocator.full_snapshot(false);
                assert!(snapshot.devices.iter().all(|device| device.events.is_empty()));
            }
            all.extend(allocator.drain_history().events);
            all
        });
        let work = |seed: usize| {
            let mut random = fastrand::Rng::with_seed(seed as u64);
            let mut live = Vec::new();
            set_context(Some(intern(&format!("thread {seed}"))));
            for _ in 0..ROUNDS {
                if live.len() < 8 || random.bool() {
                    let size = [512, 4096, 70_000, 2 * MIB, 5 * MIB][random.usize(..5)];
                    let stream = streams[random.usize(..3)];
                    live.push((allocator.allocate(0, size, 0, stream).unwrap(), stream));
                } else {
                    let (ptr, _) = live.swap_remove(random.usize(..live.len()));
                    if random.u8(..4) == 0 {
                        allocator.record_stream(ptr, streams[random.usize(..3)]).unwrap();
                    }
                    allocator.deallocate(ptr).unwrap();
                }
                while live.len() > 16 {
                    allocator.deallocate(live.swap_remove(0).0).unwrap();
                }
            }
            live.len()
        };
        let workers: Vec<_> = (0..THREADS).map(|seed| scope.spawn(move || work(seed))).collect();
        let left: usize = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        stop.store(true, Relaxed);
        drained = reader.join().unwrap();
        let live = replay(&drained, &HashMap::new());
        assert_eq!(live.len(), left);
    });
    assert!(
        drained.windows(2).all(|two| two[0].sequence + 1 == two[1].sequence),
        "each event once, in order"
    );
    assert_eq!(drained.first().map(|event| event.sequence), Some(1));
    let kept = allocator.history();
    assert_eq!(kept.lost, 0);
    assert_eq!(kept.events, drained, "draining takes nothing away");
    // What the history says is live is what a snapshot says is handed out.
    let live = replay(&kept.events, &HashMap::new());
    let snapshot = allocator.full_snapshot(true);
    let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    let handed_out: HashMap<u64, u64> = blocks
        .filter(|block| block.state == ascend_alloc::BlockState::ActiveAllocated)
        .map(|block| (block.address, block.size))
        .collect();
    assert_eq!(live, handed_out);
    let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    let mut active = blocks.filter(|block| block.state != ascend_alloc::BlockState::Inactive);
    assert!(active.all(|block| block.context.is_some()), "all have the context of their allocation");
}

#[test]
fn a_snapshot_has_totals_that_are_the_statistics() {
    let (sim, allocator) = world("", 2);
    allocator.start_history(&keep(1000));
    sim.set_device(1).unwrap();
    let other = Stream(sim.create_stream().unwrap());
    let one = with_context("one", || allocator.allocate(0, 5 * MIB, 0, S0).unwrap());
    let two = with_context("two", || allocator.allocate(1, 300, 0, S0).unwrap());
    let gone = allocator.allocate(1, 9 * MIB, 0, S0).unwrap();
    allocator.record_stream(gone, other).unwrap();
    allocator.deallocate(gone).unwrap();
    let snapshot = allocator.full_snapshot(true);
    assert_eq!(snapshot.devices.len(), 2);
    for state in &snapshot.devices {
        let stats = &state.statistics;
        assert_eq!(*stats, allocator.stats(state.device).unwrap());
        let own = || snapshot.segments.iter().filter(|segment| segment.device == state.device);
        let sum = |of: fn(&ascend_alloc::SegmentSnapshot) -> u64| own().map(of).sum::<u64>() as i64;
        assert_eq!(sum(|segment| segment.total_size), stats.reserved_bytes.all.current);
        assert_eq!(sum(|segment| segment.allocated_size), stats.allocated_bytes.all.current);
        assert_eq!(sum(|segment| segment.active_size), stats.active_bytes.all.current);
        assert_eq!(sum(|segment| segment.requested_size), stats.requested_bytes.all.current);
        assert!(state.events.iter().all(|event| event.device == state.device) && !state.events.is_empty());
    }
    assert!(snapshot.devices[1].statistics.active_bytes.all.current > 9 * MIB as i64, "some of it waits");
    let blocks = || snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    for (ptr, text) in [(one, "one"), (two, "two")] {
        let block = blocks().find(|block| block.address == ptr.address()).unwrap();
        assert_eq!(snapshot.frames(block.context)[0].function, text);
    }
    assert!(snapshot.settings.contains(&("headroom".to_owned(), "0.02".to_owned())));
    let last = allocator.history().events.into_iter().last().unwrap();
    assert_eq!(last.action, Action::Snapshot);
}

#[test]
fn stacks_are_captured_where_no_context_is_set() {
    let (_, allocator) = world("", 1);
    allocator.start_history(&HistoryOptions { stacks: true, ..keep(1000) });
    #[inline(never)]
    fn the_layer_that_needs_memory(allocator: &DeviceAllocator) {
        let ptr = allocator.allocate(0, 512, 0, S0).unwrap();
        std::hint::black_box(allocator.deallocate(ptr)).unwrap();
    }
    for _ in 0..2 {
        the_layer_that_needs_memory(&allocator);
    }
    with_context("said", || the_layer_that_needs_memory(&allocator));
    let events = allocator.history().events;
    let blocks: Vec<&Event> = events.iter().filter(|event| event.action != Action::SegmentMap).collect();
    assert_eq!(blocks.len(), 6);
    assert!(blocks.iter().all(|event| event.context.is_some()));
    assert_eq!(context(blocks[4].context.unwrap()), Some(Context::Text("said".to_owned())));
    for block in &blocks[..4] {
        let frames = context(block.context.unwrap()).unwrap().frames();
        assert!(
            frames.iter().any(|frame| frame.function.contains("the_layer_that_needs_memory")),
            "{frames:?}"
        );
        assert!(!frames[0].function.contains("ascend_alloc::alloc"), "{frames:?}");
    }
}

#[test]
fn blocks_that_change_their_length_are_told_as_two() {
    let (_, allocator) = world("", 1);
    allocator.start_history(&keep(1000));
    let ptr = allocator.allocate(0, 4 * MIB, 0, S0).unwrap();
    assert!(allocator.grow_in_place(ptr, 6 * MIB).unwrap());
    allocator.shrink_in_place(ptr, 3 * MIB).unwrap();
    allocator.deallocate(ptr).unwrap();
    let events = allocator.history().events;
    let of_block: Vec<(Action, u64)> = events
        .iter()
        .filter(|event| matches!(event.action, Action::Allocate | Action::FreeCompleted))
        .map(|event| (event.action, event.requested / MIB))
        .collect();
    let (allocate, free) = (Action::Allocate, Action::FreeCompleted);
    assert_eq!(of_block, [(allocate, 4), (free, 4), (allocate, 6), (free, 6), (allocate, 3), (free, 3)]);
    assert!(replay(&events, &HashMap::new()).is_empty());
}

#[test]
fn what_is_cut_off_and_waits_is_told_as_a_block_that_waits() {
    let sim = Sim::new(SimConfig { capacity: 1 << 30, lag: LAG_NEVER, ..SimConfig::default() });
    let allocator = DeviceAllocator::new(Config::default(), Arc::new(SimDriver::new(sim.clone()))).unwrap();
    sim.set_device(0).unwrap();
    let other = Stream(sim.create_stream().unwrap());
    for bytes in [8 << 10, 8 * MIB] {
        allocator.start_history(&keep(1000));
        let ptr = allocator.allocate(0, bytes, 0, S0).unwrap();
        allocator.record_stream(ptr, other).unwrap();
        allocator.shrink_in_place(ptr, bytes / 2).unwrap();
        let stats = allocator.stats(0).unwrap();
        assert_eq!((stats.active.all.current, stats.active.all.peak), (2, 2), "{bytes}: the rest waits");
        let events = allocator.history().events;
        let tail = ptr.0 + bytes / 2;
        let of_tail: Vec<Action> =
            events.iter().filter(|event| event.address >= tail).map(|event| event.action).collect();
        assert_eq!(of_tail, [Action::Allocate, Action::FreeRequested], "{bytes}: {events:?}");
        sim.synchronize_stream(other.0).unwrap();
        allocator.deallocate(ptr).unwrap();
        allocator.empty_cache(None).unwrap();
        assert!(replay(&allocator.history().events, &HashMap::new()).is_empty());
        allocator.stop_history();
        allocator.reset_peak_stats(0).unwrap();
    }
}

#[test]
fn names_of_actions_lead_back() {
    for action in Action::ALL {
        assert_eq!(Action::from_name(action.name()), Some(action));
    }
    assert_eq!(Action::from_name("segment"), None);
}

#[test]
fn the_setting_starts_it() {
    let (_, allocator) = world("history_entries:7", 1);
    for _ in 0..10 {
        allocator.allocate(0, 512, 0, S0).unwrap();
    }
    assert_eq!(allocator.history().events.len(), 7);
    assert_eq!(allocator.history_status().entries, 7);
}

#[test]
fn page_locked_memory_has_a_history_of_its_own() {
    let sim = Sim::new(SimConfig { devices: 2, capacity: 1 << 30, ..SimConfig::default() });
    let pinned = PinnedAllocator::new(PinnedOptions::default(), Arc::new(SimDriver::new(sim.clone())))
        .expect("an allocator");
    sim.set_device(1).unwrap();
    let other = Stream(sim.create_stream().unwrap());
    let pair = || {
        let ptr = pinned.allocate(4096, 0).unwrap();
        pinned.deallocate(ptr).unwrap();
    };
    // It rests at hand, and goes back to the heap before anything is told.
    pair();
    pinned.start_history(&HistoryOptions { uses: true, ..keep(1000) });
    let block = with_context("batch", || pinned.allocate(4096, 0)).unwrap();
    pinned.record_use(block, 1, other).unwrap();
    pinned.deallocate(block).unwrap();
    pinned.process_events().unwrap();
    let events = pinned.history().events;
    let wanted = [Action::Allocate, Action::StreamUse, Action::FreeRequested, Action::FreeCompleted];
    assert_eq!(actions(&events), wanted);
    let places: Vec<_> =
        events.iter().map(|event| (event.address, event.size, event.device, event.stream)).collect();
    let own = (block.address(), 4096, 0, S0);
    assert_eq!(places, [own, (block.address(), 4096, 1, other), own, own]);
    assert_eq!((events[0].requested, events[2].requested), (4096, 4096));
    assert_eq!(context(events[0].context.unwrap()), Some(Context::Text("batch".to_owned())));

    assert_eq!(pinned.drain_history().events, events);
    for _ in 0..50 {
        pair();
    }
    let more = pinned.drain_history();
    let pairs = [Action::Allocate, Action::FreeCompleted].repeat(50);
    assert_eq!((actions(&more.events), more.lost), (pairs, 0), "none of them came from what rests");
    assert_eq!(pinned.history_status().last, 104);
    pinned.stop_history();
    assert!(pinned.history().events.is_empty() && !pinned.history_status().is_on);
    pair();
    pair();
    assert_eq!(pinned.history_status().last, 104);
    pinned.check().unwrap();
}
