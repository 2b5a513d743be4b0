//! `ascend-alloc doctor` on the simulator's library, and without any.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Run, file};
use serde_json::Value;

const ROWS: &str = include_str!("rows.md");

/// The simulator's library. It is a dev-dependency, so that it is built; it lies beside the running test.
fn simulator() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join("libascendcl.so");
    assert!(library.is_file(), "{} was not built with the tests", library.display());
    library
}

fn doctor_on(library: Option<&Path>, variables: &[(&str, &str)], arguments: &[&str]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ascend-alloc"));
    for name in
        ["ASCEND_HOME_PATH", "ASCEND_RT_VISIBLE_DEVICES", "ASCEND_ALLOC_CONF", "ASCEND_ALLOC_ACL_LIBRARY"]
    {
        command.env_remove(name);
    }
    command.arg("doctor").args(arguments).envs(variables.iter().copied());
    if let Some(library) = library {
        command.env("ASCEND_ALLOC_ACL_LIBRARY", library);
    }
    let output = command.output().unwrap();
    Run {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn doctor(variables: &[(&str, &str)], arguments: &[&str]) -> Run {
    doctor_on(Some(&simulator()), variables, arguments)
}

/// The rows of a report as JSON, by what became of them.
fn calls(report: &Value, outcome: &str) -> Vec<String> {
    let rows = report["rows"].as_array().unwrap().iter();
    rows.filter(|row| row["outcome"] == outcome).map(|row| row["call"].as_str().unwrap().to_owned()).collect()
}

fn conform(name: &str, rows: &str, arguments: &[&str]) -> Run {
    let path = file(name, rows.as_bytes());
    doctor(&[], &[&["--conform", path.to_str().unwrap()], arguments].concat())
}

#[test]
fn the_simulator_is_examined() {
    let run =
        doctor(&[("ASCEND_SIM_CAPACITY", "8G"), ("ASCEND_SIM_DEVICES", "2")], &["--json", "--device", "1"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let report = run.json();
    assert!(report["library"]["file"].as_str().unwrap().ends_with("libascendcl.so"));
    assert_eq!(report["library"]["version"]["is"], "1.17.0");
    assert_eq!((&report["devices"], &report["device"]), (&2.into(), &1.into()));
    assert_eq!(report["memory"]["is"]["total"], 8_u64 << 30);
    assert_eq!(report["granules"][0]["granule"]["is"], 2 << 20);
    assert!(report["addresses"]["largest"].as_u64().unwrap() >= 128 << 30);
    assert_eq!(report["addresses"]["not_released"], 0);
    assert_eq!(report["events"]["not_destroyed"], 0);
    let access = &report["access"]["is"];
    assert_eq!((&access["after_map"]["is"], &access["usable_after_map"]["is"]), (&3.into(), &true.into()));
    assert_eq!(report["tail_pad"]["is"], 32);
    let works = &report["outlook"]["works"];
    assert_eq!((&works["growable"], &works["kept"]), (&true.into(), &0.into()));
    assert_eq!(works["granule"], 2 << 20);
    // 24 MiB, the pad and 1000 bytes: twelve chunks, one for the pad, one for small blocks.
    assert_eq!(works["set_access_calls"], 14);
}

#[test]
fn a_person_reads_the_same() {
    let run = doctor(&[], &[]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let parts =
        ["interface      1.17.0", "granule        2 MiB for huge pages", "the owner does not need the call"];
    for part in parts.iter().chain(&["segments       growable", "given back     all", "and 32 bytes"]) {
        assert!(run.out.contains(part), "{part} is not in\n{}", run.out);
    }
}

/// What is missing or set decides what the allocator does.
#[test]
fn other_libraries_give_other_answers() {
    let old = doctor(&[("ASCEND_SIM_SURFACE", "8.1")], &["--json"]).json();
    let access = &old["access"]["is"];
    assert!(access["set_access"]["refused"].as_str().unwrap().contains("207000"), "{access}");
    assert_eq!(access["usable_after_map"]["is"], true);
    let works = &old["outlook"]["works"];
    assert_eq!((&works["growable"], &works["set_access_calls"]), (&true.into(), &1.into()));
    assert!(works["set_access_reason"].as_str().unwrap().contains("refused the call"), "{works}");

    let part = doctor(&[("ASCEND_SIM_SOC", "Ascend950PR_9579")], &["--json"]).json();
    assert_eq!((&part["tail_pad"]["is"], &part["outlook"]["works"]["tail_pad"]), (&0.into(), &0.into()));

    let fixed = doctor(&[("ASCEND_ALLOC_CONF", "expandable_segments:False")], &["--json"]).json();
    let works = &fixed["outlook"]["works"];
    assert_eq!((&works["growable"], &works["set_access_calls"]), (&false.into(), &0.into()));
    assert_eq!(works["growable_reason"], "expandable_segments is False");
    assert_eq!(works["settings"][0][0], "expandable_segments");

    let renumbered =
        doctor(&[("ASCEND_RT_VISIBLE_DEVICES", "1"), ("ASCEND_SIM_DEVICES", "2")], &["--json"]).json();
    assert_eq!(renumbered["access"]["is"]["is_addressable"], false);
    assert_eq!(renumbered["outlook"]["works"]["set_access_calls"], 0);
}

#[test]
fn an_allocator_that_cannot_work_is_told() {
    let run = doctor(&[("ASCEND_SIM_CAPACITY", "4M")], &["--json"]);
    assert_eq!((run.code, run.err.as_str()), (1, ""));
    assert!(run.json()["outlook"]["fails"].as_str().unwrap().contains("memory"));
    let run = doctor(&[("ASCEND_ALLOC_CONF", "no_such_key:1")], &[]);
    assert_eq!(run.code, 1);
    assert!(run.out.contains("no_such_key"), "{}", run.out);
}

#[test]
fn without_a_library_every_place_is_named() {
    let run = doctor_on(Some(Path::new("/no/such/library.so")), &[], &[]);
    assert_eq!((run.code, run.out.as_str()), (2, ""));
    assert!(run.err.contains("/no/such/library.so\n"), "{}", run.err);
    assert!(run.err.contains("No such file"), "{}", run.err);

    let run =
        doctor_on(None, &[("ASCEND_HOME_PATH", "/no/such/toolkit"), ("LD_LIBRARY_PATH", "")], &["--json"]);
    assert_eq!((run.code, run.err.as_str()), (2, ""));
    let report = run.json();
    let places: Vec<&str> = report["looked_at"]
        .as_array()
        .unwrap()
        .iter()
        .map(|place| place["place"].as_str().unwrap())
        .collect();
    for place in ["libascendcl.so loaded before", "/no/such/toolkit/lib64/libacl_rt.so", "libascendcl.so"] {
        assert!(places.contains(&place), "{places:?}");
    }
    assert!(report["looked_at"].as_array().unwrap().iter().all(|place| place["reason"] != ""));
}

#[test]
fn a_device_that_is_not_there_is_refused() {
    let run = doctor(&[("ASCEND_SIM_DEVICES", "2")], &["--device", "2"]);
    assert_eq!((run.code, run.out.as_str()), (2, ""));
    assert!(run.err.contains("there is no device 2"), "{}", run.err);
}

#[test]
fn rows_are_played() {
    let run = conform("rows.md", ROWS, &["--json"]);
    assert_eq!((run.code, run.err.as_str()), (1, ""));
    let report = run.json();
    assert_eq!(report["rows"].as_array().unwrap().len(), 23);
    assert_eq!(calls(&report, "same").len(), 14);
    assert_eq!(calls(&report, "differs"), ["SynchronizeStreamWithTimeout(s,0)"]);
    let differing =
        report["rows"].as_array().unwrap().iter().find(|row| row["outcome"] == "differs").unwrap();
    assert_eq!((&differing["listed"], &differing["detail"]), (&"507046".into(), &107_000.into()));
    // The chunk of the rows before it was never listed, so it was made.
    let map =
        report["rows"].as_array().unwrap().iter().find(|row| row["call"] == "Map(va,2M,0,h,0)").unwrap();
    assert!(
        map["first"]
            .as_array()
            .unwrap()
            .iter()
            .any(|call| call.as_str().unwrap().starts_with("MallocPhysical"))
    );
    let skipped = ["FreePhysical(h) double", "FreePhysical((void*)0x1234)"];
    assert_eq!(calls(&report, "skipped")[..2], skipped);
    assert_eq!(calls(&report, "skipped")[2], "MallocPhysical(&h2,64T,&p,0) more than capacity");
    let strange = [
        "aclrtNoSuchCall(1)",
        "Release(what is this)",
        "Map(va,2M,0,h,0,0,0)",
        "aclrtGetMemInfo(HBM)",
        "| a row without a call |",
    ];
    assert_eq!(calls(&report, "not_understood"), strange);
    assert_eq!(report["remarks"].as_array().unwrap().len(), 0);
}

#[test]
fn a_person_sees_the_differences() {
    let run = conform("rows_text.md", ROWS, &[]);
    assert_eq!(run.code, 1);
    let expected = "   1 differ\n       line 31, wrong: SynchronizeStreamWithTimeout(s,0)\n           listed 507046, \
                    answered 107000 (ACL_ERROR_RT_PARAM_INVALID)\n";
    assert!(run.out.contains(expected), "{}", run.out);
    assert!(run.out.contains("   3 skipped\n"), "{}", run.out);
}

/// On the simulator no row is unsafe, and a row that is a signal elsewhere is an error here.
#[test]
fn all_rows_are_played_on_demand() {
    let report = conform("rows_all.md", ROWS, &["--json", "--all"]).json();
    assert_eq!(calls(&report, "skipped"), [""; 0]);
    assert_eq!(calls(&report, "same").len(), 17);
}

#[test]
fn the_plain_form_is_read_too() {
    let rows = "# comment\ngroup one\n0 set_device 0\n0 reserve va 64M flags=1\n0 physical h 2M\n\
                507899 map va 1M h\n107000 map va 2M h offset=2M\n0 register m 4M type=0\n0 map va 2M h2\n\
                0 unmap va\ngroup two soc=950\n0 set_device 0\ngroup three init=no\n0 init\n100002 init\n";
    let report = conform("rows.txt", rows, &["--json"]).json();
    assert_eq!(calls(&report, "same").len(), 8);
    // A group in this form is complete: nothing is made for it, and what a row left that was not understood is not
    // known.
    assert_eq!(calls(&report, "not_understood"), ["map va 2M h2", "unmap va"]);
    assert_eq!(calls(&report, "skipped"), ["set_device 0"]);
    assert_eq!(report["rows"].as_array().unwrap().len(), 11);
}

/// A row that would have succeeded and is skipped leaves its group in no known state.
#[test]
fn behind_a_skipped_row_of_the_plain_form_nothing_is_claimed() {
    let rows = "group one\n0 set_device 0\n0 register m 4096 type=4\n0 unregister m\n507911 unregister m\n\
                group two\n0 set_device 0\n107000 free_physical 0x1234\n0 get_device\n";
    let report = conform("skipped.txt", rows, &["--json"]).json();
    assert_eq!(calls(&report, "differs"), [""; 0]);
    assert_eq!(calls(&report, "skipped"), ["register m 4096 type=4", "free_physical 0x1234"]);
    assert_eq!(calls(&report, "not_understood"), ["unregister m", "unregister m"]);
    assert_eq!(calls(&report, "same"), ["set_device 0", "set_device 0", "get_device"]);
    let report = conform("skipped_all.txt", rows, &["--json", "--all"]).json();
    assert_eq!(calls(&report, "same").len(), 7);
}

#[test]
fn what_is_no_file_of_rows_is_refused() {
    for (name, text) in
        [("none.md", "nothing here"), ("empty.md", "## group `a`\n\n| call | code |\n|---|---|\n")]
    {
        let run = conform(name, text, &[]);
        assert_eq!((run.code, run.out.as_str()), (2, ""));
        assert!(run.err.contains("no rows found"), "{}", run.err);
    }
    let run = doctor(&[], &["--conform", "/no/such/file.md"]);
    assert_eq!(run.code, 2);
    assert!(run.err.contains("/no/such/file.md"), "{}", run.err);
}

/// A call that ends its process is told as that, and the rest of its group is played without it.
#[test]
fn a_crash_is_told_and_survived() {
    let rows = "## group `a`\n\n| call | code | layer |\n|---|---|---|\n| `aclrtSetDevice(0)` | 0 | R |\n\
                | `Release((void*)0x1000)` | 107000 | U |\n| `aclFinalize()` | 0 | R |\n\
                | `FreePhysical((void*)0x1234)` | SIGNAL 11 | U |\n| `aclrtGetDevice(&d)` | 0 | R |\n\
                | `StreamQuery(s,&x)` | 0 | R |\n## group `b`\n\n| `aclrtSetDevice(0)` | 0 | R |\n";
    let path = file("crash.md", rows.as_bytes());
    let library = path.with_file_name("libcrash.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/crash.c");
    let mut gcc = Command::new("gcc");
    let output = gcc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).output().expect("gcc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let run = doctor_on(Some(&library), &[], &["--all", "--json", "--conform", path.to_str().unwrap()]);
    assert_eq!((run.code, run.err.as_str()), (1, ""));
    let report = run.json();
    let outcome = |line: u64| {
        let mut rows = report["rows"].as_array().unwrap().iter();
        let row = rows.find(|row| row["line"] == line).unwrap();
        (row["outcome"].as_str().unwrap().to_owned(), row["detail"].clone())
    };
    assert_eq!(outcome(5), ("same".to_owned(), Value::Null));
    assert_eq!(outcome(6), ("crashed".to_owned(), 6.into()));
    assert_eq!(outcome(7), ("crashed".to_owned(), 0.into()), "it ended the process without a signal");
    assert_eq!(outcome(8), ("same".to_owned(), Value::Null), "the signal is the listed one");
    assert_eq!(outcome(9), ("same".to_owned(), Value::Null), "rows behind a crash are played");
    assert_eq!(outcome(10), ("missing".to_owned(), "aclrtStreamQuery".into()));
    assert_eq!(outcome(13), ("same".to_owned(), Value::Null), "other groups do not notice");
}
