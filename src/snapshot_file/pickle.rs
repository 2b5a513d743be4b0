//! Pickles: the part of the format that data needs, in both directions.

mod old;
mod opcode;
mod read;
mod write;

pub use read::read;
pub use write::{Protocol, write};
