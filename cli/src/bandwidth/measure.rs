//! Copies each size each way, and how fast that was.

use std::time::Instant;

use ascend_alloc::driver::{DeviceId, Driver, DriverError, DriverResult, HostCopy, PageKind, Stream};

/// What kind of host memory is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Ordinary memory, `aclrtMemcpy`.
    Pageable,
    /// Page-locked memory, `aclrtMemcpyAsync`.
    PageLocked,
    /// Page-locked memory at one address for host and device, `aclrtMemcpyAsync`.
    ZeroCopy,
}

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    ToDevice,
    ToHost,
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pageable => "pageable",
            Self::PageLocked => "page-locked",
            Self::ZeroCopy => "zero copy",
        }
    }
}

impl Direction {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ToDevice => "H2D",
            Self::ToHost => "D2H",
        }
    }
}

/// The rates of one size in GiB/s, by column; none where the memory is not to be had.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figure {
    pub(super) bytes: u64,
    pub(super) rates: [Option<f64>; 6],
}

impl Figure {
    /// What each rate is of.
    pub(super) const COLUMNS: [(Way, Direction); 6] = [
        (Way::Pageable, Direction::ToDevice),
        (Way::PageLocked, Direction::ToDevice),
        (Way::ZeroCopy, Direction::ToDevice),
        (Way::Pageable, Direction::ToHost),
        (Way::PageLocked, Direction::ToHost),
        (Way::ZeroCopy, Direction::ToHost),
    ];
}

/// Host memory of one kind, given back when dropped.
struct Memory<'a> {
    driver: &'a dyn Driver,
    device: DeviceId,
    address: u64,
    /// The bytes themselves where they are ordinary memory.
    pageable: Option<Vec<u8>>,
}

impl<'a> Memory<'a> {
    /// Memory of a kind, written once so that it is there; none where the driver has no such memory.
    fn take(driver: &'a dyn Driver, device: DeviceId, way: Way, bytes: u64) -> Result<Option<Self>, String> {
        let size =
            usize::try_from(bytes).map_err(|_| "a size is larger than the address space".to_owned())?;
        if way == Way::Pageable {
            let mut data = Vec::new();
            data.try_reserve_exact(size).map_err(|error| format!("{bytes} bytes of memory: {error}"))?;
            data.resize(size, 1_u8);
            let address = data.as_mut_ptr().expose_provenance() as u64;
            return Ok(Some(Self { driver, device, address, pageable: Some(data) }));
        }
        let taken = match (way, driver.host_calls()) {
            (Way::ZeroCopy, None) => return Ok(None),
            (Way::ZeroCopy, Some(calls)) => calls.malloc_common(device, bytes),
            _ => driver.malloc_host(device, bytes),
        };
        let address = match taken {
            Ok(address) => address,
            Err(error) if way == Way::ZeroCopy && error.is_unsupported() => return Ok(None),
            Err(error) => return Err(text(error)),
        };
        let start = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        // SAFETY: the driver has just given so many bytes to this program.
        unsafe { start.write_bytes(1, size) };
        Ok(Some(Self { driver, device, address, pageable: None }))
    }

    /// Copies once, and waits for the end.
    fn copy(&self, target: u64, bytes: u64, direction: Direction) -> DriverResult<()> {
        let to_host = direction == Direction::ToHost;
        let copy = HostCopy { host: self.address, device: target, bytes, to_host };
        if self.pageable.is_some()
            && let Some(calls) = self.driver.host_calls()
        {
            // SAFETY: the memory is this value's and nobody else touches it.
            return unsafe { calls.copy(self.device, copy) };
        }
        // SAFETY: as above, and it is waited for at once.
        unsafe { self.driver.copy_async(self.device, copy, Stream(0)) }?;
        self.driver.synchronize_stream(self.device, Stream(0))
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        if self.pageable.is_none() {
            // What the driver does not take back ends with the program.
            let _freed = self.driver.free_host(self.device, self.address);
        }
    }
}

/// Measures all sizes.
///
/// # Errors
///
/// What the driver refuses, as text.
pub(super) fn measure(
    driver: &dyn Driver,
    device: DeviceId,
    sizes: &[u64],
    repeats: u32,
) -> Result<Vec<Figure>, String> {
    let mut figures = Vec::new();
    for &bytes in sizes {
        let target = driver.malloc(device, bytes, PageKind::Huge).map_err(text)?;
        let rates = rates(driver, device, target, bytes, repeats);
        driver.free(device, target).map_err(text)?;
        figures.push(Figure { bytes, rates: rates? });
    }
    Ok(figures)
}

fn rates(
    driver: &dyn Driver,
    device: DeviceId,
    target: u64,
    bytes: u64,
    repeats: u32,
) -> Result<[Option<f64>; 6], String> {
    let mut rates = [None; 6];
    for way in [Way::Pageable, Way::PageLocked, Way::ZeroCopy] {
        let Some(memory) = Memory::take(driver, device, way, bytes)? else { continue };
        for (column, &(of, direction)) in Figure::COLUMNS.iter().enumerate() {
            if of == way {
                rates[column] = Some(rate(&memory, target, bytes, direction, repeats)?);
            }
        }
    }
    Ok(rates)
}

/// The median, after one copy that is not counted.
fn rate(
    memory: &Memory<'_>,
    target: u64,
    bytes: u64,
    direction: Direction,
    repeats: u32,
) -> Result<f64, String> {
    memory.copy(target, bytes, direction).map_err(text)?;
    let mut times = Vec::new();
    for _ in 0..repeats {
        let start = Instant::now();
        memory.copy(target, bytes, direction).map_err(text)?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2].max(1e-9);
    Ok(bytes as f64 / median / f64::from(1 << 30))
}

fn text(error: DriverError) -> String {
    error.to_string()
}
