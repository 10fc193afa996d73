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
mod counter;
mod drops;
pub mod host;
mod ids;
#[allow(unsafe_code)]
pub mod memory;
pub mod port;
mod wake;
mod worker;

// What a worker is made of: fuzz targets and benchmarks drive it. Nothing else outside this crate should.
#[doc(hidden)]
pub use worker::driven::Driven;
#[doc(hidden)]
pub mod checksum;
#[doc(hidden)]
pub mod flow;
#[doc(hidden)]
pub mod io;
#[doc(hidden)]
pub mod mesh;
#[doc(hidden)]
pub mod net;
#[doc(hidden)]
pub mod steering;
#[doc(hidden)]
pub mod timer;

/// DPDK's environment, which ports and workers need.
pub mod eal {
    pub use dpdk::{Eal, EalConfig, EalError, Hugepages, LogLevel, version};
}

pub use api::{
    AssociationInfo, AssociationStats, Awaited, CloseReason, Command, CommandError, Connect,
    ConnectError, CounterKind, Counters, Dataplane, DataplaneConfig, DropReason, EndpointConfig,
    Event, FlowInfo, Full, HandshakeCount, HandshakeFailed, HandshakeFailure, Idle,
    InterfaceConfig, InterfaceId, IpFields, IpsecConfig, IpsecDrop, IpsecNotice, LONGEST_LATENCY,
    Limit, LimitInfo, Limits, Listed, ListenerConfig, ListenerId, Load, LoadKind, LoadReport,
    NeighbourInfo, Order, Origin, Pace, PeerFilter, PeerListOwner, PeerLists, PeerRefusal,
    PeerRule, PortAttachment, PortId, PostFailure, Protection, RECORDINGS, Record, RecordKind,
    Recording, ReplayWindows, Route, SaChange, SaConfig, SaDirection, SaId, SaInfo, SaWay,
    SctpConfig, Secret, Service, Sources, Stall, StartError, StreamInfo, StreamParams, StreamStats,
    SynCookieMode, Ticket, Transport, WaitedFor, Window, WorkerConfig, WorkerHandle, WorkerId,
};
