//! Privileges that ports and the process require, and privileges that the process has.
//!
//! `ddpd check`, `ddpd doctor` and the sandbox use the same functions, so that their results agree. The functions do
//! not change the process.

mod capability;
mod needs;
mod process;

pub use capability::{Capabilities, Capability};
pub use needs::{Need, port_needs, process_needs};
pub use process::open_files_limit;
pub use process::{effective_capabilities, locked_memory_limit};
