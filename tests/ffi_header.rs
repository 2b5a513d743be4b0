//! The generated header: valid C99 and C++11, with the types that frameworks ask for, on this machine and on
//! 64-bit Arm.

mod c_library;

use std::collections::BTreeSet;

use c_library::headers::Header;

const HEADER: Header = Header {
    name: "ascend_alloc.h",
    folder: "ffi/include",
    source: "tests/c_library/header.c",
    wrong: "WRONG",
    complaint: "wrong",
};

#[test]
fn the_header_is_c_and_cpp() {
    HEADER.holds_here();
}

#[test]
fn a_wrong_size_does_not_compile() {
    HEADER.refuses_what_is_wrong();
}

#[test]
fn the_header_is_c_and_cpp_on_arm() {
    HEADER.holds_on_arm();
}

/// The page about the C library lists what the header declares. In one place of a row, `_end` behind `pool_begin`
/// stands for `pool_end`.
#[test]
fn the_page_lists_every_function() {
    let header = std::fs::read_to_string(c_library::header()).expect("there is a header");
    let declared: BTreeSet<String> = header
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '('))
        .filter_map(|word| word.split_once('(')?.0.strip_prefix("ascend_alloc_"))
        .map(str::to_owned)
        .collect();
    let mut listed = BTreeSet::new();
    for row in include_str!("../docs/c.md").lines().filter(|line| line.starts_with("| ")) {
        let mut group = "";
        for quoted in row.split('`').skip(1).step_by(2) {
            let name = quoted.split('(').next().unwrap_or_default();
            if name.starts_with('_') {
                listed.insert(format!("{group}{name}"));
            } else {
                group = name.split('_').next().unwrap_or_default();
                listed.insert(name.to_owned());
            }
        }
    }
    let missing: Vec<_> = declared.difference(&listed).collect();
    assert!(declared.len() >= 85 && missing.is_empty(), "the page lacks {missing:?}");
}
