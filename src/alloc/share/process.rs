//! Which process it is, so that another one can see whether it is still there.

use std::os::unix::fs::MetadataExt;

/// What is known of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It runs.
    Alive,
    /// It has ended.
    Gone,
    /// It runs elsewhere (another container or another server), so that cannot be seen.
    Unknown,
}

/// A process of this machine and of this boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Process {
    /// Its number, in its process namespace.
    pub(super) id: u32,
    /// When it started, in ticks since the boot: numbers are used again. 0 where that cannot be had.
    pub(super) started: u64,
    /// Names the boot of the machine and the process namespace. 0 where that cannot be had.
    pub(super) place: u64,
}

impl Process {
    /// This process.
    pub(super) fn this() -> Self {
        let id = std::process::id();
        Self { id, started: started(id).unwrap_or(0), place: place().unwrap_or(0) }
    }

    /// What is known of it.
    pub(super) fn life(&self) -> Life {
        if self.place == 0 || self.started == 0 || place() != Some(self.place) {
            return Life::Unknown;
        }
        if started(self.id) == Some(self.started) { Life::Alive } else { Life::Gone }
    }
}

/// When a process started; nothing for one that there is not, or that has ended and waits to be collected.
fn started(id: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The second field is a name in brackets that may hold anything.
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(started)
}

fn place() -> Option<u64> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::metadata("/proc/self/ns/pid").ok()?.ino();
    Some(super::handle::digest(&boot) ^ namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_until_it_ends() {
        let this = Process::this();
        assert_eq!((this.life(), this), (Life::Alive, Process::this()));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        let id = child.id();
        let of_child = Process { id, started: started(id).expect("it runs"), ..this };
        assert_eq!(of_child.life(), Life::Alive);
        child.kill().expect("killed");
        child.wait().expect("collected");
        assert_eq!(of_child.life(), Life::Gone);
        assert_eq!(Process { place: this.place ^ 1, ..this }.life(), Life::Unknown);
        assert_eq!(Process::default().life(), Life::Unknown);
    }
}
