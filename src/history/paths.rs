//! Names of files: what stands for the process, and files that somebody else of this process writes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::sync::plain::Mutex;

static TAKEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A path that nobody else of this process uses.
#[derive(Debug)]
pub(crate) struct OwnPath {
    path: PathBuf,
    /// Nobody gets it later either.
    for_ever: bool,
}

impl OwnPath {
    /// A path for as long as this lives: with the process's number for each `%p`; with `.2`, `.3` and so on behind
    /// it where it is taken. What comes after the name's first dot stays at the end: `a.trace.zst` becomes
    /// `a.2.trace.zst`.
    pub(crate) fn new(pattern: &str) -> Self {
        let first = PathBuf::from(pattern.replace("%p", &std::process::id().to_string()));
        let mut taken = TAKEN.lock();
        let mut path = first.clone();
        let mut number = 1u32;
        while taken.contains(&path) {
            number += 1;
            path = numbered(&first, number);
        }
        taken.push(path.clone());
        Self { path, for_ever: false }
    }

    /// The same, and nobody of this process gets the path later: what one allocator wrote is not written over by
    /// the next.
    pub(crate) fn for_ever(pattern: &str) -> Self {
        let mut own = Self::new(pattern);
        own.for_ever = true;
        own
    }

    /// A place to put the file aside, with the first number from `from` on that nobody of this process uses; the number.
    pub(crate) fn aside(&self, from: u32) -> (Self, u32) {
        let mut taken = TAKEN.lock();
        let mut number = from;
        let mut path = numbered(&self.path, number);
        while taken.contains(&path) {
            number += 1;
            path = numbered(&self.path, number);
        }
        taken.push(path.clone());
        (Self { path, for_ever: false }, number)
    }

    /// The files with a number before the first dot of this path's name that earlier users of it have left, the oldest
    /// first: those that `is_ours` and that nobody of this process has. And the highest number that any file has.
    pub(crate) fn left_aside(&self, is_ours: impl Fn(&Path) -> bool) -> (Vec<Self>, u32) {
        let mut found: Vec<(u32, PathBuf)> = self.numbered_files();
        found.sort_unstable();
        let highest = found.last().map_or(0, |&(number, _)| number);
        let mut left = Vec::new();
        for (_, path) in found.into_iter().filter(|(_, path)| is_ours(path)) {
            let mut taken = TAKEN.lock();
            if !taken.contains(&path) {
                taken.push(path.clone());
                left.push(Self { path, for_ever: self.for_ever });
            }
        }
        (left, highest)
    }

    /// The files whose names are this path's with a number. Numbers that leave no room for as many more are none.
    fn numbered_files(&self) -> Vec<(u32, PathBuf)> {
        let folder = match self.path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        // Without an answer nothing is known of earlier users.
        let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
        let number_of = |name: &Path| {
            let words = name.to_str()?.split('.').filter_map(|word| word.parse::<u32>().ok());
            let mut numbers = words.filter(|number| (1..u32::MAX / 2).contains(number));
            numbers.find(|&number| numbered(&self.path, number).file_name() == name.file_name())
        };
        let files = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        let named = files.filter_map(|entry| number_of(Path::new(&entry.file_name())));
        named.map(|number| (number, numbered(&self.path, number))).collect()
    }

    /// Keeps the path as long as that of the file it was put aside from.
    pub(crate) fn keep_as(&mut self, of: &Self) {
        self.for_ever = of.for_ever;
    }

    /// Removes what is there; somebody may have done so before. The path is free for others then.
    pub(crate) fn remove(mut self) -> std::io::Result<()> {
        self.for_ever = false;
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            answer => answer,
        }
    }

    /// The path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for OwnPath {
    fn drop(&mut self) {
        if !self.for_ever {
            TAKEN.lock().retain(|path| *path != self.path);
        }
    }
}

/// The path with a number before the first dot of its name.
pub(crate) fn numbered(path: &Path, number: u32) -> PathBuf {
    named(path, &number.to_string())
}

/// The path with a word before the first dot of its name.
pub(crate) fn named(path: &Path, word: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // A name that begins with a dot has its ending behind another one.
    let dot = name.char_indices().skip(1).find(|&(_, letter)| letter == '.').map_or(name.len(), |(at, _)| at);
    path.with_file_name(format!("{}.{word}{}", &name[..dot], &name[dot..]))
}

/// The path with something behind its name.
pub(crate) fn behind(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(ending);
    PathBuf::from(name)
}

/// Writes a file in one step, so that whoever reads it finds the old one or the new one, also where others write it at the
/// same time.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Relaxed);
    let new = behind(path, &format!(".{}.{number}.new", std::process::id()));
    std::fs::write(&new, bytes).and_then(|()| std::fs::rename(&new, path)).inspect_err(|_| {
        // What is left of it is of no use; where there is nothing, nothing is to be done.
        let _ = std::fs::remove_file(&new);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_user_gets_another_name() {
        let one = OwnPath::new("/x/y-%p.trace.zst");
        let two = OwnPath::new("/x/y-%p.trace.zst");
        let process = std::process::id();
        assert_eq!(one.path(), Path::new(&format!("/x/y-{process}.trace.zst")));
        assert_eq!(two.path(), Path::new(&format!("/x/y-{process}.2.trace.zst")));
        drop(one);
        assert_eq!(OwnPath::new("/x/y-%p.trace.zst").path(), Path::new(&format!("/x/y-{process}.trace.zst")));
        drop((OwnPath::for_ever("/x/z"), two));
        assert_eq!(OwnPath::new("/x/z").path(), Path::new("/x/z.2"));
        assert_eq!(numbered(Path::new(".hidden"), 3), Path::new(".hidden.3"));
        assert_eq!(behind(Path::new("a/b"), ".txt"), Path::new("a/b.txt"));
    }
}
