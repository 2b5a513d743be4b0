//! `header`: writes or checks the C header of the package in `ffi/`.

use std::path::Path;

use crate::{Outcome, because, check_file, write_file};

const OUTPUT: &str = "ffi/include/ascend_alloc.h";

/// Writes the header.
pub fn write(root: &Path) -> Outcome<String> {
    write_file(&root.join(OUTPUT), &generate(root)?)
}

/// Fails if the checked-in header is not what [`write`] would write.
pub fn check(root: &Path) -> Outcome<String> {
    check_file(&root.join(OUTPUT), &generate(root)?, "header")
}

fn generate(root: &Path) -> Outcome<String> {
    let package = root.join("ffi");
    let settings = package.join("cbindgen.toml");
    let config = match settings.is_file() {
        true => cbindgen::Config::from_file(&settings).map_err(|error| because(settings.display(), error))?,
        false => cbindgen::Config {
            language: cbindgen::Language::C,
            include_guard: Some("ASCEND_ALLOC_H".to_owned()),
            cpp_compat: true,
            ..cbindgen::Config::default()
        },
    };
    let bindings = cbindgen::generate_with_config(&package, config)
        .map_err(|error| because(package.display(), error))?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    String::from_utf8(text).map_err(|error| because(OUTPUT, error))
}
