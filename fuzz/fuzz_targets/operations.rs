//! Runs programs on the allocator over a simulated device whose calls fail where the program says so, or on a
//! runtime library.
#![no_main]

use std::sync::LazyLock;

use ascend_alloc_fuzz::program::Program;
use proof::world::Ground;

static DEVICE: LazyLock<Option<Ground>> =
    LazyLock::new(|| proof::ground::wants_acl().then(proof::ground::rust));

libfuzzer_sys::fuzz_target!(|program: Program| match &*DEVICE {
    Some(ground) => ascend_alloc_fuzz::on_device::run(ground, &program),
    None => ascend_alloc_fuzz::world::run(&program),
});
