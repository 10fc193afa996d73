//! The services of a listener with `ulp = "rdmap"`: the server side of verbs programs.
//!
//! Sans-IO: events of streams come in, operations to post go out ([`Action`]). One [`Service`] per
//! listener holds all of its streams, because some programs (perftest) use two of them together. A
//! service keeps a few dozen bytes per stream; its streams and their memory are bounded by the listener.
//!
//! | service | what it does |
//! |---|---|
//! | region | nothing: peers use the advertised regions |
//! | echo | nothing: the worker sends every Send back |
//! | sink | nothing: the worker discards Sends |
//! | rping | the server of librdmacm's rping |
//! | perftest | the server of `ib_{write,read,send}_{bw,lat} -R` |
//!
//! Not here: memory and STags (each stream of rping and perftest has a [`Slot`], a piece of the listener's
//! region with an STag of its own), and the posting itself.

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

/// Memory that one stream has for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Its steering tag, which only this stream may use.
    pub stag: Stag,
    /// Tagged offset of its first byte.
    pub to: u64,
    /// Bytes.
    pub len: u64,
}

/// A place in the peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The peer's steering tag.
    pub stag: Stag,
    /// Tagged offset of the first byte.
    pub to: u64,
}

/// What a stream did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// A Send arrived; its receive buffer is used up.
    Received(Vec<u8>),
    /// A Write is in its place.
    Written {
        /// Bytes.
        len: u64,
    },
    /// An [`Action::Read`] is complete.
    ReadDone,
    /// An [`Action::WriteBytes`] is acknowledged.
    WriteDone,
}

/// What is to be done on a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Posts a Send. `answers`: when it is complete, the receive buffer that it answers is posted again.
    Send {
        /// The message.
        bytes: Vec<u8>,
        /// It answers a Send of the peer.
        answers: bool,
    },
    /// Posts a receive buffer again.
    GiveBack,
    /// Posts a Write of the slot's first bytes.
    Write {
        /// Bytes.
        len: u32,
        /// Where they go.
        at: Place,
    },
    /// Posts a Write of these bytes.
    WriteBytes {
        /// The bytes.
        bytes: Vec<u8>,
        /// Where they go.
        at: Place,
    },
    /// Posts a Read into the slot's first bytes.
    Read {
        /// Bytes.
        len: u32,
        /// Where they come from.
        from: Place,
    },
    /// Lets the stream send although its peer has not sent anything yet: another stream of the same
    /// program has shown that the peer is ready.
    PeerIsReady,
    /// Ends the stream: its program violates the protocol of the service. One sentence.
    End(String),
}

/// Actions in the order in which they are to be done.
pub type Actions = VecDeque<(StreamId, Action)>;

/// A new stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// The peer's address.
    pub peer: IpAddr,
    /// Its memory; `None` for services without.
    pub slot: Option<Slot>,
    /// The peer announced that it will issue Reads (its ORD is not 0).
    pub reads: bool,
}

/// Returns the part of a service that the worker does: it answers echo and sink itself.
pub(crate) fn worker_service(kind: ServiceKind) -> dataplane::Service {
    match kind {
        ServiceKind::Echo => dataplane::Service::Echo,
        ServiceKind::Sink => dataplane::Service::Sink,
        ServiceKind::Region | ServiceKind::Perftest => dataplane::Service::Region,
        ServiceKind::Rping => dataplane::Service::Control,
    }
}

/// Returns a peer's rights on its stream's slot of the listener's region, until the service changes them.
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
    /// Nothing is done here: the worker answers, or the peers use the regions.
    Passive,
    /// rping's server, per stream.
    Rping(HashMap<StreamId, Rping>),
    /// perftest's servers.
    Perftest(Perftest),
}

impl Service {
    /// The service of a listener. `message_size`: what perftest's write latency test writes first.
    pub fn new(kind: ServiceKind, message_size: u32) -> Service {
        match kind {
            ServiceKind::Region | ServiceKind::Echo | ServiceKind::Sink => Service::Passive,
            ServiceKind::Rping => Service::Rping(HashMap::new()),
            ServiceKind::Perftest => Service::Perftest(Perftest::new(message_size)),
        }
    }

    /// A stream was accepted; its peer may be sending already.
    pub fn opened(&mut self, stream: StreamId, arrival: Arrival) {
        match self {
            Service::Passive => {}
            Service::Rping(sessions) => {
                if let Some(slot) = arrival.slot {
                    sessions.insert(stream, Rping::new(slot));
                }
            }
            Service::Perftest(perftest) => perftest.opened(stream, arrival),
        }
    }

    /// Something happened on a stream.
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

    /// A stream is gone, or its regions no longer serve it.
    pub fn closed(&mut self, stream: StreamId, now: Instant, out: &mut Actions) {
        match self {
            Service::Passive => {}
            Service::Rping(sessions) => drop(sessions.remove(&stream)),
            Service::Perftest(perftest) => perftest.closed(stream, now, out),
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Service::Perftest(perftest) => perftest.poll_timeout(),
            Service::Passive | Service::Rping(_) => None,
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut Actions) {
        if let Service::Perftest(perftest) = self {
            perftest.handle_timeout(now, out);
        }
    }

    /// Streams that the service keeps something about.
    pub fn sessions(&self) -> usize {
        match self {
            Service::Passive => 0,
            Service::Rping(sessions) => sessions.len(),
            Service::Perftest(perftest) => perftest.sessions(),
        }
    }
}
