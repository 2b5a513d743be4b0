//! A thread that does something now and then, and once more at the end.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::sync::{Condvar, Mutex};

#[derive(Debug, Default)]
struct State {
    stop: bool,
}

/// How others reach the thread.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    state: Mutex<State>,
    changed: Condvar,
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
    /// Starts a thread that calls `turn` every `period`. `turn` is told whether it is the last one.
    pub(crate) fn start(
        name: &str,
        period: Duration,
        signal: Arc<Signal>,
        mut turn: impl FnMut(bool) + Send + 'static,
    ) -> std::io::Result<Self> {
        let shared = Arc::clone(&signal);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            loop {
                let last = wait(&shared, period);
                turn(last);
                if last {
                    return;
                }
            }
        })?;
        Ok(Self { signal, thread: Some(thread), process: std::process::id() })
    }
}

/// Waits for the next turn; whether it is the last.
fn wait(signal: &Signal, period: Duration) -> bool {
    let deadline = Instant::now() + period;
    let mut state = signal.state.lock();
    while !state.stop {
        if signal.changed.wait_until(&mut state, deadline).timed_out() {
            break;
        }
    }
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
    fn the_end_is_a_last_turn() {
        let turns = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&turns);
        let hour = Duration::from_secs(3600);
        let worker =
            Worker::start("worker-test", hour, Arc::default(), move |last| seen.lock().push(last)).unwrap();
        assert!(turns.lock().is_empty());
        drop(worker);
        assert_eq!(*turns.lock(), [true]);
    }
}
