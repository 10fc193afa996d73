//! Commands of the control thread to a worker, and the worker's events for the control thread.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ddp::rdmap::{self, Outcome, Terminate, WorkRequest};
use ddp::{Access, Message, Msn, PdId, Qn, Stag, StagEntry, StreamId, TaggedOffset};
use tcp_lite::endpoint::UlpConfig;
use tcp_lite::mpa::{EnhancedRepr, Revision};

use super::IpFields;
use super::association::{AssociationInfo, AssociationStats};
use super::config::ListenerConfig;
use super::failure::{CommandError, ConnectError, PostFailure};
use super::flow::Stall;
use super::handshake::{HandshakeCount, HandshakeFailed};
use super::info::{NeighbourInfo, StreamInfo};
use super::ipsec::{IpsecNotice, SaChange, SaInfo};
use super::load::{Load, LoadReport};
use super::peers::PeerFilter;
use super::recording::Recording;
use super::transport::{CloseReason, EndpointConfig, StreamParams, StreamStats};
use crate::capture::Tap;

use crate::ids::{InterfaceId, ListenerId, PortId, Ticket, WorkerId};
use crate::memory::Memory;

/// What the control thread asks of one worker. Taken in order, a bounded number per turn of its loop.
#[derive(Debug)]
pub enum Command {
    /// Puts a region into the worker's replica of the STag table. Answered by [`Event::Done`].
    AddStag {
        /// The region as peers may reach it.
        entry: StagEntry<Memory>,
        /// For the answer.
        ticket: Ticket,
    },
    /// Changes the SAs of IPsec. Answered by [`Event::Done`].
    Sa {
        /// How.
        change: SaChange,
        /// For the answer.
        ticket: Ticket,
    },
    /// Asks for the SAs that the worker has: [`Event::Sas`].
    ListSas {
        /// For the answer.
        ticket: Ticket,
    },
    /// Takes a region out: from now on nothing is placed in it by this worker. [`Event::Done`] comes
    /// when, besides, no stream has unacknowledged messages whose source is the region.
    RemoveStag {
        /// The region.
        stag: Stag,
        /// What to do with streams that have such messages.
        sources: Sources,
        /// For the answer.
        ticket: Ticket,
    },
    /// Lets only this stream use the region, or (`None`) every stream of its protection domain.
    BindStag {
        /// The region.
        stag: Stag,
        /// The stream, of any worker.
        stream: Option<StreamId>,
        /// For the answer.
        ticket: Ticket,
    },
    /// Changes what peers may do with a region. Answered by [`Event::Done`]: from then on this worker does nothing
    /// for a peer that it may not do any more, and what it was doing has ended.
    SetAccess {
        /// The region.
        stag: Stag,
        /// What they may do from now on.
        access: Access,
        /// For the answer.
        ticket: Ticket,
    },
    /// Listens. Answered by [`Event::Done`].
    AddListener {
        /// The listener, shared with the other workers.
        listener: Arc<ListenerConfig>,
        /// For the answer.
        ticket: Ticket,
    },
    /// Stops listening; streams that it has accepted go on, half-open ones are reset.
    RemoveListener {
        /// The listener.
        listener: ListenerId,
        /// For the answer.
        ticket: Ticket,
    },
    /// Replaces the peers that a listener admits. Its half-open streams of peers that are not admitted any more are
    /// reset; streams that are established stay. Answered by [`Event::Done`].
    SetPeers {
        /// The listener.
        listener: ListenerId,
        /// From now on.
        peers: Arc<PeerFilter>,
        /// For the answer.
        ticket: Ticket,
    },
    /// Lets the worker take this many more streams of the listener. A stream takes a credit at its
    /// SYN and gives it back only if it ends before [`Event::Incoming`].
    Credits {
        /// The listener; unknown ones are ignored.
        listener: ListenerId,
        /// How many more.
        more: u32,
    },
    /// Accepts the stream of an [`Event::Incoming`]: [`Event::Established`] follows, or
    /// [`Event::Closed`] if it ended meanwhile.
    Accept {
        /// The stream.
        stream: StreamId,
        /// Its protection domain.
        pd: PdId,
        /// Private data for the peer, at most 512 bytes less what the revision and the peer take.
        private_data: Vec<u8>,
        /// Its protocol above the LLP, with its queues and its Reads.
        ulp: UlpConfig,
        /// The service that handles received messages.
        service: Service,
    },
    /// Refuses the stream of an [`Event::Incoming`].
    Reject {
        /// The stream.
        stream: StreamId,
        /// Private data for the peer, at most 512 bytes.
        private_data: Vec<u8>,
    },
    /// Opens a stream. Answered by [`Event::Established`] or [`Event::ConnectFailed`].
    Connect(Box<Connect>),
    /// Sends a message. Answered by [`Event::Sent`] when the peer's LLP has acknowledged it, or by
    /// [`Event::PostFailed`].
    Post {
        /// The stream.
        stream: StreamId,
        /// The message; its cookie is not used, the ticket is what comes back.
        message: Message<Memory>,
        /// The region that it is read from, for [`Command::RemoveStag`] to wait for.
        region: Option<Stag>,
        /// For the answer.
        ticket: Ticket,
    },
    /// Starts an operation of RDMAP. Answered by [`Event::Completed`] or [`Event::PostFailed`].
    PostRdmap {
        /// The stream, an RDMAP stream.
        stream: StreamId,
        /// The operation; its cookie is not used, the ticket is what comes back.
        request: WorkRequest<Memory>,
        /// The region that it is read from, or that a Read goes to, for [`Command::RemoveStag`] to wait
        /// for.
        region: Option<Stag>,
        /// For the answer.
        ticket: Ticket,
    },
    /// Gives untagged receive buffers back to a queue; of RDMAP's, to queue 0.
    PostBuffers {
        /// The stream; ignored if it is gone.
        stream: StreamId,
        /// The queue.
        qn: Qn,
        /// How many.
        buffers: u32,
    },
    /// Lets an accepted stream send before its peer's first FPDU has come: the service knows from elsewhere
    /// that the peer has the reply.
    PeerIsReady {
        /// The stream; ignored if it is gone.
        stream: StreamId,
    },
    /// Makes load on a stream, at the worker's own pace. Answered by [`Event::LoadDone`], in any case.
    Load {
        /// The stream; one load at a time.
        stream: StreamId,
        /// What to do.
        load: Load,
        /// For the answer.
        ticket: Ticket,
    },
    /// Ends a load early: nothing more is posted, and [`Event::LoadDone`] follows when what is under way
    /// is complete.
    StopLoad {
        /// The stream; ignored if it has no load.
        stream: StreamId,
    },
    /// Ends a stream. [`Event::Closed`] follows.
    Close {
        /// The stream; ignored if it is gone.
        stream: StreamId,
        /// With a reset, instead of after what was posted has been sent.
        abort: bool,
    },
    /// Ends a stream because this end cannot do what the peer sent something for: the peer gets a local catastrophic
    /// error (RDMAP's Terminate 0/0/00, bare DDP's last message 1/0/00), or a reset where nothing can be sent any more.
    /// [`Event::Closed`] follows.
    Fail {
        /// The stream; ignored if it is gone.
        stream: StreamId,
    },
    /// The control thread is about to close a stream that holds confirmations, and to confirm all data before
    /// [`Event::Confirming`]. A [`Close`](Self::Close) that would confirm later data is a [`Fail`](Self::Fail). One of them
    /// follows in time: the `half_closed_timeout` does not end the stream.
    Confirming {
        /// The stream; ignored if it is gone.
        stream: StreamId,
    },
    /// Answers the oldest [`Event::ReadHeld`] of a stream.
    ReleaseRead {
        /// The stream; ignored if it is gone.
        stream: StreamId,
    },
    /// Asks for streams and associations: one or more [`Event::Streams`], a part in each turn, so that many streams do
    /// not hold up the data of any.
    ListStreams {
        /// Which.
        which: Listed,
        /// For the answer.
        ticket: Ticket,
    },
    /// Asks for what the flight recorders of these streams have: one [`Event::Recordings`].
    ListRecordings {
        /// The streams, at most [`RECORDINGS`](super::RECORDINGS); those that are gone are left out of the answer.
        streams: Vec<StreamId>,
        /// For the answer.
        ticket: Ticket,
    },
    /// Asks for the neighbour caches: one [`Event::Neighbours`].
    ListNeighbours {
        /// For the answer.
        ticket: Ticket,
    },
    /// Begins a capture of what this worker receives and sends by a port, instead of the one there was, or ends it.
    /// Answered by [`Event::Done`]: from then on the old tap is gone.
    Capture {
        /// The port.
        port: PortId,
        /// Where frames go; `None` ends the capture.
        tap: Option<Box<Tap>>,
        /// For the answer.
        ticket: Ticket,
    },
    /// The link of a port has come up, its device was made again, or it has another link-layer address: the interfaces on
    /// it have this address from now on, and are announced. Ignored by workers without a queue of the port.
    PortChanged {
        /// The port.
        port: PortId,
        /// Its link-layer address.
        mac: [u8; 6],
    },
    /// Takes no new streams and closes established ones, except those that hold confirmations
    /// ([`ddp::StreamConfig::hold_confirmations`]): [`Close`](Self::Close) closes these. [`Event::Drained`] when none is left.
    Drain,
    /// Resets all streams and ends the thread; [`Event::Stopped`] is its last event.
    Stop,
}

/// What to do with messages that are being sent from a region that goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sources {
    /// Wait for their acknowledgement.
    Wait,
    /// Abort their streams.
    Abort,
}

/// Who deals with what arrives over a stream. Of RDMAP's operations bare DDP has Sends (its untagged
/// messages) and Writes (the tagged ones).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Service {
    /// The control thread: it gets Sends and Immediate Data ([`Event::Received`],
    /// [`Event::Immediate`]) and releases the buffers. It gets no events of the peer's
    /// Writes, Reads and atomics, but of bare DDP's tagged messages.
    Control,
    /// As `Control`; besides it gets an event of each Write and atomic ([`Event::TaggedDelivered`]).
    Region,
    /// The worker sends each Send back as a Send (bare DDP's to the queue that it came in by), and
    /// Immediate Data as such. The control thread gets events of invalidated STags alone.
    Echo,
    /// The worker takes Sends and Immediate Data, and releases the buffers. Likewise.
    Sink,
}

/// How to open a stream.
#[derive(Clone, Debug)]
pub struct Connect {
    /// For the answer.
    pub ticket: Ticket,
    /// The interface to go out of; the worker must have a queue of its port.
    pub interface: InterfaceId,
    /// Local address; `None` lets the worker choose one of the interface.
    pub local: Option<IpAddr>,
    /// The peer.
    pub remote: SocketAddr,
    /// LLP and parameters. Streams over SCTP to one peer whose configuration is the same object
    /// share associations.
    pub endpoint: EndpointConfig,
    /// What its IP headers carry, where that is not the interface's. A stream that shares an association has the
    /// association's: other fields need another configuration object.
    pub ip: IpFields,
    /// Its protocol above the LLP, with its queues and its Reads.
    pub ulp: UlpConfig,
    /// The service that handles received messages.
    pub service: Service,
    /// Protection domain.
    pub pd: PdId,
    /// Regions that are bound to the stream as soon as it has a number: the peer may use what the private
    /// data advertise from the first byte on, and no other stream may meanwhile. Only such of its domain
    /// that are bound to some stream already; to one that there is not, as a rule.
    pub stags: Vec<Stag>,
    /// Private data for the peer, at most 512 bytes.
    pub private_data: Vec<u8>,
    /// Time for all of TCP's and MPA's start-up.
    pub timeout: Duration,
}

/// What [`Command::ListStreams`] asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listed {
    /// All streams and all associations.
    Everything,
    /// This stream.
    Stream(StreamId),
    /// All associations.
    Associations,
    /// This association.
    Association(StreamId),
}

/// What a worker reports. Nothing is lost: when the ring is nearly full the worker takes no commands, and streams
/// that have many events in it wait; see `worker/event.rs` for what bounds each.
#[derive(Debug)]
pub enum Event {
    /// A peer has asked for a stream; it waits for [`Command::Accept`] or [`Command::Reject`].
    Incoming {
        /// The stream.
        stream: StreamId,
        /// The listener that took it.
        listener: ListenerId,
        /// The interface it came in by.
        interface: InterfaceId,
        /// Local address and port.
        local: SocketAddr,
        /// The peer.
        remote: SocketAddr,
        /// What the peer sent along.
        private_data: Vec<u8>,
        /// MPA's form of the peer's request; `None` over SCTP.
        revision: Option<Revision>,
        /// Its enhanced data, if any: IRD, ORD and the side that sends first (RFC 6581 §9).
        enhanced: Option<EnhancedRepr>,
    },
    /// A peer did not become a stream: it failed before its request was reported. Not all are reported; all are in the
    /// counts of [`Event::Streams`].
    HandshakeFailed(Box<HandshakeFailed>),
    /// What IPsec tells, of which not all is reported.
    Ipsec(Box<IpsecNotice>),
    /// The SAs of a worker.
    Sas {
        /// That of the [`Command::ListSas`].
        ticket: Ticket,
        /// Them, without keys.
        sas: Vec<SaInfo>,
    },
    /// Messages can flow in both directions.
    Established {
        /// The stream.
        stream: StreamId,
        /// That of the [`Command::Connect`]; `None` for accepted streams.
        ticket: Option<Ticket>,
        /// What the accepting peer sent along.
        private_data: Vec<u8>,
        /// What was agreed on.
        params: StreamParams,
        /// Local address and port.
        local: SocketAddr,
        /// The peer.
        remote: SocketAddr,
    },
    /// A stream could not be opened.
    ConnectFailed {
        /// That of the [`Command::Connect`].
        ticket: Ticket,
        /// Why.
        reason: ConnectError,
    },
    /// A tagged message is complete in its region, as is everything that the peer sent before it.
    TaggedDelivered {
        /// The stream.
        stream: StreamId,
        /// The region of its last segment.
        stag: Stag,
        /// Where the message begins.
        to: TaggedOffset,
        /// Bytes.
        len: u64,
        /// The ULP's field of the last segment.
        rsvd_ulp: u8,
    },
    /// An untagged message has been delivered; the buffer it took comes back by
    /// [`Command::PostBuffers`].
    Untagged {
        /// The stream.
        stream: StreamId,
        /// The queue.
        qn: Qn,
        /// Its number in the queue.
        msn: Msn,
        /// The message.
        data: Vec<u8>,
        /// The ULP's field: first byte and the 32 bits after it.
        rsvd_ulp: [u8; 5],
    },
    /// A Send of RDMAP is there, as is everything that the peer sent before it; the buffer it took comes
    /// back by [`Command::PostBuffers`].
    Received {
        /// The stream.
        stream: StreamId,
        /// The message.
        data: Vec<u8>,
        /// The peer asks for an event.
        solicited: bool,
        /// The region that the peer has invalidated: to be removed from all workers. Nothing is placed
        /// in it by this one any more.
        invalidated: Option<Stag>,
    },
    /// Immediate Data of RDMAP, likewise.
    Immediate {
        /// The stream.
        stream: StreamId,
        /// The bytes.
        data: [u8; 8],
        /// The peer asks for an event.
        solicited: bool,
    },
    /// The peer of a stream that the worker serves itself has invalidated a region, as in
    /// [`Event::Received`].
    Invalidated {
        /// The stream.
        stream: StreamId,
        /// The region.
        stag: Stag,
    },
    /// The peer asks by a Read of no bytes whether what it sent has been taken. [`Command::ReleaseRead`] answers it; all
    /// events of what the peer sent before precede this one.
    ReadHeld {
        /// The stream.
        stream: StreamId,
    },
    /// Answers [`Command::Confirming`]. All events of earlier data precede it.
    Confirming {
        /// The stream.
        stream: StreamId,
    },
    /// The peer of a stream that holds confirmations has been silent for the idle time-out. [`Command::Close`] closes it.
    Idle {
        /// The stream.
        stream: StreamId,
    },
    /// An operation of RDMAP is complete.
    Completed {
        /// The stream.
        stream: StreamId,
        /// That of the [`Command::PostRdmap`].
        ticket: Ticket,
        /// How.
        outcome: Outcome,
    },
    /// RDMAP or a layer below found an error; the stream will end, earlier messages have been delivered.
    RdmapError {
        /// The stream.
        stream: StreamId,
        /// Layer, type and code with what was expected and seen.
        error: rdmap::Error,
    },
    /// The stream's one Terminate was sent or received; [`Event::Closed`] follows.
    Terminated {
        /// The stream.
        stream: StreamId,
        /// True when it came from the peer.
        by_peer: bool,
        /// What it says.
        terminate: Terminate,
    },
    /// An open with MPA revision 2 ended with the connection; it is tried again with revision 1. The
    /// answer to the [`Command::Connect`] is still to come.
    Retrying {
        /// That of the [`Command::Connect`].
        ticket: Ticket,
        /// How the first attempt ended.
        reason: CloseReason,
    },
    /// The peer's LLP has acknowledged the whole message.
    Sent {
        /// The stream.
        stream: StreamId,
        /// That of the [`Command::Post`].
        ticket: Ticket,
    },
    /// A message could not be posted, or will not be sent whole any more.
    PostFailed {
        /// The stream.
        stream: StreamId,
        /// That of the [`Command::Post`] or [`Command::PostRdmap`].
        ticket: Ticket,
        /// Why.
        reason: PostFailure,
    },
    /// DDP found the peer in error; the stream will end, earlier messages have been delivered.
    Error {
        /// The stream.
        stream: StreamId,
        /// Layer, type and code with what was expected and seen.
        error: ddp::DdpError,
    },
    /// The peer sends nothing more (RFC 5041 §6.2.1). What the peer awaits may still be posted, and [`Command::Close`] or
    /// [`Command::Fail`] ends the stream, within [`half_closed_timeout`](ddp::EndpointPolicy::half_closed_timeout).
    /// [`Service::Sink`] and [`Service::Echo`] close by themselves.
    PeerClosed {
        /// The stream.
        stream: StreamId,
        /// True when it closed within a message.
        incomplete: bool,
    },
    /// A stream is gone. Not sent for streams that ended before [`Event::Incoming`] or
    /// [`Event::Established`].
    Closed {
        /// The stream.
        stream: StreamId,
        /// The first cause.
        reason: CloseReason,
        /// What it did.
        stats: Box<StreamStats>,
    },
    /// An SCTP association is gone, with all its streams.
    AssociationClosed {
        /// Its name.
        association: StreamId,
        /// What it did.
        stats: Box<AssociationStats>,
    },
    /// A load has ended.
    LoadDone {
        /// The stream.
        stream: StreamId,
        /// That of the [`Command::Load`].
        ticket: Ticket,
        /// What it did.
        report: Box<LoadReport>,
    },
    /// Answers a command that has no other answer.
    Done {
        /// That of the command.
        ticket: Ticket,
        /// How it went.
        result: Result<(), CommandError>,
    },
    /// A part of the answer to [`Command::ListStreams`].
    Streams {
        /// That of the command.
        ticket: Ticket,
        /// Some streams.
        streams: Vec<StreamInfo>,
        /// Some associations.
        associations: Vec<AssociationInfo>,
        /// Failed handshakes since the last answer to this command, in the last part.
        handshakes: Vec<HandshakeCount>,
        /// True in the last part.
        last: bool,
    },
    /// What flight recorders have: answers [`Command::ListRecordings`], or comes right before the [`Event::Closed`] of a
    /// stream that did not end in order, if there is any record of it.
    Recordings {
        /// That of the command, if it is an answer.
        ticket: Option<Ticket>,
        /// The records.
        recordings: Vec<Recording>,
    },
    /// Answers [`Command::ListNeighbours`].
    Neighbours {
        /// That of the command.
        ticket: Ticket,
        /// The cache entries of the worker.
        neighbours: Vec<NeighbourInfo>,
    },
    /// Another host uses an address of an interface: every ten seconds, for as long as it does.
    AddressConflict {
        /// The interface.
        interface: InterfaceId,
        /// The address.
        address: IpAddr,
        /// The other host's link-layer address.
        mac: [u8; 6],
    },
    /// A host leaves checksums to a device that does not fill them in: its frames are dropped.
    UnfinishedChecksums {
        /// The port that they come in by.
        port: PortId,
        /// The host.
        source: IpAddr,
    },
    /// A stream makes no progress: its packets are not answered. [`Event::Resumed`] or [`Event::Closed`] follows.
    Stalled {
        /// The stream.
        stream: StreamId,
        /// Time-outs so far.
        stall: Stall,
    },
    /// A stream that was reported as stalled makes progress again.
    Resumed {
        /// The stream.
        stream: StreamId,
    },
    /// After [`Command::Drain`]: no stream is left.
    Drained,
    /// After [`Command::Stop`]: the thread ends.
    Stopped,
    /// The thread has died of a defect; its streams are lost. Its last event.
    Failed {
        /// The worker.
        worker: WorkerId,
        /// What the panic said.
        message: String,
    },
}
