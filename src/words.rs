//! Counts in texts for people. Public for the command alone: no part of the interface.

use core::fmt;

/// A count and what is counted, in words that agree with it.
#[derive(Clone, Copy, Debug)]
pub struct Counted<'a> {
    count: u64,
    words: &'a str,
}

/// A count before what is counted: of `[one|many]` in the words that part which fits, of `[s]` nothing for one.
/// `counted(1, "event[s] [was|were] left out")` is "1 event was left out".
#[must_use]
pub fn counted(count: u64, words: &str) -> Counted<'_> {
    Counted { count, words }
}

impl fmt::Display for Counted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.count)?;
        let mut rest = self.words;
        while let Some((before, behind)) = rest.split_once('[') {
            let (choice, after) = behind.split_once(']').unwrap_or((behind, ""));
            let (one, many) = choice.split_once('|').unwrap_or(("", choice));
            write!(f, "{before}{}", if self.count == 1 { one } else { many })?;
            rest = after;
        }
        f.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_agree_with_their_count() {
        let shown = |count| counted(count, "quer[y|ies] of event[s] [was|were] left out").to_string();
        assert_eq!(shown(1), "1 query of event was left out");
        for many in [0, 2, 11] {
            assert_eq!(shown(many), format!("{many} queries of events were left out"));
        }
        assert_eq!(counted(1, "sheep").to_string(), "1 sheep");
        assert_eq!(counted(2, "byte[s]").to_string(), "2 bytes");
    }
}
