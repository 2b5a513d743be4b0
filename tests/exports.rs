//! What the C library exports. Read off the file, as the dynamic loader would see it: an `acl*` name in it
//! would take the place of the vendor's function in every process that loads the library.
//!
//! The library is a dev-dependency of this package, so it is built with everything the tests build,
//! the simulator included.

mod c_library;

use std::process::Command;

/// The names a library defines for others.
fn exported(library: &std::path::Path) -> Vec<String> {
    let output = Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(library).output();
    let output = output.expect("nm runs: it is part of binutils, which gcc needs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("names are ASCII");
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn no_name_of_the_vendor_is_exported() {
    let names = exported(&c_library::shared());
    let foreign: Vec<_> = names.iter().filter(|name| name.starts_with("acl")).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}

#[test]
fn the_functions_of_the_header_are_exported_and_nothing_else() {
    let mut names = exported(&c_library::shared());
    names.sort_unstable();
    let header = std::fs::read_to_string(c_library::header()).expect("the header is checked in");
    let code = without_comments(&header);
    let mut declared: Vec<_> = code.split(';').filter_map(declared_name).collect();
    declared.sort_unstable();
    assert!(declared.len() >= 50, "{declared:?}");
    assert_eq!(names, declared);
}

/// The first test above must be able to fail.
#[test]
fn names_of_the_vendor_would_be_seen() {
    let source = c_library::folder("exports").join("intruder.c");
    std::fs::write(&source, "int aclrtIntruder(void) { return 0; }\n").expect("the folder can be written");
    let library = source.with_extension("so");
    let mut gcc = Command::new("gcc");
    c_library::run(gcc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source));
    assert!(exported(&library).contains(&"aclrtIntruder".to_owned()));
}

/// The header without comments and lines of the preprocessor.
fn without_comments(header: &str) -> String {
    let mut parts = header.split("/*");
    let mut code = parts.next().unwrap_or_default().to_owned();
    code.extend(parts.map(|part| part.split_once("*/").expect("comments end").1));
    code.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
}

/// The function that a statement of the header declares.
fn declared_name(statement: &str) -> Option<String> {
    let statement = statement.rsplit('{').next()?.trim();
    let before = statement.strip_suffix(')')?.split('(').next()?;
    if before.starts_with("typedef") {
        return None;
    }
    Some(before.rsplit([' ', '*']).next()?.to_owned())
}
