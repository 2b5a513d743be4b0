//! Statistics as JSON.

use core::fmt::{self, Write};

use super::{Stat, StatArray, Stats};

/// Writes a text in quotation marks.
pub(crate) fn quoted(to: &mut String, text: &str) {
    to.push('"');
    for letter in text.chars() {
        match letter {
            '"' => to.push_str("\\\""),
            '\\' => to.push_str("\\\\"),
            letter if letter.is_control() => {
                // Writing to a text cannot fail.
                let _ = write!(to, "\\u{:04x}", letter as u32);
            }
            letter => to.push(letter),
        }
    }
    to.push('"');
}

/// Writes an object of numbers: `{"name":1,...}`.
pub(crate) fn counts<'a>(to: &mut String, counts: impl IntoIterator<Item = (&'a str, u64)>) -> fmt::Result {
    to.push('{');
    for (index, (name, count)) in counts.into_iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        write!(to, r#"{comma}"{name}":{count}"#)?;
    }
    to.push('}');
    Ok(())
}

/// Writes a statistic for all blocks, small ones and large ones.
pub(crate) fn array(to: &mut String, array: &StatArray) -> fmt::Result {
    for (before, one) in
        [("{\"all\":", &array.all), (",\"small\":", &array.small), (",\"large\":", &array.large)]
    {
        to.push_str(before);
        stat(to, one)?;
    }
    to.push('}');
    Ok(())
}

fn stat(to: &mut String, stat: &Stat) -> fmt::Result {
    let Stat { current, peak, allocated, freed } = stat;
    write!(to, r#"{{"current":{current},"peak":{peak},"allocated":{allocated},"freed":{freed}}}"#)
}

impl Stats {
    /// The statistics as one JSON object, as docs/statistics.md says; driver calls and steps of the ladder are not
    /// in it.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut text = String::new();
        // Writing to a text cannot fail.
        let _ = self.write_json(&mut text);
        text
    }

    pub(crate) fn write_json(&self, to: &mut String) -> fmt::Result {
        let arrays = [
            ("allocation", &self.allocation),
            ("allocated_bytes", &self.allocated_bytes),
            ("requested_bytes", &self.requested_bytes),
            ("active", &self.active),
            ("active_bytes", &self.active_bytes),
            ("segment", &self.segment),
            ("reserved_bytes", &self.reserved_bytes),
            ("inactive_split", &self.inactive_split),
            ("inactive_split_bytes", &self.inactive_split_bytes),
        ];
        for (index, (name, values)) in arrays.into_iter().enumerate() {
            write!(to, r#"{}"{name}":"#, if index == 0 { "{" } else { "," })?;
            array(to, values)?;
        }
        for (name, value) in [
            ("oversize_allocations", &self.oversize_allocations),
            ("oversize_segments", &self.oversize_segments),
        ] {
            write!(to, r#","{name}":"#)?;
            stat(to, value)?;
        }
        for (name, count) in [
            ("num_alloc_retries", self.num_alloc_retries),
            ("num_ooms", self.num_ooms),
            ("num_sync_all_streams", self.num_sync_all_streams),
            ("num_device_alloc", self.num_device_alloc),
            ("num_device_free", self.num_device_free),
            ("reserved_address_space", self.reserved_address_space),
            ("cached_handles", self.cached_handles),
            ("sleeping_bytes", self.sleeping_bytes),
            ("chunks_moved", self.chunks_moved),
            ("size_mismatches", self.size_mismatches),
        ] {
            write!(to, r#","{name}":{count}"#)?;
        }
        write!(to, r#","max_split_size":{}}}"#, self.max_split_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        let mut text = String::new();
        quoted(&mut text, "a\"b\\c\nd é");
        assert_eq!(text, r#""a\"b\\c\u000ad é""#);
    }
}
