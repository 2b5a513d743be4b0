//! Access of devices to each other.

use crate::entry::entry;
use crate::surface::{CANN_8_5, CANN_9_0};
use crate::types::{AclError, Handle, address};

/// Whether a device can be given access to another: 1 or 0.
///
/// # Safety
/// `can` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32) -> AclError {
    let entry = entry("aclrtDeviceCanAccessPeer");
    // SAFETY: the caller's promise.
    unsafe { entry.gives(can, |sim| sim.can_access_peer(device, peer).map(i32::from)) }
}

/// Gives the current device access to another.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtDeviceEnablePeerAccess(peer: i32, flags: u32) -> AclError {
    entry("aclrtDeviceEnablePeerAccess").does(|sim| sim.enable_peer_access(peer, flags))
}

/// Takes it away.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtDeviceDisablePeerAccess(peer: i32) -> AclError {
    entry("aclrtDeviceDisablePeerAccess").does(|sim| sim.disable_peer_access(peer))
}

/// Whether a device has access to another: 1 or 0.
///
/// # Safety
/// `status` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtDevicePeerAccessStatus(device: i32, peer: i32, status: *mut i32) -> AclError {
    let entry = entry("aclrtDevicePeerAccessStatus").since(CANN_8_5);
    // SAFETY: the caller's promise.
    unsafe { entry.gives(status, |sim| sim.peer_access_status(device, peer)) }
}

/// Prepares memory for the access of another device.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtMemP2PMap(start: Handle, size: usize, device: i32, flags: u64) -> AclError {
    let entry = entry("aclrtMemP2PMap").since(CANN_9_0);
    entry.does(|sim| sim.map_p2p(address(start), size as u64, device, flags))
}
