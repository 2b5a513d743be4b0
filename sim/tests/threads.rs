//! Work run by threads: it happens later, in the order of its stream, and host waits wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use ascend_sim::{BackingMode, ExecMode, Sim, SimConfig, Task, codes};
use parking_lot::Mutex;

const STREAM_SYNC_TIMEOUT: i32 = 507_046;
const EVENT_SYNC_TIMEOUT: i32 = 507_047;

fn machine() -> Sim {
    let sim = Sim::new(SimConfig {
        backing: BackingMode::MetadataOnly,
        exec_mode: ExecMode::Threads,
        ..SimConfig::default()
    });
    sim.set_device(0).unwrap();
    sim
}

/// A task that lasts until it is told to end.
#[derive(Clone, Default)]
struct Gate(Arc<AtomicBool>);

impl Gate {
    fn task(&self) -> Task {
        let gate = self.clone();
        Task::new("gate").works(move || {
            while !gate.0.load(SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        })
    }

    fn open(&self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn waits_end_in_time_and_say_so() {
    let (sim, gate) = (machine(), Gate::default());
    let (stream, event) = (sim.create_stream().unwrap(), sim.create_event_ex(1).unwrap());
    sim.submit(stream, gate.task()).unwrap();
    sim.record_event(event, stream).unwrap();
    assert_eq!(sim.stream_query(stream), Ok(false));
    assert_eq!(sim.query_event_status(event), Ok(false));
    assert_eq!(sim.synchronize_stream_with_timeout(stream, 5), Err(STREAM_SYNC_TIMEOUT));
    assert_eq!(sim.synchronize_event_with_timeout(event, 5), Err(EVENT_SYNC_TIMEOUT));
    assert_eq!(sim.synchronize_device_with_timeout(5), Err(STREAM_SYNC_TIMEOUT));
    gate.open();
    assert_eq!(sim.synchronize_stream_with_timeout(stream, 60_000), Ok(()));
    assert_eq!((sim.query_event_status(event), sim.stream_query(stream)), (Ok(true), Ok(true)));
}

#[test]
fn copies_stay_behind_what_is_queued_before_them() {
    let (sim, gate) = (machine(), Gate::default());
    let stream = sim.create_stream().unwrap();
    let device = sim.malloc(4096, 0).unwrap();
    let byte = || {
        let mut byte = [9];
        sim.read_bytes(device, &mut byte).unwrap();
        byte[0]
    };
    sim.submit(stream, gate.task()).unwrap();
    // SAFETY: only device memory is touched.
    unsafe { sim.memset_async(device, 4096, 5, 4096, stream).unwrap() };
    assert_eq!(byte(), 0);
    gate.open();
    sim.synchronize_stream(stream).unwrap();
    assert_eq!(byte(), 5);
}

#[test]
fn a_waiting_thread_leaves_functions_of_the_program_to_the_workers() {
    let sim = machine();
    let device = sim.malloc(4096, 0).unwrap();
    let seen: Arc<Mutex<Vec<thread::ThreadId>>> = Arc::default();
    for round in 0..200 {
        let stream = sim.create_stream().unwrap();
        // SAFETY: only device memory is touched.
        let fill = || unsafe { sim.memset_async(device, 4096, round, 4096, stream).unwrap() };
        fill();
        fill();
        let told = Arc::clone(&seen);
        sim.launch_host_func(stream, Box::new(move || told.lock().push(thread::current().id()))).unwrap();
        fill();
        sim.synchronize_stream(stream).unwrap();
        sim.destroy_stream(stream).unwrap();
    }
    let seen = seen.lock();
    assert_eq!(seen.len(), 200);
    assert!(seen.iter().all(|id| *id != thread::current().id()));
}

#[test]
fn streams_that_wait_for_one_another_all_get_on() {
    let sim = machine();
    let order: Arc<Mutex<Vec<u32>>> = Arc::default();
    let streams: Vec<u64> = (0..40).map(|_| sim.create_stream().unwrap()).collect();
    let mut before = None;
    for (number, stream) in (0..400).zip(streams.iter().cycle()) {
        if let Some(event) = before {
            sim.stream_wait_event(*stream, event).unwrap();
            sim.destroy_event(event).unwrap();
        }
        let told = Arc::clone(&order);
        sim.submit(*stream, Task::new("link").works(move || told.lock().push(number))).unwrap();
        let event = sim.create_event_ex(1).unwrap();
        sim.record_event(event, *stream).unwrap();
        before = Some(event);
    }
    sim.synchronize_device().unwrap();
    assert_eq!(*order.lock(), (0..400).collect::<Vec<_>>());
}

#[test]
fn with_a_lag_threads_begin_when_time_has_passed_or_somebody_waits() {
    let sim = Sim::new(SimConfig {
        backing: BackingMode::MetadataOnly,
        exec_mode: ExecMode::Threads,
        lag: 10,
        ..SimConfig::default()
    });
    sim.set_device(0).unwrap();
    let (one, two) = (sim.create_stream().unwrap(), sim.create_stream().unwrap());
    let (first, second) = (sim.create_event_ex(1).unwrap(), sim.create_event_ex(1).unwrap());
    sim.record_event(first, one).unwrap();
    sim.tick(9);
    assert_eq!((sim.query_event_status(first), sim.stream_query(one)), (Ok(false), Ok(false)));
    sim.tick(1);
    // The workers have it now; how long they take is their business.
    while !sim.query_event_status(first).unwrap() {
        thread::yield_now();
    }
    // A wait for one stream carries on to what it depends on, and to nothing else.
    let three = sim.create_stream().unwrap();
    sim.record_event(first, one).unwrap();
    sim.stream_wait_event(two, first).unwrap();
    sim.record_event(second, two).unwrap();
    sim.submit(three, Task::new("kernel")).unwrap();
    sim.synchronize_stream(two).unwrap();
    assert_eq!((sim.query_event_status(first), sim.query_event_status(second)), (Ok(true), Ok(true)));
    assert_eq!(sim.stream_query(three), Ok(false));
    sim.submit(three, Task::new("kernel")).unwrap();
    sim.executor().set_lag(0);
    sim.synchronize_device().unwrap();
    assert_eq!(sim.stream_query(three), Ok(true));
}

#[test]
fn destroying_waits_and_forcing_drops() {
    let sim = machine();
    let ran = Arc::new(AtomicU32::new(0));
    let count = || {
        let ran = Arc::clone(&ran);
        Task::new("count").works(move || {
            ran.fetch_add(1, SeqCst);
        })
    };
    let stream = sim.create_stream().unwrap();
    for _ in 0..100 {
        sim.submit(stream, count()).unwrap();
    }
    sim.destroy_stream(stream).unwrap();
    assert_eq!(ran.load(SeqCst), 100);

    let (stream, gate) = (sim.create_stream().unwrap(), Gate::default());
    sim.submit(stream, gate.task()).unwrap();
    for _ in 0..100 {
        sim.submit(stream, count()).unwrap();
    }
    sim.destroy_stream_force(stream).unwrap();
    assert_eq!(sim.stream_query(stream), Err(codes::RT_INVALID_HANDLE));
    gate.open();
    sim.synchronize_device().unwrap();
    assert_eq!(ran.load(SeqCst), 100);

    // A reset drops what has not begun and waits for what has.
    let (stream, gate) = (sim.create_stream().unwrap(), Gate::default());
    sim.submit(stream, gate.task()).unwrap();
    sim.submit(stream, count()).unwrap();
    let opener = {
        let gate = gate.clone();
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            gate.open();
        })
    };
    sim.reset_device(0).unwrap();
    opener.join().unwrap();
    assert!(gate.0.load(SeqCst) && ran.load(SeqCst) <= 101);
}

#[test]
fn a_machine_can_go_with_work_queued() {
    for _ in 0..20 {
        let sim = machine();
        let device = sim.malloc(1 << 20, 0).unwrap();
        let streams: Vec<u64> = (0..8).map(|_| sim.create_stream().unwrap()).collect();
        for round in 0..40 {
            for stream in &streams {
                // SAFETY: only device memory is touched.
                unsafe { sim.memset_async(device, 1 << 20, round, 1 << 20, *stream).unwrap() };
            }
        }
        drop(sim);
    }
}

#[test]
fn many_threads_use_one_machine() {
    let sim = machine();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                sim.set_device(0).unwrap();
                let (stream, event) = (sim.create_stream().unwrap(), sim.create_event_ex(1).unwrap());
                for round in 0..200 {
                    let block = sim.malloc(8192, 0).unwrap();
                    // SAFETY: only device memory is touched.
                    unsafe { sim.memset_async(block, 8192, round, 8192, stream).unwrap() };
                    sim.record_event(event, stream).unwrap();
                    sim.synchronize_event(event).unwrap();
                    let mut byte = [0];
                    sim.read_bytes(block + 8191, &mut byte).unwrap();
                    assert_eq!(i32::from(byte[0]), round % 256);
                    sim.free(block).unwrap();
                }
                sim.destroy_event(event).unwrap();
                sim.destroy_stream(stream).unwrap();
            });
        }
    });
    assert!(sim.findings().is_empty(), "{:?}", sim.findings());
    assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
}
