//! Sharing memory with other processes that run the simulator: chunks by shareable handles, blocks
//! of `aclrtMalloc` by keys.
//!
//! Both name a process and one of its exports. Exporter and importer must be of one user and in one
//! process namespace, and the exporter must be alive when somebody imports; what is imported stays.
//! Every process has devices of its own: what one imports takes nothing of its capacity.

use crate::call::Call;
use crate::codes;
use crate::config::Soc;
use crate::exec::HostOp;
use crate::memory::{MOST_PIDS, Memory, ShareId};
use crate::refusal::{Answer, Refusal, refuse};
use crate::sim::Sim;

/// A shareable handle of the second form: `DEFAULT` uses the first eight bytes, `FABRIC` all.
pub type Share = [u8; 128];

/// Characters of a key, without the zero behind it.
const KEY: usize = 64;
/// What keys begin with.
const KEY_PREFIX: &str = "acl-sim-memory-";

/// Values of `aclrtMemSharedHandleType`.
mod share_kind {
    pub(super) const DEFAULT: u32 = 1;
    pub(super) const FABRIC: u32 = 2;
}

impl Sim {
    /// `aclrtMemExportToShareableHandle`: a number that names a chunk among all processes. On a 910B
    /// it is the same every time.
    ///
    /// # Errors
    /// The ACL code: 100000 for null and handle types but 0, 107000 for flags above 1 and a dead
    /// handle, 507899 for a second export on a 950.
    pub fn export_handle(&self, handle: u64, handle_type: u32, flags: u64) -> Result<u64, i32> {
        let arguments = format_args!("{handle:#x}, type={handle_type}, flags={flags}");
        self.call(Call::MemExport, arguments, || {
            if handle == 0 || handle_type != 0 {
                return refuse(codes::INVALID_PARAM, "null handle or a handle type");
            }
            self.export(handle, flags)
        })
    }

    /// `aclrtMemImportFromShareableHandle` for a device of this process: a handle, with one reference
    /// more at every import.
    ///
    /// # Errors
    /// The ACL code: 107001 for a device that is not visible, 207006 if the exporter does not allow
    /// it, 507899 for what nobody exports and for what this process exported.
    pub fn import_handle(&self, shared: u64, device: i32) -> Result<u64, i32> {
        self.call(Call::MemImport, format_args!("{shared:#x}, device={device}"), || {
            let device = self.visible(device)?;
            self.inner.memory.lock().import(decode(shared), device)
        })
    }

    /// `aclrtMemSetPidToShareableHandle`: lets more processes import.
    ///
    /// # Errors
    /// The ACL code: 100000 for an empty list, 107000 for more than 65535 and for what this process
    /// has not exported.
    pub fn set_share_pids(&self, shared: u64, pids: &[i32]) -> Result<(), i32> {
        self.call(Call::MemSetPid, format_args!("{shared:#x}, processes={}", pids.len()), || {
            self.allow(decode(shared), pids)
        })
    }

    /// `aclrtMemExportToShareableHandleV2`.
    ///
    /// # Errors
    /// As [`export_handle`](Self::export_handle); 107000 for an unknown kind; for the kind `FABRIC`
    /// 107002 without a device, else 207000.
    pub fn export_handle_v2(&self, handle: u64, flags: u64, kind: u32) -> Result<Share, i32> {
        let arguments = format_args!("{handle:#x}, flags={flags}, kind={kind}");
        self.call(Call::MemExportV2, arguments, || {
            if handle == 0 {
                return refuse(codes::INVALID_PARAM, "null handle");
            }
            self.check_kind(kind)?;
            let mut share = [0; 128];
            share[..8].copy_from_slice(&self.export(handle, flags)?.to_ne_bytes());
            Ok(share)
        })
    }

    /// `aclrtMemImportFromShareableHandleV2` for the current device.
    ///
    /// # Errors
    /// As [`import_handle`](Self::import_handle); 100000 for flags, 107000 for an unknown kind,
    /// 107002 without a device, 207000 for the kind `FABRIC`.
    pub fn import_handle_v2(&self, share: &Share, kind: u32, flags: u64) -> Result<u64, i32> {
        self.call(Call::MemImportV2, format_args!("kind={kind}, flags={flags}"), || {
            if flags != 0 {
                return refuse(codes::INVALID_PARAM, "flags must be 0");
            }
            self.check_kind(kind)?;
            let device = self.current()?;
            self.inner.memory.lock().import(decode(number_of(share)), device)
        })
    }

    /// `aclrtMemSetPidToShareableHandleV2`.
    ///
    /// # Errors
    /// As [`set_share_pids`](Self::set_share_pids); 107000 for an unknown kind, 207000 for `FABRIC`.
    pub fn set_share_pids_v2(&self, share: &Share, kind: u32, pids: &[i32]) -> Result<(), i32> {
        self.call(Call::MemSetPidV2, format_args!("kind={kind}, processes={}", pids.len()), || {
            if pids.is_empty() {
                return refuse(codes::INVALID_PARAM, "no process");
            }
            self.check_kind(kind)?;
            self.allow(decode(number_of(share)), pids)
        })
    }

    /// `aclrtIpcMemGetExportKey` of a block of `aclrtMalloc`: 64 characters, the same every time.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107000 for size 0, a length other than 65, flags above 1, and
    /// what is not the start of a live block of that size.
    pub fn ipc_export_key(&self, start: u64, size: u64, len: usize, flags: u64) -> Result<String, i32> {
        let arguments = format_args!("{start:#x}, size={size}, len={len}, flags={flags}");
        self.call(Call::IpcMemGetExportKey, arguments, || {
            if start == 0 {
                return refuse(codes::INVALID_PARAM, "null address");
            }
            if size == 0 || len != KEY + 1 || flags > 1 {
                return refuse(codes::RT_PARAM_INVALID, "size 0, a length that is not 65, or flags");
            }
            let busy = |memory: &Memory| memory.free_len(start).is_ok_and(|len| memory.is_in_use(start, len));
            let id = self.inner.wait_while(busy).export_block(start, size, flags == 1)?;
            let name = format!("{KEY_PREFIX}{:08x}-{:08x}", id.process, id.number);
            Ok(format!("{name:-<KEY$}"))
        })
    }

    /// `aclrtIpcMemSetImportPid`: lets more processes import.
    ///
    /// # Errors
    /// The ACL code: 107000 for an empty list, more than 65535, and a key that this process has not
    /// exported.
    pub fn ipc_set_import_pids(&self, key: &str, pids: &[i32]) -> Result<(), i32> {
        self.call(Call::IpcMemSetImportPid, format_args!("{key}, processes={}", pids.len()), || {
            if pids.is_empty() {
                return refuse(codes::RT_PARAM_INVALID, "no process");
            }
            self.allow(parse(key)?, pids)
        })
    }

    /// `aclrtIpcMemImportByKey` for the current device: an address, the same every time.
    ///
    /// # Errors
    /// The ACL code: 107000 for flags above 1 and for what is no key, 107002 without a device, 207006
    /// if the exporter does not allow it, 507899 for what nobody exports and for what this process
    /// exported.
    pub fn ipc_import(&self, key: &str, flags: u64) -> Result<u64, i32> {
        self.call(Call::IpcMemImportByKey, format_args!("{key}, flags={flags}"), || {
            if flags > 1 {
                return refuse(codes::RT_PARAM_INVALID, "no such flags");
            }
            let device = self.current()?;
            self.inner.memory.lock().import_block(parse(key)?, device)
        })
    }

    /// `aclrtIpcMemClose`: an importer gives the block back; an exporter's key ends.
    ///
    /// # Errors
    /// The ACL code: 107000 for a key that this process has neither exported nor imported.
    pub fn ipc_close(&self, key: &str) -> Result<(), i32> {
        self.call(Call::IpcMemClose, format_args!("{key}"), || {
            let id = parse(key)?;
            let closing = self.inner.memory.lock().closing(id)?;
            let (start, len) = closing.unwrap_or_default();
            if len > 0 {
                self.inner.executor.host_touch(HostOp::Free, start, len);
            }
            self.inner.wait_unused(start, len).close_block(id)
        })
    }

    /// `aclrtIpcMemSetAttr`: the parts have no attributes of shared memory.
    ///
    /// # Errors
    /// The ACL code: 207000.
    pub fn ipc_set_attr(&self, key: &str) -> Result<(), i32> {
        self.call(Call::IpcMemSetAttr, format_args!("{key}"), not_here)
    }

    /// `aclrtIpcMemImportPidInterServer`: the parts share nothing with other machines.
    ///
    /// # Errors
    /// The ACL code: 207000.
    pub fn ipc_set_pids_inter_server(&self, key: &str) -> Result<(), i32> {
        self.call(Call::IpcMemImportPidInterServer, format_args!("{key}"), not_here)
    }

    fn export(&self, handle: u64, flags: u64) -> Answer<u64> {
        if flags > 1 {
            return refuse(codes::RT_PARAM_INVALID, "no such flags");
        }
        // Bytes move to another place: nobody may be copying them.
        let mut memory = self.inner.wait_while(|memory| memory.chunk_in_use(handle));
        let again = memory.is_exported(handle);
        if again && self.inner.config.soc == Soc::Ascend950 {
            return refuse(codes::RT_DRV_INTERNAL_ERROR, "the handle is exported already");
        }
        let device = memory.properties(handle)?.location.id;
        memory.export(handle, flags == 1).map(|id| encode(id, device))
    }

    fn allow(&self, id: ShareId, pids: &[i32]) -> Answer<()> {
        if pids.is_empty() {
            return refuse(codes::INVALID_PARAM, "no process");
        }
        if pids.len() > MOST_PIDS {
            return refuse(codes::RT_PARAM_INVALID, "too many processes");
        }
        self.inner.memory.lock().allow(id, pids)
    }

    fn check_kind(&self, kind: u32) -> Answer<()> {
        match kind {
            share_kind::DEFAULT => Ok(()),
            share_kind::FABRIC => {
                self.current()?;
                refuse(codes::RT_FEATURE_NOT_SUPPORT, "the part has no fabric")
            }
            _ => refuse(codes::RT_PARAM_INVALID, "no such kind of handle"),
        }
    }
}

/// The number of a shareable handle: the export's in the lower half, then the device, then the
/// process.
fn encode(id: ShareId, device: u32) -> u64 {
    u64::from(id.number) | u64::from(device & 0xff) << 32 | u64::from(id.process) << 40
}

fn decode(shared: u64) -> ShareId {
    ShareId { process: (shared >> 40) as u32, number: shared as u32 }
}

fn number_of(share: &Share) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&share[..8]);
    u64::from_ne_bytes(first)
}

/// What a key names.
fn parse(key: &str) -> Answer<ShareId> {
    let bad = Refusal::new(codes::RT_PARAM_INVALID, "not a key of aclrtIpcMemGetExportKey");
    let name = key.strip_prefix(KEY_PREFIX).filter(|_| key.len() == KEY).ok_or(bad)?;
    let (process, number) = name.trim_end_matches('-').split_once('-').ok_or(bad)?;
    let number_in = |text| u32::from_str_radix(text, 16).map_err(|_| bad);
    Ok(ShareId { process: number_in(process)?, number: number_in(number)? })
}

fn not_here() -> Answer<()> {
    refuse(codes::RT_FEATURE_NOT_SUPPORT, "only on a super-pod")
}
