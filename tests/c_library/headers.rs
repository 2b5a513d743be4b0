//! Compiles a header as C99 and C++11, for this machine and for 64-bit Arm.

use std::io;
use std::process::{Command, Output};

use super::{ROOT, has_cpp, say};

const C: &[&str] = &["-x", "c", "-std=c99"];
const CPP: &[&str] = &["-x", "c++", "-std=c++11"];

/// A header, and a source that includes it and says what must hold.
pub struct Header {
    /// The header's name.
    pub name: &'static str,
    /// Its folder, from that of the workspace.
    pub folder: &'static str,
    /// The source, from the folder of the workspace.
    pub source: &'static str,
    /// The macro with which the source claims something wrong.
    pub wrong: &'static str,
    /// What the compiler says then.
    pub complaint: &'static str,
}

impl Header {
    /// Asserts that what the source claims holds here.
    pub fn holds_here(&self) {
        for &standard in self.here() {
            let output = self.compile("gcc", standard, &[]).expect("gcc runs");
            assert!(output.status.success(), "{standard:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    /// Asserts that a wrong claim does not compile: the right ones could have failed.
    pub fn refuses_what_is_wrong(&self) {
        let wrong = format!("-D{}", self.wrong);
        for &standard in self.here() {
            let output = self.compile("gcc", standard, &[&wrong]).expect("gcc runs");
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success());
            assert!(text.contains(self.complaint), "{text}");
        }
    }

    /// Asserts that what the source claims holds on 64-bit Arm.
    ///
    /// The cross compiler is not part of every machine. Where it is missing that is said past the
    /// harness's capture of output, and where CI has installed it, `ASCEND_ALLOC_NEEDS_CROSS_GCC=1`
    /// makes its absence a failure.
    pub fn holds_on_arm(&self) {
        let needed = std::env::var_os("ASCEND_ALLOC_NEEDS_CROSS_GCC").is_some();
        for standard in [C, CPP] {
            // Freestanding, because a cross compiler often comes without a C library.
            match self.compile("aarch64-linux-gnu-gcc", standard, &["-ffreestanding"]) {
                Ok(output) => {
                    let text = String::from_utf8_lossy(&output.stderr);
                    // The C++ front end is a package of its own.
                    if text.contains("cc1plus") && !needed {
                        say(&format!(
                            "NOT CHECKED: {} as C++ for 64-bit Arm (no cross C++ compiler)",
                            self.name
                        ));
                        continue;
                    }
                    assert!(output.status.success(), "{standard:?}: {text}");
                }
                Err(error) => {
                    assert!(!needed, "aarch64-linux-gnu-gcc: {error}");
                    say(&format!("NOT CHECKED: {} on 64-bit Arm (no aarch64-linux-gnu-gcc)", self.name));
                    return;
                }
            }
        }
    }

    /// What this machine compiles.
    fn here(&self) -> &'static [&'static [&'static str]] {
        if has_cpp(self.name) { &[C, CPP] } else { &[C] }
    }

    fn compile(&self, compiler: &str, standard: &[&str], more: &[&str]) -> io::Result<Output> {
        Command::new(compiler)
            .args(standard)
            .args(["-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"])
            .args(more)
            .arg(format!("-I{ROOT}/{}", self.folder))
            .arg(format!("{ROOT}/{}", self.source))
            .output()
    }
}
