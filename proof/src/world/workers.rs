//! The other threads of a program. They live as long as it, and do one operation at a time while it waits.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::{Inner, lock};
use crate::operation::Operation;

/// A thread that waits for operations.
pub(super) struct Worker {
    to: Option<Sender<Operation>>,
    from: Receiver<Result<(), Box<dyn Any + Send>>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(super) fn start(inner: &Arc<Mutex<Inner>>, number: usize) -> Self {
        let (to, operations) = channel::<Operation>();
        let (answers, from) = channel();
        let inner = inner.clone();
        let thread = std::thread::spawn(move || {
            for operation in operations {
                let perform = AssertUnwindSafe(|| lock(&inner).perform(number, operation));
                if answers.send(catch_unwind(perform)).is_err() {
                    return;
                }
            }
        });
        Self { to: Some(to), from, thread: Some(thread) }
    }

    /// Does the operation there and waits for its end.
    pub(super) fn run(&self, operation: Operation) {
        self.to.as_ref().expect("the thread runs").send(operation).expect("the thread waits");
        if let Err(panic) = self.from.recv().expect("the thread answers") {
            resume_unwind(panic);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.to = None;
        if let Some(thread) = self.thread.take() {
            // Its panics were answers.
            let _ended = thread.join();
        }
    }
}
