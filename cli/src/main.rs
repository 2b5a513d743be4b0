//! The command `ascend-alloc`.
fn main() {}
