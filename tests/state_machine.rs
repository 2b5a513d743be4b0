//! Random programs over everything public, through the Rust interface, beside a simple model: the programs and what
//! must hold after each operation are in the package `ascend-alloc-proof`.
//!
//! `ASCEND_ALLOC_OPERATIONS=10000000 cargo test --release --test state_machine -- --nocapture` runs more of them. With
//! `ASCEND_ALLOC_TEST_DRIVER=acl` they run on a runtime library instead of the simulator in this process.

use std::path::Path;
use std::sync::LazyLock;

use proof::partner::{self, Partner};
use proof::reference::{
    Captures, Chunks, ChunksAndFaults, Classic, ClassicAndFaults, Resets, ResetsAndFaults, Threads,
};
use proof::runner::programs;
use proof::world::Ground;

fn regressions(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("proptest-regressions")
        .join(format!("state_machine_{name}.txt"))
}

/// Another process whose blocks the programs import; it ends when this one does.
static PARTNER: LazyLock<Partner> = LazyLock::new(|| Partner::start("the_other_process"));

/// Simulators in this process, or a runtime library, on which nobody imports.
fn ground() -> Ground {
    let ground = proof::ground::rust();
    if proof::ground::wants_acl() { ground } else { Ground { messages: PARTNER.messages.clone(), ..ground } }
}

#[test]
#[ignore = "the part of another process, started by the other tests"]
fn the_other_process() {
    partner::act();
}

#[test]
fn chunks() {
    programs::<Chunks>(&ground(), "chunks", 1_000_000, 1500, &regressions("chunks"));
}

#[test]
fn chunks_and_failing_calls() {
    let file = regressions("chunks_and_failing_calls");
    programs::<ChunksAndFaults>(&ground(), "chunks_and_failing_calls", 2_000_000, 1500, &file);
}

#[test]
fn fixed_blocks() {
    programs::<Classic>(&ground(), "fixed_blocks", 3_000_000, 1500, &regressions("fixed_blocks"));
}

#[test]
fn fixed_blocks_and_failing_calls() {
    let file = regressions("fixed_blocks_and_failing_calls");
    programs::<ClassicAndFaults>(&ground(), "fixed_blocks_and_failing_calls", 4_000_000, 1500, &file);
}

#[test]
fn threads() {
    programs::<Threads>(&ground(), "threads", 5_000_000, 1000, &regressions("threads"));
}

#[test]
fn resets() {
    programs::<Resets>(&ground(), "resets", 9_000_000, 1000, &regressions("resets"));
}

#[test]
fn captures() {
    programs::<Captures>(&ground(), "captures", 10_000_000, 1000, &regressions("captures"));
}

#[test]
fn resets_captures_and_failing_calls() {
    let file = regressions("resets_captures_and_failing_calls");
    programs::<ResetsAndFaults>(&ground(), "resets_captures_and_failing_calls", 11_000_000, 1000, &file);
}
