//! Reads allocation traces: text with one event a line, plain or compressed.
//!
//! | line | meaning |
//! |---|---|
//! | `# key value` | metadata |
//! | `a ID BYTES STREAM` | allocate |
//! | `f ID` | free on the host; work queued before it may still run |
//! | `r ID STREAM` | work on that stream uses the block too |
//! | `s STREAM` | the host waits for that stream |
//! | `m LABEL` | marker: a step begins |
//!
//! An id names one block in the whole trace. The reader gives blocks and streams dense numbers
//! (the *block index* and the *stream index*), so that a replay needs no map. Stream index 0 is
//! always stream 0 of the file, the default stream.
//!
//! The input is read as a stream of bounded lines: memory grows with the number of events only,
//! whatever the file holds. Anything that is not a trace is refused with file, line and reason.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use ascend_alloc::words::counted;

/// Longest line accepted, in bytes; real ones have less than 300.
const MAX_LINE: u64 = 64 * 1024;

/// The label of the marker after which a trace only frees.
pub const TEARDOWN: &str = "teardown";

/// One event, with dense numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `a`: the block is allocated on the stream.
    Allocate {
        /// Block index.
        block: u32,
        /// Stream index.
        stream: u16,
        /// Bytes asked for.
        bytes: u64,
    },
    /// `f`: the block is freed.
    Free {
        /// Block index.
        block: u32,
    },
    /// `r`: the block is used on another stream as well.
    Record {
        /// Block index.
        block: u32,
        /// Stream index.
        stream: u16,
    },
    /// `s`: the host waits for the stream.
    Synchronize {
        /// Stream index.
        stream: u16,
    },
    /// `m`: a step begins.
    Marker {
        /// Index into [`Trace::labels`].
        label: u32,
    },
}

impl Event {
    /// Whether a replay calls the allocator for it.
    #[must_use]
    pub fn is_call(&self) -> bool {
        matches!(self, Event::Allocate { .. } | Event::Free { .. } | Event::Record { .. })
    }
}

/// A whole trace in memory: 16 bytes an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// File name without folders and endings: `T1` for `traces/T1.trace.zst`.
    pub name: String,
    /// The `# key value` lines in order; a key without a value has an empty one.
    pub metadata: Vec<(String, String)>,
    /// The events in order.
    pub events: Vec<Event>,
    /// The marker labels, one for each marker, in order.
    pub labels: Vec<String>,
    /// The stream numbers of the file by stream index; the first is always 0.
    pub streams: Vec<u64>,
    /// How many blocks are allocated in all; block indices are smaller.
    pub blocks: usize,
    /// The highest sum of requested bytes that are live at one time.
    pub peak_live: u64,
    /// Streams that the allocations were put on in turn; 1 where they are on those of the file.
    pub spread: u16,
}

/// A trace that could not be read.
#[derive(Debug)]
pub struct TraceError {
    /// The file, as it was named.
    pub file: String,
    /// The line, from 1; 0 where the file as a whole is meant.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.reason),
            line => write!(f, "{}:{line}: {}", self.file, self.reason),
        }
    }
}

impl std::error::Error for TraceError {}

impl Trace {
    /// Reads a file; the ending `.zst` or `.gz` of its name says how it is compressed.
    ///
    /// # Errors
    /// The file cannot be read or decompressed, or is not a trace.
    pub fn open(path: &Path) -> Result<Trace, TraceError> {
        let file = path.display().to_string();
        let whole = |reason: String| TraceError { file: file.clone(), line: 0, reason };
        let input = File::open(path).map_err(|error| whole(format!("cannot be opened: {error}")))?;
        let name = short_name(path);
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("zst") => {
                let decoder = zstd::stream::read::Decoder::new(input)
                    .map_err(|error| whole(format!("cannot be decompressed: {error}")))?;
                Self::read(&name, &file, BufReader::with_capacity(1 << 17, decoder))
            }
            Some("gz") => {
                let decoder = flate2::read::MultiGzDecoder::new(input);
                Self::read(&name, &file, BufReader::with_capacity(1 << 17, decoder))
            }
            _ => Self::read(&name, &file, BufReader::with_capacity(1 << 17, input)),
        }
    }

    /// Reads plain text; `file` is the name that errors carry.
    ///
    /// # Errors
    /// The input cannot be read, or is not a trace.
    pub fn read(name: &str, file: &str, input: impl BufRead) -> Result<Trace, TraceError> {
        let mut reader = Reader::new(name);
        let mut lines = Lines { input, line: 0, buffer: Vec::new() };
        let error = |line, reason| TraceError { file: file.to_owned(), line, reason };
        loop {
            match lines.next() {
                Ok(Some(text)) => reader.line(text).map_err(|reason| error(lines.line, reason))?,
                Ok(None) => break,
                Err(reason) => return Err(error(lines.line, reason)),
            }
        }
        if reader.trace.events.is_empty() {
            return Err(error(0, "holds no event".to_owned()));
        }
        Ok(reader.trace)
    }

    /// Lets the allocations be on so many streams in turn, and the waits too: a program of many streams. Uses on a
    /// second stream stay uses on another one than the block's own.
    pub fn spread(&mut self, streams: u16) {
        if streams < 2 {
            return;
        }
        self.spread = streams;
        self.streams = (0..u64::from(streams)).collect();
        let mut own = vec![0; self.blocks];
        let (mut allocations, mut waits) = (0, 0);
        let turn = |count: &mut u32| {
            *count += 1;
            ((*count - 1) % u32::from(streams)) as u16
        };
        for event in &mut self.events {
            match event {
                Event::Allocate { block, stream, .. } => {
                    *stream = turn(&mut allocations);
                    own[*block as usize] = *stream;
                }
                Event::Record { block, stream } => *stream = (own[*block as usize] + 1) % streams,
                Event::Synchronize { stream } => *stream = turn(&mut waits),
                Event::Free { .. } | Event::Marker { .. } => {}
            }
        }
    }

    /// The value of a metadata key.
    #[must_use]
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// Where the header counts something else than the file holds: a sign of a file cut short.
    /// The header is used for this only.
    #[must_use]
    pub fn header_disagreements(&self) -> Vec<String> {
        let count = |wanted: fn(&Event) -> bool| self.events.iter().filter(|e| wanted(e)).count() as u64;
        let found = [
            ("events", self.events.len() as u64),
            ("allocs", self.blocks as u64),
            ("frees", count(|e| matches!(e, Event::Free { .. }))),
            ("records", count(|e| matches!(e, Event::Record { .. }))),
            ("syncs", count(|e| matches!(e, Event::Synchronize { .. }))),
            ("markers", self.labels.len() as u64),
            ("peak_live_bytes", self.peak_live),
        ];
        let mut said = Vec::new();
        for (key, found) in found {
            match self.metadata(key).map(str::parse::<u64>) {
                Some(Ok(header)) if header != found => {
                    said.push(format!("the header says {key} {header}, the file holds {found}"));
                }
                _ => {}
            }
        }
        said
    }
}

/// File name without folders and without `.trace`, `.trace.zst` or `.trace.gz`.
fn short_name(path: &Path) -> String {
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let stem = name.strip_suffix(".zst").or_else(|| name.strip_suffix(".gz")).unwrap_or(&name);
    stem.strip_suffix(".trace").unwrap_or(stem).to_owned()
}

/// Lines of bounded length; the number of the line in hand is kept for errors.
struct Lines<R> {
    input: R,
    line: u64,
    buffer: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    /// The next line without its end, or `None` after the last.
    fn next(&mut self) -> Result<Option<&str>, String> {
        self.line += 1;
        self.buffer.clear();
        let read = (&mut self.input).take(MAX_LINE).read_until(b'\n', &mut self.buffer);
        match read {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(format!("the compressed file ends too early ({error})"));
            }
            Err(error) => return Err(format!("cannot be read: {error}")),
        }
        if self.buffer.last() == Some(&b'\n') {
            self.buffer.pop();
        } else if self.buffer.len() as u64 == MAX_LINE {
            return Err(format!("line of more than {MAX_LINE} bytes"));
        }
        if self.line == 1 {
            reject_compressed(&self.buffer)?;
        }
        match std::str::from_utf8(&self.buffer) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err("not text (invalid UTF-8)".to_owned()),
        }
    }
}

/// Says which ending a compressed file should have had.
fn reject_compressed(start: &[u8]) -> Result<(), String> {
    let ending = match start {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => ".trace.zst",
        [0x1f, 0x8b, ..] => ".trace.gz",
        _ => return Ok(()),
    };
    Err(format!("compressed data; a file named like this is read as text, call it {ending}"))
}

/// What is known of an id of the file.
#[derive(Clone, Copy)]
struct Block {
    index: u32,
    bytes: u64,
    live: bool,
}

/// Turns lines into events and checks that they make sense together.
struct Reader {
    trace: Trace,
    ids: HashMap<u64, Block>,
    stream_index: HashMap<u64, u16>,
    live: u64,
}

impl Reader {
    fn new(name: &str) -> Self {
        let trace = Trace {
            name: name.to_owned(),
            metadata: Vec::new(),
            events: Vec::new(),
            labels: Vec::new(),
            streams: vec![0],
            blocks: 0,
            peak_live: 0,
            spread: 1,
        };
        Reader { trace, ids: HashMap::new(), stream_index: HashMap::from([(0, 0)]), live: 0 }
    }

    fn line(&mut self, text: &str) -> Result<(), String> {
        let text = text.trim();
        if let Some(rest) = text.strip_prefix('#') {
            let rest = rest.trim_start();
            let (key, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            self.trace.metadata.push((key.to_owned(), value.trim().to_owned()));
            return Ok(());
        }
        let mut fields = text.split_ascii_whitespace();
        let Some(kind) = fields.next() else { return Ok(()) };
        let event = match kind {
            "a" => self.allocate(&mut fields)?,
            "f" => self.free(&mut fields)?,
            "r" => self.record(&mut fields)?,
            "s" => Event::Synchronize { stream: self.stream(&mut fields)? },
            "m" => return self.marker(&text[1..]),
            other => {
                let shown: String = other.chars().take(20).collect();
                return Err(format!("unknown event {shown:?}; known are a, f, r, s, m and # for metadata"));
            }
        };
        if let Some(extra) = fields.next() {
            let shown: String = extra.chars().take(20).collect();
            return Err(format!("{shown:?} after the last field of event {kind:?}"));
        }
        self.trace.events.push(event);
        Ok(())
    }

    fn allocate<'a>(&mut self, fields: &mut impl Iterator<Item = &'a str>) -> Result<Event, String> {
        let id = number(fields, "ID")?;
        let bytes = number(fields, "BYTES")?;
        let stream = self.stream(fields)?;
        let block = u32::try_from(self.trace.blocks).map_err(|_| "more than 2^32 blocks".to_owned())?;
        match self.ids.entry(id) {
            Entry::Occupied(_) => return Err(format!("id {id} is allocated a second time; ids are unique")),
            Entry::Vacant(place) => place.insert(Block { index: block, bytes, live: true }),
        };
        self.live = self
            .live
            .checked_add(bytes)
            .ok_or_else(|| format!("with {} more the live bytes pass 2^64", counted(bytes, "byte[s]")))?;
        self.trace.peak_live = self.trace.peak_live.max(self.live);
        self.trace.blocks += 1;
        Ok(Event::Allocate { block, stream, bytes })
    }

    fn free<'a>(&mut self, fields: &mut impl Iterator<Item = &'a str>) -> Result<Event, String> {
        let id = number(fields, "ID")?;
        match self.ids.get_mut(&id) {
            None => Err(format!("free of id {id}, which was never allocated")),
            Some(block) if !block.live => Err(format!("id {id} is freed a second time")),
            Some(block) => {
                block.live = false;
                self.live -= block.bytes;
                Ok(Event::Free { block: block.index })
            }
        }
    }

    fn record<'a>(&mut self, fields: &mut impl Iterator<Item = &'a str>) -> Result<Event, String> {
        let id = number(fields, "ID")?;
        let stream = self.stream(fields)?;
        match self.ids.get(&id) {
            None => Err(format!("use of id {id}, which was never allocated")),
            Some(block) if !block.live => Err(format!("use of id {id} after it was freed")),
            Some(block) => Ok(Event::Record { block: block.index, stream }),
        }
    }

    fn marker(&mut self, rest: &str) -> Result<(), String> {
        let label = rest.trim();
        if label.is_empty() {
            return Err("missing field LABEL".to_owned());
        }
        let index =
            u32::try_from(self.trace.labels.len()).map_err(|_| "more than 2^32 markers".to_owned())?;
        self.trace.labels.push(label.to_owned());
        self.trace.events.push(Event::Marker { label: index });
        Ok(())
    }

    /// The next field as a stream; its index is made when the stream is new.
    fn stream<'a>(&mut self, fields: &mut impl Iterator<Item = &'a str>) -> Result<u16, String> {
        let stream = number(fields, "STREAM")?;
        if let Some(index) = self.stream_index.get(&stream) {
            return Ok(*index);
        }
        let index =
            u16::try_from(self.trace.streams.len()).map_err(|_| "more than 65536 streams".to_owned())?;
        self.trace.streams.push(stream);
        self.stream_index.insert(stream, index);
        Ok(index)
    }
}

/// The next field as a number.
fn number<'a>(fields: &mut impl Iterator<Item = &'a str>, name: &str) -> Result<u64, String> {
    let Some(text) = fields.next() else { return Err(format!("missing field {name}")) };
    let shown: String = text.chars().take(30).collect();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("{name} is {shown:?}, expected a whole number"));
    }
    text.parse().map_err(|_| format!("{name} is {shown:?}, larger than 2^64 - 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Trace, TraceError> {
        Trace::read("x", "x.trace", text.as_bytes())
    }

    fn refused(text: &str, line: u64, part: &str) {
        let error = read(text).expect_err(text);
        assert_eq!(error.line, line, "{error}");
        assert!(error.reason.contains(part), "{error} should say {part}");
    }

    #[test]
    fn a_trace_is_spread_over_streams_in_turn() {
        let text = "a 1 10 0\na 2 10 0\nr 2 7\ns 0\nf 1\na 3 10 7\ns 7\na 4 10 0\n";
        let mut trace = read(text).unwrap();
        let plain = trace.clone();
        trace.spread(1);
        assert_eq!(trace, plain);
        trace.spread(3);
        assert_eq!(trace.streams, [0, 1, 2]);
        let allocate = |block, stream| Event::Allocate { block, stream, bytes: 10 };
        assert_eq!(
            trace.events,
            [
                allocate(0, 0),
                allocate(1, 1),
                Event::Record { block: 1, stream: 2 },
                Event::Synchronize { stream: 0 },
                Event::Free { block: 0 },
                allocate(2, 2),
                Event::Synchronize { stream: 1 },
                allocate(3, 0),
            ]
        );
    }

    #[test]
    fn numbers_become_dense() {
        let trace =
            read("# task  a b\n# alone\n\na 70 10 5\r\na 3 20 0\nr 70 9\nm step 0\nf 70\ns 5\n").unwrap();
        assert_eq!(trace.metadata("task"), Some("a b"));
        assert_eq!(trace.metadata("alone"), Some(""));
        assert_eq!(trace.streams, [0, 5, 9]);
        assert_eq!(trace.labels, ["step 0"]);
        assert_eq!((trace.blocks, trace.peak_live), (2, 30));
        assert_eq!(
            trace.events,
            [
                Event::Allocate { block: 0, stream: 1, bytes: 10 },
                Event::Allocate { block: 1, stream: 0, bytes: 20 },
                Event::Record { block: 0, stream: 2 },
                Event::Marker { label: 0 },
                Event::Free { block: 0 },
                Event::Synchronize { stream: 1 },
            ]
        );
        assert_eq!(size_of::<Event>(), 16);
    }

    #[test]
    fn what_is_no_trace_is_refused_with_line_and_reason() {
        refused("a 1 2 0\nx 1\n", 2, "unknown event \"x\"");
        refused("a 1 2 0\n\na 1 3 0\n", 3, "second time");
        refused("f 1\n", 1, "never allocated");
        refused("a 1 2 0\nf 1\nf 1\n", 3, "freed a second time");
        refused("r 1 0\n", 1, "never allocated");
        refused("a 1 2 0\nf 1\nr 1 0\n", 3, "after it was freed");
        refused("a 1 18446744073709551616 0\n", 1, "larger than 2^64");
        refused("a 1 18446744073709551615 0\na 2 1 0\n", 2, "pass 2^64");
        refused("a 1 2\n", 1, "missing field STREAM");
        refused("a 1\n", 1, "missing field BYTES");
        refused("a\n", 1, "missing field ID");
        refused("f\n", 1, "missing field ID");
        refused("s\n", 1, "missing field STREAM");
        refused("m  \n", 1, "missing field LABEL");
        refused("a 1 2 0 7\n", 1, "after the last field");
        refused("a 1 -2 0\n", 1, "whole number");
        refused("a 1 +2 0\n", 1, "whole number");
        refused("# only a header\n", 0, "no event");
        refused("", 0, "no event");
        refused(&format!("m {}\n", "x".repeat(70_000)), 1, "line of more than");
        let bytes: &[u8] = b"a 1 2 0\nf \xff\n";
        let error = Trace::read("x", "x.trace", bytes).unwrap_err();
        assert_eq!((error.line, error.to_string().contains("UTF-8")), (2, true));
    }

    #[test]
    fn a_header_that_counts_otherwise_is_noticed() {
        let trace = read("# events 3\n# allocs 1\n# peak_live_bytes 7\na 1 7 0\nf 1\n").unwrap();
        assert_eq!(trace.header_disagreements(), ["the header says events 3, the file holds 2"]);
    }

    #[test]
    fn names_lose_their_endings() {
        for name in ["d/T1.trace.zst", "T1.trace.gz", "/x/y/T1.trace", "T1"] {
            assert_eq!(short_name(Path::new(name)), "T1");
        }
    }
}
