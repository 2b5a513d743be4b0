//! The same random programs through the C functions of `libascend_alloc.so`, on a runtime library: the simulator's, or
//! with `ASCEND_ALLOC_TEST_DRIVER=acl` the one that `ASCEND_ALLOC_ACL_LIBRARY` or the toolkit names.
//!
//! A process has one allocator, so one program follows another on it; what only a simulator can do is left out, by
//! name, where the library is no simulator.

mod c_library;

use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};

use proof::reference::{Chunks, ChunksAndFaults, Threads};
use proof::runner::programs;
use proof::world::Ground;

/// The allocator of this process serves one test at a time, so that each sees its own memory only.
static GROUND: LazyLock<Mutex<Ground>> = LazyLock::new(|| {
    // SAFETY: both libraries are built from this repository, or the environment vouches for the second.
    let ground = unsafe {
        proof::ground::c(proof::ground::functions_of(&c_library::shared()), &[c_library::simulator()])
    };
    Mutex::new(ground)
});

fn run<M>(name: &str, first_seed: u64, operations: u64)
where
    M: proptest_state_machine::ReferenceStateMachine<
            State = proof::reference::Plan,
            Transition = proof::operation::Step,
        >,
{
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("proptest-regressions").join(format!("{name}.txt"));
    let ground = GROUND.lock().unwrap_or_else(PoisonError::into_inner);
    programs::<M>(&ground, name, first_seed, operations, &file);
}

#[test]
fn c_chunks() {
    run::<Chunks>("c_chunks", 6_000_000, 1500);
}

#[test]
fn c_chunks_and_failing_calls() {
    run::<ChunksAndFaults>("c_chunks_and_failing_calls", 7_000_000, 1500);
}

#[test]
fn c_threads() {
    run::<Threads>("c_threads", 8_000_000, 1000);
}

/// The same programs in processes that may have little address space, few descriptors, or no locked memory.
#[test]
fn c_in_limited_processes() {
    if proof::ground::wants_acl() {
        return c_library::say(
            "NOT CHECKED: processes with limits (a vendor's library has needs of its own)",
        );
    }
    let program = std::env::current_exe().expect("this program has a path");
    for limit in ["-v 6000000", "-n 16", "-l 0"] {
        let mut command = std::process::Command::new("sh");
        command
            .args(["-c", &format!("ulimit {limit} && exec \"$0\" --exact c_chunks --nocapture")])
            .arg(&program);
        let output = c_library::run(command.env("ASCEND_ALLOC_OPERATIONS", "1"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("c_chunks: ") && text.contains("1 passed"), "ulimit {limit}: {text}");
    }
}
