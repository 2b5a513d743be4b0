//! What happened to memory: events, who caused them, and where they go.

mod context;
mod event;
pub(crate) mod paths;
pub(crate) mod worker;

pub use context::{Context, ContextId, Frame, context, current_context, intern, set_context, with_context};
pub use event::{Action, Event};
