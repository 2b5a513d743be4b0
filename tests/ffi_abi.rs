//! The C library as C and C++ programs use it, on a stand-in for the vendor's library. Each scenario of
//! `c_library/abi.c` is a process of its own, because a process has one allocator.

mod c_library;
mod stand_ins;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use c_library::{ROOT, archive, folder, has_cpp, rpath, run, shared};
use stand_ins::{CANN_8_0, FULL, WITHOUT_REQUIRED, compile};

/// The program: as C with the shared library, as C with the static one, as C++ with the shared one.
static PROGRAMS: LazyLock<Vec<PathBuf>> = LazyLock::new(|| {
    let folder = folder("abi");
    let library = shared();
    let rpath = rpath(&library);
    let shared: &[&str] = &[library.to_str().expect("a path in UTF-8"), &rpath];
    let archive = archive();
    let fixed: &[&str] = &[archive.to_str().expect("a path in UTF-8"), "-lm", "-lrt", "-lutil"];
    let mut programs = vec![
        build(&folder, "c_shared", &["gcc", "-x", "c", "-std=gnu99"], shared),
        build(&folder, "c_static", &["gcc", "-x", "c", "-std=gnu99"], fixed),
    ];
    if has_cpp("the C ABI") {
        programs.push(build(&folder, "cpp_shared", &["g++", "-x", "c++", "-std=c++11"], shared));
    }
    programs
});
static STAND_IN: LazyLock<PathBuf> = LazyLock::new(|| compile(FULL, &folder("full"), "libfull.so", None));

fn build(folder: &Path, name: &str, compiler: &[&str], libraries: &[&str]) -> PathBuf {
    let program = folder.join(name);
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).args(["-Wall", "-Wextra", "-Werror", "-g"]);
    command.args([format!("-I{ROOT}/ffi/include"), format!("-I{ROOT}/ffi/acl")]);
    command.arg(format!("{ROOT}/tests/c_library/abi.c")).args(["-x", "none"]);
    run(command.args(libraries).args(["-lpthread", "-ldl", "-o"]).arg(&program));
    program
}

/// A command with nothing of this process's own settings.
fn command(program: &Path, library: &Path) -> Command {
    let mut command = Command::new(program);
    for name in ["ASCEND_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF"] {
        command.env_remove(name);
    }
    command.env("ASCEND_ALLOC_ACL_LIBRARY", library);
    command
}

/// Runs a scenario in every build of the program.
fn scenario(name: &str, argument: &str, library: &Path, settings: &[(&str, &str)]) {
    for program in &*PROGRAMS {
        let mut command = command(program, library);
        let output = run(command.arg(name).arg(argument).envs(settings.iter().copied()));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text, format!("{name}: all checks hold\n"));
    }
}

#[test]
fn blocks_come_and_go() {
    scenario("lifecycle", env!("CARGO_PKG_VERSION"), &STAND_IN, &[]);
}

#[test]
fn blocks_come_and_go_on_an_old_library() {
    let old = compile(CANN_8_0, &folder("old"), "libold.so", None);
    scenario("lifecycle", env!("CARGO_PKG_VERSION"), &old, &[]);
}

#[test]
fn wrong_arguments_are_refused_and_change_nothing() {
    scenario("refusals", "", &STAND_IN, &[]);
}

#[test]
fn configurations_come_from_the_environment_and_from_init() {
    let limit = [("ASCEND_ALLOC_CONF", "per_process_memory_fraction:0.01")];
    scenario("configuration", "", &STAND_IN, &limit);
    scenario("text_goes_first", "", &STAND_IN, &limit);
}

#[test]
fn settings_without_effect_are_named() {
    for program in &*PROGRAMS {
        let mut command = command(program, &STAND_IN);
        command.args(["lifecycle", env!("CARGO_PKG_VERSION")]);
        let output = run(command.env("PYTORCH_NPU_ALLOC_CONF", "throw_on_npumalloc_oom:False"));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("warning") && text.contains("throw_on_npumalloc_oom"), "{text}");
    }
}

#[test]
fn a_missing_library_or_function_is_named() {
    let absent = folder("absent").join("libabsent.so");
    scenario("no_library", "libabsent.so", &absent, &[]);
    let poor = compile(WITHOUT_REQUIRED, &folder("poor"), "libpoor.so", None);
    scenario("no_library", "aclrtMallocAlign32", &poor, &[]);
}

#[test]
fn the_threads_device_stays_what_it_was() {
    scenario("devices", STAND_IN.to_str().expect("a path in UTF-8"), &STAND_IN, &[]);
}

#[test]
fn threads_set_the_allocator_up_once() {
    scenario("threads", "", &STAND_IN, &[]);
}

/// The C example of the README, as a program.
#[test]
fn the_example_of_the_readme_runs() {
    let readme = std::fs::read_to_string(Path::new(ROOT).join("README.md")).expect("there is a README");
    let example = readme.split("\n```c\n").nth(1).and_then(|rest| rest.split("\n```").next());
    let source = folder("readme").join("example.c");
    std::fs::write(&source, example.expect("the README has an example in C"))
        .expect("the folder can be written");
    let program = source.with_extension("");
    let library = shared();
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c99", "-Wall", "-Wextra", "-Werror"]).arg(format!("-I{ROOT}/ffi/include"));
    gcc.arg(&source).arg(&library).arg("-o").arg(&program);
    run(gcc.arg(rpath(&library)));
    run(&mut command(&program, &STAND_IN));
}
