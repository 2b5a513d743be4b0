//! Links between devices. Copies between devices need them with the stricter answers only.

use crate::call::Call;
use crate::codes;
use crate::refusal::{Answer, refuse};
use crate::sim::Sim;

impl Sim {
    /// `aclrtDeviceCanAccessPeer`: yes, for two different devices.
    ///
    /// # Errors
    /// The ACL code: 100000 for one and the same device, 107001 for one that is not visible.
    pub fn can_access_peer(&self, device: i32, peer: i32) -> Result<bool, i32> {
        self.call(Call::DeviceCanAccessPeer, format_args!("{device}, {peer}"), || {
            self.pair(device, peer).map(|_| true)
        })
    }

    /// `aclrtDeviceEnablePeerAccess`: the current device may use memory of the other; again is no
    /// error.
    ///
    /// # Errors
    /// The ACL code: 200006 for flags, 107002 without a device, 100000 for the current device, 107001
    /// for one that is not visible.
    pub fn enable_peer_access(&self, peer: i32, flags: u32) -> Result<(), i32> {
        self.call(Call::DeviceEnablePeerAccess, format_args!("{peer}, flags={flags}"), || {
            if flags != 0 {
                return refuse(codes::FEATURE_UNSUPPORTED, "flags must be 0");
            }
            let link = self.link_to(peer)?;
            self.inner.devices.lock().peers.insert(link);
            Ok(())
        })
    }

    /// `aclrtDeviceDisablePeerAccess`: the opposite; without a link there is nothing to do.
    ///
    /// # Errors
    /// As [`enable_peer_access`](Self::enable_peer_access).
    pub fn disable_peer_access(&self, peer: i32) -> Result<(), i32> {
        self.call(Call::DeviceDisablePeerAccess, format_args!("{peer}"), || {
            let link = self.link_to(peer)?;
            self.inner.devices.lock().peers.remove(&link);
            Ok(())
        })
    }

    /// `aclrtDevicePeerAccessStatus`: 1 if the link from the first device to the second is enabled.
    ///
    /// # Errors
    /// As [`can_access_peer`](Self::can_access_peer).
    pub fn peer_access_status(&self, device: i32, peer: i32) -> Result<i32, i32> {
        self.call(Call::DevicePeerAccessStatus, format_args!("{device}, {peer}"), || {
            let link = self.pair(device, peer)?;
            Ok(i32::from(self.inner.devices.lock().peers.contains(&link)))
        })
    }

    /// `aclrtMemP2PMap`: prepares the use of a range by another device, which needs nothing here.
    ///
    /// # Errors
    /// The ACL code: 100000 for null and size 0, 107001 for a device that is not visible, 107000 for
    /// flags, without a link from the current device, and for memory that is not mapped.
    pub fn map_p2p(&self, start: u64, size: u64, device: i32, flags: u64) -> Result<(), i32> {
        let arguments = format_args!("{start:#x}, size={size}, device={device}, flags={flags}");
        self.call(Call::MemP2PMap, arguments, || {
            if start == 0 || size == 0 {
                return refuse(codes::INVALID_PARAM, "null address or size 0");
            }
            if flags != 0 {
                return refuse(codes::RT_PARAM_INVALID, "flags must be 0");
            }
            let peer = self.visible(device)?;
            let own = self.current()?;
            let linked = own == peer || self.inner.devices.lock().peers.contains(&(own, peer));
            if !linked || self.inner.memory.lock().first_hole(start, size).is_some() {
                return refuse(
                    codes::RT_PARAM_INVALID,
                    "no link to the device, or memory that is not mapped",
                );
            }
            Ok(())
        })
    }

    /// Two different devices by the driver's numbers.
    fn pair(&self, device: i32, peer: i32) -> Answer<(u32, u32)> {
        if device == peer {
            return refuse(codes::INVALID_PARAM, "one and the same device");
        }
        Ok((self.visible(device)?, self.visible(peer)?))
    }

    /// The current device and another one.
    fn link_to(&self, peer: i32) -> Answer<(u32, u32)> {
        let own = self.current()?;
        let peer = self.visible(peer)?;
        if own == peer {
            return refuse(codes::INVALID_PARAM, "the current device");
        }
        Ok((own, peer))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Sim, SimConfig, codes};

    #[test]
    fn links_have_a_direction_and_end_with_the_device() {
        let sim = Sim::new(SimConfig { devices: 3, ..SimConfig::default() });
        assert_eq!(sim.can_access_peer(0, 1), Ok(true));
        assert_eq!(sim.can_access_peer(1, 1), Err(codes::INVALID_PARAM));
        assert_eq!(sim.can_access_peer(1, 9), Err(codes::RT_INVALID_DEVICEID));
        assert_eq!(sim.enable_peer_access(1, 1), Err(codes::FEATURE_UNSUPPORTED));
        assert_eq!(sim.enable_peer_access(1, 0), Err(codes::RT_CONTEXT_NULL));
        sim.set_device(0).unwrap();
        assert_eq!(sim.enable_peer_access(0, 0), Err(codes::INVALID_PARAM));
        sim.enable_peer_access(1, 0).unwrap();
        sim.enable_peer_access(1, 0).unwrap();
        assert_eq!((sim.peer_access_status(0, 1), sim.peer_access_status(1, 0)), (Ok(1), Ok(0)));
        let block = sim.malloc(100, 0).unwrap();
        assert_eq!(sim.map_p2p(block, 100, 1, 0), Ok(()));
        assert_eq!(sim.map_p2p(block, 100, 2, 0), Err(codes::RT_PARAM_INVALID));
        sim.disable_peer_access(1).unwrap();
        assert_eq!(sim.peer_access_status(0, 1), Ok(0));
        sim.enable_peer_access(2, 0).unwrap();
        sim.reset_device(0).unwrap();
        assert_eq!(sim.peer_access_status(0, 2), Ok(0));
    }
}
