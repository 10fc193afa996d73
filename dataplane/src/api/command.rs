//! Commands from the control thread to a worker. Each command states the event that answers it, if any.

use std::sync::Arc;

use ddp::rdmap::WorkRequest;
use ddp::{Access, Message, PdId, Qn, Stag, StagEntry, StreamId};
use tcp_lite::endpoint::UlpConfig;

use super::config::ListenerConfig;
use super::connect::{Connect, Service};
use super::ipsec::SaChange;
use super::load::Load;
use super::peers::PeerFilter;
use super::program::{
    CompletionQueueConfig, ProgramConfig, ProgramId, QueuePairConfig, QueuePairId, WindowChange,
};
use crate::capture::Tap;
use crate::ids::{ListenerId, PortId, Ticket};
use crate::memory::Memory;

/// A command to one worker. The worker processes commands in order, at most 64 per iteration of its loop.
#[derive(Debug)]
pub enum Command {
    /// Adds a region to the worker's replica of the STag table. Answered by [`Event::Done`](super::Event::Done).
    AddStag {
        /// The region with its access rights.
        entry: StagEntry<Memory>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Changes IPsec policies or SAs. Answered by [`Event::Done`](super::Event::Done).
    Sa {
        /// Change of policies or SAs.
        change: SaChange,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Requests the worker's SAs. Answered by [`Event::Sas`](super::Event::Sas).
    ListSas {
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Removes a region from the worker's replica of the STag table. This worker places no more data in the region.
    /// Answered by [`Event::Done`](super::Event::Done) once no post or load uses the region.
    RemoveStag {
        /// Region to remove.
        stag: Stag,
        /// Treatment of messages that are being sent from the region.
        removal: SourceRemoval,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Binds a region to one stream, or opens it to all streams of its protection domain. Answered by
    /// [`Event::Done`](super::Event::Done).
    BindStag {
        /// Region to bind.
        stag: Stag,
        /// Stream that may access the region; `None` for all streams of the protection domain. The stream may belong to
        /// another worker.
        stream: Option<StreamId>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Changes the access rights of peers to a region. Answered by [`Event::Done`](super::Event::Done). After the
    /// answer, this worker neither performs nor continues operations that the new rights forbid.
    SetAccess {
        /// Region whose rights change.
        stag: Stag,
        /// The new access rights.
        access: Access,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Adds a listener. Answered by [`Event::Done`](super::Event::Done).
    AddListener {
        /// Configuration of the listener, shared with the other workers.
        listener: Arc<ListenerConfig>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Removes a listener. Half-open streams are reset. Streams reported by [`Event::Incoming`](super::Event::Incoming)
    /// and established streams continue. Answered by [`Event::Done`](super::Event::Done).
    RemoveListener {
        /// Listener to remove.
        listener: ListenerId,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Replaces the peer lists of a listener. Half-open streams of peers that are no longer admitted are reset.
    /// Established streams continue. Answered by [`Event::Done`](super::Event::Done).
    SetPeers {
        /// Listener whose lists are replaced.
        listener: ListenerId,
        /// New peer lists.
        peers: Arc<PeerFilter>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Allows the worker to accept more streams of a listener. A credit is consumed by each SYN and by each returned
    /// cookie (TCP or SCTP) that is accepted, and by each further session of an association. The worker regains the
    /// credit only if the stream ends before [`Event::Incoming`](super::Event::Incoming).
    Credits {
        /// Listener that receives the credits; ignored if unknown.
        listener: ListenerId,
        /// Number of additional streams.
        additional: u32,
    },
    /// Accepts the stream of an [`Event::Incoming`](super::Event::Incoming).
    /// [`Event::Established`](super::Event::Established) follows, or [`Event::Closed`](super::Event::Closed) if the
    /// stream has already ended.
    Accept {
        /// Stream to accept.
        stream: StreamId,
        /// Protection domain of the stream.
        pd: PdId,
        /// Private data for the peer: at most 512 bytes, minus the enhanced data (RFC 6581) of the MPA reply.
        private_data: Vec<u8>,
        /// ULP (DDP or RDMAP), with its receive queues, IRD and ORD.
        ulp: UlpConfig,
        /// Service that handles received messages.
        service: Service,
    },
    /// Rejects the stream of an [`Event::Incoming`](super::Event::Incoming).
    Reject {
        /// Stream to reject.
        stream: StreamId,
        /// Private data for the peer, at most 512 bytes.
        private_data: Vec<u8>,
    },
    /// Opens a stream. Answered by [`Event::Established`](super::Event::Established) or
    /// [`Event::ConnectFailed`](super::Event::ConnectFailed).
    Connect(Box<Connect>),
    /// Posts a message. Answered by [`Event::Sent`](super::Event::Sent) when the peer's LLP has acknowledged it, or by
    /// [`Event::PostFailed`](super::Event::PostFailed).
    Post {
        /// Stream that sends the message.
        stream: StreamId,
        /// Message to send. The worker replaces the message's cookie by the ticket.
        message: Message<Memory>,
        /// Source region, if any. [`Command::RemoveStag`] waits until the message no longer uses the region.
        region: Option<Stag>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Posts an RDMAP operation. Answered by [`Event::Completed`](super::Event::Completed) or
    /// [`Event::PostFailed`](super::Event::PostFailed).
    PostRdmap {
        /// Stream that performs the operation; its ULP must be RDMAP.
        stream: StreamId,
        /// Operation to perform. The worker replaces the request's cookie by the ticket.
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
    /// Registers a local program. Answered by [`Event::Done`](super::Event::Done).
    AddProgram {
        /// The program, with its doorbells at this worker.
        program: Box<ProgramConfig>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Removes a local program, its QPs and its CQs. Streams of its QPs are reset. Answered by
    /// [`Event::Done`](super::Event::Done). After the answer, this worker accesses neither the program's queues nor,
    /// through its QPs, the program's memory.
    RemoveProgram {
        /// Program to remove.
        program: ProgramId,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Registers a completion queue. Answered by [`Event::Done`](super::Event::Done).
    AddCompletionQueue {
        /// The queue at this worker.
        queue: Box<CompletionQueueConfig>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Removes a completion queue that no QP of this worker uses. Answered by [`Event::Done`](super::Event::Done).
    RemoveCompletionQueue {
        /// Program that owns the CQ.
        program: ProgramId,
        /// Number of the CQ.
        number: u32,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Registers a QP, before the [`Connect`](Self::Connect) or [`Accept`](Self::Accept) of its stream. Answered by
    /// [`Event::Done`](super::Event::Done).
    AddQueuePair {
        /// The QP with its queues.
        pair: Box<QueuePairConfig>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Removes a QP. Its stream is reset. No completion is written for an incomplete post. Answered by
    /// [`Event::Done`](super::Event::Done).
    RemoveQueuePair {
        /// QP to remove.
        id: QueuePairId,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Ends a QP: its stream, if it has one, is reset, and its posts are flushed. Has no effect on an ended QP.
    EndQueuePair {
        /// QP to end.
        id: QueuePairId,
    },
    /// Changes the memory windows of a program. Answered by [`Event::Done`](super::Event::Done): after a removal, this
    /// worker places and reads no data through the window.
    Window {
        /// Program that owns the window.
        program: ProgramId,
        /// Addition, removal or binding of a window.
        change: WindowChange,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Answers [`ProgramEvent::BindWindow`](super::ProgramEvent::BindWindow). Ignored if the QP has ended.
    WindowBound {
        /// QP of the request.
        id: QueuePairId,
        /// Number of the request, copied from the event.
        sequence: u32,
        /// True if all workers have bound the window.
        is_bound: bool,
    },
    /// Checks that no memory window of this worker is bound to a region. Answered by
    /// [`Event::Done`](super::Event::Done), with [`CommandError::WindowsBound`](super::CommandError::WindowsBound) if a
    /// window is bound.
    CheckRegion {
        /// STag of the region.
        stag: Stag,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Starts a load on a stream. Always answered by [`Event::LoadDone`](super::Event::LoadDone).
    Load {
        /// Stream that runs the load. A stream has at most one load at a time.
        stream: StreamId,
        /// Kind, number and pace of the messages.
        load: Load,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Stops a load: the worker posts no more messages. [`Event::LoadDone`](super::Event::LoadDone) follows once the
    /// outstanding messages are complete.
    StopLoad {
        /// Stream of the load; ignored if the stream has no load.
        stream: StreamId,
    },
    /// Closes or aborts a stream. [`Event::Closed`](super::Event::Closed) follows.
    Close {
        /// Stream to close; ignored if it has ended.
        stream: StreamId,
        /// True to reset the stream at once; false to close it gracefully after all posted data.
        abort: bool,
    },
    /// Ends a stream because this end cannot process received data. The peer receives a local catastrophic error:
    /// RDMAP's Terminate 0/0/00, or bare DDP's last message 1/0/00. If the stream can no longer send, the peer receives
    /// a reset. [`Event::Closed`](super::Event::Closed) follows.
    Fail {
        /// Stream to end; ignored if it has ended.
        stream: StreamId,
    },
    /// Announces the close of a stream that holds confirmations ([`ddp::StreamConfig::set_hold_confirmations`]). The
    /// control thread will confirm all data reported before [`Event::Confirming`](super::Event::Confirming).
    /// [`Close`](Self::Close) or [`Fail`](Self::Fail) must follow, because `half_closed_timeout` no longer ends the
    /// stream. A `Close` acts as a `Fail` if it would also confirm data that arrived after this command.
    AnnounceClose {
        /// Stream to be closed; ignored if it has ended.
        stream: StreamId,
    },
    /// Answers the RDMA Read of the oldest [`Event::ReadHeld`](super::Event::ReadHeld) of a stream, so that the Read
    /// completes at the peer.
    ReleaseRead {
        /// Stream of the Read; ignored if it has ended.
        stream: StreamId,
    },
    /// Requests a list of streams and associations. Answered by one or more [`Event::Streams`](super::Event::Streams),
    /// one per iteration of the worker's loop, so that a long list does not delay data.
    ListStreams {
        /// Streams and associations to list.
        selection: StreamSelection,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Requests the flight recordings of streams. Answered by one [`Event::Recordings`](super::Event::Recordings).
    ListRecordings {
        /// Requested streams, at most [`MAX_RECORDINGS`](super::MAX_RECORDINGS). The answer omits streams that have
        /// ended.
        streams: Vec<StreamId>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Requests the entries of the neighbour caches. Answered by one [`Event::Neighbours`](super::Event::Neighbours).
    ListNeighbours {
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Starts or ends a capture of this worker's frames on a port. A previous capture of the port ends, and its tap is
    /// freed. Answered by [`Event::Done`](super::Event::Done).
    Capture {
        /// Port to capture.
        port: PortId,
        /// Receives the captured frames; `None` ends the capture.
        tap: Option<Box<Tap>>,
        /// Chosen by the sender, repeated in the answer.
        ticket: Ticket,
    },
    /// Notifies the worker that a port's link came up, its device was recreated, or its MAC address changed. The worker
    /// sets the address on the interfaces of the port and announces these interfaces. Workers without a queue of the
    /// port ignore the command.
    PortChanged {
        /// Port that has changed.
        port: PortId,
        /// Current MAC address of the port.
        mac: [u8; 6],
    },
    /// Refuses new streams, aborts streams that are being opened, and closes established streams. Streams that hold
    /// confirmations ([`ddp::StreamConfig::set_hold_confirmations`]) continue until [`Close`](Self::Close).
    /// [`Event::Drained`](super::Event::Drained) follows when no stream and no association remains.
    Drain,
    /// Resets all streams and ends the thread. [`Event::Stopped`](super::Event::Stopped) is the last event.
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
