//! What a simulator is built from.

use crate::exec::ExecMode;

/// The kind of part that is played; it decides codes, alignment and the pad of `aclrtMalloc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Soc {
    /// Ascend 910B (the driver's memory generation 2).
    #[default]
    Ascend910B,
    /// Ascend 950 (the driver's memory generation 3).
    Ascend950,
}

impl Soc {
    /// The name `aclrtGetSocName` answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ascend910B => "Ascend910B3",
            Self::Ascend950 => "Ascend950PR_9599",
        }
    }

    /// Bytes that must stay free behind a piece of memory because engines may read past its end;
    /// `aclrtMalloc` adds them by itself.
    #[must_use]
    pub const fn tail_pad(self) -> u64 {
        match self {
            Self::Ascend910B => 32,
            Self::Ascend950 => 0,
        }
    }
}

/// Where the bytes of device memory are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackingMode {
    /// [`Mapped`](Self::Mapped) if the devices are small enough for this machine's limit on
    /// mappings, else [`MetadataOnly`](Self::MetadataOnly).
    #[default]
    Auto,
    /// Device addresses are real: the CPU can read and write mapped device memory.
    Mapped,
    /// Device addresses are numbers: bytes are kept in tables and reached through the simulator
    /// only. Size costs nothing.
    MetadataOnly,
}

/// The settings of a simulator. All sizes in bytes.
///
/// ```
/// use ascend_sim::{Sim, SimConfig};
/// let sim = Sim::new(SimConfig { devices: 2, capacity: 8 << 30, ..SimConfig::default() });
/// assert_eq!(sim.device_count(), Ok(2));
/// ```
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// How many devices the machine has; at least one.
    pub devices: u32,
    /// Memory of each device.
    pub capacity: u64,
    /// The part that is played.
    pub soc: Soc,
    /// Where bytes are kept.
    pub backing: BackingMode,
    /// Host memory the driver will pin.
    pub host_capacity: u64,
    /// The devices this process sees, by the driver's numbers, as `ASCEND_RT_VISIBLE_DEVICES` lists
    /// them; `None` is all of them. Numbers the machine has not are dropped with all that follow.
    pub visible_devices: Option<Vec<u32>>,
    /// The most one reservation may take; some drivers stop at 128 GiB.
    pub max_reservation: Option<u64>,
    /// The most all reservations together may take.
    pub va_budget: Option<u64>,
    /// Refuse what documents forbid or a kernel may refuse although the observed layers let it pass: a
    /// mapping smaller than its chunk (107000), a copy between devices that are not linked in both
    /// directions (107000), a registration that does not begin at a multiple of
    /// 4096 (507899), a reservation of more than 128 GiB (207001), and reservations, chunks and
    /// mappings before any device was set (107017).
    pub strict: bool,
    /// Report tasks that name memory nothing is mapped at, or of another device without access to it.
    pub check_mapped: bool,
    /// How queued work runs.
    pub exec_mode: ExecMode,
    /// Whether the use checker is on.
    pub checker: bool,
    /// How many ticks queued work stays unfinished.
    pub lag: u64,
    /// Events a device has.
    pub max_events: u32,
    /// Streams a device has.
    pub max_streams: u32,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            devices: 1,
            capacity: 1 << 30,
            soc: Soc::default(),
            backing: BackingMode::default(),
            host_capacity: 256 << 30,
            visible_devices: None,
            max_reservation: None,
            va_budget: None,
            strict: false,
            check_mapped: true,
            exec_mode: ExecMode::Deterministic { seed: 0 },
            checker: true,
            lag: 0,
            max_events: 65_536,
            max_streams: 1984,
        }
    }
}
