//! What the machine is built from: the environment's variables, and the controls that shape it.
//!
//! A variable that cannot be understood is reported on standard error and ignored.

use ascend_sim::{BackingMode, ExecMode, LAG_NEVER, SimConfig, Soc};

use crate::surface::{CANN_9_2, Surface};

/// A planned failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The call.
    pub(crate) function: String,
    /// The how manieth from now on.
    pub(crate) k: u64,
    /// What it answers.
    pub(crate) code: i32,
    /// Whether all later ones fail too.
    pub(crate) always: bool,
}

/// All settings. Sizes in bytes.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Devices of the machine.
    pub(crate) devices: u32,
    /// Memory of each.
    pub(crate) capacity: u64,
    /// What `aclrtGetSocName` answers; the model follows from it.
    pub(crate) soc: String,
    /// The CANN version played.
    pub(crate) surface: Surface,
    /// How queued work runs.
    pub(crate) execution: ExecMode,
    /// Ticks that queued work stays unfinished.
    pub(crate) lag: u64,
    /// Whether the use checker is on.
    pub(crate) checker: bool,
    /// Whether what documents forbid is refused.
    pub(crate) strict: bool,
    /// Bytes of each device that other processes hold.
    pub(crate) foreign: u64,
    /// Host memory that can be pinned.
    pub(crate) host_capacity: u64,
    /// Where bytes are kept.
    pub(crate) backing: BackingMode,
    /// The devices this process sees.
    pub(crate) visible: Option<Vec<u32>>,
    /// Virtual nanoseconds that calls cost.
    pub(crate) costs: Vec<(String, u64)>,
    /// Failures planned from the start.
    pub(crate) failures: Vec<Failure>,
    /// Where the report at exit goes: `stderr` or a file; nowhere if empty.
    pub(crate) report: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            devices: 2,
            capacity: 64 << 30,
            soc: Soc::default().name().to_owned(),
            surface: CANN_9_2,
            execution: ExecMode::Threads,
            lag: 0,
            checker: true,
            strict: false,
            foreign: 0,
            host_capacity: SimConfig::default().host_capacity,
            backing: BackingMode::Auto,
            visible: None,
            costs: Vec::new(),
            failures: Vec::new(),
            report: String::new(),
        }
    }
}

impl Settings {
    /// The settings that an environment describes, and what of it was not understood. In a variable that is
    /// no text, what cannot be read is U+FFFD.
    pub(crate) fn read(variable: impl Fn(&str) -> Option<String>) -> (Self, Vec<String>) {
        let mut reader = Reader { variable, complaints: Vec::new() };
        let plain = Self::default();
        let settings = Self {
            devices: reader
                .get("ASCEND_SIM_DEVICES", plain.devices, |text| text.parse().ok().filter(|n| *n > 0)),
            capacity: reader.get("ASCEND_SIM_CAPACITY", plain.capacity, size),
            soc: reader.get("ASCEND_SIM_SOC", plain.soc, |text| Some(text.to_owned())),
            surface: reader.get("ASCEND_SIM_SURFACE", plain.surface, Surface::parse),
            execution: reader.get("ASCEND_SIM_EXEC", plain.execution, execution),
            lag: reader.get("ASCEND_SIM_EVENT_LAG", plain.lag, lag),
            checker: reader.get("ASCEND_SIM_CHECKER", plain.checker, switch),
            strict: reader.get("ASCEND_SIM_STRICT", plain.strict, switch),
            foreign: reader.get("ASCEND_SIM_FOREIGN", plain.foreign, size),
            host_capacity: reader.get("ASCEND_SIM_HOST_CAPACITY", plain.host_capacity, size),
            backing: reader.get("ASCEND_SIM_BACKING", plain.backing, backing),
            visible: reader.get("ASCEND_RT_VISIBLE_DEVICES", plain.visible, |text| Some(Some(visible(text)))),
            costs: reader.get("ASCEND_SIM_COST", plain.costs, costs),
            failures: reader.get("ASCEND_SIM_FAIL", plain.failures, failures),
            report: reader.get("ASCEND_SIM_REPORT", plain.report, |text| Some(text.to_owned())),
        };
        (settings, reader.complaints)
    }

    /// What the model is built from.
    pub(crate) fn config(&self) -> SimConfig {
        SimConfig {
            devices: self.devices,
            capacity: self.capacity,
            soc: profile(&self.soc),
            backing: self.backing,
            host_capacity: self.host_capacity,
            visible_devices: self.visible.clone(),
            strict: self.strict,
            exec_mode: self.execution,
            checker: self.checker,
            lag: self.lag,
            ..SimConfig::default()
        }
    }
}

/// The model that plays a part of that name.
pub(crate) fn profile(soc: &str) -> Soc {
    if soc.starts_with("Ascend950") { Soc::Ascend950 } else { Soc::Ascend910B }
}

/// Reads variables and keeps complaints.
struct Reader<F> {
    variable: F,
    complaints: Vec<String>,
}

impl<F: Fn(&str) -> Option<String>> Reader<F> {
    fn get<T>(&mut self, name: &str, plain: T, parse: impl FnOnce(&str) -> Option<T>) -> T {
        let Some(text) = (self.variable)(name) else { return plain };
        let text = text.trim();
        if text.is_empty() && name != "ASCEND_RT_VISIBLE_DEVICES" {
            return plain;
        }
        // What is no text has been made one with a sign for what could not be read.
        let sound = !text.contains(char::REPLACEMENT_CHARACTER);
        sound.then(|| parse(text)).flatten().unwrap_or_else(|| {
            self.complaints.push(format!("{name}={text} is not understood and ignored"));
            plain
        })
    }
}

/// A number of bytes, with or without K, M, G, T.
fn size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        b'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    digits.trim().parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn switch(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "on" | "yes" | "true" => Some(true),
        "0" | "off" | "no" | "false" => Some(false),
        _ => None,
    }
}

fn lag(text: &str) -> Option<u64> {
    if text == "never" { Some(LAG_NEVER) } else { text.parse().ok() }
}

/// `threads`, `deterministic` or `deterministic:SEED`.
pub(crate) fn execution(text: &str) -> Option<ExecMode> {
    match text.split_once(':') {
        None if text == "threads" => Some(ExecMode::Threads),
        None if text == "deterministic" => Some(ExecMode::Deterministic { seed: 0 }),
        Some(("deterministic", seed)) => Some(ExecMode::Deterministic { seed: seed.parse().ok()? }),
        _ => None,
    }
}

/// `auto`, `mapped` or `tables`.
pub(crate) fn backing(text: &str) -> Option<BackingMode> {
    match text {
        "auto" => Some(BackingMode::Auto),
        "mapped" => Some(BackingMode::Mapped),
        "tables" => Some(BackingMode::MetadataOnly),
        _ => None,
    }
}

/// The devices a list names, up to the first entry that is no number.
fn visible(text: &str) -> Vec<u32> {
    text.split(',').map_while(|entry| entry.trim().parse().ok()).collect()
}

/// `function=nanoseconds,...`
fn costs(text: &str) -> Option<Vec<(String, u64)>> {
    let one = |entry: &str| {
        let (name, cost) = entry.split_once('=')?;
        Some((name.trim().to_owned(), cost.trim().parse().ok()?))
    };
    text.split(',').map(one).collect()
}

/// `function:k:code` or `function:k:code:always`, separated by commas.
fn failures(text: &str) -> Option<Vec<Failure>> {
    let one = |entry: &str| {
        let parts: Vec<&str> = entry.split(':').map(str::trim).collect();
        let (function, k, code, always) = match parts.as_slice() {
            [function, k, code] => (function, k, code, false),
            [function, k, code, "always"] => (function, k, code, true),
            _ => return None,
        };
        Some(Failure {
            function: (*function).to_owned(),
            k: k.parse().ok()?,
            code: code.parse().ok()?,
            always,
        })
    };
    text.split(',').map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (Settings, Vec<String>) {
        let find = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Settings::read(find)
    }

    #[test]
    fn variables_are_read() {
        let (settings, complaints) = read(&[
            ("ASCEND_SIM_DEVICES", "3"),
            ("ASCEND_SIM_CAPACITY", "32G"),
            ("ASCEND_SIM_SOC", "Ascend950PR_9579"),
            ("ASCEND_SIM_SURFACE", "8.1"),
            ("ASCEND_SIM_EXEC", "deterministic:7"),
            ("ASCEND_SIM_EVENT_LAG", "never"),
            ("ASCEND_SIM_CHECKER", "off"),
            ("ASCEND_SIM_STRICT", "1"),
            ("ASCEND_SIM_FOREIGN", "512m"),
            ("ASCEND_SIM_COST", "aclrtMapMem=300, aclrtUnmapMem=20"),
            ("ASCEND_SIM_FAIL", "aclrtMapMem:3:207001,aclrtMalloc:1:207001:always"),
            ("ASCEND_RT_VISIBLE_DEVICES", "1, 2,x,0"),
        ]);
        assert_eq!(complaints, [""; 0]);
        let config = settings.config();
        assert_eq!((config.devices, config.capacity, config.soc), (3, 32 << 30, Soc::Ascend950));
        assert_eq!(config.exec_mode, ExecMode::Deterministic { seed: 7 });
        assert_eq!((config.lag, config.checker, config.strict), (LAG_NEVER, false, true));
        assert_eq!(config.visible_devices, Some(vec![1, 2]));
        assert_eq!(settings.foreign, 512 << 20);
        assert_eq!(settings.costs, [("aclrtMapMem".to_owned(), 300), ("aclrtUnmapMem".to_owned(), 20)]);
        assert_eq!(settings.failures.len(), 2);
        assert!(settings.failures[1].always && settings.failures[1].code == 207_001);
    }

    #[test]
    fn without_variables_there_are_two_devices_of_64_gib_run_by_threads() {
        let (settings, complaints) = read(&[]);
        assert!(complaints.is_empty());
        let config = settings.config();
        assert_eq!((config.devices, config.capacity, config.lag), (2, 64 << 30, 0));
        assert_eq!(config.exec_mode, ExecMode::Threads);
        assert_eq!(read(&[("ASCEND_SIM_EVENT_LAG", "5")]).0.config().lag, 5);
        assert_eq!(read(&[("ASCEND_RT_VISIBLE_DEVICES", "")]).0.visible, Some(Vec::new()));
    }

    #[test]
    fn what_is_not_understood_is_said_and_changes_nothing() {
        let wrong = [
            ("ASCEND_SIM_DEVICES", "0"),
            ("ASCEND_SIM_CAPACITY", "99999999T"),
            ("ASCEND_SIM_SURFACE", "7"),
            ("ASCEND_SIM_EXEC", "fast"),
            ("ASCEND_SIM_CHECKER", "maybe"),
            ("ASCEND_SIM_COST", "aclrtMapMem"),
            ("ASCEND_SIM_FAIL", "aclrtMapMem:x:1"),
        ];
        let (settings, complaints) = read(&wrong);
        assert_eq!(complaints.len(), wrong.len(), "{complaints:?}");
        assert_eq!((settings.devices, settings.capacity), (2, 64 << 30));
    }
}
