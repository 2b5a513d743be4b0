//! DLPack: blocks for other libraries, and theirs for us.

use core::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ascend_alloc::dlpack::{
    self, DEVICE_TYPE, Element, Managed, PADDED, READ_ONLY, RawDevice, RawManaged, RawTensor, RawVersion,
};
use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::{Config, DeviceAllocator, DeviceBuffer, Error};
use ascend_sim::{Sim, SimConfig, Task};

fn machine(config: SimConfig) -> (Sim, Arc<DeviceAllocator>) {
    let sim = Sim::new(config);
    let driver = Arc::new(SimDriver::new(sim.clone()));
    (sim, Arc::new(DeviceAllocator::new(Config::default(), driver).unwrap()))
}

/// Blocks that are handed out.
fn live(allocator: &DeviceAllocator, device: u32) -> i64 {
    allocator.stats(device).unwrap().allocation.all.current
}

#[test]
fn an_exported_block_lives_until_the_deleter_is_called() {
    let (sim, allocator) = machine(SimConfig { devices: 2, ..SimConfig::default() });
    let buffer = DeviceBuffer::new(allocator.clone(), 1, 4096, Stream(0)).unwrap();
    let ptr = buffer.ptr();
    let managed = dlpack::export(buffer, Element::BF16, &[4, 1, 8]).unwrap();
    assert!(managed.is_contiguous() && !managed.is_read_only());
    let raw = managed.into_raw();
    assert_eq!(live(&allocator, 1), 1);

    // What a consumer reads, field by field.
    // SAFETY: the structure was just exported and is alive.
    let (version, flags, tensor) = unsafe { ((*raw).version, (*raw).flags, &(*raw).tensor) };
    assert_eq!((version, flags), (RawVersion { major: 1, minor: 0 }, 0));
    assert_eq!(tensor.device, RawDevice { device_type: 12, device_id: 1 });
    assert_eq!((tensor.data.addr() as u64, tensor.byte_offset), (ptr.address(), 0));
    assert_eq!(tensor.dtype, Element { code: 4, bits: 16, lanes: 1 });
    // SAFETY: the arrays have as many values as there are dimensions.
    let arrays = unsafe { [tensor.shape, tensor.strides].map(|at| core::slice::from_raw_parts(at, 3)) };
    assert_eq!(arrays, [[4, 1, 8], [8, 8, 1]]);

    // The consumer's last act, on a thread of its own.
    let raw = raw as usize;
    std::thread::spawn(move || {
        let raw = raw as *mut RawManaged;
        // SAFETY: the structure is alive, and this is the only call of its deleter.
        unsafe { (*raw).deleter.unwrap()(raw) };
    })
    .join()
    .unwrap();
    assert_eq!(live(&allocator, 1), 0);
    assert_eq!(allocator.check(), Ok(()));
    assert_eq!(sim.take_findings(), [] as [String; 0]);
}

#[test]
fn a_consumer_on_another_stream_keeps_the_memory_from_being_reused() {
    let (sim, allocator) = machine(SimConfig { lag: 1000, ..SimConfig::default() });
    let consumer = Stream(sim.executor().create_stream(0).unwrap());
    let buffer = DeviceBuffer::new(allocator.clone(), 0, 8 << 20, Stream(0)).unwrap();
    buffer.record_stream(consumer).unwrap();
    let ptr = buffer.ptr();
    let managed = dlpack::export(buffer, Element::U8, &[8 << 20]).unwrap();
    let task = Task::new("the consumer reads").reads(ptr.address(), managed.bytes(), 1);
    sim.executor().submit(0, consumer.0, task).unwrap();
    drop(managed);
    let next = DeviceBuffer::new(allocator.clone(), 0, 8 << 20, Stream(0)).unwrap();
    assert_ne!(next.ptr(), ptr);
    let task = Task::new("somebody else writes").writes(next.ptr().address(), next.bytes(), 2);
    sim.executor().submit(0, 0, task).unwrap();
    sim.executor().tick(2000);
    drop(next);
    assert_eq!(live(&allocator, 0), 0);
    assert_eq!(sim.take_findings(), [] as [String; 0]);
}

#[test]
fn shapes_that_do_not_fit_are_refused_and_the_block_is_freed() {
    let (_, allocator) = machine(SimConfig::default());
    let many = [1; 65];
    let shapes: [&[u64]; 5] = [&[1025], &[u64::MAX], &[1 << 62, 8], &[1 << 31, 1 << 31], &many];
    for shape in shapes {
        let buffer = DeviceBuffer::new(allocator.clone(), 0, 4096, Stream(0)).unwrap();
        let refused = dlpack::export(buffer, Element::F32, shape);
        assert!(matches!(refused, Err(Error::Argument { name: "shape", .. })), "{shape:?}");
        assert_eq!(live(&allocator, 0), 0);
    }
    // No dimension is one element, an extent of zero is none; odd bits are rounded up.
    let one = DeviceBuffer::new(allocator.clone(), 0, 4, Stream(0)).unwrap();
    assert_eq!(dlpack::export(one, Element::F32, &[]).unwrap().bytes(), 4);
    let none = DeviceBuffer::new(allocator.clone(), 0, 0, Stream(0)).unwrap();
    let none = dlpack::export(none, Element::F64, &[3, 0, 5]).unwrap();
    assert!(none.bytes() == 0 && none.ptr().is_null() && none.is_contiguous());
    let half = DeviceBuffer::new(allocator.clone(), 0, 2, Stream(0)).unwrap();
    assert_eq!(dlpack::export(half, Element::new(1, 4), &[3]).unwrap().bytes(), 2);
    drop(none);
    assert_eq!(live(&allocator, 0), 0);
}

/// A tensor of another library.
struct Foreign {
    raw: RawManaged,
    extents: Vec<i64>,
    strides: Vec<i64>,
    deleted: Arc<AtomicUsize>,
}

unsafe extern "C" fn delete(raw: *mut RawManaged) {
    // SAFETY: the context is the box that was leaked for it, and the deleter is called once.
    let foreign = unsafe { Box::from_raw((*raw).manager_ctx.cast::<Foreign>()) };
    foreign.deleted.fetch_add(1, Ordering::Relaxed);
}

/// What `change` makes of a good tensor, and how often it was deleted.
fn foreign(
    extents: &[i64],
    strides: &[i64],
    change: impl FnOnce(&mut RawManaged),
) -> (*mut RawManaged, Arc<AtomicUsize>) {
    let deleted = Arc::new(AtomicUsize::new(0));
    let tensor = RawTensor {
        data: 0x10_0000 as *mut c_void,
        device: RawDevice { device_type: DEVICE_TYPE, device_id: 3 },
        ndim: extents.len() as i32,
        dtype: Element::F32,
        shape: core::ptr::null_mut(),
        strides: core::ptr::null_mut(),
        byte_offset: 64,
    };
    let version = RawVersion { major: 1, minor: 7 };
    let raw =
        RawManaged { version, manager_ctx: core::ptr::null_mut(), deleter: Some(delete), flags: 0, tensor };
    let boxed = Box::new(Foreign {
        raw,
        extents: extents.to_vec(),
        strides: strides.to_vec(),
        deleted: deleted.clone(),
    });
    let leaked = Box::leak(boxed);
    leaked.raw.tensor.shape = leaked.extents.as_mut_ptr();
    if !strides.is_empty() {
        leaked.raw.tensor.strides = leaked.strides.as_mut_ptr();
    }
    change(&mut leaked.raw);
    let context: *mut Foreign = leaked;
    // SAFETY: the box was just leaked.
    unsafe {
        (*context).raw.manager_ctx = context.cast();
        (&raw mut (*context).raw, deleted)
    }
}

#[test]
fn a_block_of_another_library_is_taken_over_and_deleted_once() {
    let (raw, deleted) = foreign(&[2, 3], &[], |raw| raw.flags = READ_ONLY);
    // SAFETY: the structure is valid and given up.
    let managed = unsafe { Managed::from_raw(raw) }.unwrap();
    assert_eq!((managed.ptr().address(), managed.device(), managed.bytes()), (0x10_0040, 3, 24));
    assert_eq!((managed.shape(), managed.strides(), managed.element()), (&[2, 3][..], None, Element::F32));
    assert!(managed.is_contiguous() && managed.is_read_only());
    assert_eq!(deleted.load(Ordering::Relaxed), 0);
    drop(managed);
    assert_eq!(deleted.load(Ordering::Relaxed), 1);

    // Columns of a matrix of four: the last element is the eleventh.
    let (raw, deleted) = foreign(&[3, 3], &[4, 1], |_| {});
    // SAFETY: as above.
    let managed = unsafe { Managed::from_raw(raw) }.unwrap();
    assert!(!managed.is_contiguous());
    assert_eq!((managed.bytes(), managed.strides()), (44, Some(&[4, 1][..])));
    drop(managed);
    assert_eq!(deleted.load(Ordering::Relaxed), 1);
    // A stride along one element says nothing.
    let (raw, _) = foreign(&[3, 1], &[1, 77], |_| {});
    // SAFETY: as above.
    assert!(unsafe { Managed::from_raw(raw) }.unwrap().is_contiguous());
}

/// Elements of less than a byte lie one behind the other, unless the producer says that each has bytes of its own.
#[test]
fn small_elements_are_packed_or_padded_as_the_producer_says() {
    for (bits, lanes, flags, bytes) in [
        (4, 1, 0, 3),
        (4, 1, PADDED, 5),
        (6, 1, 0, 4),
        (6, 1, PADDED, 5),
        (4, 3, PADDED, 10),
        (8, 1, PADDED, 5),
    ] {
        let (raw, _) = foreign(&[5], &[], |raw| {
            raw.flags = flags | READ_ONLY;
            raw.tensor.dtype = Element { code: 1, bits, lanes };
        });
        // SAFETY: the structure is valid and given up.
        let managed = unsafe { Managed::from_raw(raw) }.unwrap();
        assert_eq!((managed.bytes(), managed.is_read_only()), (bytes, true), "{bits} {lanes} {flags}");
    }
}

#[test]
fn what_cannot_be_used_is_refused_and_deleted() {
    type Change = fn(&mut RawManaged);
    let changes: [(Change, &str); 9] = [
        (|raw| raw.version.major = 2, "DLPack version"),
        (|raw| raw.version.major = 0, "DLPack version"),
        (|raw| raw.tensor.device.device_type = 2, "device"),
        (|raw| raw.tensor.device.device_id = -1, "device"),
        (|raw| raw.tensor.ndim = -1, "dimensions"),
        (|raw| raw.tensor.ndim = 65, "dimensions"),
        (|raw| raw.tensor.shape = core::ptr::null_mut(), "shape"),
        (|raw| raw.tensor.data = core::ptr::null_mut(), "data"),
        (|raw| raw.tensor.byte_offset = u64::MAX, "shape"),
    ];
    for (change, part) in changes {
        let (raw, deleted) = foreign(&[2, 2], &[], change);
        // SAFETY: the structure is wrong in a way that is checked, or valid; it is given up.
        let refused = unsafe { Managed::from_raw(raw) }.unwrap_err();
        assert!(matches!(&refused, Error::Argument { name, .. } if *name == part), "{part}: {refused}");
        assert_eq!(deleted.load(Ordering::Relaxed), 1, "{part}");
    }
    let shapes: [(&[i64], &[i64]); 4] =
        [(&[-1], &[]), (&[2, 2], &[-2, 1]), (&[i64::MAX, i64::MAX], &[]), (&[i64::MAX], &[i64::MAX])];
    for (extents, strides) in shapes {
        let (raw, deleted) = foreign(extents, strides, |_| {});
        // SAFETY: as above.
        let refused = unsafe { Managed::from_raw(raw) }.unwrap_err();
        assert!(matches!(refused, Error::Argument { name: "shape", .. }), "{extents:?}: {refused}");
        assert_eq!(deleted.load(Ordering::Relaxed), 1);
    }
    // SAFETY: null is allowed.
    assert!(unsafe { Managed::from_raw(core::ptr::null_mut()) }.is_err());
    let (raw, _) = foreign(&[1], &[], |raw| raw.deleter = None);
    // SAFETY: the structure is valid; without a deleter nothing is to be done.
    drop(unsafe { Managed::from_raw(raw) }.unwrap());
}
