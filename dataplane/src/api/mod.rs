//! What the control thread sees of the dataplane: configuration, commands, events, counters.

mod config;
mod counters;
mod ids;

pub use config::{
    DataplaneConfig, Idle, InterfaceConfig, Limits, PortAttachment, Route, WorkerConfig,
};
pub use counters::{Counter, Counters, DropReason, Drops, Kind};
pub use ids::{InterfaceId, ListenerId, PortId, Ticket, WorkerId};
