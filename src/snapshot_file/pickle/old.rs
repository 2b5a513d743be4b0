//! Values of protocols 0 and 1, which are lines of text.

use std::borrow::Cow;

use super::super::tree::Node;

/// Longest line that is a number, in bytes.
const LONGEST_NUMBER: usize = 64;

/// The number of an `INT` or `LONG` line; `INT` has truth values too.
pub(super) fn whole_number(line: &[u8], is_long: bool) -> Result<Node, String> {
    match line {
        b"00" if !is_long => return Ok(Node::Bool(false)),
        b"01" if !is_long => return Ok(Node::Bool(true)),
        _ => {}
    }
    let digits = if is_long { line.strip_suffix(b"L").unwrap_or(line) } else { line };
    let value: i128 = short_text(digits)
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| format!("{} is no whole number of up to 128 bits", shown(line)))?;
    Ok(i64::try_from(value).map_or_else(|_| Node::Wide(Box::new(value)), Node::Int))
}

/// The number of a `FLOAT` line.
pub(super) fn fraction(line: &[u8]) -> Result<Node, String> {
    let value = short_text(line).and_then(|text| text.parse().ok());
    value.map(Node::Float).ok_or_else(|| format!("{} is no number", shown(line)))
}

/// The number of a `GET` or `PUT` line.
pub(super) fn memo_number(line: &[u8]) -> Result<u32, String> {
    let value = short_text(line).and_then(|text| text.parse().ok());
    value.ok_or_else(|| format!("{} is no number of the memo", shown(line)))
}

fn short_text(line: &[u8]) -> Option<&str> {
    let line = line.trim_ascii();
    if line.len() > LONGEST_NUMBER { None } else { core::str::from_utf8(line).ok() }
}

/// The beginning of a line, for errors.
pub(super) fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(40)]);
    if line.len() > 40 { format!("{text:?}...") } else { format!("{text:?}") }
}

/// A text as Python has it: UTF-8 that may hold halves of surrogate pairs, which become U+FFFD.
pub(super) fn text(bytes: &[u8]) -> Node {
    let text: Cow<'_, str> = String::from_utf8_lossy(bytes);
    Node::Text(text.into())
}

/// The text of a `UNICODE` line: Latin-1 with `\uXXXX` and `\UXXXXXXXX`.
pub(super) fn raw_unicode(line: &[u8]) -> Result<Node, String> {
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while let [first, after @ ..] = rest {
        rest = after;
        let digits = match (first, after.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => {
                text.push(char::from(*first));
                continue;
            }
        };
        let code = after.get(1..=digits).and_then(hexadecimal);
        let code = code.ok_or_else(|| format!("an escape in {} lacks its {digits} digits", shown(line)))?;
        text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
        rest = &after[1 + digits..];
    }
    Ok(Node::Text(text.into()))
}

/// The text of a `STRING` line: in quotes, with the escapes of Python's byte strings.
pub(super) fn quoted(line: &[u8]) -> Result<Node, String> {
    let line = line.trim_ascii_end();
    let inner = match line {
        [b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"'] => inner,
        _ => return Err(format!("{} is no text in quotes", shown(line))),
    };
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let [first, after @ ..] = rest {
        rest = after;
        let (b'\\', [escape, after @ ..]) = (first, after) else {
            bytes.push(*first);
            continue;
        };
        rest = after;
        match escape {
            b'n' => bytes.push(b'\n'),
            b't' => bytes.push(b'\t'),
            b'r' => bytes.push(b'\r'),
            b'\\' | b'\'' | b'"' => bytes.push(*escape),
            b'x' => {
                let code = after.get(..2).and_then(hexadecimal);
                let code = code.ok_or_else(|| format!("an escape in {} lacks its digits", shown(line)))?;
                // Two digits are a byte.
                bytes.push(code as u8);
                rest = &after[2..];
            }
            other => bytes.extend([b'\\', *other]),
        }
    }
    Ok(text(&bytes))
}

/// The number that hexadecimal digits are; at most eight.
fn hexadecimal(digits: &[u8]) -> Option<u32> {
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u32::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_text(node: Result<Node, String>, expected: &str) {
        assert_eq!(node, Ok(Node::Text(expected.into())));
    }

    #[test]
    fn numbers() {
        assert_eq!(whole_number(b"01", false), Ok(Node::Bool(true)));
        assert_eq!(whole_number(b"-17", false), Ok(Node::Int(-17)));
        assert_eq!(whole_number(b"18446744073709551615L", true), Ok(Node::Wide(Box::new(u64::MAX.into()))));
        assert!(whole_number(b"1x", false).unwrap_err().contains("no whole number"));
        assert!(whole_number(&[b'9'; 100], true).unwrap_err().contains("128 bits"));
        assert_eq!(fraction(b"1.5e3"), Ok(Node::Float(1500.0)));
        assert!(fraction(b"").is_err());
        assert_eq!(memo_number(b"12"), Ok(12));
        assert!(memo_number(b"-1").is_err());
    }

    #[test]
    fn texts() {
        is_text(raw_unicode(b"a\\u00e9\\U0001f600\xe9\\n"), "a\u{e9}\u{1f600}\u{e9}\\n");
        is_text(raw_unicode(b"\\ud800"), "\u{fffd}");
        assert!(raw_unicode(b"\\u12").unwrap_err().contains("4 digits"));
        is_text(quoted(b"'a\\n\\x41\\'\\q'"), "a\nA'\\q");
        is_text(quoted(b"\"\""), "");
        assert!(quoted(b"'").is_err());
        assert!(quoted(b"'\\x4'").unwrap_err().contains("digits"));
    }
}
