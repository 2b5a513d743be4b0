//! Every way a call can fail, as one type.
//!
//! An error says what was asked, what was there, and what can be done. After any error the
//! allocator is as it was before the call, unless the variant's documentation says otherwise.

use core::fmt;
use std::borrow::Cow;

mod out_of_memory;

pub(crate) use out_of_memory::{EXPANDABLE, RESERVATIONS};
pub use out_of_memory::{HOST, HeldBack, Holder, OutOfMemory, OutOfMemoryCause, PoolShare, Remedy};

use crate::driver::DriverError;
use crate::words::counted;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why a call failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// No memory for the request, after everything that could be given back was.
    OutOfMemory(Box<OutOfMemory>),
    /// The size cannot be served by any device: it overflows when rounded, or exceeds the
    /// address space of a reservation chain.
    Size {
        /// Bytes asked for.
        requested: u64,
        /// What is wrong with it and what would be accepted.
        reason: Cow<'static, str>,
    },
    /// An argument that is not a size or a pointer is wrong (alignment, device, fraction).
    Argument {
        /// Name of the argument.
        name: &'static str,
        /// The value as text.
        value: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// The pointer is not the start of a live block of this allocator.
    Pointer {
        /// The pointer as given.
        address: u64,
        /// In which way it is wrong.
        kind: PointerKind,
    },
    /// The driver refused a call for a reason other than memory.
    Driver(DriverError),
    /// A configuration text or value was refused.
    Config(crate::config::ConfigError),
    /// A file that the program named cannot be had.
    File {
        /// Its path.
        path: String,
        /// What the system says.
        reason: String,
    },
    /// The call is not allowed in the present state (for instance after shutdown).
    State {
        /// What was attempted.
        operation: &'static str,
        /// Why it cannot be done now and what to do.
        reason: &'static str,
    },
}

/// In which way a pointer given to the allocator is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PointerKind {
    /// No segment of this allocator contains it.
    Foreign,
    /// It lies inside a live block, but is not its start.
    Interior,
    /// It points to memory of this allocator that is not live: freed before, or never handed out.
    NotLive,
}

impl fmt::Display for PointerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Foreign => "belongs to no segment of this allocator",
            Self::Interior => "lies inside a live block but is not its start",
            Self::NotLive => "is not live (freed before, or never handed out)",
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory(report) => report.fmt(f),
            Self::Size { requested, reason } => {
                write!(f, "size of {}: {reason}", counted(*requested, "byte[s]"))
            }
            Self::Argument { name, value, expected } => {
                write!(f, "argument {name} is {value}, expected {expected}")
            }
            Self::Pointer { address, kind } => write!(f, "pointer {address:#x} {kind}"),
            Self::Driver(error) => error.fmt(f),
            Self::Config(error) => error.fmt(f),
            Self::File { path, reason } => write!(f, "file {path}: {reason}"),
            Self::State { operation, reason } => write!(f, "{operation}: {reason}"),
        }
    }
}

impl core::error::Error for Error {}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

impl From<crate::config::ConfigError> for Error {
    fn from(error: crate::config::ConfigError) -> Self {
        Self::Config(error)
    }
}
