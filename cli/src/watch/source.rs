//! Where statistics of other processes come from: files and sockets, by name or by pattern.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ascend_alloc::Config;

use super::document::Document;

/// The longest document that is read, bytes.
const MOST: u64 = 64 << 20;
/// How long a process may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// In a path: the number of a process.
const PROCESS: &str = "%p";

/// A document and how old it is.
#[derive(Clone, Debug)]
pub struct Reading {
    /// What the process said.
    pub document: Document,
    /// How long ago it was written; nothing for a socket, where it is made when asked for.
    pub age: Duration,
}

impl Reading {
    /// How old a file may be before its process is taken for silent.
    fn patience(&self) -> Duration {
        Duration::from_millis(self.document.period_ms.saturating_mul(3).max(1_000))
    }

    /// Whether the process told it when it was to.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.age <= self.patience()
    }

    /// Whether it is the last that a process has said that is there no more.
    #[must_use]
    pub fn is_left_behind(&self) -> bool {
        !self.is_fresh() && has_ended(self.document.process)
    }
}

/// Whether there is no such process, as far as can be seen from here.
#[must_use]
pub fn has_ended(process: u32) -> bool {
    !Path::new(&format!("/proc/{process}")).exists()
}

/// The paths to look at: those given, or the one that the environment's configuration has.
///
/// # Errors
/// None is given and none is configured, or the configuration is refused.
pub fn named_or_configured(given: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    let config = Config::from_env().map_err(|error| error.to_string())?;
    let path = config.observe.stats_export.clone();
    let path = path
        .ok_or("no file or socket is named, and the configuration of the environment has no stats_export")?;
    Ok(vec![PathBuf::from(path)])
}

/// All files and sockets that the paths stand for: with `%p` in the name, those of all processes.
#[must_use]
pub fn expand(paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = Vec::new();
    for path in paths.iter().flat_map(|path| matching(path)) {
        if !all.contains(&path) {
            all.push(path);
        }
    }
    all
}

fn matching(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if !name.contains(PROCESS) {
        return vec![path.to_owned()];
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let of_processes = entries.filter_map(|entry| {
        let which = process_in(&name, entry.file_name().to_str()?)?;
        Some((which, entry.path()))
    });
    let mut found: Vec<_> = of_processes.collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

/// The process that a path has in the place of a pattern's `%p`; nothing for a path that is named as it is.
#[must_use]
pub fn process_of(path: &Path, patterns: &[PathBuf]) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let patterns = patterns.iter().filter(|&pattern| pattern != path);
    let mut names = patterns.filter_map(|pattern| pattern.file_name()?.to_str());
    names.find_map(|pattern| process_in(pattern, name)).map(|(process, _)| process)
}

/// The process that a name has in the place of `%p`, and which of its allocators it is of: the second one puts its number
/// behind the first dot, `stats-7.2.json`.
fn process_in(pattern: &str, name: &str) -> Option<(u32, u32)> {
    let (before, after) = pattern.split_once(PROCESS)?;
    let digits = |name: &str| -> Option<u32> {
        let number = name.strip_prefix(before)?.strip_suffix(after)?;
        number.bytes().all(|b| b.is_ascii_digit()).then(|| number.parse().ok())?
    };
    let second = || without_number(name).and_then(|(name, number)| Some((digits(&name)?, number)));
    digits(name).map(|process| (process, 1)).or_else(second)
}

/// A name without the number, from 2 on, behind its first dot; and that.
fn without_number(name: &str) -> Option<(String, u32)> {
    // A name that begins with a dot has its ending behind another one.
    let (dot, _) = name.char_indices().skip(1).find(|&(_, letter)| letter == '.')?;
    let (head, rest) = (&name[..dot], &name[dot + 1..]);
    let (number, tail) =
        rest.split_once('.').map_or((rest, String::new()), |(number, tail)| (number, format!(".{tail}")));
    let number = number.parse().ok().filter(|which: &u32| *which >= 2 && which.to_string() == number)?;
    Some((format!("{head}{tail}"), number))
}

/// Reads what a process says now, or said last.
///
/// # Errors
/// Nothing can be read there, or what is there is no document; the path is named.
pub fn read(path: &Path) -> Result<Reading, String> {
    let told = |reason: String| format!("{}: {reason}", path.display());
    let (text, age) = text_of(path).map_err(|error| told(format!("cannot be read: {error}")))?;
    let document = Document::parse(&text).map_err(told)?;
    Ok(Reading { document, age })
}

fn text_of(path: &Path) -> io::Result<(String, Duration)> {
    let about = fs::metadata(path)?;
    let mut text = String::new();
    if about.file_type().is_socket() {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.take(MOST).read_to_string(&mut text)?;
        return Ok((text, Duration::ZERO));
    }
    let file = File::open(path)?;
    let written = file.metadata()?.modified()?;
    file.take(MOST).read_to_string(&mut text)?;
    Ok((text, written.elapsed().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_finds_processes_only() {
        let folder = std::env::temp_dir().join(format!("ascend-alloc-pattern-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let others =
            ["stats-.json", "stats-x.json", "stats-12.json.9.new", "stats-12.1.json", "stats-12.x.json"];
        let of_processes = ["stats-7.json", "stats-7.31.json", "stats-12.json", "stats-12.2.json"];
        for name in others.iter().chain(&of_processes) {
            fs::write(folder.join(name), "").unwrap();
        }
        let paths = [folder.join("stats-%p.json"), folder.join("other.json")];
        let mut expected = of_processes.map(|name| folder.join(name)).to_vec();
        let processes: Vec<_> = expected.iter().map(|path| process_of(path, &paths)).collect();
        assert_eq!(processes, [Some(7), Some(7), Some(12), Some(12)]);
        assert_eq!(process_of(&paths[1], &paths), None);
        expected.push(paths[1].clone());
        assert_eq!(expand(&paths), expected);
        fs::write(folder.join("stats-12"), "").unwrap();
        fs::write(folder.join("stats-12.3"), "").unwrap();
        fs::write(folder.join(".s-7.json"), "").unwrap();
        fs::write(folder.join(".s-7.2.json"), "").unwrap();
        let hidden = [".s-7.json", ".s-7.2.json"].map(|name| folder.join(name));
        let [pattern, named] = [".s-%p.json", ".s-7.json"].map(|name| folder.join(name));
        assert_eq!(expand(&[pattern, named]), hidden, "what is named twice is looked at once");
        let without_ending = ["stats-12", "stats-12.3"].map(|name| folder.join(name));
        assert_eq!(expand(&[folder.join("stats-%p")]), without_ending);
        fs::remove_dir_all(&folder).unwrap();
        assert!(expand(&[folder.join("stats-%p.json")]).is_empty());
    }
}
