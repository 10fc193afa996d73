//! Interface between the control thread and the dataplane: configuration, commands, events, counters.

mod association;
mod config;
mod counters;
mod failure;
mod flow;
mod handle;
mod handshake;
mod info;
mod ipsec;
mod load;
mod message;
mod peers;
mod recording;
mod transport;

pub use association::{AssociationInfo, AssociationStats};
pub use base::metric::{Descriptor, Kind as CounterKind};
pub use config::{DataplaneConfig, Limits, ListenerConfig, PortAttachment, WorkerConfig};
pub use counters::Counters;
pub use failure::{Awaited, CommandError, ConnectError, PostFailure};
pub use flow::{FlowInfo, Limit, LimitInfo, Stall};
pub use handle::{Dataplane, Full, StartError, WorkerHandle};
pub(crate) use handle::{WorkerLink, worker_link};
pub use handshake::{HandshakeCount, HandshakeFailed, HandshakeFailure};
pub use info::{NeighbourInfo, StreamInfo};
pub use ipsec::{
    IpsecConfig, IpsecDrop, IpsecNotice, Protection, ReplayWindows, SaChange, SaConfig,
    SaDirection, SaId, SaInfo, SaWay,
};
pub use load::{LONGEST_LATENCY, Load, LoadKind, LoadReport, NOTICE_LEN, Order, Pace, Window};
pub use message::{Command, Connect, Event, Listed, Service, Sources};
pub use peers::{PeerFilter, PeerListOwner, PeerLists, PeerRefusal, PeerRule};
pub use port_kind::Secret;
pub use port_kind::policy::{Idle, IpFields, LocalPorts, Route, SynCookieMode};
pub use recording::{RECORDINGS, Record, RecordKind, Recording, WaitedFor};
pub use transport::{CloseReason, EndpointConfig, Origin, SctpConfig, StreamParams, StreamStats};

pub use crate::counter::Counter;
pub use crate::drops::{DropReason, Drops};
pub use crate::ids::{InterfaceId, ListenerId, PortId, Ticket, Transport, WorkerId};
pub use crate::net::interface::InterfaceConfig;
