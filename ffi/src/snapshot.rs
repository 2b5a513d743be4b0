//! A snapshot as JSON.

use core::fmt::{self, Write};

use allocator::driver::DeviceId;
use allocator::{BlockSnapshot, BlockState, PoolId, SegmentSnapshot, Snapshot};

use crate::pools;

/// The text. All names are fixed and all values numbers or words, so nothing needs escaping.
pub(crate) fn json(device: DeviceId, snapshot: &Snapshot) -> String {
    let mut text = String::new();
    // Writing to a text cannot fail.
    let _written = write(&mut text, device, snapshot);
    text
}

fn write(text: &mut String, device: DeviceId, snapshot: &Snapshot) -> fmt::Result {
    write!(text, r#"{{"device":{device},"cached_handles":{},"segments":["#, snapshot.cached_handles)?;
    for (index, segment) in snapshot.segments.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        write_segment(text, segment)?;
    }
    text.push_str("]}");
    Ok(())
}

fn write_segment(text: &mut String, segment: &SegmentSnapshot) -> fmt::Result {
    let kind = if segment.is_small { "small" } else { "large" };
    let stream = segment.blocks.first().map_or(0, |block| block.stream.0);
    write!(
        text,
        r#"{{"address":{},"total_size":{},"allocated_size":{},"active_size":{},"requested_size":{},"segment_type":"{kind}","is_expandable":{},"base":{},"pool":{},"is_asleep":{},"stream":{stream},"blocks":["#,
        segment.address,
        segment.total_size,
        segment.allocated_size,
        segment.active_size,
        segment.requested_size,
        segment.is_expandable,
        segment.base,
        pools::shown(PoolId { device: segment.device, serial: segment.pool }),
        segment.is_asleep,
    )?;
    for (index, block) in segment.blocks.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        write_block(text, block)?;
    }
    text.push_str("]}");
    Ok(())
}

fn write_block(text: &mut String, block: &BlockSnapshot) -> fmt::Result {
    let state = match block.state {
        BlockState::ActiveAllocated => "active_allocated",
        BlockState::ActivePendingFree => "active_pending_free",
        BlockState::Inactive => "inactive",
        BlockState::InTransit => "in_transit",
    };
    write!(
        text,
        r#"{{"address":{},"size":{},"requested_size":{},"stream":{},"state":"{state}"}}"#,
        block.address, block.size, block.requested_size, block.stream.0,
    )
}
