//! The one allocator of the process: how it comes to be, and the ways that can fail.

use core::ffi::{CStr, c_int, c_void};
use std::sync::{Arc, OnceLock};

use allocator::acl::LoadError;
use allocator::config::ConfigError;
use allocator::driver::{AclDriver, DeviceId, Stream};
use allocator::{Config, DeviceAllocator, Error, Stats};

use crate::host::Content;
use parking_lot::Mutex;

use crate::fork;

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
    /// The process was forked from one that uses the devices; a child cannot use them.
    Fork = 8,
    /// This build or this runtime library cannot do that.
    Unsupported = 9,
}

/// Why an entry point failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The kind, for programs.
    pub status: AscendAllocStatus,
    /// The story, for people.
    pub text: String,
}

/// What the process has once it is set up. Never dropped, so that calls during and after exit find it.
pub(crate) struct Process {
    pub(crate) allocator: Arc<DeviceAllocator>,
    pub(crate) driver: Arc<AclDriver>,
}

static PROCESS: OnceLock<Process> = OnceLock::new();
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
    fork::begin();
    let _turn = SETTING_UP.lock();
    if PROCESS.get().is_some() {
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
    // SAFETY: as this function's.
    unsafe { process() }.map(|process| &*process.allocator)
}

/// The same with the driver.
///
/// # Safety
///
/// As [`AclDriver::open`].
#[inline]
pub(crate) unsafe fn process() -> Result<&'static Process, Failure> {
    match PROCESS.get() {
        Some(process) => Ok(process),
        // SAFETY: as this function's.
        None => unsafe { first_use() },
    }
}

/// What the process has, if it is set up.
pub(crate) fn process_if_set_up() -> Option<&'static Process> {
    PROCESS.get()
}

/// The statistics of all devices; none while nothing is set up.
pub(crate) fn all_stats() -> Vec<Stats> {
    let Some(process) = PROCESS.get() else { return Vec::new() };
    (0..process.allocator.device_count())
        .map(|device| process.allocator.stats(device).unwrap_or_default())
        .collect()
}

/// The allocator, if it is set up: before that no pointer can be one of its blocks.
pub(crate) fn existing() -> Result<&'static DeviceAllocator, Failure> {
    if_set_up().ok_or_else(|| Failure {
        status: AscendAllocStatus::State,
        text: "nothing was allocated yet, so the pointer or handle is none of this allocator's".to_owned(),
    })
}

/// The allocator, if it is set up.
pub(crate) fn if_set_up() -> Option<&'static DeviceAllocator> {
    PROCESS.get().map(|process| &*process.allocator)
}

/// A size as a number of bytes. One in the upper half is a negative number to callers whose type is signed.
#[inline]
pub(crate) fn size(size: usize) -> Result<u64, Failure> {
    if isize::try_from(size).is_err() {
        return Err(argument(format!(
            "size is {} (unsigned: {size}), more than any device has",
            size as isize
        )));
    }
    Ok(size as u64)
}

/// A stream by its handle.
#[inline]
pub(crate) fn stream(stream: *mut c_void) -> Stream {
    Stream(stream.expose_provenance() as u64)
}

/// An address as C callers get it.
#[inline]
pub(crate) fn pointer(address: u64) -> *mut c_void {
    core::ptr::with_exposed_provenance_mut(address as usize)
}

/// A device number, or nothing for -1, which means all.
pub(crate) fn device_or_all(device: c_int) -> Result<Option<DeviceId>, Failure> {
    match device {
        -1 => Ok(None),
        device => self::device(device).map(Some),
    }
}

/// A device number.
pub(crate) fn device(device: c_int) -> Result<DeviceId, Failure> {
    DeviceId::try_from(device).map_err(|_| argument(format!("device is {device}, expected 0 or more")))
}

/// A number of a device that the driver knows. Before the allocator is set up nobody has asked the driver, and every
/// number from 0 on will do.
pub(crate) fn known_device(device: c_int) -> Result<DeviceId, Failure> {
    let id = self::device(device)?;
    match if_set_up() {
        Some(allocator) if id >= allocator.device_count() => Err(Failure::from(Error::Argument {
            name: "device",
            value: id.to_string(),
            expected: "a device the driver knows",
        })),
        _ => Ok(id),
    }
}

/// # Safety
///
/// As [`AclDriver::open`].
#[cold]
unsafe fn first_use() -> Result<&'static Process, Failure> {
    fork::begin();
    let _turn = SETTING_UP.lock();
    // SAFETY: as this function's.
    PROCESS.get().map_or_else(|| unsafe { set_up("") }, Ok)
}

/// The caller holds [`SETTING_UP`] and has seen that there is no allocator.
///
/// # Safety
///
/// As [`AclDriver::open`].
#[cold]
unsafe fn set_up(text: &str) -> Result<&'static Process, Failure> {
    // Once more, because a try of another thread may have failed meanwhile.
    fork::begin();
    // SAFETY: as this function's.
    let made = unsafe { make(text) }.inspect_err(|_| fork::give_up())?;
    Ok(PROCESS.get_or_init(|| made))
}

/// # Safety
///
/// As [`AclDriver::open`].
unsafe fn make(text: &str) -> Result<Process, Failure> {
    let config = Config::from_env()?.overridden_by(text)?;
    for warning in config.warnings() {
        eprintln!("ascend-alloc: warning: {warning}");
    }
    // SAFETY: as this function's.
    let driver = Arc::new(unsafe { AclDriver::open() }?);
    let content = Content { config: config.clone(), driver: driver.clone() };
    let allocator = Arc::new(DeviceAllocator::new(config, driver.clone())?);
    allocator.keep_content_in(Arc::new(content))?;
    Ok(Process { allocator, driver })
}

pub(crate) fn argument(text: String) -> Failure {
    Failure { status: AscendAllocStatus::Argument, text }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::OutOfMemory(_) => AscendAllocStatus::OutOfMemory,
            Error::Driver(_) => AscendAllocStatus::Driver,
            Error::Config(_) => AscendAllocStatus::Config,
            Error::File { .. } => AscendAllocStatus::Argument,
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
