//! What happened to memory: events, who caused them, and where they go.

mod context;
mod control;
mod event;
mod exit;
pub(crate) mod journal;
mod list;
pub(crate) mod log;
mod output;
pub(crate) mod paths;
pub(crate) mod trace;
pub(crate) mod worker;
pub(crate) mod writer;

pub(crate) use context::OfCall;
pub use context::{Context, ContextId, Frame, context, current_context, intern, set_context, with_context};
pub use control::{HistoryBatch, HistoryOptions, HistoryStatus};
pub use event::{Action, Event};
pub use journal::ParseEventError;
