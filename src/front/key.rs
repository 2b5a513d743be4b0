//! What has to agree for a block to serve a request: its length, its kind and its stream, in one number.

/// Bits of a stream's place.
pub(super) const PLACE_BITS: u32 = 13;

/// Length in bytes, shifted left by 5; the column in the statistics (bit 13); the stream's place.
#[inline]
pub(super) fn key_of(len: u64, place: u16, small: bool) -> u64 {
    (len << 5) | (u64::from(small) << PLACE_BITS) | u64::from(place)
}

/// The length in a key, bytes.
#[inline]
pub(super) fn len_of(key: u64) -> u64 {
    key >> (PLACE_BITS + 1) << 9
}

/// The place of the stream in a key.
#[inline]
pub(super) fn place_of(key: u64) -> u16 {
    key as u16 & ((1 << PLACE_BITS) - 1)
}

/// The kind in a key.
#[inline]
pub(super) fn is_small(key: u64) -> bool {
    key >> PLACE_BITS & 1 != 0
}

/// `bits` well mixed bits of a key.
#[inline]
pub(super) fn hash(key: u64, bits: u32) -> usize {
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - bits)) as usize
}
