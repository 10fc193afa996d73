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
use super::handshake::{FailedHandshake, HandshakeCount};
use super::info::{NeighbourInfo, StreamInfo};
use super::ipsec::{IpsecNotice, SaChange, SaInfo};
use super::load::{Load, LoadReport};
use super::peers::PeerFilter;
use super::recording::Recording;
use super::transport::{CloseReason, EndpointConfig, StreamParams, StreamStats};
use crate::capture::Tap;

use crate::ids::{InterfaceId, ListenerId, PortId, Ticket, WorkerId};
use crate::memory::Memory;

/// A command of the control thread to one worker. Commands are processed in order, a bounded number per turn of
/// the worker's loop.
#[derive(Debug)]
pub enum Command {
    /// Puts a region into the worker's replica of the STag table. Answered by [`Event::Done`].
    AddStag {
        /// The region with its access rights.
        entry: StagEntry<Memory>,
        /// Identifies the answer.
        ticket: Ticket,
    },
    /// Changes the security associations of IPsec. Answered by [`Event::Done`].
    Sa {
        /// The change.
        change: SaChange,
        /// Identifies the answer.
        ticket: Ticket,
    },
    /// Requests the worker's security associations. Answered by [`Event::Sas`].
    ListSas {
        /// Identifies the answer.
        ticket: Ticket,
    },
    /// Removes a region from the worker's replica of the STag table: from now on this worker places no bytes in it.
    /// Answered by [`Event::Done`] once all messages whose source is the region are acknowledged as well.
    RemoveStag {
        /// The region.
        stag: Stag,
        /// Treatment of streams that have such messages.
        removal: SourceRemoval,
        /// Identifies the answer.
        ticket: Ticket,
    },
    /// Restricts the region to one stream, or (`None`) opens it to every stream of its protection domain.
    /// Answered by [`Event::Done`].
    BindStag {
        /// The region.
        stag: Stag,
        /// The stream, of any worker; `None` for all of the protection domain.
        stream: Option<StreamId>,
        /// Identifies the answer.
        ticket: Ticket,
    },
    /// Changes the access rights of peers to a region. Answered by [`Event::Done`]: from then on this worker
    /// serves no operation that the new rights forbid, and earlier ones have ended.
    SetAccess {
        /// The region.
        stag: Stag,
        /// The new access rights.
        access: Access,
        /// Identifies the answer.
        ticket: Ticket,
    },
    /// Starts to listen. Answered by [`Event::Done`].
    AddListener {
        /// The listener, shared with the other workers.
        listener: Arc<ListenerConfig>,
        /// Identifies the answer.
        ticket: Ticket,
    },
    /// Stops listening. Accepted streams continue, half-open ones are reset. Answered by [`Event::Done`].
    RemoveListener {
        /// The listener.
        listener: ListenerId,
        /// Identifies the answer.
        ticket: Ticket,
    },
    /// Replaces the peers that a listener admits. Half-open streams of peers that are no longer admitted are
    /// reset; established streams continue. Answered by [`Event::Done`].
    SetPeers {
        /// The listener.
        listener: ListenerId,
        /// The new lists.
        peers: Arc<PeerFilter>,
        /// Identifies the answer.
        ticket: Ticket,
    },
    /// Grants the worker this many more streams of the listener. A stream takes a credit at its SYN and returns
    /// it only if it ends before [`Event::Incoming`].
    Credits {
        /// The listener; unknown ones are ignored.
        listener: ListenerId,
        /// Additional credits, in streams.
        additional: u32,
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
        /// Protocol above the LLP (DDP or RDMAP), with its untagged queues and Read limits.
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
        /// The message. Its cookie is ignored: the answer carries the ticket.
        message: Message<Memory>,
        /// The source region, which [`Command::RemoveStag`] waits for.
        region: Option<Stag>,
        /// Identifies the answer.
        ticket: Ticket,
    },
    /// Starts an RDMAP operation. Answered by [`Event::Completed`] or [`Event::PostFailed`].
    PostRdmap {
        /// The stream, which must use RDMAP.
        stream: StreamId,
        /// The operation. Its cookie is ignored: the answer carries the ticket.
        request: WorkRequest<Memory>,
        /// The source region, or a Read's sink region, which [`Command::RemoveStag`] waits for.
        region: Option<Stag>,
        /// Identifies the answer.
        ticket: Ticket,
    },
    /// Returns untagged receive buffers to a queue; on an RDMAP stream to queue 0.
    PostBuffers {
        /// The stream; ignored if it has ended.
        stream: StreamId,
        /// The untagged queue.
        qn: Qn,
        /// Number of buffers.
        buffers: u32,
    },
    /// Lets an accepted stream send before the peer's first FPDU arrives. The service has other evidence that the
    /// peer has received the MPA reply.
    PeerReady {
        /// The stream; ignored if it has ended.
        stream: StreamId,
    },
    /// Generates load on a stream, paced by the worker. Always answered by [`Event::LoadDone`].
    Load {
        /// The stream; it runs at most one load at a time.
        stream: StreamId,
        /// The operations of the load.
        load: Load,
        /// Identifies the answer.
        ticket: Ticket,
    },
    /// Ends a load early: the worker posts no more operations. [`Event::LoadDone`] follows when those in flight
    /// are complete.
    StopLoad {
        /// The stream; ignored if it has no load.
        stream: StreamId,
    },
    /// Ends a stream. [`Event::Closed`] follows.
    Close {
        /// The stream; ignored if it has ended.
        stream: StreamId,
        /// True to reset the stream; false to close it after all posted data has been sent.
        abort: bool,
    },
    /// Ends a stream because this end cannot process received data. The peer receives a local catastrophic error
    /// (RDMAP's Terminate 0/0/00, bare DDP's last message 1/0/00), or a reset if the stream can no longer send.
    /// [`Event::Closed`] follows.
    Fail {
        /// The stream; ignored if it has ended.
        stream: StreamId,
    },
    /// Announces the close of a stream that holds confirmations: the control thread will confirm all data before
    /// [`Event::Confirming`]. A [`Close`](Self::Close) that would confirm later data acts as a
    /// [`Fail`](Self::Fail). One of the two must follow, since `half_closed_timeout` no longer ends the stream.
    AnnounceClose {
        /// The stream; ignored if it has ended.
        stream: StreamId,
    },
    /// Answers the oldest [`Event::ReadHeld`] of a stream.
    ReleaseRead {
        /// The stream; ignored if it has ended.
        stream: StreamId,
    },
    /// Requests streams and associations. Answered by one or more [`Event::Streams`], one part per turn, so that
    /// a long list does not delay data.
    ListStreams {
        /// The requested streams and associations.
        selection: StreamSelection,
        /// Identifies the answer.
        ticket: Ticket,
    },
    /// Requests the flight recordings of these streams. Answered by one [`Event::Recordings`].
    ListRecordings {
        /// The streams, at most [`MAX_RECORDINGS`](super::RECORDINGS). Ended ones are left out of the answer.
        streams: Vec<StreamId>,
        /// Identifies the answer.
        ticket: Ticket,
    },
    /// Requests the neighbour caches. Answered by one [`Event::Neighbours`].
    ListNeighbours {
        /// Identifies the answer.
        ticket: Ticket,
    },
    /// Starts a capture of this worker's frames on a port, replacing the previous one, or ends it. Answered by
    /// [`Event::Done`]: from then on the previous tap is freed.
    Capture {
        /// The port.
        port: PortId,
        /// Destination of captured frames; `None` ends the capture.
        tap: Option<Box<Tap>>,
        /// Identifies the answer.
        ticket: Ticket,
    },
    /// Reports that a port's link came up, its device was made again, or its link-layer address changed. The
    /// port's interfaces take this address and are announced. Ignored by workers without a queue of the port.
    PortChanged {
        /// The port.
        port: PortId,
        /// Its link-layer address.
        mac: [u8; 6],
    },
    /// Refuses new streams and closes established ones, except streams that hold confirmations
    /// ([`ddp::StreamConfig::set_hold_confirmations`]): these end with [`Close`](Self::Close). [`Event::Drained`]
    /// follows when no stream is left.
    Drain,
    /// Resets all streams and ends the thread; [`Event::Stopped`] is its last event.
    Stop,
}

/// Treatment of messages in flight whose source region is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourceRemoval {
    /// Wait for their acknowledgement.
    Wait,
    /// Abort their streams.
    Abort,
}

/// The handler of received messages. Bare DDP has two of RDMAP's operations: Sends (its untagged messages) and
/// Writes (its tagged messages).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Service {
    /// The control thread receives Sends and Immediate Data ([`Event::Received`], [`Event::Immediate`]) and
    /// releases their buffers. It receives events of bare DDP's tagged messages, but not of RDMAP's Writes, Reads
    /// and atomics.
    Control,
    /// As `Control`, with an event of each Write and atomic as well ([`Event::TaggedDelivered`]).
    Region,
    /// The worker returns each Send as a Send (bare DDP's on the queue that it arrived on) and Immediate Data as
    /// Immediate Data. The control thread receives only events of invalidated STags.
    Echo,
    /// The worker discards Sends and Immediate Data and releases their buffers. The control thread receives only
    /// events of invalidated STags.
    Sink,
}

/// Parameters of a connect.
#[derive(Clone, Debug)]
pub struct Connect {
    /// Identifies the answer.
    pub ticket: Ticket,
    /// The outgoing interface. The worker must have a queue of its port.
    pub interface: InterfaceId,
    /// Local address; `None` lets the worker choose one of the interface's.
    pub local: Option<IpAddr>,
    /// The peer.
    pub remote: SocketAddr,
    /// LLP and its parameters. SCTP streams to one peer share associations if their configurations are the same
    /// object.
    pub endpoint: EndpointConfig,
    /// IP header fields that differ from the interface's. A stream that shares an association uses the
    /// association's fields; other fields require another configuration object.
    pub ip: IpFields,
    /// Protocol above the LLP (DDP or RDMAP), with its untagged queues and Read limits.
    pub ulp: UlpConfig,
    /// The service that handles received messages.
    pub service: Service,
    /// Protection domain.
    pub pd: PdId,
    /// Regions that are bound to the stream as soon as it has a number. The peer may use regions advertised in the
    /// private data from the first byte on, and no other stream may use them meanwhile. Only regions of the stream's
    /// domain that are bound to a stream already, as a rule to one that does not exist; others are ignored.
    pub stags: Vec<Stag>,
    /// Private data for the peer, at most 512 bytes.
    pub private_data: Vec<u8>,
    /// Time limit of the start-up of LLP and MPA together.
    pub timeout: Duration,
}

/// The streams and associations that [`Command::ListStreams`] requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamSelection {
    /// All streams and all associations.
    All,
    /// This stream.
    Stream(StreamId),
    /// All associations.
    Associations,
    /// This association.
    Association(StreamId),
}

/// An event of a worker. No event is lost: while the ring is nearly full the worker takes no commands, and
/// streams with many events in it are paused. `worker/event.rs` has the bound of each kind.
#[derive(Debug)]
pub enum Event {
    /// A peer has requested a stream, which waits for [`Command::Accept`] or [`Command::Reject`].
    Incoming {
        /// The stream.
        stream: StreamId,
        /// The listener.
        listener: ListenerId,
        /// The interface on which the request arrived.
        interface: InterfaceId,
        /// Local address and port.
        local: SocketAddr,
        /// The peer.
        remote: SocketAddr,
        /// The peer's private data.
        private_data: Vec<u8>,
        /// MPA's form of the peer's request; `None` over SCTP.
        revision: Option<Revision>,
        /// Its enhanced data, if any: IRD, ORD and the side that sends first (RFC 6581 §9).
        enhanced: Option<EnhancedRepr>,
    },
    /// A handshake failed before the peer's request was reported. Only some are reported; [`Event::Streams`]
    /// counts all.
    HandshakeFailed(Box<FailedHandshake>),
    /// A notice of IPsec. Notices are rate-limited.
    Ipsec(Box<IpsecNotice>),
    /// A worker's security associations. Answers [`Command::ListSas`].
    Sas {
        /// The ticket of the [`Command::ListSas`].
        ticket: Ticket,
        /// The security associations, without keys.
        sas: Vec<SaInfo>,
    },
    /// Messages can flow in both directions.
    Established {
        /// The stream.
        stream: StreamId,
        /// The ticket of the [`Command::Connect`]; `None` for accepted streams.
        ticket: Option<Ticket>,
        /// The private data of the accepting peer.
        private_data: Vec<u8>,
        /// The negotiated parameters.
        params: StreamParams,
        /// Local address and port.
        local: SocketAddr,
        /// The peer.
        remote: SocketAddr,
    },
    /// A connect has failed.
    ConnectFailed {
        /// The ticket of the [`Command::Connect`].
        ticket: Ticket,
        /// The reason.
        reason: ConnectError,
    },
    /// A tagged message is completely placed, as is all data that the peer sent before it.
    TaggedDelivered {
        /// The stream.
        stream: StreamId,
        /// The region of its last segment.
        stag: Stag,
        /// Tagged offset of the message's first byte.
        to: TaggedOffset,
        /// Length of the message in bytes.
        len: u64,
        /// The ULP's field of the last segment.
        rsvd_ulp: u8,
    },
    /// An untagged message has been delivered. [`Command::PostBuffers`] returns its buffer.
    Untagged {
        /// The stream.
        stream: StreamId,
        /// The queue.
        qn: Qn,
        /// The message's number in the queue (MSN).
        msn: Msn,
        /// The message.
        data: Vec<u8>,
        /// The ULP's field: first byte and the 32 bits after it.
        rsvd_ulp: [u8; 5],
    },
    /// An RDMAP Send has been delivered, as has all data that the peer sent before it. [`Command::PostBuffers`]
    /// returns its buffer.
    Received {
        /// The stream.
        stream: StreamId,
        /// The message.
        data: Vec<u8>,
        /// True if the peer requests a solicited event.
        solicited: bool,
        /// The region that the peer has invalidated. This worker no longer places bytes in it; the control thread
        /// removes it from all workers.
        invalidated: Option<Stag>,
    },
    /// RDMAP Immediate Data has been delivered, as has all data before it. [`Command::PostBuffers`] returns its
    /// buffer.
    Immediate {
        /// The stream.
        stream: StreamId,
        /// The bytes.
        data: [u8; 8],
        /// True if the peer requests a solicited event.
        solicited: bool,
    },
    /// The peer has invalidated a region, as in [`Event::Received`], on a stream whose service is the worker.
    Invalidated {
        /// The stream.
        stream: StreamId,
        /// The region.
        stag: Stag,
    },
    /// The peer requests, by a zero-length Read, confirmation that its data has been processed.
    /// [`Command::ReleaseRead`] answers it. All events of earlier data precede this event.
    ReadHeld {
        /// The stream.
        stream: StreamId,
    },
    /// Answers [`Command::Confirming`]. All events of earlier data precede it.
    Confirming {
        /// The stream.
        stream: StreamId,
    },
    /// The peer of a stream that holds confirmations has been silent for the idle time-out. The control thread
    /// ends the stream by [`Command::Close`].
    Idle {
        /// The stream.
        stream: StreamId,
    },
    /// An RDMAP operation is complete.
    Completed {
        /// The stream.
        stream: StreamId,
        /// The ticket of the [`Command::PostRdmap`].
        ticket: Ticket,
        /// The result.
        outcome: Outcome,
    },
    /// RDMAP or a lower layer detected an error. The stream will end; earlier messages have been delivered.
    RdmapError {
        /// The stream.
        stream: StreamId,
        /// Layer, type and code, with the expected and the received value.
        error: rdmap::Error,
    },
    /// The stream's one Terminate was sent or received; [`Event::Closed`] follows.
    Terminated {
        /// The stream.
        stream: StreamId,
        /// True if the peer sent it.
        by_peer: bool,
        /// The Terminate message.
        terminate: Terminate,
    },
    /// A connect with MPA revision 2 ended when the connection closed. The worker retries with revision 1; the
    /// answer to the [`Command::Connect`] is still to come.
    Retrying {
        /// The ticket of the [`Command::Connect`].
        ticket: Ticket,
        /// The reason why the first attempt ended.
        reason: CloseReason,
    },
    /// The peer's LLP has acknowledged the whole message.
    Sent {
        /// The stream.
        stream: StreamId,
        /// The ticket of the [`Command::Post`].
        ticket: Ticket,
    },
    /// A message could not be posted, or will not be sent completely.
    PostFailed {
        /// The stream.
        stream: StreamId,
        /// The ticket of the [`Command::Post`] or [`Command::PostRdmap`].
        ticket: Ticket,
        /// The reason.
        reason: PostFailure,
    },
    /// DDP detected an error of the peer. The stream will end; earlier messages have been delivered.
    Error {
        /// The stream.
        stream: StreamId,
        /// Layer, type and code, with the expected and the received value.
        error: ddp::DdpError,
    },
    /// The peer has closed its direction (RFC 5041 §6.2.1). Messages to the peer may still be posted.
    /// [`Command::Close`] or [`Command::Fail`] must end the stream within
    /// [`half_closed_timeout`](ddp::EndpointPolicy::half_closed_timeout). [`Service::Sink`] and [`Service::Echo`]
    /// close by themselves.
    PeerClosed {
        /// The stream.
        stream: StreamId,
        /// True if the peer closed in the middle of a message.
        incomplete: bool,
    },
    /// A stream has ended. Not reported for streams that ended before [`Event::Incoming`] or
    /// [`Event::Established`].
    Closed {
        /// The stream.
        stream: StreamId,
        /// The first cause of the end.
        reason: CloseReason,
        /// The stream's final statistics.
        stats: Box<StreamStats>,
    },
    /// An SCTP association has ended, with all its streams.
    AssociationClosed {
        /// The association's identifier.
        association: StreamId,
        /// The association's final statistics.
        stats: Box<AssociationStats>,
    },
    /// A load has ended.
    LoadDone {
        /// The stream.
        stream: StreamId,
        /// The ticket of the [`Command::Load`].
        ticket: Ticket,
        /// The results of the load.
        report: Box<LoadReport>,
    },
    /// Answers a command that has no other answer.
    Done {
        /// The ticket of the command.
        ticket: Ticket,
        /// The result of the command.
        result: Result<(), CommandError>,
    },
    /// A part of the answer to [`Command::ListStreams`].
    Streams {
        /// The ticket of the command.
        ticket: Ticket,
        /// Streams of this part.
        streams: Vec<StreamInfo>,
        /// Associations of this part.
        associations: Vec<AssociationInfo>,
        /// Failed handshakes since the previous answer to this command; only in the last part.
        handshakes: Vec<HandshakeCount>,
        /// True in the last part.
        last: bool,
    },
    /// Flight recordings. Answers [`Command::ListRecordings`], or directly precedes the [`Event::Closed`] of a
    /// stream that failed, if it has a recording.
    Recordings {
        /// The ticket of the command; `None` if it is not an answer.
        ticket: Option<Ticket>,
        /// The recordings.
        recordings: Vec<Recording>,
    },
    /// Answers [`Command::ListNeighbours`].
    Neighbours {
        /// The ticket of the command.
        ticket: Ticket,
        /// The worker's cache entries.
        neighbours: Vec<NeighbourInfo>,
    },
    /// Another host uses an address of an interface. Repeated every ten seconds while the conflict lasts.
    AddressConflict {
        /// The interface.
        interface: InterfaceId,
        /// The address.
        address: IpAddr,
        /// The other host's link-layer address.
        mac: [u8; 6],
    },
    /// A host relies on a device to fill in checksums, but the device does not. The host's frames are dropped.
    UnfinishedChecksums {
        /// The port that receives the frames.
        port: PortId,
        /// The host.
        source: IpAddr,
    },
    /// A stream makes no progress: its packets are not answered. [`Event::Resumed`] or [`Event::Closed`]
    /// follows.
    Stalled {
        /// The stream.
        stream: StreamId,
        /// The time-outs so far.
        stall: Stall,
    },
    /// A stream that was reported as stalled makes progress again.
    Resumed {
        /// The stream.
        stream: StreamId,
    },
    /// Answers [`Command::Drain`]: no stream is left.
    Drained,
    /// Answers [`Command::Stop`]: the thread ends.
    Stopped,
    /// The thread has panicked; its streams are lost. Last event of the worker.
    Failed {
        /// The worker.
        worker: WorkerId,
        /// The panic message.
        message: String,
    },
}
