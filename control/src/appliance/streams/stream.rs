//! A stream as the control thread knows it.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Instant;

use dataplane::{InterfaceId, ListenerId, StreamParams};
use ddp::PdId;
use tcp_lite::mpa::Revision;

use crate::appliance::pending::TakenSlot;
use api::Answer;
use config::QueueSection;
use ddp::advert::Advertised;

/// What is known of a stream.
pub(super) struct Stream {
    pub(super) listener: Option<ListenerId>,
    pub(super) interface: InterfaceId,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) state: State,
    /// Regions that were advertised to the peer.
    pub(super) regions: Vec<String>,
    /// Regions that were advertised as busy: another stream has them.
    pub(super) busy: Vec<String>,
    /// Regions that the peer advertised.
    pub(super) peer_regions: Vec<Advertised>,
    pub(super) queues: Vec<QueueSection>,
    pub(super) pd: PdId,
    /// Its protocol above DDP.
    pub(super) rdmap: bool,
    /// The piece of its listener's region that it has.
    pub(super) slot: Option<TakenSlot>,
    /// The peer announced that it will issue Reads.
    pub(super) peer_reads: bool,
    /// Sends of RDMAP that arrived.
    pub(super) received: u32,
    /// MPA's form of the peer's request; none over SCTP, or for streams that were opened from here.
    pub(super) revision: Option<Revision>,
    pub(super) params: Option<StreamParams>,
    pub(super) since: Instant,
    /// Tickets of messages that are posted and not acknowledged.
    pub(super) posts: HashSet<u64>,
    /// A job has it for itself.
    pub(super) job: Option<u64>,
    pub(super) end: End,
}

/// State of its end.
#[derive(Default)]
pub(super) struct End {
    /// Clients that wait for it.
    pub(super) waiting: Vec<Answer>,
    /// Why the control thread aborts it, one sentence.
    pub(super) abort_reason: Option<String>,
    /// Error in the peer's last message.
    pub(super) peer_error: Option<String>,
    /// The peer has closed its direction.
    pub(super) peer_closed: bool,
    /// The stream reaches a file: its end confirms to the peer that the file has what was sent.
    pub(super) stores: bool,
}

impl End {
    /// Keeps why the control thread aborts it: the first reason.
    pub(super) fn give_up(&mut self, reason: String) {
        self.abort_reason.get_or_insert(reason);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Binding,
    Accepting,
    Rejecting,
    Established,
    Closing,
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            State::Binding | State::Accepting => "accepting",
            State::Rejecting => "rejecting",
            State::Established => "established",
            State::Closing => "closing",
        }
    }
}

/// Where a stream lies.
#[derive(Clone, Copy, Debug)]
pub(in crate::appliance) struct Ends {
    pub interface: InterfaceId,
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

impl Stream {
    pub(super) fn new(ends: Ends, state: State, pd: PdId) -> Stream {
        let Ends { interface, local, remote } = ends;
        Stream {
            listener: None,
            interface,
            local,
            remote,
            state,
            regions: Vec::new(),
            busy: Vec::new(),
            peer_regions: Vec::new(),
            queues: Vec::new(),
            pd,
            rdmap: false,
            slot: None,
            peer_reads: false,
            received: 0,
            revision: None,
            params: None,
            since: Instant::now(),
            posts: HashSet::new(),
            job: None,
            end: End::default(),
        }
    }
}
