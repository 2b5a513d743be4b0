//! Snapshots as traces: what the commands `convert` and `snapshot` say and write, and that replays take it.

mod common;

use std::path::Path;

use ascend_alloc::snapshot_file::{Limits, pickle};
use ascend_alloc_cli::snapshot::input;
use ascend_alloc_cli::trace::Trace;
use common::recorded::{event, snapshot};
use common::{Run, file, run};

fn convert(name: &str, text: &str, options: &[&str]) -> (Run, std::path::PathBuf) {
    let input = file(&format!("{name}.json"), text.as_bytes());
    let output = input.with_extension("trace.zst");
    let _gone = std::fs::remove_file(&output);
    let mut arguments = vec!["convert", input.to_str().unwrap(), "-o", output.to_str().unwrap()];
    arguments.extend(options);
    (run(&arguments), output)
}

#[test]
fn a_converted_snapshot_replays() {
    let mut events = Vec::new();
    for step in 0..50_u64 {
        for block in 0..20_u64 {
            events.push(event("alloc", (block + 1) << 24, (block + 1) * 300_000 + step, block % 3 * 4096));
        }
        for block in 0..20_u64 {
            let size = (block + 1) * 300_000 + step;
            events.push(event("free_requested", (block + 1) << 24, size, block % 3 * 4096));
            if block % 5 != 0 {
                events.push(event("free_completed", (block + 1) << 24, size, block % 3 * 4096));
            }
        }
        for block in (0..20).step_by(5) {
            events.push(event(
                "free_completed",
                (block + 1) << 24,
                (block + 1) * 300_000 + step,
                block % 3 * 4096,
            ));
        }
    }
    let (converted, output) = convert("replays", &snapshot(&[], &events), &[]);
    assert_eq!(converted.code, 0, "{}", converted.err);
    assert!(
        converted.out.contains("1000 allocations (0 of them before the first event), 1000 frees, 200 uses")
    );
    let replayed = run(&["replay", output.to_str().unwrap(), "--json", "--verify"]);
    assert_eq!((replayed.code, replayed.err.as_str()), (0, ""), "{}", replayed.out);
    let report = replayed.json();
    // 300 000 times 1 to 20, and the last step's number in each.
    assert_eq!(report["peak_live"], 300_000 * 210 + 20 * 49);
    assert_eq!(report["ops"], 1000 + 1000 + 200);
    assert_eq!(report["findings"].as_array().unwrap().len(), 0);
}

#[test]
fn the_device_is_chosen_or_named() {
    let two = r#"{"segments":[{"device":2,"address":512,"stream":0,"blocks":[{"size":512,"state":"active_allocated"}]}],
        "device_traces":[[],[{"action":"alloc","addr":1,"size":2,"stream":0}],[],[{"action":"alloc","addr":1,"size":3,"stream":0}]]}"#;
    let (run, output) = convert("devices", two, &[]);
    assert_eq!(run.code, 0);
    assert!(run.err.contains("device 1 is taken of: 1 (1 event), 2 (0 events), 3 (1 event)"), "{}", run.err);
    assert_eq!(Trace::open(&output).unwrap().peak_live, 2);
    let (run, output) = convert("devices", two, &["--device", "3"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    assert_eq!(Trace::open(&output).unwrap().peak_live, 3);
    // Only what is live.
    let (run, output) = convert("devices", two, &["--device", "2"]);
    assert_eq!((run.code, Trace::open(&output).unwrap().peak_live), (0, 512));
    let (run, _) = convert("devices", two, &["--device", "0"]);
    assert_eq!(run.code, 2);
    assert!(
        run.err.contains("has no device 0; devices with memory or events are: 1 (1 event)"),
        "{}",
        run.err
    );
}

#[test]
fn what_cannot_be_converted_is_refused() {
    let refused = |name: &str, text: &str, part: &str| {
        let (run, output) = convert(name, text, &[]);
        assert_eq!(run.code, 2, "{text}");
        assert!(run.err.contains("error: ") && run.err.contains(part), "{} should say {part}", run.err);
        assert!(!output.exists());
    };
    refused("empty", "", "is no snapshot that can be read: at byte 0: the pickle ends");
    refused("nothing", r#"{"segments":[],"device_traces":[]}"#, "has no memory and no events");
    refused(
        "free",
        r#"{"segments":[{"address":512,"blocks":[{"size":5,"state":"inactive"}]}]}"#,
        "no live block",
    );
    refused("program", "cos\nsystem\n(S'true'\ntR.", "GLOBAL names os.system");
    refused("zip", "PK\u{3}\u{4}", "zip archive");
    refused("other", r#"{"a":1}"#, "without segments and device_traces");
    let missing = run(&["convert", "/nowhere/x.pickle", "-o", "/nowhere/x.trace"]);
    assert_eq!((missing.code, missing.err.contains("cannot be opened")), (2, true));
}

#[test]
fn snapshot_shows_figures_and_converts_without_loss() {
    let text = r#"{"segments":[{"device":0,"address":4096,"total_size":1536,"allocated_size":512,"active_size":1024,"stream":0,
        "segment_pool_id":[0,3],"is_expandable":true,"blocks":[
        {"address":4096,"size":512,"requested_size":500,"state":"active_allocated","frames":[
            {"name":"at::empty","filename":"a.cpp","line":1},{"name":"forward","filename":"/m/model.py","line":7}]},
        {"address":4608,"size":512,"requested_size":512,"state":"active_pending_free","frames":[]},
        {"address":5120,"size":512,"requested_size":0,"state":"inactive","frames":[]}]}],
        "device_traces":[[{"action":"alloc","addr":4096,"size":500,"stream":0,"time_us":5,"what_is_to_come":[1.5,null]}]],
        "allocator_settings":{"expandable_segments":true},"unknown":{"x":-1}}"#;
    let input = file("shown.json", text.as_bytes());
    let folder = input.parent().unwrap().to_owned();
    let name = |file: &str| folder.join(file).to_str().unwrap().to_owned();
    let shown = run(&["snapshot", &name("shown.json"), "--json"]).json();
    let device = &shown["devices"][0];
    for (key, value) in [
        ("reserved", 1536),
        ("allocated", 512),
        ("active", 1024),
        ("requested", 1012),
        ("largest_free", 512),
        ("segments", 1),
        ("expandable_segments", 1),
        ("peak_live", 1012),
    ] {
        assert_eq!(device[key], value, "{key}");
    }
    assert_eq!(device["reserved_by_pool"]["0.3"], 1536);
    assert_eq!(device["events"]["alloc"], 1);
    assert_eq!(device["holders"][0]["bytes"], 512);
    let places: Vec<_> =
        device["holders"].as_array().unwrap().iter().map(|holder| &holder["place"]).collect();
    assert!(places.iter().any(|place| place[0] == "forward (/m/model.py:7)"), "{places:?}");
    assert_eq!(shown["settings"]["expandable_segments"], "True");
    let text = run(&["snapshot", &name("shown.json")]).out;
    assert!(
        text.contains("forward (/m/model.py:7)") && text.contains("1 event in 0.000 s: 1 alloc"),
        "{text}"
    );

    // JSON, pickles of both protocols, compressed ones, and back: nothing is lost.
    let steps = ["a.pickle", "b.pickle.gz", "c.json.zst", "d.pickle.zst", "e.json"];
    let mut from = "shown.json";
    for (index, to) in steps.iter().enumerate() {
        let protocol = if index % 2 == 0 { "2" } else { "4" };
        let made = run(&["snapshot", &name(from), "-o", &name(to), "--protocol", protocol]);
        assert_eq!((made.code, made.err.as_str()), (0, ""));
        from = to;
    }
    let value = |path: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(folder.join(path)).unwrap()).unwrap()
    };
    assert_eq!(value("e.json"), value("shown.json"));
    let pickle = pickle::read(&std::fs::read(folder.join("a.pickle")).unwrap(), &Limits::default()).unwrap();
    let (tree, _) = input::open(Path::new(&name("shown.json")), &Limits::default()).unwrap();
    assert_eq!(pickle, tree);
}

/// Snapshots that torch_npu 2.10 took, and what its statistics were (`snapshots/workload.py`).
#[test]
fn snapshots_of_torch_npu_say_what_its_statistics_said() {
    // Reserved, allocated, active, requested, and the highest reserved; then uses on another stream.
    let first = |reserved, peak| [reserved, 80_701_440, 80_701_440, 80_700_001, peak];
    let recorded = [
        (
            "fixed",
            first(111_149_056, 232_783_872),
            [12_582_912, 12_582_912, 12_582_912, 12_345_678, 12_582_912],
            6,
        ),
        (
            "growing",
            first(104_857_600, 106_954_752),
            [20_971_520, 12_345_856, 12_345_856, 12_345_678, 20_971_520],
            3,
        ),
    ];
    for (name, first, second, uses) in recorded {
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("tests/snapshots/torch_npu_2.10_{name}.pickle"));
        let shown = run(&["snapshot", file.to_str().unwrap(), "--json"]).json();
        for (device, expected) in [first, second].into_iter().enumerate() {
            let figures = &shown["devices"][device];
            let keys = ["reserved", "allocated", "active", "requested", "peak_reserved"];
            assert_eq!(keys.map(|key| figures[key].as_u64().unwrap()), expected, "{name}, device {device}");
        }
        assert_eq!(shown["devices"][0]["holders"][0]["place"][0], "layer (workload.py:10)");

        let output = file.with_file_name(format!("{name}.trace.gz"));
        let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(output.file_name().unwrap());
        let converted =
            run(&["convert", file.to_str().unwrap(), "-o", output.to_str().unwrap(), "--device", "0"]);
        assert_eq!(converted.code, 0, "{}", converted.err);
        assert!(converted.out.contains(&format!("{uses} uses on other streams")), "{}", converted.out);
        let replayed = run(&["replay", output.to_str().unwrap(), "--json", "--verify"]).json();
        assert_eq!(replayed["findings"].as_array().unwrap().len(), 0);
        // All at once is what is live at the end; this allocator holds no more than 2 % above it.
        assert_eq!(replayed["peak_live"], 80_700_001);
        let physical = replayed["peak_physical"].as_u64().unwrap();
        assert!(physical < 80_700_001 / 100 * 102, "{physical}");
    }
}
