//! Files of what happens: traces that are recorded and replayed, and files of events; also when the disk refuses.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::history::{Action, Event, HistoryOptions, with_context};
use ascend_alloc::{Config, DeviceAllocator, Error};
use ascend_alloc_cli::figures::{Plan, measure};
use ascend_alloc_cli::meter::Counting;
use ascend_alloc_cli::replay::{OnOom, Player};
use ascend_alloc_cli::report::Report;
use ascend_alloc_cli::rig::{Rig, RigOptions};
use ascend_alloc_cli::trace::Trace;
use ascend_sim::{Sim, SimConfig};

const MIB: u64 = 1 << 20;
const S0: Stream = Stream(0);

/// A folder of this test's own, empty.
fn folder(name: &str) -> PathBuf {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("recording-{name}-{}", std::process::id()));
    // It need not be there.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn allocator(conf: &str, devices: u32) -> (Sim, DeviceAllocator) {
    let sim = Sim::new(SimConfig { devices, capacity: 1 << 30, ..SimConfig::default() });
    let config = Config::parse(conf).expect("a configuration");
    let allocator =
        DeviceAllocator::new(config, Arc::new(SimDriver::new(sim.clone()))).expect("an allocator");
    (sim, allocator)
}

fn rig(conf: &str) -> RigOptions {
    let config = Config::parse(conf).expect("a configuration");
    RigOptions { memory: 8 << 30, config, lag: 0, checker: true, bytes: false }
}

/// Replays a trace while another one is recorded; that one.
fn recorded(trace: &Trace, path: &Path) -> Trace {
    let rig =
        Rig::new(&rig(&format!("trace_file:{}", path.display())), trace.streams.len(), Counting::default())
            .unwrap();
    let mut player = Player::new(&rig, trace, false);
    player.pass(OnOom::Stop, &mut ()).unwrap();
    drop(player);
    drop(rig);
    Trace::open(path).unwrap()
}

/// The figures of a trace, without those that no two runs share.
fn figures(trace: &Trace) -> Report {
    let plan = Plan { rig: rig(""), conf: String::new(), passes: 1, verify: false, min_memory: false };
    let report = measure(trace, &plan, &mut |_, _| {}).unwrap();
    assert!(report.findings.is_empty() && report.peak_physical > 0, "{report:?}");
    Report { trace: String::new(), ns_per_op: 0.0, driver_ns_per_op: 0.0, ..report }
}

#[test]
fn a_recorded_replay_of_t0_replays_to_the_same_figures() {
    let folder = folder("t0");
    let original = Trace::open(Path::new("traces/T0.trace.zst")).unwrap();
    for name in ["packed.trace.zst", "plain.trace"] {
        let copy = recorded(&original, &folder.join(name));
        assert_eq!(
            copy.events, original.events,
            "each event in its order, with waits of the host and markers"
        );
        assert_eq!((&copy.labels, copy.peak_live), (&original.labels, original.peak_live));
        assert_eq!(figures(&copy), figures(&original));
    }
    std::fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn uses_on_other_streams_are_recorded() {
    let folder = folder("uses");
    let mut text = String::from("m begin\n");
    for id in 0..400 {
        let stream = id % 3;
        let bytes = [700, 5 << 20, 30_000][id as usize % 3];
        text += &format!("a {id} {bytes} {stream}\nr {id} {}\n", (stream + 1) % 3);
        if id >= 4 {
            text += &format!("f {}\n", id - 4);
        }
        if id % 50 == 0 {
            text += &format!("s {stream}\nm step {id}\n");
        }
    }
    let original = Trace::read("made", "made", text.as_bytes()).unwrap();
    let copy = recorded(&original, &folder.join("uses.trace.zst"));
    assert_eq!(copy.events, original.events);
    assert_eq!(copy.labels, original.labels);
    std::fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn a_trace_can_begin_in_the_middle_and_each_device_has_its_own() {
    let folder = folder("middle");
    let (_, allocator) = allocator("", 3);
    let old = allocator.allocate(1, 3 * MIB, 0, S0).unwrap();
    let gone = allocator.allocate(1, 700, 0, S0).unwrap();
    allocator.deallocate(gone).unwrap();
    let path = folder.join("a.trace.zst");
    allocator.start_trace(path.to_str().unwrap()).unwrap();
    let new = allocator.allocate(1, 900, 0, S0).unwrap();
    let elsewhere = allocator.allocate(2, 5 * MIB, 0, S0).unwrap();
    assert!(allocator.grow_in_place(new, 950).unwrap());
    allocator.deallocate(old).unwrap();
    allocator.deallocate(elsewhere).unwrap();
    assert!(allocator.flush_files());
    let early = Trace::open(&path).expect("what is there is a whole trace at any time");
    allocator.deallocate(new).unwrap();
    assert!(allocator.stop_trace());
    assert!(!allocator.stop_trace());
    let after = allocator.allocate(1, 700, 0, S0).unwrap();
    allocator.deallocate(after).unwrap();

    let of = |trace: &Trace| {
        use ascend_alloc_cli::trace::Event::{Allocate, Free};
        let told = trace.events.iter().map(|event| match *event {
            Allocate { block, bytes, .. } => format!("a {block} {bytes}"),
            Free { block } => format!("f {block}"),
            other => format!("{other:?}"),
        });
        told.collect::<Vec<_>>()
    };
    let trace = Trace::open(&path).unwrap();
    assert_eq!(of(&trace), ["a 0 3145728", "a 1 900", "f 1", "a 2 950", "f 0", "f 2"]);
    assert_eq!(of(&early), of(&trace)[..5]);
    let other = Trace::open(&folder.join("a.device2.trace.zst")).unwrap();
    assert_eq!(of(&other), ["a 0 5242880", "f 0"]);
    assert_eq!(allocator.history_status().bytes, 0, "nobody keeps events any more");

    let missing = folder.join("missing").join("a.trace");
    match allocator.start_trace(missing.to_str().unwrap()) {
        Err(Error::File { path, reason }) => assert!(path == missing.to_str().unwrap() && !reason.is_empty()),
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        allocator.start_history_file(missing.to_str().unwrap(), MIB, 1),
        Err(Error::File { .. })
    ));
    std::fs::remove_dir_all(folder).expect("removed");
}

/// The lines of a file of events.
fn lines(path: &Path) -> Vec<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    match path.extension().is_some_and(|ending| ending == "zst") {
        true => zstd::Decoder::new(file).unwrap().read_to_string(&mut text).unwrap(),
        false => { std::io::BufReader::new(file) }.read_to_string(&mut text).unwrap(),
    };
    text.lines().map(str::to_owned).collect()
}

fn events(lines: &[String]) -> Vec<Event> {
    let told = lines.iter().filter(|line| line.starts_with(|letter: char| letter.is_ascii_digit()));
    told.map(|line| line.parse().unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

#[test]
fn a_file_has_all_events_and_what_contexts_stand_for() {
    let folder = folder("events");
    for name in ["e.txt", "e.zst"] {
        let path = folder.join(name);
        let (_, allocator) = allocator(&format!("history_file:{},history_entries:100000", path.display()), 1);
        with_context("layer\n1", || {
            for _ in 0..500 {
                let ptr = allocator.allocate(0, 3 * MIB, 0, S0).unwrap();
                allocator.deallocate(ptr).unwrap();
            }
        });
        let kept = allocator.history();
        assert_eq!(kept.lost, 0);
        drop(allocator);
        let lines = lines(&path);
        assert_eq!(lines[0], "# ascend-alloc history 1");
        let told = events(&lines);
        assert_eq!(told[..kept.events.len()], kept.events);
        assert_eq!(told.last().unwrap().action, Action::SegmentUnmap, "the end of the allocator is in it");
        let context = kept.events[0].context.unwrap().get();
        let explained = lines.iter().position(|line| *line == format!("c {context} layer 1")).unwrap();
        assert_eq!(explained, 1, "before its first use, and once");
        assert_eq!(lines.iter().filter(|line| line.starts_with("c ")).count(), 1);
    }
    std::fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn a_file_has_what_several_threads_do_in_one_order_and_memory_stays_small() {
    let folder = folder("threads");
    let path = folder.join("e.zst");
    let (sim, allocator) = allocator(&format!("history_file:{}", path.display()), 1);
    sim.set_device(0).unwrap();
    let streams: Vec<Stream> = (0..3).map(|_| Stream(sim.create_stream().unwrap())).collect();
    std::thread::scope(|scope| {
        for &stream in &streams {
            let allocator = &allocator;
            scope.spawn(move || {
                for round in 0..20_000 {
                    let ptr = allocator.allocate(0, 700 + round % 3 * 1000, 0, stream).unwrap();
                    allocator.deallocate(ptr).unwrap();
                }
            });
        }
    });
    assert!(allocator.flush_files());
    let last = allocator.history_status().last;
    // What is written is dropped as soon as the next list is full: one of 4 KiB takes 170 events.
    for _ in 0..128 {
        let ptr = allocator.allocate(0, 700, 0, streams[0]).unwrap();
        allocator.deallocate(ptr).unwrap();
    }
    assert!(allocator.history_status().bytes < 4_000 * 72, "{:?}", allocator.history_status());
    drop(allocator);
    let lines = lines(&path);
    assert!(!lines.iter().any(|line| line.starts_with("# lost")));
    let told = events(&lines);
    assert!(told.windows(2).all(|two| two[0].sequence + 1 == two[1].sequence), "each once, in order");
    assert!(last > 120_000 && told.last().unwrap().sequence >= last + 256);
    std::fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn files_take_turns_and_the_oldest_go() {
    let folder = folder("turns");
    let path = folder.join("e.txt");
    let (_, allocator) = allocator("", 1);
    let warm = allocator.allocate(0, 3 * MIB, 0, S0).unwrap();
    allocator.deallocate(warm).unwrap();
    allocator.start_history_file(path.to_str().unwrap(), 2000, 3).unwrap();
    for _ in 0..10 {
        for _ in 0..20 {
            let ptr = allocator.allocate(0, 3 * MIB, 0, S0).unwrap();
            allocator.deallocate(ptr).unwrap();
        }
        assert!(allocator.flush_files());
    }
    assert!(allocator.stop_history_file());
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    // By number; the one without is the last.
    let number =
        |name: &String| name.split('.').nth(1).and_then(|part| part.parse().ok()).unwrap_or(u32::MAX);
    names.sort_by_key(number);
    assert_eq!(names.len(), 3, "{names:?}");
    let mut all = Vec::new();
    for name in [&names[0], &names[1], &names[2]] {
        let lines = lines(&folder.join(name));
        assert_eq!(lines[0], "# ascend-alloc history 1", "each file can be read alone");
        all.extend(events(&lines));
    }
    assert!(all.windows(2).all(|two| two[0].sequence + 1 == two[1].sequence), "no gap between files");
    assert_eq!(all.last().unwrap().sequence, allocator.history_status().last);
    assert!(all.len() < 400);
    std::fs::remove_dir_all(folder).expect("removed");
}

/// What earlier processes put aside under the same name counts too, and nothing else that has such a name.
#[test]
fn files_of_earlier_runs_count_and_others_stay() {
    for ending in ["txt", "zst"] {
        let folder = folder(&format!("earlier-{ending}"));
        let path = folder.join(format!("e.{ending}"));
        let file = |number: u32| folder.join(format!("e.{number}.{ending}"));
        // A file of the user's, and one whose name is none that is given.
        std::fs::write(file(3), "precious").unwrap();
        std::fs::write(folder.join(format!("e.04.{ending}")), "# ascend-alloc history 1\n").unwrap();
        let mut last = 0;
        for most in [4, 4, 2, 1] {
            let (_, allocator) = allocator("", 1);
            allocator.start_history_file(path.to_str().unwrap(), 300, most).unwrap();
            for _ in 0..15 {
                churn(&allocator, 100);
            }
            assert!(allocator.stop_history_file());
            assert_eq!(allocator.failed_writes(), 0);
            let mut numbers: Vec<u32> = (1..1000).filter(|&number| file(number).is_file()).collect();
            numbers.retain(|&number| number != 3);
            assert_eq!(numbers.len(), most as usize - 1, "{numbers:?}");
            assert!(numbers.iter().all(|&number| number > last), "numbers go on: {numbers:?} after {last}");
            last = numbers.last().copied().unwrap_or(last);
        }
        assert_eq!(std::fs::read(file(3)).unwrap(), b"precious");
        assert!(folder.join(format!("e.04.{ending}")).is_file());
        std::fs::remove_dir_all(folder).expect("removed");
    }
}

/// A full disk: `/dev/full` takes nothing.
/// Allocates and frees so often, and has the file written.
fn churn(allocator: &DeviceAllocator, times: usize) {
    for _ in 0..times {
        let ptr = allocator.allocate(0, 3 * MIB, 0, S0).unwrap();
        allocator.deallocate(ptr).unwrap();
    }
    assert!(allocator.flush_files());
}

#[test]
fn a_file_that_cannot_be_put_aside_grows_on() {
    let folder = folder("aside");
    let path = folder.join("e.txt");
    std::fs::create_dir_all(folder.join("e.1.txt/in the way")).unwrap();
    let (_, allocator) = allocator("", 1);
    allocator.start_history_file(path.to_str().unwrap(), 2000, 2).unwrap();
    for _ in 0..4 {
        churn(&allocator, 40);
    }
    let before = allocator.failed_writes();
    assert!(before > 0, "it is counted");
    assert!(allocator.flush_files());
    assert_eq!(allocator.failed_writes(), before, "tried again with the next piece only");
    let all = events(&lines(&path));
    assert_eq!(
        (all[0].sequence, all.len() as u64),
        (1, allocator.history_status().last),
        "nothing is missing"
    );
    // Once the place is free it is put aside, and a file that somebody else has removed is none too many.
    std::fs::remove_dir_all(folder.join("e.1.txt")).unwrap();
    churn(&allocator, 1);
    std::fs::remove_file(folder.join("e.1.txt")).unwrap();
    for _ in 0..4 {
        churn(&allocator, 40);
    }
    assert_eq!(allocator.failed_writes(), before);
    drop(allocator);
    std::fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn allocators_with_one_name_write_over_no_file_of_each_other() {
    let folder = folder("two");
    let path = folder.join("e.txt");
    let allocators = [(); 3].map(|()| allocator("", 1).1);
    for allocator in &allocators {
        allocator.start_history_file(path.to_str().unwrap(), 2000, 100).unwrap();
    }
    for _ in 0..6 {
        allocators.iter().for_each(|allocator| churn(allocator, 40));
    }
    assert!(allocators.iter().all(DeviceAllocator::stop_history_file));
    let written: u64 = allocators.iter().map(|allocator| allocator.history_status().last).sum();
    let entries = std::fs::read_dir(&folder).unwrap();
    let read: u64 = entries.map(|entry| events(&lines(&entry.unwrap().path())).len() as u64).sum();
    assert_eq!(read, written);
    std::fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn a_full_disk_disturbs_nobody_and_is_counted() {
    let (_, allocator) = allocator("history_file:/dev/full,trace_file:/dev/full.trace/no", 1);
    let mut live = Vec::new();
    for round in 0..2000 {
        live.push(allocator.allocate(0, 1000 + round, 0, S0).unwrap());
        if live.len() > 10 {
            allocator.deallocate(live.remove(0)).unwrap();
        }
    }
    assert!(allocator.flush_files());
    assert!(allocator.failed_writes() >= 2, "{}", allocator.failed_writes());
    assert_eq!(allocator.check(), Ok(()));
    assert!(!allocator.stop_history_file() || allocator.history_status().bytes > 0);
}

#[test]
fn a_file_that_falls_behind_says_what_is_lost() {
    // As many events as are kept for a file, and more, before its thread has a turn: impossible to hold up from
    // here, so the reader's end is looked at alone.
    let (_, allocator) = allocator("", 1);
    allocator.start_history(&HistoryOptions { entries: 10, ..HistoryOptions::default() });
    for _ in 0..100 {
        let ptr = allocator.allocate(0, 700, 0, S0).unwrap();
        allocator.deallocate(ptr).unwrap();
    }
    let first = allocator.drain_history();
    assert_eq!(first.events.len() as u64 + first.lost, allocator.history_status().last);
    assert_eq!(first.events.len(), 10);
    assert_eq!(allocator.drain_history(), ascend_alloc::history::HistoryBatch::default());
}

#[test]
fn lines_that_are_no_events_are_refused_with_a_reason() {
    let good = "7 100 alloc 0 512 1024 700 5 0 0 3";
    let event: Event = good.parse().unwrap();
    assert_eq!((event.action, event.stream, event.context.unwrap().get()), (Action::Allocate, Stream(5), 3));
    assert_eq!(event.to_string(), good);
    for (line, reason) in [
        ("", "sequence is missing"),
        ("7 100 alloc 0 512 1024 700 5 0 0", "context is missing"),
        ("7 100 alloc 0 512 1024 700 5 0 0 3 4", "behind the last field"),
        ("7 100 allocate 0 512 1024 700 5 0 0 3", "no action"),
        ("7 100 alloc 4294967296 512 1024 700 5 0 0 3", "32 bits"),
        ("-7 100 alloc 0 512 1024 700 5 0 0 3", "whole number"),
        ("7 100 alloc 0 512 1024 700 18446744073709551616 0 0 3", "whole number"),
    ] {
        let error = line.parse::<Event>().unwrap_err().to_string();
        assert!(error.contains(reason), "{line}: {error}");
    }
}

/// `ASCEND_ALLOC_TRACE` works in any process, and also where the allocator is never dropped: the end of the process
/// writes the rest. This test starts itself.
#[test]
fn the_variable_records_a_process_that_never_drops_its_allocator() {
    const INSIDE: &str = "ASCEND_ALLOC_TEST_RECORDING_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        let (_, allocator) = allocator("", 1);
        let allocator = Box::leak(Box::new(allocator));
        for _ in 0..5 {
            let ptr = allocator.allocate(0, 3 * MIB, 0, S0).unwrap();
            allocator.deallocate(ptr).unwrap();
        }
        std::process::exit(0);
    }
    let folder = folder("variable");
    let path = folder.join("of-%p.trace.zst");
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_variable_records_a_process_that_never_drops_its_allocator"])
        .env("ASCEND_ALLOC_TRACE", &path)
        .env(INSIDE, "1")
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    assert!(child.wait().unwrap().success());
    let trace = Trace::open(&folder.join(format!("of-{}.trace.zst", child.id()))).unwrap();
    assert_eq!((trace.blocks, trace.events.len(), trace.peak_live), (5, 10, 3 * MIB));
    std::fs::remove_dir_all(folder).expect("removed");
}
