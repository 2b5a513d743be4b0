//! Programs of `ffi/tests`: how they are compiled and run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::{ROOT, folder, has_cpp, rpath, run, shared, simulator};

/// A compiler of C.
pub const C: &[&str] = &["gcc", "-x", "c", "-std=gnu99"];
/// A compiler of C++.
const CPP: &[&str] = &["g++", "-x", "c++", "-std=gnu++11"];

/// Compiles a program of `ffi/tests`, linked with these libraries.
pub fn build(folder: &Path, name: &str, compiler: &[&str], source: &str, libraries: &[PathBuf]) -> PathBuf {
    let program = folder.join(name);
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).args(["-Wall", "-Wextra", "-Werror", "-g", "-O1"]);
    for include in ["ffi/include", "ffi/acl", "sim/ascendcl/include", "ffi/tests"] {
        command.arg(format!("-I{ROOT}/{include}"));
    }
    command.arg(format!("{ROOT}/ffi/tests/{source}")).args(["-x", "none"]);
    for library in libraries {
        command.arg(library).arg(rpath(library));
    }
    run(command.args(["-pthread", "-ldl", "-lm", "-o"]).arg(&program));
    program
}

/// A program as C, and as C++ where that is compiled here.
pub fn both(name: &str) -> Vec<PathBuf> {
    let folder = folder(&format!("ffi_{name}"));
    let source = format!("{name}.c");
    let libraries = [shared(), simulator()];
    let mut programs = vec![build(&folder, "c", C, &source, &libraries)];
    if has_cpp(&source) {
        programs.push(build(&folder, "cpp", CPP, &source, &libraries));
    }
    programs
}

/// A command with nothing of this process's own settings, that finds the runtime library in the program.
pub fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    for name in [
        "ASCEND_ALLOC_CONF",
        "PYTORCH_NPU_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
        "ASCEND_ALLOC_ACL_LIBRARY",
        "ASCEND_ALLOC_TRACE",
    ] {
        command.env_remove(name);
    }
    command
}

/// What a program says whose checks all hold.
#[track_caller]
pub fn holds(name: &str, output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text, format!("{name}: all checks hold\n"));
}
