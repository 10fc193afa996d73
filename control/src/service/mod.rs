//! The services of a listener with `ulp = "rdmap"`: the server side of verbs programs.
//!
//! Sans-IO: events of streams are the input, operations to post are the output ([`Action`]). One [`Service`] per
//! listener stores the state of all its streams, because perftest uses two streams together. State is a few dozen bytes
//! per stream; the listener bounds the number of streams and their memory.
//!
//! | service | server side |
//! |---|---|
//! | region | none: peers use the advertised regions |
//! | echo | none: the worker sends every Send back |
//! | sink | none: the worker discards Sends |
//! | rping | the server of librdmacm's rping |
//! | perftest | the server of `ib_{write,read,send}_{bw,lat} -R` |
//!
//! Not included: memory and STags, and posting the operations. Each stream of rping and perftest has a [`Slot`], a part
//! of the listener's region with its own STag.

pub mod perftest;
pub mod ping;
mod rping;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Instant;

use ddp::{Access, Stag, StreamId};

use config::ServiceKind;
use perftest::Perftest;
use rping::Rping;

/// Memory of one stream: a part of its listener's region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// STag, valid on this stream only.
    pub stag: Stag,
    /// Tagged offset of the first byte.
    pub to: u64,
    /// Length, bytes.
    pub len: u64,
}

/// A location in the peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteBuffer {
    /// The peer's STag.
    pub stag: Stag,
    /// Tagged offset of the first byte.
    pub to: u64,
}

/// An event of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// A Send was received and consumed a receive buffer.
    Received(Vec<u8>),
    /// An RDMA Write is placed completely.
    Written {
        /// Length, bytes.
        len: u64,
    },
    /// An [`Action::Read`] is complete.
    ReadDone,
    /// An [`Action::WriteBytes`] is acknowledged.
    WriteDone,
}

/// An operation to post on a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Posts a Send. With `answers`, its completion reposts the receive buffer of the answered Send.
    Send {
        /// Contents of the message.
        bytes: Vec<u8>,
        /// True if it answers a Send of the peer.
        answers: bool,
    },
    /// Reposts a receive buffer.
    RepostBuffer,
    /// Posts a Write of the slot's first `len` bytes.
    Write {
        /// Length, bytes.
        len: u32,
        /// Destination in the peer's memory.
        destination: RemoteBuffer,
    },
    /// Posts a Write of these bytes.
    WriteBytes {
        /// Data to write.
        bytes: Vec<u8>,
        /// Destination in the peer's memory.
        destination: RemoteBuffer,
    },
    /// Posts a Read into the slot's first `len` bytes.
    Read {
        /// Length, bytes.
        len: u32,
        /// Source in the peer's memory.
        source: RemoteBuffer,
    },
    /// Allows Sends and Writes on a stream on which nothing was received yet. On other streams, the peer's first
    /// message shows that the peer is ready. On perftest's data stream, the client's control stream has shown it.
    AllowSend,
    /// Ends the stream, because its peer violates the service's protocol or misses its time-out. Contains the reason,
    /// one sentence.
    End(String),
}

/// Actions in posting order.
pub type Actions = VecDeque<(StreamId, Action)>;

/// A newly accepted stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AcceptedStream {
    /// The peer's address.
    pub peer: IpAddr,
    /// The stream's memory; `None` if the service uses none.
    pub slot: Option<Slot>,
    /// True if the peer announced that it will issue Reads (its ORD is not 0).
    pub reads: bool,
}

/// Returns the worker's part of this service. The worker serves echo and sink without the control thread.
pub(crate) fn worker_service(kind: ServiceKind) -> dataplane::Service {
    match kind {
        ServiceKind::Echo => dataplane::Service::Echo,
        ServiceKind::Sink => dataplane::Service::Sink,
        ServiceKind::Region | ServiceKind::Perftest => dataplane::Service::Region,
        ServiceKind::Rping => dataplane::Service::Control,
    }
}

/// Returns a peer's initial access to its stream's slot.
pub(crate) fn slot_access(kind: ServiceKind) -> Access {
    match kind {
        ServiceKind::Perftest => Access::REMOTE_READ | Access::REMOTE_WRITE,
        ServiceKind::Region | ServiceKind::Echo | ServiceKind::Sink | ServiceKind::Rping => {
            Access::NONE
        }
    }
}

/// The service of one listener.
#[derive(Debug)]
pub enum Service {
    /// Region, echo and sink: no operations.
    Passive,
    /// rping's server, per stream.
    Rping(HashMap<StreamId, Rping>),
    /// perftest's servers.
    Perftest(Perftest),
}

impl Service {
    /// Creates the service of a listener. `message_size`: length of the server's first Write in perftest's write
    /// latency test, bytes.
    pub fn new(kind: ServiceKind, message_size: u32) -> Service {
        match kind {
            ServiceKind::Region | ServiceKind::Echo | ServiceKind::Sink => Service::Passive,
            ServiceKind::Rping => Service::Rping(HashMap::new()),
            ServiceKind::Perftest => Service::Perftest(Perftest::new(message_size)),
        }
    }

    /// Adds an accepted stream. Its peer may already be sending.
    pub fn on_opened(&mut self, stream: StreamId, arrival: AcceptedStream) {
        match self {
            Service::Passive => {}
            Service::Rping(sessions) => {
                if let Some(slot) = arrival.slot {
                    sessions.insert(stream, Rping::new(slot));
                }
            }
            Service::Perftest(perftest) => perftest.on_opened(stream, arrival),
        }
    }

    /// Handles an event of a stream.
    pub fn input(&mut self, stream: StreamId, input: Input, now: Instant, out: &mut Actions) {
        match self {
            Service::Passive => {}
            Service::Rping(sessions) => {
                if let Some(session) = sessions.get_mut(&stream) {
                    session.input(input, |action| out.push_back((stream, action)));
                }
            }
            Service::Perftest(perftest) => perftest.input(stream, input, now, out),
        }
    }

    /// Removes a stream that has ended, or whose memory was revoked.
    pub fn on_closed(&mut self, stream: StreamId, now: Instant, out: &mut Actions) {
        match self {
            Service::Passive => {}
            Service::Rping(sessions) => drop(sessions.remove(&stream)),
            Service::Perftest(perftest) => perftest.on_closed(stream, now, out),
        }
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) is due. `None` if no timer is set.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Service::Perftest(perftest) => perftest.poll_timeout(),
            Service::Passive | Service::Rping(_) => None,
        }
    }

    /// Handles expired timers.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut Actions) {
        match self {
            Service::Passive | Service::Rping(_) => {}
            Service::Perftest(perftest) => perftest.handle_timeout(now, out),
        }
    }

    /// Returns the number of streams with state in this service.
    pub fn sessions(&self) -> usize {
        match self {
            Service::Passive => 0,
            Service::Rping(sessions) => sessions.len(),
            Service::Perftest(perftest) => perftest.sessions(),
        }
    }
}
