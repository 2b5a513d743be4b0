//! Rows that are not for hardware, and why.
//!
//! On a device these are skipped and counted; on a simulator (`--all`) they are played like the others.

use super::arguments::{Spec, Value};
use super::calls::{Call, Kind, What};
use super::rows::Expected;
use super::world::World;

/// The row ended the process where it was observed.
pub const SIGNAL: &str = "it ended the process where it was observed";
/// See [`of`].
pub const INVENTED: &str = "the library follows a handle without looking, and this one is invented";
/// See [`of`].
pub const DANGLING: &str = "the chunk has no reference left: its handle points to freed memory";
/// See [`of`].
pub const HUNGRY: &str = "it asks for more memory than there is, which other processes may need meanwhile";
/// See [`of`].
pub const IO_MEMORY: &str = "it registers ordinary memory as that of a device";
/// See [`of`].
pub const OLD_KERNEL: &str = "on Linux 5.10 and older only memory of aclrtMallocHost may be registered";
/// See [`of`].
pub const PENDING: &str = "it is about work that is still queued, which is not brought about here";
/// See [`of`].
pub const UNMAPPED: &str = "it copies to or from device memory that is not there";

/// Whether Linux on this machine is 5.10 or older; false where that cannot be told.
#[must_use]
pub fn is_old_kernel() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    is_old(&release)
}

fn is_old(release: &str) -> bool {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    matches!((parts.next(), parts.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) <= (5, 10))
}

/// A row that is about to be played.
pub struct Candidate<'a> {
    /// Its call.
    pub call: &'a Call,
    /// Its arguments.
    pub values: &'a [Value],
    /// The same as they will be passed.
    pub passed: &'a [u64],
    /// Its answer.
    pub expected: Expected,
}

/// Why the row is not for hardware, if it is not.
#[must_use]
pub fn of(row: &Candidate<'_>, world: &World, old_kernel: bool) -> Option<&'static str> {
    let name = row.call.name;
    if matches!(row.expected, Expected::Signal(_)) {
        return Some(SIGNAL);
    }
    for ((slot, value), &passed) in row.call.slots.iter().zip(row.values).zip(row.passed) {
        let Kind::In(what) = slot.kind else { continue };
        match value {
            Value::Invented => return Some(INVENTED),
            Value::Number(number) if what.is_handle() && *number != 0 => return Some(INVENTED),
            Value::Named(_) if what == What::Chunk && !world.is_referenced(passed) => return Some(DANGLING),
            _ => {}
        }
    }
    if name.starts_with("HostRegister") && row.expected == Expected::Code(0) {
        let is_io = row.passed.get(2).is_some_and(|flags| flags & 4 != 0);
        let is_own = matches!(row.values.first(), Some(Value::Named(named)) if named.what == What::Own);
        match (is_io, is_own && old_kernel) {
            (true, _) => return Some(IO_MEMORY),
            (_, true) => return Some(OLD_KERNEL),
            _ => {}
        }
    }
    let is_hungry = row.expected == Expected::Code(207_001)
        && (name.starts_with("Malloc"))
        && row.passed.get(1).is_some_and(|&bytes| bytes < u64::MAX);
    if is_hungry {
        return Some(HUNGRY);
    }
    let copies = name.starts_with("Memcpy") || name.starts_with("Memset");
    let lost = |(value, &passed): (&Value, &u64)| match value {
        Value::Number(number) => *number != 0,
        Value::Named(named) => matches!(named.what, What::Range) && world.around(passed).is_none(),
        _ => false,
    };
    // The first of the four is where a copy writes to, the third where it reads from.
    let mut pointers =
        row.values.iter().zip(row.passed).step_by(2).take(if name.starts_with("Memcpy") { 2 } else { 1 });
    (copies && pointers.any(lost)).then_some(UNMAPPED)
}

/// The largest device number that the arguments name.
#[must_use]
pub fn device_named(call: &Call, values: &[Value]) -> Option<u32> {
    let of_specs = |specs: &[Spec]| specs.iter().filter_map(Spec::device).max();
    let numbers = call.slots.iter().zip(values).filter_map(|(slot, value)| match value {
        Value::Specs(_, specs) => of_specs(specs),
        Value::Named(named) => named.device,
        Value::Number(number) if matches!(slot.key, "device" | "peer") => u32::try_from(*number).ok(),
        _ => None,
    });
    numbers.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_told_apart() {
        for (release, old) in [("5.10.0-60.18", true), ("4.19.90", true), ("5.15.0", false), ("6.1", false)] {
            assert_eq!(is_old(release), old, "{release}");
        }
        assert!(!is_old("unknown"));
    }
}
