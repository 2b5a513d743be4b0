//! Where the C libraries are, and how C programs and headers are compiled.

#![allow(dead_code)] // Every test binary uses another part.

pub mod headers;
pub mod programs;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The folder of the workspace.
pub const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The shared library, built for this very run of the tests: beside the running test.
pub fn shared() -> PathBuf {
    built("libascend_alloc.so")
}

/// The static library.
pub fn archive() -> PathBuf {
    built("libascend_alloc.a")
}

/// The simulator's `libascendcl.so`. As the two above, it is a dev-dependency so that it is built.
pub fn simulator() -> PathBuf {
    built("libascendcl.so")
}

/// What the linker is told so that a program finds this very library. Cargo sets `LD_LIBRARY_PATH` for tests, and
/// an older build may lie there, so the path has to be of the kind that goes first.
pub fn rpath(library: &Path) -> String {
    let folder = library.parent().expect("a library lies in a folder");
    format!("-Wl,--disable-new-dtags,-rpath,{}", folder.display())
}

/// The header as it is checked in.
pub fn header() -> PathBuf {
    Path::new(ROOT).join("ffi/include/ascend_alloc.h")
}

/// A folder for one test, empty.
pub fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c_library").join(test);
    let _absent = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the scratch folder can be written");
    folder
}

/// Runs a command that must succeed.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    output
}

/// Whether this machine compiles C++; a machine with gcc alone does not. Where it does not that is said past the
/// harness's capture of output, and where CI has installed it, `ASCEND_ALLOC_NEEDS_CPP=1` makes
/// its absence a failure.
pub fn has_cpp(what: &str) -> bool {
    let mut gcc = Command::new("gcc");
    let output = gcc.args(["-x", "c++", "-fsyntax-only", "/dev/null"]).output().expect("gcc runs");
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(std::env::var_os("ASCEND_ALLOC_NEEDS_CPP").is_none(), "gcc compiles no C++: {text}");
        say(&format!("NOT CHECKED: {what} as C++ (gcc compiles no C++ here)"));
    }
    output.status.success()
}

/// Writes a line where the harness does not capture it.
pub fn say(text: &str) {
    writeln!(std::io::stderr(), "{text}").expect("standard error is open");
}

fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the running test has a path");
    let file = test.parent().expect("the test lies in a folder").join(name);
    assert!(file.is_file(), "{} was not built with the tests", file.display());
    file
}
