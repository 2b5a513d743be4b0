//! The ACL return codes that streams, events and captures answer with.

/// A handle is null, or an argument is refused by the outermost layer.
pub const INVALID_PARAM: i32 = 100_000;
/// An argument is refused by the runtime.
pub const PARAM_INVALID: i32 = 107_000;
/// No such device.
pub const INVALID_DEVICE: i32 = 107_001;
/// The stream or event belongs to another context (here: device).
pub const STREAM_CONTEXT: i32 = 107_003;
/// The event has no time to give: not complete, or made without `TIME_LINE`.
pub const EVENT_TIMESTAMP_INVALID: i32 = 107_006;
/// The stream has a subscriber or host functions already, or not the one named.
pub const STREAM_SUBSCRIBE: i32 = 107_011;
/// The thread has not subscribed to any stream, or no more threads can.
pub const THREAD_SUBSCRIBE: i32 = 107_012;
/// A callback for a stream that nobody has subscribed to.
pub const STREAM_NO_CALLBACK: i32 = 107_015;
/// A stream or event that has been destroyed, or never was.
pub const INVALID_HANDLE: i32 = 107_017;
/// Work of the device was aborted.
pub const DEVICE_TASK_ABORT: i32 = 107_022;
/// Work of the stream was aborted.
pub const STREAM_ABORT: i32 = 107_023;
/// A capturing stream would wait for work outside its capture.
pub const CAPTURE_DEPENDENCY: i32 = 107_024;
/// A capture ends with a forked stream that was not joined.
pub const STREAM_UNJOINED: i32 = 107_025;
/// The graph is still being captured.
pub const MODEL_CAPTURED: i32 = 107_026;
/// Not while the stream (or one of the device) is being captured.
pub const STREAM_CAPTURED: i32 = 107_027;
/// Not while the event's record belongs to a capture.
pub const EVENT_CAPTURED: i32 = 107_028;
/// The stream is not being captured.
pub const STREAM_NOT_CAPTURED: i32 = 107_029;
/// A synchronous copy or fill while a capture forbids it.
pub const CAPTURE_MODE_NOT_SUPPORT: i32 = 107_030;
/// The default stream would enter a capture.
pub const STREAM_CAPTURE_IMPLICIT: i32 = 107_031;
/// A stream would take part in two captures.
pub const STREAM_CAPTURE_CONFLICT: i32 = 107_032;
/// A group of tasks is opened twice, or closed without being open.
pub const STREAM_TASK_GROUP_STATUS: i32 = 107_033;
/// A capture is ended on a stream that did not begin it.
pub const STREAM_CAPTURE_UNMATCHED: i32 = 107_036;
/// A capture is ended on a thread that did not begin it.
pub const STREAM_CAPTURE_WRONG_THREAD: i32 = 107_038;
/// The object cannot do this (for instance an event made without `SYNC` cannot be waited for).
pub const FEATURE_NOT_SUPPORT: i32 = 207_000;
/// All events of the device are taken.
pub const NO_EVENT_RESOURCE: i32 = 207_007;
/// All streams of the device are taken.
pub const NO_STREAM_RESOURCE: i32 = 207_008;
/// The runtime met a state it has no answer for.
pub const INTERNAL_ERROR: i32 = 507_000;
/// No callback came in time.
pub const REPORT_TIMEOUT: i32 = 507_012;
/// Work on the stream failed (here: its closure panicked).
pub const AICORE_EXCEPTION: i32 = 507_015;
/// Work touched memory that was not there.
pub const AICORE_TRAP_WRITE: i32 = 507_043;
/// The wait for a stream or device took longer than allowed.
pub const STREAM_SYNC_TIMEOUT: i32 = 507_046;
/// The wait for an event took longer than allowed.
pub const EVENT_SYNC_TIMEOUT: i32 = 507_047;
/// The capture was invalidated by an earlier error.
pub const STREAM_CAPTURE_INVALIDATED: i32 = 507_903;

/// What such a code means, for the message of a refused call.
pub(crate) const fn meaning(code: i32) -> &'static str {
    match code {
        INVALID_PARAM => "a null handle, or an argument out of range",
        PARAM_INVALID => "an argument is out of range, or the object is not in the state for it",
        INVALID_DEVICE => "no such device",
        STREAM_CONTEXT => "the stream or event belongs to another context",
        EVENT_TIMESTAMP_INVALID => "the event is not complete, or was made without TIME_LINE",
        STREAM_SUBSCRIBE => "another thread has subscribed to the stream, or it has host functions",
        THREAD_SUBSCRIBE => "the thread has not subscribed to a stream, or no more threads can",
        STREAM_NO_CALLBACK => "no thread has subscribed to the stream",
        INVALID_HANDLE => "the stream or event was destroyed, or never was one",
        DEVICE_TASK_ABORT => "work of the device was aborted",
        STREAM_ABORT => "the stream was aborted",
        CAPTURE_DEPENDENCY => "a captured stream would wait for work outside its capture",
        STREAM_UNJOINED => "a stream that joined the capture was not joined back",
        MODEL_CAPTURED => "the graph is still being captured",
        STREAM_CAPTURED => "not while the stream, or one of the device, is being captured",
        EVENT_CAPTURED => "not while the event's record belongs to a capture",
        STREAM_NOT_CAPTURED => "the stream is not being captured",
        CAPTURE_MODE_NOT_SUPPORT => "a capture forbids synchronous copies and fills",
        STREAM_CAPTURE_IMPLICIT => "the default stream cannot take part in a capture",
        STREAM_CAPTURE_CONFLICT => "the stream would take part in two captures",
        STREAM_TASK_GROUP_STATUS => "a group of tasks is open already, or none is",
        STREAM_CAPTURE_UNMATCHED => "the capture began on another stream",
        STREAM_CAPTURE_WRONG_THREAD => "the capture began on another thread",
        FEATURE_NOT_SUPPORT => "the stream or event was not made for this",
        NO_EVENT_RESOURCE => "all events of the device are taken",
        NO_STREAM_RESOURCE => "all streams of the device are taken",
        INTERNAL_ERROR => "inside a callback, or a time of an event that was never recorded",
        REPORT_TIMEOUT => "no callback came in time",
        AICORE_EXCEPTION => "work on the stream failed",
        AICORE_TRAP_WRITE => "queued work touched memory that was not there",
        STREAM_SYNC_TIMEOUT => "the work took longer than the time limit",
        EVENT_SYNC_TIMEOUT => "the event was not complete within the time limit",
        STREAM_CAPTURE_INVALIDATED => "an earlier error has invalidated the capture",
        _ => "refused by the model of streams and events",
    }
}
