//! Feeds texts to the configuration's reader.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| ascend_alloc_fuzz::config::run(text));
