//! A device with its memory, and one run of an operation on it.

use std::sync::Arc;

use ascend_alloc::driver::{DeviceId, Stream};
use ascend_alloc::host::{PinnedAllocator, PinnedBuffer};
use ascend_alloc::{DeviceAllocator, DeviceBuffer, DevicePtr};
use candle_core::{CpuStorage, DType, Error, Layout, Result, Shape, bail};

use crate::ops::{Inplace1, InplaceN, Op1, Op2, Op3};
use crate::values::{self, Element};

/// A device, its allocators, and the stream on which operations run one after the other. Clones are the same device.
///
/// The stream is the caller's and lives at least as long as the last operation. For work on several streams take
/// several of these.
#[derive(Clone, Debug)]
pub struct Npu {
    allocator: Arc<DeviceAllocator>,
    pinned: Arc<PinnedAllocator>,
    device: DeviceId,
    stream: Stream,
}

impl Npu {
    /// Operations on `stream` of `device`, with memory of these allocators; copies go through the driver of `pinned`.
    #[must_use]
    pub fn new(
        allocator: Arc<DeviceAllocator>,
        pinned: Arc<PinnedAllocator>,
        device: DeviceId,
        stream: Stream,
    ) -> Self {
        Self { allocator, pinned, device, stream }
    }

    /// The allocator of device memory.
    #[must_use]
    pub fn allocator(&self) -> &Arc<DeviceAllocator> {
        &self.allocator
    }

    /// An operation with one input, for `Tensor::apply_op1`.
    pub fn op1<F>(&self, name: &'static str, forward: F) -> Op1
    where
        F: Fn(&Pass<'_>, &NpuTensor) -> Result<NpuTensor> + Send + Sync + 'static,
    {
        Op1::new(self.clone(), name, forward)
    }

    /// An operation with two inputs, for `Tensor::apply_op2`.
    pub fn op2<F>(&self, name: &'static str, forward: F) -> Op2
    where
        F: Fn(&Pass<'_>, [&NpuTensor; 2]) -> Result<NpuTensor> + Send + Sync + 'static,
    {
        Op2::new(self.clone(), name, forward)
    }

    /// An operation with three inputs, for `Tensor::apply_op3`.
    pub fn op3<F>(&self, name: &'static str, forward: F) -> Op3
    where
        F: Fn(&Pass<'_>, [&NpuTensor; 3]) -> Result<NpuTensor> + Send + Sync + 'static,
    {
        Op3::new(self.clone(), name, forward)
    }

    /// An operation that changes its tensor, for `Tensor::inplace_op1`.
    pub fn inplace1<F>(&self, name: &'static str, change: F) -> Inplace1
    where
        F: Fn(&Pass<'_>, &mut NpuTensor) -> Result<()> + Send + Sync + 'static,
    {
        Inplace1::new(self.clone(), name, change)
    }

    /// An operation that changes its tensor and reads `N` others, for `Tensor::inplace_op2` (one) and `inplace_op3`
    /// (two).
    pub fn inplace_n<const N: usize, F>(&self, name: &'static str, change: F) -> InplaceN<N>
    where
        F: Fn(&Pass<'_>, &mut NpuTensor, [&NpuTensor; N]) -> Result<()> + Send + Sync + 'static,
    {
        InplaceN::new(self.clone(), name, change)
    }

    /// One run of an operation.
    pub(crate) fn pass(&self) -> Pass<'_> {
        Pass { npu: self }
    }

    fn staging(&self, bytes: usize) -> Result<PinnedBuffer<u8>> {
        PinnedBuffer::zeroed(self.pinned.clone(), bytes).map_err(Error::wrap)
    }
}

/// A tensor on the device, for the time of an operation: elements one behind the other in a block of the allocator.
///
/// Dropping it frees the block in the order of the stream, so the next step may have its memory at once.
#[derive(Debug)]
pub struct NpuTensor {
    buffer: DeviceBuffer,
    dtype: DType,
    shape: Shape,
}

impl NpuTensor {
    /// The address of the first element; [`DevicePtr::NULL`] without elements.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.buffer.ptr()
    }

    /// Bytes of all elements.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.buffer.bytes()
    }

    /// The type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The extents, as many as there are dimensions.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    /// The block, to [record](DeviceBuffer::record_stream) other streams that steps queue work on.
    #[must_use]
    pub fn buffer(&self) -> &DeviceBuffer {
        &self.buffer
    }

    /// The same elements in another shape.
    ///
    /// # Errors
    ///
    /// When the number of elements differs.
    pub fn reshape(self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        if elements(&shape) != elements(&self.shape) {
            bail!("reshape from {:?} to {shape:?}: the numbers of elements differ", self.shape)
        }
        Ok(Self { shape, ..self })
    }
}

/// One run of an operation: what its steps may do.
#[derive(Debug)]
pub struct Pass<'a> {
    npu: &'a Npu,
}

impl Pass<'_> {
    /// The stream on which steps queue their work. What the inputs hold is there when the stream comes to that
    /// work, and the result is read when it has passed it.
    #[must_use]
    pub fn stream(&self) -> Stream {
        self.npu.stream
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.npu.device
    }

    /// A tensor whose content is not defined, for a kernel to write.
    ///
    /// # Errors
    ///
    /// Out of memory, with the allocator's report; an element type without whole bytes.
    pub fn empty(&self, dtype: DType, shape: impl Into<Shape>) -> Result<NpuTensor> {
        let shape = shape.into();
        // What cannot be counted is no size that exists, and is refused as such.
        let bytes = elements(&shape).and_then(|elements| elements.checked_mul(dtype.size_in_bytes()));
        if dtype.size_in_bytes() == 0 {
            bail!("{dtype:?} has no whole bytes for an element; cast the tensor first")
        }
        let Npu { allocator, device, stream, .. } = self.npu;
        let bytes = bytes.unwrap_or(usize::MAX) as u64;
        let buffer = DeviceBuffer::new(allocator.clone(), *device, bytes, *stream).map_err(Error::wrap)?;
        Ok(NpuTensor { buffer, dtype, shape })
    }

    /// A step on the host: copies the inputs from the device, lets `work` fill the result, and copies that to the
    /// device.
    ///
    /// # Errors
    ///
    /// When an input has elements of another type, out of memory, or a copy that the driver refuses.
    pub fn on_host<T: Element, const N: usize>(
        &self,
        inputs: [&NpuTensor; N],
        shape: impl Into<Shape>,
        work: impl FnOnce([&[T]; N], &mut [T]),
    ) -> Result<NpuTensor> {
        let result = self.empty(T::DTYPE, shape)?;
        let staged = self.read_all::<T, N>(inputs)?;
        let mut buffer = self.npu.staging(result.bytes() as usize)?;
        work(core::array::from_fn(|at| values::elements(&staged[at])), values::elements_mut(&mut buffer));
        self.write(buffer, &result)?;
        Ok(result)
    }

    /// A step on the host that changes a tensor and reads others.
    ///
    /// # Errors
    ///
    /// As [`on_host`](Self::on_host). The tensor is as it was then.
    pub fn change_on_host<T: Element, const N: usize>(
        &self,
        tensor: &mut NpuTensor,
        inputs: [&NpuTensor; N],
        work: impl FnOnce(&mut [T], [&[T]; N]),
    ) -> Result<()> {
        let [mut buffer] = self.read_all::<T, 1>([tensor])?;
        let staged = self.read_all::<T, N>(inputs)?;
        work(values::elements_mut(&mut buffer), core::array::from_fn(|at| values::elements(&staged[at])));
        self.write(buffer, tensor)
    }

    /// Copies all bytes of a tensor to another one of as many, through the host.
    ///
    /// # Errors
    ///
    /// When the tensors have not as many bytes, out of memory, or a copy that the driver refuses.
    pub fn copy(&self, from: &NpuTensor, to: &NpuTensor) -> Result<()> {
        if from.bytes() != to.bytes() {
            bail!("a copy of {} bytes to a tensor of {}; both must have as many", from.bytes(), to.bytes())
        }
        let buffer = self.read(from)?;
        self.write(buffer, to)
    }

    /// Copies the elements of a layout to the device.
    pub(crate) fn upload(&self, storage: &CpuStorage, layout: &Layout) -> Result<NpuTensor> {
        let tensor = self.empty(values::dtype_of(storage)?, layout.shape())?;
        let mut buffer = self.npu.staging(tensor.bytes() as usize)?;
        values::gather(storage, layout, &mut buffer)?;
        self.write(buffer, &tensor)?;
        Ok(tensor)
    }

    /// Copies a tensor from the device.
    pub(crate) fn download(&self, tensor: &NpuTensor) -> Result<CpuStorage> {
        values::storage(tensor.dtype, &self.read(tensor)?)
    }

    /// Copies a tensor from the device to the places of a layout.
    pub(crate) fn download_to(
        &self,
        tensor: &NpuTensor,
        storage: &mut CpuStorage,
        layout: &Layout,
    ) -> Result<()> {
        if (tensor.dtype, tensor.shape()) != (values::dtype_of(storage)?, layout.shape()) {
            bail!("an operation in place may change neither the type nor the shape of its tensor")
        }
        values::scatter(&self.read(tensor)?, storage, layout)
    }

    fn read_all<T: Element, const N: usize>(&self, inputs: [&NpuTensor; N]) -> Result<[PinnedBuffer<u8>; N]> {
        if let Some(other) = inputs.iter().find(|input| input.dtype != T::DTYPE) {
            bail!("a step works on {:?}, and is given {:?}", T::DTYPE, other.dtype)
        }
        let buffers: Result<Vec<_>> = inputs.iter().map(|input| self.read(input)).collect();
        let buffers = <[PinnedBuffer<u8>; N]>::try_from(buffers?);
        buffers.map_err(|_| Error::msg("there is one buffer for each input"))
    }

    /// The content of a tensor, in page-locked memory.
    fn read(&self, tensor: &NpuTensor) -> Result<PinnedBuffer<u8>> {
        let buffer = self.npu.staging(tensor.bytes() as usize)?;
        let (device, stream) = (self.npu.device, self.npu.stream);
        let queued =
            buffer.download(tensor.ptr(), device, stream).map_err(|(error, _buffer)| Error::wrap(error))?;
        queued.wait().map_err(|(error, _copy)| Error::wrap(error))
    }

    /// Queues the copy of page-locked memory to a tensor. The memory is reused when the stream has passed the copy.
    fn write(&self, buffer: PinnedBuffer<u8>, tensor: &NpuTensor) -> Result<()> {
        let queued = buffer.upload(tensor.ptr(), self.npu.device, self.npu.stream);
        queued.map(drop).map_err(|(error, _buffer)| Error::wrap(error))
    }
}

/// How many elements a shape has; nothing when they cannot be counted.
fn elements(shape: &Shape) -> Option<usize> {
    shape.dims().iter().try_fold(1usize, |product, &dim| product.checked_mul(dim))
}
