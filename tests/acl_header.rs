//! The own-written header: valid C99 and C++11, with the layouts of the vendor's library, on this
//! machine and on 64-bit Arm.

mod c_library;

use std::process::{Command, Output};

use c_library::{ROOT, has_cpp, say};

const C: &[&str] = &["-x", "c", "-std=c99"];
const CPP: &[&str] = &["-x", "c++", "-std=c++11"];

/// What this machine compiles.
fn here() -> &'static [&'static [&'static str]] {
    if has_cpp("acl_runtime.h") { &[C, CPP] } else { &[C] }
}

fn compile(compiler: &str, standard: &[&str], more: &[&str]) -> std::io::Result<Output> {
    Command::new(compiler)
        .args(standard)
        .args(["-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"])
        .args(more)
        .arg(format!("-I{ROOT}/ffi/acl"))
        .arg(format!("{ROOT}/tests/stand_ins/layout.c"))
        .output()
}

#[test]
fn layouts_hold_in_c_and_cpp() {
    for &standard in here() {
        let output = compile("gcc", standard, &[]).expect("gcc runs");
        assert!(output.status.success(), "{standard:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_wrong_layout_does_not_compile() {
    for &standard in here() {
        let output = compile("gcc", standard, &["-DSTAND_IN_WRONG"]).expect("gcc runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        assert!(text.contains("differs_in_line_"), "{text}");
    }
}

/// The cross compiler is not part of every machine. Where it is missing that is said past the
/// harness's capture of output, and where CI has installed it, `ASCEND_ALLOC_NEEDS_CROSS_GCC=1`
/// makes its absence a failure.
#[test]
fn layouts_hold_on_arm() {
    let needed = std::env::var_os("ASCEND_ALLOC_NEEDS_CROSS_GCC").is_some();
    for standard in [C, CPP] {
        // Freestanding, because a cross compiler often comes without a C library.
        match compile("aarch64-linux-gnu-gcc", standard, &["-ffreestanding"]) {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr);
                // The C++ front end is a package of its own.
                if text.contains("cc1plus") && !needed {
                    say("NOT CHECKED: the header as C++ for 64-bit Arm (no cross C++ compiler)");
                    continue;
                }
                assert!(output.status.success(), "{standard:?}: {text}");
            }
            Err(error) => {
                assert!(!needed, "aarch64-linux-gnu-gcc: {error}");
                say("NOT CHECKED: the header on 64-bit Arm (no aarch64-linux-gnu-gcc)");
                return;
            }
        }
    }
}
