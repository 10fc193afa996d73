//! IPsec for the data path, sans-IO and free of DPDK.
//!
//! - [`crypto`]: the seam to the libraries that encrypt and authenticate one ESP packet in place (RFC 4303 with the
//!   algorithms of RFC 8221).
//! - [`replay`]: the anti-replay window and the high half of extended sequence numbers.
//! - [`sa`]: security associations, their lifetimes, and how long a packet becomes.
//! - [`esp`]: the encapsulation, in transport and tunnel mode, over IPv4, IPv6 and UDP (RFC 3948), with ECN and DSCP of
//!   tunnels (RFC 6040).
//! - [`strength`]: how strongly a packet is protected.
//! - [`policy`]: which packets are protected, pass or are dropped (RFC 4301).
//! - [`guard`]: one worker's part: policies, SAs and their succession, and what others should know.
#![forbid(unsafe_code)]

pub mod crypto;
pub mod esp;
pub mod guard;
pub mod ip;
pub mod policy;
pub mod replay;
pub mod sa;
pub mod strength;
