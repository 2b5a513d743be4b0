//! Rows: what a call answered, in groups that begin anew; and their form in Markdown.
//!
//! A heading ``## group `name` `` opens a group, and a line of its table is a row:
//!
//! ```text
//! | `Reserve(&va,64M,0,NULL,1)` | 0 | K |
//! ```
//!
//! What stands where a row should be and is none becomes a row all the same, one that says so.

use super::syntax::Request;

/// What a row says the call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It answers this code.
    Code(i32),
    /// It ends the process with this signal. An error is the better answer and counts as equal.
    Signal(i32),
}

/// One row.
#[derive(Clone, Debug)]
pub struct Row {
    /// Line of the file, from 1.
    pub line: usize,
    /// The call as it is written.
    pub text: String,
    /// The answer that is listed.
    pub expected: Result<Expected, String>,
    /// The call as it was understood, or why it was not.
    pub request: Result<Request, String>,
}

/// Rows that are played one after the other in a process of their own.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Whether its rows are those of Ascend950 (they differ from those of other parts).
    pub is_950: bool,
    /// Whether its rows are the stricter answers that a simulator can give.
    pub is_strict: bool,
    /// Whether no row that changes the state is left out: then nothing is brought about between rows.
    pub is_complete: bool,
    /// Whether a complete group begins before ACL is initialised.
    pub begins_before_init: bool,
    /// Its rows, in order.
    pub rows: Vec<Row>,
}

impl Expected {
    /// Reads a code or `SIGNAL n`.
    ///
    /// # Errors
    ///
    /// What was written, if it is neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        match text.strip_prefix("SIGNAL") {
            Some(number) => number.trim().parse().map(Self::Signal),
            None => text.parse().map(Self::Code),
        }
        .map_err(|_| format!("`{text}` is neither a code nor a signal"))
    }

    /// Whether the answer is the listed one.
    #[must_use]
    pub fn allows(self, code: i32) -> bool {
        match self {
            Self::Code(expected) => expected == code,
            Self::Signal(_) => code != 0,
        }
    }
}

/// The groups of a file in Markdown. Text before the first group is not looked at.
#[must_use]
pub fn read(text: &str) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut open = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('#') {
            let name = line.trim_start_matches('#').trim().strip_prefix("group").map(str::trim);
            open = name.is_some();
            if let Some(name) = name {
                let name = name.trim_matches('`');
                let (name, is_950) = (name.to_owned(), name.contains("950"));
                groups.push(Group { name, is_950, ..Group::default() });
            }
            continue;
        }
        let Some(group) = groups.last_mut().filter(|_| open && line.starts_with('|')) else { continue };
        let cells = cells(line);
        let is_ruler = cells.iter().all(|cell| !cell.is_empty() && cell.chars().all(|c| "-: ".contains(c)));
        if is_ruler || cells.first().is_some_and(|cell| cell == "call") {
            continue;
        }
        group.rows.push(row(index + 1, line, &cells));
    }
    groups
}

fn row(line: usize, whole: &str, cells: &[String]) -> Row {
    let [call, code, ..] = cells else {
        let reason = "the line has no call and code".to_owned();
        return Row { line, text: whole.to_owned(), expected: Err(reason.clone()), request: Err(reason) };
    };
    let text = call.trim_matches('`').trim();
    Row { line, text: text.to_owned(), expected: Expected::parse(code), request: Request::parse(text) }
}

/// The cells of a line, without the bars; `\|` is a bar in a cell.
fn cells(line: &str) -> Vec<String> {
    let inner = line.strip_prefix('|').unwrap_or(line);
    let inner = inner.strip_suffix('|').unwrap_or(inner);
    let mut cells = vec![String::new()];
    let mut rest = inner.chars().peekable();
    while let Some(letter) = rest.next() {
        match letter {
            '\\' if rest.peek() == Some(&'|') => {
                rest.next();
                cells.last_mut().expect("there is one from the start").push('|');
            }
            '|' => cells.push(String::new()),
            other => cells.last_mut().expect("there is one from the start").push(other),
        }
    }
    cells.iter().map(|cell| cell.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_has_groups_and_rows() {
        let text = "| a | 1 |\n## group `one`\n\n| call | code | layer |\n|---|---|---|\n\
                    | `F(a\\|b) note` | 107000 | U |\n| `G()` | SIGNAL 11 | U |\n| lost |\n# More\n| `H()` | 0 | R |\n";
        let groups = read(text);
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].name, "one");
        let rows = &groups[0].rows;
        assert_eq!(rows.len(), 3);
        assert_eq!((rows[0].line, rows[0].text.as_str()), (6, "F(a|b) note"));
        assert_eq!(rows[0].expected, Ok(Expected::Code(107_000)));
        assert_eq!(rows[1].expected, Ok(Expected::Signal(11)));
        assert!(rows[2].expected.is_err());
    }

    #[test]
    fn an_error_is_as_good_as_a_signal() {
        assert!(Expected::Signal(11).allows(107_000));
        assert!(!Expected::Signal(11).allows(0));
        assert!(!Expected::Code(0).allows(107_000));
        assert!(Expected::parse("0 or 1").is_err());
    }
}
