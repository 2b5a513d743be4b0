//! The plain form of rows, as in the simulator's own table.
//!
//! ```text
//! group name soc=950
//! 0      reserve va 64M flags=1
//! ```
//!
//! Its calls have other names and its arguments other keys; here they become those of the Markdown form, and all else
//! is the same for both.

use super::rows::{Expected, Group, Row};
use super::syntax::Request;

/// By call of the plain form: the call, with `$1` to `$3` for the values in order. What a value makes begins with `&`.
const CALLS: &[(&str, &str)] = &[
    ("init", "aclInit("),
    ("finalize", "aclFinalize("),
    ("set_device", "aclrtSetDevice($1"),
    ("reset_device", "aclrtResetDevice($1"),
    ("reset_force", "aclrtResetDeviceForce($1"),
    ("device_count", "aclrtGetDeviceCount(&x"),
    ("device_info", "aclrtGetDeviceInfo($1"),
    ("can_access", "aclrtDeviceCanAccessPeer(&x,$1,$2"),
    ("enable_peer", "aclrtDeviceEnablePeerAccess($1"),
    ("disable_peer", "aclrtDeviceDisablePeerAccess($1"),
    ("default_stream", "aclrtCtxGetCurrentDefaultStream(&$1"),
    ("get_device", "aclrtGetDevice(&x"),
    ("get_context", "aclrtGetCurrentContext(&x"),
    ("create_context", "aclrtCreateContext(&$1,$2"),
    ("set_context", "aclrtSetCurrentContext($1"),
    ("destroy_context", "aclrtDestroyContext($1"),
    ("mem_info", "aclrtGetMemInfo("),
    ("reserve", "Reserve(&$1,$2"),
    ("reserve_no_uc", "aclrtReserveMemAddressNoUCMemory(size=$1"),
    ("map_no_access", "aclrtMemMapNoAccess($1,$2,0,$3"),
    ("release", "Release($1"),
    ("granularity", "Granularity(&p"),
    ("physical", "MallocPhysical(&$1,$2"),
    ("free_physical", "FreePhysical($1"),
    ("map", "Map($1,$2,0,$3"),
    ("unmap", "Unmap($1"),
    ("set_access", "SetAccess($1,$2"),
    ("get_access", "GetAccess($1"),
    ("retain", "Retain($2,&$1"),
    ("properties", "Properties($1"),
    ("range", "AddressRange($1"),
    ("attributes", "PointerGetAttributes($1"),
    ("malloc", "aclrtMalloc(&$1,$2"),
    ("malloc_with", "aclrtMallocWithCfg(&$1,$2"),
    ("memcpy", "aclrtMemcpy($1,$3,$2,$3"),
    ("memcpy_async", "aclrtMemcpyAsync($1,$3,$2,$3,stream=null"),
    ("memset", "aclrtMemset($1,$2,0,$2"),
    ("memset_async", "aclrtMemsetAsync($1,$2,0,$2,stream=null"),
    ("free", "aclrtFree($1"),
    ("malloc_host", "aclrtMallocHost(&$1,$2"),
    ("malloc_host_with", "aclrtMallocHostWithCfg(&$1,$2"),
    ("capability", "aclrtHostMemMapCapabilities($1,$2"),
    ("free_host", "aclrtFreeHost($1"),
    ("register", "aclrtHostRegister($1,$2"),
    ("register_v2", "aclrtHostRegisterV2($1,$2"),
    ("unregister", "aclrtHostUnregister($1"),
    ("device_pointer", "aclrtHostGetDevicePointer($1"),
    ("create_stream", "aclrtCreateStream(&$1"),
    ("create_stream_with", "aclrtCreateStreamWithConfig(&$1"),
    ("destroy_stream", "aclrtDestroyStream($1"),
    ("streams_left", "aclrtGetStreamAvailableNum(&x"),
    ("abort", "aclrtStreamAbort($1"),
    ("timestamp", "aclrtEventGetTimestamp($1"),
    ("stream_query", "aclrtStreamQuery($1"),
    ("synchronize_stream", "aclrtSynchronizeStream($1"),
    ("synchronize_device", "aclrtSynchronizeDevice("),
    ("create_event", "aclrtCreateEvent(&$1"),
    ("create_event_flag", "aclrtCreateEventWithFlag(&$1"),
    ("create_event_ex", "aclrtCreateEventExWithFlag(&$1"),
    ("destroy_event", "aclrtDestroyEvent($1"),
    ("record", "aclrtRecordEvent($1,$2"),
    ("reset", "aclrtResetEvent($1,$2"),
    ("query_status", "aclrtQueryEventStatus($1"),
    ("query_event", "aclrtQueryEvent($1"),
    ("query_wait", "aclrtQueryEventWaitStatus($1"),
    ("synchronize_event", "aclrtSynchronizeEvent($1"),
    ("stream_wait", "aclrtStreamWaitEvent($1,$2"),
    ("elapsed", "aclrtEventElapsedTime(&x,$1,$2"),
];

/// Whether a text is in this form.
#[must_use]
pub fn is_plain(text: &str) -> bool {
    text.lines().any(|line| line.trim_start().starts_with("group ")) && !text.contains("# group")
}

/// The groups of a file in the plain form.
#[must_use]
pub fn read(text: &str) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            // Memory of this process is made when a row names it.
            ["0", "buffer", ..] => {}
            ["group", name, settings @ ..] => groups.push(Group {
                name: (*name).to_owned(),
                is_950: settings.contains(&"soc=950"),
                is_strict: settings.contains(&"strict=yes"),
                is_complete: true,
                begins_before_init: settings.contains(&"init=no"),
                rows: Vec::new(),
            }),
            [code, call @ ..] => {
                let Some(group) = groups.last_mut() else { continue };
                let expected = Expected::parse(code);
                group.rows.push(Row {
                    line: index + 1,
                    text: call.join(" "),
                    expected,
                    request: request(call),
                });
            }
        }
    }
    groups
}

fn request(words: &[&str]) -> Result<Request, String> {
    let [call, arguments @ ..] = words else { return Err("the row has no call".to_owned()) };
    let values: Vec<&str> = arguments.iter().filter(|word| !word.contains('=')).copied().collect();
    let form = CALLS.iter().find(|(name, _)| name == call).map(|(_, form)| *form);
    let mut text = form.ok_or_else(|| format!("the call `{call}`"))?.to_owned();
    for place in 1..=3_usize {
        let wanted = format!("${place}");
        if text.contains(&wanted) {
            let value = match *values.get(place - 1).ok_or("a value is missing")? {
                "stack" => "&stack",
                "zeros" => "pointer to zeros",
                value => value,
            };
            text = text.replace(&wanted, value);
        }
    }
    for word in arguments.iter().filter(|word| word.contains('=')) {
        if word.starts_with("timeout=") {
            text = text.replacen('(', "WithTimeout(", 1);
        }
        let separator = if text.ends_with('(') { "" } else { "," };
        text = format!("{text}{separator}{}", key(call, word));
    }
    Request::parse(&format!("{text})"))
}

/// `key=value` with the key of the other form.
fn key(call: &str, word: &str) -> String {
    let keys =
        [("align=", "alignment="), ("handle_type=", "handleType="), ("allocation_type=", "allocationType=")];
    let is_copy = call.starts_with("mem");
    let kind = if is_copy { "kind=" } else { "location=" };
    let room = if call.starts_with("memset") { "maxCount=" } else { "destMax=" };
    let more = [("kind=", kind), ("room=", room)];
    let mut found = keys.iter().chain(&more).filter_map(|(plain, other)| {
        let value = word.strip_prefix(plain)?;
        Some(format!("{other}{value}"))
    });
    match word.strip_prefix("path=") {
        Some(path) => format!("path=\"{path}\""),
        None => found.next().unwrap_or_else(|| word.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(words: &str) -> Request {
        let words: Vec<&str> = words.split(' ').collect();
        request(&words).unwrap()
    }

    #[test]
    fn calls_become_those_of_the_other_form() {
        assert_eq!(text_of("map va+4M 2M h"), Request::parse("Map(va+4M,2M,0,h)").unwrap());
        assert_eq!(
            text_of("reserve va 64M align=1"),
            Request::parse("Reserve(&va,64M,alignment=1)").unwrap()
        );
        let waits = Request::parse("SynchronizeStreamWithTimeout(s,timeout=0)").unwrap();
        assert_eq!(text_of("synchronize_stream s timeout=0"), waits);
        assert_eq!(text_of("mem_info attr=1"), Request::parse("GetMemInfo(attr=1)").unwrap());
        assert!(request(&["nonsense"]).is_err());
        assert!(request(&["map", "va"]).is_err());
        assert!(request(&[]).is_err());
    }

    #[test]
    fn groups_have_settings() {
        let groups =
            read("# words\ngroup a soc=950\n0 init\ngroup b capacity=1G\n107000 free x\n1 nonsense\n");
        assert_eq!(groups.len(), 2);
        assert!(groups[0].is_950 && !groups[1].is_950);
        assert_eq!(groups[1].rows.len(), 2);
        assert!(groups[1].rows[1].request.is_err());
    }
}
