//! Messages between a program and the appliance: one JSON value per packet, at most [`MAX_MESSAGE`] bytes.
//!
//! ```text
//!  program                                        appliance
//!    Hello ------------------------------------------>
//!    <------------------------------------- Welcome     descriptors: arena; per worker doorbells, wake-up socket
//!    RegisterMemory, CreateQueuePair ... ------------>
//!    <------------------ Registered, QueuePair ...      descriptors: memory of the queues
//!    Connect or Listen, Accept ---------------------->
//!    <--------------------------- Done; later: event    Established, Rejected, Disconnected ...
//! ```
//!
//! The program sends [`Request`]s. The appliance answers each with one [`Reply`] that repeats its number, in any order,
//! and sends [`Event`]s at any time. When the socket is closed, the appliance removes all objects of the program.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Maximum length of a message, bytes.
pub const MAX_MESSAGE: usize = 64 << 10;
/// Maximum number of file descriptors of a message.
pub const MAX_DESCRIPTORS: usize = 250;
/// Maximum length of the private data of a connection, bytes: 512 (RFC 5044 §7.1) less 4 of enhanced connection data
/// (RFC 6581 §9).
pub const MAX_PRIVATE_DATA: usize = 508;

/// A message from the program to the appliance.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Number of the request, repeated in its reply.
    pub id: u32,
    /// Requested action.
    pub call: Call,
}

/// A call of the program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Call {
    /// Opens the session. Must be the first message, and is refused later. Answered by [`Answer::Welcome`].
    Hello {
        /// Oldest version of the shared-memory layout that the program supports.
        oldest: u32,
        /// Newest version of the shared-memory layout that the program supports.
        newest: u32,
        /// Name of the program, for operators: at most 64 characters, without control characters.
        name: String,
    },
    /// Creates a protection domain. Answered by [`Answer::Created`] with its number.
    CreatePd,
    /// Removes a protection domain without memory regions, memory windows, SRQs and QPs. Answered by [`Answer::Done`].
    RemovePd {
        /// Number of the protection domain.
        pd: u32,
    },
    /// Registers memory of the arena. Answered by [`Answer::Registered`].
    RegisterMemory {
        /// Number of the protection domain.
        pd: u32,
        /// Address of the first byte in the program, which is also the TO of the region's first byte.
        address: u64,
        /// Length of the region, bytes, at least 1.
        len: u64,
        /// Offset of the first byte in the first of `parts`, bytes: `address` modulo the page size.
        offset: u64,
        /// Parts of the arena, in the order of the region's addresses: offset of the first byte, and of the byte after
        /// the last byte. Parts are whole pages.
        parts: Vec<(u64, u64)>,
        /// Access rights of the region.
        access: MemoryAccess,
    },
    /// Removes a memory region to which no memory window is bound. Answered by [`Answer::Done`] once no worker accesses
    /// its memory any more.
    DeregisterMemory {
        /// STag of the region.
        stag: u32,
    },
    /// Allocates a memory window, which is not bound. Answered by [`Answer::Window`].
    AllocateWindow {
        /// Number of the protection domain.
        pd: u32,
        /// Type of the window.
        kind: WindowKind,
    },
    /// Removes a memory window, bound or not. Answered by [`Answer::Done`] once no worker accepts its STag any more.
    DeallocateWindow {
        /// An STag of the window.
        stag: u32,
    },
    /// Creates a channel for notifications of completion queues. Answered by [`Answer::Created`] with its number and
    /// one file descriptor, which becomes readable at a notification.
    CreateChannel,
    /// Removes a channel that no completion queue uses. Answered by [`Answer::Done`].
    RemoveChannel {
        /// Number of the channel.
        channel: u32,
    },
    /// Creates a completion queue (CQ). Answered by [`Answer::CompletionQueue`] with one file descriptor.
    CreateCompletionQueue {
        /// Number of entries of the CQ for each worker, at least 1; rounded up to a power of two.
        entries: u32,
        /// Number of the channel for notifications; `None`: the program polls.
        channel: Option<u32>,
    },
    /// Removes a CQ that no QP uses. Answered by [`Answer::Done`].
    RemoveCompletionQueue {
        /// Number of the CQ.
        queue: u32,
    },
    /// Creates a queue pair (QP). Answered by [`Answer::QueuePair`] with one file descriptor.
    CreateQueuePair {
        /// Number of the protection domain.
        pd: u32,
        /// Number of the CQ of the send queue.
        send_completions: u32,
        /// Number of the CQ of the receive queue.
        receive_completions: u32,
        /// Maximum number of incomplete posted operations, at least 1.
        max_sends: u32,
        /// Maximum number of incomplete posted receives, at least 1.
        max_receives: u32,
        /// True if sources may change before their operation is complete: the appliance keeps copies of sent data.
        copy_sources: bool,
        /// Number of a shared receive queue; `None`: the QP has its own receive queue. With an SRQ, `max_receives`
        /// limits the incomplete receives that the QP has taken, and the number of messages that may arrive out of
        /// order.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shared_receives: Option<u32>,
    },
    /// Creates a shared receive queue (SRQ). Answered by [`Answer::SharedReceiveQueue`] with one file descriptor.
    CreateSharedReceiveQueue {
        /// Number of the protection domain of the receives.
        pd: u32,
        /// Maximum number of posted receives that no QP has taken, at least 1.
        max_receives: u32,
    },
    /// Removes an SRQ that no QP uses. Answered by [`Answer::Done`].
    RemoveSharedReceiveQueue {
        /// Number of the SRQ.
        queue: u32,
    },
    /// Requests one [`Event::SharedReceivesLow`]. A further call replaces the request. Answered by [`Answer::Done`].
    SetReceiveLimit {
        /// Number of the SRQ.
        queue: u32,
        /// The event follows once fewer receives than this limit remain, possibly at once; 0: no event.
        limit: u32,
    },
    /// Removes a QP and resets its connection. Answered by [`Answer::Done`].
    RemoveQueuePair {
        /// Number of the QP.
        pair: u32,
    },
    /// Requests the local address of connections to a peer. Answered by [`Answer::Route`]. Sends no packet.
    Route {
        /// Address of the peer.
        remote: IpAddr,
        /// Address of the interface to use; `None` or unspecified: the appliance chooses the interface.
        local: Option<IpAddr>,
    },
    /// Opens a connection. Answered by [`Answer::Done`] before the connection is established. Then
    /// [`Event::Established`], [`Event::Rejected`] or [`Event::ConnectFailed`] follows.
    Connect(ConnectCall),
    /// Listens for connections. Answered by [`Answer::Listening`]. An [`Event::Incoming`] follows for each connection
    /// request.
    Listen {
        /// Local address, possibly unspecified, and port; port 0: the appliance chooses.
        local: SocketAddr,
        /// Lower layer protocol.
        transport: Transport,
        /// Maximum number of connection requests that wait for an answer, at least 1.
        backlog: u32,
    },
    /// Ends a listener and resets its unanswered connection requests. Answered by [`Answer::Done`].
    StopListening {
        /// Number of the listener.
        listener: u32,
    },
    /// Accepts the connection of [`Event::Incoming`]. Answered by [`Answer::Done`]. Then [`Event::Established`] or
    /// [`Event::ConnectFailed`] follows.
    Accept {
        /// Number of the connection request.
        request: u64,
        /// Number of the QP.
        pair: u32,
        /// Depths that this side offers (RFC 6581 §9).
        depths: Depths,
        /// Private data, at most [`MAX_PRIVATE_DATA`] bytes.
        private_data: Vec<u8>,
    },
    /// Rejects the connection of [`Event::Incoming`]. Answered by [`Answer::Done`].
    Reject {
        /// Number of the connection request.
        request: u64,
        /// Private data, at most [`MAX_PRIVATE_DATA`] bytes.
        private_data: Vec<u8>,
    },
    /// Closes a QP's connection gracefully. Answered by [`Answer::Done`]. [`Event::Disconnected`] follows, unless the
    /// connection has ended before.
    Disconnect {
        /// Number of the QP.
        pair: u32,
    },
    /// Ends a QP that has no established connection, so that its posts are flushed; afterwards it cannot be connected.
    /// A connect or an accept in progress fails: [`Event::ConnectFailed`] follows. Closes an established connection as
    /// [`Call::Disconnect`] does. Answered by [`Answer::Done`]. After this call, and after each later post, the program
    /// rings the doorbells of the QP at all workers, because it does not know which of them flushes the posts.
    EndQueuePair {
        /// Number of the QP.
        pair: u32,
    },
}

/// Parameters of [`Call::Connect`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectCall {
    /// Number of the QP.
    pub pair: u32,
    /// Local address; `None` or unspecified: the appliance chooses.
    pub local: Option<IpAddr>,
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// Lower layer protocol.
    pub transport: Transport,
    /// Kind of the peer, and the model of the start-up.
    #[serde(default)]
    pub start_up: StartUp,
    /// Depths that this side offers (RFC 6581 §9).
    pub depths: Depths,
    /// Private data, at most [`MAX_PRIVATE_DATA`] bytes; fewer for some kinds of peers.
    pub private_data: Vec<u8>,
    /// Time-out in milliseconds, at least 1.
    pub timeout: u32,
}

/// Access rights of a memory region.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryAccess {
    /// True if receives, Reads and atomics of this side may write to the region. Required by `remote_write` and
    /// `remote_atomic`.
    pub local_write: bool,
    /// True if peers may write to the region.
    pub remote_write: bool,
    /// True if peers may read the region.
    pub remote_read: bool,
    /// True if peers may perform atomics on the region.
    pub remote_atomic: bool,
}

/// Type of a memory window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowKind {
    /// Type 1: peers of all QPs of its protection domain may use the window. A new binding replaces the previous one.
    One,
    /// Type 2: only the peer of the QP that binds the window may use it, until either side invalidates it or the
    /// connection ends.
    Two,
}

/// Maximum numbers of Reads and atomics that a connection may have outstanding (RFC 6581 §9).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Depths {
    /// Outstanding requests of the peer (IRD).
    pub ird: u16,
    /// Outstanding requests of this side (ORD).
    pub ord: u16,
}

/// Lower layer protocol (LLP) of a connection.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// MPA over TCP (RFC 5044).
    #[default]
    Tcp,
    /// SCTP (RFC 5043).
    Sctp,
}

/// Options of the start-up of a connection.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartUp {
    /// Kind of the peer.
    pub peer: PeerKind,
    /// True to offer the peer-to-peer model of RFC 6581 §9: the peer may send first, after a ready-to-receive (RTR)
    /// message of this side.
    pub peer_to_peer: bool,
}

/// Kind of the peer's RDMA implementation, by its known deviations from the specifications.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerKind {
    /// A peer that follows the specifications.
    #[default]
    Standard,
    /// Linux's soft iWARP. The connect takes 50 ms longer, because a responding siw does not process an
    /// FPDU that follows its reply immediately. At most 252 bytes of private data.
    Siw,
    /// Chelsio's adapters (T-series). At most 252 bytes of private data.
    Cxgb4,
    /// Intel's adapters.
    Irdma,
    /// A peer of SMB Direct over MPA revision 1.
    SmbDirect,
}

impl PeerKind {
    /// Returns the name, as in configurations and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            PeerKind::Standard => "standard",
            PeerKind::Siw => "siw",
            PeerKind::Cxgb4 => "cxgb4",
            PeerKind::Irdma => "irdma",
            PeerKind::SmbDirect => "smb-direct",
        }
    }
}

/// A message from the appliance to the program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Message {
    /// Answers a request.
    Reply(Reply),
    /// Reports an event.
    Event(Event),
}

/// The answer to a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reply {
    /// Number of the request.
    pub id: u32,
    /// Result of the request.
    pub result: Result<Answer, Refusal>,
}

/// Result of a successful call.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// The call was performed and returns no value.
    Done,
    /// The session is open. File descriptors: the arena; then for each worker the area of its doorbells and the socket
    /// that wakes it.
    Welcome(Welcome),
    /// A protection domain or a channel was created.
    Created {
        /// Number of the object.
        number: u32,
    },
    /// A memory region was registered.
    Registered {
        /// STag of the region, which is both its lkey and its rkey.
        stag: u32,
    },
    /// A memory window was allocated.
    Window {
        /// STag of the window with the key 0. The key is in the lower 8 bits.
        stag: u32,
    },
    /// A CQ was created. One file descriptor: its area, with a queue for each worker, in the order of the workers.
    CompletionQueue {
        /// Number of the CQ.
        queue: u32,
        /// Number of entries of each worker's queue, a power of two.
        capacity: u32,
        /// Offset of each worker's queue in the area, bytes.
        offsets: Vec<u64>,
    },
    /// A QP was created. One file descriptor: the area of its rings. The program may post work at once. The worker
    /// takes receives when the QP has a connection, and sends when the connection is established.
    QueuePair {
        /// Number of the QP. Its doorbells are `2 * pair` (sends) and `2 * pair + 1` (receives).
        pair: u32,
        /// Ring of the send queue.
        sends: Ring,
        /// Ring of the receive queue; `None` with an SRQ.
        receives: Option<Ring>,
    },
    /// An SRQ was created. One file descriptor: the area of its ring. The SRQ has no doorbell: workers take a receive
    /// when a message arrives.
    SharedReceiveQueue {
        /// Number of the SRQ.
        queue: u32,
        /// Ring of the SRQ.
        receives: Ring,
    },
    /// The appliance has a route to the peer.
    Route {
        /// Local address of connections to the peer.
        local: IpAddr,
    },
    /// A listener was created.
    Listening {
        /// Number of the listener.
        listener: u32,
        /// Address and port of the listener. The port is never 0.
        local: SocketAddr,
    },
}

/// A ring in the area of a QP or SRQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ring {
    /// Offset in the area, bytes.
    pub offset: u64,
    /// Capacity in units of 64 bytes, a power of two.
    pub capacity: u32,
}

/// Answer to [`Call::Hello`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Welcome {
    /// Version of the shared-memory layout that both sides use.
    pub version: u32,
    /// Number of the program, not reused within a run of the appliance.
    pub program: u32,
    /// Size of the arena, bytes.
    pub arena: u64,
    /// Number of workers of the appliance.
    pub workers: u16,
    /// Limits that apply to this program.
    pub limits: Limits,
    /// RDMA devices: one for each interface of the appliance.
    pub devices: Vec<Device>,
}

/// Limits of a program, all maxima.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Number of QPs.
    pub queue_pairs: u32,
    /// Number of CQs.
    pub completion_queues: u32,
    /// Number of memory regions and memory windows together. A region made of several parts of the arena counts once
    /// for each part.
    pub memory_regions: u32,
    /// Size of all memory regions, queues and incomplete posts together, bytes.
    pub memory_bytes: u64,
    /// Number of incomplete posts of each send queue, and of each receive queue.
    pub posts: u32,
    /// Number of entries of a CQ for each worker.
    pub completions: u32,
    /// IRD and ORD of a connection.
    pub depths: Depths,
}

/// An RDMA device: an interface of the appliance.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Name of the interface.
    pub name: String,
    /// Addresses of the interface.
    pub addresses: Vec<IpAddr>,
    /// MAC address of the interface's port.
    pub mac: [u8; 6],
    /// MTU of the interface, bytes.
    pub mtu: u32,
}

/// Reason why a call was not performed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// Class of the reason.
    pub kind: RefusalKind,
    /// The reason in one sentence.
    pub message: String,
}

/// Class of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// A value of the call is invalid, or the call is not allowed now.
    Invalid,
    /// The call names an object that does not exist.
    NotFound,
    /// Other objects use the object, or the address is in use.
    InUse,
    /// A limit of the program or of the appliance is reached.
    Limit,
    /// Memory or file descriptors are not available.
    NoMemory,
    /// The program may not attach, or the appliance cannot serve it.
    NotAllowed,
    /// There is no route to the peer, or the local address does not exist.
    Unreachable,
    /// The two sides support no common version of the shared-memory layout.
    Version,
    /// The appliance is draining.
    Draining,
}

/// An event of the appliance.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// A peer requests a connection. [`Call::Accept`] or [`Call::Reject`] answers it.
    Incoming {
        /// Number of the listener.
        listener: u32,
        /// Number of the connection request.
        request: u64,
        /// Local address and port.
        local: SocketAddr,
        /// Address and port of the peer.
        remote: SocketAddr,
        /// The peer's depths, if it sent them (RFC 6581 §9).
        depths: Option<Depths>,
        /// Private data of the connection request.
        private_data: Vec<u8>,
    },
    /// A connection request ended before it was answered.
    RequestEnded {
        /// Number of the connection request.
        request: u64,
    },
    /// A connection is established: sends are performed from now on.
    Established {
        /// Number of the QP.
        pair: u32,
        /// Worker of the connection. The program rings both doorbells of the QP at this worker once, for work that it
        /// has posted before.
        worker: u16,
        /// Local address and port.
        local: SocketAddr,
        /// Address and port of the peer.
        remote: SocketAddr,
        /// IRD and ORD in effect.
        depths: Depths,
        /// Private data of the peer's answer; empty at the accepting side.
        private_data: Vec<u8>,
    },
    /// The peer has rejected the connection.
    Rejected {
        /// Number of the QP.
        pair: u32,
        /// Private data of the rejection.
        private_data: Vec<u8>,
    },
    /// A connection could not be opened.
    ConnectFailed {
        /// Number of the QP.
        pair: u32,
        /// True if the peer does not answer or cannot be reached.
        unreachable: bool,
        /// True if the peer refused the connection or association of the LLP: it has no listener at the remote address
        /// and port.
        #[serde(default)]
        refused: bool,
        /// Cause, one sentence.
        message: String,
    },
    /// A connection has ended. The posts of the QP are flushed.
    Disconnected {
        /// Number of the QP.
        pair: u32,
        /// True if the connection was closed gracefully, by either side.
        graceful: bool,
        /// Cause, one sentence.
        message: String,
    },
    /// A QP has failed because of an invalid post, or because one of its CQs or its SRQ has failed.
    QueuePairFailed {
        /// Number of the QP.
        pair: u32,
        /// Cause, one sentence.
        message: String,
    },
    /// Fewer receives remain in an SRQ than the limit of [`Call::SetReceiveLimit`]. This event removes the limit.
    SharedReceivesLow {
        /// Number of the SRQ.
        queue: u32,
    },
    /// An SRQ has failed because of an invalid post. Its QPs fail, too.
    SharedReceivesFailed {
        /// Number of the SRQ.
        queue: u32,
        /// Cause, one sentence.
        message: String,
    },
    /// A CQ has failed, and so have its QPs.
    CompletionQueueFailed {
        /// Number of the CQ.
        queue: u32,
        /// Cause, one sentence.
        message: String,
    },
}
