//! How an allocator is configured: typed in Rust, or text in the grammar of torch_npu.
//!
//! One table of keys stands behind everything: what a text may say, how a typed setting is
//! checked, what [`Config::effective`] shows, and the page below.
//!
#![doc = include_str!("../docs/configuration.md")]

use core::fmt;

mod grammar;
mod keys;
mod origin;
mod rules;
mod settings;
mod slot;

pub use keys::{CACHING_VARIABLE, Key, OWN_VARIABLE, RefusedKey, VARIABLES};
pub use origin::{ARGUMENT, DEFAULT, TYPED};
pub use settings::{Config, Observe, Provenance, ROUNDUP_INTERVALS, SetAccess};

use grammar::Pair;
use keys::{Family, KEYS, REFUSED};
use settings::Origin;

/// A configuration that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The key, as written; empty where the text has none.
    pub key: String,
    /// The value, as written.
    pub value: String,
    /// Where it came from: an environment variable's name, [`ARGUMENT`] or [`TYPED`].
    pub source: String,
    /// Why it was refused.
    pub reason: String,
    /// What would be accepted.
    pub accepted: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, source, reason, accepted } = self;
        match (key.as_str(), value.as_str()) {
            ("", "") => write!(f, "configuration from {source}: ")?,
            (key, "") => write!(f, "configuration {key} from {source}: ")?,
            (key, value) => write!(f, "configuration {key}:{value} from {source}: ")?,
        }
        write!(f, "{reason}; accepted: {accepted}")
    }
}

impl core::error::Error for ConfigError {}

impl Config {
    /// Reads a text given in code or on a command line. All keys are accepted.
    ///
    /// # Errors
    ///
    /// The first thing in it that is not in the grammar, unknown, refused, out of range, said
    /// twice, or in contradiction to something else.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::default().overridden_by(text)
    }

    /// Reads the [`VARIABLES`] and [`CACHING_VARIABLE`] of this process. Bytes that are not Unicode count as wrong letters, in
    /// paths too.
    ///
    /// Call it once and keep the result: a variable that changes later changes nothing.
    ///
    /// # Errors
    ///
    /// As [`Config::parse`], in any of the variables.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_sources(&|name| std::env::var_os(name).map(|text| text.to_string_lossy().into_owned()))
    }

    /// Reads the [`VARIABLES`], and [`CACHING_VARIABLE`] after them, as `look_up` gives them. An empty text counts as not set.
    /// Where two say different things about a key the first one wins, and [`Config::warnings`] says so.
    ///
    /// # Errors
    ///
    /// As [`Config::parse`], in any of the variables.
    pub fn from_sources(look_up: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for source in VARIABLES {
            if let Some(text) = look_up(source) {
                config.fall_back_to(&text, source)?;
            }
        }
        if let Some(text) = look_up(CACHING_VARIABLE) {
            config.fall_back_to(caching(&text)?, CACHING_VARIABLE)?;
        }
        config.validate()?;
        Ok(config)
    }

    /// These settings, with those of `text` in the place of the same ones made before. The text
    /// counts as [`ARGUMENT`]; all keys are accepted.
    ///
    /// # Errors
    ///
    /// As [`Config::parse`]; settings made before are checked again together with the new ones.
    pub fn overridden_by(&self, text: &str) -> Result<Self, ConfigError> {
        let mut config = self.clone();
        for (key, value) in read(text, ARGUMENT)? {
            config.set(key, &value, ARGUMENT)?;
        }
        config.validate()?;
        Ok(config)
    }

    /// Checks every setting, however it was made.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range or contradicts another.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |name: &str, reason, accepted| {
            let value = keys::find(name).map(|key| key.slot.show(self)).unwrap_or_default();
            let source = self.source_of(name).unwrap_or_default().into();
            Err(ConfigError { key: name.into(), value, source, reason, accepted })
        };
        for key in settings_of(&KEYS) {
            let value = key.slot.show(self);
            if value == key.slot.show(&Self::default()) {
                continue;
            }
            let mut scratch = Self::default();
            let read = match grammar::pairs(&format!("{}:{value}", key.name)).as_deref() {
                Ok([pair]) => key.slot.read(&pair.value, &mut scratch),
                _ => Err("not a value".into()),
            };
            if let Err(reason) = read {
                return refuse(key.name, reason, key.accepted());
            }
        }
        match rules::conflict(self) {
            Some(conflict) => refuse(conflict.key, conflict.reason, conflict.accepted),
            None => Ok(()),
        }
    }

    /// All settings as they are in force: key, value and source, in the order of [`Config::keys`]
    /// without old names.
    #[must_use]
    pub fn effective(&self) -> Vec<(&'static str, String, &'static str)> {
        let row =
            |key: &'static Key| (key.name, key.slot.show(self), self.source_of(key.name).unwrap_or_default());
        settings_of(&KEYS).map(row).collect()
    }

    /// What was accepted but may not do what its author expects, one sentence each: settings that
    /// gave way to those of another variable, and settings without effect as things stand.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.provenance.ignored.clone();
        warnings.extend(rules::notes(self));
        warnings
    }

    /// All keys that are accepted.
    #[must_use]
    pub fn keys() -> &'static [Key] {
        &KEYS
    }

    /// Keys of PyTorch's grammar that are refused, each with its reason.
    #[must_use]
    pub fn refused_keys() -> &'static [RefusedKey] {
        &REFUSED
    }

    /// The keys as the Markdown tables of the documentation.
    #[must_use]
    pub fn key_tables() -> String {
        let mut text = String::from("| key | value | default | from | effect |\n|---|---|---|---|---|\n");
        for key in Self::keys() {
            let from = if key.family == Family::Own { "own variable" } else { "all" };
            let (name, kind, effect) = (key.name, key.kind(), key.effect);
            let (accepted, default) = (key.accepted(), key.default());
            text += &format!("| `{name}` | {kind}: {accepted} | {default} | {from} | {effect} |\n");
        }
        text += "\n| refused key | reason |\n|---|---|\n";
        for RefusedKey { name, reason } in Self::refused_keys() {
            text += &format!("| `{name}` | {reason} |\n");
        }
        text
    }

    /// Makes a setting, whatever was set before.
    fn set(&mut self, key: &'static Key, pair: &Pair<'_>, source: &'static str) -> Result<(), ConfigError> {
        let refuse = |reason| error(pair.key, pair.text, source, reason, key.accepted());
        key.slot.read(&pair.value, self).map_err(refuse)?;
        let origin = Origin { key: key.setting(), value: key.slot.show(self), source };
        self.provenance.origins.retain(|known| known.key != origin.key);
        self.provenance.origins.push(origin);
        Ok(())
    }

    /// Makes the settings of a text that no source before has made.
    fn fall_back_to(&mut self, text: &str, source: &'static str) -> Result<(), ConfigError> {
        read(text, source)?.iter().try_for_each(|(key, value)| self.set_unless_made(key, value, source))
    }

    /// Makes a setting unless a source before has made it.
    fn set_unless_made(
        &mut self,
        key: &'static Key,
        pair: &Pair<'_>,
        source: &'static str,
    ) -> Result<(), ConfigError> {
        let Some(winner) = self.provenance.origins.iter().find(|origin| origin.key == key.setting()) else {
            return self.set(key, pair, source);
        };
        let winner = winner.clone();
        // Read it all the same: a wrong value is wrong in the second place too.
        let mut scratch = Self::default();
        scratch.set(key, pair, source)?;
        if key.slot.show(&scratch) != winner.value {
            let (name, text) = (pair.key, pair.text);
            let Origin { key, value, source: first } = winner;
            self.provenance
                .ignored
                .push(format!("{name}:{text} from {source} is ignored: {first} says {key}:{value}"));
        }
        Ok(())
    }
}

/// The settings that somebody made, as a text that [`Config::parse`] reads back as an equal configuration, provided
/// that [`Config::validate`] accepts it. Those with the default's value are among them, because some mean something
/// all the same ([`Config::sets_chunk_size`]).
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for key in settings_of(&KEYS).filter(|key| self.is_set(key.name)) {
            write!(f, "{comma}{}:{}", key.name, key.slot.show(self))?;
            comma = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("name", &self.name).field("kind", &self.kind()).finish_non_exhaustive()
    }
}

/// The keys without old names of others.
fn settings_of(keys: &'static [Key]) -> impl Iterator<Item = &'static Key> {
    keys.iter().filter(|key| !matches!(key.family, Family::OldName(_)))
}

fn error(key: &str, value: &str, source: &str, reason: String, accepted: String) -> ConfigError {
    ConfigError { key: key.into(), value: value.into(), source: source.into(), reason, accepted }
}

/// The pairs of a text with the keys they name; each setting at most once.
fn read<'a>(text: &'a str, source: &'static str) -> Result<Vec<(&'static Key, Pair<'a>)>, ConfigError> {
    let pairs = grammar::pairs(text).map_err(|wrong| {
        let accepted = "key:value,key:value with list values in [ ]".into();
        let place = match wrong.found {
            "" => "at the end".to_owned(),
            found => format!("where {found:?} stands"),
        };
        error(wrong.key, wrong.value, source, format!("{}, {place}", wrong.reason), accepted)
    })?;
    let mut found: Vec<(&'static Key, Pair<'a>)> = Vec::with_capacity(pairs.len());
    for pair in pairs {
        let refuse = |reason, accepted| Err(error(pair.key, pair.text, source, reason, accepted));
        if let Some(RefusedKey { reason, .. }) = REFUSED.iter().find(|refused| refused.name == pair.key) {
            return refuse(format!("refused: {reason}"), "the text without this key".into());
        }
        let Some(key) = keys::find(pair.key) else {
            return refuse("no such key".into(), known(pair.key, source));
        };
        if key.family == Family::Own && !takes_own_keys(source) {
            return refuse("it is not a key of PyTorch's".into(), format!("this key in {OWN_VARIABLE}"));
        }
        if let Some((first, _)) = found.iter().find(|(other, _)| other.setting() == key.setting()) {
            let reason = format!("said twice in one text, first as {}", first.name);
            return refuse(reason, "each setting once".into());
        }
        found.push((key, pair));
    }
    Ok(found)
}

/// What the variable for caching says, as a text of keys.
fn caching(text: &str) -> Result<&'static str, ConfigError> {
    match text.trim() {
        "" => Ok(""),
        "0" => Ok("caching:True"),
        "1" => Ok("caching:False"),
        _ => Err(error("caching", text, CACHING_VARIABLE, "not a switch".into(), "0 or 1".into())),
    }
}

/// Whether our own keys are accepted from a source.
fn takes_own_keys(source: &str) -> bool {
    [OWN_VARIABLE, ARGUMENT, CACHING_VARIABLE].contains(&source)
}

/// The keys that could have been meant.
fn known(written: &str, source: &str) -> String {
    let own = takes_own_keys(source);
    let usable = || KEYS.iter().filter(move |key| own || key.family != Family::Own);
    let names: Vec<_> = usable().map(|key| key.name).collect();
    let alike = usable().find(|key| is_alike(key.name, written));
    let hint = alike.map(|key| format!("{} (did you mean that?), or one of ", key.name)).unwrap_or_default();
    hint + &names.join(", ")
}

/// Whether two names differ only in case, separators, or a missing or added ending.
fn is_alike(name: &str, written: &str) -> bool {
    let plain = |text: &str| {
        text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect::<String>()
    };
    let (name, written) = (plain(name), plain(written));
    written.len() >= 4 && (name.starts_with(&written) || written.starts_with(&name))
}
