//! Direct Data Placement (RFC 5041): segmentation, placement, delivery, STags, untagged queues and errors, above any
//! reliable lower layer ([`llp`]). RDMAP ([`rdmap`]) is above DDP.
//!
//! The crate does no I/O: callers pass received bytes and the time, and poll for events and for bytes to send. The
//! crate works over every LLP that uses the traits in [`llp`].
//!
//! A [`Stream`] is one DDP stream. Its LLP passes received ULPDUs to [`Stream::sink`], and requests ULPDUs for
//! transmission from the stream, which is a [`llp::UlpduSource`]. The stream's ULP posts messages and polls events.
//! After every call from the LLP, [`Stream::poll_event`] must be called until it returns `None`.
#![forbid(unsafe_code)]

pub mod advert;
mod buffers;
mod checks;
mod config;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod cookie;
mod counters;
pub mod enhanced;
mod error;
mod hold_budget;
pub mod last_message;
pub mod lifecycle;
pub mod llp;
pub mod memory;
mod message;
mod policy;
pub mod rdmap;
mod receive;
mod send;
mod spans;
mod stag;
mod stream;
#[cfg(test)]
mod testing;
mod ulp;
mod window_budget;

pub use buffers::{BufferPool, PeerId, grant_limit};
pub use config::{ERROR_QUEUE, MESSAGE_QUEUE, QueueConfig, StreamConfig, VersionPolicy};
pub use cookie::{Cookie, Poster};
pub use counters::Counters;
pub use error::{DdpError, ErrorCode, Field, LAYER_DDP, Mismatch, PostError};
pub use hold_budget::HoldBudget;
pub use memory::{AtomicError, RegionMemory, VecMemory};
pub use message::{Event, Failure, Message, Source};
pub use policy::{EndpointPolicy, HALF_CLOSED_TIMEOUT};
pub use spans::{MAX_SPANS, Span, SpanList};
pub use stag::{Access, PdId, StagEntry, StagError, StagTable, StreamId};
pub use stream::{Context, Sink, Stream};
pub use ulp::{OpenRequest, Origin, Ulp, UlpConfig, UlpEvent, UlpKind, UlpSink};
pub use window_budget::WindowBudget;
pub use wire::{DdpVersion, MessageOffset, Msn, Qn, Stag, TaggedOffset};
