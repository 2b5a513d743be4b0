//! Regenerates the checked-in bindings and headers, or compares them.
fn main() {}
