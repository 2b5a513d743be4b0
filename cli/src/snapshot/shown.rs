//! The figures of a snapshot for people.

use std::fmt::Write;
use std::path::Path;

use ascend_alloc::words::counted;

use super::figures::{DeviceFigures, Figures};
use crate::units::show_bytes;

/// Pools and streams that are listed.
const MOST: usize = 8;

/// The figures as text of several lines.
pub(super) fn text(path: &Path, figures: &Figures) -> String {
    let mut text = String::new();
    // Writing to a text cannot fail.
    let _written = write(&mut text, path, figures);
    text
}

fn write(text: &mut String, path: &Path, figures: &Figures) -> std::fmt::Result {
    let devices = counted(figures.devices.len() as u64, "device[s] with memory or events");
    writeln!(text, "{}: {}, {devices}", path.display(), figures.form)?;
    for device in &figures.devices {
        write_device(text, device)?;
    }
    for (key, value) in &figures.settings {
        writeln!(text, "setting {key}: {value}")?;
    }
    for warning in &figures.warnings {
        writeln!(text, "note: {warning}")?;
    }
    Ok(())
}

fn write_device(text: &mut String, device: &DeviceFigures) -> std::fmt::Result {
    writeln!(text, "\ndevice {}", device.device)?;
    let mut size = |name: &str, bytes: u64, more: String| {
        writeln!(text, "  {name:<22} {:>11} {bytes:>15}{more}", show_bytes(bytes))
    };
    let segments =
        format!("  {}, {} expandable", counted(device.segments, "segment[s]"), device.expandable_segments);
    size("reserved", device.reserved, segments)?;
    size("active", device.active, format!("  {}", counted(device.active_blocks, "block[s]")))?;
    size("allocated", device.allocated, format!("  {}", counted(device.allocated_blocks, "block[s]")))?;
    size("requested", device.requested, String::new())?;
    size("largest free block", device.largest_free, String::new())?;
    for (pool, &bytes) in device.reserved_by_pool.iter().take(MOST) {
        size(&format!("  pool {pool}"), bytes, String::new())?;
    }
    if device.reserved_by_stream.len() > 1 {
        for (stream, &bytes) in device.reserved_by_stream.iter().take(MOST) {
            size(&format!("  stream {stream:#x}"), bytes, String::new())?;
        }
    }
    if !device.events.is_empty() {
        size("peak live, asked for", device.peak_live, String::new())?;
        if let Some(peak) = device.peak_reserved {
            size("peak reserved", peak, String::new())?;
        }
        let events: Vec<String> =
            device.events.iter().map(|(word, count)| format!("{count} {word}")).collect();
        let span = device.span_us.map_or_else(String::new, |span| format!(" in {:.3} s", span as f64 / 1e6));
        let all = counted(device.events.values().sum::<u64>(), "event[s]");
        writeln!(text, "  {all}{span}: {}", events.join(", "))?;
    }
    if !device.holders.is_empty() {
        writeln!(text, "  held by")?;
    }
    for holder in &device.holders {
        let place =
            if holder.place.is_empty() { "(not recorded)".to_owned() } else { holder.place.join(" < ") };
        let blocks = counted(holder.blocks, "block[s]").to_string();
        writeln!(text, "    {:>11} in {blocks:>13}  {place}", show_bytes(holder.bytes))?;
    }
    Ok(())
}
