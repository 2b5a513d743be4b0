//! What a request asks for, looked at before its device is.

use super::DeviceAllocator;
use super::device::Device;
use crate::core::segment::ALIGNED_FROM;
use crate::core::{MOST_ASKED, UNIT};
use crate::driver::DeviceId;
use crate::error::{Error, Result};

/// The largest alignment there is: that of the largest pages, bytes.
const MOST_ALIGN: u64 = 1 << 30;

impl DeviceAllocator {
    /// The device that a request is for, set up if need be, and the alignment of the block; nothing for a request of
    /// zero bytes. Nothing is asked of the driver for that, nor for what no device can give.
    #[inline]
    pub(super) fn asked(&self, id: DeviceId, bytes: u64, align: u64) -> Result<Option<(&Device, u64)>> {
        let align = align.max(1);
        let ordinary = align.is_power_of_two() && align <= MOST_ALIGN && (1..=MOST_ASKED).contains(&bytes);
        if !ordinary {
            return self.answer_extreme(id, bytes, align).map(|()| None);
        }
        let large = self.config.base_addr_aligned;
        let least = if bytes >= ALIGNED_FROM && large > 0 && self.expandable_segments() { large } else { 0 };
        Ok(Some((self.device(id)?, align.max(UNIT).max(least))))
    }

    /// What a request gets that no device is asked for: nothing if it is for zero bytes, or an error.
    #[cold]
    #[inline(never)]
    fn answer_extreme(&self, id: DeviceId, bytes: u64, align: u64) -> Result<()> {
        if !align.is_power_of_two() {
            let (value, expected) = (align.to_string(), "a power of two");
            return Err(Error::Argument { name: "align", value, expected });
        }
        self.place(id)?;
        if bytes == 0 {
            return Ok(());
        }
        let reason = match align > MOST_ALIGN {
            true => {
                format!("at multiples of {align}, more than any device gives; ask for {MOST_ALIGN} at most")
            }
            false => "more than any device has; ask for less".to_owned(),
        };
        Err(Error::Size { requested: bytes, reason: reason.into() })
    }
}
