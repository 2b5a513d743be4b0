//! What values say of themselves with `{:?}`: what they are, and no more than a line; and small answers about them.

use std::alloc::Layout;
use std::fmt::Debug;
use std::sync::Arc;

use ascend_alloc::driver::{AclDriver, DriverError, ShareForm, SimDriver, Stream};
use ascend_alloc::host::{HostRegistry, PageMemory, Pinned, PinnedAllocator, PinnedBuffer, PinnedOptions};
use ascend_alloc::{
    Config, DeviceAlloc, DeviceAllocator, DeviceBuffer, DevicePtr, Error, ExportOptions, GrowableBuffer,
    GrowableOptions, PoolOptions, RouteFilter,
};
use ascend_sim::{Sim, SimConfig};

const M: u64 = 1 << 20;
const STREAM: Stream = Stream(0);

fn rig() -> (Sim, Arc<DeviceAllocator>) {
    let sim = Sim::new(SimConfig { devices: 2, ..SimConfig::default() });
    sim.set_device(0).unwrap();
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let allocator = DeviceAllocator::new(Config::parse("check_level:3").unwrap(), driver).unwrap();
    (sim, Arc::new(allocator))
}

/// The text has each of these, and fits on a screen.
#[track_caller]
fn shows(value: &dyn Debug, wanted: &[&str]) {
    let text = format!("{value:?}");
    for part in wanted {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert!(text.len() < 4096 && !text.contains('\n'), "{text}");
}

#[test]
fn owners_of_device_memory_name_it() {
    let (_sim, allocator) = rig();
    shows(&allocator, &["DeviceAllocator", "config", "devices: 2"]);
    let buffer = DeviceBuffer::new(allocator.clone(), 0, 3 * M, STREAM).unwrap();
    shows(&buffer, &["DeviceBuffer", "device: 0", "bytes: 3145728", &format!("{:?}", buffer.ptr())]);
    let options = GrowableOptions::up_to(64 * M).beginning_with(4 * M);
    let growable = GrowableBuffer::new(allocator.clone(), 0, STREAM, options).unwrap();
    shows(&growable, &["GrowableBuffer", "bytes: 4194304", "max_bytes: ", &format!("{:?}", growable.ptr())]);
    let pool = allocator.create_pool(0, PoolOptions::default()).unwrap();
    let capture = allocator.capture(pool, RouteFilter::All).unwrap();
    assert_eq!(capture.pool(), pool);
    let graph = capture.finish();
    assert_eq!(graph.pool(), pool);
    assert_eq!(allocator.checkpoint(pool).unwrap().pool(), pool);
}

#[test]
fn filters_name_whom_they_let_through() {
    let thread = std::thread::current().id();
    shows(&RouteFilter::All, &["All"]);
    shows(&RouteFilter::ThisThread, &["ThisThread"]);
    shows(&RouteFilter::Thread(thread), &["Thread(", &format!("{thread:?}")]);
    shows(&RouteFilter::Stream(Stream(7)), &["Stream(", "7"]);
    shows(&RouteFilter::CapturedWith(Stream(9)), &["CapturedWith(", "9"]);
    shows(&RouteFilter::Accepts(Arc::new(|_| true)), &["Accepts"]);
}

#[test]
fn shared_memory_names_its_two_sides() {
    let (_sim, allocator) = rig();
    let block = allocator.allocate(0, 4 * M, 0, STREAM).unwrap();
    let export = allocator.export(block, &ExportOptions::default()).unwrap();
    export.allow(&[]).unwrap();
    shows(&export, &["Export", "device: 0", "SharedHandle"]);
    let handle = export.handle().clone();
    shows(&handle, &["SharedHandle", "bytes: ", "chunks: ", "form: ", "exporter: "]);
    drop(export);
    allocator.deallocate(block).unwrap();
    assert!(allocator.process_id(0).unwrap() > 0);
    assert!(matches!(allocator.process_id(9), Err(Error::Argument { .. })));
}

#[test]
fn owners_of_host_memory_name_it() {
    let sim = Sim::new(SimConfig::default());
    sim.set_device(0).unwrap();
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let config = Config::parse("pinned_max_cached_size_mb:64").unwrap();
    let pinned = Arc::new(PinnedAllocator::from_config(&config, driver.clone()).unwrap());
    assert_eq!(pinned.options(), &PinnedOptions { max_cached: Some(64 * M), ..PinnedOptions::default() });
    shows(&pinned, &["PinnedAllocator", "options", "max_cached: Some(67108864)"]);
    let buffer = PinnedBuffer::<u32>::zeroed(pinned.clone(), 12).unwrap();
    shows(&buffer, &["PinnedBuffer", "len: 12"]);
    shows(&Pinned::new(pinned.clone()), &["Pinned"]);
    let registry = HostRegistry::new(driver);
    let mut memory = PageMemory::zeroed(8192).unwrap();
    memory[8191] = 3;
    let start = memory.address();
    let kind = ascend_alloc::driver::RegisterKind { pinned: false, mapped: true };
    let registered = registry.register(memory, 0, kind).unwrap();
    shows(&registry, &["HostRegistry", "ranges: 1"]);
    shows(&registered, &["Registered", &format!("start: {start}")]);
    let memory = registered.unregister().expect("nobody uses it");
    assert_eq!((memory[0], memory[8191]), (0, 3));
    shows(&registry, &["ranges: 0"]);
}

#[test]
fn the_trait_reaches_the_same_allocator() {
    let (_sim, allocator) = rig();
    let shared: Arc<dyn DeviceAlloc> = allocator.clone();
    let ptr = shared.allocate(0, Layout::from_size_align(4 << 20, 512).unwrap(), STREAM).unwrap();
    // SAFETY: the block is live, and no work uses it.
    let grown = unsafe { shared.grow(ptr, 5 * M) }.unwrap();
    assert!(grown, "there is room behind the only block");
    assert_eq!(allocator.block_info(ptr).unwrap().requested, 5 * M);
    // SAFETY: the same.
    unsafe { shared.shrink(ptr, 2 * M) }.unwrap();
    assert_eq!(allocator.block_info(ptr).unwrap().requested, 2 * M);
    let less = allocator.grow_in_place(ptr, M);
    assert!(matches!(less, Err(Error::Size { requested: M, .. })), "{less:?}");
    // SAFETY: the same.
    unsafe { shared.deallocate(ptr) }.unwrap();
    allocator.erase_stream(DevicePtr(0), STREAM).unwrap();
    let default = allocator.stream_destroyed(0, STREAM);
    assert!(matches!(default, Err(Error::Argument { name: "stream", .. })), "{default:?}");
    allocator.check().unwrap();
}

#[test]
fn the_library_names_its_file() {
    let library = std::env::current_exe().unwrap().with_file_name("libascendcl.so");
    let search = ascend_alloc::acl::Search { library: Some(library), home: None };
    // SAFETY: the simulator's library behaves like ACL's.
    let acl = unsafe { ascend_alloc::acl::Acl::load(&search) }.unwrap();
    shows(&acl, &["Acl", "origin", "libascendcl.so"]);
    // SAFETY: nothing is passed to it.
    let driver = unsafe { AclDriver::attach(acl) };
    shows(&driver, &["AclDriver", "libascendcl.so", "visible"]);
}

#[test]
fn errors_show_what_is_in_them() {
    let wrong = Config::parse("no_such_key:1").unwrap_err();
    let text = wrong.to_string();
    assert!(text.contains("no_such_key"), "{text}");
    assert_eq!(Error::from(wrong).to_string(), text);
    let plain = DriverError {
        call: "aclrtFree",
        arguments: "0x10".to_owned(),
        code: 100_000,
        name: "ACL_ERROR_INVALID_PARAM",
        message: None,
        missing_symbol: None,
    };
    let told = DriverError { message: Some("no such block".to_owned()), ..plain.clone() };
    assert_eq!(told.to_string(), format!("{plain}: no such block"));
    let file = Error::File { path: "/x".to_owned(), reason: "is full".to_owned() };
    assert_eq!(file.to_string(), "file /x: is full");
    assert_ne!(format!("{:?}", ShareForm::V2), format!("{:?}", ShareForm::Fabric));
    shows(&Config::keys()[0], &["Key", "name", "kind"]);
}
