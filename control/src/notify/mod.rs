//! The service manager: systemd's notify protocol (sd_notify(3)) and its watchdog.
//!
//! [`Socket`] sends; [`Service`] knows what has been sent and what state the appliances of the process are in;
//! [`watchdog`] feeds the watchdog. Nothing here blocks: a datagram that the manager's socket does not take at once is
//! sent later, or not at all. The crate `sd-notify` sends with a socket that blocks.

mod service;
mod socket;
#[cfg(test)]
mod tests;
pub mod watchdog;

pub use self::service::{STATUS_EVERY, Service, Stage, State};
pub use self::socket::{Sent, Socket};
