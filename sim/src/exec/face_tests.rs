//! Captures, threads, host functions, failures and resets, as a program sees them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use super::*;

fn executor(mode: ExecMode) -> Executor {
    Executor::new(ExecConfig { mode, devices: 2, ..ExecConfig::default() })
}

fn deterministic() -> Executor {
    executor(ExecMode::Deterministic { seed: 1 })
}

fn stream(exec: &Executor) -> u64 {
    exec.create_stream(0).expect("a stream")
}

fn event(exec: &Executor) -> u64 {
    exec.create_event(0, EVENT_SYNC, true).expect("an event")
}

fn count_up(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

// ---- captures ----

#[test]
fn a_capture_keeps_its_work_for_the_graph() {
    let exec = deterministic();
    let (s, other) = (stream(&exec), stream(&exec));
    assert_eq!(exec.capture_begin(0, 0, CaptureMode::Global), Err(100_000));
    let default = exec.default_stream(0).expect("exists");
    assert_eq!(exec.capture_begin(0, default, CaptureMode::Global), Err(207_000));
    assert_eq!(exec.capture_get_info(0, s), Ok((CaptureStatus::None, 0)));
    assert_eq!(exec.capture_end(0, s), Err(107_029));
    exec.capture_begin(0, s, CaptureMode::Global).expect("begun");
    assert_eq!(exec.capture_begin(0, s, CaptureMode::Global), Err(107_027));
    let before = exec.submitted(0, s);
    exec.submit(0, s, Task::new("captured").writes(0, 64, 1)).expect("captured");
    assert_eq!(exec.submitted(0, s), before, "captured, not queued");
    let (status, model) = exec.capture_get_info(0, s).expect("known");
    assert_eq!((status, exec.is_capturing(0, s)), (CaptureStatus::Active, Ok(true)));
    assert_eq!(exec.capture_destroy(model), Err(107_026));
    exec.submit(0, other, Task::new("meanwhile").writes(0, 64, 2)).expect("queued");
    assert_eq!(exec.findings(), [], "a captured task has not run");
    assert_eq!(exec.capture_end(0, s), Ok(model));
    assert_eq!(exec.is_capturing(0, s), Ok(false));
    exec.capture_execute(0, model, s).expect("queued");
    let findings = exec.take_findings();
    assert_eq!(findings.len(), 1, "the graph's run is not ordered behind the other stream");
    assert!(findings[0].to_string().contains("captured graph"));
    assert_eq!(exec.capture_destroy(model), Ok(()));
    assert_eq!(exec.capture_destroy(model), Err(107_000));
    assert_eq!(exec.capture_execute(0, model, s), Err(107_000));
}

#[test]
fn what_a_capture_refuses() {
    let exec = deterministic();
    let (s, t, inside, outside) = (stream(&exec), stream(&exec), event(&exec), event(&exec));
    exec.record_event(0, outside, t).expect("recorded");
    exec.capture_begin(0, s, CaptureMode::Global).expect("begun");
    assert_eq!(exec.synchronize_stream(0, s, WAIT_FOREVER), Err(107_027));
    assert_eq!(exec.stream_query(0, s), Err(107_027));
    assert_eq!(exec.destroy_stream(0, s, true), Err(107_027));
    assert_eq!(exec.synchronize_device(0, WAIT_FOREVER), Err(107_027));
    assert_eq!(exec.synchronize_device(1, WAIT_FOREVER), Ok(()));
    exec.record_event(0, inside, s).expect("captured");
    assert_eq!(exec.query_event_status(inside), Err(107_028));
    assert_eq!(exec.synchronize_event(inside, WAIT_FOREVER), Err(107_028));
    assert_eq!(exec.destroy_event(inside), Err(107_028));
    assert_eq!(exec.elapsed(inside, inside), Err(107_028));
    assert_eq!(exec.query_event_status(outside), Ok(true), "not part of the capture");
    assert_eq!(exec.synchronize_stream(0, t, WAIT_FOREVER), Ok(()));
    assert_eq!(exec.capture_end(0, s).map(|model| model != 0), Ok(true), "none of these spoils it");
    assert_eq!(exec.query_event_status(inside), Ok(true), "as if never recorded");

    for spoil in [
        |exec: &Executor, s, outside, _| (exec.stream_wait_event(0, s, outside), 107_024),
        |exec: &Executor, _, _, inside| (exec.stream_wait_event(0, 0, inside), 107_031),
        |exec: &Executor, s, _, _| {
            let old = exec.create_event(0, EVENT_DEFAULT, false).expect("an event");
            (exec.record_event(0, old, s), 207_000)
        },
    ] {
        exec.capture_begin(0, s, CaptureMode::Global).expect("begun");
        exec.record_event(0, inside, s).expect("captured");
        let (result, code) = spoil(&exec, s, outside, inside);
        assert_eq!(result, Err(code));
        assert_eq!(exec.capture_get_info(0, s).map(|(status, _)| status), Ok(CaptureStatus::Invalidated));
        assert_eq!(exec.submit(0, s, Task::new("late")), Err(507_903));
        assert_eq!(exec.capture_end(0, s), Err(507_903));
        assert_eq!(exec.is_capturing(0, s), Ok(false));
    }
}

#[test]
fn forked_streams_must_be_joined() {
    let exec = deterministic();
    let (s, t, fork, join) = (stream(&exec), stream(&exec), event(&exec), event(&exec));
    for joined in [false, true] {
        exec.capture_begin(0, s, CaptureMode::Relaxed).expect("begun");
        exec.record_event(0, fork, s).expect("captured");
        exec.stream_wait_event(0, t, fork).expect("forked");
        assert_eq!(exec.is_capturing(0, t), Ok(true));
        exec.submit(0, t, Task::new("on the fork")).expect("captured");
        assert_eq!(exec.capture_end(0, t), Err(107_036), "it did not begin there");
        if joined {
            exec.record_event(0, join, t).expect("captured");
            exec.stream_wait_event(0, s, join).expect("joined");
        }
        assert_eq!(exec.capture_end(0, s).err(), (!joined).then_some(107_025));
        assert_eq!(exec.is_capturing(0, t), Ok(false));
    }
}

#[test]
fn modes_say_whose_copies_are_refused() {
    let exec = deterministic();
    let s = stream(&exec);
    let elsewhere = || {
        std::thread::scope(|scope| scope.spawn(|| exec.check_synchronous_copy(0)).join().expect("no panic"))
    };
    for (mode, here, there) in [
        (CaptureMode::Global, Err(107_030), Err(107_030)),
        (CaptureMode::ThreadLocal, Err(107_030), Ok(())),
        (CaptureMode::Relaxed, Ok(()), Ok(())),
    ] {
        exec.capture_begin(0, s, mode).expect("begun");
        assert_eq!((exec.check_synchronous_copy(0), elsewhere()), (here, there), "{mode:?}");
        assert_eq!(exec.check_synchronous_copy(1), Ok(()), "another device");
        exec.capture_end(0, s).expect("ended");
        assert_eq!(exec.check_synchronous_copy(0), Ok(()));
    }
    exec.capture_begin(0, s, CaptureMode::Global).expect("begun");
    assert_eq!(exec.capture_exchange_mode(CaptureMode::Relaxed), CaptureMode::Global);
    assert_eq!((exec.check_synchronous_copy(0), elsewhere()), (Ok(()), Err(107_030)));
    let wrong = std::thread::scope(|scope| scope.spawn(|| exec.capture_end(0, s)).join().expect("no panic"));
    assert_eq!(wrong, Err(107_038));
    assert_eq!(exec.is_capturing(0, s), Ok(false), "the capture is gone");
    assert_eq!(CaptureMode::from_value(3), Err(107_000));
}

// ---- threads ----

#[test]
fn threads_finish_work_later_and_in_order() {
    let exec = executor(ExecMode::Threads);
    let (s, t, e) = (stream(&exec), stream(&exec), event(&exec));
    let (release, held) = mpsc::channel::<()>();
    let log = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let note = |n: u32| {
        let log = Arc::clone(&log);
        Task::new("note").works(move || log.lock().push(n))
    };
    exec.submit(0, s, Task::new("hold").works(move || held.recv().expect("released"))).expect("queued");
    exec.submit(0, s, note(1)).expect("queued");
    exec.record_event(0, e, s).expect("recorded");
    exec.stream_wait_event(0, t, e).expect("waits");
    exec.submit(0, t, note(2)).expect("queued");
    exec.submit(0, 0, note(0)).expect("queued");
    exec.synchronize_stream(0, 0, WAIT_FOREVER).expect("another stream is not held up");
    assert_eq!(*log.lock(), [0]);
    assert_eq!((exec.query_event_status(e), exec.stream_query(0, t)), (Ok(false), Ok(false)));
    assert_eq!(exec.synchronize_event(e, 1), Err(507_047));
    assert_eq!(exec.synchronize_stream(0, t, 1), Err(507_046));
    assert_eq!(exec.synchronize_device(0, 1), Err(507_046));
    release.send(()).expect("the task waits");
    exec.synchronize_stream(0, t, WAIT_FOREVER).expect("waited");
    assert_eq!(*log.lock(), [0, 1, 2]);
    assert_eq!(exec.query_event_status(e), Ok(true));
}

#[test]
fn many_held_streams_do_not_stop_the_others() {
    let exec = executor(ExecMode::Threads);
    let (release, held) = mpsc::channel::<()>();
    let held = Arc::new(parking_lot::Mutex::new(held));
    for _ in 0..40 {
        let held = Arc::clone(&held);
        let s = stream(&exec);
        let work = move || {
            // An error is the release: the other end is gone.
            let _ = held.lock().recv();
        };
        exec.submit(0, s, Task::new("hold").works(work)).expect("queued");
    }
    exec.submit(0, 0, Task::new("free").works(|| ())).expect("queued");
    exec.synchronize_stream(0, 0, WAIT_FOREVER).expect("waited");
    drop(release);
    exec.synchronize_device(0, WAIT_FOREVER).expect("waited");
}

#[test]
fn host_threads_may_share_an_executor() {
    let exec = executor(ExecMode::Threads);
    let sum = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 1..=4_u64 {
            let (exec, sum) = (&exec, &sum);
            scope.spawn(move || {
                let (s, e) = (stream(exec), event(exec));
                for round in 0..200 {
                    let sum = Arc::clone(sum);
                    let work = move || count_up(&sum);
                    let task = Task::new("add").writes(thread << 20, 4096, thread).works(work);
                    exec.submit(0, s, task).expect("queued");
                    exec.record_event(0, e, s).expect("recorded");
                    exec.stream_wait_event(0, 0, e).expect("waits");
                    if round % 16 == 0 {
                        exec.synchronize_event(e, WAIT_FOREVER).expect("waited");
                    }
                }
                exec.destroy_event(e).expect("destroyed");
                exec.destroy_stream(0, s, false).expect("destroyed");
            });
        }
    });
    exec.synchronize_device(0, WAIT_FOREVER).expect("waited");
    assert_eq!(sum.load(Ordering::Relaxed), 800);
    assert_eq!(exec.findings(), []);
}

#[test]
fn dropping_the_executor_drops_work_not_begun() {
    let ran = Arc::new(AtomicU64::new(0));
    let count = |by: &Arc<AtomicU64>| {
        let by = Arc::clone(by);
        Task::new("count").works(move || count_up(&by))
    };
    let exec = Executor::new(ExecConfig { lag: LAG_NEVER, ..ExecConfig::default() });
    exec.submit(0, 0, count(&ran)).expect("queued");
    drop(exec);
    assert_eq!((Arc::strong_count(&ran), ran.load(Ordering::Relaxed)), (1, 0));

    let exec = executor(ExecMode::Threads);
    let (begun, begin) = mpsc::channel::<()>();
    let (release, held) = mpsc::channel::<()>();
    let work = move || {
        begun.send(()).expect("the test waits");
        assert!(held.recv().is_err(), "released by the other end going away");
    };
    exec.submit(0, 0, Task::new("hold").works(work)).expect("queued");
    exec.submit(0, 0, count(&ran)).expect("queued");
    begin.recv().expect("the task began");
    let dropper = std::thread::spawn(move || drop(exec));
    drop(release);
    dropper.join().expect("the drop waits for the task that runs, and ends");
    assert_eq!(Arc::strong_count(&ran), 1, "the second task has run or is dropped");
}

// ---- host functions, failures, resets ----

#[test]
fn a_host_function_blocks_its_stream() {
    let exec = Executor::new(ExecConfig { lag: 3, ..ExecConfig::default() });
    let called = Arc::new(AtomicU64::new(0));
    let inner = Arc::clone(&called);
    let function = move || {
        assert!(in_callback());
        inner.fetch_add(1, Ordering::Relaxed);
    };
    exec.launch_host_func(0, 0, Box::new(function)).expect("queued");
    exec.tick(2);
    assert_eq!(called.load(Ordering::Relaxed), 0);
    exec.tick(1);
    assert_eq!(called.load(Ordering::Relaxed), 1);
}

#[test]
fn callbacks_run_in_the_thread_that_subscribed() {
    let exec = deterministic();
    let s = stream(&exec);
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let note = |n: u32| -> Work {
        let order = Arc::clone(&order);
        Box::new(move || order.lock().push(n))
    };
    assert_eq!(exec.launch_callback(0, s, note(0), true), Err(107_015));
    assert_eq!(exec.process_report(7, 1), Err(107_012));
    exec.subscribe_report(7, 0, s).expect("subscribed");
    assert_eq!(exec.subscribe_report(8, 0, s), Err(107_011));
    assert_eq!(exec.launch_host_func(0, s, note(0)), Err(107_011));
    assert_eq!((exec.process_report(7, 0), exec.process_report(7, -2)), (Err(100_000), Err(100_000)));
    assert_eq!(exec.process_report(7, 1), Err(507_012));
    exec.launch_callback(0, s, note(1), false).expect("queued");
    exec.launch_callback(0, s, note(2), true).expect("queued");
    let after = Arc::clone(&order);
    exec.submit(0, s, Task::new("after").works(move || after.lock().push(3))).expect("queued");
    exec.submit(0, 0, Task::new("another stream")).expect("queued");
    assert_eq!((exec.stream_query(0, s), exec.stream_query(0, 0)), (Ok(false), Ok(true)));
    assert_eq!(exec.synchronize_stream(0, s, WAIT_FOREVER), Err(507_000), "only this thread could go on");
    assert_eq!((exec.process_report(7, 1), exec.process_report(7, 1)), (Ok(()), Ok(())));
    assert_eq!(*order.lock(), [1, 2, 3]);
    assert_eq!(exec.synchronize_stream(0, s, WAIT_FOREVER), Ok(()));
    assert_eq!(exec.unsubscribe_report(8, 0, s), Err(107_011));
    assert_eq!(exec.unsubscribe_report(7, 0, s), Ok(()));
    assert_eq!(exec.process_report(7, 1), Err(107_012));
    exec.launch_host_func(0, s, note(4)).expect("queued");
    assert_eq!(exec.subscribe_report(7, 0, s), Err(107_011), "it has had a host function");
}

#[test]
fn a_blocking_callback_holds_its_stream_in_threads_mode() {
    let exec = executor(ExecMode::Threads);
    let (s, t, e) = (stream(&exec), stream(&exec), event(&exec));
    exec.subscribe_report(1, 0, s).expect("subscribed");
    let count = Arc::new(AtomicU64::new(0));
    let add = || {
        let count = Arc::clone(&count);
        move || count_up(&count)
    };
    exec.launch_callback(0, s, Box::new(add()), true).expect("queued");
    exec.record_event(0, e, s).expect("recorded");
    exec.stream_wait_event(0, t, e).expect("waits");
    exec.submit(0, t, Task::new("behind").works(add())).expect("queued");
    assert_eq!(exec.synchronize_stream(0, t, 1), Err(507_046));
    assert_eq!(count.load(Ordering::Relaxed), 0);
    exec.process_report(1, WAIT_FOREVER).expect("a callback came");
    exec.synchronize_stream(0, t, WAIT_FOREVER).expect("waited");
    assert_eq!(count.load(Ordering::Relaxed), 2);
    assert_eq!(exec.process_report(1, 1), Err(507_012));
    exec.launch_callback(0, s, Box::new(add()), true).expect("queued");
    exec.record_event(0, e, s).expect("recorded");
    exec.destroy_stream(0, s, true).expect("destroyed");
    exec.synchronize_event(e, WAIT_FOREVER).expect("the forced destruction lets the record go on");
}

#[test]
fn a_panic_in_a_closure_leaves_the_executor_sound() {
    let threads = executor(ExecMode::Threads);
    threads.submit(0, 0, Task::new("bad").works(|| panic!("expected by the test"))).expect("queued");
    assert_eq!(threads.synchronize_stream(0, 0, WAIT_FOREVER), Err(507_015));
    assert_eq!(threads.synchronize_stream(0, 0, WAIT_FOREVER), Ok(()), "told once");
    let exec = Executor::new(ExecConfig { lag: LAG_NEVER, ..ExecConfig::default() });
    exec.submit(0, 0, Task::new("bad").works(|| panic!("expected by the test"))).expect("queued");
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| exec.run_all()));
    assert!(caught.is_err(), "deterministic mode passes it on");
    assert_eq!(exec.synchronize_stream(0, 0, WAIT_FOREVER), Ok(()));
}

#[test]
fn a_forced_destruction_drops_tasks_but_keeps_the_order() {
    let exec = Executor::new(ExecConfig { lag: LAG_NEVER, ..ExecConfig::default() });
    let (s, e) = (stream(&exec), event(&exec));
    exec.submit(0, s, Task::new("dropped").works(|| panic!("must not run"))).expect("queued");
    exec.record_event(0, e, s).expect("recorded");
    exec.destroy_stream(0, s, true).expect("destroyed");
    assert_eq!(exec.query_event_status(e), Ok(false));
    assert_eq!(exec.synchronize_event(e, WAIT_FOREVER), Ok(()));
}

#[test]
fn a_reset_leaves_nothing_of_the_device() {
    let exec = Executor::new(ExecConfig { devices: 2, lag: LAG_NEVER, ..ExecConfig::default() });
    let (s, c, e, f) = (stream(&exec), stream(&exec), event(&exec), event(&exec));
    let kept = exec.create_stream(1).expect("a stream");
    exec.submit(0, s, Task::new("dropped").writes(0, 64, 1).works(|| panic!("must not run")))
        .expect("queued");
    exec.record_event(0, e, s).expect("recorded");
    exec.capture_begin(0, c, CaptureMode::Global).expect("begun");
    exec.record_event(0, f, c).expect("captured");
    exec.reset_device(0).expect("reset");
    for stale in [exec.stream_query(0, s), exec.stream_query(0, c)] {
        assert_eq!(stale, Err(107_017));
    }
    assert_eq!((exec.query_event_status(e), exec.query_event_status(f)), (Err(107_017), Err(107_017)));
    assert_eq!(exec.stream_query(1, kept), Ok(true));
    exec.host_touch(HostOp::Free, 0, 64);
    assert_eq!(exec.findings(), [], "nothing of the device can still run");
    assert_eq!(exec.synchronize_device(0, WAIT_FOREVER), Ok(()));
    assert_eq!(exec.check_synchronous_copy(0), Ok(()));
    assert_eq!(exec.reset_device(2), Err(107_001));
}
