//! The appliance: the control thread and the state that it owns.
//!
//! ```text
//!  API thread --requests--> control thread --commands--> workers
//!             <--answers---   |  ^     ^  <---events----
//!                             v  |     +-- loader thread (memory of regions, files to send)
//!                         file writer, attach socket of local programs
//! ```
//!
//! [`Core`] makes all decisions and never blocks; [`thread`] runs it. The parts of `Core` own their state:
//!
//! | part | owns |
//! |---|---|
//! | `regions` | regions, STags, protection domains, bindings to streams |
//! | `listeners` | listeners, their limits, queue files and services |
//! | `streams` | streams, their posts, totals of ended streams |
//! | `jobs` | operations of API clients on streams: put, get, send, ping, atomics, bench |
//! | `links` | link states of ports, faults of their Linux interfaces (`device_faults`) |
//! | `captures` | packet captures of ports |
//! | `flights` | the flight recorder: records of streams for `ddpctl why` |
//! | `programs` | local programs: sessions, memory regions, queues, connections |
//! | `utilization` | share of time in which each worker is busy |
//! | `env` | state that all parts use: configuration, commands, tickets, log, files, budget, notes, IPsec |
//!
//! No part calls another; all use `env`. Each part takes requests and events and returns values. A job's request to
//! another part is an `Effect`, which `core` performs.

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
mod objects;
mod pending;
mod pending_confirmations;
mod ports;
pub mod process;
pub mod programs;
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
