//! Events from a worker to the control thread.

use std::net::{IpAddr, SocketAddr};

use ddp::rdmap::{self, Outcome, Terminate};
use ddp::{Msn, Qn, Stag, StreamId, TaggedOffset};
use tcp_lite::mpa::{EnhancedRepr, Revision};

use super::association::{AssociationInfo, AssociationStats};
use super::failure::{CommandError, ConnectError, PostFailure};
use super::flow::Stall;
use super::handshake::{FailedHandshake, HandshakeCount};
use super::info::{NeighbourInfo, StreamInfo};
use super::ipsec::{IpsecNotice, SaInfo};
use super::load::LoadReport;
use super::program::ProgramEvent;
use super::recording::Recording;
use super::transport::{CloseReason, StreamParams, StreamStats};
use crate::ids::{InterfaceId, ListenerId, PortId, Ticket, WorkerId};

/// An event of a worker. No event is lost: while the event ring is nearly full, the worker reads no commands, and
/// streams with many unread events are paused. `worker/link/event_queue.rs` lists the bound for each kind of event.
#[derive(Debug)]
pub enum Event {
    /// A peer requests a stream, which waits for [`Command::Accept`](super::Command::Accept) or
    /// [`Command::Reject`](super::Command::Reject).
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
    /// Answers [`Command::ListSas`](super::Command::ListSas).
    Sas {
        /// The ticket of the [`Command::ListSas`](super::Command::ListSas).
        ticket: Ticket,
        /// The SAs, without keys.
        sas: Vec<SaInfo>,
    },
    /// A stream is established: both ends can post messages.
    Established {
        /// Identifier of the stream.
        stream: StreamId,
        /// The ticket of the [`Command::Connect`](super::Command::Connect); `None` for accepted streams.
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
        /// The ticket of the [`Command::Connect`](super::Command::Connect).
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
    /// An untagged message of bare DDP is delivered. [`Command::PostBuffers`](super::Command::PostBuffers) reposts its
    /// buffer.
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
    /// An RDMAP Send is delivered, as is all earlier data of the peer.
    /// [`Command::PostBuffers`](super::Command::PostBuffers) reposts its buffer.
    Received {
        /// Stream that received the Send.
        stream: StreamId,
        /// Content of the message.
        data: Vec<u8>,
        /// True if the peer requests a solicited event.
        solicited: bool,
        /// Region that the peer has invalidated. This worker places no more data in the region. The control thread
        /// must remove the region from all workers.
        invalidated: Option<Stag>,
    },
    /// RDMAP Immediate Data is delivered, as is all earlier data of the peer.
    /// [`Command::PostBuffers`](super::Command::PostBuffers) reposts its buffer.
    Immediate {
        /// Stream that received the data.
        stream: StreamId,
        /// The eight bytes of data.
        data: [u8; 8],
        /// True if the peer requests a solicited event.
        solicited: bool,
    },
    /// The peer has invalidated a region by a Send on a stream with [`Service::Echo`](super::Service::Echo) or
    /// [`Service::Sink`](super::Service::Sink). This worker places no more data in the region. The control thread must
    /// remove the region from all workers.
    Invalidated {
        /// Stream that received the invalidation.
        stream: StreamId,
        /// Invalidated region.
        stag: Stag,
    },
    /// The peer sent an RDMA Read of length zero to request confirmation that its data was processed.
    /// [`Command::ReleaseRead`](super::Command::ReleaseRead) answers the Read. All events of earlier data precede this
    /// event.
    ReadHeld {
        /// Stream of the Read.
        stream: StreamId,
    },
    /// Answers [`Command::AnnounceClose`](super::Command::AnnounceClose). All events of data that the close will
    /// confirm precede this event.
    Confirming {
        /// Stream to be closed.
        stream: StreamId,
    },
    /// The peer of a stream that holds confirmations ([`ddp::StreamConfig::set_hold_confirmations`]) has sent nothing
    /// for the idle time-out. The control thread must end the stream with [`Command::Close`](super::Command::Close).
    Idle {
        /// Stream whose idle time-out has expired.
        stream: StreamId,
    },
    /// An RDMAP operation is complete.
    Completed {
        /// Stream that performed the operation.
        stream: StreamId,
        /// The ticket of the [`Command::PostRdmap`](super::Command::PostRdmap).
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
    /// A Terminate was sent or received. Each direction has at most one Terminate. [`Event::Closed`] follows.
    Terminated {
        /// Terminated stream.
        stream: StreamId,
        /// True if the peer sent the Terminate.
        by_peer: bool,
        /// Content of the Terminate.
        terminate: Terminate,
    },
    /// A connect with MPA revision 2 failed because the peer closed the connection or does not support revision 2. The
    /// worker makes a second attempt with revision 1, whose result answers the
    /// [`Command::Connect`](super::Command::Connect).
    Retrying {
        /// The ticket of the [`Command::Connect`](super::Command::Connect).
        ticket: Ticket,
        /// Reason why the first attempt ended.
        reason: CloseReason,
    },
    /// The peer's LLP has acknowledged the whole message.
    Sent {
        /// Stream that sent the message.
        stream: StreamId,
        /// The ticket of the [`Command::Post`](super::Command::Post).
        ticket: Ticket,
    },
    /// A message or operation was refused, or will not be completed.
    PostFailed {
        /// Stream to which the message was posted.
        stream: StreamId,
        /// The ticket of the [`Command::Post`](super::Command::Post) or
        /// [`Command::PostRdmap`](super::Command::PostRdmap).
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
    /// [`Command::Close`](super::Command::Close) or [`Command::Fail`](super::Command::Fail) must end the stream within
    /// [`half_closed_timeout`](ddp::EndpointPolicy::half_closed_timeout). Streams with
    /// [`Service::Sink`](super::Service::Sink) or [`Service::Echo`](super::Service::Echo) are closed by the worker.
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
        /// The ticket of the [`Command::Load`](super::Command::Load).
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
    /// A part of the answer to [`Command::ListStreams`](super::Command::ListStreams).
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
    /// Flight recordings. Answers [`Command::ListRecordings`](super::Command::ListRecordings), or precedes the
    /// [`Event::Closed`] of a stream that did not end gracefully.
    Recordings {
        /// The ticket of the command; `None` if the event is not an answer.
        ticket: Option<Ticket>,
        /// With a ticket: recordings of the requested streams that have not ended. Without: the recording of the stream
        /// that ends.
        recordings: Vec<Recording>,
    },
    /// Answers [`Command::ListNeighbours`](super::Command::ListNeighbours).
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
    /// the checksums. All frames of this host are dropped.
    UnfinishedChecksums {
        /// Port on which the frames arrive.
        port: PortId,
        /// IP address of the host.
        source: IpAddr,
    },
    /// A stream makes no progress: the peer answers neither data nor window probes. [`Event::Resumed`] or
    /// [`Event::Closed`] follows.
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
    /// An event about a local program: the failure of a QP, CQ or SRQ (reported once per object), the limit of an SRQ,
    /// or a request to bind a window.
    Program(ProgramEvent),
    /// Answers [`Command::Drain`](super::Command::Drain): no stream or association remains.
    Drained,
    /// Answers [`Command::Stop`](super::Command::Stop): the thread ends.
    Stopped,
    /// The worker's thread has panicked, and its streams are lost. No further event of the worker follows.
    Failed {
        /// Identifier of the worker.
        worker: WorkerId,
        /// Message of the panic.
        message: String,
    },
}
