//! What a client may ask of the server without asking the device.

use std::sync::Arc;

use cubecl_common::device::ServiceId;
use cubecl_common::profile::TimingMethod;
use cubecl_ir::features::Features;
use cubecl_ir::{
    DeviceIdentity, DeviceProperties, HardwareProperties, MemoryDeviceProperties, TargetProperties,
};
use cubecl_server::allocator::ContiguousMemoryLayoutPolicy;
use cubecl_server::logging::ServerLogger;
use cubecl_server::server::ServerUtilities;

use crate::storage::ALIGNMENT;

/// The utilities of a server without a compiler: true of its memory, and of kernels that there are none.
pub(crate) fn utilities(service: ServiceId, memory: MemoryDeviceProperties) -> ServerUtilities {
    let hardware = HardwareProperties {
        load_width: 0,
        vector_register_count: None,
        plane_size_min: 0,
        plane_size_max: 0,
        max_bindings: 0,
        max_shared_memory_size: 0,
        max_cube_count: (0, 0, 0),
        max_units_per_cube: 0,
        max_cube_dim: (0, 0, 0),
        num_streaming_multiprocessors: None,
        num_cpu_cores: None,
        last_level_cache_size: None,
        num_tensor_cores: None,
        min_tensor_cores_dim: None,
        max_vector_size: 1,
        cube_mma_reserved_shared_memory: 0,
    };
    let name = "ascend".to_owned();
    let properties = DeviceProperties::new(
        Features::default(),
        memory,
        hardware,
        TimingMethod::System,
        DeviceIdentity { fingerprint: name.clone(), name, physical: None },
    );
    // Captures are for servers that record graphs.
    let (utilities, _captures) = ServerUtilities::init(
        service,
        "ascend",
        properties,
        TargetProperties::default(),
        Arc::new(ServerLogger::default()),
        ContiguousMemoryLayoutPolicy::new(ALIGNMENT as usize),
    );
    utilities
}
