//! Asks the library and one device what they can do, with the allocator's own calls.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use ascend_alloc::acl::{Acl, LIBRARY_VARIABLE, LoadError, sys};
use ascend_alloc::driver::{AclDriver, DeviceId, Driver, DriverError, DriverResult, MemoryInfo, PageKind};
use serde::Serialize;

use super::limits::{Addresses, Events};
use super::outlook::Outlook;

/// An answer, or the refusal as text.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer<T> {
    /// The answer.
    Is(T),
    /// The call that was refused, its arguments, the code and what the library said.
    Refused(String),
}

/// Why there is nothing to tell.
#[derive(Debug)]
pub enum Refusal {
    /// No library can be used.
    Library(LoadError),
    /// The process does not see the device.
    Device(String),
}

/// Everything about the library and a device. Sizes in bytes.
#[derive(Debug, Serialize)]
pub struct Examination {
    /// The library.
    pub library: Library,
    /// Devices that the process sees.
    pub devices: u32,
    /// The one that was examined.
    pub device: DeviceId,
    /// Its memory.
    pub memory: Answer<Memory>,
    /// The granules of its memory.
    pub granules: Vec<Granule>,
    /// How far reservations go. Absent without virtual memory.
    pub addresses: Option<Addresses>,
    /// How far events go.
    pub events: Events,
    /// Who may access a mapping. Absent without virtual memory.
    pub access: Option<Answer<Access>>,
    /// Bytes that an engine may touch past the end of a block.
    pub tail_pad: Answer<u64>,
    /// What the allocator does here.
    pub outlook: Outlook,
    /// What stands in the way of working with this device.
    pub problems: Vec<&'static str>,
}

/// The library.
#[derive(Debug, Serialize)]
pub struct Library {
    /// The file.
    pub file: String,
    /// Whether the environment named it.
    pub is_named: bool,
    /// Version of the interface.
    pub version: Answer<String>,
    /// The toolkits that have this version, if they are known.
    pub toolkit: Option<&'static str>,
    /// Versions of packages, as numbers of the form 90000000 for 9.0.0.
    pub packages: Vec<(String, Answer<i32>)>,
    /// The name of the part.
    pub soc: Option<String>,
    /// The functions it lacks, and what follows.
    pub missing: Vec<(String, &'static str)>,
    /// Whether it has the calls for virtual memory.
    pub has_virtual_memory: bool,
    /// `ASCEND_RT_VISIBLE_DEVICES`.
    pub visible_devices: Option<String>,
    /// The release of this machine's Linux.
    pub kernel: String,
    /// Whether only memory of `aclrtMallocHost` may be registered on it.
    pub registers_own_only: bool,
}

/// Bytes of a device's memory.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// Not taken by anybody.
    pub free: u64,
    /// All.
    pub total: u64,
}

/// The granule of one kind of memory.
#[derive(Debug, Serialize)]
pub struct Granule {
    /// The kind.
    pub memory: &'static str,
    /// Its granule.
    pub granule: Answer<u64>,
}

/// Access to a mapping of one granule.
#[derive(Debug, Serialize)]
pub struct Access {
    /// What `aclrtMemGetAccess` says of the owner after the mapping alone; 3 is reading and writing.
    pub after_map: Answer<u64>,
    /// Whether bytes could be copied there and back before access was set.
    pub usable_after_map: Answer<bool>,
    /// Whether `aclrtMemSetAccess` succeeds for the owner.
    pub set_access: Answer<bool>,
    /// Whether the owner's number is that of the driver: the call takes no other.
    pub is_addressable: bool,
}

impl Access {
    /// Whether the owner needs the call; `None` if that could not be told.
    #[must_use]
    pub fn is_needed(&self) -> Option<bool> {
        match (&self.after_map, &self.usable_after_map) {
            (Answer::Is(access), _) => Some(access & 3 != 3),
            (_, Answer::Is(usable)) => Some(!usable),
            _ => None,
        }
    }
}

impl<T> Answer<T> {
    /// From the result of a call.
    pub fn of(result: DriverResult<T>) -> Self {
        match result {
            Ok(value) => Self::Is(value),
            Err(error) => Self::Refused(error.to_string()),
        }
    }
}

impl Examination {
    /// Examines a device. All that is taken for that is given back.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if there is no usable library or no such device.
    pub fn of(device: DeviceId) -> Result<Self, Refusal> {
        // SAFETY: what the search finds is taken for ACL, as the allocator takes it. Below only addresses, chunks and
        // events are passed that the library gave and that are not given back yet.
        let driver = Arc::new(unsafe { AclDriver::open() }.map_err(Refusal::Library)?);
        let devices = driver.device_count().map_err(|error| Refusal::Device(error.to_string()))?;
        if device >= devices {
            return Err(Refusal::Device(format!("there is no device {device}: the process sees {devices}")));
        }
        let acl = driver.acl();
        // The driver opens devices on threads of its own and leaves this one as it is; so it does here.
        let has_virtual_memory = acl.has_virtual_memory();
        let memory = driver.memory_info(device).map(|MemoryInfo { free, total }| Memory { free, total });
        let mut found = Self {
            library: Library::of(acl),
            devices,
            device,
            memory: Answer::of(memory),
            granules: granules(&driver, device),
            addresses: has_virtual_memory.then(|| Addresses::of(&*driver, device)),
            events: Events::of(&*driver, device, acl.soc_name().map(|name| name.to_bytes())),
            access: has_virtual_memory.then(|| Answer::of(access(&driver, device))),
            tail_pad: Answer::of(driver.tail_pad(device)),
            outlook: Outlook::of(driver.clone(), device),
            problems: Vec::new(),
        };
        found.problems = found.find_problems();
        Ok(found)
    }

    fn find_problems(&self) -> Vec<&'static str> {
        let mut problems = Vec::new();
        let mut note = |is_so: bool, what| {
            if is_so {
                problems.push(what);
            }
        };
        let (calls, kept) = match &self.outlook {
            Outlook::Works(works) => (works.set_access_calls, works.kept),
            Outlook::Fails(_) => (0, 0),
        };
        note(matches!(self.outlook, Outlook::Fails(_)), "the allocator does not work here");
        note(kept != 0, "not all memory went back to the device");
        let lost = self.addresses.as_ref().is_some_and(|addresses| addresses.not_released > 0);
        note(lost || self.events.not_destroyed > 0, "reservations or events could not be given back");
        if let Some(Answer::Is(access)) = &self.access {
            let is_granted = calls > 0 && matches!(access.set_access, Answer::Is(_));
            let lacks = access.is_needed() == Some(true) && !is_granted;
            note(
                lacks,
                "mapping gives the owner no access, and aclrtMemSetAccess does not either: memory is not usable",
            );
            note(
                matches!(access.usable_after_map, Answer::Is(false)),
                "bytes in mapped memory do not stay as they were written",
            );
        }
        problems
    }

    /// Whether there are no problems.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.problems.is_empty()
    }
}

impl Library {
    fn of(acl: &Acl) -> Self {
        let version = acl.version();
        let toolkit = version.as_ref().ok().and_then(|version| toolkit(*version));
        let packages = [c"runtime", c"driver"].map(|package| {
            (package.to_string_lossy().into_owned(), Answer::of(acl.package_version(package)))
        });
        let missing = acl.missing().into_iter().map(|symbol| (symbol.to_owned(), consequence(symbol)));
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            file: acl.origin().to_owned(),
            is_named: std::env::var_os(LIBRARY_VARIABLE).is_some_and(|name| !name.is_empty()),
            version: Answer::of(version.map(|(major, minor, patch)| format!("{major}.{minor}.{patch}"))),
            toolkit,
            packages: packages.into(),
            soc: acl.soc_name().map(|name| name.to_string_lossy().into_owned()),
            missing: missing.collect(),
            has_virtual_memory: acl.has_virtual_memory(),
            visible_devices: std::env::var("ASCEND_RT_VISIBLE_DEVICES").ok(),
            kernel: kernel.trim().to_owned(),
            registers_own_only: super::conform::hazard::is_old_kernel(),
        }
    }
}

/// The toolkits whose interface has this version.
fn toolkit(version: (i32, i32, i32)) -> Option<&'static str> {
    match version {
        (1, 13, 0) => Some("CANN 8.1"),
        (1, 14, _) => Some("CANN 8.2"),
        (1, 15, _) => Some("CANN 8.3"),
        (1, 16, 0) => Some("CANN 8.5"),
        (1, 17, 0) => Some("CANN 9.0 or later"),
        _ => None,
    }
}

/// What the allocator does without a function.
fn consequence(symbol: &str) -> &'static str {
    match symbol {
        "aclrtReserveMemAddress"
        | "aclrtReleaseMemAddress"
        | "aclrtMallocPhysical"
        | "aclrtFreePhysical"
        | "aclrtMapMem"
        | "aclrtUnmapMem"
        | "aclrtMemGetAllocationGranularity" => {
            "no growable segments: each segment is one block of the driver"
        }
        "aclrtMemSetAccess" => "access is left as mapping makes it; the owner has it from there on",
        "aclrtGetVersion" | "aclsysGetVersionNum" => "the version cannot be told",
        "aclrtGetSocName" => "the part is unknown, so blocks get a pad of 32 bytes",
        "aclGetRecentErrMsg" => "errors come without the library's own words",
        "aclrtGetLastError" => "programs that look for a last error may see one that was dealt with",
        "aclmdlRICaptureGetInfo" => "streams count as not capturing",
        _ => "the allocator's main path does not call it",
    }
}

fn granules(driver: &AclDriver, device: DeviceId) -> Vec<Granule> {
    if !driver.acl().has_virtual_memory() {
        return Vec::new();
    }
    let of = |memory, pages| Granule { memory, granule: Answer::of(driver.granularity(device, pages)) };
    vec![of("huge pages", PageKind::Huge), of("pages of 1 GiB", PageKind::Huge1G)]
}

/// Maps a granule and looks who may access it.
fn access(driver: &AclDriver, device: DeviceId) -> DriverResult<Access> {
    let granule = driver.granularity(device, PageKind::Huge)?;
    let range = driver.reserve(device, granule)?;
    let answer = (|| {
        let chunk = driver.malloc_physical(device, granule, PageKind::Huge)?;
        let mapped = driver.map(device, range, granule, chunk);
        let answer = mapped.map(|()| {
            let answer = look(driver, device, range, granule);
            let unmapped = driver.unmap(device, range);
            unmapped.map(|()| answer)
        });
        driver.free_physical(device, chunk)?;
        answer?
    })();
    driver.release(device, range)?;
    answer
}

/// The access to a mapping that was just made.
fn look(driver: &AclDriver, device: DeviceId, start: u64, granule: u64) -> Access {
    let is_addressable = driver.owner_access_is_addressable(device);
    let location = sys::aclrtMemLocation { id: device, type_: sys::ACL_MEM_LOCATION_TYPE_DEVICE };
    let renumbered = || "the driver's number of this device is another".to_owned();
    let after_map = match is_addressable {
        true => Answer::of(driver.acl().access(ptr::with_exposed_provenance_mut(start as usize), location)),
        false => Answer::Refused(renumbered()),
    };
    let usable_after_map = match &after_map {
        // Not tried: a device that touches memory without access may need a reset.
        Answer::Is(access) if access & 3 != 3 => Answer::Refused("not tried without access".to_owned()),
        _ => Answer::of(on_device(driver, device, |acl| there_and_back(acl, start))),
    };
    let set_access = match is_addressable {
        true => Answer::of(driver.set_access(device, start, granule, device).map(|()| true)),
        false => Answer::Refused(renumbered()),
    };
    Access { after_map, usable_after_map, set_access, is_addressable }
}

/// Whether bytes come back as they were sent.
fn there_and_back(acl: &Acl, start: u64) -> DriverResult<bool> {
    const BYTES: usize = 4096;
    let sent: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
    let mut received = vec![0_u8; BYTES];
    let target: *mut c_void = ptr::with_exposed_provenance_mut(start as usize);
    // SAFETY: both sides have so many bytes, and nothing was queued on this mapping.
    unsafe {
        acl.copy(target, sent.as_ptr().cast(), BYTES, sys::ACL_MEMCPY_HOST_TO_DEVICE)?;
        acl.copy(received.as_mut_ptr().cast(), target, BYTES, sys::ACL_MEMCPY_DEVICE_TO_HOST)?;
    }
    Ok(sent == received)
}

/// Runs calls that need the device in the thread, on a thread that ends with them.
fn on_device<T: Send>(
    driver: &AclDriver,
    device: DeviceId,
    run: impl FnOnce(&Acl) -> DriverResult<T> + Send,
) -> DriverResult<T> {
    let acl = driver.acl();
    let number = i32::try_from(device).unwrap_or(-1);
    let run = move || {
        acl.set_device(number)?;
        let answer = run(acl);
        // SAFETY: the reference was taken above, and the driver holds another.
        unsafe { acl.reset_device(number) }?;
        answer
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, run);
        thread
            .map_err(|error| no_thread(&error))?
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn no_thread(error: &std::io::Error) -> DriverError {
    DriverError {
        call: "aclrtSetDevice",
        arguments: String::new(),
        code: 0,
        name: "not called",
        message: Some(format!("no thread could be started: {error}")),
        missing_symbol: None,
    }
}
