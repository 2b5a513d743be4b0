//! Random programs over everything public, through the Rust interface, beside a simple model: the programs and what
//! must hold after each operation are in the package `ascend-alloc-proof`.
//!
//! `ASCEND_ALLOC_OPERATIONS=10000000 cargo test --release --test state_machine -- --nocapture` runs more of them. With
//! `ASCEND_ALLOC_TEST_DRIVER=acl` they run on a runtime library instead of the simulator in this process.

use std::path::Path;

use proof::reference::{Chunks, ChunksAndFaults, Classic, ClassicAndFaults, Threads};
use proof::runner::programs;

fn regressions(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("proptest-regressions")
        .join(format!("state_machine_{name}.txt"))
}

#[test]
fn chunks() {
    programs::<Chunks>(&proof::ground::rust(), "chunks", 1_000_000, 1500, &regressions("chunks"));
}

#[test]
fn chunks_and_failing_calls() {
    let file = regressions("chunks_and_failing_calls");
    programs::<ChunksAndFaults>(&proof::ground::rust(), "chunks_and_failing_calls", 2_000_000, 1500, &file);
}

#[test]
fn fixed_blocks() {
    programs::<Classic>(
        &proof::ground::rust(),
        "fixed_blocks",
        3_000_000,
        1500,
        &regressions("fixed_blocks"),
    );
}

#[test]
fn fixed_blocks_and_failing_calls() {
    let file = regressions("fixed_blocks_and_failing_calls");
    programs::<ClassicAndFaults>(
        &proof::ground::rust(),
        "fixed_blocks_and_failing_calls",
        4_000_000,
        1500,
        &file,
    );
}

#[test]
fn threads() {
    programs::<Threads>(&proof::ground::rust(), "threads", 5_000_000, 1000, &regressions("threads"));
}
