//! Header views and values of MPA and DDP, the newtypes that every layer shares, and time.
//!
//! Ethernet, ARP, IP, ICMP and TCP headers are not here: they come from smoltcp's `wire`.
#![forbid(unsafe_code)]

mod time;

pub use time::Instant;
