//! Threads that write what happens to files. Whatever fails there is counted and said once, and disturbs nobody.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::log::{Batch, History};
use super::worker::{Signal, Worker};
use crate::signals;
use crate::sync::plain::Mutex;

/// Between two turns of a writer, unless many events come.
const PERIOD: Duration = Duration::from_millis(200);
/// Events that are kept for a writer that falls behind: 24 MiB, up to 72. Those it has read are not kept.
const BEHIND: u64 = 1 << 20;
/// How long the end of the process waits for a writer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Takes events in their order.
pub(crate) trait Sink: Send {
    /// Writes a batch. `last`: there will be no more.
    fn write(&mut self, batch: &Batch, last: bool) -> io::Result<()>;

    /// Where it writes to, for messages.
    fn path(&self) -> &Path;
}

/// A sink with its thread. Dropping it writes everything that has happened by then.
#[derive(Debug)]
pub(crate) struct Writer {
    worker: Option<Arc<Worker>>,
    history: Arc<History>,
    reader: u64,
}

/// Writers to be waited for when the process ends.
static WRITERS: Mutex<Vec<Weak<Worker>>> = Mutex::new(Vec::new());

impl Writer {
    /// Begins to write what happens from now on; `wanted` as for [`History::add_reader`]. `sink` is
    /// made once events are kept. `failed` counts writes that failed.
    pub(crate) fn start<S: Sink + 'static>(
        history: &Arc<History>,
        wanted: u32,
        sink: impl FnOnce() -> S,
        failed: &Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let signal = Arc::new(Signal::default());
        let (reader, read) = history.add_reader(wanted, BEHIND, Some(Arc::clone(&signal)));
        let mut sink = sink();
        let (source, failed) = (Arc::clone(history), Arc::clone(failed));
        let mut latest = 0;
        let mut turn = move |last| {
            let mut batch = source.read(read.load(Relaxed));
            batch.go_on_from(&mut latest);
            read.store(batch.end, Relaxed);
            if let Err(error) = sink.write(&batch, last)
                && failed.fetch_add(1, Relaxed) == 0
            {
                let path = sink.path().display();
                eprintln!("ascend-alloc: {path} cannot be written: {error}; that is tried again");
            }
        };
        // The file is there when this returns, and a path that cannot be had is known.
        signals::quietly(|| turn(false));
        match Worker::start("ascend-alloc-history", PERIOD, signal, turn) {
            Ok(worker) => {
                let worker = Arc::new(worker);
                let mut writers = WRITERS.lock();
                writers.retain(|writer| writer.strong_count() > 0);
                writers.push(Arc::downgrade(&worker));
                drop(writers);
                super::exit::at_exit(flush_all);
                Ok(Self { worker: Some(worker), history: Arc::clone(history), reader })
            }
            Err(error) => {
                history.remove_reader(reader);
                Err(error)
            }
        }
    }

    /// Writes everything that has happened before this call; whether that was done in time.
    pub(crate) fn flush(&self) -> bool {
        self.worker.as_ref().is_none_or(|worker| worker.flush(PATIENCE))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The last turn comes before the events go.
        self.worker = None;
        self.history.remove_reader(self.reader);
    }
}

/// Lets all writers write what has happened.
fn flush_all() {
    let Some(writers) = WRITERS.try_lock() else { return };
    let writers: Vec<_> = writers.iter().filter_map(Weak::upgrade).collect();
    for writer in writers {
        // At the end of the process nobody is left to be told that it took too long.
        let _ = writer.flush(PATIENCE);
        // Dropping the last one here would wait for its thread.
        core::mem::forget(writer);
    }
}
