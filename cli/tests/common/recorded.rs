//! Snapshots as PyTorch writes them, made up.

use std::fmt::Write;

/// Its address, and of each block size, state, and bytes asked for.
pub type Segment<'a> = (u64, &'a [(u64, &'a str, u64)]);

/// A snapshot of one device as JSON.
pub fn snapshot(segments: &[Segment], events: &[String]) -> String {
    let mut text = String::from(r#"{"segments":["#);
    for (index, (address, blocks)) in segments.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let total: u64 = blocks.iter().map(|block| block.0).sum();
        let blocks: Vec<String> = blocks
            .iter()
            .map(|(size, state, requested)| {
                format!(r#"{{"size":{size},"state":"{state}","requested_size":{requested},"frames":[]}}"#)
            })
            .collect();
        write!(
            text,
            r#"{comma}{{"device":0,"address":{address},"total_size":{total},"stream":0,"blocks":[{}]}}"#,
            blocks.join(",")
        )
        .unwrap();
    }
    write!(text, r#"],"device_traces":[[{}]]}}"#, events.join(",")).unwrap();
    text
}

/// An event of a snapshot as JSON.
pub fn event(action: &str, addr: u64, size: u64, stream: u64) -> String {
    format!(r#"{{"action":"{action}","addr":{addr},"size":{size},"stream":{stream},"frames":[]}}"#)
}
