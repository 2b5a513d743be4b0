//! The tests of the crate next door, on this version of cubecl.

extern crate ascend_alloc_cubecl_pre as ascend_alloc_cubecl;

#[path = "../../cubecl/tests/client.rs"]
mod client;
