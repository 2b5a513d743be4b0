//! Processes that fork, start others, end in any order, are killed, or have little: the C library on the
//! simulator's. Each scenario of `ffi/tests/processes.c`, `limits.c` and `unloads.c` is a process of its own.
#![cfg(target_os = "linux")]

mod c_library;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use ascend_alloc_cli::trace::{Event, Trace};
use c_library::programs::{C, build, command, holds};
use c_library::{folder, run, say, shared, simulator};

static PROCESSES: LazyLock<PathBuf> = LazyLock::new(|| program("processes"));

static LIMITS: LazyLock<PathBuf> = LazyLock::new(|| program("limits"));

fn program(name: &str) -> PathBuf {
    build(&folder(&format!("ffi_{name}")), "c", C, &format!("{name}.c"), &[shared(), simulator()])
}

/// A scenario that holds in a folder of its own; the folder.
fn scenario(program: &Path, name: &str, set: impl FnOnce(&mut Command, &Path)) -> PathBuf {
    let folder = folder(&format!("processes_{name}"));
    let mut command = command(program);
    command.arg(name).env("FOLDER", &folder);
    set(&mut command, &folder);
    holds(name, &run(&mut command));
    folder
}

/// A trace of the program itself, and statistics as a file every 10 ms.
fn watched(command: &mut Command, folder: &Path) {
    command.env("ASCEND_ALLOC_TRACE", folder.join("all-%p.trace.zst")).env(
        "ASCEND_ALLOC_CONF",
        format!("stats_export:{}/stats-%p.json,stats_export_ms:10", folder.display()),
    );
}

/// Files of a folder by the end of their names.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let all =
        std::fs::read_dir(folder).expect("the folder is there").map(|entry| entry.expect("a file").path());
    let mut all: Vec<_> = all.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    all.sort();
    all
}

/// The trace of device 0 in a folder that has one of it.
fn trace(folder: &Path) -> Trace {
    let all = files(folder, ".trace.zst");
    let of_first = all.iter().filter(|path| !path.to_string_lossy().contains(".device"));
    let paths: Vec<_> = of_first.collect();
    assert_eq!(paths.len(), 1, "{all:?}");
    Trace::open(paths[0]).expect("a whole trace")
}

/// Allocations and frees of a trace.
fn pairs(trace: &Trace) -> (usize, usize) {
    let count = |wanted: fn(&Event) -> bool| trace.events.iter().filter(|event| wanted(event)).count();
    (
        count(|event| matches!(event, Event::Allocate { .. })),
        count(|event| matches!(event, Event::Free { .. })),
    )
}

#[test]
fn children_are_refused_or_do_nothing_and_the_parent_goes_on() {
    let folder = scenario(&PROCESSES, "children", watched);
    let (allocated, freed) = pairs(&trace(&folder));
    assert!(allocated > 20 && allocated == freed, "{allocated} {freed}");
    assert_eq!(files(&folder, ".json").len(), 1, "only the parent tells statistics");
}

/// The list of calls in a child is the header's.
#[test]
fn a_child_makes_every_call_of_the_header() {
    let header = std::fs::read_to_string(c_library::header()).expect("there is a header");
    let source = std::fs::read_to_string(Path::new(c_library::ROOT).join("ffi/tests/processes.c"));
    let source = source.expect("there is a test");
    let functions: std::collections::BTreeSet<&str> = header
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '('))
        .filter_map(|word| word.split_once('(').map(|(name, _)| name))
        .filter(|name| name.starts_with("ascend_alloc_"))
        .collect();
    let (from, to) = ("static void child_gives_back", "static void *child_calls");
    let calls = &source[source.find(from).expect("it is there")..source.find(to).expect("it is there")];
    let missing: Vec<_> = functions.iter().filter(|name| !calls.contains(&format!("{name}("))).collect();
    assert!(functions.len() >= 85 && missing.is_empty(), "no child calls {missing:?}");
}

#[test]
fn programs_are_started_from_a_process_with_an_allocator() {
    let folder = folder("processes_starts");
    let mut command = command(&PROCESSES);
    watched(command.arg("starts").env("FOLDER", &folder), &folder);
    let output = run(&mut command);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text, "fresh: all checks hold\n".repeat(12) + "starts: all checks hold\n");
    let traces = files(&folder, ".trace.zst");
    // Of the program and of twelve others.
    assert!(traces.len() >= 13, "{traces:?}");
    for path in traces {
        let (allocated, freed) = pairs(&Trace::open(&path).expect("a whole trace"));
        assert!(allocated > 0 && allocated == freed, "{}: {allocated} {freed}", path.display());
    }
}

#[test]
fn a_thread_replaces_the_program() {
    let folder = folder("processes_replaced");
    let mut command = command(&PROCESSES);
    holds("fresh", &run(command.arg("replaced").env("FOLDER", &folder)));
    let trace = Trace::open(&folder.join("before.trace")).expect("a whole trace");
    let (allocated, freed) = pairs(&trace);
    assert!(allocated >= 1 && freed >= 1, "what was flushed is there");
}

/// However it ends, the trace is whole, and has the last calls where the end is not sudden.
#[test]
fn a_process_ends_in_every_way() {
    const LAST: u64 = 5 << 20;
    for name in
        ["handler_after", "handler_before", "other_thread", "in_hook", "main_ends", "quick", "raw", "asleep"]
    {
        for _ in 0..3 {
            let folder = scenario(&PROCESSES, name, watched);
            let trace = trace(&folder);
            let bytes = trace.events.iter().filter_map(|event| match *event {
                Event::Allocate { bytes, .. } => Some(bytes),
                _ => None,
            });
            let bytes: Vec<u64> = bytes.collect();
            match name {
                "handler_after" | "other_thread" | "in_hook" | "main_ends" => {
                    assert!(bytes.contains(&LAST), "{name}: {bytes:?}");
                }
                // What handlers do that run after the allocator's own need not be there.
                _ => assert!(bytes.contains(&(7 << 20)), "{name}: what was flushed is there: {bytes:?}"),
            }
        }
    }
}

#[test]
fn both_libraries_are_closed_in_every_order() {
    let program = build(&folder("ffi_unloads"), "c", C, "unloads.c", &[]);
    for order in ["allocator_closed_first", "runtime_closed_first", "allocator_first", "allocator_alone"] {
        let mut command = command(&program);
        command.arg(order).args([shared(), simulator()]).env("ASCEND_ALLOC_ACL_LIBRARY", simulator());
        holds(order, &run(&mut command));
    }
}

/// A process that answers each line with one.
struct Other {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Other {
    fn start(name: &str, set: impl FnOnce(&mut Command)) -> Self {
        let mut command = command(&PROCESSES);
        command.arg(name).stdin(Stdio::piped()).stdout(Stdio::piped());
        set(&mut command);
        let mut child = command.spawn().expect("it is a program");
        let (to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Self { child, to, from: BufReader::new(from) }
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("readable");
        line.trim_end().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.to, "{line}").expect("it reads");
        self.hear()
    }

    fn kill(mut self) {
        self.child.kill().expect("it runs");
        let status = self.child.wait().expect("it is ours");
        assert_eq!(status.signal(), Some(9), "it had ended before: {status}");
    }

    /// Lets it end by itself.
    fn end(mut self, name: &str) {
        let said = self.ask("end");
        assert_eq!(said, format!("{name}: all checks hold"));
        assert!(self.child.wait().expect("it is ours").success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended.
        let _ended = self.child.kill();
        let _collected = self.child.wait();
    }
}

/// Starts an exporter; it and its message.
fn exporter() -> (Other, String) {
    let mut exporter = Other::start("exporter", |_| {});
    let line = exporter.hear();
    let message = line.strip_prefix("message ").unwrap_or_else(|| panic!("{line}")).to_owned();
    (exporter, message)
}

/// At any moment of mapping, reading and unmapping; the exporter does not notice.
#[test]
fn importers_are_killed() {
    let (mut exporter, message) = exporter();
    for round in 0..8 {
        let mut importer = Other::start("importer", |_| {});
        if round % 2 == 0 {
            assert_eq!(importer.ask(&format!("import {message}")), "import 0");
        } else {
            assert_eq!(importer.ask(&format!("loop {message}")), "looping");
            // Somewhere in the middle.
            std::thread::sleep(Duration::from_millis(round));
        }
        importer.kill();
        assert_eq!(exporter.ask("byte"), "byte 7");
    }
    exporter.end("exporter");
}

/// What is mapped stays readable until it is released; new imports are refused; the importer goes on.
#[test]
fn exporters_are_killed() {
    for round in 0..6 {
        let (first, message) = exporter();
        let mut importer = Other::start("importer", |_| {});
        if round % 2 == 0 {
            assert_eq!(importer.ask(&format!("import {message}")), "import 0");
            first.kill();
            assert_eq!(importer.ask("byte"), "byte 7");
            assert_eq!(importer.ask("release"), "released");
            assert_eq!(importer.ask(&format!("import {message}")), "import 4", "the driver refuses");
        } else {
            assert_eq!(importer.ask(&format!("loop {message}")), "looping");
            std::thread::sleep(Duration::from_millis(3 * round));
            first.kill();
            assert_eq!(importer.hear(), "gone");
        }
        let (second, message) = exporter();
        assert_eq!(importer.ask(&format!("import {message}")), "import 0", "of another one");
        assert_eq!(importer.ask("release"), "released");
        importer.end("importer");
        second.end("exporter");
    }
}

/// What was written can be read, and the next process takes over what the killed one left.
#[test]
fn a_process_that_records_is_killed() {
    let folder = folder("processes_victim");
    for round in 0..4 {
        let _before = std::fs::remove_file(folder.join("killed.trace.zst"));
        let mut victim = Other::start("victim", |command| {
            command.env("FOLDER", &folder).env("ASCEND_ALLOC_TRACE", folder.join("killed.trace.zst"));
            let exported = if round % 2 == 0 { "stats.json" } else { "stats.sock" };
            command.env("EXPORTED", exported);
            let conf = format!("stats_export:{}/{exported},stats_export_ms:10", folder.display());
            command.env("ASCEND_ALLOC_CONF", conf);
        });
        assert_eq!(victim.hear(), "running");
        std::thread::sleep(Duration::from_millis(60 * round));
        victim.kill();
        let trace = Trace::open(&folder.join("killed.trace.zst")).expect("a whole trace");
        let (allocated, freed) = pairs(&trace);
        assert!(allocated >= 6 && freed >= 3, "what was flushed is there: {allocated} {freed}");
        if round == 2 {
            let text = std::fs::read_to_string(folder.join("stats.json")).expect("there are statistics");
            serde_json::from_str::<serde_json::Value>(&text).expect("a whole document");
        }
    }
    // The socket of a dead process is in the way of nobody.
    assert!(folder.join("stats.sock").exists());
    let socket = folder.join("stats.sock");
    let mut command = command(&LIMITS);
    command.arg("readers_leave").env("FOLDER", &folder).env("SOCKET", &socket);
    command.env("ASCEND_ALLOC_CONF", format!("stats_export:{}", socket.display()));
    holds("readers_leave", &run(&mut command));
}

#[test]
fn signals_come_all_the_time() {
    for name in ["storm_restarts", "storm_interrupts"] {
        let folder = scenario(&LIMITS, name, |command, folder| {
            command.env(
                "ASCEND_ALLOC_CONF",
                format!("stats_export:{}/stats.json,stats_export_ms:10", folder.display()),
            );
        });
        Trace::open(&folder.join("storm.trace.zst")).expect("a whole trace");
        for name in ["stats.json", "storm.json"] {
            let text = std::fs::read_to_string(folder.join(name)).expect("it was written");
            serde_json::from_str::<serde_json::Value>(&text).expect("a whole document");
        }
    }
}

#[test]
fn threads_of_the_allocator_take_no_signals() {
    scenario(&LIMITS, "threads_take_none", |command, folder| {
        // The simulator's own workers would.
        command.env("ASCEND_SIM_EXEC", "deterministic");
        command.env("ASCEND_ALLOC_CONF", format!("stats_export:{}/stats.json", folder.display()));
    });
}

#[test]
fn readers_of_statistics_go_away() {
    scenario(&LIMITS, "readers_leave", |command, folder| {
        let socket = folder.join("s.sock");
        command.env("SOCKET", &socket).env("ASCEND_ALLOC_CONF", format!("stats_export:{}", socket.display()));
    });
}

#[test]
fn no_descriptor_is_left() {
    let folder = scenario(&LIMITS, "descriptors", |command, folder| {
        command.env(
            "ASCEND_ALLOC_CONF",
            format!("stats_export:{}/stats-%p.json,stats_export_ms:10", folder.display()),
        );
    });
    let trace = Trace::open(&folder.join("first.trace")).expect("a whole trace");
    let (allocated, freed) = pairs(&trace);
    assert!(allocated >= 500 && allocated == freed, "{allocated} {freed}");
}

#[test]
fn no_address_space_is_left() {
    scenario(&LIMITS, "space", |_, _| {});
}

#[test]
fn no_memory_may_be_locked() {
    scenario(&LIMITS, "locked", |_, _| {});
}

/// What a full disk leaves: a whole trace with everything, and a file of events that says how many are missing.
#[track_caller]
fn after_a_full_disk(folder: &Path, errors: &str) {
    let trace = Trace::open(&folder.join("full.trace")).expect("a whole trace");
    assert_eq!(pairs(&trace), (9000, 9000), "what could not be written came later");
    let events = std::fs::read_to_string(folder.join("full.events")).expect("there are events");
    assert!(events.lines().any(|line| line.starts_with("# lost ")), "it says what is missing");
    assert!(errors.contains("cannot be written") && errors.contains("tried again"), "{errors}");
    assert!(files(folder, ".new").is_empty(), "no half of a file is left");
}

#[test]
fn files_may_not_grow() {
    let folder = folder("processes_limited");
    let mut command = command(&LIMITS);
    command.arg("full_disk").env("FOLDER", &folder).env("BY_LIMIT", "1");
    command.env("ASCEND_ALLOC_CONF", format!("oom_report:{}/oom", folder.display()));
    let output = run(&mut command);
    holds("full_disk", &output);
    after_a_full_disk(&folder, &String::from_utf8_lossy(&output.stderr));
}

/// A file system of a megabyte, in a name space of its own, which goes with the process.
#[test]
fn a_disk_fills_up() {
    let (folder, copy) = (folder("processes_full"), folder("processes_full_copy"));
    let small = r#"mount -t tmpfs -o size=1m tmpfs "$0" || exit 77; "$1" full_disk; code=$?; cp "$0"/full.* "$2"; exit $code"#;
    let mut unshare = command(Path::new("unshare"));
    unshare.args(["--mount", "sh", "-c", small]).args([&folder, &*LIMITS, &copy]).env("FOLDER", &folder);
    unshare.env("ASCEND_ALLOC_CONF", format!("oom_report:{}/oom", folder.display()));
    let output = match unshare.output() {
        Ok(output) if output.status.code() != Some(77) && !starts_nothing(&output) => output,
        _ => {
            return say(
                "NOT CHECKED: a full disk (no small file system can be mounted here; files_may_not_grow is run)",
            );
        }
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    holds("full_disk", &output);
    after_a_full_disk(&copy, &errors);
}

/// Whether `unshare` itself was refused.
fn starts_nothing(output: &std::process::Output) -> bool {
    !output.status.success() && String::from_utf8_lossy(&output.stderr).starts_with("unshare:")
}
