//! How an allocator is configured: typed in Rust, or text in the grammar of torch_npu.

use core::fmt;

mod settings;

pub use settings::{Config, ROUNDUP_INTERVALS, SetAccess};

/// A configuration that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The key, as written.
    pub key: String,
    /// The value, as written.
    pub value: String,
    /// Where the text came from: an environment variable's name, or `"argument"`.
    pub source: String,
    /// Why it was refused.
    pub reason: String,
    /// What would be accepted.
    pub accepted: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, source, reason, accepted } = self;
        write!(f, "configuration {key}:{value} from {source}: {reason}; accepted: {accepted}")
    }
}

impl core::error::Error for ConfigError {}

impl Config {
    /// Checks every setting, however it was made.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range or contradicts another.
    pub fn validate(&self) -> Result<(), ConfigError> {
        todo_validate(self)
    }
}

// Replaced by the key table's own checks in the next commit; range checks of the core's inputs only.
fn todo_validate(config: &Config) -> Result<(), ConfigError> {
    if config.epoch_frees < 64 {
        return Err(ConfigError {
            key: "epoch_frees".into(),
            value: config.epoch_frees.to_string(),
            source: "typed".into(),
            reason: "too many events".into(),
            accepted: "64 and more".into(),
        });
    }
    Ok(())
}
