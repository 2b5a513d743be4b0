//! Sources of pools whose functions call the allocator themselves, for anything but memory of their pool.

mod common;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use ascend_alloc::driver::{DeviceId, DriverError, DriverResult, Stream};
use ascend_alloc::{
    DeviceAllocator, Error, GrowableBuffer, GrowableOptions, PoolId, PoolOptions, PoolSource, Result,
    RouteFilter, SleepMode,
};
use ascend_sim::Sim;
use common::gated::{REFUSED, Rig};
use common::{CLASSIC, M, ran_out};

const STREAM: Stream = Stream(0);

/// What a function of the source does before its work.
type Task = Box<dyn FnOnce() + Send>;

/// Gives memory of the machine, and does what it is told to do first.
struct Busy {
    sim: Sim,
    at_allocate: Mutex<Option<Task>>,
    at_free: Mutex<Option<Task>>,
    /// So many frees are refused.
    refuses: AtomicU32,
}

impl Busy {
    fn new(sim: &Sim) -> Arc<Self> {
        Arc::new(Self {
            sim: sim.clone(),
            at_allocate: Mutex::default(),
            at_free: Mutex::default(),
            refuses: AtomicU32::new(0),
        })
    }

    fn pool(self: &Arc<Self>, rig: &Rig) -> PoolId {
        let mut options = PoolOptions::tagged("busy");
        options.source = Some(self.clone());
        rig.alloc.create_pool(0, options).unwrap()
    }
}

fn run(task: &Mutex<Option<Task>>) {
    let task = task.lock().unwrap().take();
    if let Some(task) = task {
        task();
    }
}

impl PoolSource for Busy {
    fn allocate(&self, device: DeviceId, bytes: u64, _stream: Stream) -> Option<u64> {
        run(&self.at_allocate);
        self.sim.on_device(device, || self.sim.malloc(bytes, 0)).unwrap().ok()
    }

    fn free(&self, device: DeviceId, address: u64, _bytes: u64) {
        run(&self.at_free);
        self.sim.on_device(device, || self.sim.free(address)).unwrap().unwrap();
    }

    fn try_free(&self, device: DeviceId, address: u64, bytes: u64) -> DriverResult<()> {
        let refuses = self.refuses.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        if refuses {
            return Err(DriverError {
                call: "free of the source",
                arguments: String::new(),
                code: REFUSED,
                name: "",
                message: None,
                missing_symbol: None,
            });
        }
        self.free(device, address, bytes);
        Ok(())
    }

    fn is_of_device(&self) -> bool {
        true
    }
}

/// A task whose answer is to be looked at afterwards.
fn answering<T: Send + 'static>(
    alloc: &Arc<DeviceAllocator>,
    run: impl FnOnce(&Arc<DeviceAllocator>) -> T + Send + 'static,
) -> (Task, Arc<Mutex<Option<T>>>) {
    let (weak, answer) = (Arc::downgrade(alloc), Arc::new(Mutex::new(None)));
    let inside = answer.clone();
    let task = move || {
        let got = run(&weak.upgrade().unwrap());
        *inside.lock().unwrap() = Some(got);
    };
    (Box::new(task), answer)
}

fn answer<T>(place: &Mutex<Option<T>>) -> T {
    place.lock().unwrap().take().expect("it was called")
}

#[test]
fn memory_that_a_source_could_not_give_back_stays_with_its_pool() {
    let rig = Rig::with("check_level:2", 256 * M);
    let source = Busy::new(&rig.sim);
    let pool = source.pool(&rig);
    let block = rig.alloc.allocate_in(pool, 40 * M, 0, STREAM).unwrap();
    rig.alloc.deallocate(block).unwrap();
    let held = || rig.alloc.pool_stats(pool).unwrap().reserved_bytes.all.current as u64;
    source.refuses.store(2, Relaxed);
    for _ in 0..2 {
        let refused = rig.alloc.empty_cache(None);
        assert!(matches!(&refused, Err(Error::Driver(error)) if error.code == REFUSED), "{refused:?}");
        assert_eq!((held(), rig.sim.physical_bytes(0) >= 40 * M), (40 * M, true));
        rig.alloc.check().unwrap();
    }
    let again = rig.alloc.allocate_in(pool, 40 * M, 0, STREAM).unwrap();
    assert_eq!(again, block, "it is served from what stayed");
    rig.alloc.deallocate(again).unwrap();
    rig.alloc.empty_cache(None).unwrap();
    assert_eq!((held(), rig.sim.physical_bytes(0)), (0, 0));
    rig.alloc.release_pool(pool).unwrap();
}

/// Before a request fails it waits for what others are about to bring. Nobody brings anything but the call that it is
/// made from.
#[test]
fn a_request_from_a_function_of_a_source_fails_like_any_other() {
    for conf in ["check_level:2", CLASSIC] {
        let rig = Rig::with(conf, 256 * M);
        let source = Busy::new(&rig.sim);
        let pool = source.pool(&rig);
        let full = rig.alloc.allocate(0, 160 * M, 0, STREAM).unwrap();
        let (task, at_allocate) = answering(&rig.alloc, |alloc| alloc.allocate(0, 200 * M, 0, STREAM));
        *source.at_allocate.lock().unwrap() = Some(task);
        let block = rig.alloc.allocate_in(pool, 4 * M, 0, STREAM).unwrap();
        ran_out(answer(&at_allocate));
        let (task, at_free) = answering(&rig.alloc, |alloc| alloc.allocate(0, 200 * M, 0, STREAM));
        *source.at_free.lock().unwrap() = Some(task);
        rig.alloc.deallocate(block).unwrap();
        rig.alloc.empty_cache(None).unwrap();
        ran_out(answer(&at_free));
        // What it may have: it fits beside the rest.
        let (task, served) = answering(&rig.alloc, |alloc| alloc.allocate(0, 8 * M, 0, STREAM));
        *source.at_allocate.lock().unwrap() = Some(task);
        let block = rig.alloc.allocate_in(pool, 4 * M, 0, STREAM).unwrap();
        let inner = answer(&served).unwrap();
        [block, inner, full].into_iter().for_each(|ptr| rig.alloc.deallocate(ptr).unwrap());
        rig.alloc.release_pool(pool).unwrap();
        rig.finish();
    }
}

/// Each would wait for the other one's call, which waits for its own.
#[test]
fn two_such_requests_do_not_wait_for_one_another() {
    for second_device in [0, 1] {
        let rig = Rig::with("check_level:0", 256 * M);
        let both = Arc::new(Barrier::new(2));
        let full: Vec<_> = (0..2).map(|id| rig.alloc.allocate(id, 160 * M, 0, STREAM).unwrap()).collect();
        std::thread::scope(|scope| {
            for (device, wanted) in [(0, second_device), (second_device, 0)] {
                let (rig, both) = (&rig, both.clone());
                scope.spawn(move || {
                    let source = Busy::new(&rig.sim);
                    let mut options = PoolOptions::tagged("busy");
                    options.source = Some(source.clone());
                    let pool = rig.alloc.create_pool(device, options).unwrap();
                    let (task, place) = answering(&rig.alloc, move |alloc| {
                        both.wait();
                        alloc.allocate(wanted, 200 * M, 0, STREAM)
                    });
                    *source.at_allocate.lock().unwrap() = Some(task);
                    let block = rig.alloc.allocate_in(pool, 4 * M, 0, STREAM).unwrap();
                    ran_out(answer(&place));
                    rig.alloc.deallocate(block).unwrap();
                });
            }
        });
        full.into_iter().for_each(|ptr| rig.alloc.deallocate(ptr).unwrap());
        rig.finish();
    }
}

/// Chunks that are given back in the same call are nobody's until it ends.
#[test]
fn what_a_function_of_a_source_cannot_wait_for_is_refused() {
    let rig = Rig::new();
    let source = Busy::new(&rig.sim);
    let (pool, sleeper) = (source.pool(&rig), rig.pool("sleeper"));
    let options = GrowableOptions::up_to(64 * M).beginning_with(32 * M);
    let buffer = GrowableBuffer::new(rig.alloc.clone(), 0, STREAM, options).unwrap();
    let buffer = Arc::new(Mutex::new(buffer));
    let kept = rig.alloc.allocate_in(sleeper, 4 * M, 0, STREAM).unwrap();
    let free = rig.alloc.allocate_in(sleeper, 4 * M, 0, STREAM).unwrap();
    let block = rig.alloc.allocate_in(pool, 4 * M, 0, STREAM).unwrap();
    buffer.lock().unwrap().resize(4 * M).unwrap();
    [free, block].into_iter().for_each(|ptr| rig.alloc.deallocate(ptr).unwrap());
    let (inside, sim) = (buffer.clone(), rig.sim.clone());
    let (task, place) = answering(&rig.alloc, move |alloc| {
        let grown = inside.lock().unwrap().resize(32 * M);
        let slept = alloc.sleep(None, &["sleeper"], SleepMode::Discard);
        sim.fail("aclrtMemSetAccess", 2, REFUSED, true).unwrap();
        let peered = alloc.set_peers(0, &[1]);
        sim.clear_faults();
        (grown, slept, peered)
    });
    *source.at_free.lock().unwrap() = Some(task);
    rig.alloc.empty_cache(None).unwrap();
    let (grown, slept, peered) = answer(&place);
    assert!(matches!(grown, Err(Error::State { .. })), "{grown:?}");
    assert!(matches!(slept, Err(Error::State { .. })), "{slept:?}");
    assert!(matches!(peered, Err(Error::Driver(_))), "{peered:?}");
    rig.alloc.check().unwrap();
    // Once the call is over, all of it is possible.
    buffer.lock().unwrap().resize(32 * M).unwrap();
    rig.alloc.sleep(None, &["sleeper"], SleepMode::Discard).unwrap();
    rig.alloc.set_peers(0, &[1]).unwrap();
    rig.alloc.wake(None, &["sleeper"]).unwrap();
    rig.alloc.deallocate(kept).unwrap();
    drop(Arc::into_inner(buffer));
    rig.alloc.release_pool(pool).unwrap();
    rig.finish();
}

/// Gives the same address to whoever asks.
struct Stubborn;

impl PoolSource for Stubborn {
    fn allocate(&self, _device: DeviceId, _bytes: u64, _stream: Stream) -> Option<u64> {
        Some(1 << 45)
    }

    fn free(&self, _device: DeviceId, _address: u64, _bytes: u64) {}
}

/// A block is found by its address, whatever device it is of.
#[test]
fn the_same_memory_is_not_taken_for_two_devices() {
    let rig = Rig::new();
    let pools = [0, 1].map(|device| {
        let mut options = PoolOptions::default();
        options.source = Some(Arc::new(Stubborn));
        rig.alloc.create_pool(device, options).unwrap()
    });
    let first = rig.alloc.allocate_in(pools[0], 4 * M, 0, STREAM).unwrap();
    let second = rig.alloc.allocate_in(pools[1], 4 * M, 0, STREAM);
    assert!(matches!(second, Err(Error::State { .. })), "{second:?}");
    rig.alloc.check().unwrap();
    rig.alloc.deallocate(first).unwrap();
    rig.alloc.empty_cache(None).unwrap();
    // Once it has gone back, the other may have it.
    let second = rig.alloc.allocate_in(pools[1], 4 * M, 0, STREAM).unwrap();
    assert_eq!((second, rig.alloc.block_info(second).unwrap().device), (first, 1));
    rig.alloc.deallocate(second).unwrap();
    rig.finish();
}

/// Gives out addresses of nobody, and calls the allocator when it is dropped.
struct Parting {
    next: Mutex<u64>,
    /// Bytes that were given and not taken back.
    out: Arc<Mutex<u64>>,
    last_words: Mutex<Option<Task>>,
}

impl PoolSource for Parting {
    fn allocate(&self, _device: DeviceId, bytes: u64, _stream: Stream) -> Option<u64> {
        let mut next = self.next.lock().unwrap();
        *self.out.lock().unwrap() += bytes;
        *next += bytes;
        Some(*next - bytes)
    }

    fn free(&self, _device: DeviceId, _address: u64, bytes: u64) {
        *self.out.lock().unwrap() -= bytes;
    }
}

impl Drop for Parting {
    fn drop(&mut self) {
        run(&self.last_words);
    }
}

/// A pool over a source that frees a block of its own at its end, and what is told then.
fn parting(rig: &Rig) -> (PoolId, Arc<Mutex<u64>>, Receiver<Result<()>>) {
    let (done, told) = channel();
    let (weak, own) = (rig.weak().1, rig.alloc.allocate(0, 30 * M, 0, STREAM).unwrap());
    let task = move || {
        // None where the allocator itself is at its end.
        if let Some(alloc) = weak.upgrade() {
            done.send(alloc.deallocate(own).and_then(|()| alloc.stats(0).map(drop))).unwrap();
        }
    };
    let out = Arc::default();
    let source = Parting {
        next: Mutex::new(1 << 45),
        out: Arc::clone(&out),
        last_words: Mutex::new(Some(Box::new(task))),
    };
    let mut options = PoolOptions::default();
    options.source = Some(Arc::new(source));
    (rig.alloc.create_pool(0, options).unwrap(), out, told)
}

/// A destructor of a source may call the allocator, whichever call its pool ends with.
#[test]
fn a_source_is_dropped_without_a_lock() {
    type Ending = fn(&DeviceAllocator, PoolId);
    let endings: [Ending; 5] = [
        |alloc, pool| alloc.release_pool(pool).unwrap(),
        |alloc, pool| {
            let block = alloc.allocate_in(pool, 5 * M, 0, STREAM).unwrap();
            alloc.release_pool(pool).unwrap();
            alloc.deallocate(block).unwrap();
            alloc.empty_cache(None).unwrap();
        },
        |alloc, pool| {
            let route = alloc.route(pool, RouteFilter::All).unwrap();
            alloc.release_pool(pool).unwrap();
            drop(route);
        },
        |alloc, pool| {
            let graph = alloc.capture(pool, RouteFilter::All).unwrap().finish();
            alloc.release_pool(pool).unwrap();
            drop(graph);
        },
        |alloc, pool| {
            alloc.allocate_in(pool, 5 * M, 0, STREAM).unwrap();
            alloc.release_pool(pool).unwrap();
            alloc.device_was_reset(0).unwrap();
        },
    ];
    for (at, ending) in endings.into_iter().enumerate() {
        let rig = Rig::new();
        let (pool, _, told) = parting(&rig);
        let alloc = rig.alloc.clone();
        let ended = std::thread::spawn(move || ending(&alloc, pool));
        // The time only bounds how long a test that fails takes.
        told.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("ending {at}")).unwrap();
        ended.join().unwrap();
        assert!(rig.alloc.pool_stats(pool).is_err());
        rig.alloc.check().unwrap();
    }
}

/// Nobody else can use it, and emptying the cache need not be thought of.
#[test]
fn idle_memory_of_a_source_goes_back_with_the_last_hold_on_its_pool() {
    let rig = Rig::new();
    let (pool, out, _told) = parting(&rig);
    let [idle, live] = [30 * M, 40 * M].map(|bytes| rig.alloc.allocate_in(pool, bytes, 0, STREAM).unwrap());
    rig.alloc.deallocate(idle).unwrap();
    let route = rig.alloc.route(pool, RouteFilter::All).unwrap();
    rig.alloc.release_pool(pool).unwrap();
    assert_eq!(*out.lock().unwrap(), 70 * M, "the route holds the pool");
    drop(route);
    assert_eq!(*out.lock().unwrap(), 40 * M);
    rig.alloc.deallocate(live).unwrap();
    rig.alloc.empty_cache(None).unwrap();
    assert_eq!(*out.lock().unwrap(), 0);
    assert!(rig.alloc.pool_stats(pool).is_err());
    rig.finish();
}

/// Also where that was a graph's that got its addresses through a route inside of its capture into another pool.
#[test]
fn idle_memory_of_a_source_goes_back_with_the_last_graph_of_another_pool() {
    for by_name in [false, true] {
        let rig = Rig::new();
        let (pool, out, _told) = parting(&rig);
        let graphs = rig.pool("graphs");
        let capture = || {
            let inside = rig.alloc.route(pool, RouteFilter::ThisThread).unwrap();
            rig.alloc.deallocate(rig.alloc.allocate(0, 6 * M, 0, STREAM).unwrap()).unwrap();
            drop(inside);
        };
        let held = match by_name {
            true => {
                rig.alloc.begin_capture(graphs, RouteFilter::ThisThread).unwrap();
                capture();
                rig.alloc.end_route(graphs).unwrap();
                None
            }
            false => {
                let begun = rig.alloc.capture(graphs, RouteFilter::ThisThread).unwrap();
                capture();
                Some(begun.finish())
            }
        };
        rig.alloc.release_pool(pool).unwrap();
        assert!(*out.lock().unwrap() >= 6 * M, "the graph has its address");
        if held.map(drop).is_none() {
            rig.alloc.release_graph(graphs).unwrap();
        }
        assert_eq!(*out.lock().unwrap(), 0, "by name: {by_name}");
        let gone = rig.alloc.pool_stats(pool);
        assert!(matches!(gone, Err(Error::Argument { name: "pool", .. })), "{gone:?}");
        rig.alloc.release_pool(graphs).unwrap();
        rig.finish();
    }
}

/// While a graph is captured nothing goes back; then it does.
#[test]
fn idle_memory_of_a_source_goes_back_when_a_capture_has_ended() {
    let rig = Rig::new();
    let (pool, out, _told) = parting(&rig);
    let graphs = rig.pool("graphs");
    rig.alloc.deallocate(rig.alloc.allocate_in(pool, 30 * M, 0, STREAM).unwrap()).unwrap();
    let captures = [(); 2].map(|()| rig.alloc.capture(graphs, RouteFilter::ThisThread).unwrap());
    rig.alloc.release_pool(pool).unwrap();
    let [first, second] = captures.map(|capture| {
        assert_eq!(*out.lock().unwrap(), 30 * M, "a graph is being captured");
        capture.finish()
    });
    assert_eq!(*out.lock().unwrap(), 0);
    assert!(rig.alloc.pool_stats(pool).is_err());
    drop((first, second));
    rig.alloc.release_pool(graphs).unwrap();
    rig.finish();
}

/// A source that has no more memory gets back first what its pool holds in vain.
/// https://github.com/pytorch/pytorch/issues/159674
#[test]
fn a_source_that_is_short_gets_idle_memory_of_its_pool_back() {
    let rig = Rig::with("check_level:2", 80 * M);
    let busy = Busy::new(&rig.sim);
    let pool = busy.pool(&rig);
    let first = rig.alloc.allocate_in(pool, 50 * M, 0, STREAM).unwrap();
    rig.alloc.deallocate(first).unwrap();
    let second = rig.alloc.allocate_in(pool, 70 * M, 0, STREAM).expect("the first has gone back");
    // Nobody has the pool any more when its last block comes back.
    rig.alloc.release_pool(pool).unwrap();
    rig.alloc.deallocate(second).unwrap();
    rig.alloc.empty_cache(None).unwrap();
    assert_eq!((rig.sim.count("aclrtFree"), rig.sim.physical_bytes(0)), (2, 0), "by its own function");
    rig.finish();
}

/// Memory of the program's own: so many bytes, for all pools that it is the source of.
struct Shared(Mutex<(u64, u64)>);

impl PoolSource for Shared {
    fn allocate(&self, _device: DeviceId, bytes: u64, _stream: Stream) -> Option<u64> {
        let mut state = self.0.lock().unwrap();
        state.0 = state.0.checked_sub(bytes)?;
        state.1 += 1 << 40;
        Some(state.1)
    }

    fn free(&self, _device: DeviceId, _address: u64, bytes: u64) {
        self.0.lock().unwrap().0 += bytes;
    }
}

/// What another pool of the same source holds in vain counts like that, also once a stream has passed it.
#[test]
fn a_source_that_is_short_gets_idle_memory_of_all_its_pools_back() {
    let rig = Rig::with("check_level:2", 80 * M);
    let user = rig.stream();
    let one: Arc<dyn PoolSource> = Arc::new(Shared(Mutex::new((60 * M, 1 << 44))));
    let another: Arc<dyn PoolSource> = Arc::new(Shared(Mutex::new((60 * M, 1 << 45))));
    let pools = [one.clone(), one, another].map(|source| {
        let mut options = PoolOptions::default();
        options.source = Some(source);
        rig.alloc.create_pool(0, options).unwrap()
    });
    let kept = rig.alloc.allocate_in(pools[2], 20 * M, 0, STREAM).unwrap();
    rig.alloc.deallocate(kept).unwrap();
    for stream in [STREAM, user] {
        let idle = rig.alloc.allocate_in(pools[0], 50 * M, 0, stream).unwrap();
        rig.gate.hold(user);
        rig.alloc.deallocate(idle).unwrap();
        let served =
            rig.alloc.allocate_in(pools[1], 40 * M, 0, STREAM).expect("the other pool's has gone back");
        rig.alloc.deallocate(served).unwrap();
    }
    let reserved = |pool| rig.alloc.pool_stats(pool).unwrap().reserved_bytes.all.current as u64;
    assert_eq!(pools.map(reserved), [0, 40 * M, 20 * M], "another source's is of no use");
    pools.into_iter().for_each(|pool| rig.alloc.release_pool(pool).unwrap());
    rig.finish();
}

/// Says why it gives nothing.
struct Refusing {
    code: Mutex<Option<i32>>,
    of_device: bool,
}

impl PoolSource for Refusing {
    fn allocate(&self, _device: DeviceId, _bytes: u64, _stream: Stream) -> Option<u64> {
        None
    }

    fn try_allocate(&self, _device: DeviceId, _bytes: u64, _stream: Stream) -> DriverResult<Option<u64>> {
        match *self.code.lock().unwrap() {
            None => Ok(None),
            Some(code) => Err(DriverError {
                call: "malloc of the source",
                arguments: String::new(),
                code,
                name: "",
                message: None,
                missing_symbol: None,
            }),
        }
    }

    fn free(&self, _device: DeviceId, _address: u64, _bytes: u64) {}

    fn is_of_device(&self) -> bool {
        self.of_device
    }
}

#[test]
fn what_a_source_says_of_its_refusal_is_kept() {
    let rig = Rig::new();
    let idle = rig.alloc.allocate(0, 4 * M, 0, STREAM).unwrap();
    rig.alloc.deallocate(idle).unwrap();
    let reserved = || rig.alloc.stats(0).unwrap().reserved_bytes.all.current;
    let before = reserved();
    for of_device in [false, true] {
        let source = Arc::new(Refusing { code: Mutex::new(Some(REFUSED)), of_device });
        let mut options = PoolOptions::tagged("refusing");
        options.source = Some(source.clone());
        let pool = rig.alloc.create_pool(0, options).unwrap();
        let answer = rig.alloc.allocate_in(pool, M, 0, STREAM);
        assert!(matches!(&answer, Err(Error::Driver(error)) if error.code == REFUSED), "{answer:?}");
        assert_eq!((reserved(), rig.alloc.stats(0).unwrap().num_ooms), (before, 0), "nothing was given back");
        // Without memory it is the device that has none where the memory is the device's, else the source.
        for (code, says_why) in [(Some(207_001), of_device), (None, false)] {
            *source.code.lock().unwrap() = code;
            let answer = rig.alloc.allocate_in(pool, M, 0, STREAM).unwrap_err().to_string();
            assert!(answer.contains("out of memory") && answer.contains("source") != says_why, "{answer}");
        }
        rig.alloc.reset_accumulated_stats(0).unwrap();
        rig.alloc.deallocate(rig.alloc.allocate(0, 4 * M, 0, STREAM).unwrap()).unwrap();
        rig.alloc.release_pool(pool).unwrap();
    }
    rig.alloc.check().unwrap();
}
