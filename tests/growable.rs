//! Growing buffers: they never move, cost what they map, and give memory back in stream order.

mod common;

use std::sync::Arc;

use ascend_alloc::driver::Stream;
use ascend_alloc::error::OutOfMemoryCause;
use ascend_alloc::{
    Error, ExportOptions, GrowableBuffer, GrowableOptions, PoolOptions, PoolSource, RouteFilter, SleepMode,
};
use ascend_sim::{LAG_NEVER, SimConfig, Soc};
use common::growing::Rig;
use common::{G, K, M};

const STREAM: Stream = Stream(0);

#[test]
fn it_grows_and_shrinks_by_chunks_and_never_moves() {
    let rig = Rig::new(G);
    let mut buffer = rig.buffer(64 * M, 0, STREAM).unwrap();
    let ptr = buffer.ptr();
    assert_eq!((buffer.bytes(), buffer.mapped_bytes(), buffer.max_bytes()), (0, 0, 64 * M));
    assert_eq!(rig.counts(), [0, 0, 0, 1]);
    for (bytes, mapped) in
        [(1, 2), (2 * M, 2), (2 * M + 1, 4), (7 * M, 8), (64 * M, 64), (5 * M, 6), (1, 2), (0, 0)]
    {
        buffer.resize(bytes).unwrap();
        assert_eq!((buffer.ptr(), buffer.bytes(), buffer.mapped_bytes()), (ptr, bytes, mapped * M));
        assert_eq!(rig.held().0, (mapped * M) as i64);
        let stats = rig.alloc.stats(0).unwrap();
        assert_eq!(stats.requested_bytes.all.current, bytes as i64);
        assert_eq!(stats.allocation.all.current, i64::from(bytes > 0));
    }
    // What was cut off is still there: growing again costs no call.
    assert_eq!(rig.counts(), [32, 0, 32, 1]);
    buffer.resize(64 * M).unwrap();
    assert_eq!(rig.counts(), [32, 0, 32, 1]);
    let stats = rig.alloc.stats(0).unwrap();
    assert_eq!(
        (stats.allocated_bytes.all.peak, stats.requested_bytes.all.peak),
        (64 * M as i64, 64 * M as i64)
    );
    drop(buffer);
    rig.close();
}

#[test]
fn the_pad_lies_behind_its_bytes() {
    let rig = Rig::on(SimConfig { soc: Soc::Ascend910B, ..Rig::machine() }, "check_level:3");
    let mut buffer = rig.buffer(4 * M, 2 * M - 32, STREAM).unwrap();
    assert_eq!(
        (buffer.max_bytes(), buffer.mapped_bytes()),
        (6 * M - 32, 2 * M),
        "4 MiB and a pad are three chunks"
    );
    buffer.resize(2 * M - 31).unwrap();
    assert_eq!(buffer.mapped_bytes(), 4 * M);
    drop(buffer);
    rig.close();
}

#[test]
fn more_than_the_maximum_is_refused() {
    let rig = Rig::new(G);
    let mut buffer = rig.buffer(8 * M, M, STREAM).unwrap();
    assert!(matches!(buffer.resize(8 * M + 1), Err(Error::Size { requested, .. }) if requested == 8 * M + 1));
    assert!(matches!(buffer.resize(u64::MAX), Err(Error::Size { .. })));
    assert_eq!((buffer.bytes(), buffer.mapped_bytes()), (M, 2 * M));
    for (max, bytes, least) in
        [(0, 0, 0), (M, 3 * M, 0), (M, 0, 3 * M), (u64::MAX, 0, 0), (u64::MAX, u64::MAX, 0)]
    {
        let options = GrowableOptions::up_to(max).beginning_with(bytes).at_least(least);
        let answer = GrowableBuffer::new(rig.alloc.clone(), 0, STREAM, options);
        assert!(matches!(answer, Err(Error::Size { .. })), "{max} {bytes} {least}: {answer:?}");
    }
    let options = GrowableOptions::up_to(M);
    assert!(matches!(
        GrowableBuffer::new(rig.alloc.clone(), 7, STREAM, options),
        Err(Error::Argument { .. })
    ));
    drop(buffer);
    rig.close();
}

#[test]
fn the_address_says_what_it_is_and_cannot_be_freed() {
    let rig = Rig::new(G);
    let buffer = rig.buffer(8 * M, 3 * M, STREAM).unwrap();
    let info = rig.alloc.block_info(buffer.ptr()).unwrap();
    assert_eq!(
        (info.bytes, info.requested, info.segment, info.segment_bytes),
        (4 * M, 3 * M, buffer.ptr().0, 8 * M)
    );
    assert!(matches!(rig.alloc.deallocate(buffer.ptr()), Err(Error::State { .. })));
    assert!(matches!(rig.alloc.grow_in_place(buffer.ptr(), 7 * M), Err(Error::State { .. })));
    assert!(matches!(rig.alloc.shrink_in_place(buffer.ptr(), M), Err(Error::State { .. })));
    assert_eq!(rig.alloc.block_info(buffer.ptr()).unwrap(), info);
    // Streams can be recorded either way, as a framework that knows only addresses does it.
    rig.alloc.record_stream(buffer.ptr(), rig.stream()).unwrap();
    drop(buffer);
    rig.close();
}

#[test]
fn what_is_cut_off_serves_others_in_stream_order() {
    let rig = Rig::on(SimConfig { capacity: 16 * M, lag: LAG_NEVER, ..Rig::machine() }, "check_level:3");
    let other = rig.stream();
    let mut buffer = rig.buffer(64 * M, 12 * M, STREAM).unwrap();
    rig.work(STREAM, buffer.ptr().0, 12 * M, 1);
    buffer.resize(2 * M).unwrap();
    // Same stream: at once. The work that used the chunks comes first anyhow.
    let same = rig.alloc.allocate(0, 4 * M, 0, STREAM).unwrap();
    assert_eq!(rig.sim.count("aclrtSynchronizeEvent") + rig.sim.count("aclrtSynchronizeDevice"), 0);
    // Another stream needs chunks that the first stream's work still uses: there is a wait before.
    let block = rig.alloc.allocate(0, 8 * M, 0, other).unwrap();
    rig.work(other, block.0, 8 * M, 2);
    assert!(rig.sim.count("aclrtUnmapMem") > 0);
    rig.alloc.deallocate(block).unwrap();
    rig.alloc.deallocate(same).unwrap();
    drop(buffer);
    rig.close();
}

#[test]
fn growing_over_what_a_recorded_stream_still_uses_waits_on_the_device() {
    let rig = Rig::on(SimConfig { lag: LAG_NEVER, ..Rig::machine() }, "check_level:3");
    let other = rig.stream();
    let mut buffer = rig.buffer(64 * M, 12 * M, STREAM).unwrap();
    let base = buffer.ptr().0;
    buffer.record_stream(other).unwrap();
    rig.work(other, base, 12 * M, 1);
    buffer.resize(4 * M).unwrap();
    assert_eq!(rig.alloc.stats(0).unwrap().active_bytes.all.current, 12 * M as i64);
    buffer.resize(10 * M).unwrap();
    // Another object at the same place: the checker would see it overtake the other stream's work.
    rig.work(STREAM, base + 4 * M, 6 * M, 2);
    let waits =
        ["aclrtStreamWaitEvent", "aclrtSynchronizeEvent", "aclrtSynchronizeStream", "aclrtSynchronizeDevice"];
    assert_eq!(waits.map(|call| rig.sim.count(call)), [1, 0, 0, 0]);
    assert_eq!(buffer.ptr().0, base);
    buffer.resize(0).unwrap();
    assert!(matches!(buffer.record_stream(other), Err(Error::State { .. })));
    buffer.resize(12 * M).unwrap();
    rig.work(STREAM, base, 12 * M, 3);
    drop(buffer);
    rig.close();
}

#[test]
fn a_reservation_that_is_refused_falls_back_to_a_smaller_maximum() {
    let rig = Rig::on(SimConfig { va_budget: Some(100 * M), ..Rig::machine() }, "check_level:3");
    let buffer = rig.buffer(300 * M, 2 * M, STREAM).unwrap();
    assert_eq!(buffer.max_bytes(), 76 * M, "300, 150, 76 MiB");
    let report = match rig.buffer(60 * M, 30 * M, STREAM) {
        Err(Error::OutOfMemory(report)) => report,
        other => panic!("{other:?}"),
    };
    assert_eq!((report.cause, report.requested), (OutOfMemoryCause::AddressSpace, 30 * M));
    let options = GrowableOptions::up_to(60 * M).at_least(16 * M);
    let small = GrowableBuffer::new(rig.alloc.clone(), 0, STREAM, options.clone()).unwrap();
    assert_eq!(small.max_bytes(), 16 * M, "60, 30, 16 MiB");
    // What buffers that are gone had makes room again.
    drop((buffer, small));
    let large = GrowableBuffer::new(rig.alloc.clone(), 0, STREAM, options.clone().beginning_with(M)).unwrap();
    assert_eq!(large.max_bytes(), 76 * M, "taken over");
    drop(large);
    let large = rig.buffer(100 * M, 0, STREAM).unwrap();
    assert_eq!((large.max_bytes(), rig.sim.reserved_bytes()), (100 * M, 100 * M));
    drop(large);
    rig.close();
}

#[test]
fn without_memory_it_stays_as_it_is() {
    let rig = Rig::new(16 * M);
    let mut buffer = rig.buffer(64 * M, 6 * M, STREAM).unwrap();
    let block = rig.alloc.allocate(0, 8 * M, 0, STREAM).unwrap();
    let before = (rig.held(), rig.alloc.stats(0).unwrap().active);
    let report = match buffer.resize(12 * M) {
        Err(Error::OutOfMemory(report)) => report,
        other => panic!("{other:?}"),
    };
    assert_eq!((report.cause, report.requested, report.cached_handles), (OutOfMemoryCause::Device, 6 * M, 0));
    assert_eq!((buffer.bytes(), buffer.mapped_bytes()), (6 * M, 6 * M));
    assert_eq!((rig.held(), rig.alloc.stats(0).unwrap().active), before);
    assert!(matches!(rig.buffer(64 * M, 4 * M, STREAM), Err(Error::OutOfMemory(_))));
    assert_eq!(rig.held(), before.0, "the address space of the buffer that could not be is gone too");
    // Idle memory elsewhere serves it.
    rig.alloc.deallocate(block).unwrap();
    buffer.resize(12 * M).unwrap();
    assert!(rig.sim.count("aclrtUnmapMem") > 0);
    drop(buffer);
    rig.close();
}

#[test]
fn a_buffer_that_is_gone_leaves_its_place_to_the_next() {
    let rig = Rig::new(G);
    let first = rig.buffer(512 * M, 20 * M, STREAM).unwrap();
    let ptr = first.ptr();
    drop(first);
    let before = rig.counts();
    for round in 0..1000 {
        let mut next = rig.buffer(512 * M - round * M / 4, 3 * M, STREAM).unwrap();
        next.resize(20 * M).unwrap();
        assert_eq!(next.ptr(), ptr);
    }
    assert_eq!(rig.counts(), before, "no driver call for buffers that come and go");
    // The memory is not theirs alone.
    let block = rig.alloc.allocate(0, G - M, 0, STREAM).unwrap();
    rig.alloc.deallocate(block).unwrap();
    rig.close();
}

#[test]
fn a_place_that_other_work_uses_is_not_taken_over() {
    let rig = Rig::on(SimConfig { lag: LAG_NEVER, ..Rig::machine() }, "check_level:3");
    let other = rig.stream();
    let first = rig.buffer(64 * M, 4 * M, STREAM).unwrap();
    rig.work(STREAM, first.ptr().0, 4 * M, 1);
    let ptr = first.ptr();
    drop(first);
    let second = rig.buffer(64 * M, 4 * M, other).unwrap();
    assert_ne!(second.ptr(), ptr);
    rig.work(other, second.ptr().0, 4 * M, 2);
    let third = rig.buffer(64 * M, 4 * M, STREAM).unwrap();
    assert_eq!(third.ptr(), ptr);
    rig.work(STREAM, ptr.0, 4 * M, 3);
    drop((second, third));
    rig.close();
}

#[test]
fn vacant_address_space_has_a_bound() {
    let rig = Rig::on(SimConfig { capacity: 64 * G, ..Rig::machine() }, "");
    // Sizes so different that none serves another.
    let buffers: Vec<_> =
        (0..40).map(|n| rig.buffer((20 + 41 * (n % 2)) * G + n * G, M, STREAM).unwrap()).collect();
    let all: u64 = buffers.iter().map(GrowableBuffer::max_bytes).sum();
    assert!(all > 1024 * G);
    for buffer in buffers {
        drop(buffer);
    }
    assert!(rig.held().2 <= 256 * G, "{} bytes", rig.held().2);
    rig.close();
}

#[test]
fn it_counts_to_its_pool() {
    let rig = Rig::new(G);
    let pool = rig.alloc.create_pool(0, PoolOptions::tagged("kv_cache")).unwrap();
    let options = GrowableOptions::up_to(32 * M).beginning_with(5 * M).in_pool(pool);
    let mut buffer = GrowableBuffer::new(rig.alloc.clone(), 0, STREAM, options.clone()).unwrap();
    let stats = rig.alloc.pool_stats(pool).unwrap();
    assert_eq!((stats.allocated_bytes.all.current, stats.reserved_address_space), (6 * M as i64, 32 * M));
    // Nothing else is placed in its rest.
    let block = rig.alloc.allocate_in(pool, 4 * M, 0, STREAM).unwrap();
    assert!(block.0 < buffer.ptr().0 || block.0 >= buffer.ptr().0 + 32 * M);
    buffer.resize(32 * M).unwrap();
    rig.alloc.deallocate(block).unwrap();
    rig.alloc.release_pool(pool).unwrap();
    buffer.resize(M).unwrap();
    assert_eq!(rig.alloc.pool_stats(pool).unwrap().active_bytes.all.current, 2 * M as i64);
    drop(buffer);
    rig.alloc.empty_cache(None).unwrap();
    assert!(rig.alloc.pool_stats(pool).is_err(), "the pool went with its last memory");
    assert!(matches!(
        GrowableBuffer::new(rig.alloc.clone(), 0, STREAM, options),
        Err(Error::Argument { .. })
    ));
    rig.close();
}

#[test]
fn a_checkpoint_leaves_it_alone() {
    let rig = Rig::new(G);
    let pool = rig.alloc.create_pool(0, PoolOptions::default()).unwrap();
    let options = GrowableOptions::up_to(32 * M).beginning_with(5 * M).in_pool(pool);
    let mut buffer = GrowableBuffer::new(rig.alloc.clone(), 0, STREAM, options).unwrap();
    let block = rig.alloc.allocate_in(pool, 4 * M, 0, STREAM).unwrap();
    let checkpoint = rig.alloc.checkpoint(pool).unwrap();
    assert_eq!(checkpoint.blocks().map(|(ptr, _)| ptr).collect::<Vec<_>>(), [block]);
    buffer.resize(9 * M).unwrap();
    rig.alloc.restore(&checkpoint).unwrap();
    assert_eq!(rig.alloc.block_info(buffer.ptr()).unwrap().requested, 9 * M);
    buffer.resize(M).unwrap();
    rig.alloc.deallocate(block).unwrap();
    drop(buffer);
    rig.close();
}

#[test]
fn it_sleeps_with_its_pool() {
    let rig = Rig::new(G);
    let pool = rig.alloc.create_pool(0, PoolOptions::tagged("kv")).unwrap();
    let options = GrowableOptions::up_to(32 * M).in_pool(pool);
    let new = |bytes| {
        let options = options.clone().beginning_with(bytes);
        GrowableBuffer::new(rig.alloc.clone(), 0, STREAM, options)
    };
    let (mut buffer, mut empty, other) = (new(9 * M).unwrap(), new(0).unwrap(), new(3 * M).unwrap());
    buffer.resize(7 * M).unwrap();
    let slept = rig.alloc.sleep(None, &["kv"], SleepMode::Offload).unwrap();
    assert_eq!((slept.pools, slept.returned_bytes), (1, 14 * M));
    // Awake or not, what needs no memory works and what needs some says why not.
    for buffer in [&mut buffer, &mut empty] {
        assert!(matches!(buffer.resize(10 * M), Err(Error::State { .. })));
    }
    assert!(matches!(new(0), Err(Error::State { .. })));
    buffer.resize(4 * M + 1).unwrap();
    drop(other);
    let woken = rig.alloc.wake(None, &["kv"]).unwrap();
    assert_eq!((woken.mapped_bytes, buffer.mapped_bytes()), (6 * M, 6 * M));
    buffer.resize(20 * M).unwrap();
    empty.resize(M).unwrap();
    // With its last live block gone the pool wakes by itself.
    rig.alloc.sleep(None, &["kv"], SleepMode::Discard).unwrap();
    buffer.resize(0).unwrap();
    assert!(matches!(empty.resize(3 * M), Err(Error::State { .. })));
    empty.resize(0).unwrap();
    empty.resize(3 * M).unwrap();
    drop((buffer, empty));
    rig.close();
}

#[test]
fn it_is_gone_with_its_device() {
    let rig = Rig::new(G);
    let mut buffer = rig.buffer(64 * M, 8 * M, STREAM).unwrap();
    drop(rig.buffer(64 * M, 2 * M, STREAM).unwrap());
    rig.sim.reset_device(0).unwrap();
    rig.alloc.device_was_reset(0).unwrap();
    assert_eq!(rig.held(), (0, 0, 0));
    assert!(matches!(buffer.resize(10 * M), Err(Error::State { .. })));
    assert!(matches!(buffer.record_stream(Stream(1)), Err(Error::Pointer { .. })));
    rig.sim.set_device(0).unwrap();
    let mut other = rig.buffer(64 * M, 8 * M, STREAM).unwrap();
    drop(buffer);
    other.resize(20 * M).unwrap();
    drop(other);
    rig.alloc.check().unwrap();
}

#[test]
fn during_a_capture_it_takes_new_memory_only() {
    let rig = Rig::new(G);
    let mut buffer = rig.buffer(64 * M, 8 * M, STREAM).unwrap();
    let idle = rig.alloc.allocate(0, 40 * M, 0, STREAM).unwrap();
    rig.alloc.deallocate(idle).unwrap();
    let pool = rig.alloc.create_pool(0, PoolOptions::default()).unwrap();
    let capture = rig.alloc.capture(pool, RouteFilter::Stream(Stream(7))).unwrap();
    let calls = ["aclrtRecordEvent", "aclrtQueryEventStatus", "aclrtUnmapMem"];
    let before = calls.map(|call| rig.sim.count(call));
    buffer.resize(20 * M).unwrap();
    buffer.resize(2 * M).unwrap();
    buffer.resize(6 * M).unwrap();
    drop(rig.buffer(64 * M, 2 * M, STREAM).unwrap());
    assert_eq!(calls.map(|call| rig.sim.count(call)), before);
    drop((capture.finish(), buffer));
    rig.alloc.release_pool(pool).unwrap();
    rig.close();
}

#[test]
fn a_pool_with_a_source_of_its_own_has_none() {
    struct Nothing;
    impl PoolSource for Nothing {
        fn allocate(&self, _: u32, _: u64, _: Stream) -> Option<u64> {
            None
        }
        fn free(&self, _: u32, _: u64, _: u64) {}
    }
    let rig = Rig::new(G);
    let mut options = PoolOptions::default();
    options.source = Some(Arc::new(Nothing));
    let pool = rig.alloc.create_pool(0, options).unwrap();
    let options = GrowableOptions::up_to(32 * M).in_pool(pool);
    assert!(matches!(
        GrowableBuffer::new(rig.alloc.clone(), 0, STREAM, options),
        Err(Error::Argument { .. })
    ));
    rig.close();
}

#[test]
fn every_call_may_fail() {
    const CALLS: [&str; 8] = [
        "aclrtReserveMemAddress",
        "aclrtMallocPhysical",
        "aclrtMapMem",
        "aclrtMemSetAccess",
        "aclrtUnmapMem",
        "aclrtFreePhysical",
        "aclrtReleaseMemAddress",
        "aclrtStreamWaitEvent",
    ];
    for (call, code, always) in CALLS
        .iter()
        .flat_map(|call| [207_001, 507_899, 207_000].map(|code| (call, code)))
        .flat_map(|(call, code)| [false, true].map(|always| (call, code, always)))
    {
        for k in 1..=6 {
            let rig =
                Rig::on(SimConfig { capacity: 24 * M, lag: LAG_NEVER, ..Rig::machine() }, "check_level:3");
            let other = rig.stream();
            let idle = rig.alloc.allocate(0, 10 * M, 0, STREAM).unwrap();
            rig.alloc.deallocate(idle).unwrap();
            let mut buffer = rig.buffer(64 * M, 6 * M, STREAM).unwrap();
            buffer.record_stream(other).unwrap();
            rig.work(other, buffer.ptr().0, 6 * M, 1);
            buffer.resize(2 * M).unwrap();
            rig.sim.fail(call, k, code, always).unwrap();
            let what = format!("{call} {k} {code} {always}");
            let before = (buffer.bytes(), buffer.mapped_bytes(), rig.held().0);
            let answer = buffer.resize(16 * M);
            let made = rig.buffer(16 * M, 2 * M, other).ok();
            rig.sim.clear_faults();
            rig.alloc.check().unwrap_or_else(|faults| panic!("{what}: {faults:#?}"));
            if answer.is_err() && made.is_none() {
                assert_eq!(
                    (buffer.bytes(), buffer.mapped_bytes(), rig.held().0),
                    before,
                    "{what}: {answer:?}"
                );
            }
            drop(made);
            buffer.resize(16 * M).unwrap_or_else(|error| panic!("{what}: {error}"));
            rig.work(STREAM, buffer.ptr().0, 16 * M, 2);
            drop(buffer);
            rig.close();
        }
    }
}

#[test]
fn without_virtual_memory_the_error_says_so() {
    let rig = Rig::new(G);
    rig.sim.set_missing(&["aclrtReserveMemAddress"]).unwrap();
    let answer = rig.buffer(8 * M, M, STREAM);
    assert!(matches!(&answer, Err(Error::Driver(error)) if error.is_unsupported()), "{answer:?}");
    assert_eq!(rig.held(), (0, 0, 0));
    rig.close();
}

#[test]
fn a_stream_that_is_gone_does_no_harm() {
    let rig = Rig::on(SimConfig { lag: LAG_NEVER, ..Rig::machine() }, "check_level:3");
    let stream = rig.stream();
    let mut buffer = rig.buffer(64 * M, 8 * M, stream).unwrap();
    let mut empty = rig.buffer(64 * M, 0, stream).unwrap();
    rig.work(stream, buffer.ptr().0, 8 * M, 1);
    rig.sim.destroy_stream(stream.0).unwrap();
    rig.alloc.stream_destroyed(0, stream).unwrap();
    buffer.resize(2 * M).unwrap();
    buffer.resize(12 * M).unwrap();
    empty.resize(4 * M).unwrap();
    drop((buffer, empty));
    rig.close();
}

#[test]
fn ten_thousand_buffers_cost_what_they_map() {
    let rig = Rig::on(SimConfig { capacity: 64 * G, va_budget: Some(5400 * G), ..Rig::machine() }, "");
    let mut buffers: Vec<_> = (0..10_000).map(|_| rig.buffer(512 * M, 100 * K, STREAM).unwrap()).collect();
    assert_eq!(rig.held(), (10_000 * 2 * M as i64, 10_000 * 2 * M as i64, 10_000 * 512 * M));
    for buffer in buffers.iter_mut().step_by(3) {
        buffer.resize(5 * M).unwrap();
    }
    assert_eq!(rig.counts(), [10_000 + 3334 * 2, 0, 10_000 + 3334 * 2, 10_000]);
    rig.alloc.check().unwrap();
    // Beyond the address space: an error, and room again once buffers are gone.
    assert!(matches!(
        GrowableBuffer::new(
            rig.alloc.clone(),
            0,
            STREAM,
            GrowableOptions::up_to(1024 * G).at_least(1024 * G)
        ),
        Err(Error::OutOfMemory(_))
    ));
    buffers.truncate(100);
    assert_eq!(rig.buffer(1024 * G, 0, STREAM).unwrap().max_bytes(), 1024 * G);
    drop(buffers);
    rig.close();
}

/// A buffer that another process still uses keeps its addresses; the addresses of others are let go all the same.
#[test]
fn addresses_of_closed_buffers_are_let_go_beside_an_exported_one() {
    let rig = Rig::new(G);
    let shared = rig.buffer(200 * G, 2 * M, STREAM).unwrap();
    let export = rig.alloc.export(shared.ptr(), &ExportOptions::default()).unwrap();
    drop(shared);
    // Of sizes that serve none of the others.
    let many: Vec<_> = (0..6).map(|_| rig.buffer(90 * G, 2 * M, STREAM).unwrap()).collect();
    drop(many);
    let space = rig.alloc.stats(0).unwrap().reserved_address_space;
    assert!(space <= 290 * G, "{} GiB of addresses", space >> 30);
    drop(export);
    rig.close();
}
