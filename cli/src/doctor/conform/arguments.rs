//! From the arguments of a row to values, without looking at what the names stand for.

use ascend_alloc::acl::sys;
use ascend_alloc::words::counted;

use super::calls::{Call, Domain, Kind, What};
use super::syntax::{Request, number};

/// The value of one argument.
#[derive(Clone, Debug)]
pub enum Value {
    /// NULL.
    Null,
    /// A number, or an address written as one.
    Number(u64),
    /// So much above the address that `expect=` named last.
    Relative(u64),
    /// Something with a name, and what is known of it from here.
    Named(Named),
    /// The one destroyed last.
    Gone(What),
    /// Memory of zeros where a handle belongs.
    Invented,
    /// A place for what is made, under this name or none.
    Made(What, Option<String>),
    /// A place for an answer.
    Place,
    /// A text.
    Text(String),
    /// A description of memory, a location, or descriptions of access.
    Specs(Kind, Vec<Spec>),
}

/// A name with what stands around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name.
    pub name: String,
    /// What it is, if nothing of that name is known.
    pub what: What,
    /// Bytes behind its start.
    pub offset: u64,
    /// Bytes it has, as in `h(2M)`.
    pub bytes: Option<u64>,
    /// The device it is said to be of.
    pub device: Option<u32>,
    /// Whether it is said to be the host's.
    pub is_host: bool,
    /// Whether it is said to be mapped.
    pub is_mapped: bool,
}

/// Memory, a place, or access to a place; fields that a use of it does not have are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// `aclrtMemHandleType`.
    pub handle: u32,
    /// `aclrtMemAllocationType`.
    pub allocation: u32,
    /// `aclrtMemAttr`.
    pub attr: u32,
    /// `aclrtMemLocationType`.
    pub location: u32,
    /// The number of the device or host.
    pub id: u32,
    /// Must be 0.
    pub reserve: u64,
    /// `aclrtMemAccessFlags`.
    pub access: u32,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            handle: sys::ACL_MEM_HANDLE_TYPE_NONE,
            allocation: sys::ACL_MEM_ALLOCATION_TYPE_PINNED,
            attr: sys::ACL_HBM_MEM_HUGE,
            location: sys::ACL_MEM_LOCATION_TYPE_DEVICE,
            id: 0,
            reserve: 0,
            access: sys::ACL_RT_MEM_ACCESS_FLAGS_READWRITE,
        }
    }
}

impl Spec {
    /// The device it is about.
    #[must_use]
    pub fn device(&self) -> Option<u32> {
        (self.location == sys::ACL_MEM_LOCATION_TYPE_DEVICE).then_some(self.id)
    }

    /// Reads words such as `dev1 HBM_HUGE`, `host id 3 RW`, `location MANAGED`, `attr=999`.
    fn read(&mut self, text: &str) -> Result<(), String> {
        let mut words = text.split_whitespace().peekable();
        while let Some(word) = words.next() {
            if let Some((key, value)) = word.split_once('=') {
                self.set(key, value)?;
                continue;
            }
            let attr = Domain::Attr.number(word);
            let location = Domain::Location.number(word);
            match word {
                "of" | "id" | "location" => {}
                "type" => self.set("type", words.next().unwrap_or_default())?,
                "dev" | "device" | "host" => {
                    let id = words.find(|word| *word != "id").unwrap_or_default();
                    self.set(word, id)?;
                }
                _ if attr.is_some() => self.attr = narrow(attr.unwrap_or_default()),
                _ if location.is_some() => self.location = narrow(location.unwrap_or_default()),
                _ => match (word.strip_prefix("dev"), word.strip_prefix("host"), Domain::Access.number(word))
                {
                    (Some(id), _, _) => self.set("dev", id)?,
                    (_, Some(id), _) => self.set("host", id)?,
                    (_, _, Some(access)) => self.access = narrow(access),
                    _ => return Err(unknown(word)),
                },
            }
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let domain = match key {
            "attr" | "memAttr" => Domain::Attr,
            "handleType" => Domain::Handle,
            "location" => Domain::Location,
            "access" => Domain::Access,
            _ => Domain::Plain,
        };
        let number = value_of(domain, value).ok_or_else(|| unknown(value))?;
        match key.strip_prefix("prop.").unwrap_or(key) {
            "attr" | "memAttr" => self.attr = narrow(number),
            "handleType" => self.handle = narrow(number),
            "allocationType" => self.allocation = narrow(number),
            "location" | "type" => self.location = narrow(number),
            "reserve" => self.reserve = number,
            "access" => self.access = narrow(number),
            "dev" | "device" => {
                (self.location, self.id) = (sys::ACL_MEM_LOCATION_TYPE_DEVICE, narrow(number))
            }
            "host" => (self.location, self.id) = (sys::ACL_MEM_LOCATION_TYPE_HOST, narrow(number)),
            _ => return Err(unknown(key)),
        }
        Ok(())
    }
}

/// The values of all arguments of the call, in its order.
///
/// # Errors
///
/// What is not understood.
pub fn read(call: &Call, request: &Request) -> Result<Vec<Value>, String> {
    let mut texts: Vec<Option<String>> = vec![None; call.slots.len()];
    let mut spec = Spec::default();
    let described = call.slots.iter().position(|slot| takes_spec(slot.kind));
    for (index, argument) in request.arguments.iter().enumerate() {
        let (slot, text) = match &argument.key {
            Some(key) => match call.slots.iter().position(|slot| is_key(slot.key, key)) {
                Some(slot) => (slot, argument.text.clone()),
                None if described.is_some() => {
                    spec.read(&format!("{key}={}", argument.text))?;
                    continue;
                }
                None => return Err(unknown(key)),
            },
            None => (index, argument.text.clone()),
        };
        let Some(kind) = call.slots.get(slot).map(|slot| slot.kind) else {
            return Err(format!("{} takes {}", call.symbol, counted(call.slots.len() as u64, "argument[s]")));
        };
        // Where a call describes memory, words of the description may stand at any argument.
        let text = match (described, argument.key.is_none() && kind != Kind::Access && kind != Kind::Location)
        {
            (Some(_), true) => without_description(&text, &mut spec),
            _ => text,
        };
        texts[slot] = Some(text).filter(|text| !text.is_empty() && text != "..");
    }
    let slots = call.slots.iter().zip(texts);
    slots
        .map(|(slot, text)| match slot.kind {
            // A row with no arguments at all makes the thing that other rows of its group use.
            Kind::Out(what) if request.arguments.is_empty() => {
                Ok(Value::Made(what, Some(default_name(what).to_owned())))
            }
            _ => value(slot.kind, text.as_deref().unwrap_or(slot.default), &spec),
        })
        .collect()
}

/// The argument without the words that describe memory, which are read.
fn without_description(text: &str, spec: &mut Spec) -> String {
    let (first, rest) = text.split_once(' ').unwrap_or((text, ""));
    let mut tried = *spec;
    if first.starts_with('&') || first == "NULL" || number(first).is_some() {
        if !rest.is_empty() && tried.read(rest).is_ok() {
            *spec = tried;
            return first.to_owned();
        }
    } else if tried.read(text).is_ok() {
        *spec = tried;
        return String::new();
    }
    text.to_owned()
}

fn value(kind: Kind, text: &str, spec: &Spec) -> Result<Value, String> {
    if matches!(text, "NULL" | "null" | "nullptr") {
        return Ok(Value::Null);
    }
    match kind {
        Kind::Place if text.is_empty() || text.starts_with('&') => Ok(Value::Place),
        Kind::Place => Err(unknown(text)),
        Kind::Out(what) => match text.strip_prefix('&') {
            Some(name) if is_name(name) => Ok(Value::Made(what, Some(name.to_owned()))),
            None if text.is_empty() => Ok(Value::Made(what, None)),
            _ => Err(unknown(text)),
        },
        Kind::Number(domain) => {
            let first = text.split(' ').next().unwrap_or_default();
            value_of(domain, text)
                .or_else(|| value_of(domain, first))
                .map(Value::Number)
                .ok_or_else(|| unknown(text))
        }
        Kind::Text => {
            let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
            inner.map(|text| Value::Text(text.to_owned())).ok_or_else(|| unknown(text))
        }
        Kind::Config => Err(format!("a configuration: `{text}`")),
        Kind::Prop => match text {
            "" => Ok(Value::Specs(kind, vec![*spec])),
            _ if text.starts_with('&') => Ok(Value::Specs(kind, vec![*spec])),
            _ => Err(unknown(text)),
        },
        Kind::Location | Kind::Access => specs(kind, text, spec),
        Kind::In(what) => pointer(what, text),
    }
}

fn specs(kind: Kind, text: &str, spec: &Spec) -> Result<Value, String> {
    let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    let mut specs = Vec::new();
    for part in inner.unwrap_or(text).split(',') {
        let mut one = *spec;
        if !part.starts_with('&') {
            one.read(part)?;
        }
        specs.push(one);
    }
    Ok(Value::Specs(kind, specs))
}

/// Something that is pointed to.
fn pointer(what: What, text: &str) -> Result<Value, String> {
    let text = text.strip_prefix("(void*)").unwrap_or(text).trim();
    let first = text.split(' ').next().unwrap_or_default();
    let named = |name: &str, what| {
        let name = if is_name(name) { name.to_owned() } else { format!("some_{what:?}") };
        Value::Named(Named {
            name,
            what,
            offset: 0,
            bytes: None,
            device: None,
            is_host: false,
            is_mapped: false,
        })
    };
    let last = text.rsplit(' ').next().unwrap_or_default();
    let short_last = if is_name(last) && last.len() <= 2 { last } else { "" };
    Ok(match first {
        "" => named(default_name(what), what),
        "default" => Value::Null,
        "same" => Value::Relative(0),
        "destroyed" | "stale" => Value::Gone(what),
        _ if text.starts_with("pointer to ") => Value::Invented,
        _ if text.contains("aclrtMallocHost") => named("", What::Pinned),
        "host" if text.starts_with("host ptr") || text.starts_with("host pointer") => {
            named(short_last, What::Pinned)
        }
        "host" if text == "host" && what != What::Chunk => named("", What::Pinned),
        "host" if what == What::Chunk => {
            let Value::Named(mut named) = named("host", what) else { return Err(unknown(text)) };
            named.is_host = true;
            Value::Named(named)
        }
        "pointer" if text.contains("aclrtMalloc") => named("", What::Block),
        "device" => named(short_last, What::Block),
        "reserved" | "mapped" => {
            let Value::Named(mut named) = named("", What::Range) else { return Err(unknown(text)) };
            named.is_mapped = first == "mapped";
            Value::Named(named)
        }
        _ if text.starts_with('+') => {
            Value::Relative(number(first.trim_start_matches('+')).ok_or_else(|| unknown(first))?)
        }
        _ if number(first).is_some() => Value::Number(number(first).unwrap_or_default()),
        _ => expression(what, text)?,
    })
}

/// `name`, `name+2M`, `name(2M)`, `name of dev1`, with any remark behind it.
fn expression(what: What, text: &str) -> Result<Value, String> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '&').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    // A variable of the program, whose address is meant: `&stack`.
    let is_variable = !what.is_handle() && name.strip_prefix('&').is_some_and(is_name);
    if !is_name(name) && !is_variable {
        return Err(unknown(text));
    }
    let (mut bytes, mut rest) = (None, rest);
    if let Some((inside, behind)) = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
        bytes = Some(inside.split(' ').find_map(number).ok_or_else(|| unknown(inside))?);
        rest = behind;
    }
    let (sum, remark) = rest.split_once(' ').unwrap_or((rest, ""));
    let offset = match sum.strip_prefix('+') {
        Some(sum) => number(sum).ok_or_else(|| unknown(sum))?,
        None if sum.is_empty() => 0,
        None => return Err(unknown(text)),
    };
    if let Some(word) = remark.split(' ').find(|word| !is_remark(word)) {
        return Err(unknown(&format!("{name} {word}")));
    }
    let is_host =
        remark.split(' ').any(|word| word.strip_prefix("host").is_some_and(|id| id.parse::<u32>().is_ok()));
    let device = remark.split(' ').find_map(|word| word.strip_prefix("dev")?.parse().ok());
    let what = if name.starts_with('&') {
        What::Own
    } else if remark.contains("aclrtMalloc") {
        What::Block
    } else {
        what
    };
    let (name, is_mapped) = (name.to_owned(), false);
    Ok(Value::Named(Named { name, what, offset, bytes, device, is_host, is_mapped }))
}

/// Words that may stand behind a name: they say what is so already, or which state is meant.
fn is_remark(word: &str) -> bool {
    const WORDS: &[&str] = &[
        "",
        "address",
        "aligned",
        "already",
        "aclrtMalloc",
        "busy",
        "destroyed",
        "freed",
        "from",
        "host",
        "interior",
        "mapped",
        "never",
        "not",
        "of",
        "only",
        "outside",
        "pinned",
        "released",
        "reserved",
        "still",
        "unaligned",
        "unmapped",
        "window",
    ];
    let is_place = |prefix: &str| word.strip_prefix(prefix).is_some_and(|id| id.parse::<u32>().is_ok());
    WORDS.contains(&word) || is_place("dev") || is_place("host")
}

/// What a row means that does not say which.
fn default_name(what: What) -> &'static str {
    match what {
        What::Range => "va",
        What::Chunk => "h",
        What::Block => "d",
        What::Pinned => "p",
        What::Own => "m",
        What::Stream => "s",
        What::Event => "e",
        What::Context => "c",
        What::Graph => "g",
    }
}

/// A number: flags between bars, each a name of the domain or a number.
fn value_of(domain: Domain, text: &str) -> Option<u64> {
    let parts = text.split('|').map(str::trim);
    parts.map(|part| number(part).or_else(|| domain.number(part))).try_fold(0, |all, part| Some(all | part?))
}

fn takes_spec(kind: Kind) -> bool {
    matches!(kind, Kind::Prop | Kind::Location | Kind::Access)
}

fn is_key(slot: &str, key: &str) -> bool {
    slot == key
        || (slot == "expect" && key == "expectPtr")
        || slot.trim_end_matches('s') == key.trim_end_matches('s')
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn narrow(number: u64) -> u32 {
    // A negative number is one of 64 bits here and of 32 there.
    number as u32
}

fn unknown(text: &str) -> String {
    format!("`{text}`")
}
