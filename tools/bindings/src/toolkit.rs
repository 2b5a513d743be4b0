//! `acl --toolkit`: whether the own-written header agrees with the headers of an installed toolkit.

use std::collections::BTreeMap;
use std::path::Path;

use crate::declarations::Declarations;
use crate::parse::{Source, TARGETS, parse};
use crate::sys::HEADER;
use crate::{Outcome, because, root, write_file};

/// The headers that declare the runtime in one version or another.
const HEADERS: [&str; 4] = ["acl/acl_base.h", "acl/acl_rt.h", "acl/acl_mdl.h", "acl/acl.h"];

/// Compares for every target. Names the toolkit lacks are listed and are no failure: older
/// toolkits lack newer calls. Whatever both declare must agree.
pub fn compare(root: &Path, include: &Path) -> Outcome<String> {
    let include = include.canonicalize().map_err(|error| because(include.display(), error))?;
    let mut report = Vec::new();
    for target in TARGETS {
        let ours = Source { header: root.join(HEADER), include: Vec::new(), names: Vec::new() };
        let ours = Declarations::of(&parse(&ours, target)?);
        let theirs = toolkit(&include, ours.names())?;
        let parsed = parse(&theirs, target);
        let _removed = std::fs::remove_file(&theirs.header);
        let theirs = Declarations::of(&parsed?);
        let comparison = Comparison::of(&ours, &theirs);
        if comparison.agreeing == 0 {
            return Err(because(
                include.display(),
                "declares none of the functions used; is it an include folder?",
            ));
        }
        report.push(format!("{target}: {comparison}"));
        if !comparison.differences.is_empty() {
            return Err(report.join("\n"));
        }
    }
    Ok(report.join("\n"))
}

/// A header that includes those that this toolkit has.
fn toolkit(include: &Path, names: Vec<String>) -> Outcome<Source> {
    let present: Vec<String> = HEADERS
        .iter()
        .filter(|header| include.join(header).is_file())
        .map(|header| format!("#include <{header}>\n"))
        .collect();
    if present.is_empty() {
        return Err(because(include.display(), format!("has none of {}", HEADERS.join(", "))));
    }
    let folder = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    let header = folder.join(format!("toolkit-{}.h", std::process::id()));
    write_file(&header, &present.concat())?;
    Ok(Source { header, include: vec![include.to_path_buf(), include.join("acl")], names })
}

/// What two sets of declarations have in common and where they differ.
#[derive(Default)]
struct Comparison {
    /// Functions declared alike.
    agreeing: usize,
    /// Functions only we declare.
    absent: Vec<String>,
    /// How many types and constants only we declare.
    absent_values: usize,
    /// Declared on both sides, and not alike.
    differences: Vec<String>,
}

impl Comparison {
    fn of(ours: &Declarations, theirs: &Declarations) -> Self {
        let mut found = Self::default();
        found.absent = found.pair("function", &ours.functions, &theirs.functions);
        found.agreeing = ours.functions.len() - found.absent.len() - found.differences.len();
        let types = found.pair("type", &ours.types, &theirs.types);
        let constants = found.pair("constant", &ours.constants, &theirs.constants);
        found.absent_values = types.len() + constants.len();
        for (name, layout) in &ours.layouts {
            // A type that one side lacks is in the list of types already.
            if let Some(other) = theirs.layouts.get(name).filter(|other| *other != layout) {
                let differing = layout.iter().zip(other).filter(|(a, b)| a != b);
                let differing: Vec<_> = differing.map(|(a, b)| format!("{a}, toolkit: {b}")).collect();
                found.differences.push(format!("layout of {name}: {}", differing.join("; ")));
            }
        }
        found
    }

    /// Notes the differences of one kind; answers the names that only we declare.
    fn pair(
        &mut self,
        kind: &str,
        ours: &BTreeMap<String, String>,
        theirs: &BTreeMap<String, String>,
    ) -> Vec<String> {
        let mut absent = Vec::new();
        for (name, text) in ours {
            match theirs.get(name) {
                Some(other) if other == text => {}
                Some(other) => self.differences.push(format!("{kind} {name}: {text}, toolkit: {other}")),
                None => absent.push(name.clone()),
            }
        }
        absent
    }
}

impl std::fmt::Display for Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} functions agree", self.agreeing)?;
        if !self.absent.is_empty() {
            write!(f, "; not in this toolkit: {}", self.absent.join(", "))?;
        }
        if self.absent_values > 0 {
            write!(f, "; {} types and values are not either", self.absent_values)?;
        }
        for difference in &self.differences {
            write!(f, "\n  differs: {difference}")?;
        }
        Ok(())
    }
}
