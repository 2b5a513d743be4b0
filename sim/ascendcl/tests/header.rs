//! The header of the controls is C and C++, and declares what the library exports.

mod common;

use std::process::Command;

use common::{PACKAGE, folder, run, symbols};

#[test]
fn the_header_compiles_as_c99_and_cpp11() {
    let folder = folder("header");
    let text = "#include \"acl_sim.h\"\n#include \"acl_sim.h\"\n\
                int use(void);\nint use(void) { return acl_sim_tick(1) + (int)acl_sim_now(); }\n";
    for (file, standard) in [("use.c", "-std=c99"), ("use.cpp", "-std=c++11")] {
        let file = folder.join(file);
        std::fs::write(&file, text).expect("the scratch folder can be written");
        let mut gcc = Command::new(if standard == "-std=c99" { "gcc" } else { "g++" });
        gcc.args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"]);
        run(gcc.arg(format!("{PACKAGE}/include")).arg(file));
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
