//! Feeds files to the readers of snapshots.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ascend_alloc_fuzz::snapshot::run(bytes));
