//! The data plane: worker loop, ports, network stack, memory regions.
//!
//! A received TCP segment passes a port's queue ([`io`]), [`net::demux`], the [`flow`] table and `tcp_lite::endpoint`.
//! Its payload is then copied directly into a region's [`memory`]. [`api`] is the interface to the control thread; its
//! types are also exported from the crate root.
//!
//! Unsafe code is confined to [`memory`].
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
mod signal;
mod wake;
mod worker;

// Parts of a worker, public for fuzz targets and benchmarks only; other crates must not use them.
#[doc(hidden)]
pub use worker::driven_worker::DrivenWorker;
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

/// DPDK's environment abstraction layer, which ports and workers require.
pub mod eal {
    pub use dpdk::{Eal, EalConfig, EalError, Hugepages, LogLevel, version};
}

pub use api::{
    AssociationInfo, AssociationStats, AwaitedEvent, CloseReason, Command, CommandError,
    CommandRingFull, CompletionQueueConfig, Connect, ConnectError, ConnectStage, CounterKind,
    Counters, Dataplane, DataplaneConfig, DropCount, DropReason, EndpointConfig, Event,
    FailedHandshake, FlowInfo, HandshakeCount, HandshakeFailure, Idle, InterfaceConfig,
    InterfaceId, IpFields, IpsecConfig, IpsecDrop, IpsecNotice, Limit, LimitInfo, Limits,
    ListenerConfig, ListenerId, Load, LoadKind, LoadReport, MAX_LATENCY_NANOS, MAX_QUEUE_PAIRS,
    MAX_RECORDINGS, NeighbourInfo, Order, Origin, Pace, PeerFilter, PeerListOwner, PeerLists,
    PeerRefusal, PeerRule, PortAttachment, PortId, PostFailure, ProgramConfig, ProgramEvent,
    ProgramId, Protection, QueuePairConfig, QueuePairError, QueuePairId, Receives, Record,
    RecordKind, Recording, ReplayWindows, Route, SaChange, SaConfig, SaDirection,
    SaDirectionConfig, SaId, SaInfo, SctpConfig, Secret, Service, SharedReceives,
    SharedReceivesError, SourceRemoval, Stall, StartError, StreamInfo, StreamParams,
    StreamSelection, StreamStats, SynCookieMode, Ticket, Transport, Window, WindowChange, WindowId,
    WindowKind, WorkerConfig, WorkerHandle, WorkerId,
};
pub use signal::Signal;
