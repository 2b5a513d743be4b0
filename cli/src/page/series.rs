//! Memory over time, thinned so that no peak and no valley is lost.

use serde::Serialize;

/// Stretches that a series keeps at most.
pub const MOST: usize = 3000;

/// Lowest and highest value in each stretch of events, bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// Lowest values.
    pub low: Vec<u64>,
    /// Highest values.
    pub high: Vec<u64>,
}

impl Spread {
    /// Takes a value, and the highest it had for a moment, into the last stretch or, if `opens`, into a new one.
    fn take(&mut self, opens: bool, now: u64, peak: u64) {
        if opens {
            self.low.push(u64::MAX);
            self.high.push(0);
        }
        if let (Some(lowest), Some(highest)) = (self.low.last_mut(), self.high.last_mut()) {
            *lowest = now.min(*lowest);
            *highest = peak.max(now).max(*highest);
        }
    }
}

/// Memory after one event; bytes. Where a request held more for a moment, the second number is that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Live bytes as asked for.
    pub live: u64,
    /// Handed out.
    pub allocated: (u64, u64),
    /// Handed out or waiting for streams.
    pub active: (u64, u64),
    /// With physical memory behind them.
    pub reserved: (u64, u64),
    /// All physical memory held, with chunks that have no address.
    pub physical: (u64, u64),
}

/// All series of a run, in stretches of equally many events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Series {
    /// Index of the first event of each stretch.
    pub at: Vec<u64>,
    /// Live bytes.
    pub live: Spread,
    /// Bytes handed out.
    pub allocated: Spread,
    /// Bytes handed out or waiting for streams.
    pub active: Spread,
    /// Bytes with physical memory behind them.
    pub reserved: Spread,
    /// Physical memory held.
    pub physical: Spread,
    #[serde(skip)]
    events: u64,
}

impl Series {
    /// Series for so many events.
    #[must_use]
    pub fn new(events: usize) -> Self {
        Series { events: events.max(1) as u64, ..Series::default() }
    }

    /// Which stretch an event falls into.
    #[must_use]
    pub fn stretch(&self, index: usize) -> usize {
        let stretches = self.events.min(MOST as u64);
        (index as u64).saturating_mul(stretches).div_euclid(self.events).min(stretches - 1) as usize
    }

    /// Adds what was found after an event; events come in order. Answers whether it begins a stretch.
    pub fn push(&mut self, index: usize, sample: &Sample) -> bool {
        let opens = self.at.is_empty() || self.stretch(index) >= self.at.len();
        let all = [
            (&mut self.live, (sample.live, sample.live)),
            (&mut self.allocated, sample.allocated),
            (&mut self.active, sample.active),
            (&mut self.reserved, sample.reserved),
            (&mut self.physical, sample.physical),
        ];
        for (spread, (now, peak)) in all {
            spread.take(opens, now, peak);
        }
        if opens {
            self.at.push(index as u64);
        }
        opens
    }

    /// The same where only live and reserved bytes are known; the other series stay empty.
    pub fn push_known(&mut self, index: usize, sample: &Sample) {
        let opens = self.at.is_empty() || self.stretch(index) >= self.at.len();
        self.live.take(opens, sample.live, sample.live);
        self.reserved.take(opens, sample.reserved.0, sample.reserved.1);
        if opens {
            self.at.push(index as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(value: u64) -> Sample {
        let both = (value, value);
        Sample { live: value, allocated: both, active: both, reserved: both, physical: both }
    }

    #[test]
    fn every_peak_and_valley_survives() {
        let events = 450_000;
        let mut series = Series::new(events);
        for index in 0..events {
            let value = match index {
                123_456 => 9_000,
                234_567 => 1,
                _ => 5_000,
            };
            series.push(index, &sample(value));
        }
        assert_eq!(series.at.len(), MOST);
        assert_eq!(series.live.high.iter().max(), Some(&9_000));
        assert_eq!(series.reserved.low.iter().min(), Some(&1));
        assert_eq!(series.live.high[series.stretch(123_456)], 9_000);
        assert_eq!(series.live.low[series.stretch(234_567)], 1);
        assert!(series.at.windows(2).all(|pair| (150..=151).contains(&(pair[1] - pair[0]))));
    }

    #[test]
    fn few_events_are_kept_one_by_one() {
        let mut series = Series::new(4);
        for (index, value) in [3, 1, 4, 1].into_iter().enumerate() {
            assert!(series.push(index, &sample(value)));
        }
        assert_eq!(series.at, [0, 1, 2, 3]);
        assert_eq!(series.active.low, [3, 1, 4, 1]);
        assert_eq!(series.active.low, series.active.high);
    }

    #[test]
    fn a_peak_inside_an_event_counts() {
        let mut series = Series::new(1);
        series.push(0, &Sample { reserved: (5, 8), ..sample(5) });
        assert_eq!((series.reserved.low[0], series.reserved.high[0]), (5, 8));
    }
}
