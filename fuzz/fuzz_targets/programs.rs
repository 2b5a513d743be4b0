//! Runs programs over everything public, on simulators or on a runtime library.
#![no_main]

use std::sync::LazyLock;

use proof::operation::Program;
use proof::world::{Ground, run};

static GROUND: LazyLock<Ground> = LazyLock::new(proof::ground::rust);

/// Longer programs find nothing that shorter ones do not, more slowly.
const MOST_STEPS: usize = 100;

libfuzzer_sys::fuzz_target!(|program: Program| {
    let mut program = program;
    program.steps.truncate(MOST_STEPS);
    run(&GROUND, &program);
});
