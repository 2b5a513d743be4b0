//! A thread that does something now and then, and once more at the end.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::signals;
use crate::sync::plain::{Condvar, Mutex};

#[derive(Debug, Default)]
struct State {
    stop: bool,
    /// Somebody wants a turn before the period is over.
    nudged: bool,
    /// Turns begun, and turns over.
    begun: u64,
    done: u64,
    /// The thread is gone.
    ended: bool,
}

/// How others reach the thread.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    state: Mutex<State>,
    changed: Condvar,
}

impl Signal {
    /// Lets the thread have a turn soon. Cheap while it has been told already.
    pub(crate) fn nudge(&self) {
        let mut state = self.state.lock();
        if !core::mem::replace(&mut state.nudged, true) {
            self.changed.notify_all();
        }
    }

    /// Whether a turn is wanted that has not begun.
    #[cfg(all(test, not(ascend_alloc_loom)))]
    pub(super) fn is_nudged(&self) -> bool {
        self.state.lock().nudged
    }

    /// Lets the thread have a turn that begins after this call, and waits for its end, but no longer than `patience`.
    /// Whether it came to an end.
    pub(crate) fn flush(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.state.lock();
        let wanted = state.begun + 1;
        state.nudged = true;
        self.changed.notify_all();
        while state.done < wanted && !state.ended {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return false;
            }
        }
        true
    }
}

/// See the module's documentation. Dropping it lets the thread have a last turn and waits for its end.
#[derive(Debug)]
pub(crate) struct Worker {
    signal: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
    /// The process that has the thread: a child of a fork has not.
    process: u32,
}

impl Worker {
    /// Starts a thread that calls `turn` every `period`. `turn` is told whether it is the last one. The thread takes
    /// none of the program's signals.
    pub(crate) fn start(
        name: &str,
        period: Duration,
        signal: Arc<Signal>,
        mut turn: impl FnMut(bool) + Send + 'static,
    ) -> std::io::Result<Self> {
        let shared = Arc::clone(&signal);
        let thread = signals::spawn(name, move || {
            loop {
                let last = wait(&shared, period);
                turn(last);
                let mut state = shared.state.lock();
                state.done = state.begun;
                state.ended = last;
                shared.changed.notify_all();
                if last {
                    return;
                }
            }
        })?;
        Ok(Self { signal, thread: Some(thread), process: std::process::id() })
    }

    /// Lets the thread have a turn and waits for its end; see [`Signal::flush`]. True in a child of a fork.
    pub(crate) fn flush(&self, patience: Duration) -> bool {
        self.process != std::process::id() || self.signal.flush(patience)
    }
}

/// Waits for the next turn; whether it is the last.
fn wait(signal: &Signal, period: Duration) -> bool {
    let deadline = Instant::now() + period;
    let mut state = signal.state.lock();
    while !state.stop && !state.nudged {
        if signal.changed.wait_until(&mut state, deadline).timed_out() {
            break;
        }
    }
    state.nudged = false;
    state.begun += 1;
    state.stop
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        self.signal.state.lock().stop = true;
        self.signal.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by its hook.
            let _ended = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_sees_a_whole_turn_and_the_end_one_more() {
        let turns = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&turns);
        let hour = Duration::from_secs(3600);
        let worker =
            Worker::start("worker-test", hour, Arc::default(), move |last| seen.lock().push(last)).unwrap();
        assert!(worker.flush(hour));
        assert_eq!(*turns.lock(), [false]);
        drop(worker);
        assert_eq!(*turns.lock(), [false, true]);
    }
}
