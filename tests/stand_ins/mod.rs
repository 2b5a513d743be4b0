//! Stand-ins for the vendor's library: compiled here from C, with the header of `ffi/acl`.
//!
//! Each [`StandIn`] is a file of its own, so that each has its own state, however many tests one
//! process runs.

#![allow(dead_code)] // Every test binary uses another part.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

use ascend_alloc::acl::{Acl, LoadError, Search};
use ascend_alloc::driver::AclDriver;
use libloading::os::unix::Library;

/// The folder that tests may write to.
pub const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");
/// The folder of the workspace.
pub const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// All functions of the header.
pub const FULL: &str = "STAND_IN_FULL";
/// Lacks what CANN 8.0 lacks.
pub const CANN_8_0: &str = "STAND_IN_8_0";
/// Lacks the calls to reserve and map.
pub const WITHOUT_VMM: &str = "STAND_IN_WITHOUT_VMM";
/// Lacks `aclrtFree` and `aclrtMallocAlign32`.
pub const WITHOUT_REQUIRED: &str = "STAND_IN_WITHOUT_REQUIRED";

/// Compiles a stand-in into `folder/name` and answers the path.
///
/// `soname` is the name the dynamic loader knows it by once it is loaded.
pub fn compile(variant: &str, folder: &Path, name: &str, soname: Option<&str>) -> PathBuf {
    std::fs::create_dir_all(folder).expect("the scratch folder can be written");
    let file = folder.join(name);
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu99", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-pthread"]);
    gcc.arg(format!("-D{variant}")).arg(format!("-I{ROOT}/ffi/acl"));
    if let Some(soname) = soname {
        gcc.arg(format!("-Wl,-soname,{soname}"));
    }
    gcc.arg("-o").arg(&file).arg(format!("{ROOT}/tests/stand_ins/runtime.c"));
    run(&mut gcc);
    file
}

/// Runs a command that must succeed.
pub fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A folder for one test, empty.
pub fn folder(test: &str) -> PathBuf {
    let folder = Path::new(SCRATCH).join(test);
    let _absent = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the scratch folder can be written");
    folder
}

/// A loaded stand-in and the handles to steer it.
pub struct StandIn {
    /// Its file.
    pub path: PathBuf,
    library: Library,
}

impl StandIn {
    /// Compiles and loads one for this test alone.
    pub fn new(variant: &str, test: &str) -> Self {
        Self::at(compile(variant, &folder(test), "libstand_in.so", None))
    }

    /// Loads one that is compiled.
    pub fn at(path: PathBuf) -> Self {
        // SAFETY: it has no initialisers.
        let library = unsafe { Library::new(&path) }.expect("the stand-in loads");
        Self { path, library }
    }

    /// The library as the crate loads it.
    pub fn load(&self) -> Result<Acl, LoadError> {
        let search = Search { library: Some(self.path.clone()), home: None };
        // SAFETY: the stand-in is compiled against the header.
        unsafe { Acl::load(&search) }
    }

    /// The calls, for a stand-in that has the required ones.
    pub fn acl(&self) -> Acl {
        self.load().expect("the stand-in has all that is required")
    }

    /// A driver on it.
    pub fn driver(&self) -> AclDriver {
        // SAFETY: the stand-in follows no handle or address but contexts, which it gave.
        unsafe { AclDriver::attach(self.acl()) }
    }

    /// What was called since the last time this was asked.
    pub fn calls(&self) -> Vec<String> {
        // SAFETY: the types are those of runtime.c; the tests that ask have no other thread calling.
        let text = unsafe {
            let calls = self.symbol::<extern "C" fn() -> *const c_char>(c"stand_in_calls");
            CStr::from_ptr(calls()).to_string_lossy().into_owned()
        };
        // SAFETY: as above.
        unsafe { self.symbol::<extern "C" fn()>(c"stand_in_clear")() };
        text.lines().map(str::to_owned).collect()
    }

    /// The same without the questions after the thread's device.
    pub fn acting_calls(&self) -> Vec<String> {
        let mut calls = self.calls();
        calls.retain(|call| {
            !call.starts_with("aclrtGetDevice(") && !call.starts_with("aclrtGetCurrentContext(")
        });
        calls
    }

    /// Lets the next `times` calls of a function fail.
    pub fn fail(&self, call: &str, code: i32, times: i32, message: &str) {
        let call = CString::new(call).expect("a name");
        let message = CString::new(message).expect("a text");
        type Fail = extern "C" fn(*const c_char, c_int, c_int, *const c_char);
        // SAFETY: the type is that of runtime.c; both texts are copied.
        unsafe { self.symbol::<Fail>(c"stand_in_fail")(call.as_ptr(), code, times, message.as_ptr()) };
    }

    /// The name of the part; empty if it cannot be read.
    pub fn set_soc(&self, name: &CStr) {
        // SAFETY: the type is that of runtime.c; the text is copied.
        unsafe { self.symbol::<extern "C" fn(*const c_char)>(c"stand_in_set_soc")(name.as_ptr()) };
    }

    /// The bytes of HBM the part says it has.
    pub fn set_hbm_total(&self, bytes: usize) {
        // SAFETY: the type is that of runtime.c.
        unsafe { self.symbol::<extern "C" fn(usize)>(c"stand_in_set_hbm_total")(bytes) };
    }

    /// The capture status of all streams.
    pub fn set_capture(&self, status: c_int) {
        // SAFETY: the type is that of runtime.c.
        unsafe { self.symbol::<extern "C" fn(c_int)>(c"stand_in_set_capture")(status) };
    }

    /// How often the device is set and not reset.
    pub fn references(&self, device: c_int) -> c_int {
        // SAFETY: the type is that of runtime.c.
        unsafe { self.symbol::<extern "C" fn(c_int) -> c_int>(c"stand_in_references")(device) }
    }

    /// The context of this thread, null without one.
    pub fn context(&self) -> *mut c_void {
        // SAFETY: the type is that of runtime.c.
        unsafe { self.symbol::<extern "C" fn() -> *mut c_void>(c"stand_in_context")() }
    }

    /// The code of this thread's last failed call, if nobody has taken it.
    pub fn last_error(&self) -> c_int {
        // SAFETY: the type is that of runtime.c.
        unsafe { self.symbol::<extern "C" fn() -> c_int>(c"stand_in_last_error")() }
    }

    /// # Safety
    ///
    /// `T` is the type of the symbol.
    unsafe fn symbol<T: Copy>(&self, name: &CStr) -> T {
        // SAFETY: as this function's.
        *unsafe { self.library.get::<T>(name.to_bytes_with_nul()) }.expect("the stand-in has its controls")
    }
}
