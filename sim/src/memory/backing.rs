//! Where the bytes of chunks are: in files that can be mapped, or in tables.
//!
//! **Mapped**: each device has one file in memory without a name; a chunk is a range of it. The
//! address windows are reserved once, inaccessible; mapping a chunk lays its range of the file over
//! a part of the window, unmapping lays inaccessible memory over it again. Nothing outside the
//! windows is ever mapped over. Ranges of a file are never reused: a file has 2^62 bytes of them, and
//! what is freed costs nothing after its hole is punched.
//!
//! **Tables**: addresses are numbers, bytes live in [`Sparse`].
//!
//! In both, a chunk that is shared with other processes has a file of its own.

use std::sync::Arc;

use parking_lot::Mutex;

#[cfg(target_os = "linux")]
use super::shared::SharedFile;
use super::sparse::Sparse;
use crate::codes;
use crate::config::{BackingMode, SimConfig};
use crate::refusal::{Answer, Refusal};

/// Start of the part of the window that reservations get on a device machine.
const WINDOW: u64 = 0x12c0_0000_0000;
/// Bytes of it.
const WINDOW_LEN: u64 = 5376 << 30;
/// Start of the part where `aclrtMalloc` puts its memory.
const HEAP: u64 = 0x1100_0000_0000;
/// Bytes of it.
const HEAP_LEN: u64 = 1 << 40;

/// A range of addresses as start and length.
pub(crate) type Window = (u64, u64);

/// The way bytes are kept.
#[derive(Debug)]
pub(crate) enum Backing {
    /// In files, mapped to real addresses.
    #[cfg(target_os = "linux")]
    Mapped(super::mapped::Mapped),
    /// In tables.
    Tables,
}

/// Where the bytes of one chunk are.
#[derive(Debug)]
pub(super) enum Place {
    /// At that offset of its device's file.
    #[cfg(target_os = "linux")]
    File(u64),
    /// In this table; a lock of its own, so that copies need not hold the one around all memory.
    Table(Arc<Mutex<Sparse>>),
    /// In a file of its own, which other processes may have open too.
    #[cfg(target_os = "linux")]
    Shared(Arc<SharedFile>),
}

impl Place {
    /// Nowhere: an empty table.
    pub(super) fn nowhere() -> Self {
        Self::Table(Arc::default())
    }
}

impl Backing {
    /// Chooses and prepares a backing; what a user should know about the choice goes to `notes`.
    pub(crate) fn new(config: &SimConfig, notes: &mut Vec<String>) -> Self {
        if config.backing == BackingMode::MetadataOnly {
            return Self::Tables;
        }
        #[cfg(target_os = "linux")]
        {
            let (needed, limit) = (areas_needed(config), super::mapped::max_areas());
            if config.backing == BackingMode::Auto && needed > limit {
                notes.push(format!(
                    "metadata-only mode: chunks could need {needed} mappings, this machine allows {limit}; \
                     device addresses cannot be dereferenced"
                ));
                return Self::Tables;
            }
            match super::mapped::Mapped::new(config.devices as usize + 1, notes) {
                Ok(mapped) => Self::Mapped(mapped),
                Err(why) => {
                    notes.push(format!("metadata-only mode: {why}; device addresses cannot be dereferenced"));
                    Self::Tables
                }
            }
        }
        #[cfg(not(target_os = "linux"))]
        {
            notes.push("metadata-only mode: real mappings need Linux".to_owned());
            Self::Tables
        }
    }

    /// Whether mapped device memory can be reached through its address.
    pub(crate) fn is_mapped(&self) -> bool {
        !matches!(self, Self::Tables)
    }

    /// The windows of reservations and of `aclrtMalloc`.
    pub(super) fn windows(&self) -> (Window, Window) {
        match self {
            #[cfg(target_os = "linux")]
            Self::Mapped(mapped) => mapped.windows(),
            Self::Tables => ((WINDOW, WINDOW_LEN), (HEAP, HEAP_LEN)),
        }
    }

    /// A place for a new chunk of `size` bytes in that pool.
    pub(super) fn create(&mut self, pool: usize, size: u64) -> Answer<Place> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Mapped(mapped) => mapped.create(pool, size).map(Place::File),
            Self::Tables => {
                let _ = (pool, size);
                Ok(Place::nowhere())
            }
        }
    }

    /// Drops the bytes of a chunk that nothing maps any more.
    pub(super) fn discard(&mut self, place: &mut Place, pool: usize, size: u64) {
        match (self, std::mem::replace(place, Place::nowhere())) {
            #[cfg(target_os = "linux")]
            (Self::Mapped(mapped), Place::File(offset)) => mapped.discard(pool, offset, size),
            _ => {
                let _ = (pool, size);
            }
        }
    }

    /// Makes the chunk visible at an address inside a window.
    pub(super) fn map(&mut self, start: u64, size: u64, place: &Place, pool: usize) -> Answer<()> {
        match (self, place) {
            #[cfg(target_os = "linux")]
            (Self::Mapped(mapped), &Place::File(offset)) => mapped.map(start, size, pool, offset),
            #[cfg(target_os = "linux")]
            (Self::Mapped(mapped), Place::Shared(file)) => mapped.map_file(start, size, &file.fd, 0),
            _ => {
                let _ = (start, size, pool);
                Ok(())
            }
        }
    }

    /// Copies the bytes of a chunk into a file that other processes can open.
    #[cfg(target_os = "linux")]
    pub(super) fn copy_out(&self, place: &Place, pool: usize, size: u64, file: &SharedFile) -> Answer<()> {
        const STEP: u64 = 64 << 10;
        let failed = |()| Refusal::new(codes::HOST_LIMIT, "this machine could not copy memory to be shared");
        let mut buffer = vec![0; STEP as usize];
        for offset in (0..size).step_by(STEP as usize) {
            let part = &mut buffer[..(size - offset).min(STEP) as usize];
            match (self, place) {
                (Self::Mapped(mapped), &Place::File(start)) => {
                    mapped.read(pool, start + offset, part).map_err(failed)?;
                }
                (_, Place::Table(table)) => table.lock().read(offset, part),
                (_, Place::Shared(other)) => other.read(offset, part).map_err(failed)?,
                (_, Place::File(_)) => return Err(failed(())),
            }
            // What is zero already takes no memory this way.
            if part.iter().any(|&byte| byte != 0) {
                file.write(offset, part).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Makes a mapped range inaccessible.
    pub(super) fn unmap(&mut self, start: u64, size: u64) {
        match self {
            #[cfg(target_os = "linux")]
            Self::Mapped(mapped) => mapped.unmap(start, size),
            Self::Tables => {
                let _ = (start, size);
            }
        }
    }
}

/// The mappings of this process's memory that the devices' chunks can need at worst.
#[cfg(target_os = "linux")]
fn areas_needed(config: &SimConfig) -> u64 {
    /// Left for the program itself.
    const REST: u64 = 4096;
    let chunks = (config.capacity / super::HUGE).saturating_mul(u64::from(config.devices));
    chunks.saturating_mul(2).saturating_add(REST)
}

/// Preferred windows and their sizes, for the mapped mode.
#[cfg(target_os = "linux")]
pub(super) const PREFERRED: (Window, Window) = ((WINDOW, WINDOW_LEN), (HEAP, HEAP_LEN));

/// The page size of the machine that runs the simulator.
pub(super) fn os_page() -> u64 {
    #[cfg(target_os = "linux")]
    {
        rustix::param::page_size() as u64
    }
    #[cfg(not(target_os = "linux"))]
    {
        4096
    }
}
