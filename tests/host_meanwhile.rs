//! Two threads in an allocator of page-locked memory, with one of them held up inside of a driver call.

mod common;

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use ascend_alloc::driver::SimDriver;
use ascend_alloc::host::{PinnedAllocator, PinnedOptions};
use ascend_sim::{Sim, SimConfig};
use common::M;
use common::gate::{FREED, GatedDriver};

/// The driver may give a region out again before whoever gave it back has come to the end.
#[test]
fn a_region_is_known_that_is_taken_while_it_is_being_given_back() {
    let sim = Sim::new(SimConfig::default());
    sim.set_device(0).unwrap();
    let gate = Arc::new(GatedDriver::with_host_calls(SimDriver::new(sim.clone())));
    let options = PinnedOptions { registered: true, ..PinnedOptions::default() };
    let pinned = PinnedAllocator::new(options, gate.clone()).unwrap();
    let first = pinned.allocate(64 * M, 0).unwrap();
    pinned.deallocate(first).unwrap();

    let (at, reached) = channel();
    let (go, wait) = channel::<()>();
    let once = Mutex::new(Some((at, wait)));
    gate.watch(Some(Arc::new(move |name| {
        if name == FREED
            && let Some((at, wait)) = { once.lock().unwrap().take() }
        {
            at.send(()).expect("the test waits");
            let _dropped = wait.recv();
        }
    })));
    let blocks = std::thread::scope(|scope| {
        let emptying = scope.spawn(|| pinned.empty_cache().unwrap());
        reached.recv().expect("the region is given back");
        // The system hands the same addresses out again, if not at once.
        let mut blocks = Vec::new();
        while blocks.len() < 64 && blocks.last() != Some(&first.address()) {
            blocks.push(pinned.allocate(64 * M, 0).unwrap().address());
        }
        drop(go);
        emptying.join().unwrap();
        blocks
    });
    assert!(blocks.contains(&first.address()), "{:#x} is not among {blocks:#x?}", first.address());
    for address in blocks {
        let ptr = pinned.find(address).unwrap();
        assert_eq!(pinned.kernel_ptr(ptr).unwrap().for_kernel(), address);
        pinned.deallocate(ptr).unwrap();
    }
    pinned.empty_cache().unwrap();
    assert!(sim.findings().is_empty(), "{:?}", sim.findings());
    assert_eq!(sim.count("aclrtHostUnregister"), sim.count("aclrtHostRegisterV2"));
}
