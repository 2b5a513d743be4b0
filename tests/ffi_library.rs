//! The C library as C and C++ programs use it, on the simulator's library. Each scenario of the programs in
//! `ffi/tests` is a process of its own, because a process has one allocator.

mod c_library;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use c_library::{ROOT, folder, has_cpp, run, shared, simulator};

const C: &[&str] = &["gcc", "-x", "c", "-std=gnu99"];
const CPP: &[&str] = &["g++", "-x", "c++", "-std=gnu++11"];

/// Compiles a program of `ffi/tests`, linked with both libraries.
fn build(folder: &Path, name: &str, compiler: &[&str], source: &str) -> PathBuf {
    let program = folder.join(name);
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).args(["-Wall", "-Wextra", "-Werror", "-g", "-O1"]);
    for include in ["ffi/include", "ffi/acl", "sim/ascendcl/include", "ffi/tests"] {
        command.arg(format!("-I{ROOT}/{include}"));
    }
    command.arg(format!("{ROOT}/ffi/tests/{source}")).args(["-x", "none"]);
    for library in [shared(), simulator()] {
        let folder = library.parent().expect("a library lies in a folder");
        command.arg(&library).arg(format!("-Wl,-rpath,{}", folder.display()));
    }
    run(command.args(["-pthread", "-ldl", "-o"]).arg(&program));
    program
}

/// A program as C, and as C++ where that is compiled here.
fn both(name: &str) -> Vec<PathBuf> {
    let folder = folder(&format!("ffi_{name}"));
    let source = format!("{name}.c");
    let mut programs = vec![build(&folder, "c", C, &source)];
    if has_cpp(&source) {
        programs.push(build(&folder, "cpp", CPP, &source));
    }
    programs
}

static LIBRARY: LazyLock<Vec<PathBuf>> = LazyLock::new(|| both("library"));

/// A command with nothing of this process's own settings, that finds the runtime library in the program.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    for name in
        ["ASCEND_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "ASCEND_ALLOC_ACL_LIBRARY"]
    {
        command.env_remove(name);
    }
    command
}

#[track_caller]
fn holds(name: &str, output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text, format!("{name}: all checks hold\n"));
}

#[track_caller]
fn scenario(programs: &[PathBuf], name: &str) {
    for program in programs {
        holds(name, &run(command(program).arg(name)));
    }
}

#[test]
fn blocks_and_questions_about_them() {
    scenario(&LIBRARY, "basics");
}

#[test]
fn requests_with_attributes() {
    scenario(&LIBRARY, "requests");
}

#[test]
fn pools_and_routes() {
    scenario(&LIBRARY, "pools");
    scenario(&LIBRARY, "sources");
}

#[test]
fn captures_and_checkpoints() {
    scenario(&LIBRARY, "captures");
}

#[test]
fn sleep_and_wake() {
    scenario(&LIBRARY, "sleeping");
    scenario(&LIBRARY, "tagged");
}

#[test]
fn growing_buffers() {
    scenario(&LIBRARY, "buffers");
}

#[test]
fn events_and_snapshots() {
    scenario(&LIBRARY, "seeing");
}
