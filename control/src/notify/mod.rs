//! The service manager: systemd's notify protocol (sd_notify(3)) and its watchdog.
//!
//! [`Socket`] sends messages. [`Service`] tracks the state of the process's appliances and the messages sent.
//! [`watchdog`] feeds the watchdog. Sending never blocks: a datagram that the manager's socket does not accept at once
//! is sent later or dropped. The crate `sd-notify` is not used because its socket blocks.

mod service;
mod socket;
#[cfg(test)]
mod tests;
pub mod watchdog;

pub use self::service::{STATUS_INTERVAL, Service, Stage, State};
pub use self::socket::{SendOutcome, Socket};
