//! Privileges required by ports and by the process, and those that the process has.
//!
//! `ddpd check`, `ddpd doctor` and the sandbox use the same functions, so that they agree. The functions change
//! nothing.

mod capability;
mod needs;
mod process;

pub use capability::{Capabilities, Capability};
pub use needs::{Need, port_needs, process_needs};
pub use process::open_files_limit;
pub use process::{effective_capabilities, locked_memory_limit};
