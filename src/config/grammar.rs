//! The grammar of a configuration text, without any knowledge of keys.
//!
//! ```text
//! text  = [ pair { "," pair } [ "," ] ]
//! pair  = key ":" ( word | "[" word ":" word { "," word ":" word } "]" )
//! word  = one or more characters other than , : [ ]     (white space around it is dropped)
//! ```

/// One `key:value` of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair<'a> {
    pub key: &'a str,
    pub value: Value<'a>,
    /// The value as written, brackets included.
    pub text: &'a str,
}

/// A value, split but not interpreted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Word(&'a str),
    List(Vec<(&'a str, &'a str)>),
}

/// A text that does not follow the grammar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed<'a> {
    /// The key at which it happened; empty where there is none.
    pub key: &'a str,
    /// Its value, where it is whole.
    pub value: &'a str,
    /// What stands there.
    pub found: &'a str,
    pub reason: &'static str,
}

/// Splits `text` into its pairs, in the order written.
pub(super) fn pairs(text: &str) -> Result<Vec<Pair<'_>>, Malformed<'_>> {
    let mut cursor = Cursor { rest: text };
    let mut found = Vec::new();
    while !cursor.rest.trim_start().is_empty() {
        found.push(pair(&mut cursor)?);
        let Pair { key, text: value, .. } = found[found.len() - 1];
        if !cursor.rest.trim_start().is_empty() && !cursor.take(',') {
            return Err(Malformed { key, value, found: cursor.rest.trim(), reason: NO_COMMA });
        }
    }
    Ok(found)
}

const NO_COMMA: &str = "a ',' is missing after the value";
const NO_KEY: &str = "a key is missing";
const NO_COLON: &str = "a ':' is missing after the key";
const NO_VALUE: &str = "the value is missing";
const NO_COLON_IN_LIST: &str = "a ':' is missing in the list";
const NO_COMMA_IN_LIST: &str = "a ',' or ']' is missing in the list";
const NO_WORD_IN_LIST: &str = "a size or a number is missing in the list";

fn pair<'a>(cursor: &mut Cursor<'a>) -> Result<Pair<'a>, Malformed<'a>> {
    let start = cursor.rest;
    let key = cursor.word();
    if key.is_empty() {
        return Err(Malformed { key, value: "", found: start.trim(), reason: NO_KEY });
    }
    if !cursor.take(':') {
        return Err(Malformed { key, value: "", found: cursor.rest.trim(), reason: NO_COLON });
    }
    let from = cursor.rest;
    let value = if cursor.take('[') {
        Value::List(list(cursor, key, from)?)
    } else {
        let word = cursor.word();
        if word.is_empty() {
            return Err(Malformed { key, value: "", found: from.trim(), reason: NO_VALUE });
        }
        Value::Word(word)
    };
    let text = from[..from.len() - cursor.rest.len()].trim();
    Ok(Pair { key, value, text })
}

/// The rest of a list whose `[` is taken.
fn list<'a>(
    cursor: &mut Cursor<'a>,
    key: &'a str,
    from: &'a str,
) -> Result<Vec<(&'a str, &'a str)>, Malformed<'a>> {
    let wrong = |reason| Malformed { key, value: "", found: from.trim(), reason };
    let mut entries = Vec::new();
    loop {
        let left = cursor.word();
        if left.is_empty() {
            return Err(wrong(NO_WORD_IN_LIST));
        }
        if !cursor.take(':') {
            return Err(wrong(NO_COLON_IN_LIST));
        }
        let right = cursor.word();
        if right.is_empty() {
            return Err(wrong(NO_WORD_IN_LIST));
        }
        entries.push((left, right));
        if cursor.take(']') {
            return Ok(entries);
        }
        if !cursor.take(',') {
            return Err(wrong(NO_COMMA_IN_LIST));
        }
    }
}

/// What is left of the text.
struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    /// Takes everything up to the next delimiter, which stays.
    fn word(&mut self) -> &'a str {
        let end = self.rest.find([',', ':', '[', ']']).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word.trim()
    }

    /// Takes `delimiter` if it comes next.
    fn take(&mut self, delimiter: char) -> bool {
        match self.rest.trim_start().strip_prefix(delimiter) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_and_a_last_comma_do_not_matter() {
        let found = pairs(" a : 1 ,\tb: [ 2 : 3 , > : 4 ] , ").unwrap();
        assert_eq!(
            found,
            [
                Pair { key: "a", value: Value::Word("1"), text: "1" },
                Pair {
                    key: "b",
                    value: Value::List(vec![("2", "3"), (">", "4")]),
                    text: "[ 2 : 3 , > : 4 ]"
                },
            ]
        );
        assert_eq!(pairs(" \n "), Ok(vec![]));
    }

    #[test]
    fn every_missing_piece_is_named() {
        let cases = [
            (",", "", ",", NO_KEY),
            ("a:1,,b:2", "", ",b:2", NO_KEY),
            (":1", "", ":1", NO_KEY),
            ("a", "a", "", NO_COLON),
            ("a,b:1", "a", ",b:1", NO_COLON),
            ("a[1:2]", "a", "[1:2]", NO_COLON),
            ("a:", "a", "", NO_VALUE),
            ("a:,b:1", "a", ",b:1", NO_VALUE),
            ("a:]", "a", "]", NO_VALUE),
            ("a:1 b:2", "a", ":2", NO_COMMA),
            ("a:1:2", "a", ":2", NO_COMMA),
            ("a:[1:2]b:2", "a", "b:2", NO_COMMA),
            ("a:[1]", "a", "[1]", NO_COLON_IN_LIST),
            ("a:[1:2", "a", "[1:2", NO_COMMA_IN_LIST),
            ("a:[1:2,", "a", "[1:2,", NO_WORD_IN_LIST),
            ("a:[]", "a", "[]", NO_WORD_IN_LIST),
            ("a:[1:]", "a", "[1:]", NO_WORD_IN_LIST),
            ("a:[1:2:3]", "a", "[1:2:3]", NO_COMMA_IN_LIST),
        ];
        for (text, key, found, reason) in cases {
            let value = match reason {
                NO_COMMA => text.strip_suffix(found).and_then(|whole| whole.strip_prefix("a:")).unwrap(),
                _ => "",
            };
            assert_eq!(pairs(text), Err(Malformed { key, value, found, reason }), "{text:?}");
        }
    }
}
