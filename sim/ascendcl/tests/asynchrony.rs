//! Queued work runs later, by itself, in stream order; waits wait. Nothing here looks at a clock:
//! work is held back by callbacks that wait for the test.

mod common;

use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};

use common::{Acl, at, machine};

/// `aclrtStreamQuery`: 0 is complete.
const COMPLETE: u64 = 0;
const NOT_READY: u64 = 1;

/// Holds a stream back until it is dropped or told to go on.
struct Gate(Sender<()>);

/// The callback of a gate: waits for the test.
extern "C" fn wait_for_test(user: *mut c_void) {
    // SAFETY: the gate that queued this leaked the receiver for it, once.
    let gate: Box<Receiver<()>> = unsafe { Box::from_raw(user.cast()) };
    let _told = gate.recv();
}

impl Gate {
    fn new(acl: &Acl, stream: u64) -> Self {
        let (sender, receiver) = channel();
        let user = Box::into_raw(Box::new(receiver)).expose_provenance() as u64;
        let function = wait_for_test as extern "C" fn(*mut c_void) as usize as u64;
        // SAFETY: the function takes what it is given, once.
        unsafe { acl.call("aclrtLaunchHostFunc", &[stream, function, user]) };
        Self(sender)
    }

    fn open(self) {
        self.0.send(()).expect("the callback waits");
    }
}

/// A machine with device 0 set and a stream.
fn with_stream(acl: &Acl) -> u64 {
    // SAFETY: numbers, and live variables.
    unsafe {
        acl.call("aclrtSetDevice", &[0]);
        acl.make("aclrtCreateStream", &[]).expect("a stream")
    }
}

fn query(acl: &Acl, stream: u64) -> u64 {
    let mut status = 7u64;
    // SAFETY: a live variable.
    unsafe { acl.call("aclrtStreamQuery", &[stream, at(&mut status)]) };
    status & 0xffff_ffff
}

/// Bytes of pinned host memory.
fn pinned(acl: &Acl, size: u64) -> &'static mut [u8] {
    // SAFETY: the block is that large, and the machine keeps it until the test is over.
    unsafe {
        let start = acl.make("aclrtMallocHost", &[size]).expect("host memory");
        let start = std::ptr::with_exposed_provenance_mut::<u8>(start as usize);
        start.write_bytes(0, size as usize);
        std::slice::from_raw_parts_mut(start, size as usize)
    }
}

#[test]
fn a_pinned_copy_runs_later_and_in_order() {
    let (acl, _turn) = machine();
    let stream = with_stream(acl);
    let (source, target) = (pinned(acl, 64), pinned(acl, 64));
    source.fill(1);
    // SAFETY: all pointers are to memory that lives until the machine is replaced.
    unsafe {
        let device = acl.make("aclrtMalloc", &[64, 0]).expect("device memory");
        let gate = Gate::new(acl, stream);
        acl.call("aclrtMemcpyAsync", &[device, 64, at(&mut source[0]), 64, 1, stream]);
        acl.call("aclrtMemcpyAsync", &[at(&mut target[0]), 64, device, 64, 2, stream]);
        assert_eq!(query(acl, stream), NOT_READY);
        assert_eq!(std::ptr::read_volatile(&raw const target[63]), 0, "nothing has run");
        // The copy reads what the source holds when it runs.
        source.fill(2);
        gate.open();
        acl.call("aclrtSynchronizeStream", &[stream]);
        assert_eq!(query(acl, stream), COMPLETE);
        assert_eq!(std::ptr::read_volatile(&raw const target[63]), 2);
    }
}

#[test]
fn a_fill_waits_for_the_event_of_another_stream() {
    let (acl, _turn) = machine();
    let first = with_stream(acl);
    // SAFETY: numbers, and live variables.
    unsafe {
        let second = acl.make("aclrtCreateStream", &[]).expect("a stream");
        let event = acl.make("aclrtCreateEventExWithFlag", &[1]).expect("an event");
        let device = acl.make("aclrtMalloc", &[64, 0]).expect("device memory");
        let gate = Gate::new(acl, first);
        acl.call("aclrtRecordEvent", &[event, first]);
        acl.call("aclrtStreamWaitEvent", &[second, event]);
        acl.call("aclrtMemsetAsync", &[device, 64, 5, 64, second]);
        let mut status = 7u64;
        acl.call("aclrtQueryEventStatus", &[event, at(&mut status)]);
        assert_eq!(status & 0xffff_ffff, 0, "the event is not complete");
        assert_eq!(query(acl, second), NOT_READY);
        assert_eq!(acl.try_call("aclrtSynchronizeEventWithTimeout", &[event, 1]), 507_047);
        assert_eq!(acl.try_call("aclrtSynchronizeStreamWithTimeout", &[second, 1]), 507_046);
        gate.open();
        acl.call("aclrtSynchronizeStream", &[second]);
        acl.call("aclrtQueryEventStatus", &[event, at(&mut status)]);
        assert_eq!(status & 0xffff_ffff, 1);
        let mut byte = [0u8; 64];
        acl.call("aclrtMemcpy", &[at(&mut byte), 64, device, 64, 2]);
        assert_eq!(byte, [5; 64]);
    }
}

#[test]
fn a_pageable_copy_is_done_when_the_call_returns_and_host_to_host_is_refused() {
    let (acl, _turn) = machine();
    let stream = with_stream(acl);
    let (mut source, mut target) = ([3u8; 64], [0u8; 64]);
    // SAFETY: all pointers are to live variables.
    unsafe {
        let device = acl.make("aclrtMalloc", &[64, 0]).expect("device memory");
        acl.call("aclrtMemcpyAsync", &[device, 64, at(&mut source), 64, 1, stream]);
        assert_eq!(query(acl, stream), COMPLETE);
        acl.call("aclrtMemcpyAsync", &[at(&mut target), 64, device, 64, 2, stream]);
        assert_eq!(target, [3; 64]);
        let host = [at(&mut target), 64, at(&mut source), 64, 0, stream];
        assert_eq!(acl.try_call("aclrtMemcpyAsync", &host), 207_000);
    }
}

#[test]
fn capture_records_instead_of_running_and_refuses_to_wait() {
    let (acl, _turn) = machine();
    let stream = with_stream(acl);
    // SAFETY: numbers, and live variables.
    unsafe {
        let device = acl.make("aclrtMalloc", &[64, 0]).expect("device memory");
        acl.call("aclmdlRICaptureBegin", &[stream, 0]);
        acl.call("aclrtMemsetAsync", &[device, 64, 9, 64, stream]);
        assert_eq!(acl.try_call("aclrtSynchronizeStream", &[stream]), 107_027);
        assert_eq!(acl.try_call("aclrtMemset", &[device, 64, 1, 64]), 107_030);
        assert_eq!(acl.try_call("aclrtDestroyStream", &[stream]), 107_027);
        let (mut status, mut graph, mut ended) = (7u64, 0u64, 0u64);
        acl.call("aclmdlRICaptureGetInfo", &[stream, at(&mut status), at(&mut graph)]);
        assert_eq!(status & 0xffff_ffff, 1);
        acl.call("aclmdlRICaptureEnd", &[stream, at(&mut ended)]);
        assert_eq!((graph != 0, graph), (true, ended));
        assert_eq!(acl.try_call("aclmdlRICaptureEnd", &[stream, at(&mut ended)]), 107_029);
        acl.call("aclmdlRIExecuteAsync", &[ended, stream]);
        acl.call("aclrtSynchronizeStream", &[stream]);
        acl.call("aclmdlRIDestroy", &[ended]);
    }
}

/// Counts.
extern "C" fn count(user: *mut c_void) {
    // SAFETY: the test passes a counter that outlives the stream's work.
    unsafe { &*user.cast::<std::sync::atomic::AtomicU64>() }
        .fetch_add(1, std::sync::atomic::Ordering::SeqCst);
}

#[test]
fn reports_run_in_the_thread_that_subscribed() {
    let (acl, _turn) = machine();
    let stream = with_stream(acl);
    let counter = std::sync::atomic::AtomicU64::new(0);
    let function = count as extern "C" fn(*mut c_void) as usize as u64;
    let user = (&raw const counter).expose_provenance() as u64;
    // SAFETY: the counter outlives the callbacks, which the last wait waits for.
    unsafe {
        let thread = libc_thread();
        assert_eq!(acl.try_call("aclrtLaunchCallback", &[function, user, 0, stream]), 107_015);
        acl.call("aclrtSubscribeReport", &[thread, stream]);
        acl.call("aclrtLaunchCallback", &[function, user, 1, stream]);
        // Blocking: the stream is held up until this thread has run it.
        assert_eq!(query(acl, stream), NOT_READY);
        assert_eq!(counter.load(std::sync::atomic::Ordering::SeqCst), 0);
        acl.call("aclrtProcessReport", &[5000]);
        acl.call("aclrtSynchronizeStream", &[stream]);
        assert_eq!(counter.load(std::sync::atomic::Ordering::SeqCst), 1);
        assert_eq!(acl.try_call("aclrtProcessReport", &[1]), 507_012);
        assert_eq!(acl.try_call("aclrtProcessReport", &[0]), 100_000);
        acl.call("aclrtUnSubscribeReport", &[thread, stream]);
    }
}

/// `pthread_self`.
fn libc_thread() -> u64 {
    // SAFETY: the call has no preconditions.
    unsafe { libc::pthread_self() as u64 }
}

#[test]
fn threads_may_call_at_the_same_time() {
    let (acl, _turn) = machine();
    std::thread::scope(|scope| {
        for number in 0..8u64 {
            scope.spawn(move || {
                let stream = {
                    // SAFETY: numbers only.
                    unsafe { acl.call("aclrtSetDevice", &[number % 2]) };
                    // SAFETY: as above.
                    unsafe { acl.make("aclrtCreateStream", &[]).expect("a stream") }
                };
                for _ in 0..200 {
                    // SAFETY: the block is freed by nobody else.
                    unsafe {
                        let block = acl.make("aclrtMalloc", &[4096, 0]).expect("device memory");
                        acl.call("aclrtMemsetAsync", &[block, 4096, number, 4096, stream]);
                        acl.call("aclrtSynchronizeStream", &[stream]);
                        let mut bytes = [0u8; 8];
                        acl.call("aclrtMemcpy", &[at(&mut bytes), 8, block + 4088, 8, 2]);
                        assert_eq!(bytes, [number as u8; 8]);
                        acl.call("aclrtFree", &[block]);
                    }
                }
            });
        }
    });
    assert_eq!(acl.json("acl_sim_findings_json"), "[]");
    assert!(acl.json("acl_sim_counters_json").contains("\"aclrtMemsetAsync\":1600"));
}
