//! Plays the rows of `sim/tests/return_codes.txt` through the library, as a C program would.
//!
//! The model's own test plays the same rows without the library.

mod common;

use std::collections::HashMap;

use common::{Acl, at, machine};

const TABLE: &str = include_str!("../../tests/return_codes.txt");

#[test]
fn the_library_answers_every_row() {
    let (acl, _turn) = machine();
    let (mut wrong, mut rows) = (Vec::new(), 0);
    let mut player = Player { acl, names: HashMap::new(), buffers: Vec::new() };
    for (number, line) in TABLE.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [] | ["#", ..] => {}
            ["group", _, settings @ ..] => player.start(settings),
            [code, call, arguments @ ..] => {
                let expected: i32 = code.parse().expect("a row begins with a code");
                let got = player.call(call, &Arguments::new(arguments)).err().unwrap_or(0);
                rows += 1;
                if got != expected {
                    wrong.push(format!("line {}: {line}: answered {got} ({})", number + 1, acl.error()));
                }
            }
            [word] => panic!("line {}: what is {word}?", number + 1),
        }
    }
    acl.set("acl_sim_set_soc", "Ascend910B3");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(rows > 300, "the table has {rows} rows");
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

/// The names given so far.
struct Player<'a> {
    acl: &'a Acl,
    names: HashMap<String, u64>,
    buffers: Vec<Vec<u8>>,
}

impl Player<'_> {
    /// A new machine as a group wants it.
    fn start(&mut self, settings: &[&str]) {
        let settings = Arguments::new(settings);
        let soc = if settings.named.get("soc") == Some(&"950") { "Ascend950PR_9599" } else { "Ascend910B3" };
        self.acl.set("acl_sim_set_soc", soc);
        self.plain("acl_sim_reset", &[]).expect("no call is running");
        if let Some(capacity) = settings.named.get("capacity") {
            for device in 0..2 {
                self.plain("acl_sim_set_capacity", &[device, number(capacity)]).expect("the device is there");
            }
        }
        if let Some(strict) = settings.named.get("strict") {
            self.plain("acl_sim_strict", &[number(strict)]).expect("a control");
        }
        self.plain("aclInit", &[0]).expect("the first initialisation");
        let window = self.made("aclrtReserveMemAddress", &[2 << 20, 0, 0, 0]).expect("there is room");
        self.plain("aclrtReleaseMemAddress", &[window]).expect("it was reserved");
        self.names = HashMap::from([("window".to_owned(), window)]);
        self.buffers.clear();
    }

    fn plain(&self, name: &str, arguments: &[u64]) -> Result<(), i32> {
        // SAFETY: every pointer among the arguments is to a live variable, or is one that the table
        // passes to see it refused.
        match unsafe { self.acl.try_call(name, arguments) } {
            0 => Ok(()),
            code => Err(code),
        }
    }

    fn made(&self, name: &str, arguments: &[u64]) -> Result<u64, i32> {
        // SAFETY: as in `plain`.
        unsafe { self.acl.make(name, arguments) }
    }

    fn value(&self, text: &str) -> u64 {
        text.split('+').map(|part| self.names.get(part).copied().unwrap_or_else(|| number(part))).sum()
    }

    fn field(&self, arguments: &Arguments<'_>, key: &str, default: u64) -> u64 {
        arguments.named.get(key).map_or(default, |text| self.value(text))
    }

    fn name(&mut self, arguments: &Arguments<'_>, made: Result<u64, i32>) -> Result<(), i32> {
        self.names.insert(arguments.values[0].to_owned(), made?);
        Ok(())
    }

    /// `aclrtMemLocation`: number and kind.
    fn place(&self, arguments: &Arguments<'_>) -> [u32; 2] {
        if let Some(kind) = arguments.named.get("kind") {
            return [0, number(kind) as u32];
        }
        match arguments.named.get("host") {
            Some(id) => [number(id) as u32, 0],
            None => [self.field(arguments, "dev", 0) as u32, 1],
        }
    }

    /// `aclrtPhysicalMemProp` as words of 4 bytes.
    fn prop(&self, arguments: &Arguments<'_>) -> [u32; 8] {
        let field = |key, default| self.field(arguments, key, default) as u32;
        let [id, kind] = self.place(arguments);
        [
            field("handle_type", 0),
            field("allocation_type", 0),
            field("attr", 4),
            id,
            kind,
            0,
            field("reserve", 0),
            0,
        ]
    }

    fn call(&mut self, call: &str, arguments: &Arguments<'_>) -> Result<(), i32> {
        for family in [Self::machine, Self::virtual_memory, Self::questions, Self::blocks, Self::streams] {
            if let Some(answer) = family(self, call, arguments) {
                return answer;
            }
        }
        panic!("no call named {call}");
    }

    fn machine(&mut self, call: &str, arguments: &Arguments<'_>) -> Option<Result<(), i32>> {
        let device = || arguments.values[0].parse::<i32>().expect("a device") as u64;
        let mut out = 0u64;
        Some(match call {
            "init" => self.plain("aclInit", &[0]),
            "finalize" => self.plain("aclFinalize", &[]),
            "set_device" => self.plain("aclrtSetDevice", &[device()]),
            "reset_device" => self.plain("aclrtResetDevice", &[device()]),
            "reset_force" => self.plain("aclrtResetDeviceForce", &[device()]),
            "get_device" => self.plain("aclrtGetDevice", &[at(&mut out)]),
            "get_context" => self.plain("aclrtGetCurrentContext", &[at(&mut out)]),
            "create_context" => {
                let made = self.made("aclrtCreateContext", &[self.value(arguments.values[1])]);
                self.name(arguments, made)
            }
            "set_context" => self.plain("aclrtSetCurrentContext", &[self.value(arguments.values[0])]),
            "destroy_context" => self.plain("aclrtDestroyContext", &[self.value(arguments.values[0])]),
            "mem_info" => {
                let mut total = 0u64;
                let attr = self.field(arguments, "attr", 1);
                self.plain("aclrtGetMemInfo", &[attr, at(&mut out), at(&mut total)])
            }
            _ => return None,
        })
    }

    fn virtual_memory(&mut self, call: &str, arguments: &Arguments<'_>) -> Option<Result<(), i32>> {
        let value = |index: usize| self.value(arguments.values[index]);
        let field = |key, default| self.field(arguments, key, default);
        let mut prop = self.prop(arguments);
        Some(match call {
            "reserve" => {
                let rest = [value(1), field("align", 0), field("expect", 0), field("flags", 0)];
                let made = self.made("aclrtReserveMemAddress", &rest);
                self.name(arguments, made)
            }
            "release" => self.plain("aclrtReleaseMemAddress", &[value(0)]),
            "granularity" => {
                let mut granule = 0u64;
                let rest = [at(&mut prop), field("option", 0), at(&mut granule)];
                self.plain("aclrtMemGetAllocationGranularity", &rest)
            }
            "physical" => {
                let made = self.made("aclrtMallocPhysical", &[value(1), at(&mut prop), field("flags", 0)]);
                self.name(arguments, made)
            }
            "free_physical" => self.plain("aclrtFreePhysical", &[value(0)]),
            "map" => {
                let rest = [value(0), value(1), field("offset", 0), value(2), field("flags", 0)];
                self.plain("aclrtMapMem", &rest)
            }
            "unmap" => self.plain("aclrtUnmapMem", &[value(0)]),
            _ => return None,
        })
    }

    fn questions(&mut self, call: &str, arguments: &Arguments<'_>) -> Option<Result<(), i32>> {
        let value = |index: usize| self.value(arguments.values[index]);
        let field = |key, default| self.field(arguments, key, default);
        let [id, kind] = self.place(arguments);
        let (mut out, mut more) = ([0u64; 4], 0u64);
        Some(match call {
            "set_access" => {
                let grant = [field("access", 3) as u32, id, kind, 0, 0, 0];
                let count = field("count", 1);
                let mut grants = vec![grant; (count as usize).max(1)];
                self.plain("aclrtMemSetAccess", &[value(0), value(1), at(&mut grants[0]), count])
            }
            "get_access" => {
                let mut place = [id, kind];
                self.plain("aclrtMemGetAccess", &[value(0), at(&mut place), at(&mut out)])
            }
            "retain" => {
                let answer = self.plain("aclrtMemRetainAllocationHandle", &[value(1), at(&mut out)]);
                self.name(arguments, answer.map(|()| out[0]))
            }
            "properties" => {
                self.plain("aclrtMemGetAllocationPropertiesFromHandle", &[value(0), at(&mut out)])
            }
            "range" => self.plain("aclrtMemGetAddressRange", &[value(0), at(&mut out), at(&mut more)]),
            "attributes" => self.plain("aclrtPointerGetAttributes", &[value(0), at(&mut out)]),
            _ => return None,
        })
    }

    fn blocks(&mut self, call: &str, arguments: &Arguments<'_>) -> Option<Result<(), i32>> {
        let value = |index: usize| self.value(arguments.values[index]);
        let field = |key, default| self.field(arguments, key, default);
        let mut out = 0u64;
        Some(match call {
            "malloc" => {
                let made = self.made("aclrtMalloc", &[value(1), field("policy", 0)]);
                self.name(arguments, made)
            }
            "free" => self.plain("aclrtFree", &[value(0)]),
            "malloc_host" => {
                let made = self.made("aclrtMallocHost", &[value(1)]);
                self.name(arguments, made)
            }
            "free_host" => self.plain("aclrtFreeHost", &[value(0)]),
            "buffer" => {
                let buffer = vec![0u8; value(1) as usize];
                let address = buffer.as_ptr().expose_provenance() as u64;
                self.buffers.push(buffer);
                self.name(arguments, Ok(address))
            }
            "register" => {
                self.plain("aclrtHostRegister", &[value(0), value(1), field("type", 0), at(&mut out)])
            }
            "register_v2" => self.plain("aclrtHostRegisterV2", &[value(0), value(1), field("flags", 0)]),
            "unregister" => self.plain("aclrtHostUnregister", &[value(0)]),
            "device_pointer" => {
                self.plain("aclrtHostGetDevicePointer", &[value(0), at(&mut out), field("flags", 0)])
            }
            _ => return None,
        })
    }

    fn streams(&mut self, call: &str, arguments: &Arguments<'_>) -> Option<Result<(), i32>> {
        let flags = self.field(arguments, "flags", 0);
        let made = match call {
            "create_stream" => self.made("aclrtCreateStream", &[]),
            "create_stream_with" => {
                let priority = self.field(arguments, "priority", 0);
                self.made("aclrtCreateStreamWithConfig", &[priority, flags])
            }
            "create_event" => self.made("aclrtCreateEvent", &[]),
            "create_event_flag" => self.made("aclrtCreateEventWithFlag", &[flags]),
            "create_event_ex" => self.made("aclrtCreateEventExWithFlag", &[flags]),
            _ => return self.queues(call, arguments),
        };
        Some(self.name(arguments, made))
    }

    fn queues(&self, call: &str, arguments: &Arguments<'_>) -> Option<Result<(), i32>> {
        let value = |index: usize| self.value(arguments.values[index]);
        let timeout =
            arguments.named.get("timeout").map(|text| text.parse::<i32>().expect("a timeout") as u64);
        let mut out = 0u64;
        Some(match call {
            "destroy_stream" => self.plain("aclrtDestroyStream", &[value(0)]),
            "stream_query" => self.plain("aclrtStreamQuery", &[value(0), at(&mut out)]),
            "synchronize_stream" => match timeout {
                Some(timeout) => self.plain("aclrtSynchronizeStreamWithTimeout", &[value(0), timeout]),
                None => self.plain("aclrtSynchronizeStream", &[value(0)]),
            },
            "synchronize_device" => self.plain("aclrtSynchronizeDevice", &[]),
            "destroy_event" => self.plain("aclrtDestroyEvent", &[value(0)]),
            "record" => self.plain("aclrtRecordEvent", &[value(0), value(1)]),
            "reset" => self.plain("aclrtResetEvent", &[value(0), value(1)]),
            "query_status" => self.plain("aclrtQueryEventStatus", &[value(0), at(&mut out)]),
            "query_event" => self.plain("aclrtQueryEvent", &[value(0), at(&mut out)]),
            "query_wait" => self.plain("aclrtQueryEventWaitStatus", &[value(0), at(&mut out)]),
            "synchronize_event" => match timeout {
                Some(timeout) => self.plain("aclrtSynchronizeEventWithTimeout", &[value(0), timeout]),
                None => self.plain("aclrtSynchronizeEvent", &[value(0)]),
            },
            "stream_wait" => self.plain("aclrtStreamWaitEvent", &[value(0), value(1)]),
            "elapsed" => self.plain("aclrtEventElapsedTime", &[at(&mut out), value(0), value(1)]),
            _ => return None,
        })
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
