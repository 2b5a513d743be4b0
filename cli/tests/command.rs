//! The command as a user calls it: options, output, exit status.

mod common;

use common::{file, findings, replay, repository_trace, run};

const MIB: u64 = 1 << 20;

#[test]
fn t0_has_every_field_and_sound_figures() {
    let run = replay(&repository_trace("T0.trace.zst"), &["--json", "--min-memory", "--verify"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let report = run.json();
    let fields: Vec<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = vec![
        "trace",
        "conf",
        "run",
        "ops",
        "ns_per_op",
        "driver_ns_per_op",
        "peak_live",
        "peak_allocated",
        "peak_active",
        "peak_reserved",
        "peak_physical",
        "min_memory",
        "calls",
        "syncs",
        "events_recorded",
        "event_queries",
        "device_waits",
        "ooms",
        "findings",
        "steps",
    ];
    expected.sort_unstable();
    let mut sorted = fields.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, expected);

    let number = |field: &str| report[field].as_u64().unwrap_or_else(|| panic!("{field} is no number"));
    assert_eq!(report["trace"], "T0");
    assert_eq!(report["conf"], "");
    assert_eq!(number("ops"), 256);
    assert!(report["ns_per_op"].as_f64().unwrap() > 0.0);
    assert!(report["driver_ns_per_op"].as_f64().unwrap() > 0.0);
    assert_eq!(number("peak_live"), 35_026_952);
    assert!(number("peak_allocated") >= number("peak_live"));
    assert!(number("peak_active") >= number("peak_allocated"));
    assert!(number("peak_reserved") >= number("peak_active"));
    assert!(number("peak_physical") >= number("peak_reserved"));
    assert!(number("min_memory") >= number("peak_live"));
    assert_eq!(number("min_memory") % (2 * MIB), 0);
    assert_eq!((number("ooms"), findings(&report)), (0, vec![]));

    let labels: Vec<&str> =
        report["steps"].as_array().unwrap().iter().map(|step| step["label"].as_str().unwrap()).collect();
    assert_eq!(labels, ["init", "step 0", "step 1", "teardown"]);
    for call in ["map", "unmap", "malloc_physical", "free_physical", "set_access"] {
        let steps = report["steps"].as_array().unwrap().iter().map(|step| step[call].as_u64().unwrap());
        assert_eq!(steps.sum::<u64>(), report["calls"][call].as_u64().unwrap(), "{call}");
    }
    assert!(report["calls"]["map"].as_u64().unwrap() > 0);
    assert!(report["calls"]["reserve"].as_u64().unwrap() > 0);
    assert!(report["calls"]["release"].is_u64());
    for wait in ["device", "stream", "event"] {
        assert_eq!(report["syncs"][wait], 0, "{wait}: the program's own waits do not count");
    }
}

/// A file of figures says how it came about.
#[test]
fn the_parameters_of_the_run_stand_beside_its_figures() {
    let trace = file("parameters.trace", KNOWN.as_bytes());
    let plain = replay(&trace, &["--json"]).json();
    let expected = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "events": 11,
        "memory": 65_536 * MIB,
        "simulator": ["metadata only"],
        "lag": 0,
        "spread": 1,
        "passes": 1,
        "verify": false,
        "min_memory": false,
    });
    assert_eq!(plain["run"], expected);
    let other =
        ["--memory", "1GiB", "--lag", "7", "--spread", "3", "--passes", "2", "--verify", "--min-memory"];
    let other = &replay(&trace, &[&["--json"], &other[..]].concat()).json()["run"];
    assert_eq!((&other["memory"], &other["lag"]), (&(1024 * MIB).into(), &7.into()));
    assert_eq!((&other["spread"], &other["passes"]), (&3.into(), &2.into()));
    assert_eq!((&other["verify"], &other["min_memory"]), (&true.into(), &true.into()));
    let table = replay(&trace, &["--spread", "3", "--passes", "2"]).out;
    assert!(table.contains("lag 0, spread over 3 streams, pass 2"), "{table}");
}

#[test]
fn the_large_trace_stays_close_to_what_is_live() {
    let report = replay(&repository_trace("T1.trace.zst"), &["--json"]).json();
    assert_eq!((report["ooms"].as_u64(), findings(&report)), (Some(0), vec![]));
    let (live, physical) = (report["peak_live"].as_u64().unwrap(), report["peak_physical"].as_u64().unwrap());
    assert_eq!(live, 55_939_301_824);
    assert!(physical <= live + live / 100 * 3, "{physical} bytes for {live} live ones");
    assert_eq!(report["syncs"]["device"], 0);
    assert_eq!(report["steps"].as_array().unwrap().len(), 12);
}

/// Sizes whose blocks follow from the rounding rule alone: 480 takes 512, 481 takes 1024, 20 MiB
/// takes 20 MiB and 512.
const KNOWN: &str =
    "a 1 480 0\na 2 481 0\nm step 0\na 3 20971520 0\nf 3\nm step 1\na 4 20971520 0\nf 1\ns 0\nf 4\nf 2\n";

#[test]
fn a_small_trace_has_known_answers() {
    let run = replay(&file("known.trace", KNOWN.as_bytes()), &["--json", "--verify"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let report = run.json();
    assert_eq!(report["ops"], 8);
    assert_eq!(report["peak_live"], 480 + 481 + 20 * MIB);
    assert_eq!(report["peak_allocated"], 512 + 1024 + 20 * MIB + 512);
    // Small and large requests lie apart: one chunk, and eleven.
    assert_eq!(report["peak_physical"], 24 * MIB);
    assert_eq!(report["peak_reserved"], 24 * MIB);
    // What step 0 mapped serves step 1 again.
    assert_eq!(report["steps"][2]["label"], "step 1");
    assert_eq!(report["steps"][2]["malloc_physical"], 0);
    assert_eq!(report["steps"][2]["map"], 0);
}

#[test]
fn the_smallest_device_is_known_for_one_block() {
    let one = file("one.trace", b"a 1 20971520 0\nf 1\n");
    let report = replay(&one, &["--json", "--min-memory"]).json();
    assert_eq!(report["min_memory"], 22 * MIB);
    let report = replay(&one, &["--json"]).json();
    assert!(report["min_memory"].is_null());
}

#[test]
fn the_last_pass_is_reported() {
    let trace = file("passes.trace", KNOWN.as_bytes());
    let once = replay(&trace, &["--json"]).json();
    let thrice = replay(&trace, &["--json", "--passes", "3"]).json();
    assert!(once["calls"]["map"].as_u64().unwrap() > 0);
    assert_eq!(thrice["calls"]["map"], 0, "a warm allocator maps nothing");
    assert_eq!(once["peak_allocated"], thrice["peak_allocated"]);
    assert_eq!(thrice["ops"], 8);
    // Blocks that the trace leaves live are freed between passes.
    let left = file("left.trace", b"a 1 20971520 0\na 2 100 0\n");
    let report = replay(&left, &["--json", "--passes", "4", "--verify"]).json();
    assert_eq!(report["peak_allocated"], 20 * MIB + 512 + 512);
    assert_eq!(findings(&report), Vec::<String>::new());
}

#[test]
fn running_out_of_memory_is_reported_and_survived() {
    let trace = file("oom.trace", b"a 1 1000 0\nm big\na 2 20971520 0\nr 2 1\nf 2\na 3 1000 0\nf 3\nf 1\n");
    let json = replay(&trace, &["--json", "--memory", "16MiB"]);
    assert_eq!((json.code, json.json()["ooms"].as_u64()), (0, Some(1)), "{}", json.err);
    let table = replay(&trace, &["--memory", "16MiB"]);
    assert!(table.out.contains("first at event 3 in step big"), "{}", table.out);
    assert!(table.out.contains("asked for 20 MiB (20971520 bytes)"), "{}", table.out);
    assert_eq!(replay(&trace, &["--json"]).json()["ooms"], 0);
    // A size that no device has.
    let huge = file("huge.trace", b"a 1 9223372036854775807 0\nf 1\na 2 512 0\nf 2\n");
    assert_eq!(replay(&huge, &["--json"]).json()["ooms"], 1);
}

#[test]
fn sizes_of_zero_are_fine() {
    let trace = file("zero.trace", b"a 1 0 0\nr 1 2\na 2 0 2\nf 1\nf 2\n");
    let run = replay(&trace, &["--json", "--verify", "--passes", "2"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    assert_eq!(run.json()["peak_live"], 0);
}

#[test]
fn a_table_is_printed_without_json() {
    let run = replay(&repository_trace("T0.trace.zst"), &["--lag", "16"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "nothing but the table goes to a pipe");
    for part in [
        "T0: 261 events",
        "metadata only",
        "peak physical",
        "33.40 MiB",
        "host time per call",
        "teardown",
        "findings: none",
    ] {
        assert!(run.out.contains(part), "{part} is missing in\n{}", run.out);
    }
    assert!(run.out.lines().all(|line| line == line.trim_end()), "no trailing blanks");
}

#[test]
fn what_there_is_one_of_is_said_of_one() {
    let one =
        replay(&file("single.trace", b"a 1 512 0\n"), &["--memory", "2MiB", "--verify", "--lag", "1"]).out;
    assert!(one.starts_with("single: 1 event, 1 call into the allocator\n"), "{one}");
    assert!(one.contains("verified: 1 block\n"), "{one}");
    let full = replay(&file("full.trace", b"a 1 4194304 0\na 2 512 0\n"), &["--memory", "2MiB"]).out;
    assert!(full.contains("out of memory: 1 time, so"), "{full}");
    let block = r#"{"size": 2097152, "requested_size": 2097152, "state": "active_allocated"}"#;
    let segment = r#"{"device": 0, "address": 4194304, "total_size": 2097152, "blocks": [B]}"#;
    let text = format!("{{\"segments\": [{}, {{}}]}}", segment.replace('B', block));
    let snapshot = file("single.json", text.as_bytes());
    let shown = run(&["snapshot", snapshot.to_str().unwrap()]).out;
    for part in [
        "1 device with",
        "  1 segment, 0 expandable",
        "  1 block\n",
        "note: 1 segment without address, size or blocks was left out",
    ] {
        assert!(shown.contains(part), "{part} is missing in\n{shown}");
    }
    let converted = snapshot.with_extension("trace");
    let told = run(&["convert", snapshot.to_str().unwrap(), "-o", converted.to_str().unwrap()]);
    assert!(told.out.contains("1 allocation (1 of them"), "{}{}", told.out, told.err);
    assert!(told.out.contains("0 frees, 0 uses on other streams"), "{}", told.out);
}

#[test]
fn several_traces_give_a_line_each_in_order() {
    let (a, b) = (file("first.trace", b"a 1 9 0\n"), file("second.trace", b"a 1 9 0\n"));
    let run = run(&["replay", "--json", b.to_str().unwrap(), a.to_str().unwrap()]);
    let names: Vec<String> = run
        .out
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["trace"].to_string())
        .collect();
    assert_eq!(names, ["\"second\"", "\"first\""]);
}

#[test]
fn a_malformed_trace_gets_file_line_and_reason() {
    let bad = file("bad.trace", b"# task x\na 1 512 0\nf 2\n");
    let good = file("good.trace", b"a 1 512 0\nf 1\n");
    let run = run(&["replay", "--json", bad.to_str().unwrap(), good.to_str().unwrap()]);
    assert_eq!(run.code, 2);
    let expected = format!("error: {}:3: free of id 2, which was never allocated\n", bad.display());
    assert_eq!(run.err, expected);
    assert_eq!(run.json()["trace"], "good", "the others are still replayed");
    let short = replay(&file("short.trace", b"# events 9\na 1 512 0\nf 1\n"), &["--json"]);
    assert_eq!(short.code, 0);
    assert!(short.err.contains("the header says events 9, the file holds 2"), "{}", short.err);
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let trace = file("options.trace", b"a 1 512 0\nf 1\n");
    for (arguments, part) in [
        (&["--memory", "64GB"][..], "powers of ten"),
        (&["--memory", "3MiB"], "multiple of 2 MiB"),
        (&["--passes", "0"], "0 is not in"),
        (&["--lag", "many"], "--lag"),
        (&["--conf", "no_such_key:1"], "no_such_key"),
        (&["--conf", "expandable_segments:maybe"], "expandable_segments"),
        (&["--no-such-option"], "--no-such-option"),
    ] {
        let run = replay(&trace, arguments);
        assert_eq!(run.code, 2, "{arguments:?}");
        assert!(run.err.contains(part), "{arguments:?}: {}", run.err);
        assert_eq!(run.out, "");
    }
    let conf = "expandable_segments:True";
    assert_eq!(replay(&trace, &["--conf", conf, "--json"]).json()["conf"], conf);
    assert_eq!(run(&["replay"]).code, 2);
    assert!(run(&["replay", "--help"]).out.contains("--min-memory"));
}

#[test]
fn a_snapshot_that_is_not_written_leaves_what_was_there() {
    // A list of two lists of two lists, each shared: 2^40 values when written out.
    let mut pickle = b"\x80\x02}X\x08\x00\x00\x00segments]sX\x01\x00\x00\x00x]".to_vec();
    (0..40).for_each(|_| pickle.extend(b"2\x86"));
    pickle.extend(b"s.");
    let input = file("shared.pickle", &pickle);
    let output = input.with_file_name("shared.json");
    let arguments = ["snapshot", input.to_str().unwrap(), "-o", output.to_str().unwrap()];
    let _gone = std::fs::remove_file(&output);
    for before in [None, Some(b"before")] {
        if let Some(bytes) = before {
            std::fs::write(&output, bytes).unwrap();
        }
        let run = run(&arguments);
        assert_eq!(run.code, 2);
        assert!(run.err.contains("shared.json: cannot be written: more than 2^32 values"), "{}", run.err);
        assert_eq!(std::fs::read(&output).ok().as_deref(), before.map(|bytes| &bytes[..]));
    }
    // As a pickle it stays small.
    let output = output.with_extension("again.pickle");
    let made = run(&["snapshot", input.to_str().unwrap(), "-o", output.to_str().unwrap()]);
    assert_eq!((made.code, made.err.as_str()), (0, ""));
    assert!(std::fs::metadata(&output).unwrap().len() < 1000);
}
