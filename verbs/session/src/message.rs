//! Messages between a program and the appliance: one JSON value per packet, at most [`MAX_MESSAGE`] bytes.
//!
//! ```text
//!  program                                        appliance
//!    Hello ------------------------------------------>
//!    <------------------------------------- Welcome     descriptors: arena; per worker: doorbells, wake-ups
//!    RegisterMemory, CreateQueuePair ... ------------>
//!    <------------------ Registered, QueuePair ...      descriptors: memory of the queues
//!    Connect or Listen, Accept ---------------------->
//!    <--------------------------- Done; later: event    Established, Rejected, Disconnected ...
//! ```
//!
//! The program sends a [`Request`]. The appliance answers each with one [`Reply`] that has its number, in any order, and
//! sends [`Event`]s at any time. When the socket is closed, the appliance ends everything that belongs to the program.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Largest message in bytes.
pub const MAX_MESSAGE: usize = 64 << 10;
/// Largest number of descriptors of a message.
pub const MAX_DESCRIPTORS: usize = 250;
/// Largest number of bytes of private data of a connection: 512 (RFC 5044 §7.1) without enhanced data (RFC 6581 §9).
pub const MAX_PRIVATE_DATA: usize = 508;

/// A message of the program.
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
    /// Opens the session: the first message, and only the first. Answered by [`Answer::Welcome`].
    Hello {
        /// Oldest version of the layout that the program can use.
        oldest: u32,
        /// Newest version of the layout that the program can use.
        newest: u32,
        /// Name of the program, for operators: at most 64 characters.
        name: String,
    },
    /// Creates a protection domain. Answered by [`Answer::Created`] with its number.
    CreatePd,
    /// Removes a protection domain without memory regions and QPs. Answered by [`Answer::Done`].
    RemovePd {
        /// Number of the domain.
        pd: u32,
    },
    /// Registers memory of the arena. Answered by [`Answer::Registered`].
    RegisterMemory {
        /// Protection domain.
        pd: u32,
        /// Address of the first byte in the program: the TO of the region's first byte.
        address: u64,
        /// Bytes, at least 1.
        len: u64,
        /// Offset of the first byte in the first of `parts`, below the page size.
        offset: u64,
        /// Parts of the arena in order of address: first byte and byte behind the last, whole pages.
        parts: Vec<(u64, u64)>,
        /// Rights to the region.
        access: MemoryAccess,
    },
    /// Removes a memory region. Answered by [`Answer::Done`] once no worker touches its memory any more.
    DeregisterMemory {
        /// STag of the region.
        stag: u32,
    },
    /// Creates a channel for notifications of completion queues. Answered by [`Answer::Created`] with its number and one
    /// descriptor, which is readable after a notification.
    CreateChannel,
    /// Removes a channel that no completion queue uses. Answered by [`Answer::Done`].
    RemoveChannel {
        /// Number of the channel.
        channel: u32,
    },
    /// Creates a completion queue (CQ). Answered by [`Answer::CompletionQueue`] with one descriptor.
    CreateCompletionQueue {
        /// Completions that the CQ has room for, for each worker; rounded up to a power of two.
        entries: u32,
        /// Channel for notifications.
        channel: Option<u32>,
    },
    /// Removes a CQ that no QP uses. Answered by [`Answer::Done`].
    RemoveCompletionQueue {
        /// Number of the CQ.
        queue: u32,
    },
    /// Creates a queue pair (QP). Answered by [`Answer::QueuePair`] with one descriptor.
    CreateQueuePair {
        /// Protection domain.
        pd: u32,
        /// CQ of the send queue.
        send_completions: u32,
        /// CQ of the receive queue.
        receive_completions: u32,
        /// Posted operations that may be incomplete, at least 1.
        max_sends: u32,
        /// Posted receives that may be incomplete, at least 1.
        max_receives: u32,
        /// True if sources may change before their operation is complete: the appliance keeps copies of sent data.
        copy_sources: bool,
    },
    /// Removes a QP. Its connection is reset. Answered by [`Answer::Done`].
    RemoveQueuePair {
        /// Number of the QP.
        pair: u32,
    },
    /// Opens a connection. Answered by [`Answer::Done`]; an event of the QP follows.
    Connect {
        /// Number of the QP.
        pair: u32,
        /// Local address; `None` or unspecified: the appliance chooses.
        local: Option<IpAddr>,
        /// Address and port of the peer.
        remote: SocketAddr,
        /// Lower layer protocol.
        transport: Transport,
        /// Depths that this side offers (RFC 6581 §9).
        depths: Depths,
        /// Private data, at most [`MAX_PRIVATE_DATA`] bytes.
        private_data: Vec<u8>,
        /// Time-out in milliseconds, at least 1.
        timeout: u32,
    },
    /// Listens for connections. Answered by [`Answer::Listening`]; [`Event::Incoming`] follow.
    Listen {
        /// Local address, possibly unspecified, and port; port 0: the appliance chooses.
        local: SocketAddr,
        /// Lower layer protocol.
        transport: Transport,
        /// Requests that may wait for an answer, at least 1.
        backlog: u32,
    },
    /// Ends a listener. Requests that wait are reset. Answered by [`Answer::Done`].
    StopListening {
        /// Number of the listener.
        listener: u32,
    },
    /// Accepts the connection of [`Event::Incoming`]. Answered by [`Answer::Done`]; an event of the QP follows.
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
    /// Closes a QP's connection gracefully. Answered by [`Answer::Done`]; [`Event::Disconnected`] follows.
    Disconnect {
        /// Number of the QP.
        pair: u32,
    },
}

/// Rights to a memory region.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryAccess {
    /// Receives, Reads and atomics of this side may write to it. Required by `remote_write` and `remote_atomic`.
    pub local_write: bool,
    /// Peers may write.
    pub remote_write: bool,
    /// Peers may read.
    pub remote_read: bool,
    /// Peers may use atomics.
    pub remote_atomic: bool,
}

/// Reads and atomics that a connection may have in flight (RFC 6581 §9).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Depths {
    /// Requests of the peer (IRD).
    pub ird: u16,
    /// Requests of this side (ORD).
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

/// A message of the appliance.
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
    /// The call was carried out.
    Done,
    /// The session is open. Descriptors: the arena; then for each worker the area of its doorbells and the socket that
    /// wakes it.
    Welcome(Welcome),
    /// The object exists.
    Created {
        /// Number of the object.
        number: u32,
    },
    /// The memory region exists.
    Registered {
        /// STag of the region: its lkey and rkey.
        stag: u32,
    },
    /// The CQ exists. One descriptor: its area, with a queue for each worker in order.
    CompletionQueue {
        /// Number of the CQ.
        queue: u32,
        /// Entries of each worker's queue, a power of two.
        capacity: u32,
        /// Offset of each worker's queue in the area, bytes.
        offsets: Vec<u64>,
    },
    /// The QP exists. One descriptor: the area of its rings. Descriptors may be posted at once. The worker takes receives
    /// when the QP has a connection, and sends when it is established.
    QueuePair {
        /// Number of the QP. Its doorbells are `2 * pair` (sends) and `2 * pair + 1` (receives).
        pair: u32,
        /// The send queue.
        sends: Ring,
        /// The receive queue.
        receives: Ring,
    },
    /// The listener exists.
    Listening {
        /// Number of the listener.
        listener: u32,
        /// Address and port of the listener.
        local: SocketAddr,
    },
}

/// A ring in the area of a QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ring {
    /// Offset in the area, bytes.
    pub offset: u64,
    /// Units, a power of two.
    pub capacity: u32,
}

/// First answer of a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Welcome {
    /// Version of the layout.
    pub version: u32,
    /// Number of the program.
    pub program: u32,
    /// Bytes of the arena.
    pub arena: u64,
    /// Number of workers.
    pub workers: u16,
    /// Limits of the program.
    pub limits: Limits,
    /// Devices: the interfaces of the appliance.
    pub devices: Vec<Device>,
}

/// Limits of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// QPs.
    pub queue_pairs: u32,
    /// CQs.
    pub completion_queues: u32,
    /// Memory regions.
    pub memory_regions: u32,
    /// Bytes of all memory regions.
    pub memory_bytes: u64,
    /// Incomplete posts of a send queue, and of a receive queue.
    pub posts: u32,
    /// Entries of a CQ.
    pub completions: u32,
    /// IRD and ORD of a connection.
    pub depths: Depths,
}

/// A device of the appliance.
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

/// Reason why a call was not carried out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// Class of the reason.
    pub kind: RefusalKind,
    /// One sentence.
    pub message: String,
}

/// Class of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// A value of the call is invalid, or the call is not allowed now.
    Invalid,
    /// The object does not exist.
    NotFound,
    /// Other objects use the object, or the address is in use.
    InUse,
    /// A limit of the program is reached.
    Limit,
    /// Memory is not available.
    NoMemory,
    /// The program may not do this.
    NotAllowed,
    /// No route to the peer, or no such local address.
    Unreachable,
    /// The two sides have no version of the layout in common.
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
    /// A connection is established: sends can be posted.
    Established {
        /// Number of the QP.
        pair: u32,
        /// Worker of the connection. The program rings both doorbells of the QP at this worker once.
        worker: u16,
        /// Local address and port.
        local: SocketAddr,
        /// Address and port of the peer.
        remote: SocketAddr,
        /// Depths in effect.
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
        /// One sentence.
        message: String,
    },
    /// A connection has ended. The posts of the QP are flushed.
    Disconnected {
        /// Number of the QP.
        pair: u32,
        /// True if the connection was closed in order, by either side.
        graceful: bool,
        /// One sentence.
        message: String,
    },
    /// A QP has failed because of its posts.
    QueuePairFailed {
        /// Number of the QP.
        pair: u32,
        /// One sentence.
        message: String,
    },
    /// A CQ has failed, and so have its QPs.
    CompletionQueueFailed {
        /// Number of the CQ.
        queue: u32,
        /// One sentence.
        message: String,
    },
}
