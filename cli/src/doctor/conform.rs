//! Plays rows of observed answers on the loaded library, and tells where it answers otherwise.
//!
//! ```text
//!  file ─┬─► rows ◄───┐                      process 1: reads the file, starts one process a group
//!        └─► plain ───┴─► syntax                              │ pipe: a line for each row
//!  process 2: player ─┬─► arguments ─► calls                  ▼
//!                     ├─► world                      outcome of every row, crashes included
//!                     ├─► hazard
//!                     └─► raw ─► the library
//! ```
//!
//! Each group has a process of its own, so that no state leaks from one to the next. A row that ends the process is a
//! crash; the group is then played again without it.

mod arguments;
mod calls;
pub mod hazard;
mod plain;
mod player;
mod raw;
pub mod rows;
mod syntax;
mod world;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use ascend_alloc::acl::Acl;
use serde::{Deserialize, Serialize};

pub use player::Outcome;
use player::Player;
use raw::Raw;
use rows::{Expected, Group, Row};

/// How a line about a row begins; a library may write lines of its own to the same output.
const MARK: &str = "@row ";
/// How long a row may take. The longest that is listed waits for a tenth of a second.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a group is begun anew after a crash.
const ATTEMPTS: usize = 16;

/// What is asked of [`play`].
#[derive(Clone, Debug)]
pub struct Order {
    /// The file with the rows.
    pub file: PathBuf,
    /// Whether rows that are not for hardware are played.
    pub all: bool,
}

/// A row and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Played {
    /// Its group.
    pub group: String,
    /// Its line in the file.
    pub line: usize,
    /// The call as it is written.
    pub call: String,
    /// The listed answer: a code, or `SIGNAL n`.
    pub listed: String,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The calls that brought its state about.
    pub first: Vec<String>,
}

/// All rows of a file, played.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The file with the rows.
    pub file: String,
    /// The library.
    pub library: String,
    /// The name of the part, if the library tells it.
    pub soc: Option<String>,
    /// The rows, in the order of the file.
    pub rows: Vec<Played>,
    /// What happened outside of rows.
    pub remarks: Vec<String>,
}

impl Report {
    /// How many rows have an outcome of this kind.
    #[must_use]
    pub fn count(&self, is_kind: impl Fn(&Outcome) -> bool) -> usize {
        self.rows.iter().filter(|row| is_kind(&row.outcome)).count()
    }

    /// Whether every row that was played answered as listed, and one was.
    #[must_use]
    pub fn is_well(&self) -> bool {
        let is_bad = |outcome: &Outcome| {
            matches!(
                outcome,
                Outcome::Differs(_) | Outcome::Unprepared(_) | Outcome::Crashed(_) | Outcome::Hung
            )
        };
        self.count(is_bad) == 0
            && self.remarks.is_empty()
            && self.count(|outcome| *outcome == Outcome::Same) > 0
    }
}

/// A line from the process of a group.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    /// The number of the row in its group.
    row: usize,
    /// None while it is being played.
    done: Option<(Outcome, Vec<String>)>,
}

/// Plays the rows of a file, each group in a process of its own.
///
/// # Errors
///
/// Why the file cannot be read or has no rows, or why no process could be started.
pub fn play(order: &Order, acl: &Acl) -> Result<Report, String> {
    let groups = read(&order.file)?;
    let soc = acl.soc_name().map(|name| name.to_string_lossy().into_owned());
    let is_950 = soc.as_deref().is_some_and(|name| name.starts_with("Ascend950"));
    let mut report = Report {
        file: order.file.display().to_string(),
        library: acl.origin().to_owned(),
        soc,
        rows: Vec::new(),
        remarks: Vec::new(),
    };
    // Rows speak of two devices. A machine with more shows the first two, unless the user has chosen.
    let many = acl.device_count().is_ok_and(|count| count > 2);
    let visible = (many && std::env::var_os("ASCEND_RT_VISIBLE_DEVICES").is_none()).then_some("0,1");
    for (index, group) in groups.iter().enumerate() {
        let other = match (group.is_strict, group.is_950) {
            (true, _) => Some("stricter answers than a device's"),
            (_, true) if !is_950 => Some("Ascend950"),
            (_, false) if is_950 => Some("parts other than Ascend950"),
            _ => None,
        };
        let outcomes = match other {
            None => Attempt { order, index, group, visible }.play(&mut report.remarks)?,
            Some(other) => {
                let why = Outcome::Skipped(format!("the group is for {other}"));
                vec![(why, Vec::new()); group.rows.len()]
            }
        };
        let played = group.rows.iter().zip(outcomes).map(|(row, (outcome, first))| Played {
            group: group.name.clone(),
            line: row.line,
            call: row.text.clone(),
            listed: listed(row),
            outcome,
            first,
        });
        report.rows.extend(played);
    }
    Ok(report)
}

/// The process of one group: plays its rows and writes a line before and after each.
///
/// # Errors
///
/// What cannot be read, loaded or written.
pub fn play_group(order: &Order, index: usize, without: &[usize], acl: &Acl) -> Result<(), String> {
    let groups = read(&order.file)?;
    let group = groups.get(index).ok_or("the file has no such group")?;
    let devices = acl.device_count().map_err(|error| error.to_string())?;
    let mut player = Player::new(Raw::of(acl)?, devices, group, order.all);
    for (number, row) in group.rows.iter().enumerate() {
        if without.contains(&number) {
            continue;
        }
        tell(&Line { row: number, done: None })?;
        let done = player.play(row);
        tell(&Line { row: number, done: Some(done) })?;
    }
    Ok(())
}

fn tell(line: &Line) -> Result<(), String> {
    let text = serde_json::to_string(line).map_err(|error| error.to_string())?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{MARK}{text}").and_then(|()| out.flush()).map_err(|error| error.to_string())
}

fn read(file: &Path) -> Result<Vec<Group>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let groups = if plain::is_plain(&text) { plain::read(&text) } else { rows::read(&text) };
    if groups.iter().all(|group| group.rows.is_empty()) {
        return Err(format!("{}: no rows found", file.display()));
    }
    Ok(groups)
}

fn listed(row: &Row) -> String {
    match &row.expected {
        Ok(Expected::Code(code)) => code.to_string(),
        Ok(Expected::Signal(signal)) => format!("SIGNAL {signal}"),
        Err(what) => what.clone(),
    }
}

/// Playing one group.
struct Attempt<'a> {
    order: &'a Order,
    index: usize,
    group: &'a Group,
    visible: Option<&'a str>,
}

/// How the process of a group ended.
enum End {
    /// With all rows played.
    Whole,
    /// In this row.
    In(usize, Outcome),
    /// Outside of any row.
    Outside(String),
}

impl Attempt<'_> {
    /// The outcomes of all rows of the group.
    fn play(&self, remarks: &mut Vec<String>) -> Result<Vec<(Outcome, Vec<String>)>, String> {
        let mut outcomes = vec![None; self.group.rows.len()];
        let mut fatal: Vec<(usize, Outcome)> = Vec::new();
        for _ in 0..ATTEMPTS {
            let without: Vec<usize> = fatal.iter().map(|(row, _)| *row).collect();
            match self.once(&without, &mut outcomes)? {
                End::Whole => break,
                End::Outside(how) => {
                    remarks.push(format!("group {}: {how}", self.group.name));
                    break;
                }
                End::In(row, outcome) => fatal.push((row, outcome)),
            }
        }
        for (row, outcome) in fatal {
            let listed = &self.group.rows[row].expected;
            let is_listed = match (listed, &outcome) {
                (Ok(Expected::Signal(listed)), Outcome::Crashed(signal)) => listed == signal,
                _ => false,
            };
            outcomes[row] = Some((if is_listed { Outcome::Same } else { outcome }, Vec::new()));
        }
        let lost = || (Outcome::Unprepared("the process of its group ended before".to_owned()), Vec::new());
        Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(lost)).collect())
    }

    fn once(
        &self,
        without: &[usize],
        outcomes: &mut [Option<(Outcome, Vec<String>)>],
    ) -> Result<End, String> {
        let mut child = self.start(without)?;
        let lines = lines_of(&mut child);
        let errors = last_words(&mut child);
        let mut present = None;
        let hung = loop {
            match lines.recv_timeout(PATIENCE) {
                Ok(Line { row, done: None }) => present = Some(row),
                Ok(Line { row, done: Some(done) }) => {
                    present = None;
                    if let Some(place) = outcomes.get_mut(row) {
                        *place = Some(done);
                    }
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break false,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    // Only this process, which was started here; it may be gone already.
                    let _gone = child.kill();
                    break true;
                }
            }
        };
        let status = child.wait().map_err(|error| error.to_string())?;
        let words = errors.recv_timeout(PATIENCE).unwrap_or_default();
        Ok(match (present, hung) {
            (Some(row), true) => End::In(row, Outcome::Hung),
            (Some(row), false) => End::In(row, Outcome::Crashed(status.signal().unwrap_or(0))),
            (None, false) if status.success() => End::Whole,
            (None, _) => {
                End::Outside(format!("its process ended outside of its rows with {status}: {words}"))
            }
        })
    }

    fn start(&self, without: &[usize]) -> Result<Child, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let without: Vec<String> = without.iter().map(usize::to_string).collect();
        let mut command = Command::new(program);
        command.arg("doctor").arg("--conform").arg(&self.order.file);
        command.arg("--group").arg(self.index.to_string()).arg("--without").arg(without.join(","));
        if self.order.all {
            command.arg("--all");
        }
        if let Some(visible) = self.visible {
            command.env("ASCEND_RT_VISIBLE_DEVICES", visible);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map_err(|error| format!("cannot start a process for a group: {error}"))
    }
}

/// The lines about rows, as they come.
fn lines_of(child: &mut Child) -> mpsc::Receiver<Line> {
    let (sender, receiver) = mpsc::channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut reader = BufReader::new(output);
            let mut bytes = Vec::new();
            while reader.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
                let text = String::from_utf8_lossy(&bytes);
                let line = text.strip_prefix(MARK).and_then(|text| serde_json::from_str(text).ok());
                if line.is_some_and(|line| sender.send(line).is_err()) {
                    break;
                }
                bytes.clear();
            }
        });
    }
    receiver
}

/// The end of what the process writes to its standard error.
fn last_words(child: &mut Child) -> mpsc::Receiver<String> {
    const MOST: usize = 400;
    let (sender, receiver) = mpsc::channel();
    if let Some(mut errors) = child.stderr.take() {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _partly = errors.read_to_end(&mut bytes);
            let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(MOST)..]).trim().to_owned();
            // Nobody waits any more if the group was given up.
            let _unheard = sender.send(text);
        });
    }
    receiver
}
