//! Every way a call can fail, as one type.
//!
//! An error says what was asked, what was there, and what can be done. After any error the
//! allocator is as it was before the call, unless the variant's documentation says otherwise.

use core::fmt;

use crate::driver::{DeviceId, DriverError};

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
        reason: &'static str,
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

/// What stopped an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfMemoryCause {
    /// The device has no physical memory left.
    Device,
    /// The limit set for this allocator (a memory fraction) is reached.
    Limit,
    /// No address space could be reserved.
    AddressSpace,
}

/// The state of a device when an allocation failed; all sizes in bytes.
#[derive(Clone, Debug)]
pub struct OutOfMemory {
    /// The device asked.
    pub device: DeviceId,
    /// Bytes the caller asked for.
    pub requested: u64,
    /// What stopped it.
    pub cause: OutOfMemoryCause,
    /// Whether a graph was being captured, so that nothing idle could be moved or given back.
    pub during_capture: bool,
    /// Bytes handed out.
    pub allocated: u64,
    /// Allocated bytes plus bytes that wait for streams.
    pub active: u64,
    /// Bytes with physical memory behind them.
    pub reserved: u64,
    /// Physical memory this allocator holds without an address (cached handles).
    pub cached_handles: u64,
    /// Largest request the free blocks could have served.
    pub largest_free: u64,
    /// Free bytes of the device, as the driver counts them.
    pub device_free: u64,
    /// Total bytes of the device, as the driver counts them.
    pub device_total: u64,
    /// The limit in force, if one is set.
    pub limit: Option<u64>,
    /// The streams that hold most, largest first: raw stream handle and live bytes.
    pub holders: Vec<(u64, u64)>,
    /// What to change, given the configuration in force.
    pub advice: &'static str,
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

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "out of memory on device {}: asked for {} bytes; {} allocated, {} active, {} reserved, \
             {} in cached handles, largest free block {}; device {} free of {}",
            self.device,
            self.requested,
            self.allocated,
            self.active,
            self.reserved,
            self.cached_handles,
            self.largest_free,
            self.device_free,
            self.device_total,
        )?;
        match self.cause {
            OutOfMemoryCause::Device => write!(f, "; the device is full")?,
            OutOfMemoryCause::Limit => {
                write!(f, "; the limit of {} bytes is reached", self.limit.unwrap_or(0))?;
            }
            OutOfMemoryCause::AddressSpace => write!(f, "; no address space could be reserved")?,
        }
        if self.during_capture {
            write!(f, "; a graph was being captured, so idle memory could not be used")?;
        }
        for (stream, bytes) in &self.holders {
            write!(f, "; stream {stream:#x} holds {bytes}")?;
        }
        write!(f, ". {}", self.advice)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory(report) => report.fmt(f),
            Self::Size { requested, reason } => write!(f, "size of {requested} bytes: {reason}"),
            Self::Argument { name, value, expected } => {
                write!(f, "argument {name} is {value}, expected {expected}")
            }
            Self::Pointer { address, kind } => write!(f, "pointer {address:#x} {kind}"),
            Self::Driver(error) => error.fmt(f),
            Self::Config(error) => error.fmt(f),
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
