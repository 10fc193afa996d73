//! IPsec for the data path, sans-IO and free of DPDK.
//!
//! - [`crypto`]: the interface to the libraries that encrypt and authenticate one ESP packet in place (RFC 4303 with
//!   the algorithms of RFC 8221).
//! - [`replay`]: the anti-replay window and the high half of extended sequence numbers.
//! - [`sa`]: security associations, their lifetimes, and the length of a sealed packet.
//! - [`esp`]: the encapsulation, in transport and tunnel mode, over IPv4, IPv6 and UDP (RFC 3948), with ECN and DSCP of
//!   tunnels (RFC 6040).
//! - [`strength`]: the strength of a packet's protection.
//! - [`policy`]: the policies that protect, pass or drop packets (RFC 4301).
//! - [`ip`]: the IP headers of packets before and after ESP.
//! - [`guard`]: one worker's part: policies, SAs and their replacement by newer ones, and notices to the control
//!   thread.
#![forbid(unsafe_code)]

pub mod crypto;
pub mod esp;
pub mod guard;
pub mod ip;
pub mod policy;
pub mod replay;
pub mod sa;
pub mod strength;
