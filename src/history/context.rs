//! Who causes what: texts and captured stacks, each kept once for the whole process.

use core::cell::Cell;
use core::num::NonZeroU32;

use hashbrown::HashMap;

use crate::sync::Mutex;

/// Names a text or a captured stack; see [`context`]. The same text has the same number in the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextId(NonZeroU32);

impl ContextId {
    /// The number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0.get()
    }

    /// The context of that number; nothing for 0. Whether there is one, [`context`] says.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self)
    }
}

/// One function of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function, or what is known instead of it.
    pub function: String,
    /// The source file; empty when it is not known.
    pub file: String,
    /// The line in it, from 1; 0 when it is not known.
    pub line: u32,
}

/// Who caused an event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Context {
    /// What the program said.
    Text(String),
    /// The functions that were active, the innermost first.
    Stack(Vec<Frame>),
}

impl Context {
    /// As a stack: a text is a stack of one frame with the text as its function.
    #[must_use]
    pub fn frames(&self) -> Vec<Frame> {
        match self {
            Self::Text(text) => vec![Frame { function: text.clone(), ..Frame::default() }],
            Self::Stack(frames) => frames.clone(),
        }
    }
}

/// So many contexts are kept at most; all further ones share the number of [`TOO_MANY`].
const MOST: usize = 1 << 16;
/// What stands for contexts beyond [`MOST`].
const TOO_MANY: &str = "(too many contexts)";
/// Bytes of a text that are kept.
const LONGEST: usize = 1024;

/// All contexts of the process. They are never given up, because events may refer to them for ever.
#[derive(Default)]
struct Table {
    numbers: HashMap<String, ContextId>,
    all: Vec<Context>,
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

thread_local! {
    /// What this thread does at present.
    static CURRENT: Cell<Option<ContextId>> = const { Cell::new(None) };
}

/// The number of a text, for [`set_context`]. Texts are cut after 1024 bytes; beyond 65 536 different ones all new ones share
/// one number. Takes a lock of the process: to be called once for a text, not for each request.
#[must_use]
pub fn intern(text: &str) -> ContextId {
    let mut cut = text.len().min(LONGEST);
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    let text = &text[..cut];
    let mut table = TABLE.lock();
    let table = table.get_or_insert_default();
    if let Some(&id) = table.numbers.get(text) {
        return id;
    }
    let text = if table.all.len() >= MOST { TOO_MANY } else { text };
    if let Some(&id) = table.numbers.get(text) {
        return id;
    }
    table.all.push(Context::Text(text.to_owned()));
    let id = ContextId(NonZeroU32::MIN.saturating_add(table.all.len() as u32 - 1));
    table.numbers.insert(text.to_owned(), id);
    id
}

/// What a number stands for.
#[must_use]
pub fn context(id: ContextId) -> Option<Context> {
    TABLE.lock().as_ref()?.all.get(id.get() as usize - 1).cloned()
}

/// Says who causes what this thread does from now on, in the histories of all allocators; returns who was named before.
/// Costs a store.
pub fn set_context(id: Option<ContextId>) -> Option<ContextId> {
    CURRENT.replace(id)
}

/// Who causes what this thread does at present.
#[must_use]
pub fn current_context() -> Option<ContextId> {
    CURRENT.get()
}

/// Runs `work` with a context for what it does; also when it panics the one before holds again afterwards.
///
/// ```
/// use ascend_alloc::history::{Context, context, current_context, with_context};
///
/// let inside = with_context("layer 3, forward", current_context);
/// assert_eq!(context(inside.unwrap()), Some(Context::Text("layer 3, forward".to_owned())));
/// assert_eq!(current_context(), None);
/// ```
pub fn with_context<T>(text: &str, work: impl FnOnce() -> T) -> T {
    /// Sets the context back.
    struct Before(Option<ContextId>);

    impl Drop for Before {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }

    let _before = Before(set_context(Some(intern(text))));
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_one_number_and_is_cut_at_a_character() {
        let id = intern("somewhere in these tests");
        assert_eq!(intern("somewhere in these tests"), id);
        assert_ne!(intern("somewhere else in these tests"), id);
        let long = "ä".repeat(LONGEST);
        let Some(Context::Text(kept)) = context(intern(&format!("x{long}"))) else { panic!("no text") };
        assert_eq!((kept.len(), kept.starts_with("xä")), (LONGEST - 1, true));
        assert_eq!(context(ContextId::new(u32::MAX).expect("not zero")), None);
    }

    #[test]
    fn a_context_ends_with_its_work_also_by_a_panic() {
        let outer = intern("outer");
        assert_eq!(set_context(Some(outer)), None);
        let fails = std::panic::catch_unwind(|| with_context("inner", || panic!("on purpose")));
        assert!(fails.is_err());
        assert_eq!(set_context(None), Some(outer));
    }
}
