//! The notation of calls in rows: `Name(argument,argument) note`.
//!
//! Nothing is known here of what calls there are. Names lose their `acl` or `aclrt`; arguments stay text, with
//! the key of `key=value` taken off; the note is searched for the words that say which state a row needs.

/// A call as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The call without its prefix.
    pub call: String,
    /// What stands between the parentheses.
    pub arguments: Vec<Argument>,
    /// What the rest says about the state.
    pub note: Note,
}

/// One argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// The part before `=`.
    pub key: Option<String>,
    /// The rest.
    pub text: String,
}

/// The words around a call that say which state it is for. All other words are commentary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// The same was done before: `again`, `double`, `second`, `twice`, `third`.
    pub repeated: bool,
    /// `while mapped`.
    pub while_mapped: bool,
    /// `not mapped`, `unmapped`.
    pub not_mapped: bool,
    /// `never mapped`.
    pub never_mapped: bool,
    /// `overlap`.
    pub overlaps: bool,
    /// `after release`, `released`.
    pub released: bool,
    /// `after reset`.
    pub after_reset: bool,
    /// `never recorded`.
    pub never_recorded: bool,
    /// `pinned only`.
    pub pinned_only: bool,
    /// `destroyed`, `stale`.
    pub destroyed: bool,
    /// `no aclInit`.
    pub no_init: bool,
    /// `no SetDevice`, `before SetDevice`.
    pub no_device: bool,
    /// `pending`, `queued`: work that has not run yet.
    pub pending: bool,
    /// `[n devices]`.
    pub devices: Option<u32>,
}

impl Request {
    /// Takes a call apart.
    ///
    /// # Errors
    ///
    /// Why it is no call.
    pub fn parse(text: &str) -> Result<Self, String> {
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        let call = ["aclrt", "acl"].iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
        if !call.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return Err("no call begins like this".to_owned());
        }
        let (inside, note) = match rest.strip_prefix('(') {
            None => ("", rest),
            Some(rest) => {
                let close = closing(rest).ok_or("the parenthesis is never closed")?;
                (&rest[..close], &rest[close + 1..])
            }
        };
        let arguments: Vec<Argument> =
            split(inside).iter().map(|argument| Argument::parse(argument)).collect();
        let mut said = note.to_owned();
        for argument in &arguments {
            // Words of state may stand in an argument, too, behind what it names: `va unmapped`.
            let (first, more) = argument.text.split_once(' ').unwrap_or((&argument.text, ""));
            said += if first == "destroyed" { " destroyed " } else { " " };
            said += more;
        }
        let mut note = Note::read(&said);
        // An event is reset by a call of its own, which takes nothing away.
        note.after_reset &= !call.contains("Event");
        Ok(Self { call: call.to_owned(), arguments, note })
    }
}

impl Argument {
    /// One argument from its text.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let text = text.trim();
        match text.split_once('=') {
            Some((key, value)) if key.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c)) => {
                Self { key: Some(key.to_owned()), text: value.trim().to_owned() }
            }
            _ => Self { key: None, text: text.to_owned() },
        }
    }
}

impl Note {
    fn read(text: &str) -> Self {
        let has = |word: &str| text.contains(word);
        let words: Vec<&str> =
            text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
        let word = |wanted: &str| words.contains(&wanted);
        let devices =
            words.windows(2).find(|pair| pair[1] == "devices").and_then(|pair| pair[0].parse().ok());
        Self {
            repeated: ["again", "double", "second", "twice", "third"].iter().any(|wanted| word(wanted)),
            while_mapped: has("while mapped"),
            not_mapped: has("not mapped") || word("unmapped"),
            never_mapped: has("never mapped"),
            overlaps: has("overlap"),
            released: has("after release") || has("released"),
            after_reset: has("after reset"),
            never_recorded: has("never recorded"),
            pinned_only: has("pinned only"),
            destroyed: word("destroyed") || word("stale"),
            no_init: has("no aclInit"),
            no_device: has("no SetDevice") || has("before SetDevice") || has("no aclInit"),
            pending: word("pending") || word("queued"),
            devices,
        }
    }
}

/// Where the parenthesis that is open before `text` closes.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut quoted = false;
    for (index, letter) in text.char_indices() {
        match letter {
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted && depth == 0 => return Some(index),
            ')' if !quoted => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The arguments: text between commas that are in no parentheses, braces or quotes.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut depth, mut quoted) = (0, 0_i32, false);
    for (index, letter) in text.char_indices() {
        match letter {
            '"' => quoted = !quoted,
            '(' | '{' if !quoted => depth += 1,
            ')' | '}' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                parts.push(text[start..index].trim());
                start = index + 1;
            }
            _ => {}
        }
    }
    if !text.trim().is_empty() {
        parts.push(text[start..].trim());
    }
    parts
}

/// A number: decimal or `0x`, with K, M, G, T behind it, `SIZE_MAX`, or a sum or difference of such. Negative
/// ones are those of 64 bits.
#[must_use]
pub fn number(text: &str) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.split('+').try_fold(0_u64, |sum, part| {
        // A sign at the very beginning belongs to the first number.
        let (first, less) = match part.trim().char_indices().skip(1).find(|(_, letter)| *letter == '-') {
            Some((at, _)) => (&part.trim()[..at], term(&part.trim()[at + 1..])?),
            None => (part.trim(), 0),
        };
        Some(sum.wrapping_add(term(first)?).wrapping_sub(less))
    })
}

fn term(text: &str) -> Option<u64> {
    if text == "SIZE_MAX" {
        return Some(u64::MAX);
    }
    if let Some(digits) = text.strip_prefix("0x") {
        // `0x7f..`: an address that begins so.
        return match digits.strip_suffix("..") {
            Some(begin) if begin.len() < 12 => u64::from_str_radix(&format!("{begin:0<12}"), 16).ok(),
            _ => u64::from_str_radix(digits, 16).ok(),
        };
    }
    if let Some(digits) = text.strip_prefix('-') {
        return digits.parse::<i64>().ok().map(|value| value.wrapping_neg() as u64);
    }
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        b'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        Request::parse(text).unwrap().arguments.into_iter().map(|argument| argument.text).collect()
    }

    #[test]
    fn calls_are_taken_apart() {
        let request = Request::parse("aclrtSetDevice(2) [2 devices]").unwrap();
        assert_eq!((request.call.as_str(), request.note.devices), ("SetDevice", Some(2)));
        assert_eq!(Request::parse("aclInit(NULL)").unwrap().call, "Init");
        assert_eq!(Request::parse("MallocPhysical again").unwrap().arguments, []);
        assert_eq!(texts("Map(va,4M,0,h(2M),0) larger"), ["va", "4M", "0", "h(2M)", "0"]);
        assert_eq!(texts("SetAccess(va,4M,{dev0,dev1},2)"), ["va", "4M", "{dev0,dev1}", "2"]);
        assert_eq!(texts("FreePhysical((void*)0x1234)"), ["(void*)0x1234"]);
        let keyed = &Request::parse("Map(va,2M,offset=2M,h4,0)").unwrap().arguments[2];
        assert_eq!((keyed.key.as_deref(), keyed.text.as_str()), (Some("offset"), "2M"));
        assert!(Request::parse("F(").is_err());
        assert!(Request::parse("").is_err());
        assert!(Request::parse("(x)").is_err());
    }

    #[test]
    fn notes_say_the_state() {
        let note = |text: &str| Request::parse(text).unwrap().note;
        assert!(note("Release(va) double").repeated);
        assert!(note("Release(va) while mapped").while_mapped);
        assert!(!note("Reserve(&again,64M)").repeated);
        assert!(note("PointerGetAttributes(va unmapped)").not_mapped);
        assert!(note("aclrtCreateEvent(&e) [no aclInit]").no_device);
        assert!(
            note("Unmap(va) after reset").after_reset
                && !note("QueryEventStatus(e,&rs) after reset").after_reset
        );
        let plain = note("Release(va+2M) interior");
        assert_eq!(plain, Note::default());
    }

    #[test]
    fn numbers() {
        assert_eq!(number("2M+1"), Some((2 << 20) + 1));
        assert_eq!(number("2M-1"), Some((2 << 20) - 1));
        assert_eq!(number("1M+2M-1"), Some((3 << 20) - 1));
        assert_eq!(number("0x10"), Some(16));
        assert_eq!(number("0x7f.."), Some(0x7f00_0000_0000));
        assert_eq!(number("-1"), Some(u64::MAX));
        assert_eq!(number("SIZE_MAX"), Some(u64::MAX));
        assert_eq!(number("9T"), Some(9 << 40));
        for wrong in ["", "M", "va", "0x", "1+", "99999999999999T", "1-", "-", "1--"] {
            assert_eq!(number(wrong), None, "{wrong}");
        }
    }
}
