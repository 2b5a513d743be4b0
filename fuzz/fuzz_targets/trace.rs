//! Feeds files to the reader of traces.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ascend_alloc_fuzz::trace::run(bytes));
