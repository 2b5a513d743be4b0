//! Two threads in one device, with one of them held up inside of a driver call.

mod common;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{
    Config, DeviceAlloc, DeviceAllocator, DevicePtr, Error, GrowableBuffer, GrowableOptions, PoolOptions,
    RouteFilter, SleepMode,
};
use ascend_sim::{BackingMode, CaptureMode, Location, Sim, SimConfig, Soc};
use common::M;
use common::gate::{GatedDriver, WAITED, WAITED_FOR_ALL};

const STREAM: Stream = Stream(0);

struct Rig {
    sim: Sim,
    gate: Arc<GatedDriver>,
    alloc: Arc<DeviceAllocator>,
}

/// One call of the driver that is held up until this is dropped.
struct HeldUp {
    reached: Receiver<()>,
    _go: Sender<()>,
}

impl HeldUp {
    /// Waits until a thread has come to the call.
    fn reached(&self) {
        // The time only bounds how long a test that fails takes.
        self.reached.recv_timeout(std::time::Duration::from_secs(60)).expect("a thread comes by");
    }
}

impl Rig {
    fn new(capacity: u64) -> Self {
        let backing = BackingMode::MetadataOnly;
        let sim = Sim::new(SimConfig {
            soc: Soc::Ascend950,
            devices: 2,
            capacity,
            backing,
            ..SimConfig::default()
        });
        sim.set_device(0).unwrap();
        let gate = Arc::new(GatedDriver::new(SimDriver::new(sim.clone())));
        let alloc = Arc::new(DeviceAllocator::new(Config::default(), gate.clone()).unwrap());
        Self { sim, gate, alloc }
    }

    /// Holds the first coming call of that name up.
    fn hold_up(&self, call: &'static str) -> HeldUp {
        let (at, reached) = channel();
        let (go, wait) = channel::<()>();
        let once = Mutex::new(Some((at, wait)));
        self.gate.watch(Some(Arc::new(move |name| {
            if name == call
                && let Some((at, wait)) = { once.lock().unwrap().take() }
            {
                at.send(()).expect("the test waits");
                let _dropped = wait.recv();
            }
        })));
        HeldUp { reached, _go: go }
    }

    fn requests(&self) -> u64 {
        self.alloc.stats(0).unwrap().ladder.requests
    }

    /// Waits until one more request has begun to climb.
    fn until_one_climbs(&self, before: u64) {
        while self.requests() == before {
            std::thread::yield_now();
        }
        // So that it comes to where it has to wait. A wait that is missing makes it end here.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// A buffer cannot grow elsewhere, so it lets the other thread finish that moves what was cut off it.
#[test]
fn a_buffer_that_grows_lets_who_moves_its_chunks_finish() {
    for captured in [false, true] {
        let rig = Rig::new(64 * M);
        let options = GrowableOptions::up_to(48 * M).beginning_with(40 * M);
        let mut buffer = GrowableBuffer::new(rig.alloc.clone(), 0, STREAM, options).unwrap();
        buffer.resize(4 * M).unwrap();
        let pool = rig.alloc.create_pool(0, PoolOptions::default()).unwrap();
        let held_up = rig.hold_up("aclrtUnmapMem");
        std::thread::scope(|scope| {
            let mover = scope.spawn(|| rig.alloc.allocate(0, 56 * M, 0, STREAM));
            held_up.reached();
            let capture = captured.then(|| rig.alloc.capture(pool, RouteFilter::Stream(Stream(7))).unwrap());
            let before = rig.requests();
            let grower = scope.spawn(|| buffer.resize(40 * M));
            rig.until_one_climbs(before);
            assert!(!grower.is_finished(), "it does not wait");
            drop(held_up);
            let block = mover.join().unwrap().expect("there are enough chunks");
            let refused = grower.join().unwrap();
            assert!(
                matches!(refused, Err(Error::OutOfMemory(_))),
                "all memory is the other's now: {refused:?}"
            );
            drop(capture);
            rig.alloc.deallocate(block).unwrap();
        });
        assert_eq!(buffer.bytes(), 4 * M);
        buffer.resize(40 * M).unwrap();
        rig.alloc.check().unwrap();
        drop(buffer);
        rig.alloc.empty_cache(None).unwrap();
        assert_eq!(rig.sim.physical_bytes(0), 0);
    }
}

/// Chunks that were mapped for the peers of a moment ago are granted to those of now.
#[test]
fn peers_that_are_set_while_a_chunk_is_mapped_get_it_too() {
    let rig = Rig::new(64 * M);
    rig.alloc.set_peers(0, &[]).unwrap();
    let held_up = rig.hold_up("aclrtMapMem");
    let block = std::thread::scope(|scope| {
        let mapper = scope.spawn(|| rig.alloc.allocate(0, 20 * M, 0, STREAM));
        held_up.reached();
        rig.alloc.set_peers(0, &[1]).unwrap();
        drop(held_up);
        mapper.join().unwrap().unwrap()
    });
    let granted = |ptr: DevicePtr| rig.sim.get_access(ptr.0 & !(2 * M - 1), Location::device(1)).unwrap();
    assert_eq!(granted(block), 3);
    assert_eq!(granted(DevicePtr(block.0 + 18 * M)), 3);
    rig.alloc.deallocate(block).unwrap();
    rig.alloc.check().unwrap();
}

/// What is refused then is tried again with the next call that goes to the driver.
#[test]
fn a_grant_that_is_refused_is_made_later() {
    let rig = Rig::new(64 * M);
    let held_up = rig.hold_up("aclrtMapMem");
    let block = std::thread::scope(|scope| {
        let mapper = scope.spawn(|| rig.alloc.allocate(0, 2 * M, 0, STREAM));
        held_up.reached();
        rig.alloc.set_peers(0, &[1]).unwrap();
        rig.sim.set_missing(&["aclrtMemSetAccess"]).unwrap();
        drop(held_up);
        mapper.join().unwrap().unwrap()
    });
    let granted = || rig.sim.get_access(block.0 & !(2 * M - 1), Location::device(1)).unwrap();
    assert_ne!(granted(), 3);
    rig.sim.set_missing(&[]).unwrap();
    let other = rig.alloc.allocate(0, 20 * M, 0, STREAM).unwrap();
    assert_eq!(granted(), 3);
    for ptr in [block, other] {
        rig.alloc.deallocate(ptr).unwrap();
    }
    rig.alloc.check().unwrap();
}

/// Only one thread puts a pool to sleep or wakes it.
#[test]
fn a_pool_on_its_way_is_left_to_who_began() {
    let rig = Rig::new(64 * M);
    let pool = rig.alloc.create_pool(0, PoolOptions::tagged("weights")).unwrap();
    let block = rig.alloc.allocate_in(pool, 8 * M, 0, STREAM).unwrap();
    let busy = |answer: Result<(), Error>| match answer {
        Err(Error::State { reason, .. }) => assert!(reason.contains("another thread"), "{reason}"),
        other => panic!("{other:?}"),
    };
    for call in ["aclrtUnmapMem", "aclrtMapMem"] {
        let held_up = rig.hold_up(call);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| match call {
                "aclrtUnmapMem" => rig.alloc.sleep(None, &["weights"], SleepMode::Discard).map(drop),
                _ => rig.alloc.wake(None, &["weights"]).map(drop),
            });
            held_up.reached();
            busy(rig.alloc.sleep(None, &["weights"], SleepMode::Discard).map(drop));
            busy(rig.alloc.wake(None, &["weights"]).map(drop));
            drop(held_up);
            first.join().unwrap().unwrap();
        });
    }
    rig.alloc.deallocate(block).unwrap();
    rig.alloc.check().unwrap();
}

/// A block that grows in place is in no map while memory is put behind it, which is no fault.
#[test]
fn the_heap_is_whole_while_a_block_grows() {
    let rig = Rig::new(64 * M);
    let block = rig.alloc.allocate(0, 3 * M, 0, STREAM).unwrap();
    let held_up = rig.hold_up("aclrtMapMem");
    std::thread::scope(|scope| {
        // SAFETY: the block is this test's.
        let grower = scope.spawn(|| unsafe { rig.alloc.grow(block, 9 * M) });
        held_up.reached();
        assert_eq!(rig.alloc.check(), Ok(()));
        drop(held_up);
        assert!(grower.join().unwrap().unwrap(), "there is room behind it");
    });
    assert_eq!(rig.alloc.check(), Ok(()));
    rig.alloc.deallocate(block).unwrap();
}

/// Nothing is given back during a capture, also where that begins while memory is being given back.
#[test]
fn no_reservation_is_released_once_a_capture_has_begun() {
    let rig = Rig::new(64 * M);
    let block = rig.alloc.allocate(0, 8 * M, 0, STREAM).unwrap();
    rig.alloc.deallocate(block).unwrap();
    let pool = rig.alloc.create_pool(0, PoolOptions::default()).unwrap();
    let held_up = rig.hold_up("aclrtFreePhysical");
    std::thread::scope(|scope| {
        let emptier = scope.spawn(|| rig.alloc.empty_cache(None));
        held_up.reached();
        let capture = rig.alloc.capture(pool, RouteFilter::Stream(Stream(7))).unwrap();
        drop(held_up);
        emptier.join().unwrap().unwrap();
        assert!(rig.alloc.stats(0).unwrap().reserved_address_space > 0, "released during a capture");
        drop(capture);
    });
    rig.alloc.empty_cache(None).unwrap();
    assert_eq!(rig.alloc.stats(0).unwrap().reserved_address_space, 0);
}

/// An event that another thread is about to record when a capture begins would be a part of the graph, and could never be
/// asked about again.
#[test]
fn no_event_of_another_thread_comes_into_a_capture() {
    let rig = Rig::new(64 * M);
    let stream = Stream(rig.sim.create_stream().unwrap());
    let pool = rig.alloc.create_pool(0, PoolOptions::default()).unwrap();
    let block = rig.alloc.allocate(0, 4 * M, 0, stream).unwrap();
    rig.alloc.deallocate(block).unwrap();
    rig.sim.set_logging(true);
    let held = rig.hold_up("aclrtRecordEvent");
    let (at, begun) = channel();
    std::thread::scope(|scope| {
        let emptying = scope.spawn(|| rig.alloc.empty_cache(None));
        held.reached();
        let capturing = scope.spawn(|| {
            rig.sim.set_device(0).unwrap();
            let capture = rig.alloc.capture(pool, RouteFilter::CapturedWith(stream)).unwrap();
            rig.sim.capture_begin(stream.0, CaptureMode::Relaxed).unwrap();
            at.send(()).unwrap();
            capture
        });
        // Time for a capture that waits for nobody.
        let _waits = begun.recv_timeout(std::time::Duration::from_millis(50));
        drop(held);
        emptying.join().unwrap().unwrap();
        drop(capturing.join().unwrap());
    });
    rig.sim.capture_end(stream.0).unwrap();
    let calls = rig.sim.take_log();
    let place = |name| calls.iter().position(|call| call.function == name).expect("it was called");
    assert!(place("aclrtRecordEvent") < place("aclmdlRICaptureBegin"), "{calls:#?}");
    rig.alloc.empty_cache(None).unwrap();
    assert_eq!(rig.alloc.stats(0).unwrap().reserved_bytes.all.current, 0);
}

/// What another thread is ending at the moment, by an event that it records or by waiting for the stream, is waited for too.
#[test]
fn emptying_waits_for_what_another_thread_is_about_to_end() {
    for call in ["aclrtRecordEvent", WAITED] {
        let rig = Rig::new(64 * M);
        let stream = Stream(rig.sim.create_stream().unwrap());
        let block = rig.alloc.allocate(0, 4 * M, 0, stream).unwrap();
        rig.alloc.deallocate(block).unwrap();
        if call == WAITED {
            rig.sim.fail("aclrtRecordEvent", 1, 507_899, true).unwrap();
        }
        let held = rig.hold_up(call);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| rig.alloc.empty_cache(None));
            held.reached();
            rig.alloc.empty_cache(None).unwrap();
            assert_eq!(rig.alloc.stats(0).unwrap().reserved_bytes.all.current, 0, "{call}");
            drop(held);
            other.join().unwrap().unwrap();
        });
        rig.alloc.check().unwrap();
    }
}

/// Two threads lack what a destroyed stream holds back: the second finds its epochs closed by the first, and waits as well.
#[test]
fn a_request_waits_for_the_device_that_another_thread_waits_for() {
    waits_as_well(WAITED_FOR_ALL, |rig, stream| rig.alloc.stream_destroyed(0, stream).unwrap());
}

/// The other thread may need this one to go on, so the stream is waited for, and not the thread.
#[test]
fn a_request_waits_for_a_stream_that_another_thread_waits_for() {
    waits_as_well(WAITED, |rig, _| rig.sim.fail("aclrtRecordEvent", 1, 507_899, true).unwrap());
}

/// Two threads lack what a stream holds back, of which no event tells after `prepare`: the second comes while the first waits.
fn waits_as_well(held_up: &'static str, prepare: impl FnOnce(&Rig, Stream)) {
    let rig = Rig::new(64 * M);
    let stream = Stream(rig.sim.create_stream().unwrap());
    let block = rig.alloc.allocate(0, 60 * M, 0, stream).unwrap();
    rig.alloc.deallocate(block).unwrap();
    prepare(&rig, stream);
    let held = rig.hold_up(held_up);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| rig.alloc.allocate(0, 20 * M, 0, STREAM));
        held.reached();
        let block = rig.alloc.allocate(0, 20 * M, 0, STREAM).unwrap();
        drop(held);
        rig.alloc.deallocate(other.join().unwrap().unwrap()).unwrap();
        rig.alloc.deallocate(block).unwrap();
    });
    assert_eq!(rig.alloc.stats(0).unwrap().num_ooms, 0);
    rig.alloc.check().unwrap();
}
