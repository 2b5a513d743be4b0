//! What the allocator must reach on recorded traces, with the default configuration: memory, driver calls and waits are the
//! same on every machine. ALLOCATOR_DESIGN.md, section 12, has the figures of all traces.

mod common;

use common::{findings, replay, repository_trace};
use serde_json::Value;

const CHUNK: u64 = 2 << 20;
/// The highest live bytes of each trace.
const T8: (&str, u64) = ("T8.trace.zst", 16_846_070_324);
const S2: (&str, u64) = ("S2.trace.zst", 24_089_154_318);

/// The report of a trace without findings in which every request got memory, and whose host never waited for a device.
fn report((name, live): (&str, u64), options: &[&str]) -> Value {
    let report = replay(&repository_trace(name), &[&["--json"], options].concat()).json();
    assert_eq!(findings(&report), Vec::<String>::new(), "{name} {options:?}");
    assert_eq!((count(&report, "peak_live"), count(&report, "ooms")), (live, 0), "{name} {options:?}");
    assert_eq!(report["syncs"]["device"], 0, "{name} {options:?}");
    report
}

fn count(report: &Value, field: &str) -> u64 {
    report[field].as_u64().expect(field)
}

fn host_waits(report: &Value) -> u64 {
    report["syncs"].as_object().unwrap().values().map(|waits| waits.as_u64().unwrap()).sum()
}

/// A device of so many hundredths of the highest live bytes, in whole chunks.
fn device((_, live): (&str, u64), hundredths: u64) -> String {
    (live * hundredths / 100 / CHUNK * CHUNK).to_string()
}

#[test]
fn behind_a_slow_device_events_and_queries_are_few() {
    let report = report(T8, &["--lag", "4096"]);
    assert!(count(&report, "events_recorded") <= 200 && count(&report, "event_queries") <= 1000, "{report}");
    assert_eq!(host_waits(&report), 0, "there is room to spare");
}

#[test]
fn a_slow_device_with_little_room_is_enough() {
    let memory = device(T8, 115);
    let joined = report(T8, &["--lag", "4096", "--memory", &memory]);
    // Less than one of a hundred allocations.
    assert!(host_waits(&joined) < 327, "{joined}");
    let off = ["--lag", "4096", "--memory", &memory, "--conf", "device_waits:False"];
    let alone = report(T8, &off);
    assert_eq!(count(&alone, "device_waits"), 0, "{alone}");
}

#[test]
fn with_room_to_spare_and_no_waits_on_the_device_nothing_waits() {
    let report = report(T8, &["--lag", "4096", "--conf", "device_waits:False"]);
    assert_eq!((count(&report, "device_waits"), host_waits(&report)), (0, 0));
}

#[test]
fn near_the_limit_of_a_device_little_is_mapped() {
    for (trace, hundredths) in [(T8, 102), (S2, 105)] {
        let report = report(trace, &["--memory", &device(trace, hundredths)]);
        let (maps, chunks) = (report["calls"]["map"].as_u64().unwrap(), trace.1.div_ceil(CHUNK));
        assert!(maps * 100 <= chunks * 125, "{maps} maps, {chunks} chunks");
        assert_eq!(host_waits(&report), 0, "{report}");
    }
}

#[test]
fn no_memory_stays_behind_on_a_quiet_stream() {
    for (trace, spread) in [(S2, "1"), (T8, "10")] {
        let report = report(trace, &["--spread", spread]);
        assert!(count(&report, "peak_reserved") * 100 <= trace.1 * 105, "{report}");
    }
}
