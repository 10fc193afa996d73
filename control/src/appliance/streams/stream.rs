//! The control thread's state of one stream.

mod table;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Instant;

use api::Responder;
use config::QueueSection;
use dataplane::{InterfaceId, ListenerId, ProgramId, StreamParams};
use ddp::PdId;
use ddp::advert::Advertised;
use tcp_lite::mpa::Revision;

pub(super) use self::table::StreamTable;
use crate::appliance::pending::TakenSlot;

pub(super) struct Stream {
    pub(super) listener: Option<ListenerId>,
    pub(super) interface: InterfaceId,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// Changed only by [`StreamTable::set_state`], which counts the streams per state.
    state: State,
    /// Regions advertised to the peer.
    pub(super) regions: Vec<String>,
    /// Regions advertised as busy, because another stream uses them.
    pub(super) busy: Vec<String>,
    /// Regions advertised by the peer.
    pub(super) peer_regions: Vec<Advertised>,
    pub(super) queues: Vec<QueueSection>,
    pub(super) pd: PdId,
    /// True for RDMAP above DDP, false for bare DDP.
    pub(super) rdmap: bool,
    /// The stream's slot of its listener's region, if it has one.
    pub(super) slot: Option<TakenSlot>,
    /// True if the peer announced that it will issue Reads (its ORD is not 0).
    pub(super) peer_reads: bool,
    /// Number of RDMAP Sends received.
    pub(super) received: u32,
    /// MPA revision of the peer's request; `None` over SCTP, and for active opens.
    pub(super) revision: Option<Revision>,
    pub(super) params: Option<StreamParams>,
    /// Time at which the stream was established; before that, at which it was added.
    pub(super) since: Instant,
    /// Tickets of posted messages that are not acknowledged.
    pub(super) posts: HashSet<u64>,
    pub(super) user: User,
    pub(super) end: EndState,
}

/// User of a stream in addition to its listener.
#[derive(Default)]
pub(super) struct User {
    /// The job for which the stream is reserved, if any.
    pub(super) job: Option<u64>,
    /// The local program that owns the stream through a QP or a listener.
    pub(super) program: Option<ProgramId>,
}

/// State about the end of a stream.
#[derive(Default)]
pub(super) struct EndState {
    /// Clients that wait for the end of the stream.
    pub(super) waiting: Vec<Responder>,
    /// Reason why the control thread aborts the stream, one sentence.
    pub(super) abort_reason: Option<String>,
    /// Error from the peer's last message or Terminate.
    pub(super) peer_error: Option<String>,
    /// True if the peer has closed its sending direction.
    pub(super) peer_closed: bool,
    /// True if the stream writes to a file. Then its graceful end confirms that the file contains the received data.
    pub(super) writes_file: bool,
}

impl EndState {
    /// Records why the control thread aborts the stream, unless a reason is recorded.
    pub(super) fn set_abort_reason(&mut self, reason: String) {
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
    const COUNT: usize = State::Closing as usize + 1;

    pub(super) fn name(self) -> &'static str {
        match self {
            State::Binding | State::Accepting => "accepting",
            State::Rejecting => "rejecting",
            State::Established => "established",
            State::Closing => "closing",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(in crate::appliance) struct StreamAddresses {
    pub interface: InterfaceId,
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

impl Stream {
    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn new(addresses: StreamAddresses, state: State, pd: PdId) -> Stream {
        let StreamAddresses { interface, local, remote } = addresses;
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
            user: User::default(),
            end: EndState::default(),
        }
    }
}
