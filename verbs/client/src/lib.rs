//! Native library for local programs of `ddpd`: a program registers memory, connects and listens through the appliance,
//! and posts operations to its workers through shared memory.
//!
//! ```text
//!  Session ─┬─ ProtectionDomain ─┬─ MemoryRegion ── Buffer (arena)
//!           │                    └─ QueuePair ── connect, or Listener → ConnectionRequest → accept
//!           ├─ CompletionChannel ── CompletionQueue
//!           └─ events
//! ```
//!
//! | type | is |
//! |---|---|
//! | [`Session`] | the connection to the appliance: limits, devices, [events](Session::next_event) |
//! | [`ProtectionDomain`] | the scope of memory regions and queue pairs |
//! | [`MemoryRegion`] | memory that the appliance may access, allocated from the session's arena |
//! | [`QueuePair`] | a connection with its send and receive queue; [`post`] makes the operations |
//! | [`CompletionQueue`] | outcomes of posted operations |
//! | [`CompletionChannel`] | a descriptor that is readable after a requested notification |
//! | [`Listener`] | a local address and port where peers connect |
//!
//! Calls that create, remove and connect objects block until the appliance has answered. Posting and polling are
//! accesses to shared memory; a system call is made only to wake a worker that sleeps.
//!
//! Objects can be dropped in any order: each keeps those that it needs. A drop removes the object at the appliance and
//! waits for its answer.
//!
//! # Memory
//!
//! All registered memory comes from the session's arena. Peers, workers and threads may access it at the same time.
//! A program may read what a Receive, a Read or an atomic has stored when it has polled that completion. It must not
//! change the bytes of a posted operation before the completion. [`MemoryRegion::read`], [`MemoryRegion::write`] and
//! [`MemoryRegion::bytes`] are atomic accesses without order: a race gives a mix of bytes. Code that uses
//! [`MemoryRegion::as_ptr`] must not create references to bytes that another side may write meanwhile.
//!
//! # Waiting
//!
//! [`Session`] and [`CompletionChannel`] have descriptors for `poll`. With the feature `tokio`, `AsyncCompletions` and
//! `AsyncEvents` are their futures.
//!
//! # Failures
//!
//! When the appliance ends, calls return [`Error::Disconnected`], posts fail, and completions that have arrived can
//! still be polled. Memory stays mapped. A message that breaks the protocol ends the session, too. A queue that breaks
//! the rules of its memory fails alone. Calls have no time-out of their own: an appliance that neither answers nor ends
//! blocks them.
//!
//! # Fork
//!
//! A session belongs to the process that opened it. A child gets [`Error::Forked`]; it must not touch the memory.
//!
//! # Example
//!
//! ```no_run
//! use verbs_client::{ConnectOptions, MemoryAccess, QueuePairConfig, Session, post};
//!
//! let session = Session::open()?;
//! let domain = session.create_domain()?;
//! let memory = domain.alloc(4096, MemoryAccess { local_write: true, ..Default::default() })?;
//! let channel = session.create_channel()?;
//! let completions = session.create_completion_queue(16, Some(&channel))?;
//! let pair = domain.create_queue_pair(&QueuePairConfig {
//!     send_completions: &completions,
//!     receive_completions: &completions,
//!     max_sends: 8,
//!     max_receives: 8,
//!     copy_sources: false,
//! })?;
//! pair.connect("10.0.0.2:4000".parse().unwrap(), &ConnectOptions::default())?;
//! memory.write(0, b"hello");
//! pair.post_send(&post::send(post::gather(&[memory.sge(0..5)?])?))?;
//! let completion = completions.next(None)?;
//! # Ok::<(), verbs_client::Error>(())
//! ```
#![deny(unsafe_code)]

// The tests include the examples.
#[cfg(test)]
extern crate self as verbs_client;

mod channel;
mod completion_queue;
mod domain;
mod error;
mod event;
mod ffi;
#[cfg(feature = "tokio")]
mod futures;
mod inbox;
mod link;
mod listener;
mod lock;
mod mapping;
pub mod post;
mod queue_pair;
mod queues;
mod ranges;
mod region;
mod session;
#[cfg(test)]
mod tests;

pub use channel::CompletionChannel;
pub use completion_queue::{CompletionQueue, NO_COMPLETION};
pub use domain::ProtectionDomain;
pub use error::Error;
pub use event::Event;
#[cfg(feature = "tokio")]
pub use futures::{AsyncCompletions, AsyncEvents};
pub use listener::{AcceptOptions, ConnectionRequest, Listener};
pub use queue_pair::{
    ConnectOptions, Connection, DEFAULT_DEPTHS, PairEvent, PostError, QueuePair, QueuePairConfig,
};
pub use region::{Buffer, MemoryRegion};
pub use session::{DEFAULT_SOCKET, SOCKET_VARIABLE, Session};
pub use verbs_layout::completion::Request;
pub use verbs_layout::work::{
    AtomicResult, Carried, Completed, Completion, DescriptorError, Inline, Opcode, Operation,
    Payload, ReceiveWork, Remote, SendWork, Sge, SgeList, Status, WindowAccess, WindowBind,
};
pub use verbs_session::message::{
    Depths, Device, Limits, MAX_PRIVATE_DATA, MemoryAccess, Refusal, RefusalKind, Transport,
};
