//! The command `top` on processes that export their statistics: this one.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator};
use ascend_sim::{Sim, SimConfig};
use common::{Run, run};

/// An empty folder for one test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("top-{name}"));
    // It need not be there.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn exporting(path: &Path) -> DeviceAllocator {
    let sim = Sim::new(SimConfig { devices: 2, capacity: 1 << 30, ..SimConfig::default() });
    let conf = format!("stats_export:{},stats_export_ms:10,memory_limit_mb:256", path.display());
    DeviceAllocator::new(Config::parse(&conf).unwrap(), Arc::new(SimDriver::new(sim))).unwrap()
}

/// Runs `top --once` until what it says is accepted.
fn eventually(arguments: &[&str], wanted: impl Fn(&Run) -> bool) -> Run {
    for _ in 0..500 {
        let run = run(&[&["top", "--once"], arguments].concat());
        if wanted(&run) {
            return run;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("what was waited for did not come");
}

#[test]
fn it_shows_what_the_process_holds() {
    let path = folder("file").join("stats.json");
    let allocator = exporting(&path);
    let first = allocator.allocate(0, 64 << 20, 0, Stream(0)).unwrap();
    let second = allocator.allocate(1, 31 << 20, 0, Stream(0)).unwrap();
    let said = eventually(&[path.to_str().unwrap(), "--width", "200"], |run| run.out.lines().count() == 4);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let lines: Vec<&str> = said.out.lines().collect();
    assert!(lines[0].starts_with(&format!("process {} (", std::process::id())), "{}", lines[0]);
    assert!(lines[1].contains("RESERVED") && lines[1].contains("OF LIMIT"), "{}", lines[1]);
    for (line, device) in lines[2..].iter().zip([0, 1]) {
        let stats = allocator.stats(device).unwrap();
        let reserved = stats.reserved_bytes.all.current;
        assert!(line.trim_start().starts_with(&format!("{device} ")), "{line}");
        let shown = format!("{:.2} MiB", reserved as f64 / (1 << 20) as f64);
        assert!(line.contains(&shown), "{shown} in {line}");
        let share = format!("{:.1} %", reserved as f64 / f64::from(256 << 20) * 100.0);
        assert!(line.contains(&share), "{share} in {line}");
    }
    for width in ["20", "60"] {
        let narrow = run(&["top", "--once", path.to_str().unwrap(), "--width", width]);
        let width: usize = width.parse().unwrap();
        assert!(narrow.out.lines().all(|line| line.chars().count() <= width), "{}", narrow.out);
        assert!(narrow.out.contains("RESERVED"), "{}", narrow.out);
    }
    allocator.deallocate(first).unwrap();
    allocator.deallocate(second).unwrap();
}

#[test]
fn several_processes_stand_below_each_other_and_ended_ones_are_told_apart() {
    let folder = folder("several");
    let pattern = folder.join("of-%p.json");
    let allocator = exporting(&pattern);
    let block = allocator.allocate(0, 1 << 20, 0, Stream(0)).unwrap();
    // A process that has ended, an hour ago; numbers that large are never given out.
    let ended = folder.join("of-999999999.json");
    let document = r#"{"format":"ascend-alloc statistics","version":1,"process":999999999,"sequence":5,"time_ns":1,"period_ms":100,
        "devices":[{"device":0,"total_bytes":1073741824,"statistics":{"reserved_bytes":{"all":{"current":2097152}}}}]}"#;
    fs::write(&ended, document).unwrap();
    let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    fs::File::options().write(true).open(&ended).unwrap().set_modified(hour_ago).unwrap();
    let own = format!("process {} ", std::process::id());
    let said =
        eventually(&[pattern.to_str().unwrap()], |run| run.out.contains(&own) && run.out.contains("MiB"));
    assert_eq!(said.code, 0, "{}", said.err);
    let ended = said.out.lines().find(|line| line.starts_with("process 999999999")).unwrap();
    assert!(ended.contains("has ended"), "{ended}");
    let living = said.out.lines().find(|line| line.starts_with(&own)).unwrap();
    assert!(!living.contains("has ended"), "{living}");
    // A process that is gone leaves its last word; a socket leaves nothing.
    allocator.deallocate(block).unwrap();
    let nothing = run(&["top", "--once", folder.join("none-%p.json").to_str().unwrap()]);
    assert_eq!(nothing.code, 1);
    assert!(nothing.out.contains("no process exports"), "{}", nothing.out);
}

#[test]
fn what_is_not_there_is_said() {
    let folder = folder("missing");
    let socket = folder.join("gone.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let missing = folder.join("no.json");
    let said = run(&["top", "--once", socket.to_str().unwrap(), missing.to_str().unwrap()]);
    assert_eq!(said.code, 1);
    assert_eq!(said.out.matches("cannot be read").count(), 2, "{}", said.out);
    let live = run(&["top", missing.to_str().unwrap()]);
    assert_eq!(live.code, 2);
    assert!(live.err.contains("no terminal") && live.err.contains("--once"), "{}", live.err);
}

#[test]
fn the_live_view_ends_with_a_key_and_leaves_the_terminal_as_it_was() {
    if Command::new("script").arg("--version").output().is_err() {
        println!("NOT CHECKED: the live view in a terminal, because there is no command script");
        return;
    }
    let folder = folder("live");
    let socket = folder.join("live.sock");
    let allocator = exporting(&socket);
    let block = allocator.allocate(0, 3 << 20, 0, Stream(0)).unwrap();
    eventually(&[socket.to_str().unwrap()], |run| run.code == 0 && run.out.contains("MiB"));
    // The command script makes a terminal; stty gives it a size. The key comes after several looks.
    let top = env!("CARGO_BIN_EXE_ascend-alloc");
    let inner =
        format!("stty cols 64 rows 12; '{top}' top --every 50 '{}'; echo ended with $?", socket.display());
    let outer = format!("(sleep 1; printf q; sleep 0.3) | script -qec \"{inner}\" /dev/null");
    let output = Command::new("sh").args(["-c", &outer]).stderr(Stdio::inherit()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("\x1b[?1049h") && said.contains("\x1b[?1049l"),
        "the other screen, and back: {said:?}"
    );
    assert!(said.contains("q ends") && said.contains("RESERVED"), "{said:?}");
    assert!(said.contains(&format!("process {}", std::process::id())), "{said:?}");
    assert!(said.trim_end().ends_with("ended with 0"), "{said:?}");
    allocator.deallocate(block).unwrap();
}
