//! Segments that the address map does not cover: fixed blocks, those of growing buffers, and reservations that are no whole
//! units of the map. Whose an address is there is looked up here, so that no device has to be asked.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Release};

use super::device::Device;
use crate::core::Core;
use crate::driver::DeviceId;
use crate::front::AddressMap;
use crate::sync::plain::Mutex;

/// The segments of all devices. Locked for moments, also under a core's lock.
#[derive(Debug, Default)]
pub(super) struct Outside {
    table: Mutex<Table>,
    /// How many there are, so that nobody takes the lock for nothing.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    /// By first address, with a number that tells those apart that begin at one.
    segments: BTreeMap<(u64, u64), Place>,
    /// The next such number.
    next: u64,
    /// Pairs that overlap: what is just being given back may be given out again before that is noted.
    overlaps: usize,
}

/// Where a segment ends, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    end: u64,
    device: DeviceId,
}

impl Outside {
    /// Adds a segment.
    pub(super) fn add(&self, device: DeviceId, base: u64, len: u64) {
        let mut table = self.table.lock();
        table.overlaps += table.overlapping(base, base + len);
        let number = table.next;
        table.next += 1;
        table.segments.insert((base, number), Place { end: base + len, device });
        self.count.store(table.segments.len(), Release);
    }

    /// Takes a segment out that was added.
    pub(super) fn remove(&self, device: DeviceId, base: u64, len: u64) {
        let mut table = self.table.lock();
        let wanted = Place { end: base + len, device };
        let mut there = table.segments.range((base, 0)..=(base, u64::MAX));
        let Some((&key, _)) = there.find(|(_, place)| **place == wanted) else { return };
        table.segments.remove(&key);
        self.count.store(table.segments.len(), Release);
        table.overlaps -= table.overlapping(base, base + len);
    }

    /// Whose segment an address lies in. Of several the one that was added last: the others are on their way back.
    pub(super) fn find(&self, address: u64) -> Option<DeviceId> {
        if self.count.load(Acquire) == 0 {
            return None;
        }
        let table = self.table.lock();
        let before = || table.segments.range(..=(address, u64::MAX)).rev();
        let inside = |&(_, place): &(&(u64, u64), &Place)| address < place.end;
        if table.overlaps == 0 {
            return before().next().filter(inside).map(|(_, place)| place.device);
        }
        before().filter(inside).max_by_key(|((_, number), _)| *number).map(|(_, place)| place.device)
    }
}

impl Table {
    /// How many segments a stretch overlaps. While no two overlap, only the neighbours can.
    fn overlapping(&self, base: u64, end: u64) -> usize {
        let before = self.segments.range(..(end, 0)).rev();
        let near = before.take_while(|(_, place)| self.overlaps > 0 || place.end > base);
        near.filter(|(_, place)| place.end > base).count()
    }
}

impl Device {
    /// Lets segments that are gone not be found by address any more.
    pub(super) fn forget_dropped(&self, core: &mut Core, map: &AddressMap, outside: &Outside) {
        for (base, len, covered) in core.dropped.drain(..) {
            match covered {
                true => map.uncover(base, len),
                false => outside.remove(self.limits.device, base, len),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_to_the_device_that_has_it() {
        let outside = Outside::default();
        for at in 0..100 {
            outside.add((at % 7) as DeviceId, 1000 * at, 500);
        }
        for at in 0..100 {
            assert_eq!(outside.find(1000 * at), Some((at % 7) as DeviceId));
            assert_eq!(outside.find(1000 * at + 499), Some((at % 7) as DeviceId));
            assert_eq!(outside.find(1000 * at + 500), None);
        }
        outside.remove(1, 1000, 500);
        assert_eq!((outside.find(1000), outside.find(2000)), (None, Some(2)));
    }

    #[test]
    fn what_is_given_out_again_at_once_is_the_new_owners() {
        let outside = Outside::default();
        outside.add(0, 1000, 500);
        outside.add(1, 3000, 100);
        // Before it is noted that the first one went back, parts of it come again.
        outside.add(2, 1000, 500);
        outside.add(3, 900, 2150);
        assert_eq!([900, 1000, 1499, 1600, 3040].map(|at| outside.find(at)), [3; 5].map(Some));
        outside.remove(0, 1000, 500);
        outside.remove(1, 3000, 100);
        outside.remove(2, 1000, 500);
        assert_eq!(outside.table.lock().overlaps, 0);
        assert_eq!([899, 900, 3049, 3050].map(|at| outside.find(at)), [None, Some(3), Some(3), None]);
    }

    #[test]
    fn overlaps_are_counted_right_in_any_order() {
        let mut random = fastrand::Rng::with_seed(3);
        let outside = Outside::default();
        let mut there: Vec<(DeviceId, u64, u64)> = Vec::new();
        for _ in 0..2000 {
            if there.len() > 12 || !there.is_empty() && random.bool() {
                let (device, base, len) = there.swap_remove(random.usize(..there.len()));
                outside.remove(device, base, len);
            } else {
                let new = (random.u32(..3), random.u64(..200), random.u64(1..30));
                outside.add(new.0, new.1, new.2);
                there.push(new);
            }
            let mut pairs = 0;
            for (at, one) in there.iter().enumerate() {
                let overlap = |two: &&(DeviceId, u64, u64)| two.1 < one.1 + one.2 && one.1 < two.1 + two.2;
                pairs += there[at + 1..].iter().filter(overlap).count();
            }
            assert_eq!(outside.table.lock().overlaps, pairs);
        }
    }
}
