//! Looking at running processes that export their statistics: `top`, and `metrics` for Prometheus.
//!
//! ```text
//!  file or socket ─► source ─► document ─┬─► prometheus: text, or a server
//!  (stats_export)                        └─► top ─► view: lines for a terminal
//! ```

pub mod document;
pub mod prometheus;
pub mod source;
pub mod top;
mod view;
