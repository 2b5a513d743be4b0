//! Files that the command writes: there is the whole file under its name, or what was there before.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Writes a file as a whole: under another name in the same folder, which becomes `path` once everything is
/// written. When that fails, `path` is as it was. What is there and is no plain file, such as a pipe or
/// `/dev/stdout`, is written to directly.
///
/// # Errors
/// What `content` answers, or the file cannot be written.
pub fn write(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let path = match fs::metadata(path) {
        Ok(there) if !there.is_file() => {
            let mut file = BufWriter::new(OpenOptions::new().write(true).open(path)?);
            content(&mut file)?;
            return file.flush();
        }
        // A link goes on to lead to the file.
        Ok(_) => fs::canonicalize(path)?,
        Err(_) => path.to_owned(),
    };
    let new = beside(&path)?;
    let written = File::create_new(&new).and_then(|file| {
        let mut file = BufWriter::new(file);
        content(&mut file)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?;
        fs::rename(&new, &path)
    });
    if written.is_err() {
        // If it cannot be removed either, the first failure is the one to tell of.
        let _removed = fs::remove_file(&new);
    }
    written
}

/// The same, compressed as the ending of the name says: `.zst` with that level, `.gz`, or not at all.
///
/// # Errors
/// As for [`write()`].
pub fn write_compressed(
    path: &Path,
    level: i32,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    write(path, |file| match path.extension().and_then(|ending| ending.to_str()) {
        Some("zst") => {
            let mut encoder = zstd::stream::write::Encoder::new(file, level)?;
            content(&mut encoder)?;
            encoder.finish().map(drop)
        }
        Some("gz") => {
            let mut encoder = flate2::write::GzEncoder::new(file, flate2::Compression::default());
            content(&mut encoder)?;
            encoder.finish().map(drop)
        }
        _ => content(file),
    })
}

/// A name in the same folder that no other process uses.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let name =
        path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it is no file"))?;
    let mut new = std::ffi::OsString::from(".");
    new.push(name);
    new.push(format!(".{}", std::process::id()));
    Ok(path.with_file_name(new))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of its own, which goes with the value.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("ascend-alloc-output-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn files(&self) -> Vec<String> {
            let names = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _removed = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_fails_leaves_what_was_there() {
        let folder = Folder::new("fails");
        let path = folder.0.join("trace.zst");
        let refuse = |out: &mut dyn Write| {
            out.write_all(b"half of it")?;
            Err(io::Error::other("too large"))
        };
        assert_eq!(write_compressed(&path, 3, refuse).unwrap_err().to_string(), "too large");
        assert_eq!(folder.files(), [""; 0]);
        write(&path, |out| out.write_all(b"before")).unwrap();
        assert!(write(&path, refuse).is_err());
        assert_eq!(
            (fs::read(&path).unwrap(), folder.files()),
            (b"before".to_vec(), vec!["trace.zst".into()])
        );
        assert!(write(&folder.0.join("no folder").join("file"), |_| Ok(())).is_err());
        assert_eq!(folder.files(), ["trace.zst"]);
    }

    #[test]
    fn links_and_what_is_no_file_stay_what_they_are() {
        let folder = Folder::new("links");
        let (file, link) = (folder.0.join("file"), folder.0.join("link"));
        fs::write(&file, "before").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, |out| out.write_all(b"after")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"after");
        write(Path::new("/dev/null"), |out| out.write_all(b"nothing")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        assert!(write(&folder.0, |_| Ok(())).is_err(), "a folder");
    }
}
