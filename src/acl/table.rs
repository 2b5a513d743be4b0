//! Finds the runtime library and fills the table of its functions.
//!
//! Where the library comes from, in this order; the first that has ACL's functions is taken:
//!
//! 1. the file named by [`LIBRARY_VARIABLE`]; if it is set, nothing else is tried;
//! 2. what the process has loaded already: `libascendcl.so`, `libacl_rt.so`, then any library
//!    whose symbols are visible in the whole process (linked or preloaded). Two copies of the
//!    runtime in one process would not know each other's devices and memory;
//! 3. `libacl_rt.so`, then `libascendcl.so`, in the library folders under `ASCEND_HOME_PATH`;
//! 4. the same names, where the dynamic loader looks.

use core::ffi::{CStr, c_int, c_void};
use core::fmt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

use super::sys::{Functions, with_function_names};
use crate::driver::DriverError;

/// The environment variable that names the library file and overrides the search.
pub const LIBRARY_VARIABLE: &str = "ASCEND_ALLOC_ACL_LIBRARY";

/// The environment variable with the folder of the toolkit.
const HOME_VARIABLE: &str = "ASCEND_HOME_PATH";

/// The functions without which nothing works; all others may be missing from an older library.
pub const REQUIRED: &[&CStr] = &[
    c"aclInit",
    c"aclrtCreateEventExWithFlag",
    c"aclrtDestroyEvent",
    c"aclrtFree",
    c"aclrtGetCurrentContext",
    c"aclrtGetDevice",
    c"aclrtGetDeviceCount",
    c"aclrtGetMemInfo",
    c"aclrtMallocAlign32",
    c"aclrtQueryEventStatus",
    c"aclrtRecordEvent",
    c"aclrtResetDevice",
    c"aclrtSetCurrentContext",
    c"aclrtSetDevice",
    c"aclrtStreamWaitEvent",
    c"aclrtSynchronizeDevice",
    c"aclrtSynchronizeEvent",
    c"aclrtSynchronizeStream",
];

/// A loaded runtime library. Its methods are the calls, one each.
#[derive(Clone)]
pub struct Acl {
    pub(super) functions: Functions,
    /// The file the functions come from, or how they were found.
    origin: String,
}

/// Where to look for the library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// The only file to try.
    pub library: Option<PathBuf>,
    /// The folder of the toolkit.
    pub home: Option<PathBuf>,
}

/// A place that was tried, and why it did not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// A file, a name for the loader, or what else was looked at.
    pub place: String,
    /// What the loader said, or what was not found.
    pub reason: String,
}

/// Why no runtime library could be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// The library named by [`LIBRARY_VARIABLE`] cannot be loaded.
    Named(Attempt),
    /// No place has a library; all that were tried, in order.
    NotFound(Vec<Attempt>),
    /// The library lacks functions that are [`REQUIRED`].
    MissingSymbols {
        /// The file.
        library: String,
        /// All that are missing, in the order of the alphabet.
        symbols: Vec<&'static str>,
    },
    /// The library was loaded and `aclInit` failed.
    Init(DriverError),
}

impl Search {
    /// The search that the environment asks for. An empty variable counts as unset.
    #[must_use]
    pub fn from_environment() -> Self {
        let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self { library: path(LIBRARY_VARIABLE), home: path(HOME_VARIABLE) }
    }
}

impl Acl {
    /// Loads the library; it stays loaded until the process ends.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if there is no library or it lacks a required function. What was tried is
    /// listed.
    ///
    /// # Safety
    ///
    /// What is found must be ACL's runtime, or behave like it: its initialisers run, and its
    /// functions are called with the signatures of `ffi/acl/acl_runtime.h`.
    pub unsafe fn load(search: &Search) -> Result<Self, LoadError> {
        if let Some(path) = &search.library {
            let place = path.display().to_string();
            // SAFETY: the caller vouches for the file.
            return match unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_LOCAL) } {
                Ok(library) => Self::of(library, &place),
                Err(error) => Err(LoadError::Named(Attempt { place, reason: reason_of(&error) })),
            };
        }
        let mut tried = Vec::new();
        for candidate in candidates(search.home.as_deref()) {
            // SAFETY: the caller vouches for what these places hold.
            match unsafe { candidate.open() } {
                Ok(library) => return Self::of(library, &candidate.place()),
                Err(reason) => tried.push(Attempt { place: candidate.place(), reason }),
            }
        }
        Err(LoadError::NotFound(tried))
    }

    /// The file that the functions come from.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The functions of `ffi/acl/acl_runtime.h` that the library does not have; none of them is
    /// required.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        macro_rules! list {
            ($($name:ident),*) => {
                [$((stringify!($name), self.functions.$name.is_none())),*]
            };
        }
        with_function_names!(list).iter().filter(|entry| entry.1).map(|entry| entry.0).collect()
    }

    /// Whether the library has the calls to reserve, map and unmap, with all they need.
    #[must_use]
    pub fn has_virtual_memory(&self) -> bool {
        let table = &self.functions;
        table.aclrtReserveMemAddress.is_some()
            && table.aclrtReleaseMemAddress.is_some()
            && table.aclrtMallocPhysical.is_some()
            && table.aclrtFreePhysical.is_some()
            && table.aclrtMapMem.is_some()
            && table.aclrtUnmapMem.is_some()
            && table.aclrtMemGetAllocationGranularity.is_some()
    }

    /// Fills the table; required functions must be there.
    fn of(library: Library, place: &str) -> Result<Self, LoadError> {
        let address_of = |name: &CStr| symbol(&library, name);
        let origin = REQUIRED.iter().map(|name| address_of(name)).find(|address| !address.is_null());
        let origin = origin.and_then(file_of).unwrap_or_else(|| place.to_owned());
        let missing = REQUIRED.iter().filter(|name| address_of(name).is_null());
        let symbols: Vec<&'static str> = missing.map(|name| name.to_str().unwrap_or_default()).collect();
        if !symbols.is_empty() {
            return Err(LoadError::MissingSymbols { library: origin, symbols });
        }
        let functions = resolve(address_of);
        // Rule 1 of the layer: never unloaded.
        core::mem::forget(library);
        Ok(Self { functions, origin })
    }
}

/// One place of the automatic search.
enum Candidate {
    /// A library of this name, if the process has loaded it.
    Loaded(&'static str),
    /// Any symbols visible in the whole process.
    Process,
    /// A file of the toolkit.
    File(PathBuf),
    /// A name for the dynamic loader.
    Name(&'static str),
}

impl Candidate {
    fn place(&self) -> String {
        match self {
            Self::Loaded(name) => format!("{name} loaded before"),
            Self::Process => "symbols of the process".to_owned(),
            Self::File(path) => path.display().to_string(),
            Self::Name(name) => (*name).to_owned(),
        }
    }

    /// The library, if it is there and has at least one of the required functions: something
    /// without any is not ACL, whatever its name.
    ///
    /// # Safety
    ///
    /// As [`Acl::load`].
    unsafe fn open(&self) -> Result<Library, String> {
        let flags = RTLD_LAZY | RTLD_LOCAL;
        let library = match self {
            Self::Process => Ok(Library::this()),
            // SAFETY: the caller vouches for the library; here it has run its initialisers before.
            Self::Loaded(name) => unsafe { Library::open(Some(*name), flags | RTLD_NOLOAD) },
            // SAFETY: the caller vouches for the library.
            Self::File(path) => unsafe { Library::open(Some(path), flags) },
            // SAFETY: the caller vouches for the library.
            Self::Name(name) => unsafe { Library::open(Some(*name), flags) },
        };
        let library = match (library, self) {
            (Ok(library), _) => library,
            // The loader's text for this case is empty or about an older failure.
            (Err(_), Self::Loaded(_)) => return Err("is not loaded".to_owned()),
            (Err(error), _) => return Err(reason_of(&error)),
        };
        if REQUIRED.iter().all(|name| symbol(&library, name).is_null()) {
            if !matches!(self, Self::Process) {
                // Rule 1 of the layer holds for libraries that turn out to be something else, too.
                core::mem::forget(library);
            }
            return Err("has none of ACL's functions".to_owned());
        }
        Ok(library)
    }
}

/// `RTLD_NOLOAD`: a handle only if the library is loaded already.
const RTLD_NOLOAD: c_int = if cfg!(any(target_os = "linux", target_os = "android")) { 0x4 } else { 0x10 };

/// The places in the order of the module's documentation.
fn candidates(home: Option<&Path>) -> Vec<Candidate> {
    const NAMES: [&str; 2] = ["libacl_rt.so", "libascendcl.so"];
    let mut found =
        vec![Candidate::Loaded("libascendcl.so"), Candidate::Loaded("libacl_rt.so"), Candidate::Process];
    if let Some(home) = home {
        let host = format!("{}-linux/lib64", std::env::consts::ARCH);
        let folders = ["lib64", "runtime/lib64", "acllib/lib64", host.as_str()];
        let files =
            NAMES.iter().flat_map(|name| folders.iter().map(move |folder| home.join(folder).join(name)));
        found.extend(files.map(Candidate::File));
    }
    found.extend(NAMES.map(Candidate::Name));
    found
}

/// The address of a symbol; null if the library has none of this name.
fn symbol(library: &Library, name: &CStr) -> *const c_void {
    // SAFETY: the address is only kept, not used, under this type.
    let found = unsafe { library.get::<*const c_void>(name.to_bytes_with_nul()) };
    found.map_or(core::ptr::null(), |symbol| symbol.into_raw().cast_const())
}

/// The table, with a null pointer where `address_of` answers null.
// The types to transmute to are those of the fields, which the generated table declares.
#[allow(clippy::missing_transmute_annotations)]
fn resolve(address_of: impl Fn(&CStr) -> *const c_void) -> Functions {
    macro_rules! fill {
        ($($name:ident),*) => {
            Functions {
                $($name: {
                    let name = concat!(stringify!($name), "\0").as_bytes();
                    let address = CStr::from_bytes_with_nul(name).map_or(core::ptr::null(), &address_of);
                    // SAFETY: a nullable function pointer has the size of a pointer and null is
                    // `None`; that the symbol has this signature is what `Acl::load` asks for.
                    unsafe { core::mem::transmute(address) }
                },)*
            }
        };
    }
    with_function_names!(fill)
}

/// The file that is mapped at the address, from the kernel's list of this process; for messages.
fn file_of(address: *const c_void) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let bounds =
            range.map(|(start, end)| (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16)));
        matches!(bounds, Some((Ok(start), Ok(end))) if (start..end).contains(&address.addr()))
    })?;
    line.find('/').map(|start| line[start..].to_owned())
}

impl fmt::Debug for Acl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acl").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(attempt) => {
                write!(f, "cannot load {}, named by {LIBRARY_VARIABLE}: {}", attempt.place, attempt.reason)
            }
            Self::NotFound(attempts) => {
                write!(f, "found no ACL runtime library (libacl_rt.so or libascendcl.so); tried")?;
                for (index, attempt) in attempts.iter().enumerate() {
                    let separator = if index == 0 { ':' } else { ';' };
                    write!(f, "{separator} {} ({})", attempt.place, attempt.reason)?;
                }
                write!(f, ". Set {LIBRARY_VARIABLE} to the file, or {HOME_VARIABLE} to the toolkit's folder")
            }
            Self::MissingSymbols { library, symbols } => {
                write!(f, "{library} lacks {} which this program needs", symbols.join(", "))
            }
            Self::Init(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for LoadError {}

/// What the dynamic loader said; the error's own text is only that loading failed.
fn reason_of(error: &libloading::Error) -> String {
    core::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_names_are_sorted_and_known() {
        assert!(REQUIRED.is_sorted());
        let asked = core::cell::RefCell::new(Vec::new());
        resolve(|name| {
            asked.borrow_mut().push(name.to_owned());
            core::ptr::null()
        });
        let asked = asked.into_inner();
        assert!(REQUIRED.iter().all(|name| asked.iter().any(|known| known.as_c_str() == *name)));
    }

    #[test]
    fn a_missing_symbol_leaves_a_null_pointer() {
        let table = resolve(|name| if name == c"aclInit" { 8 as *const c_void } else { core::ptr::null() });
        assert!(table.aclInit.is_some());
        assert!(table.aclrtFree.is_none());
    }

    #[test]
    fn places_are_tried_in_the_documented_order() {
        let places: Vec<_> = candidates(Some(Path::new("/toolkit"))).iter().map(Candidate::place).collect();
        let position = |name: &str| places.iter().position(|place| place == name);
        let order = [
            "libascendcl.so loaded before",
            "libacl_rt.so loaded before",
            "symbols of the process",
            "/toolkit/lib64/libacl_rt.so",
            "/toolkit/lib64/libascendcl.so",
            "libacl_rt.so",
            "libascendcl.so",
        ];
        let positions: Vec<_> = order.iter().map(|name| position(name).expect(name)).collect();
        assert!(positions.is_sorted(), "{places:?}");
    }

    #[test]
    fn the_file_of_an_address_is_found() {
        let here = file_of(the_file_of_an_address_is_found as *const c_void);
        let program = std::env::current_exe().expect("the test has a file");
        assert_eq!(here.as_deref(), program.to_str());
        assert_eq!(file_of(core::ptr::null()), None);
    }
}
