//! Telling the statistics to other processes: a file that is replaced once a period, or a Unix socket.
//!
//! Everything is done by a thread of its own, which takes the locks that reading statistics takes. docs/statistics.md
//! says what is written.

use core::fmt::{self, Write as _};
use std::io::{ErrorKind, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::device::Device;
use crate::config::Observe;
use crate::driver::Driver;
use crate::history::paths::{OwnPath, replace};
use crate::history::worker::Worker;
use crate::publish::{BETWEEN_LOOKS, BlockFigures};
use crate::stats::json;

/// How often a socket is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long a reader of the socket may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is told, and where from.
pub(super) struct Source {
    pub(super) devices: Arc<[OnceLock<Device>]>,
    pub(super) driver: Arc<dyn Driver>,
    /// Milliseconds between two writes of the file.
    pub(super) period_ms: u64,
    /// Documents made so far.
    pub(super) made: u64,
    /// What was seen when each block of a device was looked at last.
    pub(super) looks: Vec<Option<Look>>,
}

/// The blocks of a device at one moment.
pub(super) struct Look {
    /// By the driver's clock, nanoseconds.
    time: u64,
    blocks: Vec<BlockFigures>,
}

impl Source {
    /// The statistics of all devices that have been used, as one JSON object in one line.
    pub(super) fn document(&mut self) -> String {
        self.made += 1;
        let time = self.driver.now();
        self.look(time);
        let mut text = String::new();
        // Writing to a text cannot fail.
        let _ = self.write(&mut text, time);
        text.push('\n');
        text
    }

    /// Looks at the blocks of devices where that was not done lately.
    fn look(&mut self, time: u64) {
        self.looks.resize_with(self.devices.len(), || None);
        for (device, look) in self.devices.iter().zip(&mut self.looks) {
            let is_new = |look: &Look| u128::from(time.saturating_sub(look.time)) < BETWEEN_LOOKS.as_nanos();
            let Some(device) = device.get().filter(|_| !look.as_ref().is_some_and(is_new)) else { continue };
            let figures = device.figures();
            *look = figures
                .may_be_looked_at()
                .then(|| Look { time, blocks: figures.blocks_of(&device.snapshot()) });
        }
    }

    fn write(&self, to: &mut String, time: u64) -> fmt::Result {
        let process = std::process::id();
        write!(
            to,
            r#"{{"format":"ascend-alloc statistics","version":1,"process":{process},"sequence":{},"time_ns":{time},"period_ms":{},"devices":["#,
            self.made, self.period_ms
        )?;
        let looks = self.looks.iter().map(Option::as_ref);
        let used = self.devices.iter().zip(looks).filter_map(|(device, look)| Some((device.get()?, look)));
        for (index, (device, look)) in used.enumerate() {
            if index > 0 {
                to.push(',');
            }
            device.write_json(to, look)?;
        }
        to.push_str("]}");
        Ok(())
    }
}

impl Device {
    /// What is known of the device, as a JSON object. The lock is held for the copy only.
    fn write_json(&self, to: &mut String, look: Option<&Look>) -> fmt::Result {
        let (stats, pools, limit, soft, streams) = {
            let core = self.core.lock();
            (
                self.stats_under(&core),
                super::pools::all(&core),
                core.limit,
                core.soft_limit(),
                core.streams.len(),
            )
        };
        let number = |limit: Option<u64>| limit.map_or("null".to_owned(), |bytes| bytes.to_string());
        write!(
            to,
            r#"{{"device":{},"total_bytes":{},"limit_bytes":{},"soft_limit_bytes":{},"streams":{streams},"statistics":"#,
            self.limits.device,
            self.limits.total,
            number(limit),
            number(soft),
        )?;
        stats.write_json(to)?;
        to.push_str(r#","driver_calls":"#);
        json::counts(to, stats.calls.by_name())?;
        to.push_str(r#","ladder":"#);
        json::counts(to, stats.ladder.by_name())?;
        to.push_str(r#","pools":["#);
        for (index, (serial, pool)) in pools.iter().enumerate() {
            write!(to, r#"{}{{"pool":{serial},"tag":"#, if index > 0 { "," } else { "" })?;
            json::quoted(to, &pool.tag);
            for (name, values) in [
                ("allocated_bytes", &pool.allocated_bytes),
                ("active_bytes", &pool.active_bytes),
                ("reserved_bytes", &pool.reserved_bytes),
            ] {
                write!(to, r#","{name}":"#)?;
                json::array(to, values)?;
            }
            write!(to, r#","reserved_address_space":{}}}"#, pool.reserved_address_space)?;
        }
        to.push(']');
        if let Some(look) = look {
            look.write_json(to)?;
        }
        to.push('}');
        Ok(())
    }
}

impl Look {
    /// As a member of the device's object.
    fn write_json(&self, to: &mut String) -> fmt::Result {
        write!(to, r#","blocks":{{"time_ns":{},"groups":["#, self.time)?;
        for (index, group) in self.blocks.iter().enumerate() {
            let BlockFigures { pool, stream, state, blocks, bytes } = group;
            let comma = if index > 0 { "," } else { "" };
            write!(
                to,
                r#"{comma}{{"pool":{pool},"stream":"{stream}","state":"{state}","blocks":{blocks},"bytes":{bytes}}}"#
            )?;
        }
        to.push_str("]}");
        Ok(())
    }
}

/// Starts the thread, if the settings want it. `failed` counts what could not be told.
pub(super) fn start(observe: &Observe, source: Source, failed: &Arc<AtomicU64>) -> Option<Worker> {
    let pattern = observe.stats_export.as_ref()?;
    let path = OwnPath::new(pattern);
    let failed = Arc::clone(failed);
    let started = if pattern.ends_with(".sock") {
        let mut server = Server { path, listener: None, source };
        let turn = move |last| note(server.turn(last), &failed, server.path.path());
        Worker::start("ascend-alloc-stats", LOOK, Arc::default(), turn)
    } else {
        let period = Duration::from_millis(observe.stats_export_ms);
        let mut source = source;
        let turn = move |_| note(replace(path.path(), source.document().as_bytes()), &failed, path.path());
        Worker::start("ascend-alloc-stats", period, Arc::default(), turn)
    };
    started.inspect_err(|error| eprintln!("ascend-alloc: statistics are not exported: {error}")).ok()
}

/// Counts a failure, and says the first one.
fn note(result: std::io::Result<()>, failed: &AtomicU64, path: &std::path::Path) {
    if let Err(error) = result
        && failed.fetch_add(1, Relaxed) == 0
    {
        eprintln!("ascend-alloc: {} cannot be written: {error}; that is tried again", path.display());
    }
}

/// Answers everybody who connects with one document.
struct Server {
    path: OwnPath,
    /// Made by the first turn, and again when it could not be.
    listener: Option<UnixListener>,
    source: Source,
}

impl Server {
    fn turn(&mut self, last: bool) -> std::io::Result<()> {
        if last {
            if self.listener.take().is_some() {
                std::fs::remove_file(self.path.path())?;
            }
            return Ok(());
        }
        if self.listener.is_none() {
            self.listener = Some(listen(self.path.path())?);
        }
        let Some(listener) = &self.listener else { return Ok(()) };
        loop {
            match listener.accept() {
                Ok((client, _)) => answer(client, &self.source.document())?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Listens at the path. A socket that a process left there when it ended is taken away.
fn listen(path: &std::path::Path) -> std::io::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_left(path) => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        answer => answer?,
    };
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Whether nobody listens there any more. Whoever cannot be asked may.
fn is_left(path: &std::path::Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Writes to a client. One that goes away is no failure.
fn answer(mut client: UnixStream, text: &str) -> std::io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_write_timeout(Some(PATIENCE))?;
    let _ = client.write_all(text.as_bytes());
    Ok(())
}
