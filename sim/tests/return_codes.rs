//! Plays the rows of `return_codes.txt` on a machine with real mappings and on one with tables only.

use std::collections::HashMap;

use ascend_sim::codes::{ACCESS_READWRITE, location};
use ascend_sim::{AccessDescriptor, BackingMode, Location, PhysicalProp, Sim, SimConfig, Soc};

const TABLE: &str = include_str!("return_codes.txt");

#[test]
fn rows_with_tables_only() {
    assert_eq!(play(BackingMode::MetadataOnly), 0, "rows that differ");
}

#[test]
fn rows_with_real_mappings() {
    assert_eq!(play(BackingMode::Mapped), 0, "rows that differ");
}

/// Plays all rows and prints those that differ; how many do.
fn play(backing: BackingMode) -> usize {
    let (mut wrong, mut rows) = (0, 0);
    let mut player = None;
    for (number, line) in TABLE.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [] | ["#", ..] => {}
            ["group", _, settings @ ..] => player = Some(Player::new(backing, settings)),
            [code, call, arguments @ ..] => {
                let player = player.as_mut().expect("a row belongs to a group");
                let expected: i32 = code.parse().expect("a row begins with a code");
                let answer = player.call(call, &Arguments::new(arguments));
                let got = answer.err().unwrap_or(0);
                rows += 1;
                if got != expected {
                    println!("line {}: {line}: answered {got}", number + 1);
                    wrong += 1;
                }
            }
            [word] => panic!("line {}: what is {word}?", number + 1),
        }
    }
    assert!(rows > 300, "the table has {rows} rows");
    wrong
}

/// The words after a call: values in order, and `key=value`.
struct Arguments<'a> {
    values: Vec<&'a str>,
    named: HashMap<&'a str, &'a str>,
}

impl<'a> Arguments<'a> {
    fn new(words: &[&'a str]) -> Self {
        let named = words.iter().filter_map(|word| word.split_once('=')).collect();
        let values = words.iter().filter(|word| !word.contains('=')).copied().collect();
        Self { values, named }
    }
}

/// One machine and the names given so far.
struct Player {
    sim: Sim,
    names: HashMap<String, u64>,
    buffers: Vec<Vec<u8>>,
}

impl Player {
    fn new(backing: BackingMode, settings: &[&str]) -> Self {
        let settings = Arguments::new(settings);
        let mut config = SimConfig { devices: 2, backing, ..SimConfig::default() };
        if let Some(capacity) = settings.named.get("capacity") {
            config.capacity = number(capacity);
        }
        if settings.named.get("soc") == Some(&"950") {
            config.soc = Soc::Ascend950;
        }
        let sim = Sim::new(config);
        sim.init().unwrap();
        let window = sim.reserve(2 << 20).unwrap();
        sim.release(window).unwrap();
        Self { sim, names: HashMap::from([("window".to_owned(), window)]), buffers: Vec::new() }
    }

    fn value(&self, text: &str) -> u64 {
        text.split('+').map(|part| self.names.get(part).copied().unwrap_or_else(|| number(part))).sum()
    }

    fn named(&self, arguments: &Arguments<'_>, key: &str, default: u64) -> u64 {
        arguments.named.get(key).map_or(default, |text| self.value(text))
    }

    fn at(&self, arguments: &Arguments<'_>, index: usize) -> u64 {
        self.value(arguments.values[index])
    }

    fn name(&mut self, arguments: &Arguments<'_>, made: Result<u64, i32>) -> Result<(), i32> {
        self.names.insert(arguments.values[0].to_owned(), made?);
        Ok(())
    }

    fn place(&self, arguments: &Arguments<'_>) -> Location {
        if let Some(kind) = arguments.named.get("kind") {
            return Location { id: 0, kind: number(kind) as u32 };
        }
        match arguments.named.get("host") {
            Some(id) => Location { id: number(id) as u32, kind: location::HOST },
            None => Location::device(self.named(arguments, "dev", 0) as u32),
        }
    }

    fn prop(&self, arguments: &Arguments<'_>) -> PhysicalProp {
        let field = |key, default| self.named(arguments, key, default);
        PhysicalProp {
            handle_type: field("handle_type", 0) as u32,
            allocation_type: field("allocation_type", 0) as u32,
            attr: field("attr", 4) as u32,
            location: self.place(arguments),
            reserve: field("reserve", 0),
        }
    }

    fn call(&mut self, call: &str, arguments: &Arguments<'_>) -> Result<(), i32> {
        if let Some(answer) = self.machine(call, arguments) {
            return answer;
        }
        if let Some(answer) = self.virtual_memory(call, arguments) {
            return answer;
        }
        if let Some(answer) = self.blocks(call, arguments) {
            return answer;
        }
        self.streams(call, arguments).unwrap_or_else(|| panic!("no call named {call}"))
    }

    fn machine(&mut self, call: &str, arguments: &Arguments<'_>) -> Option<Result<(), i32>> {
        let sim = self.sim.clone();
        let device = || arguments.values[0].parse::<i32>().expect("a device");
        Some(match call {
            "init" => sim.init(),
            "finalize" => sim.finalize(),
            "set_device" => sim.set_device(device()),
            "reset_device" => sim.reset_device(device()),
            "reset_force" => sim.reset_device_force(device()),
            "get_device" => sim.get_device().map(drop),
            "get_context" => sim.get_current_context().map(drop),
            "create_context" => {
                let made = sim.create_context(self.at(arguments, 1) as i32);
                self.name(arguments, made)
            }
            "set_context" => sim.set_current_context(self.at(arguments, 0)),
            "destroy_context" => sim.destroy_context(self.at(arguments, 0)),
            "mem_info" => sim.mem_info(self.named(arguments, "attr", 1) as u32).map(drop),
            _ => return None,
        })
    }

    fn virtual_memory(&mut self, call: &str, arguments: &Arguments<'_>) -> Option<Result<(), i32>> {
        let sim = self.sim.clone();
        let at = |index| self.at(arguments, index);
        let field = |key, default| self.named(arguments, key, default);
        Some(match call {
            "reserve" => {
                let mut start = 0;
                let (align, expect) = (field("align", 0), field("expect", 0));
                let made = sim.reserve_into(&mut start, at(1), align, expect, field("flags", 0));
                self.name(arguments, made.map(|()| start))
            }
            "release" => sim.release(at(0)),
            "granularity" => sim.granularity(&self.prop(arguments), field("option", 0) as u32).map(drop),
            "physical" => {
                let made = sim.malloc_physical(at(1), &self.prop(arguments), field("flags", 0));
                self.name(arguments, made)
            }
            "free_physical" => sim.free_physical(at(0)),
            "map" => sim.map(at(0), at(1), field("offset", 0), at(2), field("flags", 0)),
            "unmap" => sim.unmap(at(0)),
            "set_access" => {
                let flags = field("access", ACCESS_READWRITE);
                let grant = AccessDescriptor { flags, location: self.place(arguments) };
                sim.set_access(at(0), at(1), &vec![grant; field("count", 1) as usize])
            }
            "get_access" => sim.get_access(at(0), self.place(arguments)).map(drop),
            "retain" => {
                let made = sim.retain_handle(at(1));
                self.name(arguments, made)
            }
            "properties" => sim.handle_properties(at(0)).map(drop),
            "range" => sim.address_range(at(0)).map(drop),
            "attributes" => sim.pointer_attributes(at(0)).map(drop),
            _ => return None,
        })
    }

    fn blocks(&mut self, call: &str, arguments: &Arguments<'_>) -> Option<Result<(), i32>> {
        let sim = self.sim.clone();
        let at = |index| self.at(arguments, index);
        let field = |key, default| self.named(arguments, key, default);
        Some(match call {
            "malloc" => {
                let made = sim.malloc(at(1), field("policy", 0) as u32);
                self.name(arguments, made)
            }
            "free" => sim.free(at(0)),
            "malloc_host" => {
                let made = sim.malloc_host(at(1));
                self.name(arguments, made)
            }
            "free_host" => sim.free_host(at(0)),
            "buffer" => {
                let buffer = vec![0u8; at(1) as usize];
                let address = buffer.as_ptr().expose_provenance() as u64;
                self.buffers.push(buffer);
                self.name(arguments, Ok(address))
            }
            "register" => sim.host_register(at(0), at(1), field("type", 0) as u32).map(drop),
            "register_v2" => sim.host_register_v2(at(0), at(1), field("flags", 0) as u32),
            "unregister" => sim.host_unregister(at(0)),
            "device_pointer" => sim.host_device_pointer(at(0), field("flags", 0) as u32).map(drop),
            _ => return None,
        })
    }

    fn streams(&mut self, call: &str, arguments: &Arguments<'_>) -> Option<Result<(), i32>> {
        let sim = self.sim.clone();
        let at = |index| self.at(arguments, index);
        let flags = || self.named(arguments, "flags", 0) as u32;
        let timeout = arguments.named.get("timeout").map(|text| text.parse::<i32>().expect("a timeout"));
        let made = match call {
            "create_stream" => sim.create_stream(),
            "create_stream_with" => {
                sim.create_stream_with_config(self.named(arguments, "priority", 0) as u32, flags())
            }
            "create_event" => sim.create_event(),
            "create_event_flag" => sim.create_event_with_flag(flags()),
            "create_event_ex" => sim.create_event_ex(flags()),
            _ => {
                return Some(match call {
                    "destroy_stream" => sim.destroy_stream(at(0)),
                    "stream_query" => sim.stream_query(at(0)).map(drop),
                    "synchronize_stream" => match timeout {
                        Some(timeout) => sim.synchronize_stream_with_timeout(at(0), timeout),
                        None => sim.synchronize_stream(at(0)),
                    },
                    "synchronize_device" => sim.synchronize_device(),
                    "destroy_event" => sim.destroy_event(at(0)),
                    "record" => sim.record_event(at(0), at(1)),
                    "reset" => sim.reset_event(at(0), at(1)),
                    "query_status" => sim.query_event_status(at(0)).map(drop),
                    "query_event" => sim.query_event(at(0)).map(drop),
                    "query_wait" => sim.query_event_wait_status(at(0)).map(drop),
                    "synchronize_event" => match timeout {
                        Some(timeout) => sim.synchronize_event_with_timeout(at(0), timeout),
                        None => sim.synchronize_event(at(0)),
                    },
                    "stream_wait" => sim.stream_wait_event(at(0), at(1)),
                    "elapsed" => sim.event_elapsed_time(at(0), at(1)).map(drop),
                    _ => return None,
                });
            }
        };
        Some(self.name(arguments, made))
    }
}

/// A number with or without `0x`, K, M, G, T; `null` is 0.
fn number(text: &str) -> u64 {
    if text == "null" {
        return 0;
    }
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).unwrap_or_else(|_| panic!("{text} is no number"));
    }
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        Some(b'T') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    digits.parse::<u64>().unwrap_or_else(|_| panic!("{text} is no number")) << shift
}
