//! The driver on the vendor's runtime library, and what differs between its versions.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::ffi::CString;
use std::sync::Arc;
use std::time::Instant;

use super::{
    CODE_NOT_SUPPORTED, DeviceId, Driver, DriverError, DriverResult, Event, HostCopy, MemoryInfo, PageKind,
    PhysicalHandle, ShareForm, ShareName, StateChanges, Stream, SubmitHook, submit::Submit,
};
use crate::acl::{Acl, LoadError, Search, codes, sys};
use crate::sync::plain::Mutex;

mod contexts;
mod host;
mod share;
mod states;

use contexts::Opened;

/// The environment variable with the devices that the process sees.
const VISIBLE_DEVICES: &str = "ASCEND_RT_VISIBLE_DEVICES";

/// Bytes an engine may read past the end of a block, on all parts but those of the next constant.
const TAIL_PAD: u64 = 32;
/// How the names of parts begin that read no further than the end.
const NO_TAIL_PAD: &[u8] = b"Ascend950";

/// The driver on the vendor's runtime library.
///
/// ACL keeps a *context* for each thread: which device its calls mean, and which streams they
/// see. The driver never changes what a thread can observe of it:
///
/// | the calling thread has | what a call for device `d` does |
/// |---|---|
/// | a context on `d`, also one it made itself | runs as it is |
/// | a context on another device | runs in the primary context of `d`, then puts the thread's own back |
/// | no context | runs on a thread made for it: ACL cannot take a context away again; threads of the allocator's own keep the context |
///
/// The primary context of a device is opened with `aclrtSetDevice`, on a thread of its own for the
/// same reason, when a call first needs it; the reference that takes is given back when the driver
/// is dropped. Calls that need no context (reserve, map and their opposites) only make sure that
/// the device is open.
///
/// Limits, from ACL: in a thread with a context of its own making, stream 0 is the default stream
/// of that context, and `synchronize_device` waits for the streams of that context and of the
/// primary one, if the driver has opened it. What a wait for a stream reports of the work (numbers that
/// overflowed, the end of a sequence) is no failure of the wait; whoever wants to know it must wait itself before. A thread without a context pays for a new thread
/// with each call that needs one; threads that allocate should set their device.
pub struct AclDriver {
    acl: Acl,
    start: Instant,
    visible: Option<Vec<u32>>,
    /// The devices this driver has opened. Held for a look-up only, not during a call.
    opened: Mutex<Vec<Opened>>,
    /// The serial number of the next opening.
    serials: AtomicU32,
    /// Set once the library has refused reservations with flags 0 and taken flags 1.
    reserve_with_flags: AtomicBool,
    /// By page kind: set once the library has refused the usual kind of memory and taken the other.
    other_memory: [AtomicBool; 2],
    /// The names under which callbacks are registered.
    watches: Mutex<Vec<CString>>,
    /// How queued work is handed over before a point in a stream is marked.
    submit: Submit,
}

impl AclDriver {
    /// Loads the library that the environment names or the process has (see
    /// [`Search`]) and initialises ACL, unless somebody did before.
    ///
    /// A host that will call `aclInit` itself, with a configuration of its own, must do so first.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if no library is found, it lacks a required function, or refuses to start.
    ///
    /// # Safety
    ///
    /// As [`Acl::load`] and [`attach`](Self::attach).
    pub unsafe fn open() -> Result<Self, LoadError> {
        // SAFETY: as this function's.
        let acl = unsafe { Acl::load(&Search::from_environment()) }?;
        match acl.init(None) {
            Ok(()) => {}
            // Without a configuration nothing can be wrong with it: the code says that it differs
            // from that of an earlier call.
            Err(error) if matches!(error.code, codes::REPEAT_INITIALIZE | codes::INVALID_PARAM) => {}
            Err(error) => return Err(LoadError::Init(error)),
        }
        // SAFETY: as this function's.
        Ok(unsafe { Self::attach(acl) })
    }

    /// A driver on a library that is loaded and initialised.
    ///
    /// # Safety
    ///
    /// ACL cannot check a handle. Whoever calls the driver's methods passes only events, chunks
    /// and addresses that they gave and that are not given back yet, and streams that are live;
    /// memory is unmapped and freed only when no work on the device uses it any more.
    #[must_use]
    pub unsafe fn attach(acl: Acl) -> Self {
        let visible = std::env::var(VISIBLE_DEVICES).ok();
        Self {
            acl,
            start: Instant::now(),
            visible: visible.as_deref().map(parse_visible),
            opened: Mutex::new(Vec::new()),
            serials: AtomicU32::new(0),
            reserve_with_flags: AtomicBool::new(false),
            other_memory: [const { AtomicBool::new(false) }; 2],
            watches: Mutex::new(Vec::new()),
            submit: Submit::default(),
        }
    }

    /// Sets, or removes, the function that hands queued work over before an event is recorded on a stream, and before
    /// a stream or the device is waited for.
    pub fn set_submit_hook(&self, hook: Option<SubmitHook>) {
        self.submit.set(hook);
    }

    /// The library below, for calls that are no part of the driver's contract.
    #[must_use]
    pub fn acl(&self) -> &Acl {
        &self.acl
    }

    /// Runs a call with the kind of memory for these pages. Parts without HBM refuse the usual
    /// kind; since CANN 8.5 there is one that means whatever the part has.
    fn with_memory<R: Send>(
        &self,
        device: DeviceId,
        pages: PageKind,
        call: impl Fn(&Acl, &sys::aclrtPhysicalMemProp) -> DriverResult<R> + Sync,
    ) -> DriverResult<R> {
        let (usual, other, chosen) = match pages {
            PageKind::Huge => (sys::ACL_HBM_MEM_HUGE, sys::ACL_MEM_HUGE, &self.other_memory[0]),
            PageKind::Huge1G => (sys::ACL_HBM_MEM_HUGE1G, sys::ACL_MEM_HUGE1G, &self.other_memory[1]),
        };
        let with = |kind| {
            let property = sys::aclrtPhysicalMemProp {
                handleType: sys::ACL_MEM_HANDLE_TYPE_NONE,
                allocationType: sys::ACL_MEM_ALLOCATION_TYPE_PINNED,
                memAttr: kind,
                location: location(device),
                reserve: 0,
            };
            self.anywhere(device, &|acl: &Acl| call(acl, &property))
        };
        if chosen.load(Ordering::Relaxed) {
            return with(other);
        }
        match with(usual) {
            Err(error) if refuses_memory(&error) => {
                let answer = with(other).map_err(|_| error)?;
                chosen.store(true, Ordering::Relaxed);
                Ok(answer)
            }
            answer => answer,
        }
    }
}

impl Driver for AclDriver {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn device_count(&self) -> DriverResult<u32> {
        self.acl.device_count()
    }

    fn memory_info(&self, device: DeviceId) -> DriverResult<MemoryInfo> {
        self.on_device(device, &|acl: &Acl| {
            let (free, total) = match acl.memory_info(sys::ACL_HBM_MEM)? {
                // So a part answers for a kind of memory that it does not have.
                (_, 0) => acl.memory_info(sys::ACL_DDR_MEM)?,
                some => some,
            };
            Ok(MemoryInfo { free: free as u64, total: total as u64 })
        })
    }

    fn granularity(&self, device: DeviceId, pages: PageKind) -> DriverResult<u64> {
        self.with_memory(device, pages, |acl, property| acl.granularity(property).map(|bytes| bytes as u64))
    }

    fn tail_pad(&self, _device: DeviceId) -> DriverResult<u64> {
        // ACL answers for device 0 whatever the device; a machine has parts of one kind.
        let name = self.acl.soc_name().map(|name| name.to_bytes());
        Ok(if name.is_some_and(|name| name.starts_with(NO_TAIL_PAD)) { 0 } else { TAIL_PAD })
    }

    fn owner_access_is_addressable(&self, device: DeviceId) -> bool {
        self.visible.as_ref().is_none_or(|visible| visible.get(device as usize) == Some(&device))
    }

    fn reserve(&self, device: DeviceId, bytes: u64) -> DriverResult<u64> {
        let with =
            |flags| self.anywhere(device, &move |acl: &Acl| acl.reserve(size(bytes), flags).map(address_of));
        if self.reserve_with_flags.load(Ordering::Relaxed) {
            return with(1);
        }
        match with(0) {
            // Up to CANN 8.3, 1 said that huge pages would be mapped; now 0 is asked for.
            Err(error) if matches!(error.code, codes::INVALID_PARAM | codes::RT_PARAM_INVALID) => {
                let answer = with(1).map_err(|other| if other.is_out_of_memory() { other } else { error })?;
                self.reserve_with_flags.store(true, Ordering::Relaxed);
                Ok(answer)
            }
            answer => answer,
        }
    }

    fn release(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        // SAFETY: as `attach`.
        self.anywhere(device, &|acl: &Acl| unsafe { acl.release(pointer(address)) })
    }

    fn malloc_physical(&self, device: DeviceId, bytes: u64, pages: PageKind) -> DriverResult<PhysicalHandle> {
        self.with_memory(device, pages, |acl, property| {
            acl.malloc_physical(size(bytes), property).map(address_of).map(PhysicalHandle)
        })
    }

    fn free_physical(&self, device: DeviceId, handle: PhysicalHandle) -> DriverResult<()> {
        // SAFETY: as `attach`.
        self.anywhere(device, &|acl: &Acl| unsafe { acl.free_physical(pointer(handle.0)) })
    }

    fn map(&self, device: DeviceId, address: u64, bytes: u64, handle: PhysicalHandle) -> DriverResult<()> {
        self.anywhere(device, &|acl: &Acl| {
            // SAFETY: as `attach`.
            unsafe { acl.map(pointer(address), size(bytes), pointer(handle.0)) }
        })
    }

    fn unmap(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        // SAFETY: as `attach`.
        self.anywhere(device, &|acl: &Acl| unsafe { acl.unmap(pointer(address)) })
    }

    fn set_access(&self, device: DeviceId, address: u64, bytes: u64, peer: DeviceId) -> DriverResult<()> {
        let translated =
            self.translated(peer, "aclrtMemSetAccess", format_args!("virPtr={address:#x}, size={bytes}"))?;
        self.anywhere(device, &|acl: &Acl| {
            acl.set_access(pointer(address), size(bytes), location(translated))
        })
    }

    fn malloc(&self, device: DeviceId, bytes: u64, pages: PageKind) -> DriverResult<u64> {
        let policy = match pages {
            PageKind::Huge => sys::ACL_MEM_MALLOC_HUGE_FIRST,
            PageKind::Huge1G => sys::ACL_MEM_MALLOC_HUGE1G_ONLY,
        };
        self.on_device(device, &|acl: &Acl| acl.malloc_align_32(size(bytes), policy).map(address_of))
    }

    fn free(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        // SAFETY: as `attach`.
        self.on_device(device, &|acl: &Acl| unsafe { acl.free(pointer(address)) })
    }

    fn create_event(&self, device: DeviceId) -> DriverResult<Event> {
        // Streams can wait only for events with this flag.
        let flags = sys::ACL_EVENT_SYNC;
        self.on_device(device, &|acl: &Acl| acl.create_event(flags).map(address_of).map(Event))
    }

    fn destroy_event(&self, device: DeviceId, event: Event) -> DriverResult<()> {
        // SAFETY: as `attach`.
        self.on_device(device, &|acl: &Acl| unsafe { acl.destroy_event(pointer(event.0)) })
    }

    fn record_event(&self, device: DeviceId, event: Event, stream: Stream) -> DriverResult<()> {
        self.with_stream(device, &|acl: &Acl| {
            // SAFETY: as `attach`.
            unsafe { acl.record_event(pointer(event.0), pointer(stream.0)) }
        })
    }

    fn query_event(&self, device: DeviceId, event: Event) -> DriverResult<bool> {
        // SAFETY: as `attach`.
        self.on_device(device, &|acl: &Acl| unsafe { acl.event_is_complete(pointer(event.0)) })
    }

    fn synchronize_event(&self, device: DeviceId, event: Event) -> DriverResult<()> {
        // SAFETY: as `attach`.
        self.on_device(device, &|acl: &Acl| unsafe { acl.synchronize_event(pointer(event.0)) })
    }

    fn stream_wait_event(&self, device: DeviceId, stream: Stream, event: Event) -> DriverResult<()> {
        self.with_stream(device, &|acl: &Acl| {
            // SAFETY: as `attach`.
            unsafe { acl.stream_wait_event(pointer(stream.0), pointer(event.0)) }
        })
    }

    fn synchronize_stream(&self, device: DeviceId, stream: Stream) -> DriverResult<()> {
        self.submit.before(device, Some(stream))?;
        let wait = |acl: &Acl| {
            // SAFETY: as `attach`.
            let answer = unsafe { acl.synchronize_stream(pointer(stream.0)) };
            answer.or_else(|error| if codes::has_waited(error.code) { Ok(()) } else { Err(error) })
        };
        self.with_stream(device, &wait)
    }

    fn synchronize_device(&self, device: DeviceId) -> DriverResult<()> {
        self.submit.before(device, None)?;
        self.on_device(device, &wait_for_device)?;
        let Some(primary) = self.known_context(device) else { return Ok(()) };
        // The call sees the streams of one context. Only a thread with a context of its own making
        // has not waited for the primary one yet.
        match self.acl.device_if_any() {
            Some(current) if current == number(device) => {}
            _ => return Ok(()),
        }
        if address_of(self.acl.current_context()?) == primary.context {
            return Ok(());
        }
        self.in_primary_context(device, &wait_for_device)
    }

    fn malloc_host(&self, device: DeviceId, bytes: u64) -> DriverResult<u64> {
        self.on_device(device, &|acl: &Acl| acl.malloc_host(size(bytes)).map(address_of))
    }

    fn free_host(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        // SAFETY: as `attach`.
        self.on_device(device, &|acl: &Acl| unsafe { acl.free_host(pointer(address)) })
    }

    unsafe fn copy_async(&self, device: DeviceId, copy: HostCopy, stream: Stream) -> DriverResult<()> {
        let (host, there, bytes) = (pointer(copy.host), pointer(copy.device), size(copy.bytes));
        let (target, source, kind) = match copy.to_host {
            true => (host, there, sys::ACL_MEMCPY_DEVICE_TO_HOST),
            false => (there, host, sys::ACL_MEMCPY_HOST_TO_DEVICE),
        };
        let ranges = (address_of(target), address_of(source));
        self.with_stream(device, &move |acl: &Acl| {
            let (target, source) = (pointer(ranges.0), pointer(ranges.1));
            // SAFETY: the caller vouches for the host range; the rest as `attach`.
            unsafe { acl.copy_async(target, source, bytes, kind, pointer(stream.0)) }
        })
    }

    fn driver_device(&self, device: DeviceId) -> DriverResult<u32> {
        self.translated(device, "the driver's number of a device", format_args!(""))
    }

    fn can_set_access(&self) -> bool {
        self.has_set_access()
    }

    fn can_access_peer(&self, device: DeviceId, peer: DeviceId) -> DriverResult<bool> {
        self.acl.can_access_peer(number(device), number(peer))
    }

    fn enable_peer_access(&self, device: DeviceId, peer: DeviceId) -> DriverResult<()> {
        self.on_device(device, &|acl: &Acl| acl.enable_peer_access(number(peer)))
    }

    fn process_id(&self, device: DeviceId) -> DriverResult<i32> {
        self.anywhere(device, &Acl::bare_process_id)
    }

    fn export_chunk(
        &self,
        device: DeviceId,
        handle: PhysicalHandle,
        form: ShareForm,
        for_all: bool,
    ) -> DriverResult<ShareName> {
        self.export(device, handle, form, for_all)
    }

    fn allow_import(&self, device: DeviceId, name: &ShareName, processes: &[i32]) -> DriverResult<()> {
        self.allow(device, name, processes)
    }

    fn import_chunk(&self, device: DeviceId, name: &ShareName) -> DriverResult<PhysicalHandle> {
        self.import(device, name)
    }

    fn watch_states(&self, changes: &Arc<StateChanges>) -> bool {
        self.register_states(changes)
    }

    fn has_lost_memory(&self, device: DeviceId, set_again: bool) -> bool {
        self.has_lost(device, set_again)
    }

    fn host_calls(&self) -> Option<&dyn super::HostCalls> {
        Some(self)
    }

    fn capture_of(&self, device: DeviceId, stream: Stream) -> DriverResult<Option<u64>> {
        if stream.0 == 0 {
            return Ok(None);
        }
        // SAFETY: as `attach`.
        match self.with_stream(device, &|acl: &Acl| unsafe {
            acl.capture_info(pointer(stream.0)).map(|(status, graph)| (status, address_of(graph)))
        }) {
            Ok((sys::ACL_MODEL_RI_CAPTURE_STATUS_NONE, _)) => Ok(None),
            // A capture that an error has ended is still one until it is closed: it refuses the
            // same calls.
            Ok((_, graph)) => Ok(Some(graph)),
            Err(error) if error.is_unsupported() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_capturing(&self, device: DeviceId, stream: Stream) -> DriverResult<bool> {
        // Asked before an event is recorded.
        self.submit.before(device, Some(stream))?;
        self.capture_of(device, stream).map(|graph| graph.is_some())
    }
}

impl Drop for AclDriver {
    fn drop(&mut self) {
        self.unregister_states();
        // SAFETY: nobody uses the driver any more.
        unsafe { self.close_devices() };
    }
}

impl core::fmt::Debug for AclDriver {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AclDriver")
            .field("acl", &self.acl)
            .field("visible", &self.visible)
            .finish_non_exhaustive()
    }
}

/// Waits for the streams of this thread's context. What one of them has to say ends the call early, so that it is
/// made again: each stream says it once.
fn wait_for_device(acl: &Acl) -> DriverResult<()> {
    /// A device that says the same again and again is not asked for ever.
    const MOST: usize = 64;
    let mut answer = acl.synchronize_device();
    for _ in 1..MOST {
        match &answer {
            Err(error) if codes::has_waited(error.code) => answer = acl.synchronize_device(),
            _ => break,
        }
    }
    answer
}

/// Whether the error can mean that the part has no such kind of memory.
fn refuses_memory(error: &DriverError) -> bool {
    let refused = matches!(
        error.code,
        codes::INVALID_PARAM | codes::RT_PARAM_INVALID | codes::RT_INVALID_MALLOC_TYPE | CODE_NOT_SUPPORTED
    );
    refused && error.missing_symbol.is_none()
}

/// The devices in the order the process numbers them. As ACL does, it stops at the first entry
/// that is no number or not above the one before.
fn parse_visible(list: &str) -> Vec<u32> {
    let mut devices = Vec::new();
    for entry in list.split(',') {
        match entry.trim().parse() {
            Ok(device) if devices.last().is_none_or(|last| *last < device) => devices.push(device),
            _ => break,
        }
    }
    devices
}

fn location(device: DeviceId) -> sys::aclrtMemLocation {
    sys::aclrtMemLocation { id: device, type_: sys::ACL_MEM_LOCATION_TYPE_DEVICE }
}

/// A device as ACL numbers it; one that does not fit becomes one that it refuses.
fn number(device: DeviceId) -> i32 {
    i32::try_from(device).unwrap_or(-1)
}

/// A size as ACL takes it; one that does not fit becomes one that it refuses.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn pointer(address: u64) -> *mut c_void {
    core::ptr::with_exposed_provenance_mut(size(address))
}

fn address_of(pointer: *mut c_void) -> u64 {
    pointer.expose_provenance() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_are_read_as_acl_reads_them() {
        assert_eq!(parse_visible("0,1,2"), [0, 1, 2]);
        assert_eq!(parse_visible(" 4 , 6"), [4, 6]);
        assert_eq!(parse_visible("1,0"), [1]);
        assert_eq!(parse_visible("2,x,3"), [2]);
        assert_eq!(parse_visible(""), [0_u32; 0]);
        assert_eq!(parse_visible("-1"), [0_u32; 0]);
    }

    #[test]
    fn what_does_not_fit_is_refused_by_acl() {
        assert_eq!(number(u32::MAX), -1);
        assert_eq!(number(7), 7);
        assert_eq!(address_of(pointer(0x1234_5678_9abc)), 0x1234_5678_9abc);
    }
}
