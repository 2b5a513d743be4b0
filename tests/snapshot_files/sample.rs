//! A snapshot with everything in it.

use std::sync::Arc;

use ascend_alloc::snapshot_file::{
    Action, Annotation, Block, BlockKind, Document, Entry, Frame, Frames, Limits, Segment, Tree, pickle,
};

const MIB: u64 = 1 << 20;

fn frames(lines: &[(&str, i64, &str)]) -> Frames {
    let frame = |&(filename, line, name): &(&str, i64, &str)| Frame {
        filename: filename.into(),
        line,
        name: name.into(),
    };
    lines.iter().map(frame).collect()
}

/// An event on stream 0 without frames.
pub fn entry(action: Action, addr: u64, size: u64) -> Entry {
    Entry { action, addr, size, stream: 0, time_us: None, pool: None, note: None, frames: Frames::from([]) }
}

/// A segment whose blocks lie one behind the other from `address` on.
pub fn segment(device: u32, address: u64, blocks: &[(u64, u64, BlockKind)]) -> Segment {
    let mut segment = Segment {
        device,
        address,
        total_size: 0,
        allocated_size: 0,
        active_size: 0,
        requested_size: 0,
        stream: 0,
        is_large: true,
        pool: (0, 0),
        is_expandable: true,
        is_asleep: false,
        frames: Frames::from([]),
        blocks: Vec::new(),
    };
    for &(size, requested_size, kind) in blocks {
        let address = address + segment.total_size;
        segment.blocks.push(Block { address, size, requested_size, kind, frames: Frames::from([]) });
        segment.total_size += size;
        if kind.is_active() {
            segment.active_size += size;
            segment.requested_size += requested_size;
        }
        if kind == BlockKind::Allocated {
            segment.allocated_size += size;
        }
    }
    segment
}

/// Two devices, all states and actions, numbers of all widths, texts of all lengths, shared frames.
pub fn document() -> Document {
    let long = "x".repeat(300);
    let stack =
        frames(&[("/a/model.py", 12, "forward"), ("", -1, "é ☃ 😀 \"quoted\"\n"), (&long, 0, "main")]);
    let base = 0x7f12_0000_0000;
    let mut first = segment(
        0,
        base,
        &[
            (MIB, MIB - 100, BlockKind::Allocated),
            (2 * MIB, 2 * MIB, BlockKind::PendingFree),
            (5 * MIB, 0, BlockKind::Inactive),
        ],
    );
    first.blocks[0].frames = stack.clone();
    first.frames = stack.clone();
    let mut second = segment(1, u64::MAX - 8 * MIB, &[(512, 1, BlockKind::Allocated)]);
    second.stream = 0x5566_7788_99aa;
    second.is_large = false;
    second.is_expandable = false;
    second.pool = (0, 7);
    let mut asleep = segment(1, base, &[(70_000, 70_000, BlockKind::Allocated)]);
    asleep.is_asleep = true;
    let mut trace = vec![
        entry(Action::SegmentAlloc, base + 64 * MIB, 2 * MIB),
        entry(Action::SegmentMap, base, 8 * MIB),
        entry(Action::Alloc, base, MIB - 100),
        entry(Action::Alloc, base + MIB, 2 * MIB),
        entry(Action::StreamUse, base + MIB, 2 * MIB),
        entry(Action::FreeRequested, base + MIB, 2 * MIB),
        entry(Action::FreeCompleted, base + 3 * MIB, 2 * MIB),
        entry(Action::SegmentUnmap, base + 8 * MIB, 2 * MIB),
        entry(Action::SegmentFree, base + 64 * MIB, 2 * MIB),
        entry(Action::OutOfMemory, 12345, 1 << 40),
        entry(Action::HostWait, 0, 0),
        entry(Action::Other("user_defined".into()), 0, 0),
        entry(Action::Snapshot, 0, 0),
    ];
    for (index, entry) in trace.iter_mut().enumerate() {
        entry.time_us = Some(1_700_000_000_000_000 + index as i64);
        entry.pool = Some((0, index as u64 % 2));
        entry.note = (index % 3 == 0).then(|| "step 1".into());
        entry.frames = if index % 2 == 0 { stack.clone() } else { Frames::from([]) };
        entry.stream = [0, 40_000, 1 << 40][index % 3];
    }
    Document {
        segments: vec![first, asleep, second],
        device_traces: vec![trace, Vec::new(), vec![entry(Action::Snapshot, 0, 0)]],
        annotations: vec![Annotation { device: 0, time_us: -5, name: "epoch".into(), stage: "START".into() }],
        settings: vec![("expandable_segments".into(), "True".into())],
        figures: vec![("cached_handles".into(), 2 << 20), ("negative".into(), -3)],
        warnings: Vec::new(),
    }
}

/// The pickle of a tree.
pub fn pickled(tree: &Tree, protocol: pickle::Protocol) -> Vec<u8> {
    let mut bytes = Vec::new();
    pickle::write(tree, protocol, &mut bytes).expect("writing to memory");
    bytes
}

/// What a pickle says.
pub fn read(bytes: &[u8]) -> Tree {
    pickle::read(bytes, &Limits::default()).expect("a good pickle")
}

#[test]
fn what_is_written_is_read_again() {
    let document = document();
    let tree = document.to_tree().unwrap();
    for protocol in [pickle::Protocol::Two, pickle::Protocol::Four] {
        let again = read(&pickled(&tree, protocol));
        assert_eq!(again, tree);
        let again = Document::from_tree(&again).unwrap();
        assert_eq!(again, document);
        // What was shared is shared again.
        assert!(Arc::ptr_eq(&again.device_traces[0][0].frames, &again.segments[0].frames));
    }
}
