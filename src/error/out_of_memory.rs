//! Out of memory as a value: what was asked for, what there is and who has it, and what would have helped.

use core::fmt;

use crate::driver::{DeviceId, MemoryInfo, Stream};
use crate::words::counted;

/// In place of a device in [`OutOfMemory::device`]: page-locked memory of the host was asked for.
pub const HOST: DeviceId = DeviceId::MAX;

/// Changes that are called something else where the memory is the host's.
pub(crate) const EXPANDABLE: &str = "Set expandable_segments:True";
pub(crate) const RESERVATIONS: &str = "Set reservation_gb lower, or call empty_cache";
const RAISE: &str = "Raise per_process_memory_fraction or memory_limit_mb";
const LESS: &str = "Ask for less";
const OTHERS: &str = "Use less memory outside this allocator";

/// What stopped an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfMemoryCause {
    /// The device has no physical memory left.
    Device,
    /// The limit set for this allocator (a memory fraction, or bytes) is reached.
    Limit,
    /// No address space could be reserved.
    AddressSpace,
    /// The functions that a pool has its memory from had none.
    Source,
}

/// The state of a device when an allocation failed; all sizes in bytes. Its text is meant for people.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The device asked, or [`HOST`].
    pub device: DeviceId,
    /// Bytes the caller asked for.
    pub requested: u64,
    /// The multiples, in bytes, that the block was to lie at, where more than 512 was asked for. A fixed block needs so much
    /// more memory.
    pub align: Option<u64>,
    /// Bytes of physical memory that were missing in the end. A request for more than a limit allows is not tried: what it
    /// would take beside all that is held. One for more than the device has lacks its whole length.
    pub lacking: u64,
    /// What stopped it.
    pub cause: OutOfMemoryCause,
    /// Whether a graph was being captured on the device, so that nothing could be given back or waited for.
    pub during_capture: bool,
    /// Bytes handed out.
    pub allocated: u64,
    /// Allocated bytes plus bytes that wait for streams.
    pub active: u64,
    /// Active bytes without memory, because their pools sleep.
    pub asleep: u64,
    /// Bytes with physical memory behind them.
    pub reserved: u64,
    /// Reserved bytes that are none of the device's: memory from the sources of pools.
    pub elsewhere: u64,
    /// Reserved bytes that are free.
    pub idle: u64,
    /// Idle bytes in chunks that live or waiting blocks share, so that they cannot be moved or given back.
    pub scattered: u64,
    /// Physical memory this allocator holds without an address (cached handles).
    pub cached_handles: u64,
    /// Largest request the free blocks could have served.
    pub largest_free: u64,
    /// Free bytes of the device, as the driver counts them; zero if it does not say.
    pub device_free: u64,
    /// Total bytes of the device, as the driver counts them.
    pub device_total: u64,
    /// Bytes of the device that are neither free nor held by this allocator: other processes, other libraries.
    pub held_by_others: u64,
    /// The limit in force, if one is set.
    pub limit: Option<u64>,
    /// The soft limit in force, if one is set.
    pub soft_limit: Option<u64>,
    /// Address space reserved.
    pub address_space: u64,
    /// What each pool has, those with most first.
    pub pools: Vec<PoolShare>,
    /// Who holds most, largest first. Blocks of pools that sleep hold nothing.
    pub holders: Vec<Holder>,
    /// Streams that hold freed memory back, those with most first.
    pub pending: Vec<HeldBack>,
    /// What would have helped, the most helpful first.
    pub remedies: Vec<Remedy>,
    /// Bytes that the device should have had free.
    pub(crate) wanted: u64,
}

/// What a pool has when an allocation fails; sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolShare {
    /// Its number (`PoolId::serial`); 0 is the default pool.
    pub pool: u64,
    /// Its tag.
    pub tag: String,
    /// Physical memory in it.
    pub reserved: u64,
    /// Free bytes in it.
    pub idle: u64,
    /// Largest request its free blocks could serve.
    pub largest_fit: u64,
}

/// The blocks of one pool that were allocated for one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The pool's number (`PoolId::serial`); 0 is the default pool.
    pub pool: u64,
    /// The pool's tag.
    pub tag: String,
    /// The stream.
    pub stream: Stream,
    /// Bytes that are live or wait for streams.
    pub bytes: u64,
    /// How many blocks that are.
    pub blocks: u64,
}

/// A stream that has not passed the frees of some memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBack {
    /// The device that the stream is of.
    pub device: DeviceId,
    /// The stream.
    pub stream: Stream,
    /// Bytes of freed blocks that it may still use.
    pub bytes: u64,
    /// Events on it that have not completed.
    pub events: usize,
}

/// A change that would have made memory available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// The setting or the call.
    pub change: &'static str,
    /// Bytes it would have made available; 0 where that cannot be told.
    pub bytes: u64,
    /// Why, as a sentence.
    pub reason: &'static str,
}

impl OutOfMemory {
    /// What would have helped, as one text.
    #[must_use]
    pub fn advice(&self) -> String {
        if self.remedies.is_empty() {
            return "Free blocks, or ask for less.".to_owned();
        }
        let mut lines: Vec<String> = Vec::new();
        for Remedy { change, bytes, reason } in &self.remedies {
            let gain = if *bytes > 0 { format!(" ({} more)", Bytes(*bytes)) } else { String::new() };
            lines.push(format!("{change}{gain}: {reason}"));
        }
        lines.join(" ")
    }

    /// Whether no device of this size could serve the request.
    fn is_too_large(&self) -> bool {
        self.requested.max(self.lacking).max(self.wanted) > self.device_total && self.device_total > 0
    }

    /// Says that page-locked host memory is what lacks, with the settings and reasons that hold there.
    pub(crate) fn is_of_host(&mut self) {
        self.device = HOST;
        for remedy in &mut self.remedies {
            (remedy.change, remedy.reason) = match remedy.change {
                EXPANDABLE => {
                    ("Take it in the virtual form (pin_memory_expandable_segments:True)", remedy.reason)
                }
                RAISE => ("Raise max_total of the options", "the machine has room beyond the limit."),
                LESS => (LESS, "no block can be larger than the machine's memory."),
                OTHERS => (OTHERS, "other processes or libraries hold it."),
                RESERVATIONS => ("Call empty_cache", "released reservations make room."),
                change => (change, remedy.reason),
            };
        }
    }

    /// Adds what only the driver knows, and what follows from it.
    pub(crate) fn add_device(&mut self, info: Option<MemoryInfo>, held: u64) {
        let ours = held.saturating_sub(self.elsewhere);
        if let Some(info) = info {
            (self.device_free, self.device_total) = (info.free, info.total);
            self.held_by_others = info.total.saturating_sub(info.free).saturating_sub(ours);
        }
        let total = self.device_total;
        match self.cause {
            OutOfMemoryCause::Limit if self.device_free > 0 => {
                let bytes = (self.device_free + ours).saturating_sub(self.limit.unwrap_or(0));
                let reason = "the device has room beyond the limit.";
                self.remedies.extend((bytes > 0).then_some(Remedy { change: RAISE, bytes, reason }));
            }
            OutOfMemoryCause::Device if self.is_too_large() => {
                let reason = "no block can be larger than the device.";
                self.remedies.push(Remedy { change: LESS, bytes: 0, reason });
            }
            _ => {}
        }
        if self.cause == OutOfMemoryCause::Device && self.held_by_others > total / 64 {
            let reason = "other processes or libraries hold it on the device.";
            self.remedies.push(Remedy { change: OTHERS, bytes: self.held_by_others, reason });
        }
        let lacking = self.lacking;
        self.remedies.sort_by_key(|remedy| (remedy.bytes < lacking, core::cmp::Reverse(remedy.bytes)));
    }
}

/// Bytes as people read them: a rounded number, and the exact one where that is another.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        match units.into_iter().find(|&(_, unit)| self.0 >= unit) {
            Some((name, unit)) if self.0.is_multiple_of(unit) => write!(f, "{} {name}", self.0 / unit),
            Some((name, unit)) => write!(f, "{:.2} {name}", self.0 as f64 / unit as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

/// A pool in a text.
struct Name<'a>(u64, &'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (0, _) => f.write_str("the default pool"),
            (pool, "") => write!(f, "pool {pool}"),
            (pool, tag) => write!(f, "pool {pool} \"{tag}\""),
        }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.device {
            HOST => write!(f, "out of page-locked host memory: ")?,
            device => write!(f, "out of memory on device {device}: ")?,
        }
        write!(f, "asked for {} ({})", Bytes(self.requested), counted(self.requested, "byte[s]"))?;
        if let Some(align) = self.align {
            write!(f, " at multiples of {}", Bytes(align))?;
        }
        write!(f, ", {} are lacking; ", Bytes(self.lacking))?;
        match self.cause {
            OutOfMemoryCause::Device if self.device == HOST => write!(f, "the driver locks no more pages")?,
            OutOfMemoryCause::Device if self.is_too_large() => {
                write!(f, "the device has {} in all", Bytes(self.device_total))?;
            }
            OutOfMemoryCause::Device if self.device_free >= self.wanted => {
                write!(f, "the driver gives no more, although so much is free")?;
            }
            OutOfMemoryCause::Device => write!(f, "the device is full")?,
            OutOfMemoryCause::Limit => {
                write!(f, "the limit of {} is reached", Bytes(self.limit.unwrap_or(0)))?;
            }
            OutOfMemoryCause::AddressSpace => write!(f, "no address space could be reserved")?,
            OutOfMemoryCause::Source => write!(f, "the pool's source has none")?,
        }
        if self.during_capture {
            write!(f, "; during the capture of a graph nothing can be given back")?;
        }
        self.fmt_sums(f)?;
        self.fmt_shares(f)?;
        write!(f, "\n  what helps: {}", self.advice())
    }
}

impl OutOfMemory {
    fn fmt_sums(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.active.saturating_sub(self.allocated);
        write!(
            f,
            "\n  held: {} handed out, {} waiting for streams, {} idle ({} of it between live blocks), {} in cached \
             handles; address space {}",
            Bytes(self.allocated),
            Bytes(waiting),
            Bytes(self.idle),
            Bytes(self.scattered),
            Bytes(self.cached_handles),
            Bytes(self.address_space),
        )?;
        write!(
            f,
            "\n  {}: {} free of {}, {} held by others",
            if self.device == HOST { "host" } else { "device" },
            Bytes(self.device_free),
            Bytes(self.device_total),
            Bytes(self.held_by_others)
        )?;
        if let Some(limit) = self.limit {
            write!(f, "; limit {}", Bytes(limit))?;
        }
        if let Some(limit) = self.soft_limit {
            write!(f, "; soft limit {}", Bytes(limit))?;
        }
        if self.asleep > 0 {
            write!(f, "\n  asleep: {} of what is handed out have no memory", Bytes(self.asleep))?;
        }
        if self.elsewhere > 0 {
            write!(f, "\n  not of the device: {} from sources of pools", Bytes(self.elsewhere))?;
        }
        Ok(())
    }

    fn fmt_shares(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for PoolShare { pool, tag, reserved, idle, largest_fit } in &self.pools {
            let (reserved, idle, fit) = (Bytes(*reserved), Bytes(*idle), Bytes(*largest_fit));
            write!(f, "\n  {}: {reserved}, {idle} idle, largest fit {fit}", Name(*pool, tag))?;
        }
        for Holder { pool, tag, stream, bytes, blocks } in &self.holders {
            let (name, bytes) = (Name(*pool, tag), Bytes(*bytes));
            let blocks = counted(*blocks, "block[s]");
            write!(f, "\n  {bytes} in {blocks} of {name} for stream {:#x}", stream.0)?;
        }
        for HeldBack { device, stream, bytes, events } in &self.pending {
            write!(f, "\n  {} of freed blocks held back by stream {:#x}", Bytes(*bytes), stream.0)?;
            if self.device == HOST {
                write!(f, " of device {device}")?;
            }
            write!(f, " ({})", counted(*events as u64, "event[s]"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_the_unit_that_fits() {
        let shown: Vec<String> = [0, 512, 1 << 10, 1536, (3 << 30) + (1 << 29), 2 << 30]
            .map(|bytes| Bytes(bytes).to_string())
            .into();
        assert_eq!(shown, ["0 B", "512 B", "1 KiB", "1.50 KiB", "3.50 GiB", "2 GiB"]);
    }
}
