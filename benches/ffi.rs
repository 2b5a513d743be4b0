//! What the C ABI costs: an allocation and its free through `libascend_alloc.so`, beside the same through Rust.
//!
//! `cargo bench --bench ffi` prints a table and ends with 1 where the C pair costs more than 15 % and 15 ns more than
//! the Rust pair. Both run on the simulator's `libascendcl.so`, which a pair that the front cache serves never calls.
//! Each figure is the least of many short turns, the two sides in turns, so that what else the machine does
//! matters little; instruction counts, which do not depend on it, are in `benches/README.md`.

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use ascend_alloc::driver::{AclDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, DevicePtr};
use libloading::Library;

/// Pairs in a turn.
const TURN: u32 = 2_000;
/// Turns of each side.
const TURNS: usize = 300;
/// Live blocks beside the ones measured.
const OTHERS: u64 = 1_000;

const SIZES: [(&str, u64); 4] =
    [("512 B", 512), ("64 KiB", 64 << 10), ("2 MiB", 2 << 20), ("64 MiB", 64 << 20)];

type Malloc = unsafe extern "C" fn(usize, c_int, *mut c_void) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void, usize, c_int, *mut c_void);

/// The C library, loaded as a framework loads it.
struct C {
    malloc: Malloc,
    free: Free,
}

impl C {
    fn load(file: &Path) -> C {
        // SAFETY: the library was built with this program, and stays loaded.
        let library = Box::leak(Box::new(unsafe { Library::new(file) }.expect("the C library loads")));
        // SAFETY: the types are those of the header.
        unsafe {
            C {
                malloc: *library.get(b"ascend_alloc_malloc\0").expect("it is exported"),
                free: *library.get(b"ascend_alloc_free\0").expect("it is exported"),
            }
        }
    }

    #[inline(never)]
    fn pairs(&self, bytes: u64, count: u32) {
        for _ in 0..count {
            // SAFETY: the default stream, and the block that was just handed out.
            unsafe {
                let block = (self.malloc)(bytes as usize, 0, std::ptr::null_mut());
                assert!(!block.is_null());
                (self.free)(block, bytes as usize, 0, std::ptr::null_mut());
            }
        }
    }
}

#[inline(never)]
fn rust_pairs(allocator: &DeviceAllocator, bytes: u64, count: u32) {
    for _ in 0..count {
        let block = allocator.allocate(0, bytes, 0, Stream(0)).expect("there is memory");
        allocator.deallocate(block).expect("the block is live");
    }
}

fn main() -> ExitCode {
    let simulator = built("libascendcl.so");
    for (name, value) in [
        ("ASCEND_ALLOC_ACL_LIBRARY", simulator.as_os_str()),
        ("ASCEND_SIM_BACKING", "tables".as_ref()),
        ("ASCEND_SIM_CHECKER", "0".as_ref()),
    ] {
        // SAFETY: this program has one thread.
        unsafe { std::env::set_var(name, value) };
    }
    let c = C::load(&built("libascend_alloc.so"));
    // SAFETY: the simulator behaves like the vendor's library.
    let driver = unsafe { AclDriver::open() }.expect("the simulator loads");
    let config = Config::from_env().expect("the environment is sound");
    let rust = DeviceAllocator::new(config, Arc::new(driver)).expect("the configuration is sound");
    let _others = others(&c, &rust);
    let mut within = true;
    println!("least of {TURNS} turns of {TURN} pairs, ns per pair");
    for (name, bytes) in SIZES {
        let (of_rust, of_c) = measure(&c, &rust, bytes);
        let more = of_c - of_rust;
        let fits = more <= 15.0 || more <= 0.15 * of_rust;
        within &= fits;
        let verdict = if fits { "" } else { "  more than 15 % and 15 ns" };
        println!("pair of {name:<7} Rust {of_rust:>6.1}  C {of_c:>6.1}  {more:>+5.1}{verdict}");
    }
    if within { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The same other blocks live on both sides.
fn others(c: &C, rust: &DeviceAllocator) -> Vec<DevicePtr> {
    (0..OTHERS)
        .map(|number| {
            let bytes = 512 << (number % 12);
            // SAFETY: the default stream.
            let block = unsafe { (c.malloc)(bytes as usize, 0, std::ptr::null_mut()) };
            assert!(!block.is_null());
            rust.allocate(0, bytes, 0, Stream(0)).expect("there is memory")
        })
        .collect()
}

/// Nanoseconds of a pair through Rust and through C.
fn measure(c: &C, rust: &DeviceAllocator, bytes: u64) -> (f64, f64) {
    let mut least = (f64::MAX, f64::MAX);
    for _ in 0..TURNS {
        least.0 = least.0.min(turn(|| rust_pairs(rust, black_box(bytes), TURN)));
        least.1 = least.1.min(turn(|| c.pairs(black_box(bytes), TURN)));
    }
    least
}

fn turn(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_nanos() as f64 / f64::from(TURN)
}

/// A library that was built with this program: beside it.
fn built(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("the program has a path");
    let file = program.parent().expect("it lies in a folder").join(name);
    assert!(file.is_file(), "{} was not built with the bench", file.display());
    file
}
