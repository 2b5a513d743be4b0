//! Sizes as people write and read them; inside, every size is in bytes.

/// Bytes of one MiB.
pub const MIB: u64 = 1 << 20;
/// Bytes of one GiB.
pub const GIB: u64 = 1 << 30;
/// Device sizes are multiples of this: the granule of the simulated device.
pub const DEVICE_STEP: u64 = 2 * MIB;

/// Reads a size such as `64GiB`, `512M` or `1048576`.
///
/// # Errors
/// What is wrong, and what would be accepted.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let accepted = "expected a whole number with B, KiB, MiB, GiB or TiB, such as 64GiB";
    if number.is_empty() {
        return Err(format!("{text:?} is no size; {accepted}"));
    }
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "kb" | "mb" | "gb" | "tb" => {
            return Err(format!("{text:?} has a unit of powers of ten; {accepted}"));
        }
        _ => return Err(format!("{text:?} has an unknown unit; {accepted}")),
    };
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is too large"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is too large"))
}

/// Reads the size of a device: like [`parse_bytes`], and a multiple of 2 MiB.
///
/// # Errors
/// What is wrong, and what would be accepted.
pub fn parse_device(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    if bytes == 0 || !bytes.is_multiple_of(DEVICE_STEP) {
        return Err(format!("{text:?} is no device size; expected a multiple of 2 MiB"));
    }
    if bytes > 1 << 44 {
        return Err(format!("{text:?} is too large; at most 16TiB"));
    }
    Ok(bytes)
}

/// A size for people: GiB with two places from 1 GiB on, else MiB.
#[must_use]
pub fn show_bytes(bytes: u64) -> String {
    if bytes >= GIB {
        format!("{:.2} GiB", bytes as f64 / GIB as f64)
    } else {
        format!("{:.2} MiB", bytes as f64 / MIB as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("64GiB", 64 * GIB),
            ("64g", 64 * GIB),
            (" 3 MiB ", 3 * MIB),
            ("7K", 7 << 10),
            ("1T", 1 << 40),
            ("12", 12),
            ("12B", 12),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "GiB", "64GB", "64 pages", "-1", "1.5GiB", "99999999999999999999", "99999999T"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn devices_have_whole_granules() {
        assert_eq!(parse_device("2MiB"), Ok(2 * MIB));
        for text in ["0", "3MiB", "1", "17TiB"] {
            assert!(parse_device(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown() {
        assert_eq!(show_bytes(35_026_952), "33.40 MiB");
        assert_eq!(show_bytes(64 * GIB), "64.00 GiB");
    }
}
