//! The vendor's runtime library, or the simulator's drop-in of it.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ascend_alloc::acl::{Acl, sys};
use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

use super::{Machine, ends, mark_of};

/// `ACL_EVENT_SYNC`: streams can wait for the event.
const EVENT_SYNC: u32 = 1;

/// `RTLD_NOLOAD` of Linux: only what is loaded already.
const RTLD_NOLOAD: c_int = 4;

/// `acl_sim_range` of the simulator's header.
#[repr(C)]
struct Range {
    start: *mut c_void,
    bytes: u64,
    write: c_int,
}

/// The controls of the simulator's drop-in library; a vendor's library has none of them.
#[derive(Clone, Copy)]
struct Controls {
    set_event_lag: unsafe extern "C" fn(u64) -> c_int,
    tick: unsafe extern "C" fn(u64) -> c_int,
    fail: unsafe extern "C" fn(*const c_char, u64, c_int, c_int) -> c_int,
    clear_failures: unsafe extern "C" fn() -> c_int,
    set_foreign_bytes: unsafe extern "C" fn(c_int, u64) -> c_int,
    findings_json: unsafe extern "C" fn(*mut c_char, usize) -> c_int,
    kernel: unsafe extern "C" fn(*mut c_void, *const c_char, *const Range, usize, u64) -> c_int,
}

/// Devices behind a library with ACL's functions.
pub struct AclMachine {
    acl: Acl,
    devices: u32,
    controls: Option<Controls>,
    /// Memory of each device that was in use at the start; nobody else uses a simulated one.
    before: Vec<u64>,
    /// What others were said to hold.
    foreign: [AtomicU64; 2],
    /// How long the text of the findings was when they were asked for last.
    told: AtomicU64,
}

impl AclMachine {
    /// The devices of a library that is loaded and initialised; at most two are used. Sets device 0 in this thread.
    ///
    /// With the simulator's drop-in library work is run inside calls, in the order of the calls, and `capacity` bytes
    /// is what each device gets.
    ///
    /// # Panics
    ///
    /// The library answers errors to the first questions.
    #[must_use]
    pub fn new(acl: Acl, capacity: u64) -> Self {
        let controls = controls(acl.origin(), capacity);
        let count = acl.device_count().expect("the devices can be counted").min(2);
        assert!(count > 0, "{} has no device", acl.origin());
        let mut machine = Self {
            acl,
            devices: count,
            controls,
            before: Vec::new(),
            foreign: Default::default(),
            told: AtomicU64::new(2),
        };
        for device in 0..count {
            machine.on(device, || ());
            let used = machine.used(device).expect("memory is known");
            machine.before.push(used);
        }
        machine
    }

    /// Runs something with a device current in this thread; what was current is current again afterwards.
    fn on<R>(&self, device: u32, run: impl FnOnce() -> R) -> R {
        let before = self.acl.device_if_any();
        self.acl.set_device(device as i32).expect("the device is there");
        let answer = run();
        if let Some(before) = before {
            self.acl.set_device(before).expect("the device was set");
        }
        answer
    }

    /// Memory in use; nothing where the question is refused.
    fn used(&self, device: u32) -> Option<u64> {
        let (free, total) = self.on(device, || self.acl.memory_info(sys::ACL_HBM_MEM)).ok()?;
        Some((total - free) as u64)
    }
}

fn handle(number: u64) -> *mut c_void {
    with_exposed_provenance_mut(number as usize)
}

/// The controls of the library, if it is the simulator's; prepares its machine.
fn controls(origin: &str, capacity: u64) -> Option<Controls> {
    // SAFETY: the library is loaded already, so nothing of it runs.
    let library = unsafe { Library::open(Some(origin), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD) }.ok()?;
    macro_rules! find {
        ($name:literal) => {
            // SAFETY: the simulator's header gives the function this type.
            *unsafe { library.get($name) }.ok()?
        };
    }
    let controls = Controls {
        set_event_lag: find!(b"acl_sim_set_event_lag\0"),
        tick: find!(b"acl_sim_tick\0"),
        fail: find!(b"acl_sim_fail\0"),
        clear_failures: find!(b"acl_sim_clear_failures\0"),
        set_foreign_bytes: find!(b"acl_sim_set_foreign_bytes\0"),
        findings_json: find!(b"acl_sim_findings_json\0"),
        kernel: find!(b"acl_sim_kernel\0"),
    };
    let set_capacity: unsafe extern "C" fn(c_int, u64) -> c_int = find!(b"acl_sim_set_capacity\0");
    for device in 0..2 {
        // SAFETY: numbers only.
        let set = unsafe { set_capacity(device, capacity) };
        assert_eq!(set, 0, "the simulator has two devices");
    }
    // The library is never unloaded.
    core::mem::forget(library);
    Some(controls)
}

impl Machine for AclMachine {
    fn devices(&self) -> u32 {
        self.devices
    }

    fn create_stream(&self, device: u32) -> Option<u64> {
        self.on(device, || self.acl.create_default_stream())
            .ok()
            .map(|stream| stream.expose_provenance() as u64)
    }

    fn destroy_stream(&self, device: u32, stream: u64) -> bool {
        // SAFETY: the program made the stream and forgets it now.
        self.on(device, || unsafe { self.acl.destroy_stream(handle(stream)) }).is_ok()
    }

    fn work(&self, device: u32, stream: u64, (address, bytes): (u64, u64), tag: u64, write: bool) -> bool {
        let Some(controls) = self.controls else {
            // A device has no kernel that does nothing: what is queued writes the mark again.
            return self.mark(device, stream, (address, bytes), tag);
        };
        let range = Range { start: handle(address), bytes, write: c_int::from(write) };
        self.on(device, || {
            // SAFETY: the stream is live, one range is passed and it is not kept.
            unsafe { (controls.kernel)(handle(stream), c"work".as_ptr(), &raw const range, 1, 0) }
        }) == 0
    }

    fn mark(&self, device: u32, stream: u64, range: (u64, u64), tag: u64) -> bool {
        self.on(device, || {
            ends(range).into_iter().all(|(address, bytes)| {
                // SAFETY: the range belongs to the program, and the stream is live.
                unsafe { self.acl.fill_async(handle(address), mark_of(tag), bytes as usize, handle(stream)) }
                    .is_ok()
            })
        })
    }

    fn marks(&self, device: u32, range: (u64, u64)) -> Option<Vec<u8>> {
        // Streams that are gone may have used it too, and another thread may have waited for them.
        if !self.synchronize_device(device) {
            return None;
        }
        let mut all = Vec::new();
        for (address, bytes) in ends(range) {
            let mut part = vec![0u8; bytes as usize];
            let (to, from, kind) =
                (part.as_mut_ptr().cast(), handle(address), sys::ACL_MEMCPY_DEVICE_TO_HOST);
            // SAFETY: the range belongs to the program and everything queued on it is over; `part` has room.
            self.on(device, || unsafe { self.acl.copy(to, from, bytes as usize, kind) }).ok()?;
            all.append(&mut part);
        }
        Some(all)
    }

    fn order(&self, device: u32, first: u64, then: u64) -> bool {
        self.on(device, || {
            let Ok(event) = self.acl.create_event(EVENT_SYNC) else { return false };
            // SAFETY: event and streams are live.
            let done = unsafe {
                self.acl.record_event(event, handle(first)).is_ok()
                    && self.acl.stream_wait_event(handle(then), event).is_ok()
            };
            // SAFETY: nobody else knows the event. The second try is for a failure that was planned once.
            let _gone = unsafe { self.acl.destroy_event(event).or_else(|_| self.acl.destroy_event(event)) };
            done
        })
    }

    fn synchronize_stream(&self, device: u32, stream: u64) -> bool {
        // SAFETY: the stream is live.
        self.on(device, || unsafe { self.acl.synchronize_stream(handle(stream)) }).is_ok()
    }

    fn synchronize_device(&self, device: u32) -> bool {
        self.on(device, || self.acl.synchronize_device()).is_ok()
    }

    fn pass(&self, ticks: u64) {
        if let Some(controls) = self.controls {
            // SAFETY: a number only.
            unsafe { (controls.tick)(ticks) };
        }
    }

    fn set_lag(&self, ticks: u64) {
        if let Some(controls) = self.controls {
            // SAFETY: a number only.
            unsafe { (controls.set_event_lag)(ticks) };
        }
    }

    fn fail(&self, call: &str, k: u64, code: i32, always: bool) -> bool {
        let Some(controls) = self.controls else { return false };
        let name = format!("{call}\0");
        let name = CStr::from_bytes_with_nul(name.as_bytes()).expect("a function's name has no zero byte");
        // SAFETY: the text is copied.
        unsafe { (controls.fail)(name.as_ptr(), k, code, c_int::from(always)) == 0 }
    }

    fn heal(&self) {
        if let Some(controls) = self.controls {
            // SAFETY: no arguments.
            unsafe { (controls.clear_failures)() };
        }
    }

    fn set_foreign(&self, device: u32, bytes: u64) -> bool {
        let Some(controls) = self.controls else { return false };
        self.foreign[device as usize].store(bytes, Relaxed);
        // SAFETY: numbers only.
        unsafe { (controls.set_foreign_bytes)(device as c_int, bytes) == 0 }
    }

    fn findings(&self) -> Vec<String> {
        let Some(controls) = self.controls else { return Vec::new() };
        let mut text = vec![0u8; 4096];
        // SAFETY: as many bytes as are said.
        let length = unsafe { (controls.findings_json)(text.as_mut_ptr().cast(), text.len()) };
        let text = CStr::from_bytes_until_nul(&text).expect("a text ends").to_string_lossy().into_owned();
        let before = self.told.swap(u64::try_from(length).unwrap_or(0), Relaxed);
        if i64::from(length) <= before as i64 { Vec::new() } else { vec![text] }
    }

    fn physical_bytes(&self, device: u32) -> Option<u64> {
        // On a real device others come and go.
        self.controls?;
        let index = device as usize;
        let others = self.before[index] + self.foreign[index].load(Relaxed);
        self.used(device).map(|used| used.saturating_sub(others))
    }

    fn is_backed(&self, _address: u64, _bytes: u64) -> Option<bool> {
        None
    }

    fn mappings(&self) -> Option<u64> {
        None
    }

    fn reserved_bytes(&self) -> Option<u64> {
        None
    }

    fn count(&self, _call: &str) -> Option<u64> {
        None
    }

    fn events(&self) -> Option<(u64, u64)> {
        None
    }

    fn orders_all_uses(&self) -> bool {
        true
    }

    fn set_device(&self, device: u32) {
        self.acl.set_device(device as i32).expect("the device is there");
    }

    fn current_device(&self) -> i32 {
        self.acl.device_if_any().unwrap_or(-1)
    }

    fn lacks(&self) -> Vec<&'static str> {
        match self.controls {
            Some(_) => vec![
                "mappings counted",
                "address space counted",
                "events counted",
                "resets of devices",
                "captures",
            ],
            None => vec![
                "failing calls",
                "memory taken by others",
                "late work",
                "the use checker",
                "physical memory counted",
                "mappings counted",
                "address space counted",
                "events counted",
                "resets of devices",
                "captures",
            ],
        }
    }
}
