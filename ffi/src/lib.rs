//! The C library of ascend-alloc.
