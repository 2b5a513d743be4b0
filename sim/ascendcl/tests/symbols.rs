//! The exported symbols: those of the list, hidden on older surfaces, harmless with null for everything.

mod common;

use std::process::Command;

use common::{Acl, clean, folder, library, machine, printed, run, symbols};

#[test]
fn the_library_exports_what_the_list_says() {
    let table = printed(Command::new("nm").args(["-D", "--defined-only", "-P"]).arg(library()));
    let mut exported: Vec<&str> = table.lines().filter_map(|line| line.split(' ').next()).collect();
    exported.sort_unstable();
    let mut listed: Vec<&str> = symbols().into_iter().map(|(name, _)| name).collect();
    listed.sort_unstable();
    assert_eq!(exported, listed);
}

/// Functions that a call with null and zero for everything changes the machine by, or that answer no
/// code.
const APART: &[&str] = &["aclGetRecentErrMsg", "aclrtGetSocName", "acl_sim_reset", "acl_sim_now"];

#[test]
fn null_and_zero_for_everything_crash_nothing() {
    let (acl, _turn) = machine();
    for (name, _) in symbols().into_iter().filter(|(name, _)| !APART.contains(name)) {
        // SAFETY: what this test is about: nulls must be refused, not followed.
        let code = unsafe { acl.try_call(name, &[]) };
        let text = acl.error();
        assert_ne!(code, 500_000, "{name}: {text}");
        let told = text.is_empty() || text.starts_with(name);
        assert!(told, "{name} answered {code} and said {text}");
    }
}

/// Older surfaces: what a call answers follows the list.
#[test]
fn calls_that_came_later_are_refused_on_an_older_surface() {
    let (acl, _turn) = machine();
    let number = |version: &str| {
        let (major, minor) = version.split_once('.').expect("a version");
        (major.parse::<u32>().expect("a number"), minor.parse::<u32>().expect("a number"))
    };
    for played in ["8.0", "8.1", "8.2", "8.3", "8.5", "9.0", "9.1", "9.2"] {
        acl.set("acl_sim_set_surface", played);
        for (name, since) in symbols() {
            if since == "control" || APART.contains(&name) {
                continue;
            }
            // SAFETY: nulls are refused, as the other test shows.
            let code = unsafe { acl.try_call(name, &[]) };
            let text = acl.error();
            let absent = text.contains(&format!("CANN {played} lacks this call"));
            assert_eq!(
                absent,
                number(since) > number(played),
                "{name} of {since} on {played}: {code} {text}"
            );
            assert!(!absent || code == 207_000, "{name} on {played} answered {code}");
        }
    }
    acl.set("acl_sim_set_surface", "9.x");
}

#[test]
fn an_installed_surface_has_no_other_symbols() {
    let target = folder("surface");
    let install = format!("{}/install", common::PACKAGE);
    run(Command::new(&install).args(["--profile", "dev", "--surface", "8.1"]).arg(target.join("cann")));
    let file = target.join("cann/lib64/libascendcl.so");
    let acl = Acl::open(&file);
    for (name, since) in symbols() {
        assert_eq!(acl.has(name), ["8.0", "8.1", "control"].contains(&since), "{name} of {since}");
    }
    // In a process of its own, because the library knows its surface from the time it is loaded.
    let program = common::program("version.c", true);
    let print = |library: &str| printed(clean(&program).arg(target.join("cann/lib64").join(library)));
    assert_eq!(print("libascendcl.so"), "1.13.0\n");
    assert_eq!(print("libacl_rt.so"), "1.13.0\n");
    let wrong = Command::new(&install)
        .args(["--profile", "dev", "--surface", "7.7"])
        .arg(target.join("x"))
        .output()
        .expect("it runs");
    assert!(!wrong.status.success() && String::from_utf8_lossy(&wrong.stderr).contains("no surface 7.7"));
}
