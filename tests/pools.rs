//! Pools of a user: apart from one another, and together where that costs nothing.

use std::sync::{Arc, Barrier, Mutex};

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{
    Config, DeviceAllocator, Error, GrowableBuffer, GrowableOptions, PoolId, PoolOptions, PoolSource,
    RouteFilter, SleepMode,
};
use ascend_sim::{BackingMode, LAG_NEVER, Sim, SimConfig, Soc, Task};

const MIB: u64 = 1 << 20;
const STREAM: Stream = Stream(0);

fn rig(capacity: u64) -> (Sim, DeviceAllocator) {
    let sim = Sim::new(SimConfig { capacity, backing: BackingMode::MetadataOnly, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let config = Config::parse("check_level:3").unwrap();
    (sim, DeviceAllocator::new(config, driver).unwrap())
}

#[test]
fn free_blocks_of_a_pool_serve_only_it() {
    let (_sim, allocator) = rig(1 << 30);
    let pool = allocator.create_pool(0, PoolOptions::tagged("weights")).unwrap();
    let first = allocator.allocate_in(pool, 8 * MIB, 0, STREAM).unwrap();
    let stats = allocator.pool_stats(pool).unwrap();
    assert_eq!((stats.tag.as_str(), stats.allocated_bytes.large.current), ("weights", 8 * MIB as i64 + 512));
    assert_eq!(stats.reserved_bytes.all.current, 10 * MIB as i64);
    allocator.deallocate(first).unwrap();
    assert_eq!(allocator.pool_stats(pool).unwrap().active_bytes.all.current, 0);
    let other = allocator.allocate(0, 8 * MIB, 0, STREAM).unwrap();
    let again = allocator.allocate_in(pool, 8 * MIB, 0, STREAM).unwrap();
    assert_ne!(other, first);
    assert_eq!(again, first, "the pool kept its block");
    allocator.check().unwrap();
}

#[test]
fn idle_chunks_of_a_pool_serve_the_others() {
    let (sim, allocator) = rig(64 * MIB);
    let pool = allocator.create_pool(0, PoolOptions::default()).unwrap();
    let block = allocator.allocate_in(pool, 40 * MIB, 0, STREAM).unwrap();
    allocator.deallocate(block).unwrap();
    let block = allocator.allocate(0, 50 * MIB, 0, STREAM).unwrap();
    assert!(sim.physical_peak(0) <= 64 * MIB && sim.count("aclrtSynchronizeDevice") == 0);
    allocator.deallocate(block).unwrap();
    allocator.check().unwrap();
}

/// Who named no pool is not told that there is none.
#[test]
fn a_pool_that_goes_while_a_request_is_on_its_way_there_is_looked_up_again() {
    let (_sim, allocator) = rig(1 << 30);
    let allocator = Arc::new(allocator);
    let ends = |pool: PoolId| {
        let allocator = Arc::downgrade(&allocator);
        RouteFilter::Accepts(Arc::new(move |_| {
            let allocator = allocator.upgrade().unwrap();
            allocator.end_route(pool).unwrap();
            allocator.release_pool(pool).unwrap();
            true
        }))
    };
    let pool = allocator.create_pool(0, PoolOptions::default()).unwrap();
    allocator.begin_route(pool, ends(pool)).unwrap();
    let block = allocator.allocate(0, MIB, 0, STREAM).unwrap();
    assert!(allocator.pool_stats(pool).is_err(), "the pool is gone");
    let pool = allocator.create_pool(0, PoolOptions::default()).unwrap();
    allocator.begin_route(pool, ends(pool)).unwrap();
    let buffer = GrowableBuffer::new(allocator.clone(), 0, STREAM, GrowableOptions::up_to(8 * MIB)).unwrap();
    assert!(allocator.pool_stats(pool).is_err(), "the pool is gone");
    drop(buffer);
    allocator.deallocate(block).unwrap();
    allocator.check().unwrap();
}

#[test]
fn a_released_pool_is_gone_with_its_last_memory() {
    let (sim, allocator) = rig(1 << 30);
    let pool = allocator.create_pool(0, PoolOptions::default()).unwrap();
    let block = allocator.allocate_in(pool, 4 * MIB, 0, STREAM).unwrap();
    allocator.release_pool(pool).unwrap();
    assert!(matches!(allocator.release_pool(pool), Err(Error::Argument { name: "pool", .. })));
    assert_eq!(allocator.pool_stats(pool).unwrap().reserved_bytes.all.current, 6 * MIB as i64);
    allocator.deallocate(block).unwrap();
    allocator.empty_cache(None).unwrap();
    assert!(allocator.pool_stats(pool).is_err() && allocator.allocate_in(pool, 1, 0, STREAM).is_err());
    assert_eq!((sim.physical_bytes(0), sim.reserved_bytes()), (0, 0));
    let next = allocator.create_pool(0, PoolOptions::default()).unwrap();
    assert_ne!(next, pool, "names are not used again");
    assert!(allocator.release_pool(PoolId::default_of(0)).is_err());
    allocator.check().unwrap();
}

#[test]
fn routes_send_requests_to_pools_and_nest() {
    let (_sim, allocator) = rig(1 << 30);
    let outer = allocator.create_pool(0, PoolOptions::tagged("outer")).unwrap();
    let inner = allocator.create_pool(0, PoolOptions::tagged("inner")).unwrap();
    let of = |pool| allocator.pool_stats(pool).unwrap().allocated_bytes.all.current;
    // What rests in the front belongs to the default pool and must not be taken.
    let resting = allocator.allocate(0, MIB, 0, STREAM).unwrap();
    allocator.deallocate(resting).unwrap();
    let route = allocator.route(outer, RouteFilter::ThisThread).unwrap();
    let block = allocator.allocate(0, MIB, 0, STREAM).unwrap();
    assert_ne!(block, resting);
    assert_eq!(of(outer), MIB as i64 + 512);
    let nested = allocator.route(inner, RouteFilter::ThisThread).unwrap();
    let within = allocator.allocate(0, MIB, 0, STREAM).unwrap();
    assert_eq!((of(outer), of(inner)), (MIB as i64 + 512, MIB as i64 + 512));
    drop(nested);
    let after = allocator.allocate(0, MIB, 0, STREAM).unwrap();
    assert_eq!(of(outer), 2 * (MIB as i64 + 512), "the outer route counts again");
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(allocator.allocate(0, MIB, 0, STREAM).unwrap(), resting));
    });
    drop(route);
    for ptr in [block, within, after, resting] {
        allocator.deallocate(ptr).unwrap();
    }
    assert_eq!((of(outer), of(inner)), (0, 0));
    assert!(matches!(allocator.end_route(inner), Err(Error::State { .. })));
    allocator.check().unwrap();
}

/// Threads that route to one pool at the same time each end their own route, whichever began first.
#[test]
fn each_thread_ends_its_own_route() {
    let (_sim, allocator) = rig(1 << 30);
    let pool = allocator.create_pool(0, PoolOptions::default()).unwrap();
    let pooled = || {
        let block = allocator.allocate(0, MIB, 0, STREAM).unwrap();
        let of_pool = allocator.pool_stats(pool).unwrap().allocated_bytes.all.current > 0;
        allocator.deallocate(block).unwrap();
        of_pool
    };
    allocator.begin_route(pool, RouteFilter::ThisThread).unwrap();
    let meeting = Barrier::new(2);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            allocator.begin_route(pool, RouteFilter::ThisThread).unwrap();
            meeting.wait();
            meeting.wait();
            let still = pooled();
            allocator.end_route(pool).unwrap();
            (still, pooled())
        });
        meeting.wait();
        allocator.end_route(pool).unwrap();
        assert!(!pooled());
        meeting.wait();
        assert_eq!(other.join().unwrap(), (true, false));
    });
    // A route that another thread began can be ended as well.
    std::thread::scope(|scope| {
        scope.spawn(|| allocator.begin_route(pool, RouteFilter::All).unwrap());
    });
    allocator.end_route(pool).unwrap();
    assert!(!pooled());
}

#[test]
fn a_pool_without_splits_hands_blocks_out_whole() {
    let (_sim, allocator) = rig(1 << 30);
    let mut options = PoolOptions::default();
    options.no_split = true;
    let pool = allocator.create_pool(0, options).unwrap();
    let blocks: Vec<_> = (0..3).map(|_| allocator.allocate_in(pool, 8 * MIB, 0, STREAM).unwrap()).collect();
    for &block in &blocks {
        allocator.deallocate(block).unwrap();
    }
    let smaller = allocator.allocate_in(pool, 5 * MIB, 0, STREAM).unwrap();
    assert!(blocks.contains(&smaller));
    assert_eq!(allocator.block_info(smaller).unwrap().bytes, 8 * MIB + 512);
    // Neighbours were not merged: nothing of 16 MiB is free.
    let larger = allocator.allocate_in(pool, 16 * MIB, 0, STREAM).unwrap();
    assert!(!blocks.contains(&larger));
    allocator.check().unwrap();
}

/// Also where a place for a request is made of new memory and what is free beside it.
#[test]
fn no_piece_of_an_unsplit_block_goes_with_new_memory() {
    let (_sim, allocator) = rig(1 << 30);
    let mut options = PoolOptions::default();
    options.no_split = true;
    let pool = allocator.create_pool(0, options).unwrap();
    let on = |bytes: u64| allocator.allocate_in(pool, bytes - 512, 0, STREAM).unwrap();
    let is_whole = |ptr, bytes| allocator.block_info(ptr).unwrap().bytes == bytes;
    let large = on(64 * MIB);
    allocator.deallocate(large).unwrap();
    let small = on(20 * MIB);
    assert!(small.0 >= large.0 + 64 * MIB, "{small:?} is a piece of what was free");
    assert_eq!(on(64 * MIB), large, "the block is as it was");
    assert!(is_whole(large, 64 * MIB));
    // A block does not grow into a part of another one, but over all of it.
    allocator.deallocate(small).unwrap();
    assert!(!allocator.grow_in_place(large, 70 * MIB - 512).unwrap());
    assert_eq!(on(20 * MIB), small);
    allocator.deallocate(small).unwrap();
    assert!(allocator.grow_in_place(large, 84 * MIB - 512).unwrap());
    allocator.deallocate(large).unwrap();
    assert_eq!(on(84 * MIB), large);
    allocator.check().unwrap();
}

#[test]
fn a_pool_that_lends_serves_the_default_pool_before_it_fails() {
    for lends in [false, true] {
        let (_sim, allocator) = rig(32 * MIB);
        let mut options = PoolOptions::default();
        options.use_on_oom = lends;
        let pool = allocator.create_pool(0, options).unwrap();
        // 1.5 MiB blocks leave pieces that hold no whole chunk, so that nothing can be moved.
        let blocks: Vec<_> =
            (0..20).map(|_| allocator.allocate_in(pool, 3 * MIB / 2, 0, STREAM).unwrap()).collect();
        for &block in blocks.iter().step_by(2) {
            allocator.deallocate(block).unwrap();
        }
        let more = allocator.allocate(0, 3 * MIB / 2, 0, STREAM);
        assert_eq!(more.is_ok(), lends, "{more:?}");
        if let Ok(more) = more {
            assert!(blocks.contains(&more));
        }
        let small = allocator.allocate(0, MIB / 2, 0, STREAM);
        assert_eq!(small.is_ok(), lends, "what is free is large, and serves small requests too: {small:?}");
        allocator.check().unwrap();
    }
}

/// While a graph is captured nothing moves, so what another pool would lend is all there is.
#[test]
fn a_pool_lends_during_captures_too() {
    let (_sim, allocator) = rig(32 * MIB);
    let mut options = PoolOptions::default();
    options.use_on_oom = true;
    let lender = allocator.create_pool(0, options).unwrap();
    let block = allocator.allocate_in(lender, 30 * MIB, 0, STREAM).unwrap();
    allocator.deallocate(block).unwrap();
    let graph = allocator.create_pool(0, PoolOptions::default()).unwrap();
    let capture = allocator.capture(graph, RouteFilter::Stream(Stream(77))).unwrap();
    let lent = allocator.allocate(0, 6 * MIB, 0, STREAM).unwrap();
    assert_eq!(allocator.pool_stats(lender).unwrap().allocated_bytes.all.current, 6 * MIB as i64 + 512);
    let refused = allocator.allocate_in(graph, 6 * MIB, 0, STREAM);
    assert!(matches!(refused, Err(Error::OutOfMemory(_))), "it lends to the default pool only: {refused:?}");
    drop(capture);
    allocator.deallocate(lent).unwrap();
    allocator.check().unwrap();
}

/// What a growing buffer lacks has to lie behind it: a block of another pool is of no use, whatever its kind.
#[test]
fn a_growing_buffer_borrows_nothing() {
    let config = SimConfig { soc: Soc::Ascend950, lag: LAG_NEVER, ..SimConfig::default() };
    let sim = Sim::new(SimConfig { capacity: 16 * MIB, backing: BackingMode::MetadataOnly, ..config });
    sim.set_device(0).unwrap();
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let allocator = Arc::new(DeviceAllocator::new(Config::parse("check_level:3").unwrap(), driver).unwrap());
    let stream = Stream(sim.create_stream().unwrap());
    let mut options = PoolOptions::default();
    options.use_on_oom = true;
    let lender = allocator.create_pool(0, options).unwrap();
    let buffer = |options: GrowableOptions, bytes| {
        let options = options.beginning_with(bytes);
        GrowableBuffer::new(allocator.clone(), 0, stream, options).unwrap()
    };
    let mut other = buffer(GrowableOptions::up_to(64 * MIB).in_pool(lender), 12 * MIB);
    let mut mine = buffer(GrowableOptions::up_to(64 * MIB), 4 * MIB);
    // What the other one gives up may still be in use, so it cannot be moved at once.
    sim.submit(stream.0, Task::new("writes").writes(other.ptr().0, 12 * MIB, 1)).unwrap();
    other.resize(4 * MIB).unwrap();
    mine.resize(8 * MIB).unwrap();
    assert_eq!((mine.mapped_bytes(), other.mapped_bytes()), (8 * MIB, 4 * MIB));
    assert_eq!(allocator.pool_stats(lender).unwrap().allocated_bytes.all.current, 4 * MIB as i64);
    drop((mine, other));
    allocator.check().unwrap();
    assert_eq!(sim.findings(), Vec::<String>::new());
}

#[test]
fn what_is_done_to_a_pool_leaves_lent_blocks_alone() {
    let (_sim, allocator) = rig(32 * MIB);
    let mut options = PoolOptions::tagged("t");
    options.use_on_oom = true;
    let pool = allocator.create_pool(0, options).unwrap();
    let blocks: Vec<_> =
        (0..20).map(|_| allocator.allocate_in(pool, 3 * MIB / 2, 0, STREAM).unwrap()).collect();
    let full = allocator.checkpoint(pool).unwrap();
    for &block in blocks.iter().step_by(2) {
        allocator.deallocate(block).unwrap();
    }
    let half = allocator.checkpoint(pool).unwrap();
    let lent = allocator.allocate(0, 3 * MIB / 2, 0, STREAM).expect("the pool lends");
    let asleep = allocator.sleep(None, &["t"], SleepMode::Discard);
    assert!(matches!(asleep, Err(Error::State { .. })), "{asleep:?}");
    assert!(!allocator.is_asleep(pool).unwrap());
    let restored = allocator.restore(&half).unwrap();
    assert_eq!(restored.freed, restored.allocated, "the block that is lent is neither freed nor handed out");
    assert!(!restored.freed.contains(&lent) && allocator.block_info(lent).is_ok());
    let over = allocator.restore(&full);
    assert!(matches!(over, Err(Error::State { .. })), "the lent block lies where one was: {over:?}");
    allocator.deallocate(lent).unwrap();
    assert_eq!(allocator.restore(&full).unwrap().allocated.len(), 20);
    allocator.sleep(None, &["t"], SleepMode::Discard).unwrap();
    allocator.check().unwrap();
}

/// Statistics of a pool start again with those of its device.
#[test]
fn statistics_of_pools_start_again_too() {
    let (_sim, allocator) = rig(64 * MIB);
    let pool = allocator.create_pool(0, PoolOptions::default()).unwrap();
    let [kept, freed] =
        [4 * MIB, 8 * MIB].map(|bytes| allocator.allocate_in(pool, bytes, 0, STREAM).unwrap());
    allocator.deallocate(freed).unwrap();
    allocator.reset_peak_stats(0).unwrap();
    allocator.reset_accumulated_stats(0).unwrap();
    let (of_pool, of_device) = (allocator.pool_stats(pool).unwrap(), allocator.stats(0).unwrap());
    let bytes = of_pool.allocated_bytes.all;
    assert_eq!((bytes.peak, bytes.allocated, bytes.freed), (bytes.current, 0, 0));
    // All there is, is of the pool.
    assert_eq!(of_pool.allocated_bytes, of_device.allocated_bytes);
    assert_eq!(of_pool.active_bytes, of_device.active_bytes);
    assert_eq!(of_pool.reserved_bytes, of_device.reserved_bytes);
    allocator.deallocate(kept).unwrap();
}

/// What is free behind a lent block is not lent with it: a graph captured since may have its addresses.
#[test]
fn a_lent_block_does_not_grow() {
    let (_sim, allocator) = rig(32 * MIB);
    let mut options = PoolOptions::default();
    options.use_on_oom = true;
    let pool = allocator.create_pool(0, options).unwrap();
    let blocks: Vec<_> =
        (0..20).map(|_| allocator.allocate_in(pool, 3 * MIB / 2, 0, STREAM).unwrap()).collect();
    allocator.deallocate(blocks[4]).unwrap();
    let lent = allocator.allocate(0, 3 * MIB / 2, 0, STREAM).expect("the pool lends");
    assert_eq!(lent, blocks[4]);
    let graph = allocator.capture(pool, RouteFilter::ThisThread).unwrap().finish();
    allocator.deallocate(blocks[5]).unwrap();
    assert!(!allocator.grow_in_place(lent, 3 * MIB).unwrap());
    assert!(allocator.grow_in_place(blocks[3], 3 * MIB / 2).unwrap(), "as large as it is");
    allocator.deallocate(lent).unwrap();
    assert!(allocator.grow_in_place(blocks[3], 3 * MIB).unwrap(), "of its own pool");
    drop(graph);
    allocator.check().unwrap();
}

/// Memory from a counter, as a source of a pool; what is out is remembered.
#[derive(Default)]
struct Elsewhere {
    out: Mutex<std::collections::BTreeMap<u64, u64>>,
    most: usize,
    /// The next address, or a wrong one.
    wrong: Option<u64>,
    /// Whether it says that this is the device's memory.
    of_device: bool,
}

impl PoolSource for Elsewhere {
    fn allocate(&self, device: u32, bytes: u64, _stream: Stream) -> Option<u64> {
        assert_eq!(device, 0);
        let mut out = self.out.lock().unwrap();
        if out.len() == self.most {
            return None;
        }
        let next = out.last_key_value().map_or(1 << 45, |(&address, &bytes)| address + bytes + (1 << 21));
        let address = self.wrong.unwrap_or(next);
        out.insert(address, bytes);
        Some(address)
    }

    fn free(&self, _device: u32, address: u64, bytes: u64) {
        assert_eq!(self.out.lock().unwrap().remove(&address), Some(bytes));
    }

    fn is_of_device(&self) -> bool {
        self.of_device
    }
}

fn over(source: &Arc<Elsewhere>, allocator: &DeviceAllocator) -> PoolId {
    let mut options = PoolOptions::tagged("elsewhere");
    options.source = Some(source.clone());
    allocator.create_pool(0, options).unwrap()
}

#[test]
fn a_pool_over_a_source_caches_its_memory() {
    let (sim, allocator) = rig(1 << 30);
    let source = Arc::new(Elsewhere { most: 2, ..Elsewhere::default() });
    let pool = over(&source, &allocator);
    let first = allocator.allocate_in(pool, 8 * MIB, 0, STREAM).unwrap();
    let second = allocator.allocate_in(pool, 8 * MIB, 0, STREAM).unwrap();
    assert_eq!(source.out.lock().unwrap().len(), 1, "one segment of 20 MiB holds both");
    let third = allocator.allocate_in(pool, 30 * MIB, 0, STREAM).unwrap();
    assert_eq!(allocator.pool_stats(pool).unwrap().reserved_bytes.all.current, 52 * MIB as i64);
    assert_eq!(
        sim.count("aclrtMapMem") + sim.count("aclrtMallocAlign32"),
        0,
        "nothing comes from the driver"
    );
    let refused = allocator.allocate_in(pool, 40 * MIB, 0, STREAM);
    assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
    allocator.deallocate(third).unwrap();
    // The idle segment goes back to the source, which then has room for a larger one.
    let larger = allocator.allocate_in(pool, 40 * MIB, 0, STREAM).unwrap();
    for ptr in [first, second, larger] {
        allocator.deallocate(ptr).unwrap();
    }
    allocator.check().unwrap();
    allocator.empty_cache(None).unwrap();
    assert!(source.out.lock().unwrap().is_empty());
    assert_eq!(allocator.stats(0).unwrap().reserved_bytes.all.current, 0);
    drop(allocator);
}

#[test]
fn limits_count_the_memory_of_a_source_that_takes_it_out_of_the_device() {
    for of_device in [true, false] {
        let (_sim, allocator) = rig(1 << 30);
        let source = Arc::new(Elsewhere { most: 9, of_device, ..Elsewhere::default() });
        let pool = over(&source, &allocator);
        allocator.set_memory_limit(0, Some(100 * MIB)).unwrap();
        let mine = allocator.allocate_in(pool, 60 * MIB, 0, STREAM).unwrap();
        // What the pool holds is lacking for others, and the other way round.
        let refused = allocator.allocate(0, 60 * MIB, 0, STREAM);
        assert_eq!(refused.is_err(), of_device, "{refused:?}");
        if let Ok(block) = refused {
            allocator.deallocate(block).unwrap();
        }
        let ordinary = allocator.allocate(0, 30 * MIB, 0, STREAM).unwrap();
        let refused = allocator.allocate_in(pool, 50 * MIB, 0, STREAM);
        assert_eq!(refused.is_err(), of_device, "{refused:?}");
        if let Ok(block) = refused {
            allocator.deallocate(block).unwrap();
        }
        // Idle memory of one kind goes for the other.
        allocator.deallocate(mine).unwrap();
        let large = allocator.allocate(0, 62 * MIB, 0, STREAM).unwrap();
        assert_eq!(source.out.lock().unwrap().is_empty(), of_device);
        allocator.deallocate(large).unwrap();
        allocator.deallocate(ordinary).unwrap();
        let whole = allocator.allocate_in(pool, 98 * MIB, 0, STREAM).unwrap();
        let held = allocator.stats(0).unwrap().reserved_bytes.all.current;
        assert_eq!(held <= 100 * MIB as i64, of_device, "{held}");
        allocator.check().unwrap();
        allocator.deallocate(whole).unwrap();
        allocator.empty_cache(None).unwrap();
        assert!(source.out.lock().unwrap().is_empty());
        allocator.check().unwrap();
    }
}

#[test]
fn a_source_that_gives_nonsense_is_refused() {
    let (_sim, allocator) = rig(1 << 30);
    let odd = Arc::new(Elsewhere { most: 9, wrong: Some(4097), ..Elsewhere::default() });
    let refused = allocator.allocate_in(over(&odd, &allocator), MIB, 0, STREAM);
    assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
    assert!(odd.out.lock().unwrap().is_empty(), "it was given back");
    let twice = Arc::new(Elsewhere { most: 9, wrong: Some(1 << 44), ..Elsewhere::default() });
    let pool = over(&twice, &allocator);
    let kept = allocator.allocate_in(pool, 2 * MIB, 0, STREAM).unwrap();
    let refused = allocator.allocate_in(pool, 30 * MIB, 0, STREAM);
    assert!(matches!(refused, Err(Error::State { .. })), "{refused:?}");
    allocator.deallocate(kept).unwrap();
    allocator.check().unwrap();
}

/// One block at a time, always at the same place. The first one given back is taken by another thread at once.
#[derive(Default)]
struct OnePlace {
    out: Mutex<bool>,
    meeting: Mutex<Option<Arc<Barrier>>>,
}

impl PoolSource for OnePlace {
    fn allocate(&self, _device: u32, _bytes: u64, _stream: Stream) -> Option<u64> {
        (!std::mem::replace(&mut *self.out.lock().unwrap(), true)).then_some(1 << 45)
    }

    fn free(&self, _device: u32, _address: u64, _bytes: u64) {
        *self.out.lock().unwrap() = false;
        if let Some(meeting) = self.meeting.lock().unwrap().take() {
            meeting.wait();
            meeting.wait();
        }
    }
}

/// A source may give memory out again before the thread that gave it back has noted that.
#[test]
fn a_source_gives_another_thread_what_it_just_got_back() {
    let (_sim, allocator) = rig(1 << 30);
    let source = Arc::new(OnePlace::default());
    let mut options = PoolOptions::default();
    options.source = Some(source.clone());
    let pool = allocator.create_pool(0, options).unwrap();
    let first = allocator.allocate_in(pool, 30 * MIB, 0, STREAM).unwrap();
    allocator.deallocate(first).unwrap();
    let meeting = Arc::new(Barrier::new(2));
    *source.meeting.lock().unwrap() = Some(meeting.clone());
    std::thread::scope(|scope| {
        let emptying = scope.spawn(|| allocator.empty_cache(None));
        meeting.wait();
        let again = allocator.allocate_in(pool, 30 * MIB, 0, STREAM);
        meeting.wait();
        emptying.join().unwrap().unwrap();
        assert_eq!(again.as_ref().ok(), Some(&first), "{again:?}");
        allocator.check().unwrap();
        assert_eq!(
            allocator.pool_stats(pool).unwrap().reserved_bytes.all.current,
            30 * MIB as i64 + (2 << 20)
        );
        allocator.deallocate(first).unwrap();
    });
    allocator.empty_cache(None).unwrap();
    assert!(!*source.out.lock().unwrap());
    allocator.check().unwrap();
}

#[test]
fn a_soft_limit_makes_a_pool_take_idle_memory_first() {
    for limited in [false, true] {
        let (sim, allocator) = rig(1 << 30);
        let mut options = PoolOptions::default();
        options.soft_limit = limited.then_some(32 * MIB);
        let pool = allocator.create_pool(0, options).unwrap();
        let idle = allocator.allocate(0, 200 * MIB, 0, STREAM).unwrap();
        let base = allocator.allocate_in(pool, 30 * MIB, 0, STREAM).unwrap();
        allocator.deallocate(idle).unwrap();
        // A higher mark than what is held leaves room to grow within the headroom.
        let mark = allocator.allocate(0, 200 * MIB, 0, STREAM).unwrap();
        let before = sim.physical_bytes(0);
        let more = allocator.allocate_in(pool, 4 * MIB, 0, STREAM).unwrap();
        assert!(sim.physical_bytes(0) > before, "nothing fails because of it: there is nothing idle");
        allocator.deallocate(mark).unwrap();
        let before = (sim.physical_bytes(0), allocator.stats(0).unwrap().chunks_moved);
        let third = allocator.allocate_in(pool, 3 * MIB, 0, STREAM).unwrap();
        let after = (sim.physical_bytes(0), allocator.stats(0).unwrap().chunks_moved);
        if limited {
            assert_eq!(after.0, before.0);
            assert!(after.1 > before.1);
        }
        for ptr in [base, more, third] {
            allocator.deallocate(ptr).unwrap();
        }
        allocator.check().unwrap();
    }
}

/// Nothing can be moved there, so what the pool has idle goes back before it gets more.
#[test]
fn a_soft_limit_has_idle_fixed_blocks_of_the_pool_go_back_first() {
    for (limit, sourced) in [(None, false), (Some(40 * MIB), false), (Some(40 * MIB), true)] {
        let (sim, allocator) = rig(1 << 30);
        let source = Arc::new(Elsewhere { most: 8, ..Elsewhere::default() });
        let mut options = PoolOptions::default();
        (options.soft_limit, options.expandable) = (limit, Some(false));
        options.source = sourced.then(|| source.clone() as Arc<dyn PoolSource>);
        let pool = allocator.create_pool(0, options).unwrap();
        let on = |bytes| allocator.allocate_in(pool, bytes, 0, STREAM).unwrap();
        let reserved = || allocator.pool_stats(pool).unwrap().reserved_bytes.all.current as u64 / MIB;
        let others = allocator.allocate(0, 100 * MIB, 0, STREAM).unwrap();
        allocator.deallocate(others).unwrap();
        let [a, b] = [on(11 * MIB), on(15 * MIB)];
        allocator.deallocate(a).unwrap();
        assert_eq!(reserved(), 28);
        let c = on(19 * MIB);
        assert_eq!(reserved(), if limit.is_some() { 36 } else { 48 });
        let d = on(29 * MIB);
        assert_eq!(reserved(), if limit.is_some() { 66 } else { 78 }, "nothing fails because of it");
        [b, c, d].into_iter().for_each(|ptr| allocator.deallocate(ptr).unwrap());
        assert_eq!(sim.count("aclrtFreePhysical"), 0, "others keep what they have");
        allocator.check().unwrap();
    }
}

/// A place that is tried and given up cuts merged blocks again: the request must not merge them for ever.
#[test]
fn a_request_that_unsplit_blocks_cannot_serve_ends() {
    let (sim, allocator) = rig(64 * MIB);
    let mut options = PoolOptions::default();
    options.no_split = true;
    let pool = allocator.create_pool(0, options).unwrap();
    let other = allocator.allocate(0, 40 * MIB, 0, STREAM).unwrap();
    // What is free then begins between two multiples of 1 MiB.
    let first = allocator.allocate_in(pool, 3 * MIB, 0, STREAM).unwrap();
    let blocks = [5, 8].map(|mib| allocator.allocate_in(pool, mib * MIB, 0, STREAM).unwrap());
    blocks.iter().for_each(|&block| allocator.deallocate(block).unwrap());
    let answer = allocator.allocate_in(pool, 30 * MIB, MIB, STREAM);
    assert!(matches!(answer, Err(Error::OutOfMemory(_))), "{answer:?}");
    allocator.check().unwrap();
    let again = allocator.allocate_in(pool, 5 * MIB, 0, STREAM).unwrap();
    assert!(sim.physical_bytes(0) <= 64 * MIB);
    [again, first, other].iter().for_each(|&block| allocator.deallocate(block).unwrap());
    allocator.check().unwrap();
}
