//! Contexts of a process have a bound. In a program of its own, because it fills their table.

use ascend_alloc::history::{Context, ContextId, Frame, context, intern};

#[test]
fn what_is_beyond_the_bound_shares_one_number() {
    let first = intern("first");
    for number in 0..1 << 16 {
        let _kept = intern(&format!("context {number}"));
    }
    let beyond = intern("one more");
    assert_eq!(intern("and another"), beyond);
    assert_eq!(context(beyond), Some(Context::Text("(too many contexts)".to_owned())));
    assert_eq!(intern("first"), first, "what was kept keeps its number");
    assert_eq!(context(first), Some(Context::Text("first".to_owned())));
    assert_eq!(ContextId::new(beyond.get() + 1).and_then(context), None, "there is nothing behind it");
}

#[test]
fn a_stack_is_shown_in_one_line() {
    let frame = |function: &str, file: &str, line| Frame {
        function: function.to_owned(),
        file: file.to_owned(),
        line,
    };
    let stack = Context::Stack(vec![frame("inner", "a.rs", 7), frame("outer", "", 0)]);
    assert_eq!(stack.to_string(), "inner (a.rs:7) < outer");
    assert_eq!(stack.frames().len(), 2);
    let text = Context::Text("step 3".to_owned());
    assert_eq!((text.to_string().as_str(), text.frames()), ("step 3", vec![frame("step 3", "", 0)]));
}
