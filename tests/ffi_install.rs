//! The installed tree of the C library: programs find it with pkg-config and with CMake, also after it was moved.

mod c_library;

use std::path::{Path, PathBuf};
use std::process::Command;

use c_library::{ROOT, folder, run, say, shared};

/// Installs the libraries of this build, and moves the tree.
fn installed(test: &str) -> PathBuf {
    let folder = folder(test);
    let libraries = shared().parent().expect("a library lies in a folder").to_owned();
    run(Command::new(Path::new(ROOT).join("ffi/install")).arg(folder.join("first")).arg(libraries));
    let moved = folder.join("moved");
    std::fs::rename(folder.join("first"), &moved).expect("the tree can be moved");
    moved
}

fn has(command: &str) -> bool {
    let there = Command::new(command).arg("--version").output().is_ok();
    if !there {
        say(&format!("NOT CHECKED: the installed library with {command} (it is not installed)"));
    }
    there
}

#[track_caller]
fn tells_version(program: &Path, tree: &Path) {
    let output = run(Command::new(program).env("LD_LIBRARY_PATH", tree.join("lib")));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), env!("CARGO_PKG_VERSION"));
}

#[test]
fn pkg_config_finds_it() {
    if !has("pkg-config") {
        return;
    }
    let tree = installed("install_pkg_config");
    for (name, fixed) in [("shared", None), ("fixed", Some("--static"))] {
        let mut pkg_config = Command::new("pkg-config");
        pkg_config.env("PKG_CONFIG_PATH", tree.join("lib/pkgconfig"));
        let found = run(pkg_config.args(["--cflags", "--libs", "ascend_alloc"]).args(fixed));
        let flags = String::from_utf8_lossy(&found.stdout).into_owned();
        let program = tree.join(name);
        let mut gcc = Command::new("gcc");
        gcc.arg(format!("{ROOT}/ffi/tests/cmake/user.c")).arg("-o").arg(&program);
        if fixed.is_some() {
            gcc.arg("-Wl,-Bstatic");
        }
        for flag in flags.split_whitespace() {
            gcc.arg(flag);
            if fixed.is_some() && flag == "-lascend_alloc" {
                gcc.arg("-Wl,-Bdynamic");
            }
        }
        run(&mut gcc);
        tells_version(&program, &tree);
    }
}

#[test]
fn cmake_finds_it() {
    if !has("cmake") {
        return;
    }
    let tree = installed("install_cmake");
    let build = tree.join("build");
    let mut cmake = Command::new("cmake");
    cmake.arg("-S").arg(format!("{ROOT}/ffi/tests/cmake")).arg("-B").arg(&build);
    run(cmake.arg(format!("-DCMAKE_PREFIX_PATH={}", tree.display())));
    run(Command::new("cmake").arg("--build").arg(&build));
    for program in ["user_shared", "user_static"] {
        tells_version(&build.join(program), &tree);
    }
}

#[test]
fn a_wrong_call_shows_the_usage() {
    let output = Command::new(Path::new(ROOT).join("ffi/install")).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("usage: ffi/install DIR"));
}
