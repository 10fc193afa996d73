//! The appliance: its control thread and what that keeps.
//!
//! ```text
//!  API thread --requests--> control thread --commands--> workers
//!             <--answers---   |  ^     ^  <---events----
//!                             v  |     +-- loader thread (memory of regions, files to send)
//!                         file writer, attach socket of local programs
//! ```
//!
//! [`Core`] decides everything and calls nobody that could block; [`thread`] runs it. One file per subject:
//! regions, listeners, streams, jobs (`put`), sends, queries, reload, drain.

mod accept;
mod connect;
mod core;
mod counters;
mod drain;
pub mod endpoints;
mod env;
mod gets;
mod jobs;
pub mod limits;
mod links;
mod listeners;
pub mod loader;
mod pending;
mod ports;
pub mod process;
mod queries;
mod refused;
mod regions;
mod reload;
mod render;
mod sends;
mod services;
pub mod stags;
pub mod start;
mod streams;
#[cfg(test)]
mod tests;
pub mod thread;
pub mod tickets;
mod untagged;
mod verbs;

pub use self::core::{Core, Setup};
pub use self::ports::PortView;
