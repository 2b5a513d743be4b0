//! Reports that are written when a request fails for lack of memory: what they say, how many, and what fails.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::history::{Event, with_context};
use ascend_alloc::snapshot_file::{Document, Limits, pickle};
use ascend_alloc::{Config, DeviceAllocator, Error};
use ascend_sim::{Sim, SimConfig};

const MIB: u64 = 1 << 20;
const S0: Stream = Stream(0);

/// A folder of this test's own, empty.
fn folder(name: &str) -> PathBuf {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("oom_reports-{name}-{}", std::process::id()));
    // It need not be there.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn allocator(conf: &str) -> DeviceAllocator {
    let sim = Sim::new(SimConfig { capacity: 64 * MIB, ..SimConfig::default() });
    let config = Config::parse(conf).expect("a configuration");
    DeviceAllocator::new(config, Arc::new(SimDriver::new(sim))).expect("an allocator")
}

fn fail(allocator: &DeviceAllocator) {
    assert!(matches!(allocator.allocate(0, 70 * MIB, 0, S0), Err(Error::OutOfMemory(_))));
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_report_has_the_error_the_statistics_the_snapshot_and_the_last_events() {
    let folder = folder("whole");
    let allocator =
        allocator(&format!("oom_report:{},oom_report_s:0,soft_limit_mb:50", folder.join("oom").display()));
    let kept = with_context("the weights", || allocator.allocate(0, 10 * MIB, 0, S0).unwrap());
    for _ in 0..600 {
        let ptr = with_context("a layer", || allocator.allocate(0, 3 * MIB, 0, S0).unwrap());
        allocator.deallocate(ptr).unwrap();
    }
    let error = match allocator.allocate(0, 60 * MIB, 0, S0) {
        Err(Error::OutOfMemory(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(names(&folder), ["oom.1.pickle", "oom.1.txt"]);

    let text = std::fs::read_to_string(folder.join("oom.1.txt")).unwrap();
    assert!(text.starts_with(&error), "{text}");
    assert!(text.contains("soft_limit_mb:50") && text.contains(r#""num_ooms":1"#), "{text}");
    let lines: Vec<&str> =
        text.lines().skip_while(|line| !line.starts_with("last 1000 events")).skip(1).collect();
    assert_eq!(lines.len(), 1000);
    let event = |line: &str| -> Event {
        let fields: Vec<&str> = line.split_ascii_whitespace().take(11).collect();
        fields.join(" ").parse().unwrap_or_else(|error| panic!("{line}: {error}"))
    };
    let events: Vec<Event> = lines.iter().map(|line| event(line)).collect();
    assert!(events.windows(2).all(|two| two[0].sequence + 1 == two[1].sequence));
    assert!(events.iter().any(|event| event.requested == 60 * MIB));
    assert!(lines.iter().any(|line| line.ends_with("  a layer")));

    let pickle = std::fs::read(folder.join("oom.1.pickle")).unwrap();
    let document = Document::from_tree(&pickle::read(&pickle, &Limits::default()).unwrap()).unwrap();
    assert_eq!(document.totals(0).requested, 10 * MIB);
    assert!(document.trace(0).iter().any(|entry| entry.action.word() == "oom"));
    let blocks = || document.segments.iter().flat_map(|segment| &segment.blocks);
    assert!(blocks().any(|block| block.address == kept.address()));
    std::fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn reports_are_few() {
    let many = folder("many");
    let first =
        allocator(&format!("oom_report:{},oom_report_s:0,oom_report_files:2", many.join("oom").display()));
    (0..5).for_each(|_| fail(&first));
    assert_eq!(names(&many), ["oom.1.pickle", "oom.1.txt", "oom.2.pickle", "oom.2.txt"]);

    // The simulated clock of an allocator's first moments does not reach a minute.
    let often = folder("often");
    let second = allocator(&format!("oom_report:{}", often.join("oom").display()));
    (0..5).for_each(|_| fail(&second));
    assert_eq!(names(&often), ["oom.1.pickle", "oom.1.txt"]);
    assert_eq!(second.stats(0).unwrap().num_ooms, 5);
    assert_eq!((first.failed_writes(), second.failed_writes()), (0, 0));
    std::fs::remove_dir_all(many).expect("removed");
    std::fs::remove_dir_all(often).expect("removed");
}

#[test]
fn a_report_that_cannot_be_written_changes_nothing() {
    let allocator = allocator("oom_report:/nowhere/at all/oom,oom_report_s:0");
    (0..3).for_each(|_| fail(&allocator));
    assert_eq!(allocator.failed_writes(), 3);
    let ptr = allocator.allocate(0, MIB, 0, S0).unwrap();
    allocator.deallocate(ptr).unwrap();
    assert_eq!(allocator.check(), Ok(()));
}
