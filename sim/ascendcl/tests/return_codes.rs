//! Plays the rows of `sim/tests/return_codes.txt` through the library, as a C program would: once with
//! the default execution by threads, once with the deterministic one.
//!
//! The model's own test plays the same rows without the library.

mod common;

use std::collections::HashMap;
use std::ffi::{CString, c_void};

use common::{Acl, at, machine};

const TABLE: &str = include_str!("../../tests/return_codes.txt");

/// How the rows' calls are made: the row's word, the function, and its arguments. An argument is
/// - a digit: the row's value of that place, and `-` before it: a signed number;
/// - a name, perhaps with `=default`: the row's value of that name (without a default it is 0);
/// - `>`: where the answer goes, which gets the name in the row's first place; `_`: the same, and
///   nobody looks at it;
/// - one of the words that [`Player::special`] knows, in capitals.
///
/// A word with `/timeout` is taken for rows that give a timeout.
const CALLS: &[(&str, &str, &str)] = &[
    ("device_count", "aclrtGetDeviceCount", "_"),
    ("init", "aclInit", "PATH"),
    ("finalize", "aclFinalize", ""),
    ("set_device", "aclrtSetDevice", "-0"),
    ("reset_device", "aclrtResetDevice", "-0"),
    ("reset_force", "aclrtResetDeviceForce", "-0"),
    ("get_device", "aclrtGetDevice", "_"),
    ("get_context", "aclrtGetCurrentContext", "_"),
    ("create_context", "aclrtCreateContext", "> 1"),
    ("set_context", "aclrtSetCurrentContext", "0"),
    ("destroy_context", "aclrtDestroyContext", "0"),
    ("mem_info", "aclrtGetMemInfo", "attr=1 _ _"),
    ("device_info", "aclrtGetDeviceInfo", "0 attr=301 _"),
    ("device_status", "aclrtQueryDeviceStatus", "-0 _"),
    ("capability", "aclrtHostMemMapCapabilities", "0 1 _"),
    ("can_access", "aclrtDeviceCanAccessPeer", "_ -0 -1"),
    ("enable_peer", "aclrtDeviceEnablePeerAccess", "-0 flags"),
    ("disable_peer", "aclrtDeviceDisablePeerAccess", "-0"),
    ("peer_status", "aclrtDevicePeerAccessStatus", "-0 -1 _"),
    ("reserve", "aclrtReserveMemAddress", "> 1 align expect flags"),
    ("reserve_no_uc", "aclrtReserveMemAddressNoUCMemory", "_ 0 align expect flags"),
    ("release", "aclrtReleaseMemAddress", "0"),
    ("granularity", "aclrtMemGetAllocationGranularity", "PROP option _"),
    ("physical", "aclrtMallocPhysical", "> 1 PROP flags"),
    ("free_physical", "aclrtFreePhysical", "0"),
    ("map", "aclrtMapMem", "0 1 offset 2 flags"),
    ("map_no_access", "aclrtMemMapNoAccess", "0 1 offset 2 flags"),
    ("unmap", "aclrtUnmapMem", "0"),
    ("set_access", "aclrtMemSetAccess", "0 1 GRANTS count=1"),
    ("get_access", "aclrtMemGetAccess", "0 PLACE _"),
    ("retain", "aclrtMemRetainAllocationHandle", "1 >"),
    ("properties", "aclrtMemGetAllocationPropertiesFromHandle", "0 _"),
    ("range", "aclrtMemGetAddressRange", "0 _ _"),
    ("attributes", "aclrtPointerGetAttributes", "0 _"),
    ("export", "aclrtMemExportToShareableHandle", "1 type flags >"),
    ("import", "aclrtMemImportFromShareableHandle", "0 dev _"),
    ("malloc", "aclrtMalloc", "> 1 policy"),
    ("malloc_with", "aclrtMallocWithCfg", "> 1 policy CONFIG"),
    ("free", "aclrtFree", "0"),
    ("flush", "aclrtMemFlush", "0 1"),
    ("malloc_host", "aclrtMallocHost", "> 1"),
    ("malloc_host_with", "aclrtMallocHostWithCfg", "> 1 CONFIG"),
    ("free_host", "aclrtFreeHost", "0"),
    ("register", "aclrtHostRegister", "0 1 type _"),
    ("register_v2", "aclrtHostRegisterV2", "0 1 flags"),
    ("unregister", "aclrtHostUnregister", "0"),
    ("device_pointer", "aclrtHostGetDevicePointer", "0 _ flags"),
    ("memcpy", "aclrtMemcpy", "0 ROOM 1 2 kind=4"),
    ("memcpy_async", "aclrtMemcpyAsync", "0 ROOM 1 2 kind=4 stream"),
    ("memset", "aclrtMemset", "0 ROOM value=1 1"),
    ("memset_async", "aclrtMemsetAsync", "0 ROOM value=1 1 stream"),
    ("memcpy_2d", "aclrtMemcpy2d", "0 pitch=64 1 pitch=64 2 3 kind=4"),
    ("pool", "aclrtMemPoolCreate", "> POOL"),
    ("pool_malloc", "aclrtMemPoolMallocAsync", "> 1 2 stream"),
    ("pool_free", "aclrtMemPoolFreeAsync", "0 stream"),
    ("pool_destroy", "aclrtMemPoolDestroy", "0"),
    ("create_stream", "aclrtCreateStream", ">"),
    ("create_stream_with", "aclrtCreateStreamWithConfig", "> priority flags"),
    ("destroy_stream", "aclrtDestroyStream", "0"),
    ("default_stream", "aclrtCtxGetCurrentDefaultStream", ">"),
    ("streams_left", "aclrtGetStreamAvailableNum", "_"),
    ("stream_query", "aclrtStreamQuery", "0 _"),
    ("abort", "aclrtStreamAbort", "0"),
    ("synchronize_stream", "aclrtSynchronizeStream", "0"),
    ("synchronize_stream/timeout", "aclrtSynchronizeStreamWithTimeout", "0 TIMEOUT"),
    ("synchronize_device", "aclrtSynchronizeDevice", ""),
    ("synchronize_device/timeout", "aclrtSynchronizeDeviceWithTimeout", "TIMEOUT"),
    ("stream_wait", "aclrtStreamWaitEvent", "0 1"),
    ("stream_wait_for", "aclrtStreamWaitEventWithTimeout", "0 1 -2"),
    ("create_event", "aclrtCreateEvent", ">"),
    ("create_event_flag", "aclrtCreateEventWithFlag", "> flags"),
    ("create_event_ex", "aclrtCreateEventExWithFlag", "> flags"),
    ("destroy_event", "aclrtDestroyEvent", "0"),
    ("record", "aclrtRecordEvent", "0 1"),
    ("reset", "aclrtResetEvent", "0 1"),
    ("query_status", "aclrtQueryEventStatus", "0 _"),
    ("query_event", "aclrtQueryEvent", "0 _"),
    ("query_wait", "aclrtQueryEventWaitStatus", "0 _"),
    ("synchronize_event", "aclrtSynchronizeEvent", "0"),
    ("synchronize_event/timeout", "aclrtSynchronizeEventWithTimeout", "0 TIMEOUT"),
    ("elapsed", "aclrtEventElapsedTime", "_ 0 1"),
    ("timestamp", "aclrtEventGetTimestamp", "0 _"),
    ("subscribe", "aclrtSubscribeReport", "THREAD 1"),
    ("unsubscribe", "aclrtUnSubscribeReport", "THREAD 1"),
    ("process", "aclrtProcessReport", "PATIENCE"),
    ("callback", "aclrtLaunchCallback", "FUNCTION zero block=1 0"),
    ("host_func", "aclrtLaunchHostFunc", "0 FUNCTION zero"),
    ("capture_begin", "aclmdlRICaptureBegin", "0 -1"),
    ("capture_end", "aclmdlRICaptureEnd", "1 GRAPH"),
    ("execute", "aclmdlRIExecuteAsync", "0 stream"),
    ("destroy_graph", "aclmdlRIDestroy", "0"),
];

#[test]
fn the_library_answers_every_row() {
    let (acl, _turn) = machine();
    for execution in ["deterministic", "threads"] {
        acl.set("acl_sim_set_exec", execution);
        let (wrong, rows) = play(acl);
        assert!(wrong.is_empty(), "{execution}:\n{}", wrong.join("\n"));
        assert!(rows > 300, "the table has {rows} rows");
    }
}

/// Plays the table; what went wrong, and how many rows there are.
fn play(acl: &Acl) -> (Vec<String>, usize) {
    let (mut wrong, mut rows) = (Vec::new(), 0);
    let mut player = Player { acl, names: HashMap::new(), buffers: Vec::new(), scratch: [0; 64] };
    for (number, line) in TABLE.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [] | ["#", ..] => {}
            ["group", _, settings @ ..] => player.start(&Row::new("0", "group", settings)),
            [code, call, arguments @ ..] => {
                let row = Row::new(code, call, arguments);
                let got = player.call(&row);
                rows += 1;
                if got != row.expected {
                    wrong.push(format!("line {}: {line}: answered {got} ({})", number + 1, acl.error()));
                }
            }
            [word] => panic!("line {}: what is {word}?", number + 1),
        }
    }
    acl.set("acl_sim_set_soc", "Ascend910B3");
    (wrong, rows)
}

/// One row: values in order, and `key=value`.
struct Row<'a> {
    expected: i32,
    call: &'a str,
    values: Vec<&'a str>,
    named: HashMap<&'a str, &'a str>,
}

impl<'a> Row<'a> {
    fn new(code: &str, call: &'a str, words: &[&'a str]) -> Self {
        let named = words.iter().filter_map(|word| word.split_once('=')).collect();
        let values = words.iter().filter(|word| !word.contains('=')).copied().collect();
        Self { expected: code.parse().expect("a row begins with a code"), call, values, named }
    }
}

/// The names given so far, and memory that calls are given.
struct Player<'a> {
    acl: &'a Acl,
    names: HashMap<String, u64>,
    buffers: Vec<Vec<u8>>,
    scratch: [u64; 64],
}

/// A callback that does nothing.
extern "C" fn nothing(_user: *mut c_void) {}

impl Player<'_> {
    /// A new machine as a group wants it.
    fn start(&mut self, group: &Row<'_>) {
        let soc = if group.named.get("soc") == Some(&"950") { "Ascend950PR_9599" } else { "Ascend910B3" };
        self.acl.set("acl_sim_set_soc", soc);
        self.good("acl_sim_reset", &[]);
        // What the model's own test takes if the group does not say.
        let capacity = group.named.get("capacity").map_or(1 << 30, |text| number(text));
        for device in 0..2 {
            self.good("acl_sim_set_capacity", &[device, capacity]);
        }
        if group.named.get("init") != Some(&"no") {
            self.good("aclInit", &[0]);
        }
        let mut window = 0u64;
        self.good("aclrtReserveMemAddress", &[at(&mut window), 2 << 20, 0, 0, 0]);
        self.good("aclrtReleaseMemAddress", &[window]);
        self.good("acl_sim_strict", &[u64::from(group.named.get("strict") == Some(&"yes"))]);
        self.names = HashMap::from([("window".to_owned(), window)]);
        self.buffers.clear();
    }

    fn good(&self, name: &str, arguments: &[u64]) {
        // SAFETY: numbers, and pointers to live variables.
        unsafe { self.acl.call(name, arguments) };
    }

    fn value(&self, text: &str) -> u64 {
        text.split('+').map(|part| self.names.get(part).copied().unwrap_or_else(|| number(part))).sum()
    }

    fn field(&self, row: &Row<'_>, key: &str, default: u64) -> u64 {
        row.named.get(key).map_or(default, |text| self.value(text))
    }

    /// Makes a row's call; the code.
    fn call(&mut self, row: &Row<'_>) -> i32 {
        if row.call == "buffer" {
            let buffer = vec![0u8; self.value(row.values[1]) as usize];
            self.names.insert(row.values[0].to_owned(), buffer.as_ptr().expose_provenance() as u64);
            self.buffers.push(buffer);
            return 0;
        }
        let with_timeout = format!("{}/timeout", row.call);
        let word = if row.named.contains_key("timeout") { &with_timeout } else { row.call };
        let (_, function, arguments) =
            CALLS.iter().find(|(known, ..)| *known == word).unwrap_or_else(|| panic!("no call named {word}"));
        let mut kept = Kept::default();
        let arguments: Vec<u64> =
            arguments.split_whitespace().map(|argument| self.argument(row, argument, &mut kept)).collect();
        // SAFETY: every pointer among the arguments is to memory in `kept` or of this player, or is one
        // that the table passes to see it refused.
        let code = unsafe { self.acl.try_call(function, &arguments) };
        if code == 0 && kept.named {
            self.names.insert(row.values[0].to_owned(), kept.answer[0]);
        }
        code
    }

    fn argument(&mut self, row: &Row<'_>, argument: &str, kept: &mut Kept) -> u64 {
        let (key, default) = argument.split_once('=').unwrap_or((argument, "0"));
        match key {
            ">" => kept.name(),
            "_" => at(&mut self.scratch),
            _ if key.starts_with('-') => {
                let place: usize = key[1..].parse().expect("a place");
                row.values[place].parse::<i32>().expect("a number") as u64
            }
            _ if key.starts_with(|letter: char| letter.is_ascii_digit()) => {
                self.value(row.values[key.parse::<usize>().expect("a place")])
            }
            _ if key.starts_with(|letter: char| letter.is_ascii_uppercase()) => self.special(row, key, kept),
            _ => self.field(row, key, number(default)),
        }
    }

    fn special(&self, row: &Row<'_>, word: &str, kept: &mut Kept) -> u64 {
        let field = |key, default| self.field(row, key, default);
        match word {
            "PATH" => match row.named.get("path") {
                Some(path) => {
                    kept.text = CString::new(*path).expect("no zero inside");
                    kept.text.as_ptr().expose_provenance() as u64
                }
                None => 0,
            },
            "ROOM" => field("room", u64::MAX),
            "TIMEOUT" => row.named["timeout"].parse::<i32>().expect("a timeout") as u64,
            "THREAD" => match self.value(row.values[0]) {
                // SAFETY: the call has no preconditions.
                1 => unsafe { libc::pthread_self() as u64 },
                other => other,
            },
            // What is to come may take its time on a busy machine.
            "PATIENCE" => match row.values[1].parse::<i32>().expect("a timeout") {
                short if short > 0 && row.expected == 0 => 60_000,
                other => other as u64,
            },
            "FUNCTION" if field("null", 0) == 1 => 0,
            "FUNCTION" => nothing as extern "C" fn(*mut c_void) as usize as u64,
            "GRAPH" if field("out", 1) == 0 => 0,
            "GRAPH" => kept.name(),
            _ => self.structure(row, word, kept),
        }
    }

    fn structure(&self, row: &Row<'_>, word: &str, kept: &mut Kept) -> u64 {
        let field = |key, default| self.field(row, key, default) as u32;
        let [id, kind] = match (row.named.get("kind"), row.named.get("host")) {
            (Some(kind), _) => [0, number(kind) as u32],
            (None, Some(id)) => [number(id) as u32, 0],
            (None, None) => [field("dev", 0), 1],
        };
        match word {
            "PLACE" => kept.words(&[id, kind]),
            "PROP" => {
                let (handle, allocation) = (field("handle_type", 0), field("allocation_type", 0));
                kept.words(&[handle, allocation, field("attr", 4), id, kind, 0, field("reserve", 0), 0])
            }
            "GRANTS" => {
                let grant = [field("access", 3), id, kind, 0, 0, 0];
                kept.words(&grant.repeat(field("count", 1).max(1) as usize))
            }
            "POOL" => {
                let max = self.field(row, "max", 0);
                let mut words =
                    vec![field("allocation_type", 0), 0, id, kind, max as u32, (max >> 32) as u32];
                words.extend([field("reserved", 0), 0, 0, 0, 0, 0, 0, 0]);
                kept.words(&words)
            }
            "CONFIG" => {
                let Some(list) = row.named.get("config") else { return 0 };
                let pairs = list.split(',').map(|pair| pair.split_once(':').expect("kind:value"));
                let words: Vec<u32> =
                    pairs.flat_map(|(kind, value)| [number(kind) as u32, number(value) as u32, 0]).collect();
                let count = words.len() as u64 / 3;
                let attributes = kept.words(&words);
                kept.words(&[attributes as u32, (attributes >> 32) as u32, count as u32, 0])
            }
            _ => panic!("what is {word}?"),
        }
    }
}

/// What one call's arguments point to.
#[derive(Default)]
struct Kept {
    answer: Box<[u64; 1]>,
    named: bool,
    text: CString,
    /// Structures, aligned to 8 bytes.
    structures: Vec<Box<[u64]>>,
}

impl Kept {
    /// Where an answer goes that gets a name.
    fn name(&mut self) -> u64 {
        self.named = true;
        at(&mut *self.answer)
    }

    /// A structure of words of 4 bytes.
    fn words(&mut self, words: &[u32]) -> u64 {
        let pairs = words.chunks(2).map(|pair| {
            let bytes = [pair[0], *pair.get(1).unwrap_or(&0)].map(u32::to_ne_bytes);
            u64::from_ne_bytes(bytes.concat().try_into().expect("eight bytes"))
        });
        let mut structure: Box<[u64]> = pairs.collect();
        let address = structure.as_mut_ptr().expose_provenance() as u64;
        self.structures.push(structure);
        address
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
