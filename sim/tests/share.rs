//! Memory shared by two real processes: this test and another run of its own program.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use ascend_sim::exec::{EVENT_IPC, EVENT_SYNC};
use ascend_sim::{BackingMode, LAG_NEVER, PhysicalProp, Share, Sim, SimConfig, Task, codes};

const HUGE: u64 = 2 << 20;
/// Set for the other process: how it keeps bytes.
const ROLE: &str = "ASCEND_SIM_TEST_SHARE";

fn machine(backing: BackingMode) -> Sim {
    let sim = Sim::new(SimConfig { backing, devices: 2, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    sim
}

fn backings() -> [(BackingMode, &'static str); 2] {
    [(BackingMode::Mapped, "mapped"), (BackingMode::MetadataOnly, "tables")]
}

/// A chunk with bytes in it, mapped.
fn chunk(sim: &Sim, size: u64, value: u8) -> (u64, u64) {
    let range = sim.reserve(size).unwrap();
    let handle = sim.malloc_physical(size, &PhysicalProp::device(0), 0).unwrap();
    sim.map(range, size, 0, handle, 0).unwrap();
    sim.fill_bytes(range, size, value).unwrap();
    (range, handle)
}

/// The other process; it answers one line to each line it is told.
struct Other {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Other {
    fn start(role: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new(program)
            .args(["--exact", "the_other_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, to, from }
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.to, "{line}").unwrap();
        self.to.flush().unwrap();
        loop {
            let mut answer = String::new();
            assert!(self.from.read_line(&mut answer).unwrap() > 0, "the other process ended");
            // The test harness prints lines of its own.
            if let Some(at) = answer.find("answer ") {
                return answer[at + 7..].trim().to_owned();
            }
        }
    }

    fn number(&mut self, line: &str) -> u64 {
        self.ask(line).parse().unwrap()
    }

    fn id(&self) -> i32 {
        self.child.id() as i32
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the other process does; run by the tests below only.
#[test]
#[ignore = "the part of another process, started by the other tests"]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (backing, _) = backings().into_iter().find(|(_, name)| *name == role).unwrap();
    let sim = machine(backing);
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<u64>().unwrap();
        let answer = match words[0] {
            "import" => sim.import_handle(number(1), 1),
            "map" => sim
                .reserve(number(2))
                .and_then(|start| sim.map(start, number(2), 0, number(1), 0).map(|()| start)),
            "unmap" => sim.unmap(number(1)).map(|()| 0),
            "free" => sim.free_physical(number(1)).map(|()| 0),
            "read" => {
                let mut byte = [0];
                sim.read_bytes(number(1), &mut byte).map(|()| u64::from(byte[0]))
            }
            "write" => sim.fill_bytes(number(1), 1, number(2) as u8).map(|()| 0),
            "used" => Ok(sim.physical_bytes(0) + sim.physical_bytes(1)),
            "open" => sim.ipc_import(words[1], 0),
            "close" => sim.ipc_close(words[1]).map(|()| 0),
            // SAFETY: device memory, and a buffer that outlives a copy that does not wait for a stream.
            "put" => unsafe {
                let byte = [number(2) as u8];
                sim.memcpy(number(1), 1, byte.as_ptr().expose_provenance() as u64, 1, 1).map(|()| 0)
            },
            // SAFETY: pinned memory that is never freed.
            "get" => unsafe {
                let byte = sim.malloc_host(64).unwrap();
                sim.memcpy_async(byte, 1, number(1), 1, 2, 0).map(|()| 0)
            },
            // SAFETY: only device memory is named.
            "move" => unsafe { sim.memcpy(number(1), 64, number(2), 64, 3).map(|()| 0) },
            // SAFETY: only device memory is named.
            "queue" => unsafe { sim.memcpy_async(number(1), 64, number(2), 64, 3, 0).map(|()| 0) },
            "block" => sim.malloc(number(1), 0),
            "event" => {
                let mut handle = [0; 64];
                for (byte, pair) in handle.iter_mut().zip(words[1].as_bytes().chunks(2)) {
                    *byte = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
                }
                sim.ipc_open_event(&handle)
            }
            // An event of its own; what its handle differs by from others.
            "make" => sim.create_event_ex(EVENT_IPC).and_then(|event| {
                let handle = sim.ipc_event_handle(event)?;
                sim.record_event(event, 0)?;
                Ok(u64::from_ne_bytes(std::array::from_fn(|at| handle[8 + at])))
            }),
            "record" => sim.record_event(number(1), 0).map(|()| 0),
            "query" => sim.query_event_status(number(1)).map(u64::from),
            "wait" => sim.stream_wait_event(0, number(1)).and(sim.synchronize_stream(0)).map(|()| 0),
            "lag" => {
                sim.executor().set_lag(LAG_NEVER);
                Ok(0)
            }
            "wait_for" => sim
                .stream_wait_event_with_timeout(0, number(1), 5)
                .and(sim.stream_wait_event_with_flag(0, number(1), 0))
                .and(sim.synchronize_stream(0))
                .map(|()| 0),
            "export" => {
                let (_, handle) = chunk(&sim, number(1), number(2) as u8);
                sim.export_handle(handle, 0, 1)
            }
            _ => panic!("what is {line}?"),
        };
        println!("answer {}", answer.map_or_else(|code| code.to_string(), |value| value.to_string()));
    }
}

#[test]
fn a_chunk_is_one_memory_in_two_processes() {
    for (backing, role) in backings() {
        let sim = machine(backing);
        let (range, handle) = chunk(&sim, 3 * HUGE, 7);
        let alias = sim.reserve(3 * HUGE).unwrap();
        sim.map(alias, 3 * HUGE, 0, handle, 0).unwrap();
        let shared = sim.export_handle(handle, 0, 0).unwrap();
        assert_eq!(sim.export_handle(handle, 0, 0), Ok(shared));
        let mut byte = [0];
        sim.read_bytes(range + 3 * HUGE - 1, &mut byte).unwrap();
        assert_eq!(byte, [7], "exporting keeps the bytes");
        sim.fill_bytes(range, 1, 8).unwrap();
        sim.read_bytes(alias, &mut byte).unwrap();
        assert_eq!(byte, [8], "aliases stay aliases");

        let mut other = Other::start(role);
        assert_eq!(other.ask(&format!("import {shared}")), codes::RT_NO_PERMISSION.to_string());
        sim.set_share_pids(shared, &[other.id()]).unwrap();
        let theirs = other.number(&format!("import {shared}"));
        assert_eq!(other.number(&format!("import {shared}")), theirs, "imports count on one object");
        let part = other.ask(&format!("map {theirs} {HUGE}"));
        assert_eq!(part, codes::RT_PARAM_INVALID.to_string(), "the size is the exporter's");
        let at = other.number(&format!("map {theirs} {}", 3 * HUGE));
        assert_eq!((other.number(&format!("read {at}")), other.number("used")), (8, 0));
        other.number(&format!("write {} 99", at + HUGE));
        sim.read_bytes(range + HUGE, &mut byte).unwrap();
        assert_eq!(byte, [99]);
        // The exporter gives everything up; the importer still has the memory.
        for start in [range, alias] {
            sim.unmap(start).unwrap();
        }
        sim.free_physical(handle).unwrap();
        assert_eq!(sim.physical_bytes(0), 0);
        assert_eq!(other.number(&format!("read {}", at + HUGE)), 99);
        for (line, code) in [("free", 0), ("free", 0), ("free", codes::RT_PARAM_INVALID)] {
            assert_eq!(other.ask(&format!("{line} {theirs}")), code.to_string());
        }
        assert_eq!(other.number(&format!("read {at}")), 8, "its mapping keeps it");
        assert_eq!(other.ask(&format!("unmap {at}")), "0");
        assert_eq!(other.ask(&format!("import {shared}")), codes::RT_DRV_INTERNAL_ERROR.to_string());
    }
}

#[test]
fn what_is_imported_outlives_an_exporter_that_is_killed() {
    for (backing, role) in backings() {
        let sim = machine(backing);
        let mut other = Other::start(role);
        let (one, two) = (other.number("export 2097152 41"), other.number("export 2097152 42"));
        let handle = sim.import_handle(one, 0).unwrap();
        other.kill();
        assert_eq!(sim.import_handle(two, 0), Err(codes::RT_DRV_INTERNAL_ERROR));
        let range = sim.reserve(HUGE).unwrap();
        sim.map(range, HUGE, 0, handle, 0).unwrap();
        let mut byte = [0];
        sim.read_bytes(range + HUGE - 1, &mut byte).unwrap();
        assert_eq!(byte, [41]);
        let own = sim.malloc_physical(HUGE, &PhysicalProp::device(0), 0).unwrap();
        sim.unmap(range).unwrap();
        assert_eq!(sim.map(range, HUGE, 0, own, 0), Err(codes::RT_DRV_INTERNAL_ERROR), "no mixing");
        sim.free_physical(handle).unwrap();
    }
}

#[test]
fn a_block_is_imported_by_its_key() {
    for (backing, role) in backings() {
        let sim = machine(backing);
        let block = sim.malloc(5 << 20, 0).unwrap();
        sim.fill_bytes(block, 5 << 20, 3).unwrap();
        let key = sim.ipc_export_key(block, 5 << 20, 65, 0).unwrap();
        assert_eq!(key.len(), 64);
        assert_eq!(sim.ipc_export_key(block, 100, 65, 0), Ok(key.clone()));
        assert_eq!(sim.ipc_import(&key, 0), Err(codes::RT_DRV_INTERNAL_ERROR), "not in its own process");
        let mut other = Other::start(role);
        assert_eq!(other.ask(&format!("open {key}")), codes::RT_NO_PERMISSION.to_string());
        sim.ipc_set_import_pids(&key, &[1, other.id()]).unwrap();
        let at = other.number(&format!("open {key}"));
        assert_eq!(other.number(&format!("open {key}")), at);
        assert_eq!(other.number(&format!("read {}", at + (5 << 20) - 1)), 3);
        assert_eq!(other.ask(&format!("close {key}")), "0");
        assert_eq!(other.number(&format!("read {at}")), 3, "opened twice, closed once");
        assert_eq!(other.ask(&format!("close {key}")), "0");
        assert_eq!(other.ask(&format!("close {key}")), codes::RT_PARAM_INVALID.to_string());
        assert_eq!(other.ask(&format!("read {at}")), codes::RT_PARAM_INVALID.to_string());
        sim.ipc_close(&key).unwrap();
        assert_eq!(sim.ipc_close(&key), Err(codes::RT_PARAM_INVALID));
        sim.free(block).unwrap();
        assert_eq!(sim.physical_bytes(0), 0);
    }
}

#[test]
fn a_key_ends_with_its_exporter_and_names_the_same_memory_again() {
    for (backing, role) in backings() {
        let sim = machine(backing);
        let block = sim.malloc(HUGE - 32, 0).unwrap();
        sim.fill_bytes(block, HUGE, 3).unwrap();
        let key = sim.ipc_export_key(block, 100, 65, 0).unwrap();
        let mut other = Other::start(role);
        sim.ipc_set_import_pids(&key, &[other.id()]).unwrap();
        let at = other.number(&format!("open {key}"));
        sim.ipc_close(&key).unwrap();
        assert_eq!(other.number(&format!("read {at}")), 3, "what is open stays");
        let again = sim.ipc_export_key(block, 100, 65, 0).unwrap();
        sim.fill_bytes(block, 1, 9).unwrap();
        assert_eq!(other.number(&format!("read {at}")), 9, "it is still the memory of both");
        assert_eq!(other.ask(&format!("close {key}")), "0");
        assert_eq!(other.ask(&format!("open {again}")), codes::RT_NO_PERMISSION.to_string());
        sim.ipc_set_import_pids(&again, &[other.id()]).unwrap();
        let at = other.number(&format!("open {again}"));
        assert_eq!(other.number(&format!("read {at}")), 9);
        assert_eq!(other.ask(&format!("close {again}")), "0");
        sim.ipc_close(&again).unwrap();
        assert_eq!(other.ask(&format!("open {again}")), codes::RT_DRV_INTERNAL_ERROR.to_string());
        assert_eq!(sim.ipc_set_import_pids(&again, &[1]), Err(codes::RT_PARAM_INVALID));
        sim.free(block).unwrap();
        assert_eq!(sim.physical_bytes(0), 0);
    }
}

/// The other process has device 0 current.
#[test]
fn a_block_of_another_device_is_copied_on_streams_between_devices_only() {
    let sim = machine(BackingMode::MetadataOnly);
    let mut other = Other::start("tables");
    let own = other.number("block 4096");
    for (device, answer) in [(0, 0), (1, codes::RT_PARAM_INVALID)] {
        sim.set_device(device).unwrap();
        let block = sim.malloc(HUGE - 32, 0).unwrap();
        let key = sim.ipc_export_key(block, 64, 65, 1).unwrap();
        let at = other.number(&format!("open {key}"));
        for line in [format!("put {at} 7"), format!("get {at}"), format!("move {at} {own}")] {
            assert_eq!(other.ask(&line), answer.to_string(), "{line} of device {device}");
        }
        assert_eq!(other.ask(&format!("move {own} {at}")), answer.to_string());
        assert_eq!(other.ask(&format!("queue {at} {own}")), "0");
        assert_eq!(other.ask(&format!("queue {own} {at}")), "0");
    }
}

#[test]
fn an_event_is_recorded_and_waited_for_in_two_processes() {
    let sim = Sim::new(SimConfig { lag: LAG_NEVER, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    let usual = sim.create_event_ex(EVENT_SYNC).unwrap();
    assert_eq!(sim.ipc_event_handle(usual), Err(codes::RT_FEATURE_NOT_SUPPORT));
    let event = sim.create_event_ex(EVENT_IPC).unwrap();
    let handle = sim.ipc_event_handle(event).unwrap();
    assert_eq!(sim.ipc_event_handle(event), Ok(handle));
    assert_eq!(sim.ipc_open_event(&handle), Err(codes::RT_DRV_INTERNAL_ERROR), "not in its own process");
    assert_eq!(sim.ipc_open_event(&[0; 64]), Err(codes::RT_PARAM_INVALID));
    let hex: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut other = Other::start("tables");
    let theirs = other.number(&format!("event {hex}"));
    assert_eq!(other.ask(&format!("wait {theirs}")), codes::RT_PARAM_INVALID.to_string(), "never recorded");
    let stream = sim.create_stream().unwrap();
    sim.submit(stream, Task::new("kernel")).unwrap();
    sim.record_event(event, stream).unwrap();
    assert_eq!(other.number(&format!("query {theirs}")), 0);
    assert_eq!(sim.query_event_status(event), Ok(false));
    sim.synchronize_stream(stream).unwrap();
    assert_eq!(other.number(&format!("query {theirs}")), 1);
    assert_eq!(other.ask(&format!("wait {theirs}")), "0");
    assert_eq!(other.ask(&format!("wait_for {theirs}")), "0");
    assert_eq!(other.ask(&format!("record {theirs}")), "0");
    assert_eq!(sim.query_event_status(event), Ok(true));
    sim.synchronize_event(event).unwrap();
    sim.stream_wait_event(0, event).unwrap();
    sim.destroy_event(event).unwrap();
    assert_eq!(other.number(&format!("query {theirs}")), 1, "it has the event open");
    // One of the old mode looks at the records of others in all its questions.
    let old = sim.create_event_with_flag(EVENT_IPC).unwrap();
    let handle = sim.ipc_event_handle(old).unwrap();
    let hex: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
    sim.record_event(old, stream).unwrap();
    sim.synchronize_stream(stream).unwrap();
    let theirs = other.number(&format!("event {hex}"));
    assert_eq!((sim.query_event(old), sim.query_event_status(old)), (Ok(true), Ok(true)));
    assert_eq!(other.ask("lag"), "0");
    assert_eq!(other.ask(&format!("record {theirs}")), "0");
    assert_eq!((sim.query_event(old), sim.query_event_status(old)), (Ok(false), Ok(false)));
}

/// Whoever waits for a process that is gone is told, whoever of the two made the event.
#[test]
fn records_of_a_process_that_is_gone_are_lost() {
    for own in [false, true] {
        let sim = machine(BackingMode::MetadataOnly);
        sim.executor().set_lag(LAG_NEVER);
        let mut other = Other::start("tables");
        assert_eq!(other.ask("lag"), "0");
        let event = if own {
            let event = sim.create_event_ex(EVENT_IPC).unwrap();
            let hex: String =
                sim.ipc_event_handle(event).unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
            let theirs = other.number(&format!("event {hex}"));
            assert_eq!(other.ask(&format!("record {theirs}")), "0");
            event
        } else {
            let name = other.number("make").to_ne_bytes();
            let mut handle = [0; 64];
            handle[..8].copy_from_slice(b"acl-simE");
            handle[8..16].copy_from_slice(&name);
            sim.ipc_open_event(&handle).unwrap()
        };
        let stream = sim.create_stream().unwrap();
        sim.stream_wait_event(stream, event).unwrap();
        assert_eq!(sim.query_event_status(event), Ok(false));
        other.child.kill().unwrap();
        assert_eq!(sim.synchronize_event(event), Err(codes::RT_DRV_INTERNAL_ERROR));
        assert_eq!(sim.query_event_status(event), Err(codes::RT_DRV_INTERNAL_ERROR));
        // A stream that waits for it goes on.
        sim.synchronize_stream(stream).unwrap();
    }
}

#[test]
fn arguments_of_sharing_are_checked_in_order() {
    let sim = machine(BackingMode::MetadataOnly);
    let (range, handle) = chunk(&sim, HUGE, 0);
    assert_eq!(sim.export_handle(0, 0, 9), Err(codes::INVALID_PARAM));
    assert_eq!(sim.export_handle(handle, 2, 9), Err(codes::INVALID_PARAM));
    assert_eq!(sim.export_handle(handle, 0, 2), Err(codes::RT_PARAM_INVALID));
    assert_eq!(sim.export_handle(0x1234, 0, 0), Err(codes::RT_PARAM_INVALID));
    let shared = sim.export_handle(handle, 0, 1).unwrap();
    assert_eq!(sim.import_handle(shared, 9), Err(codes::RT_INVALID_DEVICEID));
    assert_eq!(sim.import_handle(shared, 0), Err(codes::RT_DRV_INTERNAL_ERROR));
    assert_eq!(sim.import_handle(0x55, 0), Err(codes::RT_DRV_INTERNAL_ERROR));
    assert_eq!(sim.set_share_pids(shared, &[]), Err(codes::INVALID_PARAM));
    assert_eq!(sim.set_share_pids(shared, &vec![1; 65_536]), Err(codes::RT_PARAM_INVALID));
    assert_eq!(sim.set_share_pids(shared, &vec![1; 65_535]), Ok(()));
    assert_eq!(sim.set_share_pids(shared + 1, &[1]), Err(codes::RT_PARAM_INVALID));
    let none: Share = [0; 128];
    assert_eq!(sim.export_handle_v2(handle, 0, 3).err(), Some(codes::RT_PARAM_INVALID));
    assert_eq!(sim.export_handle_v2(handle, 0, 2).err(), Some(codes::RT_FEATURE_NOT_SUPPORT));
    assert_eq!(sim.export_handle_v2(handle, 0, 1).map(|share| share[..8] == shared.to_ne_bytes()), Ok(true));
    assert_eq!(sim.import_handle_v2(&none, 1, 1), Err(codes::INVALID_PARAM));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(sim.import_handle_v2(&none, 1, 0), Err(codes::RT_CONTEXT_NULL));
            assert_eq!(sim.export_handle_v2(handle, 0, 2).err(), Some(codes::RT_CONTEXT_NULL));
        });
    });
    let block = sim.malloc(HUGE, 0).unwrap();
    assert_eq!(sim.ipc_export_key(0, 1, 65, 0).err(), Some(codes::INVALID_PARAM));
    for (start, size, len, flags) in
        [(block, 0, 65, 0), (block, 1, 64, 0), (block, 1, 65, 2), (block + 4096, 1, 65, 0), (range, 1, 65, 0)]
    {
        assert_eq!(sim.ipc_export_key(start, size, len, flags).err(), Some(codes::RT_PARAM_INVALID));
    }
    assert_eq!(sim.ipc_import("what", 0), Err(codes::RT_PARAM_INVALID));
    assert_eq!(sim.ipc_import("what", 2), Err(codes::RT_PARAM_INVALID));
}
