//! Interface between the control thread and the dataplane: configuration, commands, events, counters. Two bounded rings
//! connect each worker to the control thread ([`Dataplane`]). Neither the worker nor the control thread waits for the
//! other.

mod association;
mod command;
mod config;
mod connect;
mod counters;
mod event;
mod failure;
mod flow;
mod handle;
mod handshake;
mod info;
mod ipsec;
mod load;
mod peers;
mod program;
mod recording;
mod transport;

pub use association::{AssociationInfo, AssociationStats};
pub use base::metric::{Descriptor, Kind as CounterKind};
pub use command::{Command, SourceRemoval, StreamSelection};
pub use config::{DataplaneConfig, Limits, ListenerConfig, PortAttachment, WorkerConfig};
pub use connect::{Connect, Service};
pub use counters::Counters;
pub use event::Event;
pub use failure::{CommandError, ConnectError, ConnectStage, PostFailure};
pub use flow::{FlowInfo, Limit, LimitInfo, Stall};
pub use handle::{CommandRingFull, Dataplane, StartError, WorkerHandle};
pub(crate) use handle::{WorkerLink, worker_link};
pub use handshake::{FailedHandshake, HandshakeCount, HandshakeFailure};
pub use info::{NeighbourInfo, StreamInfo};
pub use ipsec::{
    IpsecConfig, IpsecDrop, IpsecNotice, Protection, ReplayWindows, SaChange, SaConfig,
    SaDirection, SaDirectionConfig, SaId, SaInfo,
};
pub use load::{Load, LoadKind, LoadReport, MAX_LATENCY_NANOS, NOTICE_LEN, Order, Pace, Window};
pub use peers::{PeerFilter, PeerListOwner, PeerLists, PeerRefusal, PeerRule};
pub use port_kind::Secret;
pub use port_kind::policy::{Idle, IpFields, LocalPorts, Route, SynCookieMode};
pub use program::{
    CompletionQueueConfig, MAX_QUEUE_PAIRS, ProgramConfig, ProgramEvent, ProgramId,
    QueuePairConfig, QueuePairError, QueuePairId, Receives, SharedReceives, SharedReceivesError,
    WindowChange, WindowId, WindowKind,
};
pub use recording::{AwaitedEvent, MAX_RECORDINGS, Record, RecordKind, Recording};
pub use transport::{CloseReason, EndpointConfig, Origin, SctpConfig, StreamParams, StreamStats};

pub use crate::counter::Counter;
pub use crate::drops::{DropCount, DropReason, Drops};
pub use crate::ids::{InterfaceId, ListenerId, PortId, Ticket, Transport, WorkerId};
pub use crate::net::interface::InterfaceConfig;
