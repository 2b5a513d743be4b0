//! What one call of the simulated `libascendcl.so` costs, measured through the library as a program
//! uses it.
//!
//! `cargo bench -p ascendcl-sim` prints nanoseconds for each call: the median of many rounds, and the
//! fastest round. The machine is the library's own default: two devices of 64 GiB whose bytes are in
//! tables, work run by threads, the use checker on. Calls that touch a host mapping (`MapMem` with
//! device addresses that are real) are measured on a small machine of that kind, and marked.

use std::ffi::{CString, c_int, c_void};
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use libloading::Library;

type Handle = *mut c_void;

/// Rounds of a measurement.
const ROUNDS: usize = 101;
/// Calls of a round, unless a call says otherwise.
const CALLS: usize = 1000;

/// `aclrtPhysicalMemProp`: pinned memory of device 0 in huge pages.
const PROP: [u32; 8] = [0, 0, 4, 0, 1, 0, 0, 0];
/// A granule.
const GRANULE: usize = 2 << 20;

/// The calls measured, looked up once.
struct Acl {
    library: Library,
}

impl Acl {
    fn open() -> Self {
        let file = library();
        // SAFETY: the library's initialisers only prepare the Rust runtime.
        let library = unsafe { Library::new(&file) };
        Self { library: library.unwrap_or_else(|error| panic!("{}: {error}", file.display())) }
    }

    /// A function by its name; `F` must be its type.
    fn look<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the types below are those of the interface.
        let found = unsafe { self.library.get::<F>(name) };
        *found.unwrap_or_else(|error| panic!("{name}: {error}"))
    }
}

type Plain = unsafe extern "C" fn() -> c_int;
type One = unsafe extern "C" fn(Handle) -> c_int;
type Two = unsafe extern "C" fn(Handle, Handle) -> c_int;
type Make = unsafe extern "C" fn(*mut Handle) -> c_int;
type Device = unsafe extern "C" fn(i32) -> c_int;
type Out = unsafe extern "C" fn(*mut i32) -> c_int;
type OutOf = unsafe extern "C" fn(Handle, *mut u32) -> c_int;
type MakeWith = unsafe extern "C" fn(*mut Handle, u32) -> c_int;
type Malloc = unsafe extern "C" fn(*mut Handle, usize, u32) -> c_int;
type Reserve = unsafe extern "C" fn(*mut Handle, usize, usize, Handle, u64) -> c_int;
type Physical = unsafe extern "C" fn(*mut Handle, usize, *const u32, u64) -> c_int;
type Map = unsafe extern "C" fn(Handle, usize, usize, Handle, u64) -> c_int;
type MemInfo = unsafe extern "C" fn(u32, *mut usize, *mut usize) -> c_int;
type Fill = unsafe extern "C" fn(Handle, usize, i32, usize, Handle) -> c_int;
type Text = unsafe extern "C" fn(*const std::ffi::c_char) -> c_int;

fn main() {
    let acl = Acl::open();
    println!("{:<44} {:>12} {:>12}", "nanoseconds a call", "median", "fastest");
    // SAFETY: all pointers are null or to live variables, all handles come from the library.
    unsafe {
        start(&acl, "auto", 64 << 30);
        simple(&acl);
        queues(&acl);
        memory(&acl, "");
        start(&acl, "mapped", 4 << 30);
        memory(&acl, ", mapped");
    }
}

/// A new machine with device 0 set.
unsafe fn start(acl: &Acl, backing: &str, capacity: u64) {
    let kind = CString::new(backing).expect("no zero inside");
    // SAFETY: a text that ends with a zero, and numbers.
    unsafe {
        good(acl.look::<Text>("acl_sim_set_backing")(kind.as_ptr()));
        good(acl.look::<Plain>("acl_sim_reset")());
        let set = acl.look::<unsafe extern "C" fn(c_int, u64) -> c_int>("acl_sim_set_capacity");
        good(set(0, capacity));
        good(acl.look::<Device>("aclrtSetDevice")(0));
    }
}

/// Calls that ask.
unsafe fn simple(acl: &Acl) {
    let (get, version) = (acl.look::<Out>("aclrtGetDevice"), acl.look::<Device>("aclrtSetDevice"));
    let info = acl.look::<MemInfo>("aclrtGetMemInfo");
    let free = acl.look::<One>("aclrtFree");
    let (mut device, mut left, mut total) = (0, 0, 0);
    // SAFETY: live variables.
    unsafe {
        measure("aclrtGetDevice", 1, || good(get(&mut device)));
        measure("aclrtSetDevice", 1, || good(version(0)));
        measure("aclrtGetMemInfo", 1, || good(info(1, &mut left, &mut total)));
        measure("aclrtFree of a wrong address (refused)", 1, || {
            black_box(free(std::ptr::without_provenance_mut(8)));
        });
    }
}

/// Streams and events.
unsafe fn queues(acl: &Acl) {
    let make_event = acl.look::<MakeWith>("aclrtCreateEventExWithFlag");
    let (record, status) = (acl.look::<Two>("aclrtRecordEvent"), acl.look::<OutOf>("aclrtQueryEventStatus"));
    let (query, wait) = (acl.look::<OutOf>("aclrtStreamQuery"), acl.look::<One>("aclrtSynchronizeStream"));
    let (fill, malloc) = (acl.look::<Fill>("aclrtMemsetAsync"), acl.look::<Malloc>("aclrtMalloc"));
    let destroy = acl.look::<One>("aclrtDestroyEvent");
    let (mut stream, mut event, mut block) =
        (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    let mut answer = 0;
    // SAFETY: live variables and handles of the library.
    unsafe {
        good(acl.look::<Make>("aclrtCreateStream")(&mut stream));
        good(make_event(&mut event, 1));
        good(malloc(&mut block, 4096, 0));
        measure("aclrtStreamQuery", 1, || good(query(stream, &mut answer)));
        measure("aclrtSynchronizeStream of an idle stream", 1, || good(wait(stream)));
        measure("aclrtCreateEventExWithFlag + DestroyEvent", 2, || {
            let mut event = std::ptr::null_mut();
            good(make_event(&mut event, 1));
            good(destroy(event));
        });
        measure("aclrtRecordEvent", 1, || good(record(event, stream)));
        good(wait(stream));
        measure("aclrtQueryEventStatus", 1, || good(status(event, &mut answer)));
        measure("aclrtRecordEvent + SynchronizeStream", 2, || {
            good(record(event, stream));
            good(wait(stream));
        });
        measure("aclrtMemsetAsync of 4 KiB", 1, || good(fill(block, 4096, 0, 4096, stream)));
        good(wait(stream));
    }
}

/// Memory.
unsafe fn memory(acl: &Acl, note: &str) {
    let (malloc, free) = (acl.look::<Malloc>("aclrtMalloc"), acl.look::<One>("aclrtFree"));
    let (reserve, release) =
        (acl.look::<Reserve>("aclrtReserveMemAddress"), acl.look::<One>("aclrtReleaseMemAddress"));
    let (physical, drop) =
        (acl.look::<Physical>("aclrtMallocPhysical"), acl.look::<One>("aclrtFreePhysical"));
    let (map, unmap) = (acl.look::<Map>("aclrtMapMem"), acl.look::<One>("aclrtUnmapMem"));
    let mut start = std::ptr::null_mut();
    // SAFETY: live variables and handles of the library.
    unsafe {
        measure(&format!("aclrtMalloc of 2 MiB + Free{note}"), 2, || {
            let mut block = std::ptr::null_mut();
            good(malloc(&mut block, GRANULE, 0));
            good(free(block));
        });
        measure(&format!("aclrtReserveMemAddress + Release{note}"), 2, || {
            let mut start = std::ptr::null_mut();
            good(reserve(&mut start, GRANULE, 0, std::ptr::null_mut(), 0));
            good(release(start));
        });
        measure(&format!("aclrtMallocPhysical + FreePhysical{note}"), 2, || {
            let mut chunk = std::ptr::null_mut();
            good(physical(&mut chunk, GRANULE, PROP.as_ptr(), 0));
            good(drop(chunk));
        });
        good(reserve(&mut start, GRANULE, 0, std::ptr::null_mut(), 0));
        let mut chunk = std::ptr::null_mut();
        good(physical(&mut chunk, GRANULE, PROP.as_ptr(), 0));
        measure(&format!("aclrtMapMem + UnmapMem{note}"), 2, || {
            good(map(start, GRANULE, 0, chunk, 0));
            good(unmap(start));
        });
    }
}

/// Runs a body that makes that many calls, in rounds, and prints nanoseconds for one call.
fn measure(name: &str, calls: usize, mut body: impl FnMut()) {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..CALLS {
                body();
            }
            start.elapsed().as_secs_f64() * 1e9 / (CALLS * calls) as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{name:<44} {:>12.0} {:>12.0}", rounds[ROUNDS / 2], rounds[0]);
}

fn good(code: c_int) {
    assert_eq!(black_box(code), 0, "a call that is measured must succeed");
}

/// The library that was built for this run: beside the running file.
fn library() -> PathBuf {
    std::env::current_exe().expect("the benchmark has a file").with_file_name("libascendcl.so")
}
