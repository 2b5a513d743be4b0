//! How the model says no: an ACL code and the reason in words.

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The code the caller gets.
    pub(crate) code: i32,
    /// What is wrong, for the message of the failed call.
    pub(crate) why: &'static str,
}

impl Refusal {
    pub(crate) const fn new(code: i32, why: &'static str) -> Self {
        Self { code, why }
    }
}

/// What the model answers to a call.
pub(crate) type Answer<T> = Result<T, Refusal>;

/// A refusal as the error of any [`Answer`].
pub(crate) fn refuse<T>(code: i32, why: &'static str) -> Answer<T> {
    Err(Refusal::new(code, why))
}
