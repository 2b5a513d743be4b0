//! Sharing blocks with other processes.
//!
//! ```text
//! exporter   |  block  |     chunks  h7 h2 h31      export  -->  SharedHandle (bytes, by any channel)
//!                 ^ held while the Export lives                        |
//! importer   |  ImportedBlock  |   the same chunks at an address of its own, of exactly their size
//! ```
//!
//! | who | counts | ends with |
//! |---|---|---|
//! | exporter | exports of a block: it stays live while there is one, also when its owner frees it | dropping the last [`Export`] |
//! | importer | imports of one handle: they share one mapping | dropping the last [`ImportedBlock`], when the streams that used it have passed |
//!
//! ACL tells an exporter nothing about importers. So an [`Export`] must live until all importers are done, which they
//! have to tell in their own way; and a handle must not be imported after that, since its chunks may hold other
//! data then. ACL asks exporters to outlive importers; [`ImportedBlock::exporter`] says what is known.

use std::sync::Arc;

use super::device::{Caller, Device};
use super::requests::Guard;
use super::{DeviceAllocator, DevicePtr};
use crate::core::Core;
use crate::core::block::BlockId;
use crate::core::export::Named;
use crate::driver::{DeviceId, DriverError, PhysicalHandle, ShareForm, ShareName};
use crate::error::{Error, Result};
use crate::words::counted;

mod handle;
mod home;
mod import;
mod leaving;
mod process;

pub use handle::SharedHandle;
pub use import::ImportedBlock;
pub(super) use leaving::Imports;
pub use process::Life;

use process::Process;

/// More processes than this the driver does not take in one call.
const MOST_PROCESSES: usize = 65_535;

/// Which processes can import an exported block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Importers {
    /// Any process on this server that knows the handle.
    #[default]
    Any,
    /// Those with these numbers, as [`DeviceAllocator::process_id`] gives them in each; more can be allowed
    /// later.
    Processes(Vec<i32>),
}

/// How a block is exported.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ExportOptions {
    /// How chunks are named. Where the runtime library lacks the calls of the second version, [`ShareForm::V1`] serves in
    /// place of [`ShareForm::V2`]; [`SharedHandle::form`] says which it became.
    pub form: ShareForm,
    /// Who can import.
    pub importers: Importers,
}

impl ExportOptions {
    /// Only for these processes.
    #[must_use]
    pub fn for_processes(processes: &[i32]) -> Self {
        Self { importers: Importers::Processes(processes.to_vec()), ..Self::default() }
    }

    /// With names of that form.
    #[must_use]
    pub fn named(self, form: ShareForm) -> Self {
        Self { form, ..self }
    }
}

/// An exported block. It stays live while this exists, even if it is freed meanwhile.
///
/// Importers get whole chunks: the bytes of neighbouring blocks in the first and the last chunk too. Where
/// `large_segment_size_mb` or `page_size` made these large, that can be much.
pub struct Export {
    allocator: Arc<DeviceAllocator>,
    device: DeviceId,
    block: BlockId,
    /// How often the device had been reset.
    generation: u64,
    handle: SharedHandle,
}

impl Export {
    /// What another process needs to import the block; [`SharedHandle::to_bytes`] makes it a message.
    #[must_use]
    pub fn handle(&self) -> &SharedHandle {
        &self.handle
    }

    /// Lets more processes import a block that was exported for [`Importers::Processes`]; none are nothing to do.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] when the driver refuses, [`Error::State`] once the device was reset, [`Error::Argument`] for
    /// more than 65535 processes.
    pub fn allow(&self, processes: &[i32]) -> Result<()> {
        check(processes)?;
        if processes.is_empty() {
            return Ok(());
        }
        let state = self.allocator.device(self.device)?;
        if state.was_reset(self.generation) {
            // Its names may stand for other chunks by now.
            let reason = "its device was reset, and the export is gone with it";
            return Err(Error::State { operation: "allowing an import", reason });
        }
        for name in self.handle.names() {
            self.allocator.driver.allow_import(self.device, name, processes)?;
        }
        Ok(())
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        // The device exists, or the export would not.
        if let Ok(state) = self.allocator.device(self.device) {
            self.allocator.caller(state).end_export(self.block, self.generation);
            self.allocator.watch(state, 2);
        }
    }
}

impl core::fmt::Debug for Export {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Export")
            .field("device", &self.device)
            .field("handle", &self.handle)
            .finish_non_exhaustive()
    }
}

impl DeviceAllocator {
    /// This process as others name it in [`Importers::Processes`].
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for an unknown device, [`Error::Driver`] when the driver cannot say.
    pub fn process_id(&self, device: DeviceId) -> Result<i32> {
        self.device(device)?;
        Ok(self.driver.process_id(device)?)
    }

    /// Exports the live block that begins at `ptr`: its chunks get names by which other processes can import them.
    /// The same block can be exported several times. While it is, it cannot be shrunk, and its pool cannot sleep.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`] when the pointer is not the start of a live block; [`Error::State`] for fixed blocks, which
    /// have no chunks, for pools that sleep, and when a chunk has been exported before for other importers (for any, or
    /// for named ones), if only by an export whose list of processes the driver refused: a chunk has one name for as long as it exists, so
    /// allocate the block anew after [`empty_cache`](Self::empty_cache). [`Error::Argument`] for more than 65535 processes.
    /// [`Error::Driver`] when the driver refuses, as some do for a block that was exported in another form before. Nothing is held then.
    pub fn export(self: &Arc<Self>, ptr: DevicePtr, options: &ExportOptions) -> Result<Export> {
        if let Importers::Processes(processes) = &options.importers {
            check(processes)?;
        }
        let state = self.owner(ptr.0)?;
        let device = state.limits.device;
        let caller = self.caller(state);
        let held = caller.begin_export(ptr)?;
        // From here on a drop ends the hold.
        let mut export = Export {
            allocator: self.clone(),
            device,
            block: held.block,
            generation: held.generation,
            handle: SharedHandle::empty(),
        };
        let names = match caller.names(&held, options) {
            // What the second version can do on one server, the first can.
            Err(Error::Driver(error)) if options.form == ShareForm::V2 && error.is_unsupported() => {
                caller.names(&held, &options.clone().named(ShareForm::V1))?
            }
            names => names?,
        };
        let granule = state.limits.granule;
        let spans: Vec<u32> = held.chunks.iter().map(|&(_, _, span)| span).collect();
        let wide = state.limits.wide.filter(|_| spans.iter().any(|&span| span > 1));
        let first = held.chunks.first().map_or(ptr.0, |&(address, ..)| address);
        export.handle = SharedHandle::new(handle::Parts {
            pages: wide.map_or(state.limits.pages, |wide| wide.pages),
            device: self.driver.driver_device(device)?,
            chunk: granule,
            // Large pages have to lie at multiples of their size in the importer, too.
            lead: wide.map_or(0, |wide| first % wide.align.max(granule)),
            spans,
            offset: ptr.0 - first,
            bytes: held.bytes,
            exporter: Process::this(),
            names,
        });
        self.watch(state, 2);
        Ok(export)
    }
}

/// A block that is held for an export.
struct Held {
    block: BlockId,
    generation: u64,
    /// Bytes asked for.
    bytes: u64,
    /// Address, handle and granules of each chunk.
    chunks: Vec<(u64, PhysicalHandle, u32)>,
}

impl Caller<'_> {
    fn begin_export(&self, ptr: DevicePtr) -> Result<Held> {
        const OPERATION: &str = "exporting a block";
        let mut core = self.device.core.lock();
        let block = self.device.live(&core, self.map, ptr.0)?;
        let refuse = |reason| Err(Error::State { operation: OPERATION, reason });
        if core.class_of(block).is_classic() {
            return refuse(core.is_fixed_because(block));
        }
        if core.is_asleep(core.class_of(block).pool()) {
            return refuse("its pool sleeps; wake it first");
        }
        self.device.withhold(&mut core, self.map, block, ptr.0)?;
        core.hold(block);
        let (bytes, chunks) = (core.blocks[block].requested, core.chunks_behind(block));
        Ok(Held { block, generation: core.generation, bytes, chunks })
    }

    /// The names of the chunks, made where there are none. What the driver may refuse comes first, so that as few chunks as
    /// possible get a name for nothing.
    fn names(&self, held: &Held, options: &ExportOptions) -> Result<Vec<ShareName>> {
        let for_all = matches!(options.importers, Importers::Any);
        let core = self.same_device(held)?;
        let mut order = Vec::with_capacity(held.chunks.len());
        for (at, &(_, handle, _)) in held.chunks.iter().enumerate() {
            if core.is_named_for_others(handle, for_all) {
                return Err(for_others());
            }
            let is_new = core.name_of(handle, options.form).is_none();
            order.push((is_new, is_new && core.other_form_of(handle, options.form).is_none(), at));
        }
        drop(core);
        order.sort_unstable();
        let mut names = vec![None; order.len()];
        for (.., at) in order {
            names[at] = Some(self.name(held, held.chunks[at].1, options)?);
        }
        Ok(names.into_iter().flatten().collect())
    }

    /// The name of a chunk, made if it has none; those who may import it are told to the driver.
    fn name(&self, held: &Held, handle: PhysicalHandle, options: &ExportOptions) -> Result<ShareName> {
        let device = self.device.limits.device;
        let for_all = matches!(options.importers, Importers::Any);
        let named = match self.known_or_naming(held, handle, options.form, for_all)? {
            Ok(named) => named,
            Err(_naming) => {
                let answer = self.driver.export_chunk(device, handle, options.form, for_all);
                let mut core = self.same_device(held)?;
                let name = answer.map_err(|error| named_once(&core, handle, options.form, error))?;
                let named = Named { name, for_all };
                core.set_name(handle, named);
                named
            }
        };
        if let Importers::Processes(processes) = &options.importers
            && !processes.is_empty()
        {
            self.driver.allow_import(device, &named.name, processes)?;
        }
        Ok(named.name)
    }

    /// The name of a chunk, or the right to give it one: that is one thread's at a time, because some drivers name a chunk
    /// only once, and the first name decides who may import.
    fn known_or_naming(
        &self,
        held: &Held,
        handle: PhysicalHandle,
        form: ShareForm,
        for_all: bool,
    ) -> Result<core::result::Result<Named, Naming<'_>>> {
        loop {
            let mut core = self.same_device(held)?;
            if core.is_named_for_others(handle, for_all) {
                return Err(for_others());
            }
            if let Some(named) = core.name_of(handle, form) {
                return Ok(Ok(named));
            }
            if core.begin_naming(handle) {
                return Ok(Err(Naming { device: self.device, handle }));
            }
            drop(core);
            crate::sync::thread::yield_now();
        }
    }

    /// The core, if the device was not reset since the block was held: other chunks may have the same handles now.
    fn same_device(&self, held: &Held) -> Result<Guard<'_>> {
        let core = self.device.core.lock();
        if core.generation != held.generation {
            let reason = "the device was reset meanwhile";
            return Err(Error::State { operation: "exporting a block", reason });
        }
        Ok(core)
    }

    /// Ends the hold of an export; the block is freed if its owner has freed it.
    fn end_export(&self, block: BlockId, generation: u64) {
        let mut core = self.device.core.lock();
        if core.generation == generation && core.unhold(block) {
            self.free_unpublished(core, block);
        }
    }
}

/// A chunk is being named by this thread.
struct Naming<'a> {
    device: &'a Device,
    handle: PhysicalHandle,
}

impl Drop for Naming<'_> {
    fn drop(&mut self) {
        self.device.core.lock().end_naming(self.handle);
    }
}

/// What the driver answered where a chunk is to have a name; says so if it has one of another form, and what to do.
fn named_once(core: &Core, handle: PhysicalHandle, form: ShareForm, mut error: DriverError) -> DriverError {
    if !error.is_unsupported()
        && let Some(other) = core.other_form_of(handle, form)
    {
        let told = error.message.map_or(String::new(), |message| message + "; ");
        error.message = Some(format!(
            "{told}a chunk of the block, to be exported as {form:?}, was exported as {other:?} before, and some drivers \
             name a chunk once only: export the block as {other:?}, or allocate it anew after empty_cache"
        ));
    }
    error
}

fn for_others() -> Error {
    let reason = "a chunk of it has a name for other importers, from an export before, perhaps one that was refused; \
                  allocate it anew after empty_cache";
    Error::State { operation: "exporting a block", reason }
}

/// Refuses more processes than the driver takes.
fn check(processes: &[i32]) -> Result<()> {
    if processes.len() <= MOST_PROCESSES {
        return Ok(());
    }
    Err(Error::Argument {
        name: "processes",
        value: counted(processes.len() as u64, "process[es]").to_string(),
        expected: "at most 65535 of them at once",
    })
}
