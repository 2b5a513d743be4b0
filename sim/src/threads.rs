//! What a simulator remembers of each thread: its current device or context, and error messages.
//!
//! One thread may talk to several simulators; each has an entry of its own, found by the
//! simulator's number.

use std::cell::RefCell;

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

#[derive(Default)]
struct Entry {
    sim: u64,
    current: Current,
    /// Newest first, one a line.
    messages: String,
    /// The code of the last call that failed.
    last_error: i32,
}

thread_local! {
    static ENTRIES: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

/// What is current in this thread.
pub(crate) fn current(sim: u64) -> Current {
    let found = ENTRIES.try_with(|entries| {
        entries.borrow().iter().rev().find(|entry| entry.sim == sim).map(|entry| entry.current)
    });
    found.ok().flatten().unwrap_or_default()
}

/// Replaces what is current in this thread; gives what was.
pub(crate) fn replace(sim: u64, current: Current) -> Current {
    with(sim, |entry| std::mem::replace(&mut entry.current, current))
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
