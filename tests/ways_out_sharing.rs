//! What is taken for memory that is shared, with other processes or other devices, comes back on every way out: when
//! threads do the same at once, when streams end or the device is reset meanwhile, when the driver refuses.
#![cfg(target_os = "linux")]

mod common;

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ascend_alloc::driver::{ShareForm, Stream};
use ascend_alloc::{DeviceAllocator, DevicePtr, Error, ExportOptions, ImportedBlock, Importers};
use ascend_sim::{Location, Sim, Task};
use common::M;
use common::gate::{IMPORTED, NAMED, was_reset};
use common::gated::{REFUSED, Rig, reset_weak};
use common::other::{Other, play_the_other};

const STREAM: Stream = Stream(0);

/// What the other process does; started by the tests below.
#[test]
#[ignore = "the part of another process, started by the other tests"]
fn the_other_process() {
    play_the_other();
}

/// Imported bytes and reserved address space.
fn held(rig: &Rig) -> (u64, u64) {
    (rig.alloc.imported_bytes(0).unwrap(), rig.alloc.stats(0).unwrap().reserved_address_space)
}

/// What is left in the driver, but for what a reset has taken.
fn left(rig: &Rig) -> Vec<String> {
    let is_lost =
        |text: &String| text.contains("whose device was reset") || text.contains("keeps it for ever");
    rig.sim.leaks().into_iter().filter(|text| !is_lost(text)).collect()
}

// ---- exports ----

/// Two threads export a block at once: a driver that names a chunk once refuses the second one, before the first has noted
/// the name. In another form, or for others, that one is told so.
#[test]
fn exports_at_once_have_the_same_names() {
    for (form, importers, alike) in [
        (ShareForm::V1, Importers::Any, true),
        (ShareForm::V2, Importers::Any, false),
        (ShareForm::V1, Importers::Processes(vec![1]), false),
    ] {
        let rig = Rig::new();
        let block = rig.alloc.allocate(0, 3 * M, 0, STREAM).unwrap();
        let (sender, second) = channel();
        let (weak, mut options) = (rig.weak().1, ExportOptions::default().named(form));
        options.importers = importers;
        rig.once_at(NAMED, move || {
            let (ended, end) = channel();
            let thread = std::thread::spawn(move || {
                let answer = weak.upgrade().unwrap().export(block, &options);
                let _nobody_waits_any_more = ended.send(());
                answer
            });
            // It need not come so far before the first has ended; then this only takes that long.
            let _in_time = end.recv_timeout(Duration::from_millis(100));
            sender.send(thread).unwrap();
        });
        let first = rig.alloc.export(block, &ExportOptions::default()).unwrap();
        match second.recv().unwrap().join().unwrap() {
            Ok(second) => assert!(alike && second.handle() == first.handle()),
            Err(error) => assert!(!alike && error.to_string().contains("empty_cache"), "{error}"),
        }
        assert_eq!(rig.sim.count("aclrtMemExportToShareableHandle"), 2, "once for each chunk");
        drop(first);
        rig.alloc.deallocate(block).unwrap();
        rig.finish();
    }
}

// ---- imports ----

/// Two threads import the same handle at once: both get one mapping, and the other one goes back.
#[test]
fn imports_at_once_share_one_mapping() {
    for call in ["aclrtMemImportFromShareableHandle", "aclrtMapMem", IMPORTED] {
        let rig = Rig::new();
        let mut other = Other::start("sim");
        let handle = other.export(3 * M);
        let (sender, receiver) = channel::<ImportedBlock>();
        let (weak, theirs) = (rig.weak().1, handle.clone());
        rig.once_at(call, move || {
            let thread =
                std::thread::spawn(move || weak.upgrade().unwrap().import(0, &theirs, STREAM).unwrap());
            sender.send(thread.join().unwrap()).unwrap();
        });
        let late = rig.alloc.import(0, &handle, STREAM).unwrap();
        let early = receiver.recv().unwrap();
        rig.gate.watch(None);
        assert_eq!(late.ptr(), early.ptr());
        rig.alloc.empty_cache(None).unwrap();
        let mapped = handle.mapped_bytes();
        assert_eq!(held(&rig), (mapped, mapped), "one mapping");
        drop(early);
        rig.alloc.empty_cache(None).unwrap();
        assert!(rig.sim.is_backed(late.ptr().0, 3 * M), "the other import has it");
        drop(late);
        rig.alloc.empty_cache(None).unwrap();
        assert_eq!(held(&rig), (0, 0));
        let count = |name| rig.sim.count(name);
        assert_eq!(count("aclrtMapMem"), count("aclrtUnmapMem"));
        assert_eq!(
            count("aclrtMemImportFromShareableHandle"),
            count("aclrtFreePhysical"),
            "released once each"
        );
        rig.finish();
    }
}

/// Address space that only idle memory uses serves an import, which has no other way, and what streams still use is waited for.
#[test]
fn an_import_has_address_space_of_idle_memory() {
    let rig = Rig::new();
    let mut other = Other::start("sim");
    let handle = other.export(3 * M);
    let user = rig.stream();
    let ptr = rig.alloc.allocate(0, 5 * M, 0, user).unwrap();
    rig.sim.submit(user.0, Task::new("writes").writes(ptr.0, 5 * M, 1)).unwrap();
    rig.gate.hold(user);
    let kept = rig.alloc.allocate(0, 512, 0, user).unwrap();
    rig.alloc.deallocate(ptr).unwrap();
    rig.sim.set_va_budget(Some(rig.alloc.stats(0).unwrap().reserved_address_space));
    let import = rig.alloc.import(0, &handle, STREAM).unwrap();
    assert!(rig.sim.is_backed(import.ptr().0, 3 * M));
    drop(import);
    rig.alloc.deallocate(kept).unwrap();
    rig.sim.set_va_budget(None);
    rig.finish();
}

/// The driver is slow with one import that is dropped: the others need not wait for that.
#[test]
fn a_slow_call_for_one_import_holds_up_no_other() {
    let rig = Rig::new();
    let mut other = Other::start("sim");
    let handles = [other.export(3 * M), other.export(5 * M)];
    let user = rig.stream();
    let imports = handles.each_ref().map(|handle| rig.alloc.import(0, handle, user).unwrap());
    let places = imports.each_ref().map(|import| import.ptr().0);
    rig.sim.submit(user.0, Task::new("reads").reads(places[0], 3 * M, 1)).unwrap();
    rig.gate.hold(user);
    drop(imports);
    assert!(places.iter().all(|&place| rig.sim.is_backed(place, 3 * M)), "in use");
    rig.gate.finish(0, user).unwrap();
    let (sim, alloc) = rig.weak();
    let seen = Arc::new(AtomicU32::new(0));
    let count = seen.clone();
    rig.once_at("aclrtUnmapMem", move || {
        let emptied = std::thread::spawn(move || alloc.upgrade().unwrap().empty_cache(None).unwrap());
        emptied.join().unwrap();
        count.fetch_add(places.iter().filter(|&&place| sim.is_backed(place, 3 * M)).count() as u32, SeqCst);
    });
    rig.alloc.empty_cache(None).unwrap();
    rig.gate.watch(None);
    assert_eq!(seen.load(SeqCst), 1, "the one in hand");
    assert_eq!(held(&rig), (0, 0));
    rig.finish();
}

/// A stream ends, and its handle comes again, while a call looks at an import that it used: work that is queued on the
/// old one is over only with the device. That the exporter has died changes nothing.
#[test]
fn a_stream_that_ends_while_its_import_is_looked_at_is_waited_for_with_the_device() {
    for has_event in [false, true] {
        let rig = Rig::new();
        rig.sim.executor().set_stream_handle_reuse(true);
        let mut other = Other::start("sim");
        let [handle, later] = [other.export(3 * M), other.export(3 * M)];
        let user = rig.stream();
        let import = rig.alloc.import(0, &handle, STREAM).unwrap();
        import.record_stream(user);
        rig.sim.submit(user.0, Task::new("reads").reads(import.ptr().0, 3 * M, 1)).unwrap();
        other.kill();
        let (sim, alloc) = rig.weak();
        let seen = AtomicU32::new(0);
        rig.gate.watch(Some(Arc::new(move |name| {
            // Once for the default stream and once for this one.
            if name == "aclmdlRICaptureGetInfo" && seen.fetch_add(1, SeqCst) == 1 {
                alloc.upgrade().unwrap().stream_destroyed(0, user).unwrap();
                sim.destroy_stream(user.0).unwrap();
                assert_eq!(sim.create_stream().unwrap(), user.0);
                if !has_event {
                    sim.fail("aclrtCreateEventExWithFlag", 1, REFUSED, false).unwrap();
                }
            }
        })));
        let place = import.ptr().0;
        drop(import);
        for _ in 0..3 {
            // Every import looks at what was dropped.
            let refused = rig.alloc.import(0, &later, STREAM);
            assert!(matches!(refused, Err(Error::Driver(_))), "{refused:?}");
            assert!(rig.sim.is_backed(place, 3 * M), "queued work reads it");
        }
        rig.alloc.empty_cache(None).unwrap();
        assert_eq!(held(&rig), (0, 0));
        rig.finish();
    }
}

/// Whatever the import was doing: it says that the device was reset, and asks for nothing more. What it had went with the
/// device, but for what the call made that the reset came before, and address space.
#[test]
fn a_reset_in_the_middle_of_an_import_is_told_and_leaves_nothing() {
    for (call, nth, lost) in [
        ("aclrtMemImportFromShareableHandle", 1, &["chunk"][..]),
        ("aclrtMemImportFromShareableHandle", 2, &["chunk"]),
        (IMPORTED, 1, &[]),
        (IMPORTED, 2, &[]),
        ("aclrtMapMem", 1, &["reservation"]),
        ("aclrtMapMem", 2, &[]),
        ("aclrtMemSetAccess", 1, &[]),
        ("aclrtMemSetAccess", 2, &[]),
    ] {
        let rig = Rig::new();
        rig.alloc.set_peers(0, &[1]).unwrap();
        let mut other = Other::start("sim");
        let handle = other.export(3 * M);
        let (weak, seen) = (rig.weak(), AtomicU32::new(0));
        rig.gate.watch(Some(Arc::new(move |name| {
            if name == call && seen.fetch_add(1, SeqCst) + 1 == nth {
                reset_weak(&weak);
            }
        })));
        was_reset(rig.alloc.import(0, &handle, STREAM));
        assert_eq!(held(&rig), (0, 0), "{call} {nth}");
        let left = left(&rig);
        let kinds: Vec<&str> = left.iter().filter_map(|text| text.split(' ').next()).collect();
        assert_eq!(kinds, lost, "{call} {nth}: {left:?}");
        let again = rig.alloc.import(0, &handle, STREAM).unwrap();
        assert!(rig.sim.is_backed(again.ptr().0, 3 * M));
        drop(again);
        rig.finish();
    }
}

/// A block is imported for two devices, and one is reset: that of the first import takes it from both, the other one its own.
/// Whoever imports anew has it. So it is in the middle of an import.
#[test]
fn a_reset_of_either_device_that_imports_a_block_is_seen() {
    let reset_of = |(sim, alloc): &(Sim, Weak<DeviceAllocator>), device: u32| {
        sim.reset_device_force(device as i32).unwrap();
        sim.set_device(device as i32).unwrap();
        sim.set_device(0).unwrap();
        alloc.upgrade().unwrap().device_was_reset(device).unwrap();
    };
    for device in [1, 2] {
        for call in ["", "aclrtMemImportFromShareableHandle", "aclrtMapMem", "aclrtMemSetAccess"] {
            let rig = Rig::new();
            let mut other = Other::start("sim");
            let (handle, next) = (other.export(3 * M), other.export(3 * M));
            let _open = [1, 2, 0].map(|device| rig.sim.set_device(device).unwrap());
            let first = rig.alloc.import(1, &handle, STREAM).unwrap();
            let second = rig.alloc.import(2, &handle, STREAM).unwrap();
            let weak = rig.weak();
            if call.is_empty() {
                reset_of(&weak, device);
            } else {
                rig.once_at(call, move || reset_of(&weak, device));
                was_reset(rig.alloc.import(2, &next, STREAM));
                rig.gate.watch(None);
            }
            let again = [(1, &handle), (2, &handle), (2, &next)]
                .map(|(device, handle)| rig.alloc.import(device, handle, STREAM).unwrap());
            for block in &again {
                assert!(rig.sim.is_backed(block.ptr().0, 3 * M), "{device} {call}");
                assert!(reaches(&rig, block.device(), block.ptr(), 3 * M), "{device} {call}");
            }
            assert_eq!(again[0].ptr() == first.ptr(), device == 2, "{device} {call}");
            drop((first, second, again));
            rig.alloc.empty_cache(None).unwrap();
            let held = [1, 2].map(|device| rig.alloc.imported_bytes(device).unwrap());
            let left = left(&rig);
            // But for what the call made that the reset came before.
            let most = usize::from(!call.is_empty());
            assert!(held == [0, 0] && left.len() <= most, "{device} {call}: {held:?} {left:?}");
            rig.finish();
        }
    }
}

/// What an exporter has freed is in use until the last importer has released it, so a request that lacks memory looks
/// whether it can.
#[test]
fn imports_that_are_over_are_released_before_memory_runs_out() {
    let rig = Rig::new();
    let mut other = Other::start("sim");
    let handle = other.export(3 * M);
    let stream = rig.stream();
    let import = rig.alloc.import(0, &handle, STREAM).unwrap();
    import.record_stream(stream);
    rig.sim.submit(stream.0, Task::new("reads").reads(import.ptr().0, 3 * M, 1)).unwrap();
    rig.gate.hold(stream);
    drop(import);
    // The memory of others on the device, and of the exporter, which goes with the import.
    rig.sim.set_foreign_bytes(0, 100 * M);
    let sim = rig.sim.clone();
    rig.gate.watch(Some(Arc::new(move |call| {
        if call == "aclrtUnmapMem" {
            sim.set_foreign_bytes(0, 90 * M);
        }
    })));
    let short = rig.alloc.allocate(0, 160 * M, 0, STREAM);
    assert!(matches!(short, Err(Error::OutOfMemory(_))), "its stream still works: {short:?}");
    assert_eq!(rig.alloc.imported_bytes(0).unwrap(), 4 * M);
    rig.gate.finish(0, stream).unwrap();
    let waits = rig.sim.count("aclrtSynchronizeStream") + rig.sim.count("aclrtSynchronizeDevice");
    let block = rig.alloc.allocate(0, 160 * M, 0, STREAM).unwrap();
    assert_eq!(rig.alloc.imported_bytes(0).unwrap(), 0);
    assert_eq!(rig.sim.count("aclrtSynchronizeStream") + rig.sim.count("aclrtSynchronizeDevice"), waits);
    rig.alloc.deallocate(block).unwrap();
    rig.finish();
}

// ---- peers ----

/// Whether a device has access to all chunks of a block.
fn reaches(rig: &Rig, device: u32, ptr: DevicePtr, bytes: u64) -> bool {
    let access = |address| rig.sim.get_access(address, Location::device(device)).unwrap();
    (ptr.0..ptr.0 + bytes).step_by(2 << 20).all(|address| access(address) == 3)
}

/// Whoever sets peers does not see yet what is being imported.
#[test]
fn peers_that_are_set_during_an_import_reach_it() {
    for call in [IMPORTED, "aclrtMapMem"] {
        let rig = Rig::new();
        let mut other = Other::start("sim");
        let handle = other.export(3 * M);
        let weak = rig.weak().1;
        rig.once_at(call, move || weak.upgrade().unwrap().set_peers(0, &[1]).unwrap());
        let import = rig.alloc.import(0, &handle, STREAM).unwrap();
        assert!(reaches(&rig, 1, import.ptr(), 4 * M));
        drop(import);
        let later = rig.alloc.import(0, &handle, STREAM).unwrap();
        assert!(reaches(&rig, 1, later.ptr(), 4 * M));
        drop(later);
        rig.finish();
    }
}

/// Peers are set while a block is being imported, and somebody else imports it before they are granted access: it is within
/// their reach for both, and who cannot have it so gets no block.
#[test]
fn whoever_finds_a_block_imported_has_it_within_reach_of_peers() {
    for refused in [false, true] {
        let rig = Rig::new();
        let mut other = Other::start("sim");
        let handle = other.export(3 * M);
        let ((sim, weak), theirs) = (rig.weak(), handle.clone());
        let (sender, receiver) = channel();
        let (set, asked) = (AtomicU32::new(0), AtomicU32::new(0));
        rig.gate.watch(Some(Arc::new(move |call| {
            let alloc = || weak.upgrade().unwrap();
            if call == IMPORTED && set.fetch_add(1, SeqCst) == 0 {
                alloc().set_peers(0, &[1]).unwrap();
            }
            if call == "aclrtMemSetAccess" && asked.fetch_add(1, SeqCst) == 0 {
                if refused {
                    sim.fail(call, 1, REFUSED, true).unwrap();
                }
                let (alloc, handle) = (alloc(), theirs.clone());
                let thread = std::thread::spawn(move || alloc.import(0, &handle, STREAM));
                let found = thread.join().unwrap();
                let access = |block: ImportedBlock| {
                    (0..2).all(|at| sim.get_access(block.ptr().0 + at * 2 * M, Location::device(1)) == Ok(3))
                };
                sender.send(found.map(access)).unwrap();
            }
        })));
        let block = rig.alloc.import(0, &handle, STREAM);
        rig.gate.watch(None);
        rig.sim.clear_faults();
        let found = receiver.recv().unwrap();
        assert_eq!((block.is_err(), found.is_err()), (refused, refused), "{block:?} {found:?}");
        assert!(found.unwrap_or(true));
        let again = rig.alloc.import(0, &handle, STREAM).unwrap();
        assert!(reaches(&rig, 1, again.ptr(), 3 * M));
        drop((block, again));
        rig.finish();
    }
}

/// A reset that comes before a grant has closed the links that were just opened: that is told, and nothing is set.
#[test]
fn a_reset_in_the_middle_of_setting_peers_is_told() {
    let rig = Rig::new();
    let mut other = Other::start("sim");
    let handle = other.export(3 * M);
    let import = rig.alloc.import(0, &handle, STREAM).unwrap();
    let weak = rig.weak();
    rig.once_at("aclrtMemSetAccess", move || reset_weak(&weak));
    was_reset(rig.alloc.set_peers(0, &[1]));
    assert_eq!(rig.alloc.peers(0).unwrap(), []);
    rig.alloc.set_peers(0, &[1]).unwrap();
    assert_eq!(rig.alloc.peers(0).unwrap(), [1]);
    drop(import);
    rig.finish();
}

/// The same of a device that was to be a peer, wherever it comes; what is refused after it, too. The other peer stays.
#[test]
fn a_reset_of_a_peer_while_peers_are_set_is_told() {
    for (call, refused) in
        [("aclrtDeviceEnablePeerAccess", false), ("aclrtMemSetAccess", false), ("aclrtMemSetAccess", true)]
    {
        let rig = Rig::new();
        rig.alloc.set_peers(0, &[2]).unwrap();
        let block = rig.alloc.allocate(0, 8 * M, 0, STREAM).unwrap();
        let (sim, weak) = rig.weak();
        rig.once_at(call, move || {
            sim.reset_device_force(1).unwrap();
            sim.set_device(0).unwrap();
            weak.upgrade().unwrap().device_was_reset(1).unwrap();
            if refused {
                sim.fail("aclrtMemSetAccess", 1, REFUSED, true).unwrap();
            }
        });
        rig.sim.set_device(1).unwrap();
        rig.sim.set_device(0).unwrap();
        let answer = rig.alloc.set_peers(0, &[1, 2]);
        rig.sim.clear_faults();
        was_reset(answer);
        assert_eq!(rig.alloc.peers(0).unwrap(), [2], "{call}");
        rig.alloc.set_peers(0, &[1, 2]).unwrap();
        assert!(reaches(&rig, 1, block, 8 * M) && reaches(&rig, 2, block, 8 * M));
        rig.alloc.deallocate(block).unwrap();
        rig.finish();
    }
}

/// Another thread maps and imports while peers are set, which is refused then: what it mapped is for those of before, and
/// what is refused again is tried again.
#[test]
fn peers_that_are_refused_leave_what_was_mapped_meanwhile_to_those_of_before() {
    for refused_again in [false, true] {
        let rig = Rig::new();
        let mut other = Other::start("sim");
        let handle = other.export(4 * M);
        rig.alloc.set_peers(0, &[1]).unwrap();
        let [block, idle] = [8 * M; 2].map(|bytes| rig.alloc.allocate(0, bytes, 0, STREAM).unwrap());
        let (sender, receiver) = channel();
        let (sim, weak) = rig.weak();
        rig.once_at("aclrtMemSetAccess", move || {
            let thread = std::thread::spawn(move || {
                let alloc = weak.upgrade().unwrap();
                (alloc.allocate(0, 8 * M, 0, STREAM).unwrap(), alloc.import(0, &handle, STREAM).unwrap())
            });
            sender.send(thread.join().unwrap()).unwrap();
            sim.fail("aclrtMemSetAccess", 1, REFUSED, false).unwrap();
        });
        let answer = rig.alloc.set_peers(0, &[2]);
        assert!(matches!(answer, Err(Error::Driver(_))), "{answer:?}");
        assert_eq!(rig.alloc.peers(0).unwrap(), [1]);
        let (meanwhile, import) = receiver.recv().unwrap();
        assert!(reaches(&rig, 1, import.ptr(), 4 * M));
        rig.alloc.deallocate(idle).unwrap();
        if refused_again {
            rig.sim.fail("aclrtMemSetAccess", 1, REFUSED, true).unwrap();
            rig.alloc.empty_cache(None).unwrap();
            rig.sim.clear_faults();
            assert!(!reaches(&rig, 1, meanwhile, 8 * M));
        }
        let later = rig.alloc.allocate(0, 16 * M, 0, STREAM).unwrap();
        for (ptr, bytes) in [(block, 8 * M), (meanwhile, 8 * M), (later, 16 * M)] {
            assert!(reaches(&rig, 1, ptr, bytes), "{ptr:?}");
        }
        drop(import);
        [block, meanwhile, later].into_iter().for_each(|ptr| rig.alloc.deallocate(ptr).unwrap());
        rig.finish();
    }
}

/// Two threads set peers at once, and the first is refused: the second one does not rely on what that was about to grant.
#[test]
fn peers_that_two_threads_set_at_once_are_granted_whatever_the_other_is_refused() {
    let rig = Rig::new();
    let block = rig.alloc.allocate(0, 8 * M, 0, STREAM).unwrap();
    let (sender, second) = channel();
    let (sim, weak) = rig.weak();
    rig.once_at("aclrtMemSetAccess", move || {
        let (ended, end) = channel();
        let thread = std::thread::spawn(move || {
            let answer = weak.upgrade().unwrap().set_peers(0, &[1, 2]);
            let _nobody_waits_any_more = ended.send(());
            answer
        });
        // It need not come so far before the first has ended; then this only takes that long.
        let _in_time = end.recv_timeout(Duration::from_millis(100));
        sender.send(thread).unwrap();
        sim.fail("aclrtMemSetAccess", 1, REFUSED, false).unwrap();
    });
    let first = rig.alloc.set_peers(0, &[1]);
    assert!(matches!(first, Err(Error::Driver(_))), "{first:?}");
    second.recv().unwrap().join().unwrap().unwrap();
    assert_eq!(rig.alloc.peers(0).unwrap(), [1, 2]);
    assert!(reaches(&rig, 1, block, 8 * M) && reaches(&rig, 2, block, 8 * M));
    rig.alloc.deallocate(block).unwrap();
    rig.finish();
}
