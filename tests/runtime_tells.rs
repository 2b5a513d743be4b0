//! Ends of streams and devices that the runtime tells of by itself, on the simulator's library and on a stand-in.

mod stand_ins;

use core::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};

use ascend_alloc::acl::{Acl, Search};
use ascend_alloc::driver::{AclDriver, Driver, RegisterKind, Stream};
use ascend_alloc::error::PointerKind;
use ascend_alloc::host::{HostRegistry, PinnedAllocator, PinnedBuffer, PinnedOptions};
use ascend_alloc::{Config, DeviceAllocator, Error};
use stand_ins::{FULL, StandIn};

const M: u64 = 1 << 20;
/// The library is one for the whole process, so one test at a time uses it.
static TURN: Mutex<()> = Mutex::new(());

struct Rig {
    acl: Acl,
    file: std::path::PathBuf,
    alloc: DeviceAllocator,
    _turn: MutexGuard<'static, ()>,
}

fn rig() -> Rig {
    let turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let file = std::env::current_exe().unwrap().with_file_name("libascendcl.so");
    // SAFETY: the simulator's library behaves like ACL's.
    let acl = unsafe { Acl::load(&Search { library: Some(file.clone()), home: None }) }.unwrap();
    let started = acl.init(None);
    assert!(started.as_ref().err().is_none_or(|error| error.code == 100_002), "{started:?}");
    acl.set_device(0).unwrap();
    // SAFETY: the allocator passes only what it was given.
    let driver = Arc::new(unsafe { AclDriver::attach(acl.clone()) });
    let alloc = DeviceAllocator::new(Config::parse("check_level:3").unwrap(), driver).unwrap();
    Rig { acl, file, alloc, _turn: turn }
}

impl Rig {
    fn stream(&self) -> Stream {
        Stream(self.acl.create_default_stream().unwrap().expose_provenance() as u64)
    }

    fn destroy(&self, stream: Stream) {
        // SAFETY: the stream is there, and nobody uses it any more.
        unsafe { self.acl.destroy_stream(std::ptr::with_exposed_provenance_mut(stream.0 as usize)) }.unwrap();
    }

    fn reset_by_force(&self) {
        // SAFETY: the library is loaded already; the function takes a number and answers one.
        unsafe {
            let library = libloading::os::unix::Library::new(&self.file).unwrap();
            let reset: unsafe extern "C" fn(i32) -> i32 = *library.get(b"aclrtResetDeviceForce\0").unwrap();
            assert_eq!(reset(0), 0);
        }
    }

    /// How often a stream was asked whether it is captured, or an event was recorded on it.
    fn asked(&self) -> u64 {
        self.count(&["aclmdlRICaptureGetInfo", "aclrtRecordEvent"])
    }

    /// How often these calls were made of the library.
    fn count(&self, calls: &[&str]) -> u64 {
        type Counters = unsafe extern "C" fn(*mut u8, usize) -> i32;
        let mut text = vec![0_u8; 1 << 16];
        // SAFETY: the library is loaded already; the function writes as many bytes as it is given at most.
        unsafe {
            let library = libloading::os::unix::Library::new(&self.file).unwrap();
            let counters: Counters = *library.get(b"acl_sim_counters_json\0").unwrap();
            assert!(counters(text.as_mut_ptr(), text.len()) < text.len() as i32);
        }
        let end = text.iter().position(|&byte| byte == 0).unwrap();
        let counts: serde_json::Value = serde_json::from_slice(&text[..end]).unwrap();
        calls.iter().map(|&call| counts[call].as_u64().unwrap_or(0)).sum()
    }

    /// Holds a stream up until what is returned is dropped.
    fn hold_up(&self, stream: Stream) -> Sender<()> {
        type HostFunction = unsafe extern "C" fn(*mut c_void);
        type Launch = unsafe extern "C" fn(*mut c_void, HostFunction, *mut c_void) -> i32;
        unsafe extern "C" fn wait(end: *mut c_void) {
            // SAFETY: the box was given up for this call, which is made once.
            let end = unsafe { Box::from_raw(end.cast::<Receiver<()>>()) };
            let _dropped = end.recv();
        }
        let (hold, end) = channel();
        let end = Box::into_raw(Box::new(end)).cast();
        // SAFETY: the library is loaded already; stream and function are what it asks for.
        unsafe {
            let library = libloading::os::unix::Library::new(&self.file).unwrap();
            let launch: Launch = *library.get(b"aclrtLaunchHostFunc\0").unwrap();
            let stream = std::ptr::with_exposed_provenance_mut(stream.0 as usize);
            assert_eq!(launch(stream, wait, end), 0);
        }
        hold
    }

    /// On which streams free memory waits.
    fn homes(&self) -> Vec<u64> {
        let snapshot = self.alloc.snapshot(0).unwrap();
        let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
        let mut homes: Vec<u64> = blocks.map(|block| block.stream.0).filter(|&stream| stream != 0).collect();
        homes.sort_unstable();
        homes.dedup();
        homes
    }
}

#[test]
fn more_streams_than_are_kept_one_by_one_may_end_between_two_calls() {
    for count in [1, 300] {
        let rig = rig();
        let streams: Vec<Stream> = (0..count).map(|_| rig.stream()).collect();
        let last = *streams.last().unwrap();
        let block = rig.alloc.allocate(0, 12 * M, 0, last).unwrap();
        rig.alloc.deallocate(block).unwrap();
        assert_eq!(rig.homes(), [last.0]);
        let reserved = rig.alloc.stats(0).unwrap().reserved_bytes.all.current;
        for &stream in &streams {
            rig.destroy(stream);
        }
        // Nothing was queued, and no event can be recorded on a stream that is gone: its memory serves the default
        // stream.
        let again = rig.alloc.allocate(0, 12 * M, 0, Stream(0)).unwrap();
        assert_eq!(rig.alloc.stats(0).unwrap().reserved_bytes.all.current, reserved);
        rig.alloc.deallocate(again).unwrap();
        rig.alloc.check().unwrap();
        assert_eq!(rig.homes(), [0_u64; 0]);
    }
}

/// Page-locked memory asks nothing of a stream that has ended, whoever calls first.
#[test]
fn page_locked_memory_leaves_streams_alone_that_have_ended() {
    for background in [false, true] {
        let rig = rig();
        // SAFETY: the allocator passes only what it was given.
        let driver = Arc::new(unsafe { AclDriver::attach(rig.acl.clone()) });
        let options = PinnedOptions { background, ..PinnedOptions::default() };
        let pinned = PinnedAllocator::new(options, driver).unwrap();
        let (gone, other) = (rig.stream(), rig.stream());
        let blocks = [(); 2].map(|()| pinned.allocate(M, 0).unwrap());
        blocks.iter().for_each(|&ptr| pinned.record_use(ptr, 0, gone).unwrap());
        rig.destroy(gone);
        let before = rig.asked();
        pinned.deallocate(blocks[0]).unwrap();
        pinned.process_events().unwrap();
        assert_eq!(rig.asked(), before, "background: {background}");
        pinned.record_use(blocks[1], 0, other).unwrap();
        pinned.deallocate(blocks[1]).unwrap();
        // The thread may be marking it at the moment.
        while background && rig.asked() < before + 2 {
            std::thread::yield_now();
        }
        assert_eq!(rig.asked(), before + 2, "others are marked");
        pinned.empty_cache_waiting().unwrap();
        assert_eq!(pinned.stats().allocated_bytes.current, 0);
        rig.destroy(other);
    }
}

/// The handle may be that of another stream by then, whose work says nothing of the first one's.
#[test]
fn guards_and_copies_wait_for_the_device_where_their_stream_has_ended() {
    let rig = rig();
    // SAFETY: the allocator passes only what it was given.
    let driver = Arc::new(unsafe { AclDriver::attach(rig.acl.clone()) });
    let pinned = Arc::new(PinnedAllocator::new(PinnedOptions::default(), driver.clone()).unwrap());
    let registry = HostRegistry::new(driver);
    let target = rig.alloc.allocate(0, M, 0, Stream(0)).unwrap();
    let stream = rig.stream();
    let memory = PinnedBuffer::<u8>::zeroed_at_page(pinned.clone(), M as usize).unwrap();
    let guard = registry.register(memory, 0, RegisterKind { pinned: false, mapped: true }).unwrap();
    guard.record_use(0, stream);
    let buffer = PinnedBuffer::<u8>::zeroed(pinned.clone(), 100).unwrap();
    let flight = buffer.upload(target, 0, stream).map_err(|(error, _)| error).unwrap();
    rig.destroy(stream);
    let counts = || (rig.count(&["aclrtSynchronizeStream"]), rig.count(&["aclrtSynchronizeDevice"]));
    let before = counts();
    drop(flight.wait().map_err(|(error, _)| error).unwrap());
    drop(guard.unregister().map_err(|(error, _)| error).unwrap());
    assert_eq!(counts(), (before.0, before.1 + 2));
    rig.alloc.deallocate(target).unwrap();
    pinned.empty_cache_waiting().unwrap();
}

/// Its thread has a context for as long as it runs: taking one for each call would cost a thread each time.
#[test]
fn the_background_thread_takes_a_context_once() {
    let rig = rig();
    // SAFETY: the allocator passes only what it was given.
    let driver = Arc::new(unsafe { AclDriver::attach(rig.acl.clone()) });
    let options = PinnedOptions { background: true, ..PinnedOptions::default() };
    let pinned = PinnedAllocator::new(options, driver).unwrap();
    let stream = rig.stream();
    let ptr = pinned.allocate(M, 0).unwrap();
    pinned.record_use(ptr, 0, stream).unwrap();
    let hold = rig.hold_up(stream);
    let contexts = rig.count(&["aclrtSetCurrentContext"]);
    let looks = rig.count(&["aclrtQueryEventStatus"]);
    pinned.deallocate(ptr).unwrap();
    while rig.count(&["aclrtQueryEventStatus"]) < looks + 20 {
        std::thread::yield_now();
    }
    assert!(rig.count(&["aclrtSetCurrentContext"]) <= contexts + 1);
    // After a reset it finds the new one.
    drop(hold);
    while pinned.stats().waiting_bytes > 0 {
        std::thread::yield_now();
    }
    rig.reset_by_force();
    rig.acl.set_device(0).unwrap();
    let stream = rig.stream();
    let ptr = pinned.allocate(M, 0).unwrap();
    pinned.record_use(ptr, 0, stream).unwrap();
    pinned.deallocate(ptr).unwrap();
    while pinned.stats().waiting_bytes > 0 {
        std::thread::yield_now();
    }
    rig.destroy(stream);
}

#[test]
fn a_reset_that_the_runtime_tells_of_is_taken_up_by_the_next_call() {
    let rig = rig();
    let live = rig.alloc.allocate(0, 12 * M, 0, Stream(0)).unwrap();
    let free = rig.alloc.allocate(0, 12 * M, 0, Stream(0)).unwrap();
    rig.alloc.deallocate(free).unwrap();
    rig.reset_by_force();
    rig.acl.set_device(0).unwrap();
    let next = rig.alloc.allocate(0, 30 * M, 0, Stream(0)).unwrap();
    let stats = rig.alloc.stats(0).unwrap();
    assert_eq!(stats.requested_bytes.all.current, 30 * M as i64, "nothing else is live");
    assert_ne!(next, live);
    rig.alloc.deallocate(live).unwrap();
    let twice = rig.alloc.deallocate(live);
    assert!(
        matches!(twice, Err(Error::Pointer { kind: PointerKind::Foreign | PointerKind::Interior, .. })),
        "{twice:?}"
    );
    rig.alloc.deallocate(next).unwrap();
    rig.alloc.check().unwrap();
}

#[test]
fn a_device_is_lost_only_when_its_primary_context_is() {
    let stand_in = StandIn::new(FULL, "tells_lost");
    stand_in.acl().set_device(1).unwrap();
    let driver = stand_in.driver();
    assert!(!driver.has_lost_memory(1, false), "a reference of several was given back");
    assert!(driver.has_lost_memory(1, true), "it was set again, so it is another one");
    assert!(driver.has_lost_memory(0, false), "nobody has set it");
    stand_in.fail("aclrtGetPrimaryCtxState", 100_000, 1, "");
    assert!(driver.has_lost_memory(1, false), "what cannot be told is believed");
}
