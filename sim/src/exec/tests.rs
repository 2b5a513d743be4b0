//! Behaviour of streams, events, time, and the checker's findings on small programs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

fn executor(lag: u64) -> Executor {
    Executor::new(ExecConfig { lag, devices: 2, ..ExecConfig::default() })
}

fn stream(exec: &Executor) -> u64 {
    exec.create_stream(0).expect("a stream")
}

fn event(exec: &Executor) -> u64 {
    exec.create_event(0, EVENT_SYNC, true).expect("an event")
}

fn write(exec: &Executor, stream: u64, start: u64, len: u64, tag: u64) {
    exec.submit(0, stream, Task::new("write").writes(start, len, tag)).expect("submitted");
}

#[test]
fn the_executor_is_send_and_sync() {
    fn check<T: Send + Sync>() {}
    check::<Executor>();
}

#[test]
fn lag_finishes_work_in_order_after_its_ticks() {
    let exec = executor(10);
    let (s, e) = (stream(&exec), event(&exec));
    write(&exec, s, 0, 8, 1);
    exec.record_event(0, e, s).expect("recorded");
    exec.tick(9);
    assert_eq!((exec.query_event_status(e), exec.stream_query(0, s)), (Ok(false), Ok(false)));
    exec.tick(1);
    assert_eq!((exec.query_event_status(e), exec.stream_query(0, s)), (Ok(true), Ok(true)));
    exec.set_lag(0);
    write(&exec, s, 0, 8, 1);
    assert_eq!(exec.stream_query(0, s), Ok(true), "without lag work is done at once");
    exec.set_lag(LAG_NEVER);
    write(&exec, s, 0, 8, 1);
    exec.tick(u64::MAX);
    assert_eq!(exec.stream_query(0, s), Ok(false), "time alone finishes nothing");
    assert_eq!(exec.run_some(u64::MAX), 1);
    assert_eq!(exec.stream_query(0, s), Ok(true));
}

#[test]
fn a_wait_runs_what_it_depends_on_and_nothing_else() {
    let exec = executor(LAG_NEVER);
    let (a, b, c, e) = (stream(&exec), stream(&exec), stream(&exec), event(&exec));
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let note = |name: &'static str| {
        let order = Arc::clone(&order);
        Task::new(name).works(move || order.lock().push(name))
    };
    exec.submit(0, a, note("a1")).expect("submitted");
    exec.record_event(0, e, a).expect("recorded");
    exec.submit(0, a, note("a2")).expect("submitted");
    exec.submit(0, c, note("c1")).expect("submitted");
    exec.submit(0, b, note("b1")).expect("submitted");
    exec.stream_wait_event(0, b, e).expect("waits");
    exec.submit(0, b, note("b2")).expect("submitted");
    assert!(order.lock().is_empty());
    exec.synchronize_stream(0, b, WAIT_FOREVER).expect("waited");
    assert_eq!(*order.lock(), ["b1", "a1", "b2"]);
    exec.synchronize_device(0, WAIT_FOREVER).expect("waited");
    assert_eq!(order.lock().len(), 5);
}

#[test]
fn the_seed_decides_the_order() {
    let order = |seed| {
        let mode = ExecMode::Deterministic { seed };
        let exec = Executor::new(ExecConfig { mode, lag: LAG_NEVER, ..ExecConfig::default() });
        let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
        for s in 0..4 {
            let stream = stream(&exec);
            for n in 0..8 {
                let order = Arc::clone(&order);
                let task = Task::new("note").works(move || order.lock().push((s, n)));
                exec.submit(0, stream, task).expect("submitted");
            }
        }
        exec.run_all();
        Arc::into_inner(order).expect("all closures are gone").into_inner()
    };
    assert_eq!(order(7), order(7));
    assert_ne!(order(7), order(8));
    let run = order(7);
    for s in 0..4 {
        let own: Vec<_> = run.iter().filter(|(stream, _)| *stream == s).map(|(_, n)| *n).collect();
        assert_eq!(own, (0..8).collect::<Vec<_>>(), "streams keep their order");
    }
}

#[test]
fn the_return_codes_of_the_stream_group() {
    let exec = executor(0);
    let s = stream(&exec);
    let plain = exec.create_event(0, EVENT_DEFAULT, false).expect("an event");
    let ex = event(&exec);
    assert_eq!(exec.create_event(0, 0, false), Err(107_000));
    assert_eq!(exec.create_event(0, 0x1000, false), Err(107_000));
    assert_eq!(exec.create_event(0, EVENT_EXTERNAL | EVENT_SYNC, true), Err(107_000));
    assert_eq!(exec.synchronize_stream(0, s, 0), Err(107_000));
    assert_eq!(exec.synchronize_stream(0, s, -2), Err(107_000));
    assert_eq!(exec.synchronize_stream(0, s, 100), Ok(()));
    assert_eq!(exec.synchronize_stream(0, 0, WAIT_FOREVER), Ok(()));
    assert_eq!(exec.query_event_wait_status(plain), Ok(true));
    assert_eq!(exec.synchronize_event(plain, WAIT_FOREVER), Ok(()));
    assert_eq!(exec.stream_wait_event(0, s, plain), Err(107_000), "never recorded");
    assert_eq!(exec.query_event_status(plain), Ok(false), "never recorded, old mode");
    assert_eq!(exec.query_event_status(ex), Ok(true), "never recorded, new mode");
    assert_eq!(exec.query_event(ex), Err(207_000));
    assert_eq!(exec.query_event_wait_status(ex), Err(207_000));
    assert_eq!(exec.reset_event(0, ex, s), Err(207_000));
    assert_eq!(exec.query_event_status(0), Err(100_000));
    assert_eq!(exec.record_event(0, plain, 0), Ok(()));
    assert_eq!((exec.query_event(plain), exec.query_event_status(plain)), (Ok(true), Ok(true)));
    assert_eq!(exec.stream_wait_event(0, s, 0), Err(100_000));
    assert_eq!(exec.stream_wait_event(0, 0, plain), Ok(()));
    assert_eq!(exec.synchronize_event(plain, -3), Err(107_000));
    assert_eq!(exec.synchronize_event(plain, 0), Err(107_000));
    assert_eq!(exec.synchronize_event(0, WAIT_FOREVER), Err(100_000));
    assert_eq!(exec.reset_event(0, plain, s), Ok(()));
    assert_eq!(exec.query_event_status(plain), Ok(false), "reset");
    assert_eq!(exec.stream_wait_event(0, s, plain), Err(107_000), "reset");
    assert_eq!(exec.destroy_event(0), Err(100_000));
    assert_eq!(exec.destroy_stream(0, 0, false), Err(100_000));
    assert_eq!(exec.create_stream(2), Err(107_001));
    assert_eq!(exec.submit(1, s, Task::new("foreign")), Err(107_003));
    assert_eq!(exec.record_event(1, ex, 0), Err(107_003), "an event of another device");
    assert_eq!(exec.synchronize_device(0, 0), Err(107_000));
    let unsynced = exec.create_event(0, EVENT_TIME_LINE, true).expect("an event");
    assert_eq!(exec.record_event(0, unsynced, s), Ok(()));
    assert_eq!(exec.stream_wait_event(0, s, unsynced), Err(207_000));
}

#[test]
fn destroyed_handles_are_stale() {
    let exec = executor(LAG_NEVER);
    let (s, e) = (stream(&exec), event(&exec));
    exec.record_event(0, e, s).expect("recorded");
    exec.destroy_stream(0, s, false).expect("destroyed");
    assert_eq!(exec.stream_query(0, s), Err(107_017));
    assert_eq!(exec.record_event(0, e, s), Err(107_017));
    assert_eq!(exec.destroy_stream(0, s, false), Err(107_017));
    assert_eq!(exec.destroy_event(e), Ok(()));
    assert_eq!(exec.destroy_event(e), Err(107_017));
    assert_eq!(exec.query_event_status(e), Err(107_017));
    assert_eq!(exec.stream_query(0, 0x1234), Err(107_017), "invented");
}

#[test]
fn streams_and_events_run_out() {
    let config = ExecConfig { max_streams: 2, max_events: 1, lag: LAG_NEVER, ..ExecConfig::default() };
    let exec = Executor::new(config);
    let (a, _b) = (stream(&exec), stream(&exec));
    assert_eq!(exec.create_stream(0), Err(207_008));
    exec.set_destroy_waits(false);
    exec.destroy_stream(0, a, false).expect("destroyed");
    assert!(exec.create_stream(0).is_ok());
    let (e, f) = (event(&exec), event(&exec));
    exec.record_event(0, e, 0).expect("recorded");
    exec.record_event(0, e, 0).expect("recorded again");
    assert_eq!(exec.record_event(0, f, 0), Err(207_007));
    exec.destroy_event(e).expect("destroyed");
    assert_eq!(exec.record_event(0, f, 0), Err(207_007), "the record keeps the hardware event");
    exec.run_all();
    assert_eq!(exec.record_event(0, f, 0), Ok(()));
}

#[test]
fn elapsed_time_is_virtual() {
    let exec = executor(5);
    let make = || exec.create_event(0, EVENT_SYNC | EVENT_TIME_LINE, true).expect("an event");
    let (a, b, none) = (make(), make(), event(&exec));
    assert_eq!(exec.elapsed(a, b), Err(507_000));
    exec.record_event(0, a, 0).expect("recorded");
    exec.tick(2000);
    exec.record_event(0, b, 0).expect("recorded");
    exec.record_event(0, none, 0).expect("recorded");
    assert_eq!(exec.elapsed(a, b), Err(107_006), "not complete");
    exec.tick(1000);
    assert_eq!(exec.elapsed(a, b), Ok(1.0));
    assert_eq!(exec.elapsed(b, a), Ok(-1.0));
    assert_eq!(exec.elapsed(a, none), Err(107_006), "no time line");
}

#[test]
fn reuse_on_another_stream_needs_an_order() {
    let exec = executor(0);
    let (a, b, e) = (stream(&exec), stream(&exec), event(&exec));
    write(&exec, a, 0x1000, 0x200, 1);
    exec.record_event(0, e, a).expect("recorded");
    write(&exec, b, 0x1100, 0x200, 2);
    let findings = exec.take_findings();
    assert_eq!(findings.len(), 1);
    assert_eq!((findings[0].start, findings[0].len), (0x1100, 0x100));
    let text = findings[0].to_string();
    for part in ["0x1100..0x1200", "tag 1", "tag 2", "\"write\"", &format!("{a:#x}"), &format!("{b:#x}")] {
        assert!(text.contains(part), "{part} in {text}");
    }
    exec.stream_wait_event(0, b, e).expect("waits");
    write(&exec, b, 0x1000, 0x100, 3);
    assert_eq!(exec.findings(), [], "ordered by the event");
    assert_eq!(exec.finding_count(), 1);
}

#[test]
fn the_host_orders_what_it_knows() {
    let exec = executor(LAG_NEVER);
    let (a, b, e) = (stream(&exec), stream(&exec), event(&exec));
    write(&exec, a, 0, 64, 1);
    exec.record_event(0, e, a).expect("recorded");
    write(&exec, a, 64, 64, 1);
    exec.run_all();
    exec.host_touch(HostOp::Read, 0, 64);
    assert_eq!(exec.take_findings().len(), 1, "done, but nobody asked");
    assert_eq!(exec.query_event_status(e), Ok(true));
    exec.host_touch(HostOp::Read, 0, 64);
    write(&exec, b, 0, 64, 2);
    assert_eq!(exec.take_findings(), []);
    exec.host_touch(HostOp::Unmap, 64, 64);
    let findings = exec.take_findings();
    assert_eq!(findings.len(), 1, "queued behind the record");
    let text = findings[0].to_string();
    assert!(text.contains("host unmap of 0x40..0x80") && text.contains("tag 1"), "{text}");
    write(&exec, b, 64, 64, 2);
    assert_eq!(exec.take_findings(), [], "the unmapped range has no history");
    exec.host_touch(HostOp::Free, 0, 128);
    assert_eq!(exec.take_findings().len(), 2);
    assert_eq!(exec.checker_intervals(), 0);
}

#[test]
fn destroying_a_stream_teaches_nothing() {
    let exec = executor(0);
    exec.set_stream_handle_reuse(true);
    let a = stream(&exec);
    write(&exec, a, 0, 64, 1);
    exec.destroy_stream(0, a, false).expect("destroyed");
    let b = stream(&exec);
    assert_eq!(a, b, "the handle is given out again");
    write(&exec, b, 0, 64, 2);
    let findings = exec.take_findings();
    assert_eq!(findings.len(), 1, "another stream, whatever its handle");
    exec.synchronize_device(0, WAIT_FOREVER).expect("waited");
    write(&exec, 0, 0, 64, 3);
    assert_eq!(exec.take_findings(), []);
}

#[test]
fn ten_thousand_streams_take_few_slots() {
    let exec = executor(4);
    let e = event(&exec);
    for round in 0..10_000_u64 {
        let s = stream(&exec);
        write(&exec, s, round % 64 * 512, 512, round + 1);
        exec.record_event(0, e, s).expect("recorded");
        exec.synchronize_event(e, WAIT_FOREVER).expect("waited");
        exec.destroy_stream(0, s, false).expect("destroyed");
    }
    assert_eq!(exec.findings(), []);
    assert!(exec.shared.lock().streams.len() < 8);
}

#[test]
fn a_closure_cannot_wait_or_queue() {
    let exec = Arc::new(executor(0));
    let seen = Arc::new(AtomicU64::new(0));
    let (inner, result) = (Arc::downgrade(&exec), Arc::clone(&seen));
    let work = move || {
        let exec = inner.upgrade().expect("alive");
        let refused = [
            exec.synchronize_stream(0, 0, WAIT_FOREVER),
            exec.submit(0, 0, Task::new("nested")),
            exec.synchronize_device(0, WAIT_FOREVER),
        ];
        result.store(refused.iter().filter(|r| **r == Err(507_000)).count() as u64, Ordering::Relaxed);
    };
    exec.launch_host_func(0, 0, Box::new(work)).expect("launched");
    assert_eq!(seen.load(Ordering::Relaxed), 3);
    assert!(!in_callback());
}
