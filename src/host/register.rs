//! Memory of others, registered for a device for as long as a guard lives.
//!
//! A registration is checked before the driver is asked: its start is a multiple of the page, it overlaps no other one
//! of this registry, and kernels up to 5.10 register only memory that is page-locked already.

#![allow(
    clippy::result_large_err,
    reason = "what could not be done comes back with what it was to be done to"
)]

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::allocator::{known, os_page};
use super::buffer::{PinnedBuffer, Plain};
use super::ends::Told;
use super::streams::Streams;
use super::{KernelPtr, PageMemory};
use crate::driver::{
    CODE_NOT_SUPPORTED, DeviceId, Driver, DriverError, Engine, HostCalls, RegisterKind, Stream,
};
use crate::error::{Error, PointerKind, Result};
use crate::sync::Mutex;

/// Memory that can be registered: it stays where it is for as long as it lives.
///
/// # Safety
///
/// The range is valid memory of this process until the value is dropped, and moving the value does not move it.
pub unsafe trait HostMemory {
    /// The first address and the bytes.
    fn range(&self) -> (u64, u64);

    /// Whether the pages are locked already.
    fn is_page_locked(&self) -> bool {
        false
    }

    /// Whether the pages come from `aclrtMallocHost`: kernels up to 5.10 register no others.
    fn is_of_malloc_host(&self) -> bool {
        self.is_page_locked()
    }
}

// SAFETY: the slice is there for ever.
unsafe impl HostMemory for &'static mut [u8] {
    fn range(&self) -> (u64, u64) {
        (self.as_ptr().expose_provenance() as u64, self.len() as u64)
    }
}

// SAFETY: the block stays where it is until the buffer is dropped.
unsafe impl<T: Plain> HostMemory for PinnedBuffer<T> {
    fn range(&self) -> (u64, u64) {
        (self.ptr().address(), self.bytes())
    }

    fn is_page_locked(&self) -> bool {
        true
    }

    fn is_of_malloc_host(&self) -> bool {
        // Not so in the virtual form.
        self.is_in_region()
    }
}

/// All registrations made through one driver.
pub struct HostRegistry {
    driver: Arc<dyn Driver>,
    ranges: Mutex<BTreeMap<u64, Range>>,
    /// Of guards' uses.
    streams: Streams,
    told: Told,
}

/// What is known of the pages of memory.
#[derive(Clone, Copy, Debug)]
struct Pages {
    locked: bool,
    of_malloc_host: bool,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    bytes: u64,
    device: DeviceId,
    /// A call of the driver for it is under way.
    busy: bool,
    /// A guard ends it, and nobody else.
    guarded: bool,
    /// Where kernels find it, if the driver said so.
    kernel: Option<u64>,
}

impl HostRegistry {
    /// A registry without registrations.
    #[must_use]
    pub fn new(driver: Arc<dyn Driver>) -> Arc<Self> {
        let told = Told::by(&*driver);
        Arc::new(Self { driver, ranges: Mutex::default(), streams: Streams::default(), told })
    }

    /// Registers memory; it belongs to the guard until it is unregistered.
    ///
    /// # Errors
    ///
    /// As [`register_raw`](Self::register_raw); the memory comes back with it.
    pub fn register<M: HostMemory>(
        self: &Arc<Self>,
        memory: M,
        device: DeviceId,
        kind: RegisterKind,
    ) -> Result<Registered<M>, (Error, M)> {
        let (start, bytes) = memory.range();
        let pages = Pages { locked: memory.is_page_locked(), of_malloc_host: memory.is_of_malloc_host() };
        // SAFETY: the guard owns the memory, which is valid until it is dropped, and unregisters it before that.
        let registered = unsafe { self.add((start, bytes), device, kind, pages, true) };
        match registered {
            Ok(()) => Ok(Registered {
                registry: Arc::clone(self),
                memory: ManuallyDrop::new(memory),
                uses: Mutex::default(),
                start,
            }),
            Err(error) => Err((error, memory)),
        }
    }

    /// Registers memory that somebody else owns, to be ended with [`unregister_raw`](Self::unregister_raw).
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for null, zero bytes, a start that is no multiple of the page, memory that this kernel
    /// cannot register, and a device the driver does not know; [`Error::State`] when a part of the range is registered; [`Error::Driver`] when the driver
    /// refuses, or has no such call.
    ///
    /// # Safety
    ///
    /// The range is valid memory of this process until it is unregistered. If `page_locked` is true, it comes from
    /// `aclrtMallocHost`.
    pub unsafe fn register_raw(
        &self,
        start: u64,
        bytes: u64,
        device: DeviceId,
        kind: RegisterKind,
        page_locked: bool,
    ) -> Result<()> {
        let pages = Pages { locked: page_locked, of_malloc_host: page_locked };
        // SAFETY: the caller's promise.
        unsafe { self.add((start, bytes), device, kind, pages, false) }
    }

    /// Ends a registration by its start: one of [`register_raw`](Self::register_raw), or one that its guard could not
    /// end when it was dropped. Work that uses the memory must be done.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`] when none of this registry begins there; [`Error::State`] when a guard has it;
    /// [`Error::Driver`] when the driver refuses, and the registration stays.
    pub fn unregister_raw(&self, start: u64) -> Result<()> {
        if self.ranges.lock().get(&start).is_some_and(|range| range.guarded) {
            return Err(Error::State {
                operation: "unregistering host memory",
                reason: "a guard has it, which knows the work that uses it; unregister or drop the guard",
            });
        }
        self.remove(start)
    }

    /// Tells that a stream is being destroyed, where the runtime does not tell by itself (before CANN 8.5): to be called
    /// before it is, while nobody records it. Guards on which it was recorded wait for its device instead, because its
    /// handle may become that of another stream. On a device that the driver does not know none was recorded, so
    /// nothing changes.
    pub fn stream_destroyed(&self, device: DeviceId, stream: Stream) {
        self.streams.forget(device, stream);
    }

    fn heed(&self) {
        self.told.heed(&self.streams, |_| ());
    }

    fn remove(&self, start: u64) -> Result<()> {
        let device = {
            let mut ranges = self.ranges.lock();
            match ranges.get_mut(&start) {
                Some(range) if !range.busy => {
                    range.busy = true;
                    range.device
                }
                _ => {
                    let inside = inside(&ranges, start).is_some_and(|(base, _)| base != start);
                    let kind = if inside { PointerKind::Interior } else { PointerKind::Foreign };
                    return Err(Error::Pointer { address: start, kind });
                }
            }
        };
        let answer = self.calls().and_then(|calls| calls.unregister(device, start).map_err(Error::from));
        let mut ranges = self.ranges.lock();
        match answer {
            Ok(()) => _ = ranges.remove(&start),
            Err(_) => {
                if let Some(range) = ranges.get_mut(&start) {
                    range.busy = false;
                }
            }
        }
        answer
    }

    /// Whether a registration of this registry contains the byte.
    #[must_use]
    pub fn is_registered(&self, address: u64) -> bool {
        inside(&self.ranges.lock(), address).is_some()
    }

    /// Whether an engine of the device can reach registered host memory.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a device the driver does not know; [`Error::Driver`] when the driver cannot say (before
    /// CANN 9.0).
    pub fn can_reach(&self, device: DeviceId, engine: Engine) -> Result<bool> {
        known(device, self.driver.device_count()?)?;
        self.calls()?.can_reach_host(device, engine).map_err(Error::from)
    }

    /// Where kernels find a registered byte.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`] when the byte is in no registration; [`Error::Driver`] when that is not mapped.
    pub fn kernel_ptr(&self, address: u64) -> Result<KernelPtr> {
        let found = inside(&self.ranges.lock(), address);
        let Some((base, range)) = found else {
            return Err(Error::Pointer { address, kind: PointerKind::Foreign });
        };
        let start = match range.kernel {
            Some(start) => start,
            None => self.calls()?.device_pointer(range.device, base)?,
        };
        Ok(KernelPtr::new(start + (address - base), false))
    }

    /// # Safety
    ///
    /// As [`register_raw`](Self::register_raw).
    unsafe fn add(
        &self,
        (start, bytes): (u64, u64),
        device: DeviceId,
        kind: RegisterKind,
        pages: Pages,
        guarded: bool,
    ) -> Result<()> {
        self.check(start, bytes, kind, pages)?;
        known(device, self.driver.device_count()?)?;
        let calls = self.calls()?;
        {
            let mut ranges = self.ranges.lock();
            if let Some(reason) = taken(&ranges, start, bytes) {
                return Err(Error::State { operation: "registering host memory", reason });
            }
            // Taken now, so that no other thread asks the driver for an overlapping range meanwhile.
            ranges.insert(start, Range { bytes, device, busy: true, guarded, kernel: None });
        }
        // SAFETY: the caller's promise.
        let answer = unsafe { calls.register(device, start, bytes, kind) };
        let mut ranges = self.ranges.lock();
        match answer {
            Ok(kernel) => {
                ranges.insert(start, Range { bytes, device, busy: false, guarded, kernel });
                Ok(())
            }
            Err(error) => {
                ranges.remove(&start);
                Err(error.into())
            }
        }
    }

    /// What can be known to be wrong before the driver is asked.
    fn check(&self, start: u64, bytes: u64, kind: RegisterKind, pages: Pages) -> Result<()> {
        let wrong = |name, value, expected| Err(Error::Argument { name, value, expected });
        if start == 0 {
            return wrong("start", "null".to_owned(), "memory of this process");
        }
        if !start.is_multiple_of(os_page()) {
            return wrong("start", format!("{start:#x}"), "a multiple of the system's page");
        }
        if bytes == 0 || start.checked_add(bytes).is_none() {
            return wrong("bytes", bytes.to_string(), "more than 0, within the address space");
        }
        if !kind.pinned && !kind.mapped {
            return wrong("kind", "neither".to_owned(), "pinned, mapped or both");
        }
        if pages.locked && kind.pinned {
            return wrong("kind", "pinned".to_owned(), "mapped alone: the memory is page-locked already");
        }
        if pages.of_malloc_host {
            return Ok(());
        }
        let version = self.calls()?.kernel_version();
        if version.is_some_and(|version| version.allows_registration()) {
            return Ok(());
        }
        let version = version.map_or("unknown".to_owned(), |version| version.to_string());
        wrong(
            "memory",
            format!("not from aclrtMallocHost, on kernel {version}"),
            "page-locked memory of a PinnedAllocator, in regions: kernels up to 5.10 cannot register other memory \
             safely",
        )
    }

    fn calls(&self) -> Result<&dyn HostCalls> {
        self.driver.host_calls().ok_or_else(|| {
            Error::Driver(DriverError {
                call: "aclrtHostRegisterV2",
                arguments: String::new(),
                code: CODE_NOT_SUPPORTED,
                name: crate::acl::codes::name(CODE_NOT_SUPPORTED),
                message: Some("this driver does not register host memory".to_owned()),
                missing_symbol: None,
            })
        })
    }
}

impl core::fmt::Debug for HostRegistry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("HostRegistry").field("ranges", &self.ranges.lock().len()).finish_non_exhaustive()
    }
}

/// Memory that is registered for a device. It is unregistered, and then dropped, with the guard; both after the
/// streams that were recorded have done their work.
pub struct Registered<M: HostMemory> {
    registry: Arc<HostRegistry>,
    memory: ManuallyDrop<M>,
    /// By the registry's numbers.
    uses: Mutex<Vec<Stream>>,
    start: u64,
}

impl<M: HostMemory> Registered<M> {
    /// Tells that work queued on a stream uses the memory: the registration ends only after a wait for that stream, or
    /// for its device where the stream has ended, as the runtime or [`stream_destroyed`](HostRegistry::stream_destroyed)
    /// told or the driver answers. On a device that the driver does not know no work
    /// runs, so nothing is waited for.
    pub fn record_use(&self, device: DeviceId, stream: Stream) {
        if self.registry.driver.device_count().is_ok_and(|devices| device >= devices) {
            return;
        }
        self.registry.heed();
        let number = self.registry.streams.number(device, stream);
        let mut uses = self.uses.lock();
        if !uses.contains(&number) {
            uses.push(number);
        }
    }

    /// Where kernels find the memory.
    ///
    /// # Errors
    ///
    /// As [`HostRegistry::kernel_ptr`].
    pub fn kernel_ptr(&self) -> Result<KernelPtr> {
        self.registry.kernel_ptr(self.start)
    }

    /// The first address and the bytes.
    #[must_use]
    pub fn range(&self) -> (u64, u64) {
        self.memory.range()
    }

    /// Waits for the recorded streams and ends the registration; the memory.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] when a stream cannot be waited for or the driver refuses; the memory is still registered and
    /// comes back with it.
    pub fn unregister(mut self) -> Result<M, (Error, Self)> {
        if let Err(error) = self.end() {
            return Err((error, self));
        }
        // SAFETY: the value is forgotten right after, so the memory is taken once.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        // SAFETY: the registry is not used through the guard any more, which is forgotten: it is dropped once.
        drop(unsafe { core::ptr::read(&self.registry) });
        drop(core::mem::take(self.uses.get_mut()));
        core::mem::forget(self);
        Ok(memory)
    }

    fn end(&mut self) -> Result<()> {
        self.registry.heed();
        let uses = self.uses.get_mut();
        while let Some(&number) = uses.last() {
            self.registry.streams.wait(&*self.registry.driver, number)?;
            uses.pop();
        }
        self.registry.remove(self.start)
    }
}

impl<M: HostMemory> Drop for Registered<M> {
    fn drop(&mut self) {
        if self.end().is_ok() {
            // SAFETY: the guard is being dropped: nobody looks at the memory after this.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
            return;
        }
        // The device may still reach the memory: it stays, for the rest of the process, and the registration is
        // anybody's.
        if let Some(range) = self.registry.ranges.lock().get_mut(&self.start) {
            range.guarded = false;
        }
    }
}

impl<M: HostMemory> core::fmt::Debug for Registered<M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Registered").field("start", &self.start).finish_non_exhaustive()
    }
}

/// The registration that contains an address.
fn inside(ranges: &BTreeMap<u64, Range>, address: u64) -> Option<(u64, Range)> {
    let (&base, &range) = ranges.range(..=address).next_back()?;
    (address - base < range.bytes).then_some((base, range))
}

/// Why a range cannot be registered, if a part of it is.
fn taken(ranges: &BTreeMap<u64, Range>, start: u64, bytes: u64) -> Option<&'static str> {
    if ranges.get(&start).is_some_and(|range| range.bytes == bytes) {
        return Some("the range is registered already");
    }
    let before = ranges.range(..start + bytes).next_back();
    let overlaps = before.is_some_and(|(&base, range)| base + range.bytes > start);
    overlaps.then_some("it overlaps a registration; unregister that first")
}

// SAFETY: the pages stay where they are until the value is dropped.
unsafe impl HostMemory for PageMemory {
    fn range(&self) -> (u64, u64) {
        (self.address(), self.len() as u64)
    }
}
