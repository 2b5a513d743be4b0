//! What an export leaves with the chunks of its block: the names that the driver gave them, also where it was refused.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;

use ascend_alloc::driver::{ShareForm, SimDriver, Stream};
use ascend_alloc::{
    Config, DeviceAllocator, DevicePtr, Error, Export, ExportOptions, PoolOptions, SleepMode,
};
use ascend_sim::{Sim, SimConfig, Soc};
use common::M;
use common::other::{Machine, Rig};

const STREAM: Stream = Stream(0);
const NAMES: &str = "aclrtMemExportToShareableHandle";
const BY_NAME: &str = "aclrtMemSetPidToShareableHandle";

/// Exports a block for any process.
fn any(rig: &Rig, ptr: DevicePtr) -> Result<Export, Error> {
    rig.alloc.export(ptr, &ExportOptions::default())
}

/// The same for these.
fn named(rig: &Rig, ptr: DevicePtr, processes: &[i32]) -> Result<Export, Error> {
    rig.alloc.export(ptr, &ExportOptions::for_processes(processes))
}

/// Some drivers name a chunk once and no more.
#[test]
fn a_chunk_that_could_not_be_freed_keeps_its_name() {
    for refused in ["aclrtUnmapMem", "aclrtFreePhysical"] {
        for asleep in [false, true] {
            let rig = Rig::on(SimConfig { soc: Soc::Ascend950, capacity: 256 * M, ..SimConfig::default() });
            let Machine::Sim(sim) = &rig.machine else { unreachable!("made so") };
            let pool = rig.alloc.create_pool(0, PoolOptions::tagged("shared")).unwrap();
            let export = || {
                let block = rig.alloc.allocate_in(pool, 40 * M, 0, STREAM).unwrap();
                drop(rig.alloc.export(block, &ExportOptions::default()).unwrap());
                block
            };
            let block = export();
            if !asleep {
                rig.alloc.deallocate(block).unwrap();
            }
            sim.fail(refused, 3, 507_899, true).unwrap();
            // What is refused here is told or not; it stays.
            let _ = match asleep {
                true => rig.alloc.sleep(None, &["shared"], SleepMode::Discard).map(drop),
                false => rig.alloc.empty_cache(None).map(drop),
            };
            sim.clear_faults();
            assert!(sim.physical_bytes(0) >= 30 * M, "{refused}: most chunks stay");
            rig.alloc.wake(None, &["shared"]).unwrap();
            if asleep {
                rig.alloc.deallocate(block).unwrap();
            }
            // The same chunks, and others that were made while some were gone.
            let first = export();
            let second = export();
            [first, second].into_iter().for_each(|block| rig.alloc.deallocate(block).unwrap());
            rig.alloc.empty_cache(None).unwrap();
            rig.alloc.check().unwrap();
            assert_eq!(sim.physical_bytes(0), 0);
        }
    }
}

#[test]
fn what_cannot_be_exported_says_why() {
    let rig = Rig::sim();
    let fabric = ExportOptions::default().named(ShareForm::Fabric);
    let block = rig.alloc.allocate(0, 3 * M, 0, STREAM).unwrap();
    assert!(matches!(rig.alloc.export(block, &fabric), Err(Error::Driver(error)) if error.is_unsupported()));
    for call in ["aclrtMemExportToShareableHandle", "aclrtMemSetPidToShareableHandle"] {
        rig.machine().fail(call, 2, 507_899, false).unwrap();
        let answer = rig.alloc.export(block, &ExportOptions::for_processes(&[1]));
        assert!(matches!(&answer, Err(Error::Driver(error)) if error.call == call), "{answer:?}");
        rig.machine().clear_faults();
    }
    // No refused export holds it.
    rig.alloc.deallocate(block).unwrap();
    assert_eq!(rig.live_bytes(), 0);
    rig.alloc.empty_cache(None).unwrap();
    let pool = rig.alloc.create_pool(0, PoolOptions::tagged("weights")).unwrap();
    let block = rig.alloc.allocate_in(pool, 8 * M, 0, STREAM).unwrap();
    let export = rig.alloc.export(block, &ExportOptions::default()).unwrap();
    assert!(matches!(rig.alloc.sleep(None, &["weights"], SleepMode::Discard), Err(Error::State { .. })));
    drop(export);
    rig.alloc.sleep(None, &["weights"], SleepMode::Discard).unwrap();
    assert!(matches!(rig.alloc.export(block, &ExportOptions::default()), Err(Error::State { .. })));
    rig.alloc.wake(None, &["weights"]).unwrap();
    rig.alloc.deallocate(block).unwrap();
}

/// Fixed blocks have no chunks. What would help is said, and nothing that is so already.
#[test]
fn fixed_blocks_say_what_would_make_them_others() {
    let sim = Sim::new(SimConfig::default());
    let fixed = Config::parse("expandable_segments:False").unwrap();
    let alloc = Arc::new(DeviceAllocator::new(fixed, Arc::new(SimDriver::new(sim))).unwrap());
    let why = |block| match alloc.export(block, &ExportOptions::default()) {
        Err(Error::State { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    let mut options = PoolOptions::default();
    options.expandable = Some(false);
    let pool = alloc.create_pool(0, options).unwrap();
    let block = alloc.allocate(0, 3 * M, 0, STREAM).unwrap();
    assert!(why(block).ends_with("set expandable_segments:True"));
    alloc.set_expandable_segments(true);
    assert!(why(block).ends_with("segments grow now, so allocate it anew after empty_cache"));
    let of_pool = alloc.allocate_in(pool, 3 * M, 0, STREAM).unwrap();
    assert!(why(of_pool).ends_with("make its pool with expandable:None or Some(true)"));
    alloc.set_caching(0, false).unwrap();
    assert!(why(alloc.allocate(0, 3 * M, 0, STREAM).unwrap()).ends_with("while caching is switched on"));
    alloc.set_caching(0, true).unwrap();
    alloc.deallocate(block).unwrap();
    alloc.empty_cache(None).unwrap();
    let block = alloc.allocate(0, 3 * M, 0, STREAM).unwrap();
    assert!(alloc.export(block, &ExportOptions::default()).is_ok(), "what was said to help");
}

/// A name belongs to a chunk: a new chunk with an old handle has none.
#[test]
fn names_end_with_their_chunks() {
    let rig = Rig::on(SimConfig { soc: Soc::Ascend950, capacity: 64 * M, ..SimConfig::default() });
    for round in 0..4 {
        // The driver of a 950 names a chunk once only.
        let block = rig.alloc.allocate(0, 20 * M, 0, STREAM).unwrap();
        let named = ExportOptions::for_processes(&[1]);
        let options = if round < 2 { ExportOptions::default() } else { named };
        let first = rig.alloc.export(block, &options).unwrap();
        let again = rig.alloc.export(block, &options).unwrap();
        assert!(first.handle() == again.handle());
        drop((first, again));
        rig.alloc.deallocate(block).unwrap();
        if round == 1 {
            rig.alloc.empty_cache(None).unwrap();
        }
    }
    assert_eq!(rig.machine().count("aclrtMemExportToShareableHandle"), 20);
}

/// Some drivers name a chunk once: they refuse another form. Then it is said what would be accepted, and no chunk got a name
/// in vain, so that it is.
#[test]
fn a_chunk_that_has_a_name_of_another_form_says_so() {
    use ShareForm::{V1, V2};
    let rig = Rig::on(SimConfig { soc: Soc::Ascend950, capacity: 64 * M, ..SimConfig::default() });
    for (before, after, told) in [(V1, V2, "export the block as V1"), (V2, V1, "export the block as V2")] {
        let export = |ptr, form| rig.alloc.export(ptr, &ExportOptions::default().named(form));
        // They share a chunk; the second one has others before and behind it.
        let block = rig.alloc.allocate(0, 3 * M, 0, STREAM).unwrap();
        let next = rig.alloc.allocate(0, 7 * M, 0, STREAM).unwrap();
        let first = export(block, before).unwrap();
        for ptr in [block, next] {
            let refused = export(ptr, after);
            let text = match &refused {
                Err(Error::Driver(error)) if error.code == 507_899 => error.to_string(),
                _ => panic!("{refused:?}"),
            };
            assert!(text.contains(told) && text.contains(&format!("as {after:?}")), "{text}");
            // The driver's own words stay.
            assert!(text.contains("exported already"), "{text}");
            assert_eq!(export(ptr, before).unwrap().handle().form(), before);
        }
        drop(first);
        [block, next].into_iter().for_each(|ptr| rig.alloc.deallocate(ptr).unwrap());
        rig.alloc.empty_cache(None).unwrap();
        let block = rig.alloc.allocate(0, 3 * M, 0, STREAM).unwrap();
        assert_eq!(export(block, after).unwrap().handle().form(), after, "what was said to help");
        rig.alloc.deallocate(block).unwrap();
        rig.alloc.empty_cache(None).unwrap();
    }
}

/// Whatever the form is, a chunk has one list of importers: the driver would give the same name again, and heed the first export.
#[test]
fn a_name_of_another_form_is_for_the_same_importers() {
    for soc in [Soc::Ascend910B, Soc::Ascend950] {
        let rig = Rig::on(SimConfig { soc, capacity: 64 * M, ..SimConfig::default() });
        for for_any in [true, false] {
            let [any, named] = [ExportOptions::default(), ExportOptions::for_processes(&[1])];
            let (first, second) = if for_any { (any, named) } else { (named, any) };
            let block = rig.alloc.allocate(0, 3 * M, 0, STREAM).unwrap();
            let export = rig.alloc.export(block, &first).unwrap();
            for form in [ShareForm::V1, ShareForm::V2] {
                let refused = rig.alloc.export(block, &second.clone().named(form));
                assert!(matches!(refused, Err(Error::State { .. })), "{soc:?} {form:?}: {refused:?}");
            }
            drop(export);
            rig.alloc.deallocate(block).unwrap();
            rig.alloc.empty_cache(None).unwrap();
        }
    }
}

/// Names stay with the chunks: an export that can be seen to be refused makes none.
#[test]
fn an_export_that_cannot_be_names_no_chunk() {
    let rig = Rig::on(SimConfig { capacity: 64 * M, ..SimConfig::default() });
    let named_chunks = || rig.machine().count(NAMES);
    // Adjacent blocks share a chunk each.
    let [before, block, behind] =
        [3 * M, 7 * M, 7 * M].map(|bytes| rig.alloc.allocate(0, bytes, 0, STREAM).unwrap());
    drop(any(&rig, before).unwrap());
    let count = named_chunks();
    let other = named(&rig, block, &[1]);
    assert!(
        matches!(&other, Err(Error::State { reason, .. }) if reason.contains("empty_cache")),
        "{other:?}"
    );
    let many = named(&rig, behind, &vec![1; 65_536]);
    assert!(matches!(many, Err(Error::Argument { name: "processes", .. })), "{many:?}");
    assert_eq!(named_chunks(), count, "seen before the driver was asked");
    let chunks = any(&rig, block).unwrap().handle().mapped_bytes() / (2 * M);
    assert_eq!(named_chunks(), count + chunks - 1);
    // As many as the driver takes.
    let last = rig.alloc.allocate(0, 20 * M, 0, STREAM).unwrap();
    rig.alloc.deallocate(behind).unwrap();
    let export = named(&rig, last, &vec![1; 65_535]).unwrap();
    let many = export.allow(&vec![1; 65_536]);
    assert!(matches!(many, Err(Error::Argument { name: "processes", .. })), "{many:?}");
    drop(export);
    [before, block, last].into_iter().for_each(|ptr| rig.alloc.deallocate(ptr).unwrap());
    assert_eq!(rig.live_bytes(), 0);
}

/// Where the driver refuses the list of processes, the chunk that it was refused for has a name, and no other one.
#[test]
fn a_refused_list_of_processes_leaves_one_name() {
    let rig = Rig::on(SimConfig { capacity: 64 * M, ..SimConfig::default() });
    let named_chunks = || rig.machine().count(NAMES);
    let blocks = [19 * M, 20 * M].map(|bytes| rig.alloc.allocate(0, bytes, 0, STREAM).unwrap());
    let refused = |ptr| {
        rig.machine().fail(BY_NAME, 1, 507_899, true).unwrap();
        let answer = named(&rig, ptr, &[1]);
        assert!(matches!(&answer, Err(Error::Driver(error)) if error.call == BY_NAME), "{answer:?}");
        rig.machine().clear_faults();
    };
    for _ in 0..2 {
        refused(blocks[0]);
        assert_eq!(named_chunks(), 1);
    }
    let other = any(&rig, blocks[0]);
    assert!(matches!(&other, Err(Error::State { reason, .. }) if reason.contains("refused")), "{other:?}");
    assert_eq!(named_chunks(), 1);
    drop(named(&rig, blocks[0], &[1]).unwrap());
    assert_eq!(named_chunks(), 10);
    // The other block begins in the last of these: it is what is asked about first.
    refused(blocks[1]);
    assert_eq!(named_chunks(), 10);
    blocks.into_iter().for_each(|ptr| rig.alloc.deallocate(ptr).unwrap());
    rig.alloc.empty_cache(None).unwrap();
    let anew = rig.alloc.allocate(0, 19 * M, 0, STREAM).unwrap();
    assert!(any(&rig, anew).is_ok(), "what was said to help");
    rig.alloc.deallocate(anew).unwrap();
    assert_eq!(rig.live_bytes(), 0);
}
