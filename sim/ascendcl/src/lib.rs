//! The device model as a drop-in `libascendcl.so`.
