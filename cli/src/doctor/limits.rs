//! How far reservations and events go, asked in steps that end early and are given back.

use ascend_alloc::driver::{DeviceId, Driver, DriverError, Event, Stream};
use serde::Serialize;

const GIB: u64 = 1 << 30;
/// No reservation larger than this is asked for.
const LARGEST: u64 = 16 << 40;
/// No more reservations than this are held at once.
const MOST_RANGES: usize = 128;
/// No more events than this are held at once, and no more than half of those that the part has: a device without free
/// events makes others wait.
const MOST_EVENTS: u32 = 2048;

/// Reservations. Sizes in bytes.
#[derive(Debug, Serialize)]
pub struct Addresses {
    /// Start of a reservation of 2 MiB.
    pub small: Option<u64>,
    /// Start of a reservation of 1 GiB.
    pub large: Option<u64>,
    /// The largest single reservation, to the GiB; 0 if none of a GiB could be had.
    pub largest: u64,
    /// What the next larger one answered; `None` if nothing larger was asked for.
    pub refused: Option<String>,
    /// How much could be reserved at once, in pieces of `piece`.
    pub total: u64,
    /// See `total`.
    pub piece: u64,
    /// Whether asking ended because it was enough, not because there was no more.
    pub total_is_open: bool,
    /// Reservations that could not be given back.
    pub not_released: usize,
}

/// Events.
#[derive(Debug, Serialize)]
pub struct Events {
    /// How many were made and recorded, all held at once: recording is what takes an event of the device.
    pub made: usize,
    /// Why no more could be made; `None` if asking ended because it was enough.
    pub refused: Option<String>,
    /// How many the part has by its documentation.
    pub documented: u32,
    /// Events that could not be given back.
    pub not_destroyed: usize,
}

impl Addresses {
    /// Asks.
    #[must_use]
    pub fn of(driver: &dyn Driver, device: DeviceId) -> Self {
        let mut asker = Asker { driver, device, not_released: 0, last: None };
        let small = asker.try_size(2 << 20);
        let large = asker.try_size(GIB);
        let largest = if large.is_some() { asker.largest() } else { 0 };
        let refused = asker.last.take().map(|error| error.to_string());
        // Pieces no larger than those of the allocator.
        let piece = largest.min(128 * GIB);
        let (total, total_is_open) = if piece > 0 { asker.total(piece) } else { (0, false) };
        let not_released = asker.not_released;
        Self { small, large, largest, refused, total, piece, total_is_open, not_released }
    }
}

struct Asker<'a> {
    driver: &'a dyn Driver,
    device: DeviceId,
    not_released: usize,
    last: Option<DriverError>,
}

impl Asker<'_> {
    /// Where a reservation of so many bytes began, which is given back.
    fn try_size(&mut self, bytes: u64) -> Option<u64> {
        match self.driver.reserve(self.device, bytes) {
            Ok(start) => {
                self.release(start);
                Some(start)
            }
            Err(error) => {
                self.last = Some(error);
                None
            }
        }
    }

    fn release(&mut self, start: u64) {
        self.not_released += usize::from(self.driver.release(self.device, start).is_err());
    }

    /// The largest size that can be reserved: doubled until refused, then halved between.
    fn largest(&mut self) -> u64 {
        let mut works = GIB;
        let mut fails = loop {
            if works >= LARGEST {
                return works;
            }
            match self.try_size(works * 2) {
                Some(_) => works *= 2,
                None => break works * 2,
            }
        };
        while fails - works > GIB {
            let between = works + (fails - works) / 2 / GIB * GIB;
            match self.try_size(between) {
                Some(_) => works = between,
                None => fails = between,
            }
        }
        works
    }

    /// How much can be held at once, and whether there may be more.
    fn total(&mut self, piece: u64) -> (u64, bool) {
        let mut held = Vec::new();
        let is_open = loop {
            if held.len() == MOST_RANGES {
                break true;
            }
            match self.driver.reserve(self.device, piece) {
                Ok(start) => held.push(start),
                Err(_) => break false,
            }
        };
        let total = held.len() as u64 * piece;
        held.into_iter().for_each(|start| self.release(start));
        (total, is_open)
    }
}

impl Events {
    /// Asks.
    #[must_use]
    pub fn of(driver: &dyn Driver, device: DeviceId, soc: Option<&[u8]>) -> Self {
        let documented = documented(soc.unwrap_or_default());
        let most = MOST_EVENTS.min(documented / 2) as usize;
        let (mut held, mut made, mut refused) = (Vec::<Event>::new(), 0, None);
        while made < most && refused.is_none() {
            let recorded = driver.create_event(device).and_then(|event| {
                held.push(event);
                driver.record_event(device, event, Stream(0))
            });
            match recorded {
                Ok(()) => made += 1,
                Err(error) => refused = Some(error.to_string()),
            }
        }
        let not_destroyed =
            held.into_iter().filter(|event| driver.destroy_event(device, *event).is_err()).count();
        Self { made, refused, documented, not_destroyed }
    }
}

/// Events of a device by the vendor's documentation.
fn documented(soc: &[u8]) -> u32 {
    match soc {
        _ if soc.starts_with(b"Ascend310") => 1023,
        // 910A, 910B without a figure behind, 910ProA: not the 910B1 to 910B4 and 910_93 of A2 and A3.
        b"Ascend910A" | b"Ascend910B" | b"Ascend910ProA" | b"Ascend910ProB" | b"Ascend910PremiumA" => 65535,
        _ => 65536,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ascend_alloc::driver::SimDriver;
    use ascend_sim::{Sim, SimConfig};

    #[test]
    fn address_limits_are_found_and_given_back() {
        let config = SimConfig {
            max_reservation: Some(100 * GIB),
            va_budget: Some(1000 * GIB),
            ..SimConfig::default()
        };
        let sim = Sim::new(config);
        sim.init().unwrap();
        let found = Addresses::of(&SimDriver::new(sim.clone()), 0);
        assert_eq!((found.largest, found.total, found.piece), (100 * GIB, 1000 * GIB, 100 * GIB));
        assert!(found.refused.is_some_and(|text| text.contains("207001")));
        assert!(!found.total_is_open);
        assert_eq!(found.not_released, 0);
        assert_eq!(sim.reserved_bytes(), 0);
    }

    #[test]
    fn event_limits_are_found_and_given_back() {
        let sim = Sim::new(SimConfig { max_events: 100, ..SimConfig::default() });
        sim.init().unwrap();
        let driver = SimDriver::new(sim.clone());
        let found = Events::of(&driver, 0, Some(b"Ascend910B3"));
        assert_eq!((found.made, found.documented, found.not_destroyed), (100, 65536, 0));
        assert!(found.refused.is_some_and(|text| text.contains("207007")));
        let again = Events::of(&driver, 0, Some(b"Ascend310P3"));
        assert_eq!((again.made, again.documented), (100, 1023), "all of them were given back");
    }
}
