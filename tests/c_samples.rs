//! The C samples: they compile without a warning against the header of `ffi/acl` and run on the simulator's library.

mod c_library;

use std::path::{Path, PathBuf};
use std::process::Command;

use c_library::{ROOT, folder, rpath, run, simulator};

/// Compiles a source as the comments of the samples say, and other files with it.
fn build(source: &str, folder: &Path, more: &[&str]) -> PathBuf {
    let program = folder.join("sample");
    let library = simulator();
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O1"]);
    gcc.args(["ffi/acl", "examples/c"].map(|folder| format!("-I{ROOT}/{folder}"))).arg("-o").arg(&program);
    gcc.args(more).arg(format!("{ROOT}/{source}")).arg(&library);
    gcc.arg(rpath(&library));
    run(&mut gcc);
    program
}

fn output_of(sample: &str) -> String {
    let program = build(&format!("examples/c/{sample}.c"), &folder(sample), &[]);
    let output = run(&mut Command::new(program));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8(output.stdout).expect("the samples print ASCII")
}

/// What the simulator found wrong in a source, whose `main` is renamed so that it can be asked afterwards.
fn findings_of(source: &str, test: &str, variables: &[(&str, &str)]) -> String {
    let folder = folder(test);
    let object = folder.join("findings.o");
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-c", "-o"]).arg(&object);
    run(gcc.arg(format!("{ROOT}/tests/c_library/findings.c")));
    let program = build(source, &folder, &["-Dmain=sample_main", &object.display().to_string()]);
    let output = run(Command::new(program).envs(variables.iter().copied()));
    let text = String::from_utf8(output.stdout).expect("the findings are ASCII");
    text.lines().last().expect("the last line is the findings").to_owned()
}

#[test]
fn virtual_memory_runs() {
    let expected = [
        "granule of 2097152 bytes",
        "reserved 8 granules",
        "mapped 4 chunks",
        "copied 8388608 bytes to the device and back",
        "moved a chunk with its bytes",
        "gave everything back",
    ];
    let text = output_of("virtual_memory");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("device 0 of "), "{text}");
    assert_eq!(lines[1..], expected);
}

#[test]
fn page_locked_runs() {
    let expected = [
        "block of aclrtMallocHost: host memory",
        "copied 1048576 bytes through it on a stream",
        "registered 1048576 bytes of the program's own",
        "copied 1048576 bytes from it on a stream",
        "gave everything back",
    ];
    let text = output_of("page_locked");
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn the_simulator_finds_nothing_wrong() {
    for sample in ["virtual_memory", "page_locked"] {
        let found = findings_of(&format!("examples/c/{sample}.c"), &format!("{sample}_findings"), &[]);
        // The answer is the length of the text.
        assert_eq!(found, "status 0, answer 2, findings []", "{sample}");
    }
}

/// The check above can fail.
#[test]
fn the_simulator_finds_what_is_wrong() {
    let late = [("ASCEND_SIM_EVENT_LAG", "never")];
    let found = findings_of("tests/c_library/unordered.c", "unordered", &late);
    assert!(found.starts_with("status 0, "), "{found}");
    assert!(found.contains("unmap") && found.contains("aclrtMemsetAsync"), "{found}");
}

/// A sample that fails says which call, with what code, and ends with a status of its own.
#[test]
fn a_refused_call_is_reported() {
    let program = build("examples/c/virtual_memory.c", &folder("virtual_memory_refused"), &[]);
    let output =
        Command::new(program).env("ASCEND_SIM_FAIL", "aclrtMapMem:3:207001").output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("aclrtMapMem(base + i * granule, granule, 0, chunks[i], 0) answered 207001"),
        "{text}"
    );
}
