//! The tool as a person runs it: up to date or not, and which toolkits agree.

use std::path::Path;
use std::process::Command;

/// Runs the tool; answers whether it succeeded, and all it printed.
fn bindings(arguments: &[&str]) -> (bool, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_bindings")).args(arguments).output().expect("the tool runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn toolkit(name: &str) -> (bool, String) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/toolkits").join(name);
    bindings(&["acl", "--toolkit", folder.to_str().expect("a text")])
}

#[test]
fn the_checked_in_bindings_are_up_to_date() {
    let (success, text) = bindings(&["acl", "--check"]);
    assert!(success, "{text}");
}

#[test]
fn a_toolkit_that_agrees_passes_and_what_it_lacks_is_listed() {
    let (success, text) = toolkit("agrees");
    assert!(success, "{text}");
    for target in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"] {
        let line = text.lines().find(|line| line.starts_with(target)).expect(target);
        assert!(line.contains(": 6 functions agree; not in this toolkit: "), "{line}");
        assert!(line.contains("aclrtMapMem") && !line.contains("aclrtUnmapMem"), "{line}");
    }
}

#[test]
fn a_toolkit_that_differs_fails_and_every_difference_is_named() {
    let (success, text) = toolkit("differs");
    assert!(!success, "{text}");
    for part in [
        "function aclrtFree:",
        "function aclrtUnmapMem:",
        "constant ACL_EVENT_SYNC: 1, toolkit: 4",
        "constant ACL_EVENT_RECORDED_STATUS_COMPLETE: 1, toolkit: 0",
        "type aclrtMemLocation:",
        "layout of aclrtMemLocation: Offset of field: aclrtMemLocation::id = 0",
        "layout of aclrtPtrAttributes: Size of aclrtPtrAttributes = 28, toolkit: Size of aclrtPtrAttributes = 32",
    ] {
        assert!(text.contains(part), "{part} in: {text}");
    }
    assert!(!text.contains("function aclrtSetDevice:"), "{text}");
}

#[test]
fn a_folder_that_is_no_toolkit_is_an_error() {
    for (name, reason) in
        [("empty", "none of the functions"), ("empty/acl", "has none of acl/"), ("absent", "absent")]
    {
        let (success, text) = toolkit(name);
        assert!(!success && text.contains(reason), "{text}");
    }
}

#[test]
fn what_is_not_understood_shows_the_usage() {
    for arguments in [&[][..], &["acl", "--chek"], &["acl", "--toolkit"], &["all"]] {
        let (success, text) = bindings(arguments);
        assert!(!success && text.contains("usage:"), "{text}");
    }
}
