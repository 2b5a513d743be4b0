//! Snapshots as files: what is written is read again, by this library and by Python, and what is no snapshot is
//! refused.

mod concurrent;
mod hostile;
mod meaning;
mod python;
mod random;
mod sample;
