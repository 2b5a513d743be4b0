//! What the versions of PyTorch and torch_npu write, as far as they differ.

use ascend_alloc::snapshot_file::{BlockKind, Document};

use super::sample::read;

/// The pickle of protocol 0 of a dictionary of plain values, from something like JSON.
fn document(text: &str) -> Document {
    Document::from_tree(&read(text.as_bytes())).expect("a snapshot")
}

#[test]
fn a_list_of_segments_alone_is_a_snapshot() {
    let document = document(
        "(l(dS'device'\nI1\nsS'address'\nI4096\nsS'total_size'\nI1024\nsS'stream'\nI0\nsS'segment_type'\nS'small'\ns\
         S'blocks'\n(l(dS'size'\nI512\nsS'state'\nS'active_allocated'\nsa(dS'size'\nI512\nsS'state'\nS'inactive'\nsasa.",
    );
    let segment = &document.segments[0];
    assert_eq!((segment.device, segment.address, segment.total_size), (1, 4096, 1024));
    assert_eq!((segment.allocated_size, segment.active_size, segment.is_large), (512, 512, false));
    // Blocks that do not say where they are lie one behind the other, and asked for all of it.
    assert_eq!((segment.blocks[1].address, segment.blocks[0].requested_size), (4608, 512));
    assert_eq!(document.totals(1).allocated, 512);
    assert_eq!(document.devices(), [1]);
}

#[test]
fn old_versions_kept_frames_and_size_in_a_history() {
    let document = document(
        "(dS'segments'\n(l(dS'address'\nI0\nsS'total_size'\nI1024\nsS'blocks'\n(l(dS'size'\nI1024\nsS'state'\n\
         S'active_awaiting_free'\nsS'history'\n(l(dS'addr'\nI0\nsS'real_size'\nI1000\nsS'frames'\n\
         (l(dS'filename'\nS'a.py'\nsS'line'\nNsS'name'\nS'f'\nsasa(dS'real_size'\nI3\nsasasas.",
    );
    let block = &document.segments[0].blocks[0];
    assert_eq!((block.kind, block.requested_size), (BlockKind::PendingFree, 1000));
    assert_eq!((&*block.frames[0].filename, block.frames[0].line, &*block.frames[0].name), ("a.py", 0, "f"));
}

#[test]
fn settings_and_annotations_are_taken_and_unknown_keys_are_not() {
    let document = document(
        "(dS'segments'\n(lsS'device_traces'\nNsS'host_segments'\n(lI1\nasS'allocator_settings'\n\
         (dS'max_split_size'\nI-1\nsS'expandable_segments'\nI01\nsS'roundup_power2_divisions'\n(dS'1'\nI0\nss\
         sS'external_annotations'\n(l(dS'device'\nI0\nsS'time_us'\nI7\nsS'name'\nS'step'\nsS'stage'\nS'START'\nsa\
         (dS'name'\nS'no time'\nsas.",
    );
    let settings = [("max_split_size", "-1"), ("expandable_segments", "True")];
    assert_eq!(document.settings, settings.map(|(key, value)| (key.to_owned(), value.to_owned())));
    assert_eq!(document.annotations.len(), 1);
    assert_eq!((document.annotations[0].time_us, &*document.annotations[0].stage), (7, "START"));
    assert_eq!(document.warnings, ["1 annotation without time or name was left out"]);
}
