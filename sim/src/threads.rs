//! What a simulator remembers of each thread: its current device or context, and error messages.
//!
//! One thread may talk to several simulators; each has an entry of its own, found by the
//! simulator's number.

use std::cell::{Cell, RefCell};

/// Messages of one thread are cut to this many bytes, oldest first, if nobody reads them.
const MESSAGES: usize = 4096;

/// What is current in a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Current {
    /// Nothing was set.
    #[default]
    Nothing,
    /// The primary context of a device (driver's number), as of that generation of the device.
    Primary {
        /// The device.
        device: u32,
        /// How often the device had been torn down then.
        generation: u64,
    },
    /// A context made by the program.
    Explicit(u64),
}

/// Simulators whose current state a thread keeps without a destructor.
const FAST: usize = 8;

#[derive(Default)]
struct Entry {
    sim: u64,
    /// What is current, if the fast table had no place for it.
    current: Current,
    /// Newest first, one a line.
    messages: String,
    /// The code of the last call that failed.
    last_error: i32,
}

thread_local! {
    /// Simulator and what is current; 0 is no simulator. It needs no destructor, so it can be asked
    /// while a program ends, when thread-locals with one are gone before its own last functions run.
    static CURRENT: Cell<[(u64, Current); FAST]> = const { Cell::new([(0, Current::Nothing); FAST]) };
    static ENTRIES: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

/// What is current in this thread.
pub(crate) fn current(sim: u64) -> Current {
    let table = CURRENT.get();
    if let Some((_, current)) = table.iter().find(|(owner, _)| *owner == sim) {
        return *current;
    }
    let found = ENTRIES.try_with(|entries| {
        entries.borrow().iter().rev().find(|entry| entry.sim == sim).map(|entry| entry.current)
    });
    found.ok().flatten().unwrap_or_default()
}

/// Replaces what is current in this thread; gives what was.
pub(crate) fn replace(sim: u64, current: Current) -> Current {
    let mut table = CURRENT.get();
    let own = table.iter().position(|(owner, _)| *owner == sim);
    let place = own.or_else(|| table.iter().position(|(owner, _)| *owner == 0));
    let Some(place) = place else {
        return with(sim, |entry| std::mem::replace(&mut entry.current, current));
    };
    let (owner, before) = std::mem::replace(&mut table[place], (sim, current));
    CURRENT.set(table);
    if owner == sim { before } else { take_overflow(sim) }
}

/// What the fast table had no place for before.
fn take_overflow(sim: u64) -> Current {
    let found = ENTRIES.try_with(|entries| {
        let mut entries = entries.borrow_mut();
        entries
            .iter_mut()
            .rev()
            .find(|entry| entry.sim == sim)
            .map(|entry| std::mem::take(&mut entry.current))
    });
    found.ok().flatten().unwrap_or_default()
}

/// The code of the last failed call; with `clear` it is forgotten.
pub(crate) fn last_error(sim: u64, clear: bool) -> i32 {
    with(sim, |entry| {
        let code = entry.last_error;
        if clear {
            entry.last_error = 0;
        }
        code
    })
}

/// Adds the message and code of a failed call.
pub(crate) fn push_message(sim: u64, message: &str, code: i32) {
    with(sim, |entry| {
        entry.last_error = code;
        let mut text = String::with_capacity(message.len() + 1 + entry.messages.len());
        text.push_str(message);
        if !entry.messages.is_empty() {
            text.push('\n');
            text.push_str(&entry.messages);
        }
        if text.len() > MESSAGES {
            text.truncate(text.floor_char_boundary(MESSAGES));
        }
        entry.messages = text;
    });
}

/// Takes the messages of this thread, newest first.
pub(crate) fn take_messages(sim: u64) -> Option<String> {
    let text = with(sim, |entry| std::mem::take(&mut entry.messages));
    (!text.is_empty()).then_some(text)
}

/// Forgets a simulator that is gone, in this thread.
pub(crate) fn forget(sim: u64) {
    let mut table = CURRENT.get();
    for place in &mut table {
        if place.0 == sim {
            *place = (0, Current::Nothing);
        }
    }
    CURRENT.set(table);
    // A thread that is ending has no entries any more.
    let _ = ENTRIES.try_with(|entries| {
        if let Ok(mut entries) = entries.try_borrow_mut() {
            entries.retain(|entry| entry.sim != sim);
        }
    });
}

/// Changes this simulator's entry. A thread that is ending may have none any more: then what is
/// changed is forgotten at once.
fn with<R>(sim: u64, change: impl FnOnce(&mut Entry) -> R) -> R {
    let mut change = Some(change);
    let done = ENTRIES.try_with(|entries| {
        let mut entries = entries.borrow_mut();
        let found = entries.iter().rposition(|entry| entry.sim == sim);
        let index = found.unwrap_or_else(|| {
            entries.push(Entry { sim, ..Entry::default() });
            entries.len() - 1
        });
        change.take().map(|change| change(&mut entries[index]))
    });
    match (done.ok().flatten(), change) {
        (Some(result), _) => result,
        (None, Some(change)) => change(&mut Entry::default()),
        (None, None) => unreachable!("the change was made or is still there"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_simulators_than_places_keep_their_state() {
        let sims = 1_000_000..1_000_000 + 3 * FAST as u64;
        for sim in sims.clone() {
            assert_eq!(replace(sim, Current::Explicit(sim)), Current::Nothing);
        }
        for sim in sims.clone() {
            assert_eq!(current(sim), Current::Explicit(sim));
            assert_eq!(replace(sim, Current::Nothing), Current::Explicit(sim));
            assert_eq!(current(sim), Current::Nothing);
            forget(sim);
        }
        push_message(7, "one", 5);
        push_message(7, "two", 6);
        assert_eq!(last_error(7, false), 6);
        assert_eq!(take_messages(7).as_deref(), Some("two\none"));
        assert_eq!((take_messages(7), last_error(7, true), last_error(7, true)), (None, 6, 0));
        forget(7);
    }
}
