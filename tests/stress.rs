//! Many threads, streams and devices at once, for as long as it is told:
//!
//! ```text
//! ASCEND_ALLOC_STRESS_SECONDS=300 cargo test --release --test stress -- --nocapture
//! ```
//!
//! Rounds follow one another, each on a machine and an allocator of its own, until so many seconds have passed;
//! without the variable there are [`ROUNDS`]. In a round threads allocate on all streams of three small devices,
//! use blocks on several streams, let others free them, grow buffers, use pools that fall asleep meanwhile, and
//! make and destroy streams; others read statistics, snapshots and the history, give memory back, and run the heap
//! checker. At the end of each round everything is given back, and heap checker, use checker and the machine's
//! counts must find nothing. Requests may fail for lack of memory, and in a pool that sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::history::HistoryOptions;
use ascend_alloc::{
    Config, DeviceAllocator, DevicePtr, EmptyOptions, Error, GrowableBuffer, GrowableOptions, PoolId,
    PoolOptions, SleepMode,
};
use ascend_sim::{BackingMode, ExecMode, Sim, SimConfig, Task};
// Of these a race checker sees all, also what happens where two threads meet.
use parking_lot::{Mutex, RwLock};

const M: u64 = 1 << 20;
const DEVICES: u32 = 3;
/// Streams of a device, the default one among them.
const STREAMS: usize = 4;
const THREADS: u64 = 8;
/// Operations of a thread in a round.
const OPERATIONS: u32 = 250;
/// Rounds when nothing is said: the kinds of machine and allocator there are.
const ROUNDS: u64 = 4;

/// A live block and the stream it is for.
#[derive(Clone, Copy)]
struct Held {
    ptr: DevicePtr,
    bytes: u64,
    device: u32,
    stream: Stream,
}

struct Bed {
    sim: Sim,
    alloc: Arc<DeviceAllocator>,
    /// By device.
    streams: Vec<Vec<Stream>>,
    pools: Vec<PoolId>,
    /// Blocks that whoever wants frees.
    given: Mutex<Vec<Held>>,
    /// Held while pools sleep, and by those who queue work on their blocks.
    asleep: RwLock<()>,
    /// The threads that do a number of operations have done them.
    over: AtomicBool,
    done: AtomicU64,
    failed: AtomicU64,
}

fn bed(round: u64) -> Bed {
    let exec_mode =
        if round.is_multiple_of(2) { ExecMode::Threads } else { ExecMode::Deterministic { seed: round } };
    let sim = Sim::new(SimConfig {
        devices: DEVICES,
        capacity: 192 * M,
        backing: BackingMode::MetadataOnly,
        exec_mode,
        lag: round % 4,
        ..SimConfig::default()
    });
    sim.set_device(0).expect("there is a device");
    let conf = ["", "headroom:0.5", "expandable_segments:False", "front_cache:False"][(round % 4) as usize];
    let config = Config::parse(&format!("check_level:0{}{conf}", if conf.is_empty() { "" } else { "," }));
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let alloc = Arc::new(DeviceAllocator::new(config.expect("settings"), driver).expect("an allocator"));
    alloc.start_history(&HistoryOptions { entries: 1000, uses: true, stacks: false });
    let of = |device| {
        let made = (1..STREAMS).map(|_| sim.executor().create_stream(device).expect("a stream"));
        core::iter::once(0).chain(made).map(Stream).collect()
    };
    let streams = (0..DEVICES).map(of).collect();
    let pools = (0..DEVICES)
        .map(|device| alloc.create_pool(device, PoolOptions::tagged("sleeps")).expect("the device exists"));
    let pools = pools.collect();
    Bed {
        sim,
        alloc,
        streams,
        pools,
        given: Mutex::default(),
        asleep: RwLock::default(),
        over: AtomicBool::new(false),
        done: AtomicU64::new(0),
        failed: AtomicU64::new(0),
    }
}

/// What a request answered, if it is memory; it may also lack it, or sleep.
fn granted<T>(bed: &Bed, answer: Result<T, Error>) -> Option<T> {
    match answer {
        Ok(got) => Some(got),
        Err(Error::OutOfMemory(_) | Error::State { .. }) => {
            bed.failed.fetch_add(1, Relaxed);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

impl Bed {
    fn write(&self, device: u32, stream: Stream, (ptr, bytes): (DevicePtr, u64)) {
        let task = Task::new("write").writes(ptr.0, bytes, 1);
        self.sim.executor().submit(device, stream.0, task).expect("queued");
    }

    /// Lets a stream wait on the device for what another has queued.
    fn order(&self, device: u32, first: Stream, then: Stream) {
        let exec = self.sim.executor();
        let event = exec.create_event(device, 1, true).expect("an event");
        exec.record_event(device, event, first.0).expect("recorded");
        exec.stream_wait_event(device, then.0, event).expect("waits");
        exec.destroy_event(event).expect("destroyed");
    }

    /// Another stream uses a block.
    fn share(&self, held: Held, other: Stream) {
        if other != held.stream {
            self.order(held.device, held.stream, other);
            self.write(held.device, other, (held.ptr, held.bytes));
            self.alloc.record_stream(held.ptr, other).expect("live");
        }
    }

    fn free(&self, held: Held) {
        self.alloc.deallocate(held.ptr).expect("live");
    }
}

/// A thread that allocates.
struct Worker<'a> {
    bed: &'a Bed,
    random: fastrand::Rng,
    live: Vec<Held>,
    buffer: Option<(GrowableBuffer, u32, Stream)>,
}

impl Worker<'_> {
    fn place(&mut self) -> (u32, Stream) {
        let device = self.random.u32(0..DEVICES);
        (device, self.bed.streams[device as usize][self.random.usize(0..STREAMS)])
    }

    fn bytes(&mut self) -> u64 {
        match self.random.u8(0..4) {
            0 => 512 * self.random.u64(1..8),
            1 => self.random.u64(1..M),
            2 => [3 * M, 5 * M][self.random.usize(0..2)],
            _ => self.random.u64(M..12 * M),
        }
    }

    fn allocate(&mut self) {
        let ((device, stream), bytes) = (self.place(), self.bytes());
        if let Some(ptr) = granted(self.bed, self.bed.alloc.allocate(device, bytes, 0, stream)) {
            self.bed.write(device, stream, (ptr, bytes));
            self.live.push(Held { ptr, bytes, device, stream });
        }
    }

    /// A block of a pool that may fall asleep: used while it is awake, freed at any time.
    fn in_pool(&mut self) {
        let (bed, (device, stream), bytes) = (self.bed, self.place(), self.bytes());
        let pool = bed.pools[device as usize];
        let Some(ptr) = granted(bed, bed.alloc.allocate_in(pool, bytes, 0, stream)) else { return };
        {
            let _awake = bed.asleep.read();
            if !bed.alloc.is_asleep(pool).expect("the pool lives") {
                bed.write(device, stream, (ptr, bytes));
            }
        }
        if self.random.bool() {
            std::thread::yield_now();
        }
        bed.free(Held { ptr, bytes, device, stream });
    }

    fn grow(&mut self) {
        let bed = self.bed;
        if self.buffer.is_none() {
            let (device, stream) = self.place();
            let options = GrowableOptions::up_to(24 * M).beginning_with(self.random.u64(1..M));
            match GrowableBuffer::new(bed.alloc.clone(), device, stream, options) {
                Ok(buffer) => self.buffer = Some((buffer, device, stream)),
                // Without virtual memory there are no growing buffers.
                Err(Error::OutOfMemory(_) | Error::State { .. } | Error::Size { .. }) => return,
                Err(error) => panic!("{error}"),
            }
        }
        let Some((buffer, device, stream)) = &mut self.buffer else { return };
        let bytes = self.random.u64(0..24 * M);
        if granted(bed, buffer.resize(bytes)).is_some() && bytes > 0 {
            bed.write(*device, *stream, (buffer.ptr(), bytes));
        }
        if self.random.u8(0..8) == 0 {
            self.buffer = None;
        }
    }

    /// A stream that comes, is used, and goes.
    fn brief_stream(&mut self) {
        let (bed, (device, home)) = (self.bed, self.place());
        let stream = Stream(bed.sim.executor().create_stream(device).expect("a stream"));
        if let Some(ptr) = granted(bed, bed.alloc.allocate(device, 3 * M, 0, home)) {
            let held = Held { ptr, bytes: 3 * M, device, stream: home };
            bed.write(device, home, (ptr, 3 * M));
            bed.share(held, stream);
            bed.free(held);
        }
        if let Some(ptr) = granted(bed, bed.alloc.allocate(device, 700, 0, stream)) {
            bed.write(device, stream, (ptr, 700));
            bed.alloc.deallocate(ptr).expect("live");
        }
        bed.alloc.stream_destroyed(device, stream).expect("told");
        bed.sim.executor().destroy_stream(device, stream.0, false).expect("destroyed");
    }

    fn step(&mut self) {
        let bed = self.bed;
        match self.random.u8(0..40) {
            0..14 if self.live.len() < 10 => self.allocate(),
            14..18 => {
                if let Some(&held) = self.live.last() {
                    bed.share(held, bed.streams[held.device as usize][self.random.usize(0..STREAMS)]);
                }
            }
            0..28 => {
                if !self.live.is_empty() {
                    bed.free(self.live.swap_remove(self.random.usize(0..self.live.len())));
                }
            }
            28..31 => bed.given.lock().extend(self.live.pop()),
            31..34 => {
                let given = bed.given.lock().pop();
                given.into_iter().for_each(|held| bed.free(held));
            }
            34..36 => self.in_pool(),
            36 | 37 => self.grow(),
            38 => self.brief_stream(),
            _ => bed.sim.executor().tick(1),
        }
        bed.done.fetch_add(1, Relaxed);
    }
}

fn work(bed: &Bed, seed: u64) {
    let mut worker = Worker { bed, random: fastrand::Rng::with_seed(seed), live: Vec::new(), buffer: None };
    for _ in 0..OPERATIONS {
        worker.step();
    }
    worker.live.drain(..).for_each(|held| bed.free(held));
}

/// Puts pools to sleep and wakes them. Whoever queues work on their blocks waits meanwhile; whoever allocates or
/// frees does not.
fn lull(bed: &Bed) {
    let mut round = 0u32;
    while !bed.over.load(Relaxed) {
        round += 1;
        let mode = if round.is_multiple_of(2) { SleepMode::Offload } else { SleepMode::Discard };
        let held = bed.asleep.write();
        let slept = granted(bed, bed.alloc.sleep(None, &["sleeps"], mode));
        std::thread::yield_now();
        // What cannot wake for lack of memory stays asleep until others have freed some.
        let woken = granted(bed, bed.alloc.wake(None, &["sleeps"]));
        drop((held, slept, woken));
        std::thread::yield_now();
    }
}

/// Looks at everything, and gives memory back.
fn look(bed: &Bed, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    while !bed.over.load(Relaxed) {
        let device = random.u32(0..DEVICES);
        match random.u8(0..8) {
            0 => assert_eq!(bed.alloc.check(), Ok(())),
            1 => {
                let stats = bed.alloc.stats(device).expect("the device exists");
                for stat in
                    [stats.allocated_bytes, stats.active_bytes, stats.reserved_bytes].map(|stat| stat.all)
                {
                    assert!(0 <= stat.current && stat.current <= stat.peak, "{stat:?}");
                }
            }
            2 => _ = bed.alloc.full_snapshot(true),
            3 => _ = bed.alloc.drain_history(),
            4 => _ = bed.alloc.trim(device, 32 * M).map_err(|error| panic!("{error}")),
            5 => granted(bed, bed.alloc.empty_cache(Some(device))).unwrap_or(()),
            6 => bed.alloc.reset_peak_stats(device).expect("the device exists"),
            _ => std::thread::sleep(Duration::from_micros(200)),
        }
    }
}

fn round(number: u64) -> (u64, u64) {
    let bed = bed(number);
    std::thread::scope(|scope| {
        let bed = &bed;
        let workers: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || work(bed, number * 100 + thread))).collect();
        // Joined one by one: the end of a scope is in the standard library, where ThreadSanitizer does not see it.
        let others = [
            scope.spawn(move || lull(bed)),
            scope.spawn(move || look(bed, number * 100 + 50)),
            scope.spawn(move || look(bed, number * 100 + 51)),
        ];
        let mut ended: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        bed.over.store(true, Relaxed);
        ended.extend(others.map(std::thread::ScopedJoinHandle::join));
        assert!(ended.iter().all(Result::is_ok), "a thread has panicked");
    });
    let counts = (bed.done.load(Relaxed), bed.failed.load(Relaxed));
    close(bed);
    counts
}

/// Everything is given back, and nothing is left.
fn close(bed: Bed) {
    for held in bed.given.lock().drain(..) {
        bed.free(held);
    }
    bed.alloc.wake(None, &["sleeps"]).expect("there is memory now");
    bed.pools.iter().for_each(|&pool| bed.alloc.release_pool(pool).expect("held"));
    assert_eq!(bed.alloc.check(), Ok(()));
    let all = EmptyOptions { wait: true, ..EmptyOptions::default() };
    bed.alloc.empty_cache_with(None, &all).expect("emptied");
    for device in 0..DEVICES {
        let stats = bed.alloc.stats(device).expect("the device exists");
        let left = [stats.allocated_bytes, stats.active_bytes, stats.requested_bytes, stats.reserved_bytes];
        assert_eq!(left.map(|stat| stat.all.current), [0; 4], "device {device}");
        assert_eq!(stats.allocation.all.allocated, stats.allocation.all.freed, "device {device}");
    }
    let Bed { sim, alloc, .. } = bed;
    assert!(Arc::into_inner(alloc).is_some(), "somebody holds the allocator");
    assert!(sim.findings().is_empty(), "{:#?}", sim.findings());
    assert_eq!((sim.mapping_count(), sim.reserved_bytes()), (0, 0));
    assert!((0..DEVICES).all(|device| sim.physical_bytes(device) == 0));
    assert_eq!(sim.count("aclrtMallocHost"), sim.count("aclrtFreeHost"));
}

#[test]
fn many_threads_streams_and_devices() {
    let seconds = std::env::var("ASCEND_ALLOC_STRESS_SECONDS").ok();
    let seconds: Option<u64> =
        seconds.map(|text| text.parse().expect("ASCEND_ALLOC_STRESS_SECONDS is a number of seconds"));
    let begun = Instant::now();
    let goes_on = |rounds: u64| match seconds {
        None => rounds < ROUNDS,
        Some(seconds) => begun.elapsed() < Duration::from_secs(seconds),
    };
    let (mut rounds, mut done, mut failed) = (0, 0, 0);
    while goes_on(rounds) {
        let (more, refused) = round(rounds);
        (rounds, done, failed) = (rounds + 1, done + more, failed + refused);
    }
    println!(
        "{rounds} rounds, {done} operations of {THREADS} threads on {DEVICES} devices, {failed} requests refused"
    );
    assert_eq!(done, rounds * THREADS * u64::from(OPERATIONS));
    assert!(seconds.is_some() || failed < done, "nothing was granted");
}
