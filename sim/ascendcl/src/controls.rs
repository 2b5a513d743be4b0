//! The controls: what a person or a test tells the simulator. `include/acl_sim.h` documents them.
//!
//! A control answers 0, or what it could not do: 100000 for an argument that is not understood,
//! 507033 in a forked child, 500000 for a mistake of the simulator.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ascend_sim::{Sim, Task, codes};

use crate::surface::Surface;
use crate::types::address;
use crate::{fork, machine, settings, text};

/// A mistake in the simulator.
const INTERNAL: c_int = 500_000;
/// A reset found calls that did not end.
const BUSY: c_int = 507_899;

/// `acl_sim_range`: what a kernel touches.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelRange {
    start: *mut c_void,
    bytes: u64,
    write: c_int,
}

const _: () = assert!(size_of::<KernelRange>() == 24);

/// Changes the capacity of a device (driver's number).
#[unsafe(no_mangle)]
pub extern "C" fn acl_sim_set_capacity(device: c_int, bytes: u64) -> c_int {
    adjust_device(device, move |sim, device| sim.set_capacity(device, bytes))
}

/// Lets other processes hold that many bytes of a device (driver's number).
#[unsafe(no_mangle)]
pub extern "C" fn acl_sim_set_foreign_bytes(device: c_int, bytes: u64) -> c_int {
    adjust_device(device, move |sim, device| sim.set_foreign_bytes(device, bytes))
}

/// Calls so far, as a JSON object of names and numbers.
///
/// # Safety
/// `buffer` is null or valid for writes of `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn acl_sim_counters_json(buffer: *mut c_char, room: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { print(buffer, room, Sim::counters_json) }
}

/// What was found wrong, as a JSON array of objects with `kind` and `text`.
///
/// # Safety
/// `buffer` is null or valid for writes of `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn acl_sim_findings_json(buffer: *mut c_char, room: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { print(buffer, room, Sim::findings_json) }
}

/// What was not given back, as a JSON array of objects with `kind` and `text`.
///
/// # Safety
/// `buffer` is null or valid for writes of `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn acl_sim_leaks_json(buffer: *mut c_char, room: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { print(buffer, room, Sim::leaks_json) }
}

/// Lets virtual time pass for queued work.
#[unsafe(no_mangle)]
pub extern "C" fn acl_sim_tick(ticks: u64) -> c_int {
    on_machine(|sim| {
        sim.tick(ticks);
        0
    })
}

/// Plans a failure.
///
/// # Safety
/// `function` is null or a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn acl_sim_fail(function: *const c_char, k: u64, code: c_int, always: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_text(function, move |sim, name| accepted(sim.fail(name, k, code, always != 0))) }
}

/// Drops all planned failures.
#[unsafe(no_mangle)]
pub extern "C" fn acl_sim_clear_failures() -> c_int {
    adjust(|sim| {
        sim.clear_faults();
        0
    })
}

/// Lets calls of a function take virtual nanoseconds.
///
/// # Safety
/// `function` is null or a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn acl_sim_set_cost(function: *const c_char, nanoseconds: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_text(function, move |sim, name| accepted(sim.set_cost(name, nanoseconds))) }
}

/// Virtual nanoseconds that calls have cost so far.
#[unsafe(no_mangle)]
pub extern "C" fn acl_sim_now() -> u64 {
    let mut now = 0;
    let _code = on_machine(|sim| {
        now = sim.now();
        0
    });
    now
}

/// Limits the bytes of all reservations together.
#[unsafe(no_mangle)]
pub extern "C" fn acl_sim_set_address_space(bytes: u64) -> c_int {
    adjust(move |sim| {
        sim.set_va_budget((bytes != u64::MAX).then_some(bytes));
        0
    })
}

/// Holds a range as a copy engine does.
#[unsafe(no_mangle)]
pub extern "C" fn acl_sim_hold(start: *mut c_void, bytes: u64) -> c_int {
    on_machine(|sim| {
        sim.hold(address(start), bytes);
        0
    })
}

/// Ends a hold on exactly that range.
#[unsafe(no_mangle)]
pub extern "C" fn acl_sim_unhold(start: *mut c_void, bytes: u64) -> c_int {
    on_machine(|sim| if sim.unhold(address(start), bytes) { 0 } else { codes::INVALID_PARAM })
}

/// Queues something that stands for a kernel.
///
/// # Safety
/// `label` is null or a text that ends with a zero, `ranges` is null or valid for reads of `count`
/// entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn acl_sim_kernel(
    stream: *mut c_void,
    label: *const c_char,
    ranges: *const KernelRange,
    count: usize,
    microseconds: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(label) = (unsafe { read(label) }) else { return codes::INVALID_PARAM };
    if ranges.is_null() && count > 0 {
        return codes::INVALID_PARAM;
    }
    on_machine(|sim| {
        let mut task = Task::new(text::kept(label).to_str().unwrap_or("kernel"));
        for index in 0..count {
            // SAFETY: the list is not null, so it is valid for `count` reads.
            let KernelRange { start, bytes, write } = unsafe { ranges.add(index).read() };
            let start = address(start);
            task = if write == 0 { task.reads(start, bytes, 0) } else { task.writes(start, bytes, 0) };
        }
        if microseconds > 0 {
            task = task.works(move || std::thread::sleep(Duration::from_micros(microseconds)));
        }
        sim.submit(address(stream), task).err().unwrap_or(0)
    })
}

/// A new machine.
#[unsafe(no_mangle)]
pub extern "C" fn acl_sim_reset() -> c_int {
    guarded(|| if machine::reset() { 0 } else { BUSY })
}

/// Refuses what documents forbid although the driver lets it pass.
#[unsafe(no_mangle)]
pub extern "C" fn acl_sim_strict(on: c_int) -> c_int {
    adjust(move |sim| {
        sim.set_strict(on != 0);
        0
    })
}

/// Switches the use checker.
#[unsafe(no_mangle)]
pub extern "C" fn acl_sim_set_checker(on: c_int) -> c_int {
    adjust(move |sim| {
        sim.executor().set_checker(on != 0);
        0
    })
}

/// How many devices the next machine has.
#[unsafe(no_mangle)]
pub extern "C" fn acl_sim_set_devices(devices: c_int) -> c_int {
    let Some(devices) = u32::try_from(devices).ok().filter(|devices| *devices > 0) else {
        return codes::INVALID_PARAM;
    };
    shape(|settings| settings.devices = devices)
}

/// The name of the part of the next machine.
///
/// # Safety
/// `name` is null or a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn acl_sim_set_soc(name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { read(name) } {
        Some(name) if !name.is_empty() => shape(|settings| name.clone_into(&mut settings.soc)),
        _ => codes::INVALID_PARAM,
    }
}

/// How queued work runs on the next machine.
///
/// # Safety
/// `how` is null or a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn acl_sim_set_exec(how: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { read(how) }.and_then(settings::execution) {
        Some(execution) => shape(|settings| settings.execution = execution),
        None => codes::INVALID_PARAM,
    }
}

/// Where the bytes of the next machine are.
///
/// # Safety
/// `kind` is null or a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn acl_sim_set_backing(kind: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { read(kind) }.and_then(settings::backing) {
        Some(backing) => shape(|settings| settings.backing = backing),
        None => codes::INVALID_PARAM,
    }
}

/// How many ticks queued work stays unfinished.
#[unsafe(no_mangle)]
pub extern "C" fn acl_sim_set_event_lag(ticks: u64) -> c_int {
    adjust(move |sim| {
        sim.executor().set_lag(ticks);
        0
    })
}

/// The CANN version that is played.
///
/// # Safety
/// `version` is null or a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn acl_sim_set_surface(version: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { read(version) }.and_then(Surface::parse) {
        Some(surface) => guarded(|| {
            surface.play();
            0
        }),
        None => codes::INVALID_PARAM,
    }
}

/// Where the report at exit goes.
///
/// # Safety
/// `target` is null or a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn acl_sim_report(target: *const c_char) -> c_int {
    if target.is_null() {
        return keep(|settings| settings.report.clear());
    }
    // SAFETY: the caller's promise.
    match unsafe { read(target) } {
        Some(target) => keep(|settings| target.clone_into(&mut settings.report)),
        None => codes::INVALID_PARAM,
    }
}

/// Runs a control; neither in a forked child nor a panic gets through.
fn guarded(body: impl FnOnce() -> c_int) -> c_int {
    if fork::forked() {
        return fork::CODE;
    }
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        // Dropping what was thrown could throw again.
        std::mem::forget(panic);
        INTERNAL
    })
}

fn on_machine(body: impl FnOnce(&Sim) -> c_int) -> c_int {
    guarded(|| machine::with(body).unwrap_or(BUSY))
}

fn adjust(change: impl Fn(&Sim) -> c_int + Send + 'static) -> c_int {
    guarded(|| machine::adjust(change).unwrap_or(BUSY))
}

fn adjust_device(device: c_int, change: impl Fn(&Sim, u32) + Send + 'static) -> c_int {
    adjust(move |sim| match u32::try_from(device) {
        Ok(device) if device < machine::devices() => {
            change(sim, device);
            0
        }
        _ => codes::RT_INVALID_DEVICEID,
    })
}

fn shape(change: impl FnOnce(&mut settings::Settings)) -> c_int {
    guarded(|| {
        machine::describe(change);
        0
    })
}

/// Changes a setting that has nothing to do with the machine.
fn keep(change: impl FnOnce(&mut settings::Settings)) -> c_int {
    guarded(|| {
        machine::settings(change);
        0
    })
}

fn accepted<E>(answer: Result<(), E>) -> c_int {
    if answer.is_ok() { 0 } else { codes::INVALID_PARAM }
}

/// # Safety
/// `text` is null or a text that ends with a zero.
unsafe fn read<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: it is not null, so it is a text that ends with a zero.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// # Safety
/// `name` is null or a text that ends with a zero.
unsafe fn with_text(name: *const c_char, change: impl Fn(&Sim, &str) -> c_int + Send + 'static) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { read(name) } {
        Some(name) => {
            let name = name.to_owned();
            adjust(move |sim| change(sim, &name))
        }
        None => codes::INVALID_PARAM,
    }
}

/// # Safety
/// `buffer` is null or valid for writes of `room` bytes.
unsafe fn print(buffer: *mut c_char, room: usize, ask: impl FnOnce(&Sim) -> String) -> c_int {
    let mut text = String::new();
    let code = on_machine(|sim| {
        text = ask(sim);
        0
    });
    if code != 0 {
        return -1;
    }
    // SAFETY: the caller's promise.
    unsafe { text::print(&text, buffer, room) }
}
