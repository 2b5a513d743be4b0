//! What is still there, with the calls that made it.

use super::{Memory, Origin};

impl Memory {
    /// One line for each chunk, reservation, block, pinned block and registered range.
    pub(crate) fn left(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (start, reservation) in &self.reservations {
            let lost =
                if reservation.leaked { ", and a reset under its mappings keeps it for ever" } else { "" };
            lines.push(format!(
                "reservation {start:#x} of {} bytes with {}{lost}, made by {}",
                reservation.len,
                mappings(reservation.mappings),
                reservation.made
            ));
        }
        for (start, mapping) in &self.mappings {
            let what = match mapping.origin {
                // Named by its reservation and its chunk.
                Origin::Handle => continue,
                Origin::Malloc => "block",
                Origin::Pool => "block of a pool",
                Origin::Import => "imported block",
            };
            let device = self.chunks.get(&mapping.chunk).map_or(0, |chunk| chunk.pool);
            lines.push(format!(
                "{what} {start:#x} of {} bytes on device {device}, made by {}",
                mapping.len, mapping.made
            ));
        }
        let mut handles: Vec<_> = self.chunks.iter().filter(|(_, chunk)| chunk.held > 0).collect();
        handles.sort_by_key(|(handle, _)| **handle);
        for (handle, chunk) in handles {
            let place = if chunk.pool == self.host_pool() {
                "the host".to_owned()
            } else {
                format!("device {}", chunk.pool)
            };
            let lost = if chunk.lost { ", whose device was reset" } else { "" };
            lines.push(format!(
                "chunk {handle:#x} of {} bytes on {place} with {} reference{} and {}{lost}, made by {}",
                chunk.size,
                chunk.held,
                if chunk.held == 1 { "" } else { "s" },
                mappings(chunk.maps),
                chunk.made
            ));
        }
        let mut nameless: Vec<_> =
            self.mappings.iter().filter(|(_, mapping)| mapping.origin == Origin::Handle).collect();
        nameless.retain(|(_, mapping)| self.chunks.get(&mapping.chunk).is_some_and(|chunk| chunk.held == 0));
        for (start, mapping) in nameless {
            lines.push(format!(
                "mapping {start:#x} of {} bytes, whose handle was freed, made by {}",
                mapping.len, mapping.made
            ));
        }
        self.host.left(&mut lines);
        lines
    }

    /// What is mapped in a reservation: how many mappings, and the first of them with the call that
    /// made it.
    pub(crate) fn mapped_in(&self, start: u64) -> Option<String> {
        let reservation = self.reservations.get(&start).filter(|reservation| reservation.mappings > 0)?;
        let (first, mapping) = self.mappings.range(start..start + reservation.len).next()?;
        Some(format!(
            "mappings are in it ({}), the first at {first:#x} of {} bytes by {}",
            reservation.mappings, mapping.len, mapping.made
        ))
    }
}

fn mappings(count: u64) -> String {
    if count == 1 { "1 mapping".to_owned() } else { format!("{count} mappings") }
}
