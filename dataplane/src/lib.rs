//! What one core runs: worker loop, ports, network stack, memory regions.
//!
//! The way of a frame: a port's queue ([`io`]), [`net::demux`], the [`flow`] table, `tcp_lite::endpoint`,
//! and from there straight into a region's [`memory`]. [`api`] is what the control thread sees, also
//! under the crate's own name.
//!
//! Unsafe code is in [`memory`] alone.
#![deny(unsafe_code)]

pub mod api;
pub mod capture;
#[allow(unsafe_code)]
pub mod memory;
pub mod port;
mod wake;
mod worker;

/// A worker without a thread.
#[cfg(feature = "internals")]
pub use worker::driven::Driven;

// What a worker is made of. Fuzz targets and benchmarks reach it by the feature `internals`.
#[cfg(not(feature = "internals"))]
#[allow(unreachable_pub, dead_code, reason = "public for fuzz targets and benchmarks")]
mod flow;
#[cfg(feature = "internals")]
pub mod flow;
#[cfg(not(feature = "internals"))]
#[allow(unreachable_pub, dead_code, reason = "public for fuzz targets and benchmarks")]
mod io;
#[cfg(feature = "internals")]
pub mod io;
#[cfg(not(feature = "internals"))]
#[allow(unreachable_pub, dead_code, reason = "public for fuzz targets and benchmarks")]
mod mesh;
#[cfg(feature = "internals")]
pub mod mesh;
#[cfg(not(feature = "internals"))]
#[allow(unreachable_pub, dead_code, reason = "public for fuzz targets and benchmarks")]
mod net;
#[cfg(feature = "internals")]
pub mod net;
#[cfg(not(feature = "internals"))]
#[allow(unreachable_pub, dead_code, reason = "public for fuzz targets and benchmarks")]
mod steering;
#[cfg(feature = "internals")]
pub mod steering;
#[cfg(not(feature = "internals"))]
#[allow(unreachable_pub, dead_code, reason = "public for fuzz targets and benchmarks")]
mod timer;
#[cfg(feature = "internals")]
pub mod timer;

/// DPDK's environment, which ports and workers need.
pub mod eal {
    pub use dpdk::{Eal, EalConfig, EalError, Hugepages, LogLevel, version};
}

pub use api::{
    AssociationInfo, AssociationStats, CloseReason, Command, CommandError, Connect, ConnectError,
    CounterKind, Counters, Dataplane, DataplaneConfig, DropReason, EndpointConfig, Event, FlowInfo,
    Full, HandshakeCount, HandshakeFailed, HandshakeFailure, Idle, InterfaceConfig, InterfaceId,
    IpFields, LONGEST_LATENCY, Limit, LimitInfo, Limits, Listed, ListenerConfig, ListenerId, Load,
    LoadKind, LoadReport, NeighbourInfo, Order, Origin, Pace, PortAttachment, PortId, PostFailure,
    RECORDINGS, Record, RecordKind, Recording, Route, SctpConfig, Secret, Service, Sources,
    StartError, StreamInfo, StreamParams, StreamStats, SynCookieMode, Ticket, Transport, WaitedFor,
    Window, WorkerConfig, WorkerHandle, WorkerId,
};
