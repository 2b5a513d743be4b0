//! Imports that are dropped: they go when the streams that used them have passed.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::super::DeviceAllocator;
use super::home::{Home, Homes};
use super::import::Mapping;
use crate::core::perform::whole_reservation;
use crate::driver::{DeviceId, Driver, Event, PhysicalHandle, Stream};
use crate::stats::DriverCalls;

/// Streams whose work may use an import.
#[derive(Default)]
pub(super) struct Users {
    /// Those that are there.
    pub(super) streams: Vec<Stream>,
    /// Whether there were others that are gone. Their handles may mean other streams by now, so that only the device
    /// can be waited for.
    gone: bool,
}

impl Users {
    /// A stream is gone, or all.
    fn forget(&mut self, stream: Option<Stream>) {
        let before = self.streams.len();
        self.streams.retain(|&known| stream.is_some_and(|stream| known != stream));
        self.gone |= self.streams.len() < before;
    }
}

/// What an allocator has imported.
#[derive(Default)]
pub(in super::super) struct Imports {
    /// By device and message.
    pub(super) live: HashMap<(DeviceId, Vec<u8>), Weak<Mapping>>,
    pub(super) homes: Homes,
    /// Mappings that nobody has any more and that queued work may still use.
    pub(super) leaving: Vec<Leaving>,
    /// How many mappings have ever left.
    left: u64,
    /// Calls that look at what was among those that leave, and may have one in their hands.
    looking: usize,
    /// Streams that are gone since the first of these calls began: device (or all) and stream (or all).
    gone: Vec<(Option<DeviceId>, Option<Stream>)>,
    /// Whether requests that lack memory ask for it.
    pub(super) asked: bool,
}

impl Imports {
    /// Adds a mapping that nobody has any more.
    pub(super) fn put_leaving(&mut self, mut leaving: Leaving) {
        leaving.number = self.left;
        self.left += 1;
        self.leaving.push(leaving);
    }

    /// Takes the first in hand of those that leave and have such a number.
    fn take_leaving(&mut self, numbers: core::ops::Range<u64>) -> Option<Leaving> {
        let meant = self.leaving.iter().enumerate().filter(|(_, leaving)| numbers.contains(&leaving.number));
        let (at, _) = meant.min_by_key(|(_, leaving)| leaving.number)?;
        Some(self.leaving.swap_remove(at))
    }

    /// Whether one of the streams of a device is gone, and was not among the first `known` that were noted.
    fn have_ended(&self, known: usize, device: DeviceId, streams: &[Stream]) -> bool {
        let is_meant = |gone: &Stream| streams.contains(gone);
        self.gone[known..].iter().any(|(of, gone)| {
            !streams.is_empty() && of.is_none_or(|of| of == device) && gone.as_ref().is_none_or(is_meant)
        })
    }
}

/// A mapping on its way out: what is still there of it.
pub(super) struct Leaving {
    /// Says in which order they left.
    number: u64,
    pub(super) device: DeviceId,
    pub(super) generation: u64,
    pub(super) home: Arc<Home>,
    pub(super) base: u64,
    /// Bytes that are mapped of the reservation.
    pub(super) span: u64,
    /// Bytes of it before these.
    pub(super) lead: u64,
    /// Addresses of chunks that are mapped.
    pub(super) mapped: Vec<u64>,
    pub(super) handles: Vec<PhysicalHandle>,
    /// Streams that have no event yet.
    users: Users,
    /// Events that are not known to be complete.
    events: Vec<Event>,
}

impl DeviceAllocator {
    /// A stream (or all) of a device (or of all) is gone: what it used is free only when the device has been waited for.
    pub(in super::super) fn forget_importers(&self, device: Option<DeviceId>, stream: Option<Stream>) {
        let is_meant = |of: DeviceId| device.is_none_or(|device| device == of);
        let mut imports = self.imports.lock();
        for leaving in imports.leaving.iter_mut().filter(|leaving| is_meant(leaving.device)) {
            leaving.users.forget(stream);
        }
        if imports.looking > 0 {
            imports.gone.push((device, stream));
        }
        let live: Vec<Arc<Mapping>> = imports.live.values().filter_map(Weak::upgrade).collect();
        for mapping in live.iter().filter(|mapping| is_meant(mapping.device)) {
            mapping.users.lock().forget(stream);
        }
        drop(imports);
        live.into_iter().for_each(|mapping| _ = self.let_go_import(mapping));
    }

    /// Gives up one hold on a mapping; the last one puts it among those that leave, and answers true. Whoever looked
    /// at one for a moment may be the last, so everybody ends here.
    pub(super) fn let_go_import(&self, mapping: Arc<Mapping>) -> bool {
        // Whoever tells of streams that are gone finds it either still shared or among those.
        let mut imports = self.imports.lock();
        let Some(mapping) = Arc::into_inner(mapping) else { return false };
        let sizes = (mapping.lead, mapping.span());
        let leaving = Leaving {
            base: mapping.base,
            mapped: mapping.chunks.iter().map(|&(address, _)| address).collect(),
            users: mapping.users.into_inner(),
            handles: mapping.handles,
            ..Leaving::of_nothing(mapping.device, mapping.generation, mapping.home, sizes)
        };
        imports.put_leaving(leaving);
        true
    }

    /// Releases what was imported, is dropped, and is no more in use; waits for the streams if `wait`. Whether there was
    /// any. One at a time is taken in hand, so that the others need not wait where the driver is slow with it.
    pub(in super::super) fn collect_imports(&self, wait: bool) -> bool {
        let mut imports = self.imports.lock();
        if imports.leaving.is_empty() {
            return false;
        }
        imports.looking += 1;
        // What comes after this call began is for others.
        let (mut next, end) = (0, imports.left);
        let mut released = false;
        while let Some(mut leaving) = imports.take_leaving(next..end) {
            next = leaving.number + 1;
            let known = imports.gone.len();
            drop(imports);
            let done = self.leave(&mut leaving, wait, known);
            imports = self.imports.lock();
            released |= done;
            if !done {
                for &(device, stream) in &imports.gone[known..] {
                    if device.is_none_or(|device| device == leaving.device) {
                        leaving.users.forget(stream);
                    }
                }
                imports.leaving.push(leaving);
            }
        }
        imports.looking -= 1;
        if imports.looking == 0 {
            imports.gone.clear();
        }
        released
    }

    /// Takes a mapping as far apart as the driver and queued work allow; true when nothing is left of it. While a graph
    /// is captured on the device what was used stays: work that has not run may hold its address. `known` of the
    /// streams that are noted as gone were so before. A reset of its device has ended all work that used it; one of
    /// the device whose objects it maps has taken these.
    pub(super) fn leave(&self, leaving: &mut Leaving, wait: bool, known: usize) -> bool {
        let Ok(state) = self.device(leaving.device) else { return true };
        let mut calls = DriverCalls::default();
        let driver = &*self.driver;
        let core = state.core.lock();
        let (valid, captures) = (core.generation == leaving.generation, core.capturing > 0);
        drop(core);
        let stands = self.stands(&leaving.home);
        if valid && captures && leaving.may_be_in_use() {
            return false;
        }
        let device = leaving.device;
        let ended = |streams: &[Stream]| self.imports.lock().have_ended(known, device, streams);
        let unused = !valid || leaving.has_passed(driver, wait, ended, &mut calls);
        let done = unused && (!stands || leaving.take_apart(driver, &mut calls));
        let mut core = state.core.lock();
        core.tally.count_calls(&calls);
        if done && leaving.base != 0 {
            core.tally.address_space -= leaving.reserved();
        }
        done
    }
}

impl Leaving {
    /// Of a mapping that has nothing yet: the bytes to be left out of its reservation first, and those to be mapped
    /// then.
    pub(super) fn of_nothing(
        device: DeviceId,
        generation: u64,
        home: Arc<Home>,
        (lead, span): (u64, u64),
    ) -> Self {
        let (mapped, handles, events) = (Vec::new(), Vec::new(), Vec::new());
        let users = Users::default();
        Self { number: 0, device, generation, home, base: 0, span, lead, mapped, handles, users, events }
    }

    /// Bytes of address space of its reservation.
    pub(super) fn reserved(&self) -> u64 {
        whole_reservation(self.lead + self.span)
    }

    /// Whether it was used and no wait has shown that this is over.
    fn may_be_in_use(&self) -> bool {
        self.users.gone || !self.users.streams.is_empty() || !self.events.is_empty()
    }

    /// Whether all streams have passed; an event each tells. A captured stream gets none before its capture ends.
    /// `ended` says whether any of some streams are gone since this began.
    fn has_passed(
        &mut self,
        driver: &dyn Driver,
        wait: bool,
        ended: impl Fn(&[Stream]) -> bool,
        calls: &mut DriverCalls,
    ) -> bool {
        let device = self.device;
        let mut asked = Vec::new();
        let over = |calls: &mut DriverCalls| {
            calls.wait_device += u64::from(wait);
            wait && driver.synchronize_device(device).is_ok()
        };
        // The device that is waited for need not be that of the stream.
        let alone = |stream: Stream, calls: &mut DriverCalls| {
            calls.wait_stream += u64::from(wait);
            wait && driver.synchronize_stream(device, stream).is_ok()
        };
        self.users.gone = self.users.gone && !over(calls);
        self.users.streams.retain(|&stream| {
            match driver.is_capturing(device, stream) {
                Ok(true) => return true,
                Ok(false) => {}
                Err(error) if error.is_of_another_context() => return !alone(stream, calls),
                // Also what is asked about a stream that is gone: it gets no event, only the device can be waited for.
                Err(_) => return !over(calls),
            }
            let Ok(event) = driver.create_event(device) else { return true };
            calls.record_event += 1;
            let Err(error) = driver.record_event(device, event, stream) else {
                self.events.push(event);
                asked.push(stream);
                return false;
            };
            let _ = driver.destroy_event(device, event);
            // The stream may be gone; then its work is over.
            if error.is_of_another_context() { !alone(stream, calls) } else { !over(calls) }
        });
        self.events.retain(|&event| {
            let passed = if wait {
                calls.wait_event += 1;
                driver.synchronize_event(device, event).is_ok()
            } else {
                calls.query_event += 1;
                driver.query_event(device, event) == Ok(true)
            };
            if passed {
                // What the driver does not take back stays with it.
                let _ = driver.destroy_event(device, event);
            }
            !passed
        });
        // The event may have been recorded on a new stream with the same handle.
        self.users.gone |= ended(&asked);
        !self.may_be_in_use()
    }

    /// Unmaps, drops the references, releases the reservation. What the driver refuses is tried again later.
    fn take_apart(&mut self, driver: &dyn Driver, calls: &mut DriverCalls) -> bool {
        let device = self.home.device;
        self.mapped.retain(|&address| {
            calls.unmap += 1;
            driver.unmap(device, address).is_err()
        });
        self.handles.retain(|&handle| {
            calls.free_physical += 1;
            driver.free_physical(device, handle).is_err()
        });
        if !self.mapped.is_empty() || !self.handles.is_empty() {
            return false;
        }
        if self.base == 0 {
            return true;
        }
        calls.release += 1;
        driver.release(device, self.base).is_ok()
    }
}
