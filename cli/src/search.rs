//! `--min-memory`: the smallest device that completes a trace.
//!
//! Devices grow in steps of 2 MiB. The answer is the smallest size from which on the next 16 sizes
//! complete as well, since a single size may be lucky. Whether a size completes need not be
//! monotonic, so three stages follow each other:
//!
//! 1. bisection between a size that fails and one that completes;
//! 2. from the border on upwards, until 17 sizes in a row complete;
//! 3. downwards again, at every 17th size: 17 sizes in a row that complete cannot lie between two
//!    such sizes that fail.
//!
//! Every replay has the program's work and the use checker on; its findings count.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::meter::Counting;
use crate::replay::{OnOom, Player};
use crate::rig::{Rig, RigOptions};
use crate::trace::Trace;
use crate::units::DEVICE_STEP;

/// So many sizes must complete in a row: one and the next 16.
const WINDOW: u64 = 17;
/// How far below the border stage 3 looks, in windows (about 2 GiB).
const SWEEP: u64 = 64;
/// How far above the first size that completes stage 2 goes before it gives up, in steps.
const GIVE_UP: u64 = 1 << 14;

/// What the search found out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The smallest device, bytes; `None` when no size holds out.
    pub bytes: Option<u64>,
    /// Replays that were run.
    pub replays: u64,
    /// Findings of all of them.
    pub findings: Vec<String>,
}

/// Searches for the smallest device. `completes` is a size that is known or likely to complete,
/// in bytes; the memory of `options` is not used. `progress` is told how many replays are done.
#[must_use]
pub fn min_memory(
    trace: &Trace,
    options: &RigOptions,
    completes: u64,
    progress: &mut dyn FnMut(usize),
) -> Found {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(8);
    let replay = |step: u64| complete(trace, options, step * DEVICE_STEP);
    let mut search =
        Search { replay: &replay, threads, progress, known: HashMap::new(), findings: Vec::new() };
    // Requested bytes do not overlap, so fewer bytes than are live together cannot do.
    let floor = trace.peak_live.div_ceil(DEVICE_STEP).saturating_sub(1);
    let step = search.smallest(floor, completes.div_ceil(DEVICE_STEP));
    Found {
        bytes: step.map(|step| step * DEVICE_STEP),
        replays: search.known.len() as u64,
        findings: search.findings,
    }
}

/// Replays the trace on a device of this size: whether it completes, and what was found.
fn complete(trace: &Trace, options: &RigOptions, memory: u64) -> (bool, Vec<String>) {
    let options = RigOptions { memory, checker: true, bytes: false, ..options.clone() };
    let rig = match Rig::new(&options, trace.streams.len(), Counting::default()) {
        Ok(rig) => rig,
        Err(reason) => return (false, vec![reason]),
    };
    let mut player = Player::new(&rig, trace, false);
    let outcome = player.pass(OnOom::Stop, &mut ()).and_then(|outcome| player.rewind().map(|()| outcome));
    let mut findings = player.take_wrong();
    findings.extend(rig.take_findings());
    let completed = match &outcome {
        Ok(outcome) => outcome.ooms == 0,
        Err(failure) => {
            findings.push(format!("the replay stopped at event {}: {}", failure.event + 1, failure.reason));
            false
        }
    };
    findings.extend(rig.close(outcome.is_ok()));
    (completed, findings)
}

type Replay<'a> = &'a (dyn Fn(u64) -> (bool, Vec<String>) + Sync);

/// The search itself, in steps; it knows nothing of traces.
struct Search<'a> {
    replay: Replay<'a>,
    threads: usize,
    progress: &'a mut dyn FnMut(usize),
    known: HashMap<u64, bool>,
    findings: Vec<String>,
}

impl Search<'_> {
    fn smallest(&mut self, floor: u64, likely: u64) -> Option<u64> {
        let likely = likely.max(floor + 1);
        let (fails, completes) = self.bracket(floor, likely)?;
        let border = self.bisect(fails, completes);
        let found = self.climb(border, completes + GIVE_UP)?;
        Some(self.sweep(floor, found))
    }

    /// A size that fails and a larger one that completes.
    fn bracket(&mut self, floor: u64, likely: u64) -> Option<(u64, u64)> {
        let (mut fails, mut completes) = (floor, likely);
        let mut gap = (likely - floor).max(8);
        for _ in 0..16 {
            if self.run(&[completes])[0] {
                return Some((fails, completes));
            }
            fails = completes;
            completes += gap;
            gap *= 2;
        }
        None
    }

    /// Narrows down to a size that completes while the one before fails.
    fn bisect(&mut self, mut fails: u64, mut completes: u64) -> u64 {
        while completes - fails > 1 {
            let parts = (self.threads as u64 + 1).min(completes - fails);
            let inner: Vec<u64> = (1..parts).map(|k| fails + (completes - fails) * k / parts).collect();
            let answers = self.run(&inner);
            // The lowest that completes; below it everything that was tried fails.
            match answers.iter().position(|ok| *ok) {
                Some(0) => completes = inner[0],
                Some(k) => (fails, completes) = (inner[k - 1], inner[k]),
                None => fails = inner[inner.len() - 1],
            }
        }
        completes
    }

    /// The start of the first full window at or above `start`.
    fn climb(&mut self, mut start: u64, limit: u64) -> Option<u64> {
        while start <= limit {
            match self.first_failure(start..=start + WINDOW - 1) {
                None => return Some(start),
                Some(fails) => start = fails + 1,
            }
        }
        None
    }

    /// The start of the lowest full window, given one at `found`.
    fn sweep(&mut self, floor: u64, found: u64) -> u64 {
        // The size before `found` fails, or `found` would not be the border.
        let mut grid: Vec<u64> = Vec::new();
        let mut at = found.saturating_sub(1);
        while at > floor && (grid.len() as u64) < SWEEP {
            grid.push(at);
            at = at.saturating_sub(WINDOW);
        }
        grid.reverse();
        for pair in grid.chunks(self.threads) {
            let answers = self.run(pair);
            for (step, _) in pair.iter().zip(answers).filter(|(_, ok)| *ok) {
                if let Some(start) = self.window_around(floor, *step) {
                    return start;
                }
            }
        }
        found
    }

    /// The start of the full window that holds `step`, which completes.
    fn window_around(&mut self, floor: u64, step: u64) -> Option<u64> {
        let mut start = step;
        while start > floor + 1 && step - start < WINDOW - 1 && self.run(&[start - 1])[0] {
            start -= 1;
        }
        self.first_failure(start..=start + WINDOW - 1).is_none().then_some(start)
    }

    /// The lowest size of the range that fails, with as few replays as possible beyond it.
    fn first_failure(&mut self, range: RangeInclusive<u64>) -> Option<u64> {
        let steps: Vec<u64> = range.collect();
        for some in steps.chunks(self.threads) {
            let answers = self.run(some);
            if let Some(k) = answers.iter().position(|ok| !ok) {
                return Some(some[k]);
            }
        }
        None
    }

    /// Whether these sizes complete; replays the ones not known yet, side by side.
    fn run(&mut self, steps: &[u64]) -> Vec<bool> {
        let open: Vec<u64> = steps.iter().copied().filter(|step| !self.known.contains_key(step)).collect();
        let replay = self.replay;
        let next = AtomicUsize::new(0);
        let worker = || {
            let mut answers = Vec::new();
            while let Some(step) = open.get(next.fetch_add(1, Ordering::Relaxed)) {
                answers.push((*step, replay(*step)));
            }
            answers
        };
        let answers: Vec<_> = thread::scope(|scope| {
            let others: Vec<_> = (1..self.threads.min(open.len())).map(|_| scope.spawn(worker)).collect();
            let mut answers = worker();
            for other in others {
                match other.join() {
                    Ok(more) => answers.extend(more),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            answers
        });
        for (step, (ok, findings)) in answers {
            self.known.insert(step, ok);
            let size = step * DEVICE_STEP;
            self.findings.extend(findings.into_iter().map(|f| format!("device of {size} bytes: {f}")));
        }
        (self.progress)(self.known.len());
        steps.iter().map(|step| self.known[step]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn smallest(
        threads: usize,
        floor: u64,
        likely: u64,
        completes: impl Fn(u64) -> bool + Sync,
    ) -> Option<u64> {
        let replay = |step: u64| (completes(step), Vec::new());
        let progress = &mut |_| ();
        let mut search =
            Search { replay: &replay, threads, progress, known: HashMap::new(), findings: Vec::new() };
        search.smallest(floor, likely)
    }

    /// The definition itself, without any cleverness.
    fn by_definition(floor: u64, completes: impl Fn(u64) -> bool) -> u64 {
        (floor + 1..).find(|start| (*start..start + WINDOW).all(&completes)).unwrap()
    }

    #[test]
    fn a_sharp_border_is_found_from_everywhere() {
        for threads in [1, 2, 5] {
            for likely in [0, 101, 150, 151, 900] {
                assert_eq!(
                    smallest(threads, 100, likely, |step| step >= 150),
                    Some(150),
                    "{threads} {likely}"
                );
            }
            assert_eq!(smallest(threads, 100, 101, |_| true), Some(101));
        }
        assert_eq!(smallest(2, 100, 150, |_| false), None);
    }

    #[test]
    fn ragged_borders_are_found_as_defined() {
        let mut random = 1_u64;
        for round in 0..300 {
            let mut good = vec![false; 700];
            let mut at = 101;
            while at < 300 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round * 2 + 1);
                let length = (random >> 33) % 25 + 1;
                let ok = random >> 63 == 1;
                good[at..at + length as usize].fill(ok);
                at += length as usize;
            }
            good[330..].fill(true);
            let completes = |step: u64| good.get(step as usize).copied().unwrap_or(true);
            let threads = (round % 3 + 1) as usize;
            assert_eq!(
                smallest(threads, 100, 400, completes),
                Some(by_definition(100, completes)),
                "round {round}"
            );
        }
    }

    #[test]
    fn findings_name_the_device() {
        let replay = |step: u64| (step > 3, vec![format!("bad {step}")]);
        let mut counts = Vec::new();
        let progress = &mut |count| counts.push(count);
        let mut search =
            Search { replay: &replay, threads: 2, progress, known: HashMap::new(), findings: Vec::new() };
        assert_eq!(search.run(&[3, 4]), [false, true]);
        assert_eq!(search.run(&[4]), [true]);
        search.findings.sort();
        assert_eq!(search.findings, ["device of 6291456 bytes: bad 3", "device of 8388608 bytes: bad 4"]);
        assert_eq!(counts, [2, 2]);
    }
}
