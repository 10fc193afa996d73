//! Commands from the control thread to a worker, and events from the worker to the control thread.

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
use super::program::{
    CompletionQueueConfig, ProgramConfig, ProgramEvent, ProgramId, QueuePairConfig, QueuePairId,
    WindowChange,
};
use super::recording::Recording;
use super::transport::{CloseReason, EndpointConfig, StreamParams, StreamStats};
use crate::capture::Tap;

use crate::ids::{InterfaceId, ListenerId, PortId, Ticket, WorkerId};
use crate::memory::Memory;

/// A command to one worker. The worker processes commands in order, at most 64 per iteration of its loop.
#[derive(Debug)]
pub enum Command {
    /// Adds a region to the worker's replica of the STag table. Answered by [`Event::Done`].
    AddStag {
        /// The region with its access rights.
        entry: StagEntry<Memory>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Changes IPsec policies or SAs. Answered by [`Event::Done`].
    Sa {
        /// Change of policies or SAs.
        change: SaChange,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Requests the worker's SAs. Answered by [`Event::Sas`].
    ListSas {
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Removes a region from the worker's replica of the STag table. This worker places no more data in the region.
    /// Answered by [`Event::Done`] once no post or load uses the region.
    RemoveStag {
        /// Region to remove.
        stag: Stag,
        /// Treatment of messages that are being sent from the region.
        removal: SourceRemoval,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Binds a region to one stream, or opens it to all streams of its protection domain. Answered by [`Event::Done`].
    BindStag {
        /// Region to bind.
        stag: Stag,
        /// Stream that may access the region; `None` for all streams of the protection domain. The stream may belong to
        /// another worker.
        stream: Option<StreamId>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Changes the access rights of peers to a region. Answered by [`Event::Done`]. After the answer, this worker
    /// neither performs nor continues operations that the new rights forbid.
    SetAccess {
        /// Region whose rights change.
        stag: Stag,
        /// The new access rights.
        access: Access,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Adds a listener. Answered by [`Event::Done`].
    AddListener {
        /// Configuration of the listener, shared with the other workers.
        listener: Arc<ListenerConfig>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Removes a listener. Half-open streams are reset. Streams reported by [`Event::Incoming`] and established streams
    /// continue. Answered by [`Event::Done`].
    RemoveListener {
        /// Listener to remove.
        listener: ListenerId,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Replaces the peer lists of a listener. Half-open streams of peers that are no longer admitted are reset.
    /// Established streams continue. Answered by [`Event::Done`].
    SetPeers {
        /// Listener whose lists are replaced.
        listener: ListenerId,
        /// New peer lists.
        peers: Arc<PeerFilter>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Allows the worker to accept more streams of a listener. Each stream consumes a credit at its SYN. The credit is
    /// returned only if the stream ends before [`Event::Incoming`].
    Credits {
        /// Listener that receives the credits; ignored if unknown.
        listener: ListenerId,
        /// Number of additional streams.
        additional: u32,
    },
    /// Accepts the stream of an [`Event::Incoming`]. [`Event::Established`] follows, or [`Event::Closed`] if the stream
    /// has already ended.
    Accept {
        /// Stream to accept.
        stream: StreamId,
        /// Protection domain of the stream.
        pd: PdId,
        /// Private data for the peer: at most 512 bytes, minus the enhanced data (RFC 6581) of the MPA reply.
        private_data: Vec<u8>,
        /// ULP (DDP or RDMAP), with its receive queues and limits of RDMA Reads.
        ulp: UlpConfig,
        /// Service that handles received messages.
        service: Service,
    },
    /// Rejects the stream of an [`Event::Incoming`].
    Reject {
        /// Stream to reject.
        stream: StreamId,
        /// Private data for the peer, at most 512 bytes.
        private_data: Vec<u8>,
    },
    /// Opens a stream. Answered by [`Event::Established`] or [`Event::ConnectFailed`].
    Connect(Box<Connect>),
    /// Posts a message. Answered by [`Event::Sent`] when the peer's LLP has acknowledged it, or by
    /// [`Event::PostFailed`].
    Post {
        /// Stream that sends the message.
        stream: StreamId,
        /// Message to send. The worker replaces its cookie by the ticket.
        message: Message<Memory>,
        /// Source region, if any. [`Command::RemoveStag`] waits until the message no longer uses the region.
        region: Option<Stag>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Posts an RDMAP operation. Answered by [`Event::Completed`] or [`Event::PostFailed`].
    PostRdmap {
        /// Stream that performs the operation; its ULP must be RDMAP.
        stream: StreamId,
        /// Operation to perform. The worker replaces its cookie by the ticket.
        request: WorkRequest<Memory>,
        /// Source region, or sink region of a Read, if any. [`Command::RemoveStag`] waits until the operation no longer
        /// uses the region.
        region: Option<Stag>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Reposts receive buffers to an untagged queue; on an RDMAP stream only to queue 0.
    PostBuffers {
        /// Stream of the queue; ignored if it has ended.
        stream: StreamId,
        /// Untagged queue whose buffers are reposted.
        qn: Qn,
        /// Number of buffers to repost.
        buffers: u32,
    },
    /// Lets an accepted stream send before the peer's first FPDU has arrived. The caller must know by other means that
    /// the peer has received the MPA reply.
    PeerReady {
        /// Stream that may send; ignored if it has ended.
        stream: StreamId,
    },
    /// Registers a local program. Answered by [`Event::Done`].
    AddProgram {
        /// The program, with its doorbells at this worker.
        program: Box<ProgramConfig>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Removes a local program, its QPs and its CQs. Streams of its QPs are reset. Answered by [`Event::Done`]. After
    /// the answer, this worker accesses neither the program's queues nor, through its QPs, the program's memory.
    RemoveProgram {
        /// Program to remove.
        program: ProgramId,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Registers a completion queue. Answered by [`Event::Done`].
    AddCompletionQueue {
        /// The queue at this worker.
        queue: Box<CompletionQueueConfig>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Removes a completion queue that no QP of this worker uses. Answered by [`Event::Done`].
    RemoveCompletionQueue {
        /// Program that owns the CQ.
        program: ProgramId,
        /// Number of the CQ.
        number: u32,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Registers a QP, before the [`Connect`](Self::Connect) or [`Accept`](Self::Accept) of its stream. Answered by
    /// [`Event::Done`].
    AddQueuePair {
        /// The QP with its queues.
        pair: Box<QueuePairConfig>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Removes a QP. Its stream is reset. Incomplete posts have no completion. Answered by [`Event::Done`].
    RemoveQueuePair {
        /// QP to remove.
        id: QueuePairId,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Changes the memory windows of a program. Answered by [`Event::Done`]: after a removal, this worker places and
    /// reads no data through the window.
    Window {
        /// Program that owns the window.
        program: ProgramId,
        /// Addition, removal or binding of a window.
        change: WindowChange,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Answers [`ProgramEvent::BindWindow`]. Ignored if the QP has ended.
    WindowBound {
        /// QP of the request.
        id: QueuePairId,
        /// Number of the request.
        sequence: u32,
        /// True if all workers have bound the window.
        is_bound: bool,
    },
    /// Checks that no memory window of this worker is bound to a region. Answered by [`Event::Done`].
    CheckRegion {
        /// STag of the region.
        stag: Stag,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Starts a load on a stream. Always answered by [`Event::LoadDone`].
    Load {
        /// Stream that runs the load; at most one at a time.
        stream: StreamId,
        /// Kind, number and pace of the messages.
        load: Load,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Stops a load: the worker posts no more messages. [`Event::LoadDone`] follows once the outstanding messages are
    /// complete.
    StopLoad {
        /// Stream of the load; ignored if it has none.
        stream: StreamId,
    },
    /// Closes or aborts a stream. [`Event::Closed`] follows.
    Close {
        /// Stream to close; ignored if it has ended.
        stream: StreamId,
        /// True to reset the stream at once; false to close it gracefully after all posted data.
        abort: bool,
    },
    /// Ends a stream because this end cannot process received data. The peer receives a local catastrophic error:
    /// RDMAP's Terminate 0/0/00, or bare DDP's last message 1/0/00. If the stream can no longer send, the peer receives
    /// a reset. [`Event::Closed`] follows.
    Fail {
        /// Stream to end; ignored if it has ended.
        stream: StreamId,
    },
    /// Announces the close of a stream that holds confirmations ([`ddp::StreamConfig::set_hold_confirmations`]). The
    /// control thread will confirm all data reported before [`Event::Confirming`]. [`Close`](Self::Close) or
    /// [`Fail`](Self::Fail) must follow, because `half_closed_timeout` no longer ends the stream. A `Close` that would
    /// confirm later data acts as a `Fail`.
    AnnounceClose {
        /// Stream to be closed; ignored if it has ended.
        stream: StreamId,
    },
    /// Answers the RDMA Read of the oldest [`Event::ReadHeld`] of a stream, so that it completes at the peer.
    ReleaseRead {
        /// Stream of the Read; ignored if it has ended.
        stream: StreamId,
    },
    /// Requests a list of streams and associations. Answered by one or more [`Event::Streams`], one per iteration of
    /// the worker's loop, so that a long list does not delay data.
    ListStreams {
        /// Streams and associations to list.
        selection: StreamSelection,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Requests the flight recordings of streams. Answered by one [`Event::Recordings`].
    ListRecordings {
        /// Requested streams, at most [`MAX_RECORDINGS`](super::MAX_RECORDINGS). The answer omits streams that have
        /// ended.
        streams: Vec<StreamId>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Requests the entries of the neighbour caches. Answered by one [`Event::Neighbours`].
    ListNeighbours {
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Starts or ends a capture of this worker's frames on a port. A previous capture of the port ends. Answered by
    /// [`Event::Done`], at which the previous tap is freed.
    Capture {
        /// Port to capture.
        port: PortId,
        /// Receives the captured frames; `None` ends the capture.
        tap: Option<Box<Tap>>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Notifies the worker that a port's link came up, its device was recreated, or its MAC address changed. The worker
    /// sets the address on the interfaces of the port and announces them. Workers without a queue of the port ignore
    /// the command.
    PortChanged {
        /// Port that has changed.
        port: PortId,
        /// Current MAC address of the port.
        mac: [u8; 6],
    },
    /// Refuses new streams, aborts streams that are being opened, and closes established streams. Streams that hold
    /// confirmations ([`ddp::StreamConfig::set_hold_confirmations`]) continue until [`Close`](Self::Close).
    /// [`Event::Drained`] follows when no stream and no association is left.
    Drain,
    /// Resets all streams and ends the thread. [`Event::Stopped`] is the last event.
    Stop,
}

/// Treatment of messages that are being sent from a removed region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourceRemoval {
    /// The messages are sent. The removal waits for their acknowledgement.
    Wait,
    /// The streams of the messages are aborted.
    Abort,
}

/// Service that handles received messages. On bare DDP, Sends are untagged messages, and Writes are tagged messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Service {
    /// The control thread receives Sends and Immediate Data ([`Event::Received`], [`Event::Immediate`]) and reposts
    /// their buffers. Tagged messages of bare DDP cause events, too; RDMAP's Writes, Reads and atomics do not.
    Control,
    /// Like `Control`, and the control thread also receives [`Event::TaggedDelivered`] for each RDMAP Write with
    /// payload and for each atomic.
    Region,
    /// The worker returns each Send as a Send and Immediate Data as Immediate Data; on bare DDP, to the message queue.
    /// The control thread receives no messages except invalidations of STags and bare DDP's last message.
    Echo,
    /// The worker discards Sends and Immediate Data and reposts their buffers. The control thread receives the same as
    /// with `Echo`.
    Sink,
    /// The queue pair of a local program. The control thread receives events of the stream's start and end, but none of
    /// messages. Requires RDMAP.
    Program(QueuePairId),
}

/// Parameters of a connect.
#[derive(Clone, Debug)]
pub struct Connect {
    /// Chosen by the sender, repeated in the answer.
    pub ticket: Ticket,
    /// Interface for the stream's packets. The worker must have a queue of its port.
    pub interface: InterfaceId,
    /// Local address; `None` lets the worker choose an address of the interface.
    pub local: Option<IpAddr>,
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// LLP and its parameters. SCTP streams to one peer share an association if their configurations are the same
    /// object (`Arc`).
    pub endpoint: EndpointConfig,
    /// IP header fields, where they differ from the interface's. A stream that shares an association has the
    /// association's fields. Different fields require a different configuration object.
    pub ip: IpFields,
    /// ULP (DDP or RDMAP), with its receive queues and limits of RDMA Reads.
    pub ulp: UlpConfig,
    /// Service that handles received messages.
    pub service: Service,
    /// Protection domain of the stream.
    pub pd: PdId,
    /// Regions to bind to the stream once it has an identifier. The peer may then access regions that the private data
    /// advertises as soon as it receives them. Each region must belong to the stream's protection domain and be bound
    /// already. Usually it is bound to a stream that does not exist, so that no other stream can access it before.
    /// Other regions are ignored.
    pub stags: Vec<Stag>,
    /// Private data for the peer, at most 512 bytes.
    pub private_data: Vec<u8>,
    /// Time limit of the connect, from address resolution to the established stream.
    pub timeout: Duration,
}

/// Streams and associations that [`Command::ListStreams`] requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamSelection {
    /// All streams and all associations.
    All,
    /// The stream with this identifier.
    Stream(StreamId),
    /// The streams with these identifiers. Each worker lists only the streams that it owns.
    Streams(Arc<[StreamId]>),
    /// All associations.
    Associations,
    /// The association with this identifier.
    Association(StreamId),
}

/// An event of a worker. No event is lost: while the event ring is nearly full, the worker reads no commands, and
/// streams with many unread events are paused. `worker/link/event_queue.rs` lists the bound for each kind of event.
#[derive(Debug)]
pub enum Event {
    /// A peer requests a stream, which waits for [`Command::Accept`] or [`Command::Reject`].
    Incoming {
        /// Identifier of the new stream.
        stream: StreamId,
        /// Listener that the peer connected to.
        listener: ListenerId,
        /// Interface on which the request arrived.
        interface: InterfaceId,
        /// Local address and port.
        local: SocketAddr,
        /// Address and port of the peer.
        remote: SocketAddr,
        /// Private data of the request.
        private_data: Vec<u8>,
        /// MPA revision of the request; `None` over SCTP.
        revision: Option<Revision>,
        /// Enhanced data of the request, if any: IRD, ORD and ready-to-receive flags (RFC 6581 §9).
        enhanced: Option<EnhancedRepr>,
    },
    /// A peer's handshake failed before [`Event::Incoming`]. These events are rate-limited; [`Event::Streams`] has the
    /// counts of all failures.
    HandshakeFailed(Box<FailedHandshake>),
    /// A notice from IPsec, such as a request for an SA. Notices are rate-limited.
    Ipsec(Box<IpsecNotice>),
    /// Answers [`Command::ListSas`].
    Sas {
        /// The ticket of the [`Command::ListSas`].
        ticket: Ticket,
        /// The SAs, without keys.
        sas: Vec<SaInfo>,
    },
    /// A stream is established: messages can be sent in both directions.
    Established {
        /// Identifier of the stream.
        stream: StreamId,
        /// The ticket of the [`Command::Connect`]; `None` for accepted streams.
        ticket: Option<Ticket>,
        /// Private data of the accepting peer's reply; empty for accepted streams.
        private_data: Vec<u8>,
        /// Negotiated parameters.
        params: StreamParams,
        /// Local address and port.
        local: SocketAddr,
        /// Address and port of the peer.
        remote: SocketAddr,
    },
    /// A connect has failed: no stream was established.
    ConnectFailed {
        /// The ticket of the [`Command::Connect`].
        ticket: Ticket,
        /// Reason of the failure.
        reason: ConnectError,
    },
    /// A tagged message is delivered: the message and all earlier data of the peer are completely placed.
    TaggedDelivered {
        /// Stream that received the message.
        stream: StreamId,
        /// Region of the message's last segment.
        stag: Stag,
        /// Tagged offset of the message's first byte.
        to: TaggedOffset,
        /// Length of the message in bytes.
        len: u64,
        /// RsvdULP field of the last segment.
        rsvd_ulp: u8,
    },
    /// An untagged message of bare DDP is delivered. [`Command::PostBuffers`] reposts its buffer.
    Untagged {
        /// Stream that received the message.
        stream: StreamId,
        /// Untagged queue of the message.
        qn: Qn,
        /// Message sequence number in the queue (RFC 5041 §4.3).
        msn: Msn,
        /// Content of the message.
        data: Vec<u8>,
        /// RsvdULP field (RFC 5041 §4.3): 8 bits, then 32 bits.
        rsvd_ulp: [u8; 5],
    },
    /// An RDMAP Send is delivered, as is all earlier data of the peer. [`Command::PostBuffers`] reposts its buffer.
    Received {
        /// Stream that received the Send.
        stream: StreamId,
        /// Content of the message.
        data: Vec<u8>,
        /// True if the peer requests a solicited event.
        solicited: bool,
        /// Region that the peer has invalidated. This worker places no more data in it. The control thread must remove
        /// the region from all workers.
        invalidated: Option<Stag>,
    },
    /// RDMAP Immediate Data is delivered, as is all earlier data of the peer. [`Command::PostBuffers`] reposts its
    /// buffer.
    Immediate {
        /// Stream that received the data.
        stream: StreamId,
        /// The eight bytes of data.
        data: [u8; 8],
        /// True if the peer requests a solicited event.
        solicited: bool,
    },
    /// The peer has invalidated a region by a Send on a stream with [`Service::Echo`] or [`Service::Sink`]. This worker
    /// places no more data in it. The control thread must remove it from all workers.
    Invalidated {
        /// Stream that received the invalidation.
        stream: StreamId,
        /// Invalidated region.
        stag: Stag,
    },
    /// The peer sent an RDMA Read of length zero to request confirmation that its data was processed.
    /// [`Command::ReleaseRead`] answers the Read. All events of earlier data precede this event.
    ReadHeld {
        /// Stream of the Read.
        stream: StreamId,
    },
    /// Answers [`Command::AnnounceClose`]. All events of data that the close will confirm precede this event.
    Confirming {
        /// Stream to be closed.
        stream: StreamId,
    },
    /// The peer of a stream that holds confirmations was silent for the idle time-out. The control thread must end the
    /// stream with [`Command::Close`].
    Idle {
        /// Stream whose peer was silent.
        stream: StreamId,
    },
    /// An RDMAP operation is complete.
    Completed {
        /// Stream that performed the operation.
        stream: StreamId,
        /// The ticket of the [`Command::PostRdmap`].
        ticket: Ticket,
        /// Result of the operation.
        outcome: Outcome,
    },
    /// RDMAP or a lower layer detected an error. The stream will end. Messages before the error were delivered.
    RdmapError {
        /// Failing stream.
        stream: StreamId,
        /// Layer, type and code, with the expected and the received value.
        error: rdmap::Error,
    },
    /// A Terminate was sent or received, at most one in each direction. [`Event::Closed`] follows.
    Terminated {
        /// Terminated stream.
        stream: StreamId,
        /// True if the peer sent the Terminate.
        by_peer: bool,
        /// Content of the Terminate.
        terminate: Terminate,
    },
    /// A connect with MPA revision 2 failed because the peer closed the connection or does not support revision 2. The
    /// worker makes a second attempt with revision 1, whose result answers the [`Command::Connect`].
    Retrying {
        /// The ticket of the [`Command::Connect`].
        ticket: Ticket,
        /// Reason why the first attempt ended.
        reason: CloseReason,
    },
    /// The peer's LLP has acknowledged the whole message.
    Sent {
        /// Stream that sent the message.
        stream: StreamId,
        /// The ticket of the [`Command::Post`].
        ticket: Ticket,
    },
    /// A message or operation was refused, or will not be completed.
    PostFailed {
        /// Stream to which the message was posted.
        stream: StreamId,
        /// The ticket of the [`Command::Post`] or [`Command::PostRdmap`].
        ticket: Ticket,
        /// Reason of the failure.
        reason: PostFailure,
    },
    /// DDP detected an error of the peer. The stream will end. Messages before the error were delivered.
    Error {
        /// Failing stream.
        stream: StreamId,
        /// Layer, type and code, with the expected and the received value.
        error: ddp::DdpError,
    },
    /// The peer has closed its direction (RFC 5041 §6.2.1). Messages to the peer may still be posted.
    /// [`Command::Close`] or [`Command::Fail`] must end the stream within
    /// [`half_closed_timeout`](ddp::EndpointPolicy::half_closed_timeout). Streams with [`Service::Sink`] or
    /// [`Service::Echo`] are closed by the worker.
    PeerClosed {
        /// Half-closed stream.
        stream: StreamId,
        /// True if the peer closed in the middle of a message.
        incomplete: bool,
    },
    /// A stream has ended. Streams that end before [`Event::Incoming`] or [`Event::Established`] are not reported.
    Closed {
        /// Ended stream.
        stream: StreamId,
        /// First cause of the end.
        reason: CloseReason,
        /// Final statistics of the stream.
        stats: Box<StreamStats>,
    },
    /// An SCTP association has ended, and so have all its streams.
    AssociationClosed {
        /// Identifier of the association.
        association: StreamId,
        /// Final statistics of the association.
        stats: Box<AssociationStats>,
    },
    /// A load has ended: it is complete, was stopped, or has failed.
    LoadDone {
        /// Stream of the load.
        stream: StreamId,
        /// The ticket of the [`Command::Load`].
        ticket: Ticket,
        /// Results of the load.
        report: Box<LoadReport>,
    },
    /// Answers a command without a specific answer event.
    Done {
        /// The ticket of the command.
        ticket: Ticket,
        /// Result of the command.
        result: Result<(), CommandError>,
    },
    /// A part of the answer to [`Command::ListStreams`].
    Streams {
        /// The ticket of the command.
        ticket: Ticket,
        /// Streams in this part.
        streams: Vec<StreamInfo>,
        /// Associations in this part.
        associations: Vec<AssociationInfo>,
        /// Counts of failed handshakes since the previous answer to this command; only in the last part.
        handshakes: Vec<HandshakeCount>,
        /// True in the last part.
        last: bool,
    },
    /// Flight recordings. Answers [`Command::ListRecordings`], or precedes the [`Event::Closed`] of a stream that did
    /// not end gracefully.
    Recordings {
        /// The ticket of the command; `None` if the event is not an answer.
        ticket: Option<Ticket>,
        /// Recordings. With a ticket: of the requested streams that have not ended.
        recordings: Vec<Recording>,
    },
    /// Answers [`Command::ListNeighbours`].
    Neighbours {
        /// The ticket of the command.
        ticket: Ticket,
        /// Entries of this worker's caches.
        neighbours: Vec<NeighbourInfo>,
    },
    /// Another host uses an address of an interface. The event is repeated every ten seconds while the conflict lasts.
    AddressConflict {
        /// Interface with the address.
        interface: InterfaceId,
        /// Address in conflict.
        address: IpAddr,
        /// MAC address of the other host.
        mac: [u8; 6],
    },
    /// Frames of a host arrive with unfinished checksums: the host relies on checksum offload, but no device computes
    /// them. All of its frames are dropped.
    UnfinishedChecksums {
        /// Port on which the frames arrive.
        port: PortId,
        /// IP address of the host.
        source: IpAddr,
    },
    /// A stream makes no progress: its packets are not acknowledged. [`Event::Resumed`] or [`Event::Closed`] follows.
    Stalled {
        /// Stalled stream.
        stream: StreamId,
        /// Consecutive time-outs so far, and time without progress.
        stall: Stall,
    },
    /// A stream that was reported as stalled makes progress again.
    Resumed {
        /// Resumed stream.
        stream: StreamId,
    },
    /// An event about a local program. At most one for each QP and each CQ.
    Program(ProgramEvent),
    /// Answers [`Command::Drain`]: no stream or association is left.
    Drained,
    /// Answers [`Command::Stop`]: the thread ends.
    Stopped,
    /// The worker's thread has panicked, and its streams are lost. No further event of the worker follows.
    Failed {
        /// Identifier of the worker.
        worker: WorkerId,
        /// Message of the panic.
        message: String,
    },
}
