//! Page-locked memory in regions and in the virtual form, registered for a device or at common addresses.

mod host_bed;

use ascend_alloc::Error;
use ascend_alloc::host::{PinnedForm, PinnedOptions};
use ascend_sim::{BackingMode, LAG_NEVER, SimConfig, Soc};
use host_bed::{Bed, G, M, config};

#[test]
fn the_virtual_form_shrinks_in_the_middle() {
    let config_text = "pin_memory_expandable_segments:True";
    let sim = SimConfig {
        lag: LAG_NEVER,
        host_capacity: 2 * G,
        backing: BackingMode::Mapped,
        ..SimConfig::default()
    };
    let bed = Bed::on(sim, config(config_text));
    let blocks: Vec<_> = (0..8).map(|_| bed.alloc(8 * M)).collect();
    assert_eq!((bed.regions(), bed.reserved()), (0, 64 * M));
    for ptr in &blocks {
        // SAFETY: the block is live and 8 MiB long.
        unsafe { ptr.as_ptr().write_bytes(0x5a, 8 << 20) };
    }
    bed.free(blocks[3]);
    bed.free(blocks[4]);
    assert_eq!(bed.pinned.empty_cache().unwrap(), 16 * M);
    assert_eq!(bed.reserved(), 48 * M);
    // SAFETY: the block is live.
    assert_eq!(unsafe { blocks[5].as_ptr().read() }, 0x5a);
    // The hole is filled again before anything else grows.
    let again = bed.alloc(16 * M);
    assert_eq!(again.address(), blocks[3].address());
    bed.free(again);
    for index in [0, 1, 2, 5, 6, 7] {
        bed.free(blocks[index]);
    }
    bed.end();
}

#[test]
fn without_virtual_memory_there_are_regions() {
    let sim = SimConfig { host_capacity: 2 * G, backing: BackingMode::MetadataOnly, ..SimConfig::default() };
    let bed = Bed::on(sim, PinnedOptions { form: PinnedForm::Virtual, ..PinnedOptions::default() });
    let a = bed.alloc(8 * M);
    assert_eq!(bed.regions(), 1);
    bed.free(a);
    bed.end();
}

/// A region that the device may still reach is not freed.
#[test]
fn a_region_that_stays_registered_is_kept() {
    let bed = Bed::new(config("pinned_mem_register:True"));
    for call in ["aclrtHostGetDevicePointer", "aclrtHostUnregister"] {
        bed.sim.fail(call, 1, 507_899, true).unwrap();
    }
    let refused = bed.pinned.allocate(8 * M, 0);
    assert!(matches!(refused, Err(Error::Driver(_))), "{refused:?}");
    assert_eq!((bed.sim.count("aclrtFreeHost"), bed.pinned.stats().lost), (0, 1));
    bed.sim.clear_faults();
    let a = bed.alloc(8 * M);
    bed.free(a);
    bed.pinned.empty_cache().unwrap();
    assert_eq!(bed.sim.count("aclrtFreeHost"), 1);
}

#[test]
fn regions_are_registered_or_at_common_addresses_as_asked() {
    let bed = Bed::new(config("pinned_mem_register:True"));
    let a = bed.alloc(8 * M);
    assert_eq!(bed.sim.count("aclrtHostRegisterV2"), 1);
    assert_eq!(bed.pinned.kernel_ptr(a).unwrap().for_kernel(), a.address());
    bed.free(a);
    assert!(bed.pinned.kernel_ptr(a).is_err());
    bed.pinned.empty_cache().unwrap();
    assert_eq!(bed.sim.count("aclrtHostUnregister"), 1);
    bed.end();

    let common = PinnedOptions { common_addresses: true, ..PinnedOptions::default() };
    let bed = Bed::new(common.clone());
    let a = bed.alloc(8 * M);
    assert!(bed.pinned.kernel_ptr(a).unwrap().is_common());
    bed.free(a);
    bed.end();

    // The part has no such addresses: plain regions, and no device pointer.
    let sim = SimConfig { soc: Soc::Ascend950, host_capacity: G, ..SimConfig::default() };
    let bed = Bed::on(sim, common);
    let a = bed.alloc(8 * M);
    assert!(matches!(bed.pinned.kernel_ptr(a), Err(Error::State { .. })));
    bed.free(a);
    bed.end();
}
