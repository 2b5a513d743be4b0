//! The library under test: where it is, how its calls are made, how C programs are built on it.

#![allow(dead_code)] // Every test binary uses another part.

use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use libloading::Library;

/// The folder of the package.
pub const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

/// The library, built for this very run of the tests: beside the running test.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a file");
    let file = test.with_file_name("libascendcl.so");
    assert!(file.exists(), "{} is not built", file.display());
    file
}

/// A folder for one test, empty.
pub fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ascendcl").join(test);
    let _absent = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the scratch folder can be written");
    folder
}

/// Runs a command that must succeed.
#[track_caller]
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    output
}

/// What a command printed, which must succeed.
#[track_caller]
pub fn printed(command: &mut Command) -> String {
    String::from_utf8_lossy(&run(command).stdout).into_owned()
}

/// Compiles a program of `tests/programs`, linked with the library unless `loads` says that it loads
/// the library by itself.
pub fn program(name: &str, loads: bool) -> PathBuf {
    let source = Path::new(PACKAGE).join("tests/programs").join(name);
    let file = folder(name).join("program");
    let mut compiler = Command::new("gcc");
    compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread"]);
    compiler.arg("-I").arg(Path::new(PACKAGE).join("include"));
    compiler.arg("-I").arg(Path::new(PACKAGE).join("../../ffi/acl"));
    compiler.arg("-o").arg(&file).arg(source);
    if !loads {
        let library = library();
        let folder = library.parent().expect("a file has a folder").to_owned();
        compiler.arg(&library).arg(format!("-Wl,-rpath,{}", folder.display()));
    }
    run(compiler.arg("-ldl"));
    file
}

/// A command without variables that would change what the library answers, or which library is found
/// (cargo's would find an older one).
pub fn clean(file: &Path) -> Command {
    let mut command = Command::new(file);
    command.env_remove("LD_LIBRARY_PATH");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ASCEND_")) {
        command.env_remove(name);
    }
    command
}

/// The library's calls.
pub struct Acl {
    library: Library,
}

impl Acl {
    /// Opens the library.
    pub fn open(file: &Path) -> Self {
        // SAFETY: the library's initialisers only prepare the Rust runtime.
        let library = unsafe { Library::new(file) };
        Self { library: library.unwrap_or_else(|error| panic!("{}: {error}", file.display())) }
    }

    /// Whether there is a symbol of that name.
    pub fn has(&self, name: &str) -> bool {
        // SAFETY: the symbol is not used.
        unsafe { self.library.get::<*const ()>(name).is_ok() }
    }

    /// Makes a call with numbers and pointers as arguments.
    ///
    /// # Safety
    /// The pointers among the arguments are as the call needs them.
    #[track_caller]
    pub unsafe fn try_call(&self, name: &str, arguments: &[u64]) -> i32 {
        type Function = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> i32;
        let mut all = [0; 10];
        all[..arguments.len()].copy_from_slice(arguments);
        // SAFETY: every call takes numbers and pointers only, and on the targets there are a call may
        // get more of them, and wider ones, than it looks at.
        unsafe {
            let call = self.library.get::<Function>(name).unwrap_or_else(|error| panic!("{name}: {error}"));
            call(all[0], all[1], all[2], all[3], all[4], all[5], all[6], all[7], all[8], all[9])
        }
    }

    /// The same for a call that must succeed.
    ///
    /// # Safety
    /// As [`try_call`](Self::try_call).
    #[track_caller]
    pub unsafe fn call(&self, name: &str, arguments: &[u64]) {
        // SAFETY: the caller's promise.
        let code = unsafe { self.try_call(name, arguments) };
        assert_eq!(code, 0, "{name}({arguments:x?}): {}", self.error());
    }

    /// A call whose first argument is where the answer goes: the answer, or the code.
    ///
    /// # Safety
    /// As [`try_call`](Self::try_call).
    #[track_caller]
    pub unsafe fn make(&self, name: &str, arguments: &[u64]) -> Result<u64, i32> {
        let mut out = 0u64;
        let all: Vec<u64> = std::iter::once(at(&mut out)).chain(arguments.iter().copied()).collect();
        // SAFETY: the first argument is a live variable, the caller vouches for the others.
        match unsafe { self.try_call(name, &all) } {
            0 => Ok(out),
            code => Err(code),
        }
    }

    /// The text of the thread's last failures.
    pub fn error(&self) -> String {
        // SAFETY: the call has no arguments and answers a text or null.
        unsafe {
            let call = self.library.get::<unsafe extern "C" fn() -> *const c_char>("aclGetRecentErrMsg");
            let text = call.expect("the library has the call")();
            if text.is_null() {
                return String::new();
            }
            std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }

    /// What a control that writes JSON writes.
    pub fn json(&self, name: &str) -> String {
        // SAFETY: a null buffer of no bytes, then one of as many bytes as are told.
        unsafe {
            let length = usize::try_from(self.try_call(name, &[0, 0])).expect("a length");
            let mut buffer = vec![0u8; length + 1];
            let again =
                self.try_call(name, &[buffer.as_mut_ptr().expose_provenance() as u64, length as u64 + 1]);
            assert!(again >= 0);
            buffer.truncate(length);
            String::from_utf8(buffer).expect("JSON is UTF-8")
        }
    }

    /// A control with a text as its first argument.
    #[track_caller]
    pub fn set(&self, name: &str, text: &str) {
        let text = CString::new(text).expect("no zero inside");
        // SAFETY: a text that ends with a zero.
        unsafe { self.call(name, &[text.as_ptr().expose_provenance() as u64]) };
    }
}

/// The address of a variable as an argument.
pub fn at<T>(variable: &mut T) -> u64 {
    std::ptr::from_mut(variable).expose_provenance() as u64
}

/// The library in this process, with a new machine; tests that use it take turns.
pub fn machine() -> (&'static Acl, MutexGuard<'static, ()>) {
    static ACL: LazyLock<Acl> = LazyLock::new(|| Acl::open(&library()));
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let _old = ACL.error();
    // SAFETY: the control has no arguments. It comes last, so that no call was made on the new machine.
    unsafe { ACL.call("acl_sim_reset", &[]) };
    (&ACL, turn)
}

/// The symbols of `symbols.txt` with their versions.
pub fn symbols() -> Vec<(&'static str, &'static str)> {
    let lines = include_str!("../../symbols.txt").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_once(' ').expect("a name and a version")).collect()
}
