//! Feeds messages of exported blocks to an importer.
#![no_main]

use ascend_alloc_fuzz::handles::Message;

libfuzzer_sys::fuzz_target!(|message: Message| ascend_alloc_fuzz::handles::run(&message));
