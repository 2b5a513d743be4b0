//! Sleep and wake by tag.

use core::ffi::{c_char, c_int};

use allocator::SleepMode;

use crate::arguments::{self, Versioned};
use crate::process::{self, Failure, argument};
use crate::{guard, pools};

/// What becomes of the content of blocks whose pool sleeps.
#[repr(i32)]
#[derive(Clone, Copy, Debug)]
pub enum AscendAllocSleepMode {
    /// It is lost.
    Discard = 0,
    /// It is kept in page-locked host memory and copied back.
    HostCopy = 1,
}

/// What putting pools to sleep brought, or waking them took. Sizes in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AscendAllocSleepReport {
    /// Set by the caller to the size of this struct; later versions grow at the end.
    pub struct_size: usize,
    /// Pools that fell asleep (or gave up what a call that failed had left behind them) or woke.
    pub pools: u64,
    /// Physical memory given back to the device, or put behind the pools again.
    pub bytes: u64,
    /// By how much the free memory grew that the device itself reports; 0 for waking.
    pub device_bytes: u64,
    /// Content kept on the host, or copied back from there.
    pub host_bytes: u64,
}

// SAFETY: `repr(C)`, the size first, and only numbers.
unsafe impl Versioned for AscendAllocSleepReport {
    const FIRST: usize = size_of::<Self>();
}

/// Puts all pools with one of the tags to sleep (count 0: all pools but the default ones and those with a
/// source), on one device or on all (-1): their memory goes back to the device, their addresses and live blocks stay.
/// Waits for the streams that used them, and while a captured graph lives on the device, into whatever pool it was
/// captured, for all of its streams. Until they wake, nobody may queue work on their blocks or run graphs that use them;
/// other memory is used as always, and blocks may be freed. What a graph has freed in its capture is kept and comes back as live blocks do. Pools that sleep already stay as they are, but memory that a call which
/// failed left behind them goes back. mode is a value of
/// ascend_alloc_sleep_mode; content is kept in page-locked memory as of ascend_alloc_host_malloc, which stays cached after
/// waking. out may be null.
///
/// For each device it is done for all its pools or for none. ASCEND_ALLOC_STATUS_ARGUMENT when no pool has a tag that
/// is named, ASCEND_ALLOC_STATUS_STATE when a pool cannot sleep: the default one, one with a source, with
/// fixed, exported or lent blocks, and all while a graph is captured on the device or another thread puts the pool to
/// sleep or wakes it. Callable from any thread.
///
/// # Safety
///
/// tags points to count texts that end with a zero byte, or count is 0. out is null or points to as many bytes as its
/// struct_size says, and at least to that field.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_sleep(
    device: c_int,
    tags: *const *const c_char,
    count: usize,
    mode: c_int,
    out: *mut AscendAllocSleepReport,
) -> c_int {
    guard::status(|| {
        // SAFETY: the caller's promise.
        let size = unsafe { wanted(out) }?;
        let device = process::device_or_all(device)?;
        let mode = self::mode(mode)?;
        // SAFETY: the caller's promise.
        let tags = unsafe { self::tags(tags, count) }?;
        let slept = process::existing()?.sleep(device, &tags, mode)?;
        let report = AscendAllocSleepReport {
            struct_size: size,
            pools: u64::from(slept.pools),
            bytes: slept.returned_bytes,
            device_bytes: slept.device_bytes,
            host_bytes: slept.host_bytes,
        };
        // SAFETY: the caller's promise.
        unsafe { report_to(out, size, &report) };
        Ok(())
    })
}

/// Wakes all pools with one of the tags (count 0: all), on one device or on all (-1): memory is put behind their
/// blocks at the same addresses, and kept content is back when the call returns. Pools that are awake stay as they
/// are. out may be null. For each device it is done for all its pools or for none: after
/// ASCEND_ALLOC_STATUS_OUT_OF_MEMORY they sleep as before, with their content. Callable from any thread.
///
/// # Safety
///
/// As ascend_alloc_sleep.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_wake(
    device: c_int,
    tags: *const *const c_char,
    count: usize,
    out: *mut AscendAllocSleepReport,
) -> c_int {
    guard::status(|| {
        // SAFETY: the caller's promise.
        let size = unsafe { wanted(out) }?;
        let device = process::device_or_all(device)?;
        // SAFETY: the caller's promise.
        let tags = unsafe { self::tags(tags, count) }?;
        let woken = process::existing()?.wake(device, &tags)?;
        let report = AscendAllocSleepReport {
            struct_size: size,
            pools: u64::from(woken.pools),
            bytes: woken.mapped_bytes,
            device_bytes: 0,
            host_bytes: woken.copied_bytes,
        };
        // SAFETY: the caller's promise.
        unsafe { report_to(out, size, &report) };
        Ok(())
    })
}

/// Whether a pool sleeps: 1 or 0 goes to *asleep. Callable from any thread.
///
/// # Safety
///
/// asleep is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascend_alloc_is_asleep(pool: u64, asleep: *mut c_int) -> c_int {
    guard::status(|| {
        let place = arguments::place(asleep, "asleep")?;
        let answer = process::existing()?.is_asleep(pools::id(pool)?)?;
        // SAFETY: the caller's promise.
        unsafe { place.write(c_int::from(answer)) };
        Ok(())
    })
}

/// # Safety
///
/// As [`arguments::sized`]; null is accepted.
unsafe fn wanted(out: *mut AscendAllocSleepReport) -> Result<usize, Failure> {
    // SAFETY: the caller's promise.
    if out.is_null() { Ok(0) } else { unsafe { arguments::sized(out, "out") } }
}

/// # Safety
///
/// `out` is null, or [`wanted`] has answered `size` for it.
unsafe fn report_to(out: *mut AscendAllocSleepReport, size: usize, report: &AscendAllocSleepReport) {
    if !out.is_null() {
        // SAFETY: the caller's promise.
        unsafe { arguments::fill(out, size, report) };
    }
}

fn mode(mode: c_int) -> Result<SleepMode, Failure> {
    const DISCARD: c_int = AscendAllocSleepMode::Discard as c_int;
    const HOST_COPY: c_int = AscendAllocSleepMode::HostCopy as c_int;
    match mode {
        DISCARD => Ok(SleepMode::Discard),
        HOST_COPY => Ok(SleepMode::Offload),
        _ => Err(argument(format!("mode is {mode}, expected a value of ascend_alloc_sleep_mode"))),
    }
}

/// # Safety
///
/// `tags` points to `count` texts that end with a zero byte.
unsafe fn tags<'a>(tags: *const *const c_char, count: usize) -> Result<Vec<&'a str>, Failure> {
    /// More than anybody has; guards against a count that is garbage.
    const MOST: usize = 1 << 16;
    if count == 0 {
        return Ok(Vec::new());
    }
    arguments::place(tags.cast_mut(), "tags")?;
    if count > MOST {
        return Err(argument(format!("count is {count}, expected at most {MOST}")));
    }
    // SAFETY: the caller's promise, for each of them.
    let texts = (0..count).map(|index| unsafe { arguments::text(*tags.add(index), "a tag") });
    texts.map(|text| text?.ok_or_else(|| argument("a tag is null".to_owned()))).collect()
}
