//! Random programs with page-locked memory on several streams and threads, and every call of the driver failing once.

use std::collections::BTreeMap;
use std::sync::Arc;

use ascend_alloc::driver::{Driver, HostCopy, RegisterKind, SimDriver, Stream};
use ascend_alloc::host::{HostPtr, HostRegistry, PageMemory, PinnedAllocator, PinnedForm, PinnedOptions};
use ascend_alloc::{Error, Result};
use ascend_sim::exec::HostOp;
use ascend_sim::{BackingMode, ExecMode, Sim, SimConfig};
use parking_lot::Mutex;

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;
const MAPPED: RegisterKind = RegisterKind { pinned: true, mapped: true };

/// A live buffer of the program.
#[derive(Clone, Copy)]
struct Live {
    ptr: HostPtr,
    bytes: u64,
    /// The stream whose work may use it still.
    used: Option<Stream>,
}

/// One thread's part of a program.
struct Program {
    sim: Sim,
    driver: Arc<SimDriver>,
    pinned: Arc<PinnedAllocator>,
    registry: Arc<HostRegistry>,
    /// All live ranges of all threads, to see overlaps.
    ranges: Arc<Mutex<BTreeMap<u64, u64>>>,
    streams: Vec<Stream>,
    device_memory: u64,
    random: fastrand::Rng,
    live: Vec<Live>,
    stamp: u8,
}

impl Program {
    fn step(&mut self) {
        match self.random.u32(0..100) {
            0..40 => self.allocate(),
            40..70 => self.copy(),
            70..92 => self.free(),
            92..94 => self.register(),
            94..96 => self.pinned.process_events().expect("looked"),
            96 => _ = self.pinned.trim(32 * M).expect("trimmed"),
            97 => _ = self.pinned.empty_cache().expect("emptied"),
            _ => {
                let stream = self.streams[self.random.usize(0..self.streams.len())];
                self.sim.executor().run_stream(0, stream.0).expect("a stream");
            }
        }
    }

    fn allocate(&mut self) {
        let bytes = if self.random.bool() { self.random.u64(1..64 * K) } else { self.random.u64(1..6 * M) };
        let align = [0, 64, 4096][self.random.usize(0..3)];
        let ptr = self.pinned.allocate(bytes, align).expect("memory");
        assert!(ptr.address().is_multiple_of(align.max(64)));
        let mut ranges = self.ranges.lock();
        let before = ranges.range(..ptr.address() + bytes).next_back();
        assert!(before.is_none_or(|(&base, &len)| base + len <= ptr.address()), "two live blocks overlap");
        ranges.insert(ptr.address(), bytes);
        drop(ranges);
        // A program fills a fresh buffer at once: no copy may still use it.
        self.sim.touch(HostOp::Write, ptr.address(), bytes);
        self.stamp = self.stamp.wrapping_add(1);
        // SAFETY: the block is live and this thread's.
        unsafe { ptr.as_ptr().write_bytes(self.stamp, bytes.min(64) as usize) };
        self.live.push(Live { ptr, bytes, used: None });
    }

    fn copy(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let at = self.random.usize(0..self.live.len());
        let stream = self.streams[self.random.usize(0..self.streams.len())];
        let live = &mut self.live[at];
        if live.used.is_some_and(|used| used != stream) {
            // Two streams with one buffer would need an order of their own.
            return;
        }
        live.used = Some(stream);
        // Each stream has its own place on the device.
        let place = self.streams.iter().position(|&known| known == stream).unwrap() as u64 * 8 * M;
        let to_host = self.random.bool();
        let copy = HostCopy {
            host: live.ptr.address(),
            device: self.device_memory + place,
            bytes: live.bytes,
            to_host,
        };
        // SAFETY: the block is live; once freed it is not reused before the stream has passed.
        unsafe { self.driver.copy_async(0, copy, stream) }.expect("queued");
        self.pinned.record_use(live.ptr, 0, stream).expect("recorded");
    }

    fn free(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let live = self.live.swap_remove(self.random.usize(0..self.live.len()));
        self.ranges.lock().remove(&live.ptr.address());
        self.pinned.deallocate(live.ptr).expect("freed");
    }

    fn register(&mut self) {
        let memory = PageMemory::zeroed(self.random.usize(1..200_000)).expect("memory");
        let guard = self.registry.register(memory, 0, MAPPED).expect("registered");
        let stream = self.streams[0];
        let (start, bytes) = guard.range();
        let copy =
            HostCopy { host: start, device: self.device_memory, bytes: bytes.min(8 * M), to_host: false };
        // SAFETY: the guard keeps the memory until the stream has been waited for.
        unsafe { self.driver.copy_async(0, copy, stream) }.expect("queued");
        guard.record_use(0, stream);
        drop(guard);
    }

    fn end(&mut self) {
        while !self.live.is_empty() {
            self.free();
        }
    }
}

/// Runs a program; how many findings the use checker has.
fn run(seed: u64, threads: usize, options: PinnedOptions) -> usize {
    let exec_mode = ExecMode::Deterministic { seed };
    let backing = BackingMode::Mapped;
    let host_capacity = 2 << 30;
    let sim =
        Sim::new(SimConfig { host_capacity, lag: seed % 7, exec_mode, backing, ..SimConfig::default() });
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let ordered = options.stream_order;
    let pinned = Arc::new(PinnedAllocator::new(options, driver.clone()).expect("an allocator"));
    let registry = HostRegistry::new(driver.clone());
    let ranges = Arc::new(Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for thread in 0..threads as u64 {
            let (sim, driver, pinned) = (sim.clone(), driver.clone(), pinned.clone());
            let (registry, ranges) = (registry.clone(), ranges.clone());
            scope.spawn(move || {
                sim.set_device(0).expect("a device");
                let device_memory = sim.malloc(32 * M, 0).expect("memory");
                let streams = (0..3).map(|_| Stream(sim.create_stream().expect("a stream"))).collect();
                let random = fastrand::Rng::with_seed(seed * 100 + thread);
                let (live, stamp) = (Vec::new(), 0);
                let mut program = Program {
                    sim,
                    driver,
                    pinned,
                    registry,
                    ranges,
                    streams,
                    device_memory,
                    random,
                    live,
                    stamp,
                };
                for _ in 0..400 {
                    program.step();
                }
                program.end();
            });
        }
    });
    pinned.check().expect("a sound heap");
    let findings = sim.take_findings().len();
    if ordered {
        pinned.empty_cache_waiting().expect("emptied");
        assert_eq!(pinned.stats().active_bytes.current, 0);
        assert_eq!(pinned.stats().lost, 0);
        drop(pinned);
        let (free, total) = sim.host_memory();
        assert_eq!(free, total, "seed {seed}");
    }
    findings
}

#[test]
fn no_program_sees_memory_that_work_still_uses() {
    for seed in 0..12 {
        let form = if seed % 2 == 0 { PinnedForm::Regions } else { PinnedForm::Virtual };
        let options = PinnedOptions {
            form,
            registered: seed % 4 == 0,
            background: seed % 3 == 0,
            max_cached: (seed % 5 == 0).then_some(16 * M),
            // Between two calls of one thread the heap is at rest; with several it is checked at the end.
            check_level: if seed % 3 == 1 { 2 } else { 0 },
            ..PinnedOptions::default()
        };
        assert_eq!(run(seed, 1 + (seed as usize + 2) % 3, options), 0, "seed {seed}");
    }
}

#[test]
fn without_the_order_rule_the_checker_finds_the_reuse() {
    let found: usize = (0..4)
        .map(|seed| run(seed, 1, PinnedOptions { stream_order: false, ..PinnedOptions::default() }))
        .sum();
    assert!(found > 0);
}

/// Every call that host memory makes.
const CALLS: [&str; 16] = [
    "aclrtMallocHost",
    "aclrtMallocHostWithCfg",
    "aclrtFreeHost",
    "aclrtFreeHostWithDevSync",
    "aclrtHostRegisterV2",
    "aclrtHostUnregister",
    "aclrtHostGetDevicePointer",
    "aclrtMallocPhysical",
    "aclrtFreePhysical",
    "aclrtReserveMemAddress",
    "aclrtReleaseMemAddress",
    "aclrtMapMem",
    "aclrtUnmapMem",
    "aclrtCreateEventExWithFlag",
    "aclrtRecordEvent",
    "aclrtQueryEventStatus",
];

/// A small program; the first error it meets.
fn scenario(
    sim: &Sim,
    driver: &SimDriver,
    pinned: &PinnedAllocator,
    memory: u64,
    stream: Stream,
) -> Result<()> {
    let mut failed = Ok(());
    for round in 0..2 {
        let mut live = Vec::new();
        for bytes in [4 * K, M + M / 2, 10 * M + 4096 * round] {
            match pinned.allocate(bytes, 0) {
                Ok(ptr) => live.push(ptr),
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        for ptr in &live {
            let copy = HostCopy { host: ptr.address(), device: memory, bytes: 512, to_host: false };
            // SAFETY: the block is live, and waits for the stream once it is freed.
            unsafe { driver.copy_async(0, copy, stream) }.expect("queued");
            pinned.record_use(*ptr, 0, stream).expect("recorded");
        }
        for ptr in live {
            pinned.deallocate(ptr).expect("a free never fails");
        }
        sim.executor().run_stream(0, stream.0).expect("a stream");
        failed = failed.and(pinned.process_events()).and(pinned.empty_cache().map(|_| ()));
    }
    failed
}

#[test]
fn every_call_may_fail_once() {
    let forms = [
        PinnedOptions::default(),
        PinnedOptions { registered: true, ..PinnedOptions::default() },
        PinnedOptions { common_addresses: true, ..PinnedOptions::default() },
        PinnedOptions { form: PinnedForm::Virtual, ..PinnedOptions::default() },
        PinnedOptions { free_order: ascend_alloc::host::FreeOrder::DeviceSync, ..PinnedOptions::default() },
    ];
    let (mut played, mut errors) = (0, 0);
    for options in forms {
        for call in CALLS {
            for (k, code) in [(1, 207_001), (1, 507_899), (2, 107_002), (4, 507_899)] {
                let backing = match options.form {
                    PinnedForm::Virtual => BackingMode::Mapped,
                    PinnedForm::Regions => BackingMode::MetadataOnly,
                };
                let (capacity, host_capacity) = (64 * M, 256 * M);
                let config =
                    SimConfig { capacity, host_capacity, lag: u64::MAX, backing, ..SimConfig::default() };
                let sim = Sim::new(config);
                sim.set_device(0).unwrap();
                let driver = Arc::new(SimDriver::new(sim.clone()));
                let memory = sim.malloc(M, 0).unwrap();
                let stream = Stream(sim.create_stream().unwrap());
                let options = options.clone();
                let pinned = PinnedAllocator::new(options, driver.clone()).unwrap();
                sim.fail(call, k, code, false).unwrap();
                let first = scenario(&sim, &driver, &pinned, memory, stream);
                sim.clear_faults();
                played += 1;
                errors += usize::from(first.is_err());
                assert!(
                    matches!(first, Ok(()) | Err(Error::Driver(_) | Error::OutOfMemory(_))),
                    "{call} {k} {code}: {first:?}"
                );
                scenario(&sim, &driver, &pinned, memory, stream).expect("without a fault all is well");
                pinned.empty_cache_waiting().unwrap();
                pinned.check().unwrap();
                assert_eq!(pinned.stats().allocated_bytes.current, 0, "{call} {k} {code}");
                drop(pinned);
                let (free, total) = sim.host_memory();
                assert_eq!(free, total, "{call} {k} {code}");
                assert_eq!(sim.reserved_bytes(), 0, "{call} {k} {code}");
                let left: Vec<_> = sim.leaks().into_iter().filter(|leak| leak.contains("regist")).collect();
                assert!(left.is_empty(), "{call} {k} {code}: {left:?}");
                assert!(sim.findings().is_empty(), "{call} {k} {code}: {:?}", sim.findings());
            }
        }
    }
    println!("{played} runs, {errors} with an error");
    assert!(errors > 20, "the faults are met");
}
