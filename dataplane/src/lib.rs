//! What one core runs: worker loop, ports, network stack, memory regions.
//!
//! The way of a frame: a port's queue, [`net::demux`], the flow table, `tcp_lite::endpoint`, and from
//! there straight into a region's [`memory`]. [`api`] is what the control thread sees.
//!
//! Unsafe code is in [`memory`] alone.
#![deny(unsafe_code)]

pub mod api;
#[allow(unsafe_code)]
pub mod memory;
pub mod net;
pub mod port;
pub mod steering;
pub mod timer;
