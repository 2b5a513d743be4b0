//! What an out-of-memory error says would have helped: all of it does, by as much as it says.

mod common;

use std::sync::Arc;

use ascend_alloc::driver::Stream;
use ascend_alloc::error::{OutOfMemory, OutOfMemoryCause};
use ascend_alloc::{
    DevicePtr, Error, ExportOptions, GrowableBuffer, GrowableOptions, PoolId, PoolOptions, RouteFilter,
};
use common::{CLASSIC, Elsewhere, K, M, Setup, World, ran_out};

/// What helps depends on what is in the way.
#[test]
fn the_remedy_fits_the_cause() {
    let mut world = Setup::default().conf("memory_limit_mb:100").build();
    let s0 = world.stream();
    world.alloc(60 * M, s0);
    let report = world.alloc_fails(60 * M, s0);
    assert_eq!(
        (report.cause, report.lacking, report.limit),
        (OutOfMemoryCause::Limit, 20 * M, Some(100 * M))
    );
    assert!(report.advice().starts_with("Raise per_process_memory_fraction or memory_limit_mb"), "{report}");
    assert_eq!(report.remedies[0].bytes, report.device_free - 40 * M, "{report}");
    world.close();

    let mut world = Setup::default().conf(CLASSIC).capacity(100 * M).build();
    let s0 = world.stream();
    let blocks: Vec<_> = (0..10).map(|_| world.alloc(5 * M, s0)).collect();
    for block in blocks.into_iter().step_by(2) {
        world.free(block);
    }
    let report = world.alloc_fails(95 * M, s0);
    assert!(report.advice().contains("Set expandable_segments:True"), "{report}");
    let remedy = report.remedies.iter().find(|remedy| remedy.change.contains("expandable")).expect("one");
    assert_eq!((remedy.bytes, report.idle), (report.idle, report.reserved - report.active), "{report}");
    world.close();

    let mut world = Setup::default().conf("roundup_power2_divisions:1").capacity(64 * M).build();
    let s0 = world.stream();
    world.alloc(40 * M, s0);
    assert!(!world.alloc_fails(40 * M, s0).advice().contains("roundup"));
    world.close();
    let mut world = Setup::default().conf("roundup_power2_divisions:2").capacity(64 * M).build();
    let s0 = world.stream();
    world.alloc(33 * M, s0);
    let report = world.alloc_fails(30 * M, s0);
    let remedy = report.remedies.iter().find(|remedy| remedy.change.contains("roundup")).expect("one");
    assert_eq!(remedy.bytes, 15 * M, "{report}");
    world.close();

    let mut world = Setup::default().capacity(64 * M).build();
    let s0 = world.stream();
    let report = world.alloc_fails(65 * M, s0);
    assert!(report.advice().starts_with("Ask for less: no block can be larger"), "{report}");
    world.close();
}

/// Nothing is said to help that would not, or to give more than it would.
#[test]
fn remedies_are_not_made_up() {
    let changes = |report: &OutOfMemory| -> Vec<_> {
        report.remedies.iter().map(|remedy| (remedy.change, remedy.bytes)).collect()
    };
    // All is live, so there is nothing to be moved together.
    let mut world = Setup::default().conf(CLASSIC).capacity(64 * M).build();
    let s0 = world.stream();
    world.alloc(40 * M, s0);
    assert_eq!(changes(&world.alloc_fails(40 * M, s0)), []);
    world.close();

    // What is idle is none of the device's.
    let world = Setup::default().conf(CLASSIC).capacity(64 * M).build();
    let s0 = world.stream();
    let mut options = PoolOptions::default();
    options.source = Some(Arc::new(Elsewhere(100 * M)));
    let pool = world.alloc.create_pool(0, options).expect("a pool");
    let away = world.alloc.allocate_in(pool, 100 * M, 0, s0).expect("memory");
    world.alloc.deallocate(away).expect("freed");
    let here = world.alloc.allocate(0, 40 * M, 0, s0).expect("memory");
    let answer = world.alloc.allocate(0, 40 * M, 0, s0);
    let Err(Error::OutOfMemory(report)) = answer else { panic!("{answer:?}") };
    assert_eq!((changes(&report), report.idle), (vec![], 100 * M));
    world.alloc.deallocate(here).expect("freed");
    world.close();

    // Nothing is idle that could have been moved before the capture.
    let mut world = Setup::default().capacity(64 * M).build();
    let s0 = world.stream();
    world.alloc(40 * M, s0);
    let alloc = world.alloc.clone();
    let pool = alloc.create_pool(0, PoolOptions::default()).expect("a pool");
    let capture = alloc.capture(pool, RouteFilter::Stream(s0)).expect("begun");
    assert_eq!(changes(&world.alloc_fails(40 * M, s0)), []);
    drop(capture);
    drop(alloc);
    world.close();

    // Only what the rounding to divisions takes, and not the rest of a fixed block or the pad.
    let conf = "expandable_segments:False,roundup_power2_divisions:2";
    let mut world = Setup::default().conf(conf).capacity(64 * M).padded().build();
    let s0 = world.stream();
    world.alloc(33 * M - 32, s0);
    let report = world.alloc_fails(30 * M, s0);
    assert_eq!(changes(&report), [("Set roundup_power2_divisions:0", 15 * M)], "{report}");
    world.close();

    // Blocks below the size are split.
    let conf = "expandable_segments:False,max_split_size_mb:30";
    let mut world = Setup::default().conf(conf).capacity(64 * M).build();
    let s0 = world.stream();
    let blocks = [world.alloc(10 * M, s0), world.alloc(8 * M, s0)];
    world.free(blocks[0]);
    world.alloc(2 * M, s0);
    let report = world.alloc_fails(50 * M, s0);
    assert!(changes(&report).iter().all(|&(change, _)| change != "Raise max_split_size_mb"), "{report}");
    world.close();
}

/// The bytes that a change is said to give.
fn said(report: &OutOfMemory, change: &str) -> Option<u64> {
    report.remedies.iter().find(|remedy| remedy.change.contains(change)).map(|remedy| remedy.bytes)
}

/// Blocks in one piece of a pool, each of which shares its chunks with its neighbours, every second one freed.
fn comb(world: &World, pool: PoolId) -> Vec<DevicePtr> {
    let teeth = (0..8).map(|_| world.alloc.allocate_in(pool, 1500 * K, 0, Stream(0)).expect("memory"));
    let teeth: Vec<_> = teeth.collect();
    teeth.iter().step_by(2).for_each(|&tooth| world.alloc.deallocate(tooth).expect("freed"));
    teeth.into_iter().skip(1).step_by(2).collect()
}

/// What a graph keeps in place helps others only where it is whole chunks.
#[test]
fn releasing_graphs_gives_what_is_said() {
    let world = Setup::default().capacity(32 * M).build();
    let s0 = world.stream();
    let pool = world.alloc.create_pool(0, PoolOptions::default()).expect("a pool");
    let graph = world.alloc.capture(pool, RouteFilter::Stream(s0)).expect("begun").finish();
    let mut kept = comb(&world, pool);
    let report = ran_out(world.alloc.allocate(0, 24 * M, 0, s0));
    assert_eq!((report.scattered, said(&report, "graphs")), (report.idle, None), "{report}");
    let whole = world.alloc.allocate_in(pool, 6 * M, 0, s0).expect("memory");
    world.alloc.deallocate(whole).expect("freed");
    let report = ran_out(world.alloc.allocate(0, 24 * M, 0, s0));
    let gain = said(&report, "graphs").expect("whole chunks");
    drop(graph);
    let most = report.device_free + gain;
    ran_out(world.alloc.allocate(0, most + 2 * M, 0, s0));
    kept.push(world.alloc.allocate(0, most, 0, s0).expect("what was said to help"));
    kept.into_iter().for_each(|ptr| world.alloc.deallocate(ptr).expect("freed"));
    world.alloc.release_pool(pool).expect("released");
    world.close();
}

/// The same of what could be moved before a capture begins, or waited for.
#[test]
fn allocating_before_a_capture_gives_what_is_said() {
    let mut world = Setup::default().capacity(32 * M).build();
    let (s0, s1) = (world.stream(), world.stream());
    let alloc = world.alloc.clone();
    let [pool, other] = [0, 1].map(|_| alloc.create_pool(0, PoolOptions::default()).expect("a pool"));
    let kept = comb(&world, other);
    let waits = alloc.allocate(0, 4 * M, 0, s0).expect("memory");
    alloc.record_stream(waits, s1).expect("recorded");
    alloc.deallocate(waits).expect("freed");
    let capture = alloc.capture(pool, RouteFilter::Stream(s0)).expect("begun");
    let report = ran_out(alloc.allocate(0, 30 * M, 0, s0));
    assert_eq!(said(&report, "before the capture"), Some(4 * M), "{report}");
    drop(capture);
    let most = report.device_free + 4 * M;
    ran_out(alloc.allocate(0, most + 2 * M, 0, s0));
    let ptr = alloc.allocate(0, most, 0, s0).expect("what was said to help");
    kept.into_iter().chain([ptr]).for_each(|ptr| alloc.deallocate(ptr).expect("freed"));
    drop(alloc);
    world.free_all();
    world.close();
}

/// A pool with a kind of its own does not follow the setting.
#[test]
fn the_setting_helps_pools_that_follow_it() {
    for (global, change) in [(CLASSIC, "expandable:None"), ("", "expandable:None")] {
        let world = Setup::default().conf(global).capacity(64 * M).build();
        let s0 = world.stream();
        let mut options = PoolOptions::default();
        options.expandable = Some(false);
        let pool = world.alloc.create_pool(0, options).expect("a pool");
        let ptr = world.alloc.allocate_in(pool, 30 * M, 0, s0).expect("memory");
        world.alloc.shrink_in_place(ptr, 2 * M).expect("shrunk");
        let report = ran_out(world.alloc.allocate(0, 40 * M, 0, s0));
        assert_eq!(
            (said(&report, "expandable_segments"), said(&report, change)),
            (None, Some(28 * M)),
            "{report}"
        );
        world.alloc.deallocate(ptr).expect("freed");
        world.close();
    }
}

/// What is idle of a wide chunk goes nowhere while anything of it is live.
#[test]
fn idle_parts_of_wide_chunks_are_between_live_blocks() {
    let run = |conf: &str| {
        let world = Setup::default().conf(conf).capacity(64 * M).build();
        let s0 = world.stream();
        let kept = [0; 3].map(|_| world.alloc.allocate(0, 20 * M, 0, s0).expect("memory"));
        kept.iter().for_each(|&ptr| world.alloc.shrink_in_place(ptr, 2 * M).expect("shrunk"));
        let answer = world.alloc.allocate(0, 58 * M, 0, s0);
        (world, kept, answer)
    };
    let (world, kept, answer) = run("large_segment_size_mb:20");
    let report = ran_out(answer);
    assert_eq!((report.idle, report.scattered), (54 * M, 54 * M), "{report}");
    assert_eq!(said(&report, "large_segment_size_mb"), Some(54 * M), "{report}");
    kept.into_iter().for_each(|ptr| world.alloc.deallocate(ptr).expect("freed"));
    world.close();
    let (world, kept, answer) = run("");
    let ptr = answer.expect("what was said to help");
    kept.into_iter().chain([ptr]).for_each(|ptr| world.alloc.deallocate(ptr).expect("freed"));
    world.close();
}

/// A block that its owner has freed is kept by nothing but its exports.
#[test]
fn exports_of_freed_blocks_are_named() {
    let world = Setup::default().capacity(64 * M).build();
    let s0 = world.stream();
    let [freed, live] = [30 * M, 10 * M].map(|bytes| world.alloc.allocate(0, bytes, 0, s0).expect("memory"));
    let exports =
        [freed, live].map(|ptr| world.alloc.export(ptr, &ExportOptions::default()).expect("exported"));
    world.alloc.deallocate(freed).expect("freed");
    let report = ran_out(world.alloc.allocate(0, 50 * M, 0, s0));
    assert_eq!(said(&report, "exports"), Some(30 * M), "{report}");
    drop(exports);
    let ptr = world.alloc.allocate(0, 50 * M, 0, s0).expect("what was said to help");
    [ptr, live].into_iter().for_each(|ptr| world.alloc.deallocate(ptr).expect("freed"));
    world.close();
}

/// No memory of the device helps where something else is in the way.
#[test]
fn memory_is_no_remedy_for_other_causes() {
    let world = Setup::default().capacity(64 * M).build();
    let s0 = world.stream();
    let mut options = PoolOptions::default();
    options.source = Some(Arc::new(Elsewhere(10 * M)));
    let [short, fixed] = [options, PoolOptions::default()].map(|options| world.alloc.create_pool(0, options));
    let (short, fixed) = (short.expect("a pool"), fixed.expect("a pool"));
    let graph = world.alloc.capture(fixed, RouteFilter::Stream(s0)).expect("begun").finish();
    let kept = world.alloc.allocate_in(fixed, 20 * M, 0, s0).expect("memory");
    world.alloc.deallocate(kept).expect("freed");
    let report = ran_out(world.alloc.allocate_in(short, 20 * M, 0, s0));
    assert_eq!((report.cause, &report.remedies[..]), (OutOfMemoryCause::Source, &[][..]), "{report}");
    world.sim.fail("aclrtReserveMemAddress", 1, 207_001, true).expect("a function");
    let options = GrowableOptions::up_to(32 * M).at_least(16 * M);
    let report = ran_out(GrowableBuffer::new(world.alloc.clone(), 0, s0, options));
    assert_eq!((report.cause, said(&report, "graphs")), (OutOfMemoryCause::AddressSpace, None), "{report}");
    world.sim.clear_faults();
    drop(graph);
    [short, fixed].into_iter().for_each(|pool| world.alloc.release_pool(pool).expect("released"));
    world.close();
}
