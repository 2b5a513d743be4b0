//! The C library as C and C++ programs use it, on the simulator's library. Each scenario of the programs in
//! `ffi/tests` is a process of its own, because a process has one allocator.

mod c_library;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use c_library::programs::{C, both, build, command, holds};
use c_library::{ROOT, folder, run, say, shared, simulator};

static LIBRARY: LazyLock<Vec<PathBuf>> = LazyLock::new(|| both("library"));

static POOLS: LazyLock<Vec<PathBuf>> = LazyLock::new(|| both("pools"));

static LIFETIME: LazyLock<Vec<PathBuf>> = LazyLock::new(|| both("lifetime"));

static HOSTILE: LazyLock<Vec<PathBuf>> = LazyLock::new(|| both("hostile"));

static HISTORY: LazyLock<Vec<PathBuf>> = LazyLock::new(|| both("history"));

static SCRIPTS: LazyLock<Vec<PathBuf>> = LazyLock::new(|| both("scripts"));

static ONE_HANDLE: LazyLock<Vec<PathBuf>> = LazyLock::new(|| both("one_handle"));

static FRAMEWORKS: LazyLock<Vec<PathBuf>> = LazyLock::new(|| both("frameworks"));

#[track_caller]
fn scenario(programs: &[PathBuf], name: &str) {
    for program in programs {
        holds(name, &run(command(program).arg(name)));
    }
}

#[test]
fn blocks_and_questions_about_them() {
    scenario(&LIBRARY, "basics");
}

#[test]
fn requests_with_attributes() {
    scenario(&LIBRARY, "requests");
}

#[test]
fn blocks_that_are_one_handle() {
    scenario(&ONE_HANDLE, "blocks");
}

#[test]
fn one_handle_blocks_keep_what_the_driver_says() {
    scenario(&ONE_HANDLE, "refused");
}

#[test]
fn one_handle_blocks_are_within_reach_of_peers() {
    scenario(&ONE_HANDLE, "peers");
}

#[test]
fn pools_and_routes() {
    scenario(&POOLS, "pools");
    scenario(&POOLS, "sources");
    scenario(&POOLS, "shared_sources");
}

#[test]
fn captures_and_checkpoints() {
    scenario(&POOLS, "captures");
}

#[test]
fn sleep_and_wake() {
    scenario(&POOLS, "sleeping");
    scenario(&POOLS, "tagged");
}

/// Serving frameworks have their users switch growable segments off for the sake of sleep, which needs them here.
/// https://github.com/modelscope/ms-swift/issues/6636
#[test]
fn tags_sleep_without_growable_segments() {
    for program in POOLS.iter() {
        let mut command = command(program);
        command.arg("tagged").env("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:False");
        holds("tagged", &run(&mut command));
    }
}

#[test]
fn growing_buffers() {
    scenario(&LIBRARY, "buffers");
}

#[test]
fn events_and_snapshots() {
    scenario(&LIBRARY, "seeing");
}

#[test]
fn histories_and_files_of_them() {
    for (number, program) in HISTORY.iter().enumerate() {
        for name in ["events", "files", "left"] {
            let folder = folder(&format!("ffi_history_{number}_{name}"));
            holds(name, &run(command(program).arg(name).env("HISTORY_FOLDER", &folder)));
            if name == "left" {
                let text = std::fs::read_to_string(folder.join("left.trace")).expect("a trace");
                assert!(
                    text.ends_with("a 1 3145728 0\nf 1\n"),
                    "the end of the process writes the rest: {text}"
                );
            }
        }
    }
}

#[test]
fn b46_codes_are_kept_and_none_stays_in_the_runtime_library() {
    scenario(&SCRIPTS, "codes");
}

#[test]
fn b35_other_devices_are_left_alone() {
    scenario(&SCRIPTS, "devices");
}

#[test]
fn b14_b22_the_record_of_the_block_decides_and_sizes_have_64_bits() {
    scenario(&SCRIPTS, "sizes");
}

#[test]
fn b47_a_text_given_in_code_goes_first_and_only_once() {
    scenario(&SCRIPTS, "settings");
}

#[test]
fn what_adapters_of_frameworks_call() {
    for name in ["submit", "snapshot", "capture_with", "finish", "allow"] {
        scenario(&FRAMEWORKS, name);
    }
}

#[test]
fn every_function_of_the_header_is_called_by_a_test_in_c() {
    let header = std::fs::read_to_string(c_library::header()).expect("there is a header");
    let functions: std::collections::BTreeSet<&str> = header
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '('))
        .filter_map(|word| word.split_once('(').map(|(name, _)| name))
        .filter(|name| name.starts_with("ascend_alloc_"))
        .collect();
    assert!(functions.len() >= 77, "only {} functions were found in the header", functions.len());
    let mut tests = std::fs::read_to_string(Path::new(ROOT).join("tests/c_library/abi.c")).expect("a test");
    for entry in std::fs::read_dir(Path::new(ROOT).join("ffi/tests")).expect("there are tests") {
        let path = entry.expect("a file").path();
        if path.extension().is_some_and(|extension| extension == "c") {
            tests += &std::fs::read_to_string(path).expect("a test");
        }
    }
    let missing: Vec<_> = functions.iter().filter(|name| !tests.contains(&format!("{name}("))).collect();
    assert!(missing.is_empty(), "no test calls {missing:?}");
}

#[test]
fn ends_of_streams_and_devices_are_seen() {
    scenario(&LIFETIME, "streams_end");
    scenario(&LIFETIME, "device_resets");
}

#[test]
fn acl_takes_workspaces_from_the_allocator() {
    scenario(&LIFETIME, "acl_hook");
}

#[test]
fn forked_children_neither_hang_nor_call_the_driver() {
    scenario(&LIFETIME, "forks");
}

#[test]
fn blocks_may_come_back_while_the_process_ends() {
    for _ in 0..10 {
        scenario(&LIFETIME, "exits");
    }
}

#[test]
fn wrong_arguments_are_refused_and_crash_nothing() {
    for name in ["early", "blocks", "devices", "structs"] {
        scenario(&HOSTILE, name);
    }
}

#[test]
fn sharing_and_memory_callbacks() {
    scenario(&HOSTILE, "sharing");
    scenario(&LIFETIME, "shares");
    scenario(&HOSTILE, "short_of_memory");
}

#[test]
fn a_library_that_is_closed_stays_usable() {
    let program = build(&folder("ffi_closes"), "c", C, "closes.c", &[simulator()]);
    holds("closes", &run(command(&program).arg(shared())));
}

/// Also under valgrind, where that is: no bad read or write, nothing undefined. The allocator lives to the end of the
/// process, so what it still has then is no leak.
#[test]
fn valgrind_finds_nothing() {
    let Ok(version) = Command::new("valgrind").arg("--version").output() else {
        assert!(std::env::var_os("ASCEND_ALLOC_NEEDS_VALGRIND").is_none(), "there is no valgrind");
        return say("NOT CHECKED: the C library under valgrind (it is not installed)");
    };
    assert!(version.status.success());
    let programs = [
        (&LIBRARY[0], "basics"),
        (&POOLS[0], "pools"),
        (&HOSTILE[0], "structs"),
        (&FRAMEWORKS[0], "submit"),
        (&FRAMEWORKS[0], "finish"),
    ];
    for (program, name) in programs {
        let mut valgrind = command(Path::new("valgrind"));
        valgrind.args(["-q", "--error-exitcode=9", "--leak-check=no"]).arg(program).arg(name);
        // The simulator then keeps device memory as numbers: valgrind has no room for so much address space.
        holds(name, &run(valgrind.env("ASCEND_SIM_BACKING", "tables")));
    }
}
