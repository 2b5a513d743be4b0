//! What is looked at before the current context: the ACL layer refuses null where a handle must be,
//! the outer face of the runtime refuses stale handles. Only then does the context count.

use crate::codes;
use crate::refusal::{Answer, Refusal, refuse};
use crate::sim::{Inner, Sim};

/// A handle among the arguments of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Handle {
    /// A stream; null is the default stream.
    Stream(u64),
    /// A stream that must not be null.
    NamedStream(u64),
    /// An event, which must not be null.
    Event(u64),
    /// Anything else that must not be null.
    Other(u64),
}

impl Sim {
    /// The current context for a call with these handles: its number in the executor.
    pub(super) fn context_for(&self, handles: &[Handle]) -> Answer<u32> {
        for handle in handles {
            if let Handle::NamedStream(0) | Handle::Event(0) | Handle::Other(0) = handle {
                return refuse(codes::INVALID_PARAM, "null handle");
            }
        }
        // With a context the executor finds stale handles itself.
        self.context().or_else(|without| self.stale_or(handles, without))
    }

    fn stale_or(&self, handles: &[Handle], without: Refusal) -> Answer<u32> {
        let executor = &self.inner.executor;
        for handle in handles {
            match *handle {
                Handle::Stream(stream) | Handle::NamedStream(stream) => {
                    Inner::executed(executor.check_stream(stream))?;
                }
                Handle::Event(event) => Inner::executed(executor.event_id(event)).map(drop)?,
                Handle::Other(_) => {}
            }
        }
        Err(without)
    }
}
