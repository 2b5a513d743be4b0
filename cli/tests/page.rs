//! The command `report`: the data in the page are the figures of the replay, and the page needs nothing else.

mod common;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use common::{Run, file, replay, repository_trace, run};
use serde_json::Value;

/// Makes a page; `name` must be unique among all tests.
fn page_of(name: &str, inputs: &[&Path], arguments: &[&str]) -> (Run, PathBuf) {
    let output = file(name, b"");
    let mut all = vec!["report"];
    all.extend(inputs.iter().map(|input| input.to_str().unwrap()));
    all.extend(["-o", output.to_str().unwrap()]);
    all.extend(arguments);
    (run(&all), output)
}

/// The data of a page that must be made without a complaint.
fn data_of(name: &str, inputs: &[&Path], arguments: &[&str]) -> Value {
    let (run, output) = page_of(name, inputs, arguments);
    assert_eq!(run.code, 0, "{}", run.err);
    data_in(&fs::read_to_string(output).unwrap())
}

/// The data in the text of a page.
fn data_in(text: &str) -> Value {
    let opening = "<script type=\"application/json\" id=\"data\">";
    assert_eq!(text.matches(opening).count(), 1);
    let start = text.find(opening).unwrap() + opening.len();
    let end = start + text[start..].find("</script>").unwrap();
    serde_json::from_str(&text[start..end]).unwrap()
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

fn highest(run: &Value, series: &str) -> u64 {
    numbers(&run["series"][series]["high"]).into_iter().max().unwrap()
}

/// The page of a trace and its replay say the same.
fn agree(trace: &Path, name: &str, arguments: &[&str]) {
    let data = data_of(name, &[trace], arguments);
    let report = replay(trace, &[&["--json"], arguments].concat()).json();
    let run = &data["runs"][0];
    let figures = run["figures"].as_object().unwrap();
    for (key, value) in report.as_object().unwrap() {
        // What the page does not measure is not in it.
        if !["ns_per_op", "driver_ns_per_op", "min_memory"].contains(&key.as_str()) {
            assert_eq!(figures[key], *value, "{key}");
        }
    }
    for series in ["live", "allocated", "active", "reserved", "physical"] {
        assert_eq!(highest(run, series), report[format!("peak_{series}")].as_u64().unwrap(), "{series}");
        let (low, high) = (numbers(&run["series"][series]["low"]), numbers(&run["series"][series]["high"]));
        assert!(low.iter().zip(&high).all(|(low, high)| low <= high), "{series}");
        assert_eq!(low.len(), run["series"]["at"].as_array().unwrap().len(), "{series}");
    }
    let (steps, expected) = (run["steps"].as_array().unwrap(), report["steps"].as_array().unwrap());
    assert_eq!(steps.len(), expected.len());
    for (step, expected) in steps.iter().zip(expected) {
        assert_eq!(step["label"], expected["label"]);
        for (ours, theirs) in [
            ("aclrtMapMem", "map"),
            ("aclrtUnmapMem", "unmap"),
            ("aclrtMallocPhysical", "malloc_physical"),
            ("aclrtFreePhysical", "free_physical"),
            ("aclrtMemSetAccess", "set_access"),
        ] {
            let made = step["calls"].get(ours).and_then(Value::as_u64).unwrap_or(0);
            assert_eq!(made, expected[theirs].as_u64().unwrap(), "{ours} in {}", step["label"]);
        }
    }
    let recorded: u64 = steps.iter().filter_map(|step| step["calls"].get("aclrtRecordEvent")?.as_u64()).sum();
    assert_eq!(recorded, report["events_recorded"].as_u64().unwrap());
}

#[test]
fn the_page_says_what_the_replay_says() {
    agree(&repository_trace("T0.trace.zst"), "agree-t0.html", &[]);
    agree(&repository_trace("T8.trace.zst"), "agree-t8.html", &["--lag", "512"]);
    agree(&repository_trace("T0.trace.zst"), "agree-fixed.html", &["--conf", "expandable_segments:False"]);
}

/// Live bytes and blocks of a trace after each event, from the text alone.
fn live_after(text: &str) -> Vec<(u64, usize)> {
    let (mut sizes, mut live, mut after) = (HashMap::new(), 0, Vec::new());
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[0] {
            "a" => {
                let bytes: u64 = fields[2].parse().unwrap();
                sizes.insert(fields[1].to_owned(), bytes);
                live += bytes;
            }
            "f" => live -= sizes.remove(fields[1]).unwrap(),
            _ => {}
        }
        after.push((live, sizes.len()));
    }
    after
}

#[test]
fn the_segments_hold_what_is_live_at_that_moment() {
    let path = repository_trace("T8.trace.zst");
    let text = zstd::decode_all(fs::File::open(&path).unwrap()).unwrap();
    let after = live_after(std::str::from_utf8(&text).unwrap());
    let data = data_of("moments.html", &[&path], &["--at", "1000", "--at", "999999999"]);
    let run = &data["runs"][0];
    let moments = run["moments"].as_array().unwrap();
    let labels: Vec<&str> = moments.iter().map(|moment| moment["label"].as_str().unwrap()).collect();
    for part in ["event 1000", "event 999999999", "highest live bytes", "marker: ", "end", "most reserved"] {
        assert!(labels.iter().any(|label| label.contains(part)), "{part} in {labels:?}");
    }
    let events: Vec<u64> = moments.iter().map(|moment| moment["at"].as_u64().unwrap()).collect();
    assert!(events.is_sorted() && events.contains(&999), "{events:?}");
    for moment in moments {
        let (bytes, count) = after[moment["at"].as_u64().unwrap() as usize];
        assert_eq!(moment["live"], bytes);
        let (mut live, mut live_blocks, mut reserved) = (0, 0, 0);
        for segment in moment["segments"].as_array().unwrap() {
            let blocks = segment["blocks"].as_array().unwrap();
            let tiles: i64 = blocks.chunks(5).map(|block| block[0].as_i64().unwrap()).sum();
            assert_eq!(segment["size"].as_i64().unwrap(), tiles, "blocks tile their segment");
            reserved += tiles;
            for block in blocks.chunks(5).filter(|block| block[2] == 1) {
                live += block[1].as_u64().unwrap();
                live_blocks += 1;
                let made = block[4].as_u64().unwrap();
                assert!(made <= moment["at"].as_u64().unwrap());
            }
        }
        assert_eq!((live, live_blocks), (bytes, count), "at {}", moment["at"]);
        assert_eq!(moment["reserved"].as_i64().unwrap(), reserved);
    }
    let peak =
        moments.iter().find(|moment| moment["label"].as_str().unwrap().contains("highest live")).unwrap();
    assert_eq!(peak["live"], run["figures"]["peak_live"]);
    let requests: u64 =
        run["sizes"].as_array().unwrap().iter().map(|class| class["count"].as_u64().unwrap()).sum();
    let lines = std::str::from_utf8(&text).unwrap().lines();
    assert_eq!(requests, lines.filter(|line| line.starts_with("a ")).count() as u64);
}

#[test]
fn a_large_trace_makes_a_small_page_with_its_peaks() {
    let path = repository_trace("T1.trace.zst");
    let (run, output) = page_of("large.html", &[&path], &[]);
    assert_eq!(run.code, 0, "{}", run.err);
    let text = fs::read_to_string(output).unwrap();
    assert!(text.len() < 8 << 20, "{} bytes", text.len());
    let data = data_in(&text);
    assert_eq!(highest(&data["runs"][0], "live"), 55_939_301_824);
    assert_eq!(highest(&data["runs"][0], "live"), data["runs"][0]["figures"]["peak_live"]);
    assert!(data["runs"][0]["fragmentation"]["at"].as_array().unwrap().len() > 100);
}

#[test]
fn configurations_are_compared_by_name() {
    let trace = repository_trace("T0.trace.zst");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("replay/plots");
    let arguments = [
        "--conf",
        "usual=",
        "--conf",
        "fixed blocks=expandable_segments:False",
        "--svg",
        folder.to_str().unwrap(),
    ];
    let data = data_of("compared.html", &[&trace], &arguments);
    let runs = data["runs"].as_array().unwrap();
    let names: Vec<&str> = runs.iter().map(|run| run["conf_name"].as_str().unwrap()).collect();
    assert_eq!(names, ["usual", "fixed blocks"]);
    assert_eq!(runs[1]["conf"], "expandable_segments:False");
    let reports =
        ["", "expandable_segments:False"].map(|conf| replay(&trace, &["--json", "--conf", conf]).json());
    for (run, report) in runs.iter().zip(&reports) {
        assert_eq!(run["figures"]["peak_reserved"], report["peak_reserved"]);
    }
    assert_ne!(runs[0]["figures"]["calls"]["map"], runs[1]["figures"]["calls"]["map"]);
    for plot in ["memory", "fragmentation", "segments", "sizes", "calls"] {
        let text = fs::read_to_string(folder.join(format!("T0___usual-{plot}.svg"))).unwrap();
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"), "{plot}");
        assert_eq!(text.matches('<').count(), text.matches('>').count(), "{plot}");
    }
    let comparison = fs::read_to_string(folder.join("T0-comparison.svg")).unwrap();
    assert_eq!(comparison.matches("<polygon ").count(), 2);
    assert!(comparison.contains(">fixed blocks</text>"));
}

#[test]
fn what_happened_is_marked() {
    let trace = file(
        "marked.trace",
        b"a 1 20971520 0\nm one\na 2 41943040 0\nf 1\nm two\na 3 99999999999 0\nf 2\nm three\na 4 512 0\n",
    );
    let data = data_of("marked.html", &[&trace], &["--memory", "64MiB", "--empty-cache"]);
    let run = &data["runs"][0];
    let marked = |kind: &str| -> Vec<(u64, u64)> {
        let markers = run["markers"].as_array().unwrap().iter().filter(|marker| marker["kind"] == kind);
        markers.map(|marker| (marker["at"].as_u64().unwrap(), marker["bytes"].as_u64().unwrap())).collect()
    };
    assert_eq!(marked("oom"), [(5, 0)]);
    assert_eq!(run["figures"]["ooms"], 1);
    assert!(run["first_oom"].as_str().unwrap().contains("99999999999 bytes"), "{}", run["first_oom"]);
    let labels: Vec<&str> =
        run["moments"].as_array().unwrap().iter().map(|moment| moment["label"].as_str().unwrap()).collect();
    assert!(labels.iter().any(|label| label.contains("out of memory")), "{labels:?}");
    // At the second marker block 1 is free: ten chunks, the eleventh is block 2's too. At the third both are.
    let emptied = marked("empty_cache");
    assert_eq!(emptied.iter().map(|marker| marker.0).collect::<Vec<_>>(), [1, 4, 7]);
    assert_eq!((emptied[0].1, emptied[1].1), (0, 20 << 20));
    assert!(emptied[2].1 >= 40 << 20, "{emptied:?}");
    assert_eq!((run["limit"].as_u64(), run["device"].as_u64()), (Some(64 << 20), Some(64 << 20)));
    let half =
        data_of("half.html", &[&trace], &["--memory", "64MiB", "--conf", "per_process_memory_fraction:0.5"]);
    assert_eq!(half["runs"][0]["limit"], 32 << 20);
}

#[test]
fn a_page_loads_nothing_and_names_are_only_text() {
    let trace = file("x<script>alert(1)<.trace", b"a 1 512 0\nm </script><b>\nf 1\n");
    let (run, output) = page_of("hostile.html", &[&trace], &["--conf", "<i>="]);
    assert_eq!(run.code, 0, "{}", run.err);
    let text = fs::read_to_string(output).unwrap();
    assert_eq!(text.matches("</script>").count(), 2, "one end for the data, one for the script");
    for foreign in ["http://", "https://", "src=", "@import", "url(", "import("] {
        assert!(!text.contains(foreign), "{foreign}");
    }
    for way_in in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
        assert!(!text.contains(way_in), "{way_in} would turn names into markup");
    }
    let data = data_in(&text);
    assert_eq!(data["runs"][0]["steps"][1]["label"], "</script><b>");
    assert_eq!(data["runs"][0]["input"], "x<script>alert(1)<");
}

#[test]
fn what_cannot_be_shown_is_refused() {
    let trace = file("page-ok.trace", b"a 1 512 0\nf 1\n");
    let bad = file("page-bad.trace", b"f 1\n");
    for (inputs, arguments, part) in [
        (vec![bad.as_path()], vec![], "free of id 1"),
        (vec![trace.as_path()], vec!["--conf", "no_such_key:1"], "no_such_key"),
        (vec![trace.as_path()], vec!["-o", "/no/such/folder/page.html"], "--output"),
        (vec![Path::new("/no/such/file.trace")], vec![], "cannot be opened"),
    ] {
        let (run, _) = page_of("refused.html", &inputs, &arguments);
        assert_eq!(run.code, 2, "{arguments:?}");
        assert!(run.err.contains(part), "{arguments:?}: {}", run.err);
    }
    let nowhere = run(&["report", trace.to_str().unwrap(), "-o", "/no/such/folder/page.html"]);
    assert_eq!(nowhere.code, 2);
    assert!(nowhere.err.contains("/no/such/folder/page.html cannot be written"), "{}", nowhere.err);
    assert_eq!(run(&["report"]).code, 2);
}

/// A snapshot as PyTorch writes it, as JSON: two devices, of which the second has no events.
const SNAPSHOT: &str = r#"{"segments":[
    {"device":0,"address":4096000,"total_size":8192,"allocated_size":4096,"active_size":4096,"requested_size":4000,"stream":7,
     "segment_type":"small","segment_pool_id":[0,3],"is_expandable":true,"frames":[],"blocks":[
        {"address":4096000,"size":4096,"requested_size":4000,"state":"active_allocated",
         "frames":[{"filename":"</script>.py","line":3,"name":"load"}]},
        {"address":4100096,"size":4096,"requested_size":0,"state":"inactive","frames":[]}]},
    {"device":1,"address":9000000,"total_size":512,"allocated_size":512,"active_size":512,"requested_size":500,"stream":0,
     "segment_type":"small","segment_pool_id":[0,0],"is_expandable":false,"frames":[],"blocks":[
        {"address":9000000,"size":512,"requested_size":500,"state":"active_allocated","frames":[]}]}],
    "device_traces":[[
        {"action":"segment_map","addr":4096000,"size":16384,"stream":7},
        {"action":"alloc","addr":4096000,"size":4000,"stream":7},
        {"action":"alloc","addr":4100096,"size":3000,"stream":7},
        {"action":"oom","addr":0,"device_free":100,"size":99999,"stream":7},
        {"action":"free_requested","addr":4100096,"size":3000,"stream":7},
        {"action":"free_completed","addr":4100096,"size":3000,"stream":7},
        {"action":"segment_unmap","addr":4104192,"size":8192,"stream":7}],[]]}"#;

#[test]
fn a_snapshot_is_shown_as_it_was_and_replayed() {
    let snapshot = file("taken.json", SNAPSHOT.as_bytes());
    let data = data_of("taken.html", &[&snapshot], &["--memory", "64MiB"]);
    let runs = data["runs"].as_array().unwrap();
    let named: Vec<(&str, &str)> =
        runs.iter().map(|run| (run["name"].as_str().unwrap(), run["kind"].as_str().unwrap())).collect();
    let (first, second) = ("taken.json, device 0 · as it was", "taken.json, device 1 · as it was");
    assert_eq!(named, [(first, "snapshot"), ("taken.json, device 0", "trace"), (second, "snapshot")]);
    let (taken, replayed) = (&runs[0], &runs[1]);
    assert_eq!(numbers(&taken["series"]["live"]["high"]), [0, 4000, 7000, 7000, 4000, 4000, 4000]);
    assert_eq!(
        numbers(&taken["series"]["reserved"]["low"]),
        [16384, 16384, 16384, 16384, 16384, 16384, 8192]
    );
    assert!(numbers(&taken["series"]["active"]["high"]).is_empty());
    let markers: Vec<(&str, u64, u64)> = taken["markers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| (m["kind"].as_str().unwrap(), m["at"].as_u64().unwrap(), m["bytes"].as_u64().unwrap()))
        .collect();
    assert_eq!(markers, [("oom", 3, 99999), ("given_back", 6, 8192)]);
    let moment = &taken["moments"][0];
    assert_eq!((moment["live"].as_u64(), moment["reserved"].as_u64()), (Some(4000), Some(8192)));
    let segment = &moment["segments"][0];
    assert_eq!((segment["pool"].as_str(), segment["class"].as_str()), (Some("pool 0.3"), Some("small")));
    assert_eq!(segment["blocks"], serde_json::json!([4096, 4000, 1, 7, 0, 4096, 0, 0, 7, -1]));
    assert_eq!(taken["holders"][0], "load (</script>.py:3)");
    assert_eq!(taken["notes"], serde_json::json!([]));
    // The trace that convert makes says the same.
    let trace = file("taken.trace", b"");
    let converted =
        run(&["convert", snapshot.to_str().unwrap(), "-o", trace.to_str().unwrap(), "--device", "0"]);
    assert_eq!(converted.code, 0, "{}", converted.err);
    let report = replay(&trace, &["--json", "--memory", "64MiB"]).json();
    for figure in ["peak_live", "peak_reserved", "ops", "calls"] {
        assert_eq!(replayed["figures"][figure], report[figure], "{figure}");
    }
    assert_eq!(highest(replayed, "live"), 7000);
}

#[test]
fn events_that_cannot_have_led_to_the_segments_are_told() {
    let text = SNAPSHOT.replace(
        "\"action\":\"segment_map\",\"addr\":4096000,\"size\":16384",
        "\"action\":\"segment_map\",\"addr\":4096000,\"size\":99999",
    );
    assert_ne!(text, SNAPSHOT);
    let data = data_of("odd.html", &[&file("odd.json", text.as_bytes())], &[]);
    let notes = data["runs"][0]["notes"].as_array().unwrap();
    assert!(
        notes.iter().any(|note| note.as_str().unwrap().contains("events and segments disagree")),
        "{notes:?}"
    );
    let (refused, _) = page_of("no-snapshot.html", &[&file("no-snapshot.pickle", b"not a pickle")], &[]);
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("no-snapshot.pickle"), "{}", refused.err);
    assert!(refused.err.contains("nor is it a trace"), "{}", refused.err);
    let data = data_of("renamed.html", &[&file("renamed-trace.txt", b"a 1 512 0\nf 1\n")], &[]);
    assert_eq!(data["runs"][0]["figures"]["peak_live"], 512, "a trace with another name");
}
