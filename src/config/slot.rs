//! The kinds of value a key can have: how each is read, checked and shown.
//!
//! What [`Slot::show`] writes for a value in range, [`Slot::read`] reads back as the same value;
//! for a value out of range it writes something that `read` refuses. Checking a typed setting is
//! therefore the same as reading its text.

use super::grammar::Value;
use super::settings::{Config, MIB, ROUNDUP_INTERVALS, SetAccess};
use crate::driver::PageKind;
use crate::words::counted;

/// One field of [`Config`].
pub(super) struct Field<T> {
    pub get: fn(&Config) -> &T,
    pub get_mut: fn(&mut Config) -> &mut T,
}

/// Names a field of [`Config`].
macro_rules! field {
    ($($name:ident).+) => {
        $crate::config::slot::Field { get: |config| &config.$($name).+, get_mut: |config| &mut config.$($name).+ }
    };
}
pub(super) use field;

/// The smallest and largest number accepted, both included.
pub(super) type Range = (u64, u64);

/// A field and the kind of value it takes. Sizes are stored in bytes and written in `unit`s.
pub(super) enum Slot {
    Flag(Field<bool>),
    Size {
        unit: u64,
        range: Range,
        field: Field<u64>,
    },
    OptionalSize {
        unit: u64,
        range: Range,
        none: &'static str,
        field: Field<Option<u64>>,
    },
    Alignment {
        unit: u64,
        most: u64,
        field: Field<u64>,
    },
    Level {
        most: u8,
        field: Field<u8>,
    },
    Count {
        least: u32,
        most: u32,
        field: Field<u32>,
    },
    /// `zero`: whether 0 is accepted. 1 always is.
    Fraction {
        zero: bool,
        field: Field<f64>,
    },
    /// Greater than 0 and less than 1.
    OptionalFraction {
        none: &'static str,
        field: Field<Option<f64>>,
    },
    Roundup(Field<[u64; ROUNDUP_INTERVALS]>),
    Pages(Field<PageKind>),
    Access(Field<SetAccess>),
    /// A file, or none.
    OptionalPath(Field<Option<String>>),
}

/// The word for no file.
const NO_PATH: &str = "off";

/// Why a value was refused; what is accepted the slot itself says.
pub(super) type Refusal = String;

impl Slot {
    /// The kind of value, in words.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Flag(_) => "bool",
            Self::Size { unit: 1, .. } | Self::Level { .. } | Self::Count { .. } => "integer",
            Self::Size { unit: MIB, .. } | Self::OptionalSize { unit: MIB, .. } => "size in MiB",
            Self::Size { .. } | Self::OptionalSize { .. } => "size in GiB",
            Self::Alignment { .. } => "size in KiB",
            Self::Fraction { .. } | Self::OptionalFraction { .. } => "fraction",
            Self::Roundup(_) => "integer or list",
            Self::Pages(_) | Self::Access(_) => "word",
            Self::OptionalPath(_) => "path",
        }
    }

    /// The values accepted, in words.
    pub fn accepted(&self) -> String {
        match self {
            Self::Flag(_) => "True or False".into(),
            Self::Size { range: (least, most), .. } | Self::OptionalSize { range: (least, most), .. } => {
                format!("a whole number from {least} to {most}")
            }
            Self::Alignment { unit, most, .. } => {
                format!("0 or a power of two up to {}", most / unit)
            }
            Self::Level { most, .. } => format!("a whole number from 0 to {most}"),
            Self::Count { least, most, .. } => format!("a whole number from {least} to {most}"),
            Self::Fraction { zero: true, .. } => "a number from 0 to 1".into(),
            Self::Fraction { zero: false, .. } => "a number greater than 0 and at most 1".into(),
            Self::OptionalFraction { .. } => "a number greater than 0 and less than 1".into(),
            Self::Roundup(_) => "0 or a power of two, or a list like `[256:1,512:2,>:4]`: sizes in MiB, \
                                 rising powers of two from 1 to 32768, a last `>` for all above, \
                                 and for each 0 or a power of two"
                .into(),
            Self::Pages(_) => "1g".into(),
            Self::Access(_) => "auto, on or off".into(),
            Self::OptionalPath(_) => {
                "a path without `,` `:` `[` `]`, in which %p stands for the process, or off".into()
            }
        }
    }

    /// Stores `value` in its field of `config`, which stays as it is when the value is refused.
    pub fn read(&self, value: &Value<'_>, config: &mut Config) -> Result<(), Refusal> {
        if let Self::Roundup(field) = self {
            *(field.get_mut)(config) = roundup(value)?;
            return Ok(());
        }
        let Value::Word(word) = *value else {
            return Err("a list is not a value of this key".into());
        };
        match self {
            Self::Flag(field) => *(field.get_mut)(config) = flag(word)?,
            Self::Size { unit, range, field } => *(field.get_mut)(config) = size(word, *unit, *range)?,
            Self::OptionalSize { unit, range, field, .. } => {
                *(field.get_mut)(config) = Some(size(word, *unit, *range)?);
            }
            Self::Alignment { unit, most, field } => {
                let bytes = size(word, *unit, (0, most / unit))?;
                if bytes != 0 && !bytes.is_power_of_two() {
                    return Err("no alignment, because it is not a power of two".into());
                }
                *(field.get_mut)(config) = bytes;
            }
            Self::Level { most, field } => {
                let level = size(word, 1, (0, u64::from(*most)))?;
                *(field.get_mut)(config) = level.try_into().unwrap_or(*most);
            }
            Self::Count { least, most, field } => {
                let count = size(word, 1, (u64::from(*least), u64::from(*most)))?;
                *(field.get_mut)(config) = count.try_into().unwrap_or(*most);
            }
            Self::Fraction { zero, field } => {
                let fraction = number(word)?;
                if !(0.0..=1.0).contains(&fraction) || (fraction == 0.0 && !zero) {
                    return Err("out of range".into());
                }
                // -0 would be shown as another text than 0.
                *(field.get_mut)(config) = fraction.abs();
            }
            Self::OptionalFraction { field, .. } => {
                let fraction = number(word)?;
                if fraction <= 0.0 || fraction >= 1.0 {
                    return Err("out of range".into());
                }
                *(field.get_mut)(config) = Some(fraction);
            }
            Self::Pages(field) => match word {
                "1g" => *(field.get_mut)(config) = PageKind::Huge1G,
                _ => return Err("no such page size".into()),
            },
            Self::Access(field) => {
                *(field.get_mut)(config) = match word {
                    "auto" => SetAccess::Auto,
                    "on" => SetAccess::On,
                    "off" => SetAccess::Off,
                    _ => return Err("no such choice".into()),
                }
            }
            Self::OptionalPath(field) => {
                if word.contains('\0') {
                    return Err("no path, because it has a zero byte".into());
                }
                // What stands in the place of bytes that are not Unicode: the path would be another one.
                if word.contains(char::REPLACEMENT_CHARACTER) {
                    return Err("no path, because not all of it is Unicode".into());
                }
                *(field.get_mut)(config) = (word != NO_PATH).then(|| word.to_owned());
            }
            Self::Roundup(_) => {}
        }
        Ok(())
    }

    /// The field's value as text.
    pub fn show(&self, config: &Config) -> String {
        match self {
            Self::Flag(field) => if *(field.get)(config) { "True" } else { "False" }.into(),
            Self::Size { unit, field, .. } | Self::Alignment { unit, field, .. } => {
                in_units(*(field.get)(config), *unit)
            }
            Self::OptionalSize { unit, none, field, .. } => match *(field.get)(config) {
                Some(bytes) => in_units(bytes, *unit),
                None => (*none).into(),
            },
            Self::Level { field, .. } => (field.get)(config).to_string(),
            Self::Count { field, .. } => (field.get)(config).to_string(),
            Self::Fraction { field, .. } => (field.get)(config).to_string(),
            Self::OptionalFraction { none, field } => match (field.get)(config) {
                Some(fraction) => fraction.to_string(),
                None => (*none).into(),
            },
            Self::Roundup(field) => show_roundup((field.get)(config)),
            Self::Pages(field) => match (field.get)(config) {
                PageKind::Huge => "huge",
                PageKind::Huge1G => "1g",
            }
            .into(),
            Self::Access(field) => match (field.get)(config) {
                SetAccess::Auto => "auto",
                SetAccess::On => "on",
                SetAccess::Off => "off",
            }
            .into(),
            Self::OptionalPath(field) => match (field.get)(config).as_deref() {
                None => NO_PATH.to_owned(),
                // It would be read as no path, or as a shorter one.
                Some(path) if path == NO_PATH || path != path.trim() => format!("[{path}]"),
                Some(path) => path.to_owned(),
            },
        }
    }
}

fn flag(word: &str) -> Result<bool, Refusal> {
    match word {
        "True" => Ok(true),
        "False" => Ok(false),
        _ => Err("not a truth value".into()),
    }
}

fn integer(word: &str) -> Result<u64, Refusal> {
    if word.is_empty() || !word.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("not a whole number".into());
    }
    word.parse().map_err(|_| "too large".into())
}

fn size(word: &str, unit: u64, (least, most): Range) -> Result<u64, Refusal> {
    let number = integer(word)?;
    if number < least {
        return Err("too small".into());
    }
    if number > most {
        return Err("too large".into());
    }
    number.checked_mul(unit).ok_or_else(|| "too large".into())
}

fn number(word: &str) -> Result<f64, Refusal> {
    // Only digits and signs: Rust's own parser also takes "inf" and "nan".
    let plain = word.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    match word.parse::<f64>() {
        Ok(number) if plain && number.is_finite() => Ok(number),
        _ => Err("not a number".into()),
    }
}

/// `bytes` in `unit`s; where that is not a whole number, a text no reader accepts.
fn in_units(bytes: u64, unit: u64) -> String {
    if bytes.is_multiple_of(unit) {
        (bytes / unit).to_string()
    } else {
        counted(bytes, "byte[s]").to_string()
    }
}

fn divisions(word: &str) -> Result<u64, Refusal> {
    match integer(word)? {
        0 => Ok(0),
        number if number.is_power_of_two() => Ok(number),
        number => Err(format!("{number} is not a power of two")),
    }
}

/// Entry `i` of the result counts for sizes from `1 MiB << i`. The first entry of a list counts
/// for all sizes below it too; sizes between two entries that no entry names are left alone.
fn roundup(value: &Value<'_>) -> Result<[u64; ROUNDUP_INTERVALS], Refusal> {
    let entries = match value {
        Value::Word(word) => return Ok([divisions(word)?; ROUNDUP_INTERVALS]),
        Value::List(entries) => entries,
    };
    let mut table = [0; ROUNDUP_INTERVALS];
    let mut next = 0;
    for (position, (interval, number)) in entries.iter().enumerate() {
        let number = divisions(number)?;
        if *interval == ">" {
            if position == 0 || position + 1 != entries.len() {
                return Err("> must come last, after at least one size".into());
            }
            table[next..].fill(number);
            continue;
        }
        let mebibytes = integer(interval)?;
        let index = match mebibytes.checked_ilog2() {
            Some(index) if mebibytes.is_power_of_two() => index as usize,
            _ => return Err(format!("{mebibytes} is not a power of two")),
        };
        if index >= ROUNDUP_INTERVALS {
            return Err(format!("{mebibytes} is beyond the largest interval"));
        }
        if index < next {
            return Err(format!("{mebibytes} does not come in rising order"));
        }
        let from = if position == 0 { 0 } else { index };
        table[from..=index].fill(number);
        next = index + 1;
    }
    Ok(table)
}

fn show_roundup(table: &[u64; ROUNDUP_INTERVALS]) -> String {
    let below = table.iter().take_while(|number| **number == table[0]).count();
    if below == ROUNDUP_INTERVALS {
        return table[0].to_string();
    }
    let last = table[ROUNDUP_INTERVALS - 1];
    let above = table.iter().rev().take_while(|number| **number == last).count();
    let listed = below - 1..ROUNDUP_INTERVALS - above;
    let mut entries: Vec<_> = listed.map(|index| format!("{}:{}", 1u64 << index, table[index])).collect();
    entries.push(format!(">:{last}"));
    format!("[{}]", entries.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(&'static str, &'static str)]) -> Result<[u64; ROUNDUP_INTERVALS], Refusal> {
        roundup(&Value::List(entries.to_vec()))
    }

    #[test]
    fn the_first_size_counts_below_and_the_last_above() {
        let table = list(&[("256", "1"), ("512", "2"), ("1024", "4"), (">", "8")]).unwrap();
        assert_eq!(table, [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8]);
        assert_eq!(show_roundup(&table), "[256:1,512:2,1024:4,>:8]");
    }

    #[test]
    fn sizes_not_named_are_left_alone() {
        let table = list(&[("2", "4"), ("16", "8")]).unwrap();
        assert_eq!(table, [4, 4, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(show_roundup(&table), "[2:4,4:0,8:0,16:8,>:0]");
    }

    #[test]
    fn lists_with_two_readings_are_refused() {
        for entries in [
            &[(">", "8")][..],
            &[("1", "2"), (">", "8"), ("4", "2")],
            &[("1", "2"), (">", "8"), (">", "4")],
            &[("4", "2"), ("4", "2")],
            &[("4", "2"), ("2", "2")],
            &[("3", "2")],
            &[("0", "2")],
            &[("65536", "2")],
            &[("4", "3")],
            &[("4", "-1")],
            &[("18446744073709551616", "2")],
        ] {
            assert!(list(entries).is_err(), "{entries:?}");
        }
    }

    #[test]
    fn the_last_interval_can_be_named() {
        let table = list(&[("16384", "0"), ("32768", "2")]).unwrap();
        assert_eq!(table[ROUNDUP_INTERVALS - 1], 2);
        assert_eq!(show_roundup(&table), "[16384:0,>:2]");
        assert_eq!(list(&[("32768", "2"), (">", "4")]).unwrap(), [2; ROUNDUP_INTERVALS]);
    }

    #[test]
    fn numbers_are_plain() {
        assert_eq!(number("1e-3"), Ok(0.001));
        for word in ["nan", "inf", "", "1_0", "0x1", "1e999", "."] {
            assert!(number(word).is_err(), "{word:?}");
        }
        for word in ["", "+1", "-1", "1.0", "18446744073709551616"] {
            assert!(integer(word).is_err(), "{word:?}");
        }
    }
}
