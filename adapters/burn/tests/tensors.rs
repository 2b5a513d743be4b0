//! Page-locked memory inside burn's tensors.

use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::host::{PinnedAllocator, PinnedBuffer, PinnedOptions};
use ascend_alloc::{Config, DeviceAllocator, Error};
use ascend_alloc_burn::{Batch, Upload, bytes, record_use, tensor, tensor_data};
use ascend_sim::{Sim, SimConfig};
use burn::tensor::{DType, Device, Distribution, Int, Tensor, TensorData};
use cubecl_environment::bytes::AllocationProperty;

fn machine(config: SimConfig) -> (Sim, Arc<PinnedAllocator>, DeviceAllocator) {
    let sim = Sim::new(config);
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let pinned = PinnedAllocator::new(PinnedOptions::default(), driver.clone()).unwrap();
    let device = DeviceAllocator::new(Config::default(), driver).unwrap();
    (sim, Arc::new(pinned), device)
}

fn live(pinned: &PinnedAllocator) -> u64 {
    let stats = pinned.stats();
    stats.active_bytes.current as u64 - stats.waiting_bytes
}

fn place(data: &TensorData) -> u64 {
    data.as_bytes().as_ptr() as u64
}

#[test]
fn a_tensor_computes_on_the_block_and_gives_it_back() {
    let (sim, pinned, _) = machine(SimConfig::default());
    let values: Vec<f32> = (0..600).map(|n| n as f32 * 0.5 - 100.0).collect();
    let buffer = PinnedBuffer::from_slice(pinned.clone(), &values).unwrap();
    let at = buffer.ptr().address();
    let device = Device::flex();
    let ours: Tensor<2> = tensor(buffer, [20, 30], &device);
    assert_eq!(live(&pinned), 2560);

    // The same as burn's own memory gives, also where results go elsewhere.
    let theirs = Tensor::<2>::from_data(TensorData::new(values, [20, 30]), &device);
    let other = Tensor::<2>::random([30, 20], Distribution::Default, &device);
    let products = [ours.clone(), theirs.clone()].map(|tensor| tensor.matmul(other.clone()).into_data());
    assert_eq!(products[0], products[1]);
    let sums = [ours.clone(), theirs.clone()].map(|tensor| (tensor.exp().sum_dim(1)).into_data());
    assert_eq!(sums[0], sums[1]);

    // Alone, it changes in place and comes out where it went in.
    let data = (ours + 1.0).into_data();
    assert_eq!(data, (theirs + 1.0).into_data());
    assert_eq!(place(&data), at);
    assert_eq!(live(&pinned), 2560);
    drop(data);
    assert_eq!(live(&pinned), 0);
    // What was freed serves the next, and then goes back to the system.
    let again = PinnedBuffer::<f32>::zeroed(pinned.clone(), 600).unwrap();
    assert_eq!(again.ptr().address(), at);
    drop(again);
    pinned.empty_cache().unwrap();
    assert_eq!(pinned.stats().cached_bytes(), 0);
    assert_eq!(sim.take_findings(), [] as [String; 0]);
}

#[test]
fn shared_tensors_keep_the_block_until_the_last_is_gone() {
    let (_, pinned, _) = machine(SimConfig::default());
    let device = Device::flex();
    let buffer = PinnedBuffer::from_slice(pinned.clone(), &[1.0f32; 256]).unwrap();
    let first: Tensor<1> = tensor(buffer, [256], &device);
    let second = first.clone();
    let view = first.clone().narrow(0, 10, 10);
    drop(first);
    assert_eq!(live(&pinned), 1024);
    // A shared block is not changed under others.
    let changed = second.clone() * 3.0;
    assert_eq!(second.to_data(), TensorData::from([1.0f32; 256]));
    assert_eq!(changed.into_data(), TensorData::from([3.0f32; 256]));
    drop(second);
    assert_eq!(live(&pinned), 1024);
    assert_eq!(view.into_data(), TensorData::from([1.0f32; 10]));
    assert_eq!(live(&pinned), 0);
}

#[test]
fn bytes_say_what_they_are() {
    let (_, pinned, _) = machine(SimConfig::default());
    let whole = bytes(PinnedBuffer::from_slice(pinned.clone(), &[1u16, 2, 3]).unwrap());
    assert_eq!(&whole[..], [1, 0, 2, 0, 3, 0]);
    assert!(matches!(whole.property(), AllocationProperty::Pinned));
    assert_eq!(whole.align(), align_of::<u128>());
    // Clones are ordinary memory.
    let copy = whole.clone();
    drop(whole);
    assert_eq!(live(&pinned), 0);
    assert_eq!(&copy[..], [1, 0, 2, 0, 3, 0]);

    let nothing = tensor_data(PinnedBuffer::<f64>::zeroed(pinned.clone(), 0).unwrap(), [0, 4]);
    assert_eq!(nothing.as_slice::<f64>().unwrap(), &[] as &[f64]);
    assert_eq!(place(&nothing) % 16, 0);
    let empty = Tensor::<2>::from_data(nothing, (&Device::flex(), DType::F64));
    assert_eq!(empty.dims(), [0, 4]);

    let grown = {
        let mut bytes = bytes(PinnedBuffer::from_slice(pinned.clone(), &[7u8; 96]).unwrap());
        bytes.extend_from_byte_slice(&[8; 1008]);
        bytes
    };
    assert_eq!((&grown[..96], &grown[96..]), (&[7u8; 96][..], &[8u8; 1008][..]));
    assert_eq!(live(&pinned), 0);
}

#[test]
fn a_batch_is_filled_where_it_stays() {
    let (_, pinned, _) = machine(SimConfig::default());
    let device = Device::flex();
    let mut batch = Batch::<f32>::new(pinned.clone(), 3, 5).unwrap();
    for number in 0..2 {
        let row = batch.row_mut(number).unwrap();
        row.copy_from_slice(&[number as f32 + 1.0; 5]);
    }
    assert!(batch.row_mut(3).is_none());
    let at = batch.row_mut(0).unwrap().as_ptr() as u64;
    let tensor = batch.into_tensor(&device);
    assert_eq!(tensor.clone().sum_dim(1).into_data(), TensorData::from([[5.0f32], [10.0], [0.0]]));
    assert_eq!(place(&tensor.into_data()), at);
    assert_eq!(live(&pinned), 0);

    let mut classes = Batch::<i64>::new(pinned.clone(), 2, 1).unwrap();
    classes.row_mut(1).unwrap()[0] = 9;
    let classes = Tensor::<2, Int>::from_data(classes.into_data(), (&device, DType::I64));
    assert_eq!(classes.into_data().try_to_vec::<i64>().unwrap(), [0, 9]);

    let error = Batch::<f32>::new(pinned.clone(), usize::MAX, 2).unwrap_err();
    assert!(matches!(error, Error::Size { .. }), "{error}");
    assert_eq!(live(&pinned), 0);
}

#[test]
fn a_tensor_goes_to_the_device_and_its_block_waits_for_the_stream() {
    let (sim, pinned, device) = machine(SimConfig { lag: 100, ..SimConfig::default() });
    let stream = Stream(sim.executor().create_stream(0).unwrap());
    let target = device.allocate(0, 4096, 0, stream).unwrap();
    let values: Vec<f32> = (0..1024).map(|n| n as f32).collect();
    let on_device = || {
        let mut bytes = vec![0; 4096];
        sim.read_bytes(target.address(), &mut bytes).unwrap();
        bytes
    };

    let data = tensor_data(PinnedBuffer::from_slice(pinned.clone(), &values).unwrap(), [32, 32]);
    let at = place(&data);
    let upload = Upload::queue(&pinned, data, target, 0, stream).unwrap();
    assert_eq!(upload.data().as_slice::<f32>().unwrap(), &values[..]);
    assert_ne!(on_device(), upload.data().as_bytes());
    let data = upload.wait().unwrap();
    assert_eq!(on_device(), data.as_bytes());

    // Work that somebody else queues is told of. The block is free, but the stream has not passed.
    let tensor = Tensor::<2>::from_data(data, &Device::flex()) * -1.0;
    let data = tensor.into_data();
    assert_eq!(place(&data), at);
    let copy =
        ascend_alloc::driver::HostCopy { host: at, device: target.address(), bytes: 4096, to_host: false };
    // SAFETY: the range is the data's block, which is recorded on the stream before it is dropped and not touched.
    unsafe { pinned.driver().copy_async(0, copy, stream) }.unwrap();
    record_use(&pinned, &data, 0, stream).unwrap();
    let wanted = data.as_bytes().to_vec();
    drop(data);
    let next = PinnedBuffer::from_slice(pinned.clone(), &[9.0f32; 1024]).unwrap();
    assert_ne!(next.ptr().address(), at);
    sim.executor().tick(1000);
    assert_eq!(on_device(), wanted);
    drop(next);

    // Data of burn's own memory is none of ours.
    let foreign = TensorData::new(values.clone(), [1024]);
    assert!(matches!(record_use(&pinned, &foreign, 0, stream), Err(Error::Pointer { .. })));
    let (error, foreign) = Upload::queue(&pinned, foreign, target, 0, stream).unwrap_err();
    assert!(matches!(error, Error::Pointer { .. }), "{error}");
    assert_eq!(foreign.as_slice::<f32>().unwrap(), &values[..]);

    // A copy that nobody waits for is waited for all the same.
    let data = tensor_data(PinnedBuffer::from_slice(pinned.clone(), &[4.0f32; 1024]).unwrap(), [1024]);
    let wanted = data.as_bytes().to_vec();
    drop(Upload::queue(&pinned, data, target, 0, stream).unwrap());
    assert_eq!(on_device(), wanted);
    device.deallocate(target).unwrap();
    assert_eq!(live(&pinned), 0);
    assert_eq!(sim.take_findings(), [] as [String; 0]);
}

#[test]
fn no_page_locked_memory_left_is_an_error_that_can_be_survived() {
    let (sim, pinned, _) = machine(SimConfig { host_capacity: 8 << 20, ..SimConfig::default() });
    let device = Device::flex();
    let mut tensors: Vec<Tensor<1>> = Vec::new();
    let error = loop {
        match PinnedBuffer::<f32>::zeroed(pinned.clone(), 1 << 18) {
            Ok(buffer) => tensors.push(tensor(buffer, [1 << 18], &device)),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
    assert!(!tensors.is_empty());
    tensors.pop();
    let buffer = PinnedBuffer::<f32>::zeroed(pinned.clone(), 1 << 18).unwrap();
    tensors.push(tensor(buffer, [1 << 18], &device));
    drop(tensors);
    assert_eq!(live(&pinned), 0);
    assert_eq!(pinned.check(), Ok(()));
    assert_eq!(sim.take_findings(), [] as [String; 0]);
}
