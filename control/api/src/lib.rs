//! The management API: JSON over HTTP on a Unix socket.
//!
//! The server runs in its own thread and has no access to streams or regions. It turns HTTP into a [`Request`], passes
//! the request to the control thread through a bounded queue, and turns the [`Reply`] into JSON. Events bypass this
//! queue: the control thread appends them to the [`EventLog`], from which the server reads. `docs/api.md` describes the
//! API.

#![forbid(unsafe_code)]

pub mod accept;
mod access;
mod app;
mod call_inputs;
mod capture;
mod channel;
mod client;
mod config_info;
mod config_routes;
mod connection_slots;
mod connections;
mod error;
mod event;
pub mod explain;
#[cfg(any(test, feature = "fake"))]
#[doc(hidden)]
#[allow(missing_docs)]
pub mod fake;
mod info;
mod input;
mod ipsec;
mod log;
mod lossy_path;
pub mod metrics;
mod names;
mod observe;
mod openapi;
mod pages;
pub mod refusal;
mod routes;
mod schema_shapes;
mod server;
mod spec;
mod stream_id;
mod types;
mod why;

#[cfg(test)]
mod tests;

pub use access::{
    Access, AccessError, AccessTally, AttachRights, AttachedProcess, AuditLog, AuditedProgram, Role,
};
pub use capture::{CaptureSink, CaptureSpec};
pub use channel::{Call, CallError, Inbox, Requester, Responder, channel};
pub use client::{Client, ClientError, path_segment};
pub use config_info::*;
pub use connections::{ConnectionCounts, ConnectionTally};
pub use error::{ApiError, ErrorKind};
pub use event::{Event, EventFilter, EventKind, EventLog, EventPage, Ring, Severity};
pub use info::*;
pub use input::{Input, InputWriter};
pub use ipsec::{IpsecPolicyInfo, IpsecSaInfo};
pub use log::LogInfo;
pub use names::unknown_name;
pub use observe::{MAX_OBSERVERS, Observer, ObserverError};
pub use openapi::openapi;
pub use pages::{MAX_PAGE, NamePage, Paged};
pub use server::{BoundServer, MAX_CONNECTIONS, Server, ServerError, bind_programs};
pub use spec::*;
pub use stream_id::StreamId;
pub use types::*;
pub use why::{ExplainSubject, Flight, FlightEnd, FlightEvent, FlightHeader, Why};
