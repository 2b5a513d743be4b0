//! Where programs run, as the environment says.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use ascend_alloc::acl::{Acl, LIBRARY_VARIABLE, Search, codes};
use ascend_alloc::driver::AclDriver;
use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

use crate::machine::AclMachine;
use crate::surface::{CSurface, Functions};
use crate::world::{Ground, Place};

/// The variable that chooses the driver of the tests.
pub const DRIVER_VARIABLE: &str = "ASCEND_ALLOC_TEST_DRIVER";

/// Memory of a simulated device of a library.
const CAPACITY: u64 = 256 << 20;

/// The runtime library of this process.
struct Runtime {
    acl: Acl,
    machine: Arc<AclMachine>,
}

/// Whether programs are to run on a runtime library.
///
/// # Panics
///
/// The variable names something else.
#[must_use]
pub fn wants_acl() -> bool {
    match std::env::var(DRIVER_VARIABLE).as_deref() {
        Err(_) | Ok("" | "sim") => false,
        Ok("acl") => true,
        Ok(other) => panic!("{DRIVER_VARIABLE} is {other:?}, expected sim or acl"),
    }
}

/// Simulators in this process, or a runtime library where [`DRIVER_VARIABLE`] says so.
#[must_use]
pub fn rust() -> Ground {
    if !wants_acl() {
        return Ground::sim();
    }
    let runtime = runtime(&[]);
    // SAFETY: programs pass only what they were given and still have.
    let driver = Arc::new(unsafe { AclDriver::attach(runtime.acl.clone()) });
    Ground { place: Place::Acl(runtime.machine.clone(), driver), messages: Arc::default() }
}

/// The allocator of this process by its C functions. Without a library in the environment the simulator's is taken
/// from the first of these files that is there.
///
/// # Panics
///
/// There is no library, or the allocator is refused.
///
/// # Safety
///
/// The functions are those of this repository's C library, and the file is a runtime library.
#[must_use]
pub unsafe fn c(functions: Functions, files: &[PathBuf]) -> Ground {
    let runtime = runtime(files);
    // SAFETY: the caller's promise; the runtime library is loaded, which is where the allocator looks first.
    let surface = unsafe { CSurface::new(functions, "check_level:2") };
    let surface = surface.unwrap_or_else(|refusal| panic!("the allocator of the process: {refusal}"));
    Ground { place: Place::Process(runtime.machine.clone(), Arc::new(surface)), messages: Arc::default() }
}

/// The functions of a C library.
///
/// # Panics
///
/// It cannot be loaded or lacks one.
///
/// # Safety
///
/// It is the C library of this repository.
#[must_use]
pub unsafe fn functions_of(file: &std::path::Path) -> Functions {
    // SAFETY: the caller's promise.
    let library = unsafe { Library::open(Some(file), RTLD_LAZY | RTLD_LOCAL) };
    let library = library.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let find = |name: &str| {
        // SAFETY: only the address is taken.
        unsafe { library.get::<*const c_void>(name.as_bytes()) }
            .ok()
            .map(|symbol| symbol.into_raw().cast_const())
    };
    // SAFETY: the caller's promise.
    let functions = unsafe { Functions::find(&find) };
    // It stays to the end of the process.
    core::mem::forget(library);
    functions
}

/// Loads and starts the runtime library once.
fn runtime(files: &[PathBuf]) -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut search = Search::from_environment();
        if search.library.is_none() && search.home.is_none() {
            search.library = files.iter().find(|file| file.is_file()).cloned();
        }
        // SAFETY: what the environment or the caller names is a runtime library.
        let acl = unsafe { Acl::load(&search) }.unwrap_or_else(|error| {
            panic!("{error}\nname a library in {LIBRARY_VARIABLE}, or build the simulator's: cargo build -p ascendcl-sim")
        });
        prepare(acl.origin());
        match acl.init(None) {
            Ok(()) => {}
            Err(error) if matches!(error.code, codes::REPEAT_INITIALIZE | codes::INVALID_PARAM) => {}
            Err(error) => panic!("{error}"),
        }
        let machine = Arc::new(AclMachine::new(acl.clone(), CAPACITY));
        let lacks = crate::machine::Machine::lacks(&*machine);
        eprintln!("{}: without {}", acl.origin(), lacks.join(", "));
        Runtime { acl, machine }
    })
}

/// Tells the simulator's library, before its first call, to run work inside calls and to keep bytes in tables. A
/// vendor's library is not touched.
fn prepare(origin: &str) {
    // SAFETY: the library is loaded already.
    let Ok(library) = (unsafe { Library::open(Some(origin), RTLD_LAZY | RTLD_LOCAL) }) else { return };
    let set = |name: &[u8], value: &CStr| {
        // SAFETY: the simulator's header gives the function this type.
        let found = unsafe { library.get::<unsafe extern "C" fn(*const c_char) -> c_int>(name) };
        if let Ok(set) = found {
            // SAFETY: a text that is copied.
            let answer = unsafe { set(value.as_ptr()) };
            assert_eq!(answer, 0, "{} {value:?}", String::from_utf8_lossy(name));
        }
    };
    set(b"acl_sim_set_exec\0", c"deterministic:1");
    set(b"acl_sim_set_backing\0", c"tables");
    core::mem::forget(library);
}
