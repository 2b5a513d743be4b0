//! Initialisation, versions, error texts.

use std::ffi::c_char;

use crate::entry::entry;
use crate::surface::{CANN_8_3, CANN_8_5, Surface};
use crate::types::AclError;
use crate::{fork, machine, messages, text};

/// Initialises the library. The configuration must be a file that can be read, and is not read.
///
/// # Safety
/// `config` is null or a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclInit(config: *const c_char) -> AclError {
    let entry = entry("aclInit");
    entry.does(|sim| {
        if config.is_null() {
            return sim.init_with(None);
        }
        // SAFETY: it is not null, so it is a text that ends with a zero.
        sim.init_with(Some(&unsafe { entry.read_text(sim, config) }?))
    })
}

/// Tears everything down, however often the library was initialised.
#[unsafe(no_mangle)]
pub extern "C" fn aclFinalize() -> AclError {
    entry("aclFinalize").does(|sim| sim.finalize())
}

/// Undoes one initialisation and writes how many are left.
///
/// # Safety
/// `count` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclFinalizeReference(count: *mut u64) -> AclError {
    entry("aclFinalizeReference").since(CANN_8_3).does(|sim| {
        let left = sim.finalize_reference()?;
        if !count.is_null() {
            // SAFETY: it is not null, so it is valid for a write.
            unsafe { count.write(left) };
        }
        Ok(())
    })
}

/// Version of the interface: that of the CANN version that is played.
///
/// # Safety
/// Each pointer is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetVersion(major: *mut i32, minor: *mut i32, patch: *mut i32) -> AclError {
    let entry = entry("aclrtGetVersion");
    entry.does(|sim| {
        for out in [major, minor, patch] {
            entry.not_null(sim, out)?;
        }
        sim.version()?;
        let version = Surface::played().version();
        // SAFETY: none of them is null, so all are valid for a write.
        unsafe {
            major.write(version.0);
            minor.write(version.1);
            patch.write(version.2);
        }
        Ok(())
    })
}

/// Version of a package as a number: that of the CANN version that is played.
///
/// # Safety
/// `package` is null or a text that ends with a zero, `number` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclsysGetVersionNum(package: *const c_char, number: *mut i32) -> AclError {
    let entry = entry("aclsysGetVersionNum").since(CANN_8_5);
    // SAFETY: the caller's promise.
    unsafe {
        entry.gives(number, |sim| {
            sim.version_number(&entry.read_text(sim, package)?)?;
            Ok(Surface::played().package_number())
        })
    }
}

/// Version of a package as a text.
///
/// # Safety
/// `package` is null or a text that ends with a zero, `text` is null or valid for writes of 128 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclsysGetVersionStr(package: *const c_char, text: *mut c_char) -> AclError {
    let entry = entry("aclsysGetVersionStr").since(CANN_8_5);
    entry.does(|sim| {
        entry.not_null(sim, text)?;
        // SAFETY: the caller's promise.
        sim.version_text(&unsafe { entry.read_text(sim, package) }?)?;
        // SAFETY: it is not null, so it has room for 128 bytes.
        unsafe { text::print(&format!("{}.0", Surface::played()), text, 128) };
        Ok(())
    })
}

/// Name of the part.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtGetSocName() -> *const c_char {
    entry("aclrtGetSocName").text(|sim| {
        sim.soc_name()?;
        Ok(text::kept(&machine::settings(|settings| settings.soc.clone())).as_ptr())
    })
}

/// The code of the calling thread's last failed call, which is then forgotten (level 0).
#[unsafe(no_mangle)]
pub extern "C" fn aclrtGetLastError(level: u32) -> AclError {
    entry("aclrtGetLastError").answers(|sim| sim.last_error(level))
}

/// The same, and it stays.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtPeekAtLastError(level: u32) -> AclError {
    entry("aclrtPeekAtLastError").answers(|sim| sim.peek_last_error(level))
}

/// What the calling thread's failed calls had to say, newest first; null if nothing. Valid until the
/// thread asks again.
#[unsafe(no_mangle)]
pub extern "C" fn aclGetRecentErrMsg() -> *const c_char {
    let own = messages::take();
    // In a forked child the machine must not be touched; what there is to say is this layer's.
    let model = if fork::forked() { None } else { machine::with(|sim| sim.recent_error()).ok().flatten() };
    messages::give(match (own, model) {
        (Some(own), Some(model)) => Some(format!("{own}\n{model}")),
        (own, model) => own.or(model),
    })
}
