//! How an allocator is configured: typed in Rust, or text in the grammar of torch_npu.

use core::fmt;

/// A configuration that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The key, as written.
    pub key: String,
    /// The value, as written.
    pub value: String,
    /// Where the text came from: an environment variable's name, or `"argument"`.
    pub source: String,
    /// Why it was refused and what would be accepted.
    pub reason: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "configuration {}={} from {}: {}", self.key, self.value, self.source, self.reason)
    }
}

impl core::error::Error for ConfigError {}
