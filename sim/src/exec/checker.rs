//! The use checker: turns conflicts in the [`History`] into [`Finding`]s.
//!
//! It is asked once for every task, when the task is *queued*, and once for every host operation on
//! memory. Whether work has really finished counts for nothing; only what the program can know of
//! it does. So a finding does not depend on timing: it comes each time the program is run.

use std::collections::HashMap;

use super::clock::{Clock, HostClock, Place};
use super::finding::{Finding, HostOp, Party, TaskUse};
use super::history::{Conflict, History, Use};
use super::task::Access;
use crate::made::{Made, next_finding};

/// Where a stream's uses are named from.
pub(super) trait StreamNames {
    /// Device, handle, and whether it is the default stream, of the stream on a slot.
    fn stream_name(&self, slot: u32) -> (u32, u64, bool);
}

/// How many findings are kept; later ones are only counted.
const FINDINGS_KEPT: usize = 1000;

/// The checker's state.
#[derive(Debug, Default)]
pub(super) struct Checker {
    history: History,
    labels: Labels,
    findings: Vec<Finding>,
    /// All findings ever, kept or not.
    count: u64,
    /// Scratch list, kept to avoid allocations.
    conflicts: Vec<Conflict>,
}

impl Checker {
    /// A task with a label and accesses is queued at `place` by a stream that knows `clock`.
    pub(super) fn task(
        &mut self,
        (place, tick): (Place, u64),
        label: &'static str,
        accesses: &[Access],
        (clock, host): (&Clock, &HostClock),
        names: &impl StreamNames,
    ) {
        if accesses.is_empty() {
            return;
        }
        let index = self.labels.index(label);
        for access in accesses {
            let new = Use::new(place, (access.tag, access.write), tick, index, Made::now());
            let range = (access.start, access.start.saturating_add(access.len));
            self.history.access(range, new, clock, host, &mut self.conflicts);
            if !self.conflicts.is_empty() {
                let second = Party::Task(task_use(&new, &self.labels, names));
                self.report(&second, names);
            }
        }
    }

    /// The host does something with a range.
    pub(super) fn host(
        &mut self,
        operation: HostOp,
        (start, len): (u64, u64),
        tick: u64,
        host: &HostClock,
        names: &impl StreamNames,
    ) {
        let range = (start, start.saturating_add(len));
        self.history.host_access(range, operation.writes(), operation.clears(), host, &mut self.conflicts);
        if !self.conflicts.is_empty() {
            let call = Made::now().to_string();
            self.report(&Party::Host { operation, start, len, tick, call }, names);
        }
    }

    /// The findings kept so far.
    pub(super) fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Takes the findings kept so far; the count stays.
    pub(super) fn take_findings(&mut self) -> Vec<Finding> {
        core::mem::take(&mut self.findings)
    }

    /// All findings ever, also those not kept.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// How many intervals of memory have a history.
    pub(super) fn intervals(&self) -> usize {
        self.history.len()
    }

    fn report(&mut self, second: &Party, names: &impl StreamNames) {
        for conflict in self.conflicts.drain(..) {
            self.count += 1;
            if self.findings.len() < FINDINGS_KEPT {
                self.findings.push(Finding {
                    first: task_use(&conflict.earlier, &self.labels, names),
                    second: second.clone(),
                    start: conflict.start,
                    len: conflict.end - conflict.start,
                    order: next_finding(),
                });
            }
        }
    }
}

fn task_use(of: &Use, labels: &Labels, names: &impl StreamNames) -> TaskUse {
    let (device, stream, default_stream) = names.stream_name(of.place.slot);
    TaskUse {
        label: labels.text(of.label),
        device,
        stream,
        default_stream,
        number: of.place.number,
        tag: of.tag,
        write: of.write,
        tick: of.tick,
        call: of.made.to_string(),
    }
}

/// Labels as small numbers, so that a use stays small.
#[derive(Debug, Default)]
struct Labels {
    texts: Vec<&'static str>,
    indices: HashMap<&'static str, u32>,
    last: u32,
}

impl Labels {
    fn index(&mut self, label: &'static str) -> u32 {
        // Most tasks come with the label of the task before: the same text at the same address.
        if self.texts.get(self.last as usize).is_some_and(|last| core::ptr::eq(*last, label)) {
            return self.last;
        }
        let next = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.last = *self.indices.entry(label).or_insert(next);
        if self.last == next {
            self.texts.push(label);
        }
        self.last
    }

    fn text(&self, index: u32) -> &'static str {
        self.texts.get(index as usize).copied().unwrap_or("")
    }
}
