//! Blocks shared by two real processes, this test and another run of its own program, once through the
//! simulator and once through its library.
#![cfg(target_os = "linux")]

mod common;

use ascend_alloc::driver::{ShareForm, Stream};
use ascend_alloc::{
    DevicePtr, Error, Export, ExportOptions, GrowableBuffer, GrowableOptions, ImportedBlock, Importers, Life,
    PoolOptions, RouteFilter, SharedHandle,
};
use ascend_sim::{LAG_NEVER, SimConfig, Soc, Task};
use common::M;
use common::other::{Other, Rig, for_both, play_the_other};

const STREAM: Stream = Stream(0);

/// What the other process does; started by the tests below.
#[test]
#[ignore = "the part of another process, started by the other tests"]
fn the_other_process() {
    play_the_other();
}

#[test]
fn two_processes_see_one_memory() {
    for_both(|rig, mut other| {
        // A block that begins in the middle of a chunk.
        let _before = rig.alloc.allocate(0, 3 * M, 0, STREAM).unwrap();
        let block = rig.alloc.allocate(0, 5 * M, 0, STREAM).unwrap();
        assert!(!block.0.is_multiple_of(2 * M));
        rig.poke(block.0, 11);
        rig.poke(block.0 + 5 * M - 1, 12);
        for form in [ShareForm::V1, ShareForm::V2] {
            let export = rig.alloc.export(block, &ExportOptions::default().named(form)).unwrap();
            assert_eq!((export.handle().bytes(), export.handle().form()), (5 * M, form));
            assert_eq!(other.import(export.handle()), "ok");
            assert_eq!(
                (other.ask("read 0"), other.ask(&format!("read {}", 5 * M - 1))),
                ("11".into(), "12".into())
            );
            other.ask("write 0 99");
            assert_eq!(rig.peek(block.0), 99);
            rig.poke(block.0, 11);
            // Address space for what is mapped, not more; again is the same mapping.
            let held = format!("{0} {0}", export.handle().mapped_bytes());
            assert_eq!(export.handle().mapped_bytes(), 8 * M);
            assert_eq!(other.ask("held"), held);
            assert_eq!(other.import(export.handle()), "ok");
            let places = other.ask("places");
            let places: Vec<&str> = places.split_whitespace().collect();
            assert!(places.len() == 2 && places[0] == places[1], "{places:?}");
            other.ask("drop");
            assert_eq!(other.ask("held"), held, "the other import still has it");
            assert_eq!(other.ask("read 0"), "11");
            other.ask("drop");
            assert_eq!(other.ask("held"), "0 0");
        }
        assert_eq!(other.ask("check"), "Ok(())");
    });
}

/// Large growth takes wide chunks where a setting asks for them: they are shared as they are, at a granule in the middle of
/// one, too, and other devices are granted the sizes they have.
#[test]
fn blocks_with_wide_chunks_are_shared() {
    let large = "check_level:2,large_segment_size_mb:20";
    // The page of 1 GiB begins in the middle of its block.
    let huge = "check_level:2,page_size:1g";
    for (conf, before, size) in [(large, 0, 50 * M), (huge, 1000 * M, 1060 * M)] {
        let capacity = 3 << 30;
        for soc in [Soc::Ascend910B, Soc::Ascend950] {
            if soc == Soc::Ascend950 && before > 0 {
                continue;
            }
            let rig = Rig::with(SimConfig { capacity, devices: 2, soc, ..SimConfig::default() }, conf);
            let mut other = Other::start("sim");
            let before = rig.alloc.allocate(0, before, 0, STREAM).unwrap();
            let block = rig.alloc.allocate(0, size, 0, STREAM).unwrap();
            let last = size - 1;
            rig.poke(block.0, 31);
            rig.poke(block.0 + last, 32);
            let export = rig.alloc.export(block, &ExportOptions::default()).unwrap();
            let named = rig.machine().count("aclrtMemExportToShareableHandle");
            let granules = export.handle().mapped_bytes() / (2 * M);
            assert!(named < granules / 2, "{named} chunks of {granules} granules");
            let message = export.handle().to_bytes();
            assert!(SharedHandle::from_bytes(&message).unwrap() == *export.handle());
            assert_eq!(other.import(export.handle()), "ok", "{conf} {soc:?}");
            let ends = (other.ask("read 0"), other.ask(&format!("read {last}")));
            assert_eq!(ends, ("31".into(), "32".into()));
            other.ask(&format!("write {last} 33"));
            assert_eq!(rig.peek(block.0 + last), 33);
            other.ask("drop");
            assert_eq!(other.ask("held"), "0 0");
            drop(export);
            // What comes to lie in the middle of one is shared with all of it.
            rig.alloc.deallocate(block).unwrap();
            let small: Vec<_> = (0..4).map(|_| rig.alloc.allocate(0, 7 * M, 0, STREAM).unwrap()).collect();
            rig.poke(small[3].0 + 5, 34);
            let export = rig.alloc.export(small[3], &ExportOptions::default()).unwrap();
            assert!(export.handle().mapped_bytes() >= 7 * M);
            assert_eq!(other.import(export.handle()), "ok", "{conf} {soc:?}");
            assert_eq!(other.ask("read 5"), "34");
            other.ask("drop");
            assert_eq!(other.ask("check"), "Ok(())");
            drop(export);
            rig.alloc.deallocate(before).unwrap();
            small.into_iter().for_each(|block| rig.alloc.deallocate(block).unwrap());
            rig.alloc.empty_cache(None).unwrap();
            assert_eq!(rig.machine().physical_bytes(0), 0);
        }
    }
}

/// Before CANN 8.5 there are the calls of the first version alone.
#[test]
fn the_first_form_serves_where_the_second_is_missing() {
    let (rig, mut other) = (Rig::sim(), Other::start("sim"));
    let second = ["aclrtMemExportToShareableHandleV2", "aclrtMemSetPidToShareableHandleV2"];
    rig.machine().set_missing(&second).unwrap();
    let block = rig.alloc.allocate(0, 5 * M, 0, STREAM).unwrap();
    rig.poke(block.0, 21);
    let id = other.id();
    let export = rig.alloc.export(block, &ExportOptions::for_processes(&[id]).named(ShareForm::V2)).unwrap();
    assert_eq!(export.handle().form(), ShareForm::V1);
    assert_eq!(other.import(export.handle()), "ok");
    assert_eq!(other.ask("read 0"), "21");
    // Nothing serves in place of a fabric.
    let fabric = rig.alloc.export(block, &ExportOptions::for_processes(&[id]).named(ShareForm::Fabric));
    assert!(matches!(fabric, Err(Error::Driver(_))), "{fabric:?}");
    drop(export);
    rig.alloc.deallocate(block).unwrap();
    assert_eq!(rig.live_bytes(), 0);
}

#[test]
fn only_named_processes_import() {
    assert_eq!(Importers::default(), Importers::Any);
    for_both(|rig, mut other| {
        let block = rig.alloc.allocate(0, 4 * M, 0, STREAM).unwrap();
        let export = rig.alloc.export(block, &ExportOptions::for_processes(&[1])).unwrap();
        let refused = other.import(export.handle());
        assert!(refused.contains("aclrtMemImportFromShareableHandle"), "{refused}");
        assert_eq!(other.ask("held"), "0 0");
        let id = other.id();
        export.allow(&[id]).unwrap();
        assert_eq!(other.import(export.handle()), "ok");
        // A chunk has one name; for all processes it would be another.
        assert!(matches!(rig.alloc.export(block, &ExportOptions::default()), Err(Error::State { .. })));
        let again = rig.alloc.export(block, &ExportOptions::for_processes(&[id])).unwrap();
        assert!(again.handle() == export.handle());
    });
}

/// No event can be recorded on a stream that is gone, and nothing can be asked about it.
#[test]
fn an_import_that_a_stream_used_which_is_gone_can_be_given_up() {
    let (rig, mut other) = (Rig::sim(), Other::start("sim"));
    let handle = other.export(3 * M);
    let import = rig.alloc.import(0, &handle, STREAM).unwrap();
    let stream = Stream(rig.machine().create_stream().unwrap());
    import.record_stream(stream);
    rig.alloc.stream_destroyed(0, stream).unwrap();
    rig.machine().destroy_stream(stream.0).unwrap();
    drop(import);
    rig.alloc.empty_cache(None).unwrap();
    assert_eq!((rig.alloc.imported_bytes(0).unwrap(), rig.space()), (0, 0));
}

/// Growing publishes a block anew; it must not forget that an export holds it.
#[test]
fn an_exported_block_that_has_grown_stays_too() {
    for (size, grown) in [(M, M), (3 * M, 3 * M), (3 * M, 7 * M)] {
        let rig = Rig::sim();
        let block = rig.alloc.allocate(0, size, 0, STREAM).unwrap();
        let export = rig.alloc.export(block, &ExportOptions::default()).unwrap();
        assert!(rig.alloc.grow_in_place(block, grown).unwrap());
        rig.alloc.deallocate(block).unwrap();
        assert!(rig.live_bytes() >= grown as i64, "the export holds it");
        let other = rig.alloc.allocate(0, size, 0, STREAM).unwrap();
        assert_ne!(other, block, "memory of importers was handed out");
        drop(export);
        rig.alloc.deallocate(other).unwrap();
        assert_eq!(rig.live_bytes(), 0);
        rig.alloc.check().unwrap();
    }
}

#[test]
fn an_exported_block_stays_until_its_exports_end() {
    for_both(|rig, mut other| {
        let block = rig.alloc.allocate(0, 40 * M, 0, STREAM).unwrap();
        rig.poke(block.0, 5);
        let export = rig.alloc.export(block, &ExportOptions::default()).unwrap();
        let second = rig.alloc.export(block, &ExportOptions::default()).unwrap();
        assert_eq!(other.import(export.handle()), "ok");
        assert!(matches!(rig.alloc.shrink_in_place(block, M), Err(Error::State { .. })));
        rig.alloc.deallocate(block).unwrap();
        assert!(matches!(rig.alloc.deallocate(block), Err(Error::Pointer { .. })), "freed once");
        assert!(matches!(rig.alloc.export(block, &ExportOptions::default()), Err(Error::Pointer { .. })));
        // Nothing takes its chunks, however short memory is.
        let big = rig.alloc.allocate(0, 200 * M, 0, STREAM).unwrap();
        assert!(matches!(rig.alloc.allocate(0, 30 * M, 0, STREAM), Err(Error::OutOfMemory(_))));
        rig.alloc.empty_cache(None).unwrap();
        rig.alloc.deallocate(big).unwrap();
        drop(export);
        assert_eq!((rig.peek(block.0), other.ask("read 0")), (5, "5".into()));
        assert!(rig.live_bytes() > 40 * M as i64 - 1);
        other.ask("drop");
        drop(second);
        assert_eq!(rig.live_bytes(), 0);
        rig.alloc.check().unwrap();
        rig.alloc.empty_cache(None).unwrap();
        assert_eq!(rig.space(), 0);
    });
}

#[test]
fn either_process_may_die() {
    for_both(|rig, mut other| {
        // The importer.
        let block = rig.alloc.allocate(0, 4 * M, 0, STREAM).unwrap();
        rig.poke(block.0, 9);
        let export = rig.alloc.export(block, &ExportOptions::default()).unwrap();
        assert_eq!(other.import(export.handle()), "ok");
        assert_eq!(other.ask("life"), "Alive");
        other.kill();
        assert_eq!(rig.peek(block.0), 9);
        drop(export);
        rig.alloc.deallocate(block).unwrap();
    });
    for_both(|rig, mut other| {
        // The exporter.
        let handle = other.export(3 * M);
        let block = rig.alloc.import(0, &handle, STREAM).unwrap();
        assert_eq!((rig.peek(block.ptr().0), block.exporter()), (77, Life::Alive));
        other.kill();
        assert_eq!(block.exporter(), Life::Gone);
        drop(block);
        assert_eq!((rig.alloc.imported_bytes(0).unwrap(), rig.space()), (0, 0));
        let late = rig.alloc.import(0, &handle, STREAM);
        assert!(matches!(late, Err(Error::Driver(_))), "{late:?}");
        assert_eq!((rig.alloc.imported_bytes(0).unwrap(), rig.space()), (0, 0));
        rig.alloc.check().unwrap();
    });
}

/// To the driver all imports of a chunk are one object, which is the first device's: the others need a grant.
#[test]
fn a_block_is_imported_for_several_devices() {
    let rig = Rig::on(SimConfig { devices: 3, ..SimConfig::default() });
    let sim = rig.machine();
    let streams = [0, 1, 2].map(|device| sim.on_device(device, || sim.create_stream()).unwrap().unwrap());
    let reaches = |block: &ImportedBlock| {
        let (device, bytes) = (block.device(), block.bytes());
        let stream = streams[device as usize];
        let touch = Task::new("touch").reads(block.ptr().0, bytes, 0);
        sim.on_device(device, || sim.submit(stream, touch)).unwrap().unwrap();
        sim.on_device(device, || sim.synchronize_stream(stream)).unwrap().unwrap();
        sim.take_findings().is_empty()
    };
    let mut other = Other::start("sim");
    // The second block begins in the last chunk of the first one, the third in that of the second.
    let handles = [0; 3].map(|_| other.export(3 * M));
    let import = |handle: &SharedHandle, device| rig.alloc.import(device, handle, STREAM).unwrap();
    let first = import(&handles[0], 1);
    assert_eq!((reaches(&first), sim.count("aclrtMemSetAccess")), (true, 0));
    let second = import(&handles[0], 0);
    assert!(reaches(&first) && reaches(&second) && first.ptr() != second.ptr());
    let mixed = [import(&handles[1], 0), import(&handles[1], 2), import(&handles[2], 1)];
    assert!(mixed.iter().all(reaches));
    // What is refused leaves nothing.
    let held = (sim.mapping_count(), rig.alloc.imported_bytes(2).unwrap());
    for (call, nth) in [("aclrtMemSetAccess", 1), ("aclrtMemSetAccess", 2), ("aclrtMapMem", 2)] {
        sim.fail(call, nth, 507_899, false).unwrap();
        let refused = rig.alloc.import(2, &handles[2], STREAM);
        assert!(matches!(refused, Err(Error::Driver(_))), "{refused:?}");
        assert_eq!((sim.mapping_count(), rig.alloc.imported_bytes(2).unwrap()), held);
    }
    // They stay the first one's, also when that is gone.
    drop(first);
    rig.alloc.empty_cache(None).unwrap();
    let later = import(&handles[0], 2);
    assert!(mixed.iter().chain([&second, &later]).all(reaches));
    // Peers of each reach what is its own.
    rig.alloc.set_peers(0, &[2]).unwrap();
    let peer = Task::new("peer").reads(second.ptr().0, second.bytes(), 0);
    sim.on_device(2, || sim.submit(streams[2], peer)).unwrap().unwrap();
    sim.on_device(2, || sim.synchronize_stream(streams[2])).unwrap().unwrap();
    assert_eq!(sim.take_findings(), Vec::<String>::new());
    drop((second, mixed, later));
    rig.alloc.empty_cache(None).unwrap();
    assert_eq!((sim.mapping_count(), sim.reserved_bytes()), (0, 0));
    // With nothing left of it the next one is the first.
    let before = sim.count("aclrtMemSetAccess");
    assert!(reaches(&import(&handles[0], 2)));
    assert_eq!(sim.count("aclrtMemSetAccess"), before);
    rig.alloc.empty_cache(None).unwrap();

    // Several threads, one for each device.
    for round in 0..20 {
        let blocks = std::thread::scope(|scope| {
            let (import, handles) = (&import, &handles);
            let of = |device| &handles[(round + device as usize) % 3];
            let running = [0, 1, 2].map(|device| scope.spawn(move || import(of(device), device)));
            running.map(|thread| thread.join().unwrap())
        });
        assert!(blocks.iter().all(reaches));
        drop(blocks);
        rig.alloc.empty_cache(None).unwrap();
        assert_eq!(sim.mapping_count(), 0);
    }
}

/// As B19: many imports take the address space of what they map, and give it back.
#[test]
fn imports_reserve_what_they_map() {
    let rig = Rig::sim();
    let mut other = Other::start("sim");
    let blocks: Vec<DevicePtr> =
        (0..20).map(|_| rig.alloc.allocate(0, 2 * M - 64, 0, STREAM).unwrap()).collect();
    let exports: Vec<Export> =
        blocks.iter().map(|&block| rig.alloc.export(block, &ExportOptions::default()).unwrap()).collect();
    for export in &exports {
        assert_eq!(other.import(export.handle()), "ok");
    }
    let mapped: u64 = exports.iter().map(|export| export.handle().mapped_bytes()).sum();
    assert!(mapped <= 80 * M);
    assert_eq!(other.ask("held"), format!("{mapped} {mapped}"));
    for _ in &exports {
        other.ask("drop");
    }
    for _ in 0..1000 {
        assert_eq!(other.import(exports[3].handle()), "ok");
        other.ask("drop");
    }
    assert_eq!(other.ask("held"), "0 0");
}

#[test]
fn the_own_process_needs_no_import() {
    let rig = Rig::sim();
    let block = rig.alloc.allocate(0, 3 * M, 0, STREAM).unwrap();
    let export = rig.alloc.export(block, &ExportOptions::default()).unwrap();
    assert!(matches!(rig.alloc.import(0, export.handle(), STREAM), Err(Error::State { .. })));
    assert!(matches!(rig.alloc.import(9, export.handle(), STREAM), Err(Error::Argument { .. })));
    let wrong = [DevicePtr(block.0 + 512), DevicePtr::NULL, DevicePtr(0x1000)];
    for ptr in wrong {
        assert!(matches!(rig.alloc.export(ptr, &ExportOptions::default()), Err(Error::Pointer { .. })));
    }
}

#[test]
fn a_growing_buffer_is_exported_as_it_is() {
    for_both(|rig, mut other| {
        let options = GrowableOptions::up_to(32 * M).beginning_with(6 * M);
        let mut buffer = GrowableBuffer::new(rig.alloc.clone(), 0, STREAM, options).unwrap();
        rig.poke(buffer.ptr().0 + 5 * M, 44);
        let export = rig.alloc.export(buffer.ptr(), &ExportOptions::default()).unwrap();
        assert_eq!(other.import(export.handle()), "ok");
        assert_eq!(other.ask(&format!("read {}", 5 * M)), "44");
        buffer.resize(20 * M).unwrap();
        assert!(matches!(buffer.resize(6 * M), Err(Error::State { .. })));
        drop(buffer);
        assert_eq!(other.ask(&format!("read {}", 5 * M)), "44");
        drop(export);
        assert_eq!(rig.live_bytes(), 0);
        rig.alloc.check().unwrap();
    });
}

/// The drop of an import waits for no stream, and nothing is unmapped under queued work.
#[test]
fn queued_work_keeps_an_import_mapped() {
    let rig = Rig::on(SimConfig { lag: LAG_NEVER, devices: 2, ..SimConfig::default() });
    let mut other = Other::start("sim");
    let handle = other.export(3 * M);
    let second = Stream(rig.machine().create_stream().unwrap());
    let block = rig.alloc.import(0, &handle, STREAM).unwrap();
    block.record_stream(second);
    let task = Task::new("reads").reads(block.ptr().0, 3 * M, 1);
    rig.machine().submit(second.0, task).unwrap();
    drop(block);
    assert_eq!(rig.machine().count("aclrtUnmapMem"), 0);
    assert_eq!(rig.alloc.imported_bytes(0).unwrap(), 4 * M);
    let waits = ["aclrtSynchronizeStream", "aclrtSynchronizeEvent", "aclrtSynchronizeDevice"];
    assert_eq!(waits.map(|call| rig.machine().count(call)), [0; 3]);
    rig.alloc.empty_cache(None).unwrap();
    assert_eq!((rig.alloc.imported_bytes(0).unwrap(), rig.space()), (0, 0));
    // Failing calls leave nothing mapped that cannot be released later.
    for call in ["aclrtMemImportFromShareableHandle", "aclrtReserveMemAddress", "aclrtMapMem"] {
        rig.machine().fail(call, 1, 507_899, false).unwrap();
        let answer = rig.alloc.import(0, &handle, STREAM);
        assert!(matches!(&answer, Err(Error::Driver(error)) if error.call == call), "{answer:?}");
    }
    for call in ["aclrtUnmapMem", "aclrtFreePhysical", "aclrtReleaseMemAddress"] {
        let block = rig.alloc.import(0, &handle, STREAM).unwrap();
        rig.machine().fail(call, 1, 507_899, false).unwrap();
        drop(block);
        rig.alloc.empty_cache(None).unwrap();
        rig.alloc.empty_cache(None).unwrap();
        assert_eq!((rig.alloc.imported_bytes(0).unwrap(), rig.space()), (0, 0), "{call}");
    }
    assert_eq!(rig.machine().findings(), Vec::<String>::new());
    let sim = rig.machine().clone();
    drop(rig);
    assert_eq!((sim.mapping_count(), sim.reserved_bytes()), (0, 0));
}

/// Work that is being captured may hold the address: nothing is asked, waited for or unmapped before the end.
#[test]
fn a_capture_keeps_an_import_mapped() {
    let rig = Rig::sim();
    let mut other = Other::start("sim");
    let handle = other.export(3 * M);
    let block = rig.alloc.import(0, &handle, STREAM).unwrap();
    let pool = rig.alloc.create_pool(0, PoolOptions::default()).unwrap();
    let capture = rig.alloc.capture(pool, RouteFilter::ThisThread).unwrap();
    let before = rig.machine().counters();
    drop(block);
    rig.alloc.empty_cache(None).unwrap();
    assert_eq!(rig.machine().counters(), before);
    assert_eq!(rig.alloc.imported_bytes(0).unwrap(), 4 * M);
    // An import that fails was used by nobody and leaves nothing behind.
    let handle = other.export(3 * M);
    rig.machine().fail("aclrtMapMem", 1, 507_899, false).unwrap();
    assert!(rig.alloc.import(0, &handle, STREAM).is_err());
    assert_eq!(rig.alloc.imported_bytes(0).unwrap(), 4 * M);
    drop(capture);
    rig.alloc.empty_cache(None).unwrap();
    assert_eq!((rig.alloc.imported_bytes(0).unwrap(), rig.space()), (0, 0));
}

/// Chunks are shared, and several blocks lie in one: each is imported for itself.
/// https://github.com/openucx/ucx/pull/4431, https://github.com/pytorch/pytorch/pull/14736
#[test]
fn blocks_of_one_chunk_are_imported_one_by_one() {
    for_both(|rig, mut other| {
        let blocks = [4096; 2].map(|bytes| rig.alloc.allocate(0, bytes, 0, STREAM).unwrap());
        assert_eq!(blocks[0].0 >> 21, blocks[1].0 >> 21);
        rig.poke(blocks[0].0, 41);
        rig.poke(blocks[1].0, 42);
        let exports = blocks.map(|block| rig.alloc.export(block, &ExportOptions::default()).unwrap());
        for export in &exports {
            assert_eq!(other.import(export.handle()), "ok");
        }
        assert_eq!(other.ask("held"), format!("{0} {0}", 4 * M));
        let read = other.ask("read 0");
        other.ask("drop");
        let left = other.ask("read 0");
        assert!([&read, &left].iter().all(|byte| ["41", "42"].contains(&byte.as_str())), "{read} {left}");
        assert_eq!(other.ask("held"), format!("{0} {0}", 2 * M));
        other.ask("drop");
        assert_eq!(other.ask("held"), "0 0");
    });
}
