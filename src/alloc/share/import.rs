//! Blocks of other processes.

use std::sync::{Arc, OnceLock, Weak};

use super::super::device::Caller;
use super::super::{DeviceAllocator, DevicePtr};
use super::handle::SharedHandle;
use super::home::Home;
use super::leaving::{Leaving, Users};
use super::process::{Life, Process};
use crate::driver::{DeviceId, DriverResult, PhysicalHandle, ShareForm, Stream};
use crate::error::{Error, Result};
use crate::stats::DriverCalls;
use crate::sync::Mutex;

/// A block of another process, mapped here. Dropping it releases it: once for all imports of one handle, and only
/// when the streams that used it have passed. That is seen with the next import, the drop of another one, whenever the cache is
/// emptied, and when a request lacks memory: until then the memory stays in use, also when its exporter is done with it.
pub struct ImportedBlock {
    allocator: Arc<DeviceAllocator>,
    /// Shared by all imports of the handle; taken out by the drop.
    mapping: Option<Arc<Mapping>>,
    ptr: DevicePtr,
    bytes: u64,
    exporter: Process,
}

/// The chunks of a handle, mapped one behind the other in a reservation of their own.
pub(super) struct Mapping {
    pub(super) device: DeviceId,
    /// How often the device had been reset.
    pub(super) generation: u64,
    /// Whose objects its chunks are.
    pub(super) home: Arc<Home>,
    /// Where its reservation begins.
    pub(super) base: u64,
    /// Bytes of it before the first chunk.
    pub(super) lead: u64,
    /// Address and bytes of each chunk.
    pub(super) chunks: Vec<(u64, u64)>,
    pub(super) handles: Vec<PhysicalHandle>,
    /// The peers that were granted access last.
    granted: Mutex<Arc<[DeviceId]>>,
    /// Streams whose work may use it.
    pub(super) users: Mutex<Users>,
}

impl ImportedBlock {
    /// Where it begins, here.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The device it is mapped for.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.mapping.as_ref().map_or(0, |mapping| mapping.device)
    }

    /// Tells that work on `stream` uses the block too: it is not unmapped before that stream has passed the drop.
    pub fn record_stream(&self, stream: Stream) {
        if let Some(mapping) = &self.mapping {
            mapping.record(stream);
        }
    }

    /// What is known of the process that exported the block. Once it is gone, ACL promises nothing about
    /// the memory; releasing it is safe all the same.
    #[must_use]
    pub fn exporter(&self) -> Life {
        self.exporter.life()
    }
}

impl Drop for ImportedBlock {
    fn drop(&mut self) {
        if let Some(mapping) = self.mapping.take()
            && self.allocator.let_go_import(mapping)
        {
            self.allocator.collect_imports(false);
        }
    }
}

impl core::fmt::Debug for ImportedBlock {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ImportedBlock")
            .field("device", &self.device())
            .field("ptr", &self.ptr)
            .field("bytes", &self.bytes)
            .field("exporter", &self.exporter.id)
            .finish_non_exhaustive()
    }
}

impl Mapping {
    fn record(&self, stream: Stream) {
        let mut users = self.users.lock();
        if !users.streams.contains(&stream) {
            users.streams.push(stream);
        }
    }

    pub(super) fn span(&self) -> u64 {
        self.chunks.iter().map(|&(_, bytes)| bytes).sum()
    }
}

impl DeviceAllocator {
    /// Maps a block of another process for use on `stream` of `device`. Address space is reserved for exactly its
    /// chunks; where pages of 1 GiB are among them, also for what brings these to multiples of their size. Importing a handle
    /// again gives the same address and calls no driver.
    ///
    /// Several devices of a process import a block each for itself. To the driver all imports of a chunk are one object, which is the
    /// first device's; the others get an address of their own and access by `aclrtMemSetAccess`. A
    /// [reset](Self::device_was_reset) of that first device takes the memory from all of them: they import it anew.
    /// What another allocator of the process, or the program itself, has imported is not seen.
    ///
    /// The exporter decides who may import, and must not end the export before. In which order its work and the
    /// importer's touch the block is for the two processes to arrange.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for an unknown device; [`Error::State`] for a block that this process has exported: it has
    /// the block already, and ACL does not allow it. [`Error::Driver`] when the driver refuses, for instance because
    /// the exporter is gone or does not allow it, or without address space, also after all caches were emptied. Nothing has
    /// changed then.
    pub fn import(
        self: &Arc<Self>,
        device: DeviceId,
        handle: &SharedHandle,
        stream: Stream,
    ) -> Result<ImportedBlock> {
        let state = self.device(device)?;
        let parts = handle.parts();
        if parts.exporter == Process::this() && parts.exporter.started != 0 {
            return Err(Error::State {
                operation: "importing a block",
                reason: "this process has exported it; use the block itself",
            });
        }
        self.collect_imports(false);
        let key = (device, handle.to_bytes());
        let known = self.imports.lock().live.get(&key).and_then(Weak::upgrade);
        let generation = state.core.lock().generation;
        let mapping = match known {
            Some(mapping) if mapping.generation == generation && self.stands(&mapping.home) => mapping,
            stale => {
                stale.map(|mapping| self.let_go_import(mapping));
                let peers = state.core.lock().grants().peers;
                let home = self.home_of(device, generation, parts);
                self.share_mapping(key, Arc::new(self.map_import(device, generation, home, handle, peers)?))
            }
        };
        // Others may have been set before the mapping could be seen by whoever set them; and whoever made it may not have granted
        // these access yet.
        let peers = state.core.lock().grants().peers;
        if let Err(error) = self.grant_import(&mapping, &peers) {
            let gone = state.was_reset(generation) || !self.stands(&mapping.home);
            self.let_go_import(mapping);
            return Err(if gone { was_reset() } else { error.into() });
        }
        mapping.record(stream);
        self.be_asked_for_imports();
        Ok(ImportedBlock {
            ptr: DevicePtr(mapping.base + mapping.lead + parts.offset),
            bytes: parts.bytes,
            exporter: parts.exporter,
            allocator: self.clone(),
            mapping: Some(mapping),
        })
    }

    /// From the first import on, requests that lack memory have what was imported and is not in use any more released:
    /// of memory that its exporter has freed since, that is the last use.
    fn be_asked_for_imports(self: &Arc<Self>) {
        if core::mem::replace(&mut self.imports.lock().asked, true) {
            return;
        }
        let this = Arc::downgrade(self);
        self.hook
            .callbacks
            .add(Arc::new(move |_, _| this.upgrade().is_some_and(|this| this.collect_imports(false))));
    }

    /// Grants peers access to all chunks of an import, unless they were the last that got it: nobody takes it away.
    fn grant_import(&self, mapping: &Mapping, peers: &Arc<[DeviceId]>) -> DriverResult<()> {
        if Arc::ptr_eq(&mapping.granted.lock(), peers) {
            return Ok(());
        }
        let mut calls = DriverCalls::default();
        let granted = mapping.chunks.iter().try_for_each(|&(address, bytes)| {
            peers.iter().try_for_each(|&peer| {
                calls.set_access += 1;
                self.driver.set_access(mapping.home.device, address, bytes, peer)
            })
        });
        if let Some(state) = self.devices.get(mapping.device as usize).and_then(OnceLock::get) {
            state.core.lock().tally.count_calls(&calls);
        }
        granted?;
        *mapping.granted.lock() = peers.clone();
        Ok(())
    }

    /// Grants peers access to all that is imported for a device, which was reset so often.
    pub(in super::super) fn grant_imports(
        &self,
        device: DeviceId,
        generation: u64,
        peers: &Arc<[DeviceId]>,
    ) -> DriverResult<()> {
        let live: Vec<Arc<Mapping>> = self.imports.lock().live.values().filter_map(Weak::upgrade).collect();
        let is_meant = |mapping: &&Arc<Mapping>| mapping.device == device && mapping.generation == generation;
        let granted = live.iter().filter(is_meant).try_for_each(|mapping| {
            // What a reset took meanwhile needs no grants.
            let there = || self.stands(&mapping.home) && self.has_not_been_reset(device, generation);
            self.grant_import(mapping, peers).or_else(|error| if there() { Err(error) } else { Ok(()) })
        });
        live.into_iter().for_each(|mapping| _ = self.let_go_import(mapping));
        granted
    }

    /// Has all imports of a handle share a mapping: this one, unless another thread was faster.
    fn share_mapping(&self, key: (DeviceId, Vec<u8>), mapping: Arc<Mapping>) -> Arc<Mapping> {
        let mut imports = self.imports.lock();
        imports.live.retain(|_, mapping| mapping.strong_count() > 0);
        let known = imports.live.get(&key).and_then(Weak::upgrade);
        let Some(known) = known else {
            imports.live.insert(key, Arc::downgrade(&mapping));
            return mapping;
        };
        if (known.generation, known.home.number) >= (mapping.generation, mapping.home.number) {
            drop(imports);
            self.let_go_import(mapping);
            return known;
        }
        imports.live.insert(key, Arc::downgrade(&mapping));
        drop(imports);
        self.let_go_import(known);
        mapping
    }

    /// Bytes of other processes' memory that are mapped for a device. They count in no other statistic but
    /// the reserved address space.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for an unknown device.
    pub fn imported_bytes(&self, device: DeviceId) -> Result<u64> {
        self.place(device)?;
        let imports = self.imports.lock();
        let live: Vec<Arc<Mapping>> = imports.live.values().filter_map(Weak::upgrade).collect();
        let leaving = imports.leaving.iter().filter(|leaving| leaving.device == device);
        let leaving: u64 = leaving.map(|leaving| leaving.span).sum();
        drop(imports);
        let of_device = live.iter().filter(|mapping| mapping.device == device);
        let sum = of_device.map(|mapping| mapping.span()).sum::<u64>() + leaving;
        live.into_iter().for_each(|mapping| _ = self.let_go_import(mapping));
        Ok(sum)
    }

    fn map_import(
        &self,
        device: DeviceId,
        generation: u64,
        home: Arc<Home>,
        handle: &SharedHandle,
        peers: Arc<[DeviceId]>,
    ) -> Result<Mapping> {
        let state = self.device(device)?;
        let parts = handle.parts();
        let mut calls = DriverCalls::default();
        let sizes = (parts.lead, handle.mapped_bytes());
        let mut leaving = Leaving::of_nothing(device, generation, home, sizes);
        let answer = self
            .link_to(device, parts.device, handle.form())
            .and_then(|()| self.link_home(device, &leaving.home, handle))
            .and_then(|()| self.fill_import(&self.caller(state), &mut leaving, handle, &peers, &mut calls));
        let stands = self.stands(&leaving.home);
        let mut core = state.core.lock();
        core.tally.count_calls(&calls);
        core.tally.address_space += if leaving.base == 0 { 0 } else { leaving.reserved() };
        // A driver that refuses what went with the old device only says so in its way.
        let stands = stands && core.generation == generation;
        let answer = if stands { answer.map_err(Error::from) } else { Err(was_reset()) };
        drop(core);
        if let Err(error) = answer {
            if !self.leave(&mut leaving, false, 0) {
                self.imports.lock().put_leaving(leaving);
            }
            return Err(error);
        }
        let Leaving { home, base, lead, handles, .. } = leaving;
        let chunks = handle.places(base + lead).collect();
        let (granted, users) = (Mutex::new(peers), Mutex::default());
        Ok(Mapping { device, generation, home, base, lead, chunks, handles, granted, users })
    }

    /// Opens the link from a device to the exporter's, if it is another one of this process.
    fn link_to(&self, device: DeviceId, exporter: u32, form: ShareForm) -> DriverResult<()> {
        // Numbers of another server's devices mean nothing here.
        if form == ShareForm::Fabric || self.driver.driver_device(device)? == exporter {
            return Ok(());
        }
        let other = (0..self.device_count()).find(|&id| self.driver.driver_device(id) == Ok(exporter));
        other.map_or(Ok(()), |other| self.driver.enable_peer_access(device, other))
    }

    /// Imports, reserves, maps; what came about is noted as it does. Ends early when the device is reset: what is asked
    /// of the new one could not be told from what went with the old one.
    fn fill_import(
        &self,
        caller: &Caller<'_>,
        leaving: &mut Leaving,
        handle: &SharedHandle,
        peers: &[DeviceId],
        calls: &mut DriverCalls,
    ) -> DriverResult<()> {
        let (driver, home) = (caller.driver, leaving.home.clone());
        let generation = leaving.generation;
        let over = || caller.device.was_reset(generation) || !self.stands(&home);
        // A mapping gives access to the device whose objects are mapped.
        let own = (home.device != leaving.device).then_some(&leaving.device);
        for name in handle.names() {
            if over() {
                return Ok(());
            }
            leaving.handles.push(driver.import_chunk(home.device, name)?);
        }
        if over() {
            return Ok(());
        }
        leaving.base = reserve(caller, home.device, leaving.reserved(), calls)?;
        for ((address, bytes), &chunk) in
            handle.places(leaving.base + leaving.lead).zip(leaving.handles.iter())
        {
            if over() {
                return Ok(());
            }
            calls.map += 1;
            driver.map(home.device, address, bytes, chunk)?;
            leaving.mapped.push(address);
            for &other in own.into_iter().chain(peers) {
                calls.set_access += 1;
                driver.set_access(home.device, address, bytes, other)?;
            }
        }
        Ok(())
    }
}

/// Reserves address space for an import, which has no other way: where there is none, what nobody needs goes back first, and
/// then all that is idle.
fn reserve(caller: &Caller<'_>, device: DeviceId, bytes: u64, calls: &mut DriverCalls) -> DriverResult<u64> {
    let mut ask = || {
        calls.reserve += 1;
        caller.driver.reserve(device, bytes)
    };
    let mut answer = ask();
    for make_room in [Caller::free_address_space, Caller::empty_all] {
        let lacks = answer.as_ref().is_err_and(|error| error.is_out_of_memory());
        if lacks && make_room(caller) > 0 {
            answer = ask();
        }
    }
    answer
}

fn was_reset() -> Error {
    let reason = "the device was reset meanwhile; ask again";
    Error::State { operation: "importing a block", reason }
}
