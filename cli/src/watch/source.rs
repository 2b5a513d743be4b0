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
    let mut all: Vec<PathBuf> = paths.iter().flat_map(|path| matching(path)).collect();
    all.dedup();
    all
}

fn matching(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Some((before, after)) = name.split_once(PROCESS) else { return vec![path.to_owned()] };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let numbered = entries.filter(|entry| {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(before)?.strip_suffix(after));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    });
    let mut found: Vec<PathBuf> = numbered.map(|entry| entry.path()).collect();
    found.sort();
    found
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
        for name in ["stats-12.json", "stats-7.json", "stats-.json", "stats-x.json", "stats-12.json.9.new"] {
            fs::write(folder.join(name), "").unwrap();
        }
        let found = expand(&[folder.join("stats-%p.json"), folder.join("other.json")]);
        let expected = ["stats-12.json", "stats-7.json", "other.json"].map(|name| folder.join(name));
        assert_eq!(found, expected);
        fs::remove_dir_all(&folder).unwrap();
        assert!(expand(&[folder.join("stats-%p.json")]).is_empty());
    }
}
