//! Memory that processes share: a file in memory of its own for each exported chunk.
//!
//! ```text
//!   |---- bytes of the chunk ----| pad |---- header ----|
//!   0                          size
//! ```
//!
//! The kernel counts who has the file open or mapped, so its bytes live exactly as long as one
//! process holds them, however the others end. Nothing is left in any directory. An importer finds the
//! file among the open files of the exporter by its name, which holds a number drawn at random; so it
//! needs the same user and the exporter alive, as on a device. The header holds what the importer has
//! to know, and the list of processes that may import.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use rustix::fs::{MemfdFlags, Mode, OFlags, fstat, ftruncate, memfd_create, open, readlink};
use rustix::io::{pread, pwrite};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{Location, PhysicalProp};

/// Marks a header of this layout.
const MAGIC: u64 = 0x3153_4d49_5341_4341;
/// More processes than this cannot be listed.
pub(crate) const MOST_PIDS: usize = 65_535;
/// Words of the header before the list of processes.
const WORDS: usize = 10;
/// The word that says who may import: those listed, everybody, or nobody.
const WHO: usize = 3;
/// The export has ended: nobody may import.
const NOBODY: u64 = 2;
/// Bytes of the header: the words, the length of the list, the list.
const ROOM: u64 = (WORDS + 1 + MOST_PIDS.div_ceil(2)) as u64 * 8;
/// Headers begin at multiples of the largest page of a host, so that mapping the bytes shows no
/// header.
const HEADER_ALIGN: u64 = 64 << 10;

/// One exported or imported piece of memory.
#[derive(Debug)]
pub(crate) struct SharedFile {
    pub(super) fd: OwnedFd,
    size: u64,
    id: ShareId,
}

/// Names an exported piece of memory among all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ShareId {
    /// The process that exported it.
    pub(crate) process: u32,
    /// A number among its exports.
    pub(crate) number: u32,
}

/// What the header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bytes of the memory.
    pub(crate) size: u64,
    /// Bytes of a page of it.
    pub(crate) page: u64,
    /// Its properties; the device by the driver's number.
    pub(crate) prop: PhysicalProp,
    /// Whether every process may import it.
    pub(crate) open: bool,
}

/// Why a piece of memory could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShareError {
    /// There is none of that name, or its process is gone or not ours to see.
    Unknown,
    /// This process is not on its list.
    Forbidden,
    /// This machine refused.
    Machine,
}

impl ShareId {
    /// A new name for an export of this process.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if NEXT.load(Relaxed) == 0 {
            let _ = NEXT.compare_exchange(0, seed(), Relaxed, Relaxed);
        }
        Self { process: std::process::id(), number: NEXT.fetch_add(1, Relaxed) }
    }

    fn file_name(self) -> String {
        format!("ascend-sim-share-{:08x}", self.number)
    }
}

/// A start for the numbers that another process, or one before with the same id, hardly shares.
fn seed() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    // The standard library draws the keys of its hashes at random for every process.
    (RandomState::new().hash_one(std::process::id()) as u32).max(1)
}

impl SharedFile {
    /// A new file for `shape.size` bytes, with its header.
    pub(crate) fn create(id: ShareId, shape: &Shape) -> Result<Self, ShareError> {
        let fd = memfd_create(id.file_name(), MemfdFlags::CLOEXEC).map_err(|_| ShareError::Machine)?;
        let file = Self { fd, size: shape.size, id };
        ftruncate(&file.fd, file.header_at() + ROOM).map_err(|_| ShareError::Machine)?;
        let PhysicalProp { handle_type, allocation_type, attr, location, reserve } = shape.prop;
        let words: [u64; WORDS] = [
            MAGIC,
            shape.size,
            shape.page,
            u64::from(shape.open),
            u64::from(handle_type),
            u64::from(allocation_type),
            u64::from(attr),
            u64::from(location.id),
            u64::from(location.kind),
            reserve,
        ];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        file.write(file.header_at(), &bytes).map_err(|()| ShareError::Machine)?;
        Ok(file)
    }

    /// What it is called.
    pub(crate) fn id(&self) -> ShareId {
        self.id
    }

    /// Ends the export: nobody may import any more. Those who have it open keep it.
    pub(crate) fn close(&self) -> Result<(), ShareError> {
        self.set_word(WHO, NOBODY)
    }

    /// Exports it again under its name, to all or to processes that are still to be listed.
    pub(crate) fn reopen(&self, open: bool) -> Result<(), ShareError> {
        self.write(self.list_at(), &0_u64.to_ne_bytes()).map_err(|()| ShareError::Machine)?;
        self.set_word(WHO, u64::from(open))
    }

    fn set_word(&self, index: usize, value: u64) -> Result<(), ShareError> {
        let at = self.header_at() + index as u64 * 8;
        self.write(at, &value.to_ne_bytes()).map_err(|()| ShareError::Machine)
    }

    /// Lets these processes import it too.
    pub(crate) fn allow(&self, pids: &[i32]) -> Result<(), ShareError> {
        let mut listed = self.pids()?;
        listed.extend(pids.iter().copied().filter(|pid| !self.lists(*pid)));
        listed.truncate(MOST_PIDS);
        let bytes: Vec<u8> = listed.iter().flat_map(|pid| pid.to_ne_bytes()).collect();
        self.write(self.list_at() + 8, &bytes).map_err(|()| ShareError::Machine)?;
        let count = (listed.len() as u64).to_ne_bytes();
        self.write(self.list_at(), &count).map_err(|()| ShareError::Machine)
    }

    /// Opens what another process exported, if this process may.
    pub(crate) fn open(id: ShareId) -> Result<(Self, Shape), ShareError> {
        let wanted = format!("/memfd:{} ", id.file_name());
        let folder = format!("/proc/{}/fd", id.process);
        for entry in std::fs::read_dir(&folder).map_err(|_| ShareError::Unknown)? {
            let Ok(entry) = entry else { continue };
            let path = entry.path();
            let named =
                readlink(&path, Vec::new()).is_ok_and(|name| name.as_bytes().starts_with(wanted.as_bytes()));
            if !named {
                continue;
            }
            // The exporter may close it meanwhile.
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            let fd = open(&path, flags, Mode::empty()).map_err(|_| ShareError::Unknown)?;
            let (file, shape) = Self::with_header(fd, id)?;
            if !shape.open && !file.lists(std::process::id() as i32) {
                return Err(ShareError::Forbidden);
            }
            return Ok((file, shape));
        }
        Err(ShareError::Unknown)
    }

    /// Reads and checks the header, which another process wrote.
    fn with_header(fd: OwnedFd, id: ShareId) -> Result<(Self, Shape), ShareError> {
        let whole = fstat(&fd).map_err(|_| ShareError::Machine)?.st_size as u64;
        let size = whole.checked_sub(ROOM).filter(|&size| size > 0).ok_or(ShareError::Unknown)?;
        // Before the size is known: the rounded size leads to the same header.
        let mut file = Self { fd, size, id };
        let mut bytes = [0; WORDS * 8];
        file.read(size, &mut bytes).map_err(|()| ShareError::Machine)?;
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
            u64::from_ne_bytes(word)
        };
        let page = word(2);
        file.size = word(1);
        let sound = file.size > 0 && file.size <= size && file.header_at() == size;
        let who = word(WHO);
        if word(0) != MAGIC || !sound || !page.is_power_of_two() || !file.size.is_multiple_of(page) {
            return Err(ShareError::Unknown);
        }
        if who == NOBODY {
            return Err(ShareError::Unknown);
        }
        let size = file.size;
        let location = Location { id: word(7) as u32, kind: word(8) as u32 };
        let prop = PhysicalProp {
            handle_type: word(4) as u32,
            allocation_type: word(5) as u32,
            attr: word(6) as u32,
            location,
            reserve: word(9),
        };
        Ok((file, Shape { size, page, prop, open: who != 0 }))
    }

    fn header_at(&self) -> u64 {
        self.size.next_multiple_of(HEADER_ALIGN)
    }

    fn list_at(&self) -> u64 {
        self.header_at() + WORDS as u64 * 8
    }

    fn lists(&self, pid: i32) -> bool {
        self.pids().is_ok_and(|listed| listed.contains(&pid))
    }

    fn pids(&self) -> Result<Vec<i32>, ShareError> {
        let mut count = [0; 8];
        self.read(self.list_at(), &mut count).map_err(|()| ShareError::Machine)?;
        let count = (u64::from_ne_bytes(count) as usize).min(MOST_PIDS);
        let mut bytes = vec![0; count * 4];
        self.read(self.list_at() + 8, &mut bytes).map_err(|()| ShareError::Machine)?;
        Ok(bytes
            .chunks_exact(4)
            .map(|four| i32::from_ne_bytes([four[0], four[1], four[2], four[3]]))
            .collect())
    }

    /// Copies bytes out.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), ()> {
        read_all(&self.fd, offset, out)
    }

    /// Overwrites bytes.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ()> {
        let mut done = 0;
        while done < bytes.len() {
            match pwrite(&self.fd, &bytes[done..], offset + done as u64) {
                Ok(0) => return Err(()),
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Err(()),
            }
        }
        Ok(())
    }

    /// Sets bytes to one value.
    pub(super) fn fill(&self, offset: u64, len: u64, byte: u8) -> Result<(), ()> {
        const STEP: u64 = 64 << 10;
        let buffer = vec![byte; len.min(STEP) as usize];
        let mut done = 0;
        while done < len {
            let step = (len - done).min(STEP);
            self.write(offset + done, &buffer[..step as usize])?;
            done += step;
        }
        Ok(())
    }
}

/// How many counters an event has.
pub(crate) const COUNTERS: usize = 512;

/// Counters that processes share, in a file like those of chunks.
#[derive(Debug)]
pub(crate) struct SharedCounters {
    /// Keeps the file findable for others.
    _file: SharedFile,
    at: NonNull<[AtomicU64; COUNTERS]>,
}

// SAFETY: the counters are atomic and stay mapped as long as the object lives.
unsafe impl Send for SharedCounters {}
// SAFETY: the same.
unsafe impl Sync for SharedCounters {}

impl SharedCounters {
    /// New counters, all 0.
    pub(crate) fn create(id: ShareId) -> Result<Self, ShareError> {
        let (size, prop) = (HEADER_ALIGN, PhysicalProp::device(0));
        Self::over(SharedFile::create(id, &Shape { size, page: size, prop, open: true })?)
    }

    /// Those of another process.
    pub(crate) fn open(id: ShareId) -> Result<Self, ShareError> {
        let (file, shape) = SharedFile::open(id)?;
        if shape.size != HEADER_ALIGN { Err(ShareError::Unknown) } else { Self::over(file) }
    }

    fn over(file: SharedFile) -> Result<Self, ShareError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            mmap(std::ptr::null_mut(), HEADER_ALIGN as usize, protection, MapFlags::SHARED, &file.fd, 0)
        };
        let at = at.ok().and_then(|at| NonNull::new(at.cast())).ok_or(ShareError::Machine)?;
        Ok(Self { _file: file, at })
    }

    /// The counters.
    pub(crate) fn get(&self) -> &[AtomicU64; COUNTERS] {
        // SAFETY: mapped until this object is dropped, aligned to a page, and atomics may be shared
        // with other processes; every content is a valid number.
        unsafe { self.at.as_ref() }
    }
}

impl Drop for SharedCounters {
    fn drop(&mut self) {
        // SAFETY: mapped by `over` with this length, and nobody has a reference any more.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), HEADER_ALIGN as usize) };
    }
}

/// Copies bytes of a file out; all of them or an error.
pub(super) fn read_all(fd: &OwnedFd, offset: u64, out: &mut [u8]) -> Result<(), ()> {
    let mut done = 0;
    while done < out.len() {
        match pread(fd, &mut out[done..], offset + done as u64) {
            Ok(0) => return Err(()),
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err(()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_by_its_name_and_guarded_by_its_list() {
        let shape = Shape { size: 2 << 20, page: 2 << 20, prop: PhysicalProp::device(1), open: false };
        let id = ShareId::new();
        let file = SharedFile::create(id, &shape).unwrap();
        file.write(5, b"bytes").unwrap();
        assert_eq!(SharedFile::open(id).map(|_| ()), Err(ShareError::Forbidden));
        file.allow(&[1, 2]).unwrap();
        assert_eq!(SharedFile::open(id).map(|_| ()), Err(ShareError::Forbidden));
        file.allow(&[2, std::process::id() as i32]).unwrap();
        assert_eq!(file.pids().unwrap(), [1, 2, std::process::id() as i32]);
        let (other, seen) = SharedFile::open(id).unwrap();
        assert_eq!(seen, shape);
        let mut bytes = [0; 5];
        other.read(5, &mut bytes).unwrap();
        assert_eq!(&bytes, b"bytes");
        file.close().unwrap();
        assert_eq!(SharedFile::open(id).map(|_| ()), Err(ShareError::Unknown));
        file.reopen(false).unwrap();
        assert_eq!(SharedFile::open(id).map(|_| ()), Err(ShareError::Forbidden), "the list is a new one");
        file.reopen(true).unwrap();
        assert!(SharedFile::open(id).is_ok());
        drop((file, other));
        assert_eq!(SharedFile::open(id).map(|_| ()), Err(ShareError::Unknown));
        let gone = ShareId { process: u32::MAX, ..id };
        assert_eq!(SharedFile::open(gone).map(|_| ()), Err(ShareError::Unknown));
    }
}
