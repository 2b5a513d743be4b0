//! Sharing chunks with other processes, and the devices' numbers that ACL does not translate.

use core::fmt;

use super::{AclDriver, VISIBLE_DEVICES, address_of, number, pointer};
use crate::acl::{Acl, codes, sys};
use crate::driver::{DeviceId, DriverError, DriverResult, PhysicalHandle, ShareForm, ShareName};

impl AclDriver {
    /// The driver's number of a device of this process.
    pub(super) fn translated(
        &self,
        device: DeviceId,
        call: &'static str,
        arguments: fmt::Arguments<'_>,
    ) -> DriverResult<u32> {
        let translated = match &self.visible {
            None => Some(device),
            Some(visible) => visible.get(device as usize).copied(),
        };
        translated.ok_or_else(|| DriverError {
            call,
            arguments: format!("{arguments}, device={device}"),
            code: codes::RT_INVALID_DEVICEID,
            name: codes::name(codes::RT_INVALID_DEVICEID),
            message: Some(format!("{VISIBLE_DEVICES} lists no such device")),
            missing_symbol: None,
        })
    }

    /// Whether the library has `aclrtMemSetAccess`.
    pub(super) fn has_set_access(&self) -> bool {
        self.acl.has_set_access()
    }

    /// A name for a chunk.
    pub(super) fn export(
        &self,
        device: DeviceId,
        handle: PhysicalHandle,
        form: ShareForm,
        for_all: bool,
    ) -> DriverResult<ShareName> {
        let flags = u64::from(if for_all {
            sys::ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION
        } else {
            sys::ACL_RT_VMM_EXPORT_FLAG_DEFAULT
        });
        let handle = handle.0;
        // The fabric form wants a context; the others do not mind.
        self.on_device(device, &|acl: &Acl| match kind(form) {
            None => {
                // SAFETY: as `attach`.
                let number = unsafe { acl.export(pointer(handle), flags) }?;
                Ok(ShareName::of_number(form, number))
            }
            Some(kind) => {
                // SAFETY: as `attach`.
                let shared = unsafe { acl.export_as(kind, pointer(handle), flags) }?;
                Ok(ShareName { form, bytes: shared.data })
            }
        })
    }

    /// More processes that may import.
    pub(super) fn allow(&self, device: DeviceId, name: &ShareName, processes: &[i32]) -> DriverResult<()> {
        self.on_device(device, &|acl: &Acl| {
            let mut processes = processes.to_vec();
            match kind(name.form) {
                None => acl.allow_import(name.number(), &mut processes),
                Some(kind) => acl.allow_import_as(kind, &fabric(name), &mut processes),
            }
        })
    }

    /// Another process's chunk.
    pub(super) fn import(&self, device: DeviceId, name: &ShareName) -> DriverResult<PhysicalHandle> {
        let handle = self.on_device(device, &|acl: &Acl| {
            let handle = match kind(name.form) {
                None => acl.import(name.number(), number(device)),
                Some(kind) => acl.import_as(kind, &fabric(name)),
            };
            handle.map(address_of)
        });
        handle.map(PhysicalHandle)
    }
}

/// The kind that calls of the second version take; none for the first version.
fn kind(form: ShareForm) -> Option<sys::aclrtMemSharedHandleType> {
    match form {
        ShareForm::V1 => None,
        ShareForm::V2 => Some(sys::ACL_MEM_SHARE_HANDLE_TYPE_DEFAULT),
        ShareForm::Fabric => Some(sys::ACL_MEM_SHARE_HANDLE_TYPE_FABRIC),
    }
}

fn fabric(name: &ShareName) -> sys::aclrtMemFabricHandle {
    sys::aclrtMemFabricHandle { data: name.bytes }
}
