//! Reading and writing device memory.

use crate::exec::HostOp;
use crate::sim::Sim;

impl Sim {
    /// Copies device memory out, for looking at it: not an ACL call, not seen by the use checker.
    ///
    /// # Errors
    /// 107000 if the range is not wholly mapped.
    pub fn read_bytes(&self, address: u64, out: &mut [u8]) -> Result<(), i32> {
        self.inner.memory.lock().read(address, out).map_err(|refusal| refusal.code)
    }

    /// Overwrites device memory: not an ACL call, not seen by the use checker.
    ///
    /// # Errors
    /// 107000 if the range is not wholly mapped.
    pub fn write_bytes(&self, address: u64, bytes: &[u8]) -> Result<(), i32> {
        self.inner.memory.lock().write(address, bytes).map_err(|refusal| refusal.code)
    }

    /// Sets device memory to one byte: not an ACL call, not seen by the use checker. In the
    /// metadata-only mode the size costs nothing.
    ///
    /// # Errors
    /// 107000 if the range is not wholly mapped.
    pub fn fill_bytes(&self, address: u64, bytes: u64, value: u8) -> Result<(), i32> {
        self.inner.memory.lock().fill(address, bytes, value).map_err(|refusal| refusal.code)
    }

    /// Copies device memory to device memory: not an ACL call, not seen by the use checker.
    ///
    /// # Errors
    /// 107000 if one of the ranges is not wholly mapped.
    pub fn copy_bytes(&self, to: u64, from: u64, bytes: u64) -> Result<(), i32> {
        self.inner.memory.lock().copy(to, from, bytes).map_err(|refusal| refusal.code)
    }

    /// Whether every byte of a range has memory behind it.
    #[must_use]
    pub fn is_backed(&self, address: u64, bytes: u64) -> bool {
        self.inner.memory.lock().first_hole(address, bytes).is_none()
    }

    /// Tells the use checker that the host reads or writes a range now.
    pub fn touch(&self, operation: HostOp, address: u64, bytes: u64) {
        self.inner.executor.host_touch(operation, address, bytes);
    }
}
