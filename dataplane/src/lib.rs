//! What one core runs: worker loop, ports, network stack, memory regions.
//!
//! The way of a frame: a port's queue ([`io`]), [`net::demux`], the [`flow`] table, `tcp_lite::endpoint`,
//! and from there straight into a region's [`memory`]. [`api`] is what the control thread sees, also
//! under the crate's own name.
//!
//! Unsafe code is in [`memory`] alone.
#![deny(unsafe_code)]

pub mod api;
pub mod flow;
pub mod io;
#[allow(unsafe_code)]
pub mod memory;
pub mod mesh;
pub mod net;
pub mod port;
pub mod steering;
pub mod timer;
mod worker;

pub use api::{
    AssociationInfo, AssociationStats, CloseReason, Command, CommandError, Connect, ConnectError,
    CounterKind, Counters, Dataplane, DataplaneConfig, DropReason, EndpointConfig, Event, Full,
    Idle, InterfaceConfig, InterfaceId, Limits, ListenerConfig, ListenerId, Load, LoadKind,
    LoadReport, NeighbourInfo, Order, Origin, Pace, PortAttachment, PortId, PostFailure, Route,
    SctpConfig, Service, Sources, StartError, StreamInfo, StreamParams, StreamStats, SynCookieMode,
    Ticket, Transport, Window, WorkerConfig, WorkerHandle, WorkerId,
};
