//! Plays the rows of `return_codes.txt` on a machine with real mappings and on one with tables only.

use std::collections::HashMap;

use ascend_sim::codes::{ACCESS_READWRITE, location};
use ascend_sim::{
    AccessDescriptor, BackingMode, Location, MallocAttribute, PhysicalProp, Pitched, PoolProps, Sim,
    SimConfig, Soc, Work,
};

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
        if settings.named.get("init") != Some(&"no") {
            sim.init().unwrap();
        }
        let window = sim.reserve(2 << 20).unwrap();
        sim.release(window).unwrap();
        sim.set_strict(settings.named.get("strict") == Some(&"yes"));
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
        if let Some(answer) = self.copies(call, arguments) {
            return answer;
        }
        if let Some(answer) = self.more(call, arguments) {
            return answer;
        }
        self.streams(call, arguments).unwrap_or_else(|| panic!("no call named {call}"))
    }

    fn machine(&mut self, call: &str, arguments: &Arguments<'_>) -> Option<Result<(), i32>> {
        let sim = self.sim.clone();
        let device = || arguments.values[0].parse::<i32>().expect("a device");
        Some(match call {
            "init" => sim.init_with(arguments.named.get("path").copied()),
            "device_count" => sim.device_count().map(drop),
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
            "malloc_with" => {
                let made = sim.malloc_with_config(at(1), field("policy", 0) as u32, &self.config(arguments));
                self.name(arguments, made)
            }
            "malloc_host_with" => {
                let made = sim.malloc_host_with_config(at(1), &self.config(arguments));
                self.name(arguments, made)
            }
            "flush" => sim.mem_flush(at(0), at(1)),
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

    /// The attribute `attr=KIND:VALUE` of a configuration, if there is one.
    fn config(&self, arguments: &Arguments<'_>) -> Vec<MallocAttribute> {
        let pairs = arguments.named.get("config").into_iter().flat_map(|list| list.split(','));
        pairs
            .map(|pair| {
                let (kind, value) = pair.split_once(':').expect("kind:value");
                MallocAttribute { kind: number(kind) as u32, value: number(value) }
            })
            .collect()
    }

    fn copies(&mut self, call: &str, arguments: &Arguments<'_>) -> Option<Result<(), i32>> {
        let sim = self.sim.clone();
        let at = |index| self.at(arguments, index);
        let field = |key, default| self.named(arguments, key, default);
        let (room, kind, stream) = (field("room", u64::MAX), field("kind", 4) as u32, field("stream", 0));
        // SAFETY: the table names device memory, pinned memory and buffers of the player, all larger
        // than what is copied, or addresses that are refused.
        Some(unsafe {
            match call {
                "memcpy" => sim.memcpy(at(0), room, at(1), at(2), kind),
                "memcpy_async" => sim.memcpy_async(at(0), room, at(1), at(2), kind, stream),
                "memset" => sim.memset(at(0), room, 1, at(1)),
                "memset_async" => sim.memset_async(at(0), room, 1, at(1), stream),
                "memcpy_2d" => {
                    let area = Pitched {
                        to: at(0),
                        to_pitch: field("pitch", 64),
                        from: at(1),
                        from_pitch: field("pitch", 64),
                        width: at(2),
                        height: at(3),
                    };
                    sim.memcpy_2d(&area, kind)
                }
                _ => return None,
            }
        })
    }

    fn more(&mut self, call: &str, arguments: &Arguments<'_>) -> Option<Result<(), i32>> {
        let sim = self.sim.clone();
        let at = |index| self.at(arguments, index);
        let field = |key, default| self.named(arguments, key, default);
        let signed = |index: usize| arguments.values[index].parse::<i32>().expect("a number");
        Some(match call {
            "can_access" => sim.can_access_peer(signed(0), signed(1)).map(drop),
            "enable_peer" => sim.enable_peer_access(signed(0), field("flags", 0) as u32),
            "disable_peer" => sim.disable_peer_access(signed(0)),
            "peer_status" => sim.peer_access_status(signed(0), signed(1)).map(drop),
            "subscribe" => sim.subscribe_report(at(0), at(1)),
            "unsubscribe" => sim.unsubscribe_report(at(0), at(1)),
            "process" => sim.process_report(at(0), signed(1)),
            "callback" => {
                let work = (field("null", 0) == 0).then(|| -> Work { Box::new(|| ()) });
                sim.launch_callback(work, field("block", 1) as u32, at(0))
            }
            "host_func" => sim.launch_host_func(at(0), Box::new(|| ())),
            "device_info" => sim.device_info(at(0) as u32, field("attr", 301) as u32).map(drop),
            "device_status" => sim.device_status(signed(0)).map(drop),
            "default_stream" => {
                let made = sim.current_default_stream();
                self.name(arguments, made)
            }
            "streams_left" => sim.stream_available().map(drop),
            "abort" => sim.stream_abort(at(0)),
            "timestamp" => sim.event_timestamp(at(0)).map(drop),
            "stream_wait_for" => sim.stream_wait_event_with_timeout(at(0), at(1), signed(2)),
            "capability" => sim.host_map_capability(at(0) as u32, at(1) as u32).map(drop),
            "reserve_no_uc" => sim.reserve_no_uc_into(&mut 0, at(0), 0, 0, field("flags", 0)),
            "map_no_access" => sim.map_no_access(at(0), at(1), field("offset", 0), at(2), field("flags", 0)),
            "export" => {
                let made = sim.export_handle(at(1), field("type", 0) as u32, field("flags", 0));
                self.name(arguments, made)
            }
            "import" => sim.import_handle(at(0), field("dev", 0) as i32).map(drop),
            "pool" => {
                let props = PoolProps {
                    allocation_type: field("allocation_type", 0) as u32,
                    handle_type: 0,
                    location: self.place(arguments),
                    max_size: field("max", 0),
                    reserved_zero: field("reserved", 0) == 0,
                };
                let made = sim.pool_create(&props);
                self.name(arguments, made)
            }
            "pool_malloc" => {
                let made = sim.pool_malloc_async(at(1), at(2), field("stream", 0));
                self.name(arguments, made)
            }
            "pool_free" => sim.pool_free_async(at(0), field("stream", 0)),
            "pool_destroy" => sim.pool_destroy(at(0)),
            "capture_begin" => sim.capture_begin_raw(at(0), signed(1)),
            "capture_end" => {
                let made = sim.capture_end_into(at(1), field("out", 1) != 0);
                self.name(arguments, made)
            }
            "execute" => sim.graph_execute(at(0), field("stream", 0)),
            "destroy_graph" => sim.graph_destroy(at(0)),
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
                    "synchronize_device" => match timeout {
                        Some(timeout) => sim.synchronize_device_with_timeout(timeout),
                        None => sim.synchronize_device(),
                    },
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
