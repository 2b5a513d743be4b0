//! The thread that looks for streams that have passed, so that a request need not.
//!
//! It sleeps until a block that a stream used is freed, then looks every millisecond until nothing waits, and gives back
//! what is then beyond the limit of free memory.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::emptying::keep_at_most;
use super::ends::Ends;
use crate::alloc::DeviceAllocator;
use crate::error::{Error, Result};
use crate::sync::plain::{Condvar, Mutex};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
struct Signal {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stop: bool,
    /// Something was freed since the last look.
    work: bool,
}

/// See the module's documentation. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Worker {
    signal: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// A thread; `max_cached` is the most free memory that is kept.
    pub(super) fn start(
        heap: Arc<DeviceAllocator>,
        ends: Arc<Ends>,
        max_cached: Option<u64>,
    ) -> Result<Self> {
        let signal = Arc::new(Signal::default());
        let shared = Arc::clone(&signal);
        let thread =
            crate::signals::spawn("ascend-alloc-host", move || run(&heap, &ends, max_cached, &shared))
                .map_err(|_| Error::State {
                    operation: "starting the background thread of page-locked memory",
                    reason: "the system has no thread to give; set background to false",
                })?;
        Ok(Self { signal, thread: Some(thread) })
    }

    /// Tells that a block was freed.
    pub(super) fn wake(&self) {
        let mut state = self.signal.state.lock();
        if !core::mem::replace(&mut state.work, true) {
            self.signal.changed.notify_one();
        }
    }
}

fn run(heap: &DeviceAllocator, ends: &Ends, max_cached: Option<u64>, signal: &Signal) {
    loop {
        {
            let mut state = signal.state.lock();
            while !state.stop && !state.work {
                signal.changed.wait(&mut state);
            }
            if state.stop {
                return;
            }
            state.work = false;
        }
        // What cannot be asked now is asked again; a request that needs the memory is told the reason.
        ends.heed();
        let looked = heap.look_at_streams(0);
        keep_at_most(heap, max_cached);
        let left = heap.waiting_bytes(0).unwrap_or(0) > 0;
        let mut state = signal.state.lock();
        if left || looked.is_err() {
            state.work = true;
            if !state.stop {
                signal.changed.wait_for(&mut state, PAUSE);
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.signal.state.lock().stop = true;
        self.signal.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by its hook.
            let _ended = thread.join();
        }
    }
}
