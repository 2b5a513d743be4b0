//! Runs programs on the allocator over a simulated device whose calls fail where the program says so.
#![no_main]

use ascend_alloc_fuzz::program::Program;

libfuzzer_sys::fuzz_target!(|program: Program| ascend_alloc_fuzz::world::run(&program));
