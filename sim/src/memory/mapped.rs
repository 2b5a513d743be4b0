//! Real mappings of device memory: one file in memory for each device, laid over reserved addresses.

use std::os::fd::OwnedFd;
use std::ptr;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::backing::{PREFERRED, Window};
use super::{HUGE_1G, SMALL};
use crate::codes;
use crate::refusal::{Answer, Refusal};

/// Files grow in steps of this.
const STEP: u64 = 1 << 30;

/// The files and address windows of one simulator.
#[derive(Debug)]
pub(crate) struct Mapped {
    files: Vec<File>,
    window: Area,
    heap: Area,
}

/// The memory of one pool.
#[derive(Debug)]
struct File {
    fd: OwnedFd,
    /// Where the next chunk goes; a multiple of the page.
    next: u64,
    len: u64,
}

/// A range of addresses that belongs to the simulator, inaccessible where nothing is laid over it.
#[derive(Debug)]
struct Area {
    start: u64,
    len: u64,
    /// What was mapped at first, to be given back: start and length.
    whole: Window,
}

impl Mapped {
    /// Opens the files and reserves the windows; says in words why it cannot.
    pub(super) fn new(pools: usize, notes: &mut Vec<String>) -> Result<Self, String> {
        let (window, heap) = PREFERRED;
        let window = Area::reserve(window, 16 << 30, "reservations", notes)?;
        let heap = Area::reserve(heap, 4 << 30, "aclrtMalloc", notes)?;
        let open = |_| {
            let fd = memfd_create("ascend-sim", MemfdFlags::CLOEXEC)
                .map_err(|error| format!("memfd_create: {error}"))?;
            Ok(File { fd, next: 0, len: 0 })
        };
        let files = (0..pools).map(open).collect::<Result<Vec<_>, String>>()?;
        Ok(Self { files, window, heap })
    }

    pub(super) fn windows(&self) -> (Window, Window) {
        ((self.window.start, self.window.len), (self.heap.start, self.heap.len))
    }

    /// A range of the pool's file.
    pub(super) fn create(&mut self, pool: usize, size: u64) -> Answer<u64> {
        let page = super::backing::os_page().max(SMALL);
        let file = &mut self.files[pool];
        let offset = file.next;
        let full = Refusal::new(codes::HOST_LIMIT, "the file behind the device cannot grow");
        let end =
            size.checked_next_multiple_of(page).and_then(|size| offset.checked_add(size)).ok_or(full)?;
        if end > file.len {
            let len = end.checked_next_multiple_of(STEP).ok_or(full)?;
            ftruncate(&file.fd, len).map_err(|_| full)?;
            file.len = len;
        }
        file.next = end;
        Ok(offset)
    }

    /// Gives the memory of a range of the pool's file back to this machine.
    pub(super) fn discard(&mut self, pool: usize, offset: u64, size: u64) {
        let size = size.next_multiple_of(super::backing::os_page());
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A refusal costs memory of this machine until the simulator ends, nothing else: ranges are
        // never used twice.
        let _ = fallocate(&self.files[pool].fd, flags, offset, size);
    }

    /// Lays a range of the pool's file over addresses of a window.
    pub(super) fn map(&mut self, start: u64, size: u64, pool: usize, offset: u64) -> Answer<()> {
        self.map_file(start, size, &self.files[pool].fd, offset)
    }

    /// Copies bytes of the pool's file out.
    pub(super) fn read(&self, pool: usize, offset: u64, out: &mut [u8]) -> Result<(), ()> {
        super::shared::read_all(&self.files[pool].fd, offset, out)
    }

    /// Lays a range of a file over addresses of a window.
    pub(super) fn map_file(&self, start: u64, size: u64, fd: &OwnedFd, offset: u64) -> Answer<()> {
        let size = size.next_multiple_of(super::backing::os_page());
        assert!(self.owns(start, size), "mapping outside the windows");
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the range lies in a window that this object reserved and nobody else maps into;
        // `MAP_FIXED` replaces only our own memory there.
        let mapped = unsafe { mmap(address(start), size as usize, protection, flags, fd, offset) };
        mapped.map(drop).map_err(|_| {
            Refusal::new(codes::HOST_LIMIT, "this machine allows no more mappings (vm.max_map_count)")
        })
    }

    /// Lays inaccessible memory over addresses of a window.
    pub(super) fn unmap(&mut self, start: u64, size: u64) {
        let size = size.next_multiple_of(super::backing::os_page());
        assert!(self.owns(start, size), "unmapping outside the windows");
        // A refusal (the limit on mappings) leaves the old bytes visible until the address is mapped
        // again; the tables know that nothing is mapped there all the same.
        // SAFETY: as in `map`: only memory of our own windows is replaced.
        let _ = unsafe {
            mmap_anonymous(address(start), size as usize, ProtFlags::empty(), inaccessible(MapFlags::FIXED))
        };
    }

    fn owns(&self, start: u64, size: u64) -> bool {
        [&self.window, &self.heap]
            .iter()
            .any(|area| start >= area.start && size <= area.len && start - area.start <= area.len - size)
    }
}

impl Area {
    /// Reserves addresses: the preferred ones, else others, else fewer, down to `least` bytes.
    fn reserve(preferred: Window, least: u64, what: &str, notes: &mut Vec<String>) -> Result<Self, String> {
        let (start, len) = preferred;
        if let Some(area) = Self::at(start, len) {
            return Ok(area);
        }
        let mut len = len;
        while len >= least {
            if let Some(area) = Self::anywhere(len) {
                notes.push(format!(
                    "addresses for {what}: this machine refused {start:#x}, {} GiB at {:#x} are used",
                    len >> 30,
                    area.start
                ));
                return Ok(area);
            }
            len = (len / 4) & !(HUGE_1G - 1);
        }
        Err(format!("this machine refused {} GiB of address space for {what}", least >> 30))
    }

    fn at(start: u64, len: u64) -> Option<Self> {
        let size = usize::try_from(len).ok()?;
        let flags = inaccessible(MapFlags::FIXED_NOREPLACE);
        // SAFETY: a new inaccessible mapping that replaces nothing (`MAP_FIXED_NOREPLACE`; kernels
        // that do not know the flag take the address as a hint).
        let got = unsafe { mmap_anonymous(address(start), size, ProtFlags::empty(), flags) }.ok()?;
        let area = Self { start, len, whole: (got as u64, len) };
        (got as u64 == start).then_some(area)
    }

    fn anywhere(len: u64) -> Option<Self> {
        let whole = len.checked_add(HUGE_1G)?;
        let size = usize::try_from(whole).ok()?;
        // SAFETY: a new inaccessible mapping at an address of the kernel's choice.
        let got = unsafe {
            mmap_anonymous(ptr::null_mut(), size, ProtFlags::empty(), inaccessible(MapFlags::empty()))
        };
        let got = got.ok()? as u64;
        Some(Self { start: got.next_multiple_of(HUGE_1G), len, whole: (got, whole) })
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        let (start, len) = self.whole;
        // SAFETY: the range was mapped by this object and everything laid over it is its own; after
        // the simulator is gone its addresses must not be used any more, which its documentation says.
        let _ = unsafe { munmap(address(start), len as usize) };
    }
}

/// How many mappings a process may have here.
pub(super) fn max_areas() -> u64 {
    /// The kernel's default.
    const USUAL: u64 = 65_530;
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL)
}

fn address(start: u64) -> *mut core::ffi::c_void {
    ptr::with_exposed_provenance_mut(start as usize)
}

fn inaccessible(more: MapFlags) -> MapFlags {
    MapFlags::PRIVATE | MapFlags::NORESERVE | more
}
