//! Blocks that were used on another stream and freed: what they count as while they wait beside the core,
//! who may have them, and what ends their wait.

mod common;

use ascend_alloc::driver::Stream;
use ascend_alloc::error::PointerKind;
use ascend_alloc::{BlockState, Config, DevicePtr, Error};
use ascend_sim::{BackingMode, SimConfig, Task};
use common::{CLASSIC, G, K, M, Setup, World};

/// A world whose work ends when told, with a second stream, and one block allocated so that both streams
/// are known. Memory is held, so that several blocks may wait.
fn world() -> (World, Stream) {
    let mut world = Setup::default().build();
    let ballast = world.alloc(256 * M, Stream(0));
    world.free(ballast);
    let user = world.stream();
    (world, user)
}

/// A world whose work ends at once.
fn prompt() -> Setup {
    let mut setup = Setup { scripted: false, ..Setup::default() };
    setup.sim.lag = 0;
    setup
}

/// A block of the default stream, perhaps used on another one, and freed; without any check.
fn pair(world: &World, bytes: u64, user: Option<Stream>) {
    let ptr = world.alloc.allocate(0, bytes, 0, Stream(0)).expect("there is memory");
    if let Some(user) = user {
        world.alloc.record_stream(ptr, user).expect("recorded");
    }
    world.alloc.deallocate(ptr).expect("freed");
}

/// A block used on the second stream and freed there, with the work still queued.
fn waiting(world: &mut World, user: Stream, bytes: u64) -> DevicePtr {
    let ptr = world.alloc(bytes, Stream(0));
    world.share(user, "use", ptr);
    world.free(ptr);
    ptr
}

fn snapshot_of(world: &World, ptr: DevicePtr) -> Option<(BlockState, bool, u64)> {
    let snapshot = world.alloc.snapshot(0).expect("a snapshot");
    let mut blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    let block = blocks.find(|block| block.address == ptr.0)?;
    Some((block.state, block.in_front, block.requested_size))
}

#[test]
fn a_waiting_block_is_active_and_pending_free() {
    for bytes in [3000, 5 * M] {
        let (mut world, user) = world();
        let ptr = waiting(&mut world, user, bytes);
        let stats = world.stats();
        assert_eq!((stats.allocation.all.current, stats.active.all.current), (0, 1));
        assert!(stats.active_bytes.all.current >= bytes as i64);
        assert_eq!(stats.requested_bytes.all.current, bytes as i64);
        assert_eq!(snapshot_of(&world, ptr), Some((BlockState::ActivePendingFree, true, bytes)));
        // Not free twice, not to be recorded, not to be resized.
        world.free_fails(ptr, PointerKind::NotLive);
        assert!(matches!(world.alloc.record_stream(ptr, user), Err(Error::Pointer { .. })));
        assert!(matches!(world.alloc.grow_in_place(ptr, bytes), Err(Error::Pointer { .. })));
        // Another request gets another block.
        let other = world.alloc(bytes, Stream(0));
        assert_ne!(other, ptr);
        world.free(other);
    }
}

#[test]
fn many_pairs_share_an_event() {
    let mut world = prompt().conf("waiting_headroom:0").build();
    let ballast = world.alloc(512 * M, Stream(0));
    world.free(ballast);
    // It is known that nothing uses it any more, so that its chunks may move.
    world.alloc.trim(0, u64::MAX).expect("trimmed");
    let user = world.stream();
    for bytes in [600, 64 * K, M, 2 * M] {
        (0..1000).for_each(|_| pair(&world, bytes, Some(user)));
        let before = world.stats();
        (0..4000).for_each(|_| pair(&world, bytes, Some(user)));
        let (calls, reserved) = (world.stats().calls, world.stats().reserved_bytes.all);
        let events = calls.record_event - before.calls.record_event;
        // As many blocks wait as fit into 1/64 of what is held, at most 1024; each wait ends with one event.
        let most = (reserved.current as u64 / 64 / bytes.next_multiple_of(512)).clamp(1, 1024);
        assert!(events <= 4000 / most * 11 / 10 + 2, "{events} events, {most} blocks of {bytes} may wait");
        assert_eq!(calls.map, before.calls.map, "the memory of {bytes} grew");
        world.verify();
    }
    assert!(world.stats().reserved_bytes.all.peak as u64 <= 522 * M, "beyond the headroom");
}

/// In a small program one block of 64 KiB is more than 1/64 of what is held: each pair then needed an event of its own, beside
/// a chunk that was nearly empty.
#[test]
fn pairs_of_a_small_program_share_events_as_well() {
    for (bytes, most) in [(512, 10), (4 * K, 20), (64 * K, 150)] {
        let world = prompt().build();
        let user = world.stream();
        (0..4000).for_each(|_| pair(&world, bytes, Some(user)));
        let (calls, reserved) = (world.stats().calls, world.reserved());
        assert!(calls.record_event <= most, "{} events for 4000 pairs of {bytes}", calls.record_event);
        assert_eq!(reserved, 2 * M, "nothing is taken for that");
    }
}

/// Of two lengths that came in turn, one rested in the front and the other found too little memory on its stream, so that
/// the front was flushed over and over, although another stream had chunks to spare.
#[test]
fn lengths_that_come_again_get_memory_of_their_own() {
    let mut world = prompt().build();
    let (ours, others) = (Stream(0), world.stream());
    let ballast = world.alloc(400 * M, others);
    // What is idle: enough for one of the lengths on our stream, much on the other one.
    let own = world.alloc(64 * M, ours);
    let spare: Vec<_> = (0..20).map(|_| world.alloc(4 * M, others)).collect();
    world.free(own);
    spare.into_iter().for_each(|ptr| world.free(ptr));
    let pairs = |world: &mut World, count: usize| {
        for bytes in [40 * M, 30 * M].into_iter().cycle().take(count) {
            let ptr = world.alloc(bytes, ours);
            world.free(ptr);
        }
    };
    pairs(&mut world, 400);
    let before = world.stats();
    pairs(&mut world, 2000);
    let after = world.stats();
    assert_eq!(after.ladder.flushed, before.ladder.flushed);
    assert_eq!(after.calls, before.calls, "nothing is asked of the driver");
    assert!(
        after.reserved_bytes.all.peak as u64 <= 400 * M + 64 * M + 80 * M + 12 * M,
        "beyond the headroom"
    );
    world.free(ballast);
    world.verify();
}

/// A request of a size that had no block in the front took those of all other sizes out of it, before it grew within the
/// headroom; the other sizes then came the same way, recorded ones with three events for four pairs.
#[test]
fn sizes_in_turn_each_keep_blocks_in_the_front() {
    /// Sizes in bytes up to 1 MiB, in no order.
    const SIZES: [u64; 24] = [
        602_112, 1_536, 73_728, 998_912, 12_288, 262_144, 411_648, 2_560, 851_968, 34_816, 131_072, 700_928,
        5_632, 188_416, 524_288, 20_480, 1_048_000, 90_112, 330_752, 8_704, 49_152, 778_240, 225_280, 3_584,
    ];
    for (count, used) in [(8, true), (16, true), (24, true), (8, false), (24, false)] {
        let mut setup = prompt().capacity(9 * G);
        setup.sim.backing = BackingMode::MetadataOnly;
        let mut world = setup.build();
        // All of it stays live: there is nothing free besides.
        let ballast = world.alloc(8 * G, Stream(0));
        let user = world.stream();
        let turns = |turns: usize| {
            let sizes = (0..turns).flat_map(|_| &SIZES[..count]);
            sizes.for_each(|&bytes| pair(&world, bytes, used.then_some(user)));
        };
        turns(100);
        let before = world.stats();
        turns(100);
        let after = world.stats();
        let events = after.calls.record_event - before.calls.record_event;
        assert!(events <= 20, "{events} events for 100 blocks of {count} sizes each");
        let requests = after.ladder.requests - before.ladder.requests;
        assert_eq!(
            (after.ladder.flushed - before.ladder.flushed, requests),
            (0, 0),
            "{count} sizes, used: {used}"
        );
        assert!(after.reserved_bytes.all.peak as f64 <= 1.021 * (8 * G) as f64, "beyond the headroom");
        world.free(ballast);
        world.verify();
    }
}

#[test]
fn a_block_waits_for_each_of_its_streams() {
    let (mut world, first) = world();
    let (second, third) = (world.stream(), world.stream());
    for users in [vec![first], vec![first, second], vec![first, second, third]] {
        for &last in &users {
            let ptr = world.alloc(7 * M, Stream(0));
            users.iter().for_each(|&user| world.share(user, "use", ptr));
            world.free(ptr);
            users.iter().filter(|&&user| user != last).for_each(|&user| world.finish(user));
            world.alloc.trim(0, u64::MAX).expect("trimmed");
            assert_eq!(world.stats().active.all.current, 1, "{last:?} has not passed");
            world.finish(last);
            world.alloc.trim(0, u64::MAX).expect("trimmed");
            assert_eq!(world.stats().active.all.current, 0);
        }
    }
    world.verify();
}

#[test]
fn more_streams_than_columns() {
    // Twelve streams have a column at a time; the core serves the others.
    let (mut world, _) = world();
    let users: Vec<Stream> = (0..30).map(|_| world.stream()).collect();
    for &user in &users {
        waiting(&mut world, user, 9 * K);
    }
    assert_eq!(world.stats().active.all.current, 30);
    for (done, &user) in users.iter().enumerate() {
        world.finish(user);
        world.alloc.trim(0, u64::MAX).expect("trimmed");
        assert_eq!(world.stats().active.all.current as usize, 29 - done);
    }
    // Columns of destroyed streams are given to others; a live block keeps its use of a stream that is gone.
    let kept = world.alloc(9 * K, Stream(0));
    world.share(users[0], "use", kept);
    for &user in &users {
        world.destroy(user);
    }
    for _ in 0..40 {
        let user = world.stream();
        waiting(&mut world, user, 9 * K);
        world.finish(user);
        world.destroy(user);
    }
    world.free(kept);
    world.alloc.trim(0, u64::MAX).expect("trimmed");
    assert_eq!(snapshot_of(&world, kept).map(|(state, ..)| state), Some(BlockState::ActivePendingFree));
    world.free_all();
    world.alloc.empty_cache(None).expect("emptied");
    assert_eq!(world.stats().active.all.current, 0);
}

#[test]
fn what_waits_is_given_back_before_memory_runs_out() {
    let mut world = Setup::default().capacity(64 * M).build();
    let user = world.stream();
    let ptr = waiting(&mut world, user, 20 * M);
    let small = waiting(&mut world, user, 20 * K);
    world.finish(user);
    // The whole device but the chunk that small blocks have.
    let all = world.alloc(62 * M - 1, Stream(0));
    assert_eq!(world.stats().num_ooms, 0);
    assert!(snapshot_of(&world, small).is_none_or(|(state, ..)| state == BlockState::Inactive));
    assert_ne!(all, DevicePtr::NULL);
    let _ = ptr;
    world.free(all);
}

#[test]
fn recording_the_own_stream_costs_nothing() {
    let (mut world, user) = world();
    let before = world.stats().calls;
    let ptr = world.alloc(M, user);
    world.record(ptr, user);
    world.free(ptr);
    assert_eq!(world.stats().active.all.current, 0);
    let again = world.alloc(M, user);
    assert_eq!(again, ptr);
    assert_eq!(world.stats().calls.record_event, before.record_event);
    world.free(again);
}

#[test]
fn threads_record_one_block_at_a_time_and_none_is_lost() {
    const THREADS: usize = 8;
    let sim =
        SimConfig { backing: BackingMode::MetadataOnly, lag: 40, capacity: 4 * G, ..SimConfig::default() };
    let world = Setup { conf: Config::default(), sim, scripted: false }.build();
    let users: Vec<Stream> = (0..THREADS).map(|_| world.stream()).collect();
    let home = world.stream();
    for round in 0..300u64 {
        let bytes = [700, 80 * K, 3 * M][round as usize % 3];
        let ptr = world.alloc.allocate(0, bytes, 0, home).expect("there is memory");
        let written = Task::new("write").writes(ptr.0, bytes, round + 1);
        world.sim.on_device(0, || world.sim.submit(home.0, written)).unwrap().expect("queued");
        users.iter().for_each(|&user| world.order(0, home, user));
        std::thread::scope(|scope| {
            for &user in &users {
                let world = &world;
                scope.spawn(move || {
                    let task = Task::new("read").reads(ptr.0, bytes, round + 1);
                    world.sim.on_device(0, || world.sim.submit(user.0, task)).unwrap().expect("queued");
                    world.alloc.record_stream(ptr, user).expect("recorded");
                });
            }
        });
        world.alloc.deallocate(ptr).expect("freed");
        assert_eq!(world.alloc.check(), Ok(()));
    }
    assert_eq!(world.sim.findings().len(), 0, "{:#?}", world.sim.findings());
}

#[test]
fn an_erased_stream_is_not_waited_for() {
    for users in [1, 2, 14] {
        let (mut world, first) = world();
        let others: Vec<Stream> = (1..users).map(|_| world.stream()).collect();
        let ptr = world.alloc(6 * M, Stream(0));
        world.alloc.record_stream(ptr, first).expect("recorded");
        others.iter().for_each(|&user| world.alloc.record_stream(ptr, user).expect("recorded"));
        world.alloc.erase_stream(ptr, first).expect("erased");
        others.iter().for_each(|&user| world.alloc.erase_stream(ptr, user).expect("erased"));
        world.free(ptr);
        assert_eq!(world.stats().active.all.current, 0, "{users} streams were erased");
        assert_eq!(world.alloc(6 * M, Stream(0)), ptr);
        world.free_all();
    }
}

/// What 11 GiB of live memory and layers of 600 MiB need, that are gathered on one stream and used on another one, while the
/// device is so many layers behind: reserved bytes and their share of the peak. The host must not wait.
fn gathered_layers(conf: &str, layers: u64) -> (u64, f64) {
    let mut world = Setup::default().conf(conf).capacity(64 * G).build();
    world.contents = false;
    let gathering = world.stream();
    world.alloc(11 * G, Stream(0));
    for _ in 0..layers {
        let weights = world.alloc(600 * M, gathering);
        world.share(Stream(0), "a layer", weights);
        world.free(weights);
    }
    let stats = world.stats();
    assert_eq!(
        (stats.calls.wait_event, stats.calls.wait_stream, stats.calls.wait_device),
        (0, 0, 0),
        "{conf}"
    );
    let (peak, reserved) = (stats.allocated_bytes.all.peak, stats.reserved_bytes.all.peak);
    (reserved as u64 / M, reserved as f64 / peak as f64)
}

/// Few large blocks earn few events, and growing for each of them would cost hundreds of calls: the streams wait for each
/// other on the device instead, as where blocks are many. Fixed blocks cost a call each; they may pile up to twice the peak.
#[test]
fn few_large_blocks_behind_slow_streams_do_not_pile_up() {
    for (conf, most) in [("", 1.25), (CLASSIC, 2.1)] {
        let (reserved, share) = gathered_layers(conf, 60);
        assert!(share < most, "{conf}: {reserved} MiB are {share:.2} of the peak");
    }
}

/// A fixed block costs one call: a stream is not made to wait for hundreds of others instead.
#[test]
fn a_fixed_block_is_not_worth_waits_for_many_streams() {
    let mut world = Setup::default().conf(CLASSIC).capacity(64 * G).build();
    world.contents = false;
    for _ in 0..100 {
        let stream = world.stream();
        let block = world.alloc(40 * M, stream);
        world.work(stream, "a client", block);
        world.free(block);
    }
    let calls = world.stats().calls;
    assert!(calls.stream_wait + calls.record_event <= 100, "{calls:?}");
    world.close();
}

/// A stream hundreds of layers behind does not use up the events that it may have under way: nothing could be waited for on the
/// device then, and memory grew until the host had to wait.
#[test]
fn a_device_that_is_far_behind_leaves_events_for_later() {
    for (conf, most) in [("", 1.75), (CLASSIC, 2.1)] {
        let (reserved, share) = gathered_layers(conf, 400);
        assert!(share < most, "{conf}: {reserved} MiB are {share:.2} of the peak");
    }
}

/// Other processes have the rest: that there is none is learnt once.
#[test]
fn a_full_device_is_not_asked_again_and_again_for_room_to_wait() {
    let world = prompt().capacity(64 * G).build();
    let user = world.stream();
    world.sim.set_foreign_bytes(0, 64 * G - 100 * M);
    (0..40_000).for_each(|_| pair(&world, 2 * M, Some(user)));
    let stats = world.stats();
    assert!(stats.reserved_bytes.all.current as u64 <= 100 * M);
    assert_eq!((stats.num_alloc_retries, stats.num_ooms), (1, 0));
    world.verify();
}
