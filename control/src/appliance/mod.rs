//! The appliance: the control thread and the state that it owns.
//!
//! ```text
//!  API thread --requests--> control thread --commands--> workers
//!             <--answers---   |  ^     ^  <---events----
//!                             v  |     +-- loader thread (memory of regions, files to send)
//!                         file writer, attach socket of local programs
//! ```
//!
//! [`Core`] decides everything and makes no blocking call; [`thread`] runs it. Its parts own their state:
//!
//! | part | owns |
//! |---|---|
//! | `regions` | regions, STags, protection domains, bindings to streams |
//! | `listeners` | listeners, their limits, queue files and services |
//! | `streams` | streams, their posts, what ended streams did |
//! | `jobs` | operations of API clients on streams: put, get, send, ping, atomics, bench |
//! | `links` | how long each port's link has been down, recreated Linux interfaces |
//! | `devices` | sentences on the Linux interfaces under ports |
//! | `budget` | the memory ceiling and the bytes in use |
//! | `handshakes` | counts of failed passive handshakes |
//! | `env` | state that all parts use: facts, commands, tickets, log, files |
//!
//! No part calls another. Each takes requests and events and returns values. A job's request to
//! another part is an `Effect`, which `core` routes.

mod addresses;
mod attempts;
pub mod budget;
mod captures;
mod confirmations;
mod core;
mod counters;
mod device_faults;
mod effect;
pub mod endpoints;
mod env;
mod flights;
mod handshakes;
mod ipsec;
mod jobs;
pub mod limits;
mod links;
mod listeners;
pub mod loader;
mod notes;
mod pending;
mod pending_confirmations;
mod ports;
pub mod process;
mod regions;
mod running_config;
pub mod source;
pub mod stags;
pub mod start;
mod streams;
#[cfg(test)]
mod tests;
pub mod thread;
pub mod tickets;
mod utilization;

pub use self::core::{Core, Setup};
pub use self::ports::PortView;
