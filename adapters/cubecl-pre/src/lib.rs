//! `ascend-alloc-cubecl` for cubecl 0.12.0-pre.1: the same source, and one name that cubecl has moved.

#[path = "../../cubecl/src/memory.rs"]
pub mod memory;
#[path = "../../cubecl/src/server.rs"]
pub mod server;
#[path = "../../cubecl/src/storage.rs"]
pub mod storage;
#[path = "../../cubecl/src/utilities.rs"]
mod utilities;

pub use memory::TensorMemory;
pub use server::{AscendServer, Backend};
pub use storage::{AscendResource, AscendStorage};

use cubecl_server::execution::LaunchMode;
