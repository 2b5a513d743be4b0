//! Python's own pickle module reads what is written, and writes what is read.

use std::path::Path;
use std::process::Command;

use ascend_alloc::snapshot_file::{Limits, json, pickle};

use super::sample::{document, pickled};

#[test]
fn python_and_this_library_read_each_other() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("snapshot_python");
    std::fs::create_dir_all(&folder).unwrap();
    let tree = document().to_tree().unwrap();
    std::fs::write(folder.join("two.pickle"), pickled(&tree, pickle::Protocol::Two)).unwrap();
    std::fs::write(folder.join("four.pickle"), pickled(&tree, pickle::Protocol::Four)).unwrap();
    let mut text = Vec::new();
    json::write(&tree, &mut text).unwrap();
    std::fs::write(folder.join("snapshot.json"), text).unwrap();

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshot_files/check.py");
    let output = Command::new("python3").arg(script).arg(&folder).output().expect("python3 is needed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    // Protocols 0 to 5, by Python's writer in C, its writer in Python, and without a memo.
    let mut read = 0;
    for protocol in 0..=5 {
        for writer in ["c", "python", "fast"] {
            let file = folder.join(format!("{writer}-{protocol}.pickle"));
            let bytes = std::fs::read(&file).unwrap();
            let again = pickle::read(&bytes, &Limits::default())
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            assert_eq!(again, tree, "{}", file.display());
            read += 1;
        }
    }
    assert_eq!(read, 18);
}
