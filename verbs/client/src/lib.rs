//! Native library for local programs of `ddpd`: a program registers memory, connects and listens through the appliance,
//! and posts operations to its workers through shared memory.
//!
//! ```text
//!  Session ─┬─ ProtectionDomain ─┬─ MemoryRegion ── Buffer (arena)
//!           │                    ├─ MemoryWindow
//!           │                    ├─ SharedReceiveQueue
//!           │                    └─ QueuePair ── connect, or Listener → ConnectionRequest → accept
//!           ├─ CompletionChannel ── CompletionQueue
//!           └─ events
//! ```
//!
//! | type | is |
//! |---|---|
//! | [`Session`] | the connection to the appliance: limits, devices, [events](Session::next_event) |
//! | [`ProtectionDomain`] | the scope of memory regions and queue pairs |
//! | [`MemoryRegion`] | memory that the appliance may access: new memory, or memory of the program |
//! | [`MemoryWindow`] | an STag for a part of a memory region, bound and invalidated by posts |
//! | [`QueuePair`] | a connection with its send and receive queue; [`post`] has constructors of operations |
//! | [`SharedReceiveQueue`] | receives for the messages of several queue pairs |
//! | [`CompletionQueue`] | outcomes of posted operations |
//! | [`CompletionChannel`] | a descriptor that is readable after a requested notification |
//! | [`Listener`] | a local address and port where peers connect |
//!
//! Calls that create, remove and connect objects block until the appliance has answered. Posting and polling access
//! shared memory. They make a system call only to wake a sleeping worker.
//!
//! Objects can be dropped in any order: each object keeps alive the objects that it uses. The drop of the last
//! reference removes the object at the appliance and waits for its answer.
//!
//! # Memory
//!
//! All registered memory is in the session's arena: [`ProtectionDomain::alloc`] allocates it there, and
//! [`ProtectionDomain::register`] replaces pages that the program has allocated by pages of the arena. Peers, workers
//! and threads may access registered memory at the same time. The bytes that a Receive, a Read or an atomic stores are
//! valid once the program has polled the completion. The program must not change the source bytes of a posted operation
//! before its completion, except with [`QueuePairConfig::copy_sources`]. [`MemoryRegion::read`],
//! [`MemoryRegion::write`] and [`MemoryRegion::bytes`] are relaxed atomic accesses: a read that races with a write may
//! return a mix of old and new bytes. Code that uses [`MemoryRegion::as_ptr`] must not create references to bytes that
//! another thread, a worker or a peer may write meanwhile, except references to atomics.
//!
//! # Waiting
//!
//! [`Session`] and [`CompletionChannel`] have file descriptors for `poll`. With the feature `tokio`, `AsyncCompletions`
//! returns completions and `AsyncEvents` returns events as futures.
//!
//! # Failures
//!
//! When the appliance ends, calls return [`Error::Disconnected`], posts fail, and completions that have arrived can
//! still be polled. Memory stays mapped. A message that breaks the protocol also ends the session. A queue that is
//! corrupt in shared memory fails without ending the session.
//!
//! A call waits for the appliance's answer without a time-out: an appliance that hangs blocks the call. Only the
//! opening of a session has a time-out for the answer, ten seconds. A connect, an accept and a disconnect are answered
//! before their outcome is known. Their time-outs limit the wait for the outcome.
//!
//! # Fork
//!
//! A session belongs to the process that opened it. In a forked child calls return [`Error::Forked`]. The child must
//! not write to memory of the arena, which it shares with its parent. Memory that [`ProtectionDomain::register`] has
//! registered is private in the child: the `fork` copies it.
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
//!     shared_receives: None,
//! })?;
//! pair.connect("10.0.0.2:4000".parse().unwrap(), &ConnectOptions::default())?;
//! memory.write(0, b"hello");
//! pair.post_send(&post::send(post::gather(&[memory.sge(0..5)?])?))?;
//! let completion = completions.next(None)?;
//! # Ok::<(), verbs_client::Error>(())
//! ```
#![deny(unsafe_code)]

// The tests include the examples, which use this crate by its name.
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
#[doc(hidden)]
pub mod lock;
mod mapping;
#[doc(hidden)]
pub mod page;
pub mod post;
mod queue_pair;
mod queues;
mod ranges;
mod region;
mod registration;
mod replacements;
mod session;
mod shared_receives;
#[doc(hidden)]
pub mod signals;
#[cfg(test)]
mod tests;
mod window;
mod writer;

pub use channel::CompletionChannel;
pub use completion_queue::{CompletionQueue, NO_COMPLETION};
pub use domain::ProtectionDomain;
pub use error::{Error, PostError};
pub use event::Event;
#[cfg(feature = "tokio")]
pub use futures::{AsyncCompletions, AsyncEvents};
pub use listener::{AcceptOptions, ConnectionRequest, Listener};
pub use queue_pair::{
    ConnectOptions, Connection, DEFAULT_DEPTHS, PairEvent, QueuePair, QueuePairConfig,
};
pub use region::{Buffer, MemoryRegion};
pub use session::{DEFAULT_SOCKET, SOCKET_VARIABLE, Session};
pub use shared_receives::{SharedReceiveQueue, SharedReceivesEvent};
pub use verbs_layout::completion::Request;
pub use verbs_layout::work::{
    AtomicResult, Carried, Completed, Completion, DescriptorError, Inline, Opcode, Operation,
    Payload, ReceiveWork, Remote, SendWork, Sge, SgeList, Status, WindowAccess, WindowBind,
};
pub use verbs_session::message::{
    Depths, Device, Limits, MAX_PRIVATE_DATA, MemoryAccess, PeerKind, Refusal, RefusalKind,
    StartUp, Transport, WindowKind,
};
pub use window::MemoryWindow;
pub use writer::{ReceiveWriter, SendBatch, SendWriter};
