//! The one allocator of the process: how it comes to be, and the ways that can fail.

use core::ffi::{CStr, c_int};
use std::sync::{Arc, OnceLock};

use allocator::acl::LoadError;
use allocator::config::ConfigError;
use allocator::driver::{AclDriver, DeviceId};
use allocator::{Config, DeviceAllocator, Error};
use parking_lot::Mutex;

/// What a call of this library answers. New values may be added; the numbers stay.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AscendAllocStatus {
    /// Done.
    Ok = 0,
    /// An argument is wrong.
    Argument = 1,
    /// The configuration text or an environment variable with one was refused.
    Config = 2,
    /// The vendor's runtime library was not found, lacks a function, or would not start.
    Library = 3,
    /// The runtime library refused a call.
    Driver = 4,
    /// The call is not possible in the present state, for instance because it was made before.
    State = 5,
    /// The device or the limit set has no memory left for the request.
    OutOfMemory = 6,
    /// A mistake in this library.
    Internal = 7,
}

/// Why an entry point failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The kind, for programs.
    pub status: AscendAllocStatus,
    /// The story, for people.
    pub text: String,
}

static ALLOCATOR: OnceLock<DeviceAllocator> = OnceLock::new();
/// Held while the allocator is being set up, so that the runtime library is started once.
static SETTING_UP: Mutex<()> = Mutex::new(());

/// Sets the allocator up with the environment's configuration and that of `text`.
///
/// # Safety
///
/// As [`AclDriver::open`].
pub(crate) unsafe fn init(text: Option<&CStr>) -> Result<(), Failure> {
    let text = match text.map(CStr::to_str) {
        None => "",
        Some(Ok(text)) => text,
        Some(Err(error)) => return Err(argument(format!("conf is not UTF-8: {error}"))),
    };
    let _turn = SETTING_UP.lock();
    if ALLOCATOR.get().is_some() {
        return Err(Failure {
            status: AscendAllocStatus::State,
            text: "the allocator of this process is set up already; call ascend_alloc_init once, before the \
                   first ascend_alloc_malloc"
                .to_owned(),
        });
    }
    // SAFETY: as this function's.
    unsafe { set_up(text) }.map(drop)
}

/// The allocator, which is set up with the environment's configuration if it was not.
///
/// # Safety
///
/// As [`AclDriver::open`].
#[inline]
pub(crate) unsafe fn allocator() -> Result<&'static DeviceAllocator, Failure> {
    match ALLOCATOR.get() {
        Some(allocator) => Ok(allocator),
        None => {
            let _turn = SETTING_UP.lock();
            // SAFETY: as this function's.
            ALLOCATOR.get().map_or_else(|| unsafe { set_up("") }, Ok)
        }
    }
}

/// The allocator, if it is set up: before that no pointer can be one of its blocks.
pub(crate) fn existing() -> Result<&'static DeviceAllocator, Failure> {
    ALLOCATOR.get().ok_or_else(|| Failure {
        status: AscendAllocStatus::State,
        text: "nothing was allocated yet, so the pointer is none of this allocator's".to_owned(),
    })
}

/// A size as a number of bytes.
pub(crate) fn size(size: isize) -> Result<u64, Failure> {
    u64::try_from(size).map_err(|_| argument(format!("size is {size}, expected 0 or more")))
}

/// A device number.
pub(crate) fn device(device: c_int) -> Result<DeviceId, Failure> {
    DeviceId::try_from(device).map_err(|_| argument(format!("device is {device}, expected 0 or more")))
}

/// The caller holds [`SETTING_UP`] and has seen that there is no allocator.
///
/// # Safety
///
/// As [`AclDriver::open`].
#[cold]
unsafe fn set_up(text: &str) -> Result<&'static DeviceAllocator, Failure> {
    let config = Config::from_env()?.overridden_by(text)?;
    for warning in config.warnings() {
        eprintln!("ascend-alloc: warning: {warning}");
    }
    // SAFETY: as this function's.
    let driver = unsafe { AclDriver::open() }?;
    let allocator = DeviceAllocator::new(config, Arc::new(driver))?;
    Ok(ALLOCATOR.get_or_init(|| allocator))
}

fn argument(text: String) -> Failure {
    Failure { status: AscendAllocStatus::Argument, text }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::OutOfMemory(_) => AscendAllocStatus::OutOfMemory,
            Error::Driver(_) => AscendAllocStatus::Driver,
            Error::Config(_) => AscendAllocStatus::Config,
            Error::State { .. } => AscendAllocStatus::State,
            _ => AscendAllocStatus::Argument,
        };
        Self { status, text: error.to_string() }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self { status: AscendAllocStatus::Config, text: error.to_string() }
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        Self { status: AscendAllocStatus::Library, text: error.to_string() }
    }
}
