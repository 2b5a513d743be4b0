//! Events as lines of text, in files that take turns.
//!
//! | line | meaning |
//! |---|---|
//! | `# ascend-alloc history 1` | the first line of each file |
//! | `c NUMBER TEXT` | what a context or tag stands for; before its first use in the file. Functions of a stack are separated by ` < `, the innermost first |
//! | `SEQUENCE TIME ACTION DEVICE ADDRESS SIZE REQUESTED STREAM POOL TAG CONTEXT` | an event: decimal numbers and an [`Action`]'s name; 0 where there is no tag or context |
//! | `# lost COUNT` | so many events before the next line are missing |

use core::fmt::{self, Write as _};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::Path;
use std::str::FromStr;

use super::context::{ContextId, context};
use super::event::{Action, Event};
use super::log::Batch;
use super::output::{Output, beginning};
use super::paths::OwnPath;
use super::writer::Sink;

/// The first line of a file.
const TITLE: &str = "# ascend-alloc history 1";

impl fmt::Display for Event {
    /// A line of a history file, without its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequence, time, action, device, address, size, requested, stream, pool, tag, context } =
            self;
        let number = |id: &Option<ContextId>| id.map_or(0, ContextId::get);
        let (action, stream, tag, context) = (action.name(), stream.0, number(tag), number(context));
        write!(
            f,
            "{sequence} {time} {action} {device} {address} {size} {requested} {stream} {pool} {tag} {context}"
        )
    }
}

/// A line that is no event; says what is missing or wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseEventError(String);

impl fmt::Display for ParseEventError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not an event of a history file: {}", self.0)
    }
}

impl core::error::Error for ParseEventError {}

impl FromStr for Event {
    type Err = ParseEventError;

    /// Reads what [`Display`](fmt::Display) writes.
    fn from_str(line: &str) -> Result<Self, ParseEventError> {
        let mut fields = line.split_ascii_whitespace();
        let mut word =
            |name: &str| fields.next().ok_or_else(|| ParseEventError(format!("{name} is missing")));
        let number = |name: &str, word: &str| {
            word.parse::<u64>()
                .map_err(|_| ParseEventError(format!("{name} is {word:?}, expected a whole number")))
        };
        let small = |name: &str, value: u64| {
            u32::try_from(value).map_err(|_| ParseEventError(format!("{name} is {value}, expected 32 bits")))
        };
        let sequence = number("sequence", word("sequence")?)?;
        let time = number("time", word("time")?)?;
        let action = word("action")?;
        let action = Action::from_name(action)
            .ok_or_else(|| ParseEventError(format!("there is no action {action:?}")))?;
        let device = small("device", number("device", word("device")?)?)?;
        let address = number("address", word("address")?)?;
        let size = number("size", word("size")?)?;
        let requested = number("requested", word("requested")?)?;
        let stream = crate::driver::Stream(number("stream", word("stream")?)?);
        let pool = number("pool", word("pool")?)?;
        let tag = ContextId::new(small("tag", number("tag", word("tag")?)?)?);
        let context = ContextId::new(small("context", number("context", word("context")?)?)?);
        match fields.next() {
            Some(more) => Err(ParseEventError(format!("{more:?} behind the last field"))),
            None => Ok(Self {
                sequence,
                time,
                action,
                device,
                address,
                size,
                requested,
                stream,
                pool,
                tag,
                context,
            }),
        }
    }
}

/// Writes a text without line ends.
fn push_line(to: &mut String, text: &str) {
    to.extend(text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }));
}

/// Writes all events to a file; when that is long enough it gets a number and another one is begun.
pub(crate) struct Journal {
    path: OwnPath,
    most_bytes: u64,
    most_files: u32,
    file: Option<Output>,
    /// Files that have a number, the oldest first.
    aside: VecDeque<OwnPath>,
    /// The last number given.
    number: u32,
    /// Contexts that the file explains.
    explained: BTreeSet<ContextId>,
    /// Events that could not be written since the last that could.
    lost: u64,
}

impl Journal {
    /// Files of at most `most_bytes` bytes (a little more: they end with a whole piece), at most `most_files` of them.
    /// Those that an earlier process has put aside under the same name count too.
    pub(crate) fn new(path: OwnPath, most_bytes: u64, most_files: u32) -> Self {
        let (left, number) = path.left_aside(is_history);
        let (aside, explained) = (left.into(), BTreeSet::new());
        Self { path, most_bytes, most_files, file: None, aside, number, explained, lost: 0 }
    }

    /// Puts a file that is long enough aside, and removes the oldest if there are too many. One that cannot be put aside
    /// grows on.
    fn turn(&mut self) -> io::Result<()> {
        if self.file.as_ref().is_none_or(|file| file.len() < self.most_bytes) {
            return Ok(());
        }
        if self.most_files == 1 {
            self.file = None;
            return Ok(());
        }
        let (mut aside, number) = self.path.aside(self.number + 1);
        std::fs::rename(self.path.path(), aside.path())?;
        aside.keep_as(&self.path);
        self.file = None;
        self.number = number;
        self.aside.push_back(aside);
        self.thin()
    }

    /// Removes the oldest where there are too many beside the one that is written.
    fn thin(&mut self) -> io::Result<()> {
        let mut removed = Ok(());
        while self.aside.len() as u64 >= u64::from(self.most_files)
            && let Some(oldest) = self.aside.pop_front()
        {
            removed = removed.and(oldest.remove());
        }
        removed
    }

    fn text(&mut self, batch: &Batch, title: bool) -> String {
        let mut text = String::with_capacity(batch.events.len() * 80);
        // Writing to a text cannot fail.
        if title {
            let _ = writeln!(text, "{TITLE}");
        }
        if batch.lost + self.lost > 0 {
            let _ = writeln!(text, "# lost {}", batch.lost + self.lost);
        }
        for event in &batch.events {
            for id in event.context.into_iter().chain(event.tag) {
                if self.explained.insert(id) {
                    let _ = write!(text, "c {} ", id.get());
                    push_line(&mut text, &context(id).map(|it| it.to_string()).unwrap_or_default());
                    text.push('\n');
                }
            }
            let _ = writeln!(text, "{event}");
        }
        text
    }
}

/// Whether a file is a history: whatever else has such a name is not touched.
fn is_history(path: &Path) -> bool {
    let title = TITLE.trim_end_matches(|letter: char| letter.is_ascii_digit());
    beginning(path, title.len()).is_ok_and(|begins| begins == title.as_bytes())
}

impl Sink for Journal {
    fn write(&mut self, batch: &Batch, _last: bool) -> io::Result<()> {
        if self.file.is_some() && batch.events.is_empty() && batch.lost == 0 {
            return Ok(());
        }
        let mut turned = self.turn();
        let begins = self.file.is_none();
        if begins {
            self.explained.clear();
            match Output::create(self.path.path()) {
                Ok(file) => {
                    self.file = Some(file);
                    turned = turned.and(self.thin());
                }
                Err(error) => {
                    self.lost += batch.events.len() as u64 + batch.lost;
                    return Err(error);
                }
            }
        }
        let text = self.text(batch, begins);
        let written = self.file.as_mut().map_or(Ok(()), |file| file.append(&text));
        match &written {
            Ok(()) => self.lost = 0,
            Err(_) => {
                self.lost += batch.events.len() as u64 + batch.lost;
                // What was explained in the piece that failed is not explained.
                self.explained.clear();
                if begins {
                    self.file = None;
                }
            }
        }
        turned.and(written)
    }

    fn path(&self) -> &Path {
        self.path.path()
    }
}
