//! The header of the controls is C and C++, and declares what the library exports.

mod common;

use std::io::Write;
use std::process::Command;

use common::{PACKAGE, folder, run, symbols};

#[test]
fn the_header_compiles_as_c99_and_cpp11() {
    let folder = folder("header");
    let text = "#include \"acl_sim.h\"\n#include \"acl_sim.h\"\n\
                int use(void);\nint use(void) { return acl_sim_tick(1) + (int)acl_sim_now(); }\n";
    let compile = |file: &str, arguments: &[&str]| {
        let file = folder.join(file);
        std::fs::write(&file, text).expect("the scratch folder can be written");
        let mut gcc = Command::new("gcc");
        gcc.args(arguments).args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"]);
        run(gcc.arg(format!("{PACKAGE}/include")).arg(file));
    };
    compile("use.c", &["-std=c99"]);
    let mut gcc = Command::new("gcc");
    let cpp = gcc.args(["-x", "c++", "-fsyntax-only", "/dev/null"]).output().expect("gcc runs");
    if cpp.status.success() {
        compile("use.cpp", &["-std=c++11"]);
    } else {
        // As in the tests of the other header: said past the harness, and a failure where CI has C++.
        let told = String::from_utf8_lossy(&cpp.stderr);
        assert!(std::env::var_os("ASCEND_ALLOC_NEEDS_CPP").is_none(), "gcc compiles no C++: {told}");
        let said = writeln!(std::io::stderr(), "NOT CHECKED: acl_sim.h as C++ (gcc compiles no C++ here)");
        said.expect("standard error is open");
    }
}

#[test]
fn the_header_declares_every_control() {
    let header =
        std::fs::read_to_string(format!("{PACKAGE}/include/acl_sim.h")).expect("the header is there");
    for (name, kind) in symbols() {
        let declared = header.contains(&format!(" {name}("));
        assert_eq!(declared, kind == "control", "{name}");
    }
}
