//! Who causes what: texts and captured stacks, each kept once for the whole process.

use core::cell::Cell;
use core::num::NonZeroU32;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::sync::plain::Mutex;

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

impl core::fmt::Display for Context {
    /// In one line: the text, or the functions of the stack with their places, the innermost first, with ` < `
    /// between them.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Stack(frames) => frames.iter().enumerate().try_for_each(|(index, frame)| {
                f.write_str(if index > 0 { " < " } else { "" })?;
                f.write_str(&frame.function)?;
                if frame.file.is_empty() { Ok(()) } else { write!(f, " ({}:{})", frame.file, frame.line) }
            }),
        }
    }
}

/// So many contexts are kept at most; all further ones share the number of [`TOO_MANY`].
const MOST: usize = 1 << 16;
/// What stands for contexts beyond [`MOST`].
const TOO_MANY: &str = "(too many contexts)";
/// Bytes of a text that are kept.
const LONGEST: usize = 1024;

/// Functions of a stack that are kept, from the innermost on.
const DEEPEST: usize = 64;

/// All contexts of the process. They are never given up, because events may refer to them for ever.
#[derive(Default)]
struct Table {
    texts: HashMap<String, ContextId>,
    stacks: HashMap<Addresses, ContextId>,
    all: Vec<Kept>,
}

/// Where the functions of a stack would go on, the innermost first.
type Addresses = SmallVec<[usize; DEEPEST]>;

/// A context as it is kept.
#[derive(Clone)]
enum Kept {
    Known(Context),
    /// A stack of which nobody has asked yet what its functions are called.
    Raw(Box<[usize]>),
}

impl Table {
    /// Adds a context, if there is room.
    fn add(&mut self, kept: Kept) -> Option<ContextId> {
        if self.all.len() >= MOST {
            return None;
        }
        self.all.push(kept);
        ContextId::new(self.all.len() as u32)
    }

    /// The number of the text.
    fn text(&mut self, text: &str) -> ContextId {
        if let Some(&id) = self.texts.get(text) {
            return id;
        }
        match self.add(Kept::Known(Context::Text(text.to_owned()))) {
            Some(id) => {
                self.texts.insert(text.to_owned(), id);
                id
            }
            None => self.rest(),
        }
    }

    /// The number of everything beyond what is kept.
    fn rest(&mut self) -> ContextId {
        if let Some(&id) = self.texts.get(TOO_MANY) {
            return id;
        }
        self.all.push(Kept::Known(Context::Text(TOO_MANY.to_owned())));
        let id = ContextId(NonZeroU32::MIN.saturating_add(self.all.len() as u32 - 1));
        self.texts.insert(TOO_MANY.to_owned(), id);
        id
    }
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

/// Whether any thread has ever had a context. Until then nobody has to look at a thread-local, which in a shared
/// library is a call.
static ANY: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// What this thread does at present.
    static CURRENT: Cell<Option<ContextId>> = const { Cell::new(None) };
}

/// The number of a text, for [`set_context`]. Texts are cut after 1024 bytes; beyond 65 536 different ones all new
/// ones share one number. Takes a lock of the process: to be called once for a text, not for each request.
#[must_use]
pub fn intern(text: &str) -> ContextId {
    let mut cut = text.len().min(LONGEST);
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    TABLE.lock().get_or_insert_default().text(&text[..cut])
}

/// What a number stands for. For a captured stack the names of its functions are looked up the first time, which
/// can take long and reads debug information from disk.
#[must_use]
pub fn context(id: ContextId) -> Option<Context> {
    let at = id.get() as usize - 1;
    let kept = TABLE.lock().as_ref()?.all.get(at).cloned()?;
    match kept {
        Kept::Known(context) => Some(context),
        Kept::Raw(addresses) => {
            // Without the lock: it takes long, and nothing depends on who is first.
            let context = Context::Stack(frames_of(&addresses));
            if let Some(place) = TABLE.lock().as_mut().and_then(|table| table.all.get_mut(at)) {
                *place = Kept::Known(context.clone());
            }
            Some(context)
        }
    }
}

/// Captures the stack of this thread.
#[inline(never)]
pub(super) fn capture() -> ContextId {
    let mut addresses = Addresses::new();
    backtrace::trace(|frame| {
        addresses.push(frame.ip() as usize);
        addresses.len() < DEEPEST
    });
    let mut table = TABLE.lock();
    let table = table.get_or_insert_default();
    if let Some(&id) = table.stacks.get(&addresses) {
        return id;
    }
    match table.add(Kept::Raw(addresses.as_slice().into())) {
        Some(id) => {
            table.stacks.insert(addresses, id);
            id
        }
        None => table.rest(),
    }
}

/// What the functions of a stack are called, without those of this library at its inner end.
fn frames_of(addresses: &[usize]) -> Vec<Frame> {
    let mut frames = Vec::new();
    for &address in addresses {
        // An address is where a call returns to, which may be in the next line, or in another function.
        backtrace::resolve(address.saturating_sub(1) as *mut core::ffi::c_void, |symbol| {
            let function = symbol.name().map_or_else(|| format!("{address:#x}"), |name| format!("{name:#}"));
            let file = symbol.filename().map(|path| path.display().to_string()).unwrap_or_default();
            frames.push(Frame { function, file, line: symbol.lineno().unwrap_or(0) });
        });
    }
    let inner = |frame: &Frame| {
        let function = frame.function.trim_start_matches('<');
        function.starts_with("backtrace::") || function.starts_with("ascend_alloc::")
    };
    let own = frames.iter().take_while(|frame| inner(frame)).count();
    frames.drain(..own);
    frames
}

/// The context of a call, until it is over.
pub(crate) struct OfCall(Option<ContextId>);

impl OfCall {
    /// Captures the stack, unless the thread has said who causes what it does.
    pub(crate) fn captured() -> Option<Self> {
        let before = CURRENT.get();
        before.is_none().then(|| Self(set_context(Some(capture()))))
    }
}

impl Drop for OfCall {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Says who causes what this thread does from now on, in the histories of all allocators; returns who was named before.
/// Costs a store.
pub fn set_context(id: Option<ContextId>) -> Option<ContextId> {
    if id.is_some() && !ANY.load(Relaxed) {
        ANY.store(true, Relaxed);
    }
    CURRENT.replace(id)
}

/// Who causes what this thread does at present.
#[must_use]
#[inline]
pub fn current_context() -> Option<ContextId> {
    if ANY.load(Relaxed) { CURRENT.get() } else { None }
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
    fn a_stack_has_one_number_and_no_function_of_this_library_at_its_inner_end() {
        #[inline(never)]
        fn somebody_who_allocates() -> ContextId {
            core::hint::black_box(capture())
        }
        let ids: Vec<ContextId> = (0..3).map(|_| somebody_who_allocates()).collect();
        assert!(ids.iter().all(|id| *id == ids[0]));
        let Some(known @ Context::Stack(_)) = context(ids[0]) else { panic!("no stack") };
        assert_eq!(context(ids[0]), Some(known.clone()), "the same when asked again");
        let frames = known.frames();
        assert!(!frames.is_empty() && frames.len() <= 2 * DEEPEST);
        assert!(!frames[0].function.contains("context::capture"), "{frames:?}");
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
