//! Where the library is looked for, and what is said when it is not there or lacks something.
//!
//! The search depends on the environment and on what is loaded, so most tests run their body in
//! a process of its own: the test starts itself again.

mod stand_ins;

use std::path::{Path, PathBuf};
use std::process::Command;

use ascend_alloc::acl::{Acl, LoadError, Search};
use ascend_alloc::driver::{AclDriver, Driver};
use stand_ins::{CANN_8_0, FULL, StandIn, WITHOUT_REQUIRED, WITHOUT_VMM, compile, folder};

const INSIDE: &str = "ASCEND_ALLOC_TEST_INSIDE";
const LIBRARY: &str = "ASCEND_ALLOC_ACL_LIBRARY";
const HOME: &str = "ASCEND_HOME_PATH";

/// True in the process of its own. In the first process it starts that one, with the environment
/// that `prepare` gives it, and asserts that the test passes there.
fn inside(test: &str, prepare: impl FnOnce(&mut Command)) -> bool {
    if std::env::var(INSIDE).is_ok_and(|name| name == test) {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().expect("the test has a file"));
    command.args(["--exact", test, "--nocapture"]).env(INSIDE, test);
    for variable in [LIBRARY, HOME, "LD_LIBRARY_PATH", "LD_PRELOAD"] {
        command.env_remove(variable);
    }
    prepare(&mut command);
    let output = command.output().expect("the test starts again");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
    false
}

fn load() -> Result<Acl, LoadError> {
    // SAFETY: only stand-ins can be found.
    unsafe { Acl::load(&Search::from_environment()) }
}

#[track_caller]
fn assert_origin(expected: &Path) {
    let acl = load().expect("a library is found");
    assert_eq!(Path::new(acl.origin()), expected.canonicalize().expect("the stand-in is there"));
    assert_eq!(acl.device_count().expect("the library answers"), 2);
}

/// A toolkit's folder with the given libraries in its `lib64`.
fn toolkit(test: &str, names: &[&str]) -> PathBuf {
    let home = folder(test);
    for name in names {
        compile(FULL, &home.join("lib64"), name, None);
    }
    home
}

#[test]
fn the_named_library_comes_before_all_others() {
    const TEST: &str = "the_named_library_comes_before_all_others";
    let place = Path::new(stand_ins::SCRATCH).join(TEST);
    let (named, loaded) = (place.join("lib64/named.so"), place.join("lib64/libacl_rt.so"));
    if inside(TEST, |command| {
        toolkit(TEST, &["named.so", "libacl_rt.so"]);
        command.env(LIBRARY, &named).env(HOME, &place).env("LD_PRELOAD", &loaded);
    }) {
        assert_origin(&named);
    }
}

#[test]
fn a_named_library_that_is_absent_is_an_error_and_nothing_else_is_tried() {
    const TEST: &str = "a_named_library_that_is_absent_is_an_error_and_nothing_else_is_tried";
    if inside(TEST, |command| {
        command.env(LIBRARY, "/nowhere/libacl_rt.so").env(HOME, toolkit(TEST, &["libacl_rt.so"]));
    }) {
        let error = load().expect_err("the named file is not there");
        assert!(matches!(&error, LoadError::Named(attempt) if attempt.place == "/nowhere/libacl_rt.so"));
        let text = error.to_string();
        assert!(text.contains(LIBRARY) && text.contains("/nowhere/libacl_rt.so"), "{text}");
    }
}

#[test]
fn an_empty_name_counts_as_none() {
    const TEST: &str = "an_empty_name_counts_as_none";
    let place = Path::new(stand_ins::SCRATCH).join(TEST);
    if inside(TEST, |command| {
        command.env(LIBRARY, "").env(HOME, toolkit(TEST, &["libacl_rt.so"]));
    }) {
        assert_origin(&place.join("lib64/libacl_rt.so"));
    }
}

#[test]
fn a_library_loaded_by_the_process_comes_before_the_toolkit() {
    const TEST: &str = "a_library_loaded_by_the_process_comes_before_the_toolkit";
    for name in ["libascendcl.so", "libacl_rt.so"] {
        let place = Path::new(stand_ins::SCRATCH).join(TEST);
        let loaded = place.join("elsewhere").join(name);
        if inside(TEST, |command| {
            let home = toolkit(TEST, &["libacl_rt.so", "libascendcl.so"]);
            compile(FULL, &home.join("elsewhere"), name, Some(name));
            command.env(HOME, home).env("ASCEND_ALLOC_TEST_NAME", name);
        }) {
            if std::env::var("ASCEND_ALLOC_TEST_NAME").is_ok_and(|asked| asked != name) {
                continue;
            }
            // As a framework would have it: loaded by its path, not visible to the whole process.
            let _framework = StandIn::at(loaded.clone());
            assert_origin(&loaded);
        }
    }
}

#[test]
fn symbols_of_the_whole_process_come_before_the_toolkit() {
    const TEST: &str = "symbols_of_the_whole_process_come_before_the_toolkit";
    let preloaded = Path::new(stand_ins::SCRATCH).join(TEST).join("any_name.so");
    if inside(TEST, |command| {
        let home = toolkit(TEST, &["libacl_rt.so"]);
        compile(FULL, &home, "any_name.so", None);
        command.env(HOME, home).env("LD_PRELOAD", &preloaded);
    }) {
        assert_origin(&preloaded);
    }
}

#[test]
fn the_newer_name_comes_first_in_the_toolkit() {
    const TEST: &str = "the_newer_name_comes_first_in_the_toolkit";
    let place = Path::new(stand_ins::SCRATCH).join(TEST);
    if inside(TEST, |command| {
        command.env(HOME, toolkit(TEST, &["libacl_rt.so", "libascendcl.so"]));
    }) {
        assert_origin(&place.join("lib64/libacl_rt.so"));
    }
}

#[test]
fn the_older_name_serves_and_comes_before_the_loaders_path() {
    const TEST: &str = "the_older_name_serves_and_comes_before_the_loaders_path";
    let place = Path::new(stand_ins::SCRATCH).join(TEST);
    if inside(TEST, |command| {
        let home = toolkit(TEST, &["libascendcl.so"]);
        compile(FULL, &home.join("path"), "libacl_rt.so", None);
        command.env("LD_LIBRARY_PATH", home.join("path")).env(HOME, home);
    }) {
        assert_origin(&place.join("lib64/libascendcl.so"));
    }
}

#[test]
fn the_loaders_path_is_the_last_resort() {
    const TEST: &str = "the_loaders_path_is_the_last_resort";
    let place = Path::new(stand_ins::SCRATCH).join(TEST);
    if inside(TEST, |command| {
        let home = toolkit(TEST, &["libascendcl.so"]);
        command.env("LD_LIBRARY_PATH", home.join("lib64"));
    }) {
        assert_origin(&place.join("lib64/libascendcl.so"));
    }
}

#[test]
fn a_library_that_only_has_the_name_is_passed_over() {
    const TEST: &str = "a_library_that_only_has_the_name_is_passed_over";
    let place = Path::new(stand_ins::SCRATCH).join(TEST);
    if inside(TEST, |command| {
        let home = toolkit(TEST, &["libascendcl.so"]);
        let other = home.join("lib64/libacl_rt.so");
        stand_ins::run(Command::new("gcc").args(["-shared", "-o"]).arg(other).args(["-x", "c", "/dev/null"]));
        command.env(HOME, home);
    }) {
        assert_origin(&place.join("lib64/libascendcl.so"));
    }
}

#[test]
fn nothing_found_lists_what_was_tried() {
    const TEST: &str = "nothing_found_lists_what_was_tried";
    if inside(TEST, |command| {
        let home = folder(TEST);
        std::fs::create_dir_all(home.join("lib64")).expect("the scratch folder can be written");
        std::fs::write(home.join("lib64/libacl_rt.so"), "no library").expect("as above");
        command.env(HOME, home);
    }) {
        let error = load().expect_err("no library is there");
        let LoadError::NotFound(attempts) = &error else { panic!("{error:?}") };
        assert!(attempts.iter().all(|attempt| !attempt.reason.is_empty()), "{attempts:?}");
        let text = error.to_string();
        for part in ["lib64/libacl_rt.so", "libascendcl.so loaded before", "the process", LIBRARY, HOME] {
            assert!(text.contains(part), "{part} in: {text}");
        }
        // SAFETY: as `load`.
        let error = unsafe { AclDriver::open() }.expect_err("nor is one for the driver");
        assert!(matches!(error, LoadError::NotFound(_)));
    }
}

#[test]
fn missing_required_functions_are_one_error_with_all_names_and_the_file() {
    let stand_in = StandIn::new(WITHOUT_REQUIRED, "missing_required_functions");
    let error = stand_in.load().expect_err("two required functions are missing");
    let LoadError::MissingSymbols { library, symbols } = &error else { panic!("{error:?}") };
    assert_eq!(Path::new(library), stand_in.path.canonicalize().expect("it is there"));
    assert_eq!(symbols, &["aclrtFree", "aclrtMallocAlign32"]);
    let text = error.to_string();
    assert!(text.contains("aclrtFree, aclrtMallocAlign32") && text.contains("libstand_in.so"), "{text}");
}

#[test]
fn a_full_library_lacks_nothing() {
    let acl = StandIn::new(FULL, "a_full_library").acl();
    assert_eq!(acl.missing(), [""; 0]);
    assert!(acl.has_virtual_memory());
}

#[test]
fn an_old_library_lacks_what_came_later() {
    let acl = StandIn::new(CANN_8_0, "an_old_library").acl();
    assert!(acl.has_virtual_memory());
    let mut missing = acl.missing();
    missing.sort_unstable();
    assert_eq!(
        missing,
        [
            "aclmdlRICaptureGetInfo",
            "aclmdlRICaptureThreadExchangeMode",
            "aclmdlRIDestroyRegisterCallback",
            "aclrtAllocatorGetByStream",
            "aclrtCtxGetCurrentDefaultStream",
            "aclrtFreeHostWithDevSync",
            "aclrtFreeWithDevSync",
            "aclrtGetPrimaryCtxState",
            "aclrtHostGetDevicePointer",
            "aclrtHostMemMapCapabilities",
            "aclrtHostRegisterV2",
            "aclrtMemExportToShareableHandleV2",
            "aclrtMemGetAccess",
            "aclrtMemGetAddressRange",
            "aclrtMemGetAllocationPropertiesFromHandle",
            "aclrtMemImportFromShareableHandleV2",
            "aclrtMemRetainAllocationHandle",
            "aclrtMemSetAccess",
            "aclrtMemSetPidToShareableHandleV2",
            "aclrtRegDeviceStateCallback",
            "aclrtRegStreamStateCallback",
            "aclsysGetVersionNum",
        ]
    );
}

#[test]
fn a_library_without_virtual_memory_is_usable() {
    let acl = StandIn::new(WITHOUT_VMM, "without_virtual_memory").acl();
    assert!(!acl.has_virtual_memory());
    assert!(acl.missing().contains(&"aclrtReserveMemAddress"));
}

#[test]
fn opening_initialises_and_takes_a_second_time_for_granted() {
    const TEST: &str = "opening_initialises_and_takes_a_second_time_for_granted";
    let place = Path::new(stand_ins::SCRATCH).join(TEST).join("library.so");
    if inside(TEST, |command| {
        let library = compile(FULL, &folder(TEST), "library.so", None);
        command.env(LIBRARY, library);
    }) {
        let stand_in = StandIn::at(place);
        for _ in 0..2 {
            // SAFETY: as `load`.
            let driver = unsafe { AclDriver::open() }.expect("the stand-in starts");
            assert_eq!(driver.device_count().expect("it answers"), 2);
        }
        let inits = stand_in.calls().iter().filter(|call| call.starts_with("aclInit()")).count();
        assert_eq!(inits, 2);
        stand_in.fail("aclInit", 100_000, 1, "another configuration");
        // SAFETY: as `load`.
        unsafe { AclDriver::open() }.expect("another user's configuration is no failure");
        stand_in.fail("aclInit", 507_033, 1, "the device does not start");
        // SAFETY: as `load`.
        let error = unsafe { AclDriver::open() }.expect_err("now it fails");
        assert!(error.to_string().contains("the device does not start"), "{error}");
    }
}
