//! Tensors on their way to a device.

use std::sync::Arc;

use ascend_alloc::driver::{DeviceId, HostCopy, Stream};
use ascend_alloc::host::PinnedAllocator;
use ascend_alloc::{DevicePtr, Error, Result};
use burn::tensor::TensorData;

/// Tells the allocator that work queued on a stream uses the data: when it is dropped, its block is not reused
/// before that stream has passed.
///
/// Whoever queues the work must see to it that nobody changes the data before the work is done.
///
/// # Errors
///
/// [`Error::Pointer`] when the data does not lie in a block of that allocator, as that of [`load_safetensors`](crate::load_safetensors)
/// and [`tensor_data`](crate::tensor_data) does.
pub fn record_use(
    pinned: &PinnedAllocator,
    data: &TensorData,
    device: DeviceId,
    stream: Stream,
) -> Result<()> {
    if data.as_bytes().is_empty() {
        return Ok(());
    }
    let block = pinned.find(data.as_bytes().as_ptr() as u64)?;
    pinned.record_use(block, device, stream)
}

/// Data that is being copied to a device. It is kept, unchanged, until it has been [waited](Self::wait) for;
/// dropping it waits too.
#[must_use = "dropping it waits for the copy"]
#[derive(Debug)]
pub struct Upload {
    pinned: Arc<PinnedAllocator>,
    data: TensorData,
    device: DeviceId,
    stream: Stream,
}

impl Upload {
    /// Queues a copy of the data to device memory of at least its bytes, straight from its block.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`] when the data does not lie in a block of that allocator, [`Error::Driver`] when the copy is
    /// refused. The data comes back with either.
    #[allow(clippy::result_large_err, reason = "what could not be copied comes back")]
    pub fn queue(
        pinned: &Arc<PinnedAllocator>,
        data: TensorData,
        target: DevicePtr,
        device: DeviceId,
        stream: Stream,
    ) -> Result<Self, (Error, TensorData)> {
        let bytes = data.as_bytes().len() as u64;
        if bytes > 0 {
            if let Err(error) = record_use(pinned, &data, device, stream) {
                return Err((error, data));
            }
            let host = data.as_bytes().as_ptr() as u64;
            let copy = HostCopy { host, device: target.address(), bytes, to_host: false };
            // SAFETY: the range is the data's, in a live block of page-locked memory. This value owns the data,
            // lets nobody change it, and gives it up only after a wait for the stream.
            if let Err(error) = unsafe { pinned.driver().copy_async(device, copy, stream) } {
                return Err((error.into(), data));
            }
        }
        Ok(Self { pinned: pinned.clone(), data, device, stream })
    }

    /// The data, to be read.
    #[must_use]
    pub fn data(&self) -> &TensorData {
        &self.data
    }

    /// Waits for the stream; the data.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] when the wait fails; the copy comes back with it, because it may still run.
    #[allow(clippy::result_large_err, reason = "what could not be waited for comes back")]
    pub fn wait(mut self) -> Result<TensorData, (Error, Self)> {
        if let Err(error) = self.pinned.driver().synchronize_stream(self.device, self.stream) {
            return Err((error.into(), self));
        }
        Ok(core::mem::replace(&mut self.data, nothing()))
    }
}

/// Data without elements, in place of what was taken.
fn nothing() -> TensorData {
    TensorData::zeros::<u8, _>([0])
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.data.as_bytes().is_empty() {
            return;
        }
        if self.pinned.driver().synchronize_stream(self.device, self.stream).is_err() {
            // The copy may still read it, and others may share it.
            core::mem::forget(core::mem::replace(&mut self.data, nothing()));
        }
    }
}
