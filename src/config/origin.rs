//! Who made a setting.

use super::keys;
use super::settings::Config;

/// The source of a text given in code or on a command line.
pub const ARGUMENT: &str = "argument";
/// The source of a setting made through a field of [`Config`].
pub const TYPED: &str = "typed";
/// The source of a setting that nobody made.
pub const DEFAULT: &str = "default";

impl Config {
    /// Where the setting of `key` was made: an environment variable's name, [`ARGUMENT`],
    /// [`TYPED`] or [`DEFAULT`]; `None` for a key that does not exist.
    #[must_use]
    pub fn source_of(&self, key: &str) -> Option<&'static str> {
        let key = keys::find(key)?;
        let value = key.slot.show(self);
        let origin = self
            .provenance
            .origins
            .iter()
            .find(|origin| origin.key == key.setting() && origin.value == value);
        Some(match origin {
            Some(origin) => origin.source,
            None if value == key.slot.show(&Self::default()) => DEFAULT,
            None => TYPED,
        })
    }

    /// Whether somebody made this setting, rather than nobody.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.source_of(key).is_some_and(|source| source != DEFAULT)
    }
}
