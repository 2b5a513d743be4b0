//! Runs bindgen over a C header and parses what it wrote.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Outcome, because};

/// The targets the bindings are generated for; all must give the same text.
pub const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// What bindgen is asked to read.
pub struct Source {
    /// The header.
    pub header: PathBuf,
    /// Folders for `#include`.
    pub include: Vec<PathBuf>,
    /// Names to keep (functions, types and constants); all of the header's own when empty.
    pub names: Vec<String>,
}

/// The declarations of a C header for one target, as Rust items.
///
/// Only freestanding headers are needed (`stddef.h`, `stdint.h`, `stdbool.h`), so the compiler's
/// own serve every target, without a cross C library.
pub fn parse(source: &Source, target: &str) -> Outcome<syn::File> {
    find_libclang()?;
    let mut builder = bindgen::Builder::default()
        .header(source.header.display().to_string())
        .clang_args([
            format!("--target={target}"),
            "-std=c99".to_owned(),
            "-ffreestanding".to_owned(),
            "-nostdinc".to_owned(),
            "-isystem".to_owned(),
            compiler_include()?,
        ])
        .clang_args(source.include.iter().map(|folder| format!("-I{}", folder.display())))
        .use_core()
        .generate_comments(false)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .merge_extern_blocks(true)
        .formatter(bindgen::Formatter::None);
    if source.names.is_empty() {
        builder = builder.allowlist_file(regex_of(&source.header));
    }
    for name in &source.names {
        builder = builder.allowlist_item(name);
    }
    let bindings = builder.generate().map_err(|error| because(source.header.display(), error))?;
    syn::parse_file(&bindings.to_string()).map_err(|error| because("what bindgen wrote", error))
}

/// A regular expression that matches exactly this path.
fn regex_of(path: &Path) -> String {
    let mut pattern = String::new();
    for character in path.display().to_string().chars() {
        if !character.is_alphanumeric() && !"/_".contains(character) {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

/// The folder of the freestanding headers of gcc.
fn compiler_include() -> Outcome<String> {
    let output = Command::new("gcc")
        .arg("-print-file-name=include")
        .output()
        .map_err(|error| because("gcc, whose stddef.h and stdint.h are needed", error))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Points `LIBCLANG_PATH` at the library that `tools/libclang.sh` fetches, unless it is set.
fn find_libclang() -> Outcome<()> {
    if std::env::var_os("LIBCLANG_PATH").is_some() {
        return Ok(());
    }
    let script = crate::root().join("tools/libclang.sh");
    let output = Command::new(&script).output().map_err(|error| because(script.display(), error))?;
    if !output.status.success() {
        return Err(because(script.display(), String::from_utf8_lossy(&output.stderr)));
    }
    // SAFETY: this program has one thread.
    unsafe { std::env::set_var("LIBCLANG_PATH", String::from_utf8_lossy(&output.stdout).trim()) };
    Ok(())
}
