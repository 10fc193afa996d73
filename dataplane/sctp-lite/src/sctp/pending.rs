//! Chunks that an association has to send, other than DATA and SACK: due control chunks and replies.

use base::Instant;

use super::config::Config;
use super::error_causes::Causes;
use super::listener::InitAck;
use super::secrets::{Ends, Secrets};
use super::single_chunk::{SendOutcome, SingleChunkPacket};
use crate::seam::TxBatch;

/// Control chunks due to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct DueChunks {
    /// True if INIT or COOKIE ECHO is due.
    pub(super) setup: bool,
    pub(super) cookie_ack: bool,
    pub(super) heartbeat: bool,
    /// True if SHUTDOWN or SHUTDOWN ACK is due.
    pub(super) shutdown: bool,
}

impl DueChunks {
    pub(super) const NONE: DueChunks =
        DueChunks { setup: false, cookie_ack: false, heartbeat: false, shutdown: false };
}

/// Replies that wait for room in a packet, and the last packet of a closed association.
#[derive(Debug, Default)]
pub(super) struct PendingReplies {
    /// Reply in a separate packet, independent of the association's current state.
    pub(super) reply: Option<Box<Reply>>,
    /// Last packet of a closed association: an ABORT or SHUTDOWN COMPLETE.
    pub(super) last_packet: Option<Box<SingleChunkPacket>>,
    /// Error causes for an ERROR chunk.
    pub(super) causes: Causes,
    /// Values of the peer's HEARTBEATs to acknowledge.
    pub(super) heartbeats: Vec<Box<[u8]>>,
}

impl PendingReplies {
    /// Drops the pending replies, but not the last packet.
    pub(super) fn drop_replies(&mut self) {
        self.reply = None;
        self.causes.clear();
        self.heartbeats = Vec::new();
    }
}

/// A reply in a separate packet, because its tag may differ from the association's tag.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// INIT ACK, in reply to an INIT.
    InitAck(InitAck),
    /// A packet of one chunk.
    Chunk(SingleChunkPacket),
}

impl Reply {
    pub(super) fn send(
        &self,
        secrets: &Secrets,
        config: &Config,
        ends: &Ends,
        now: Instant,
        tx: &mut impl TxBatch,
    ) -> SendOutcome {
        match self {
            Reply::InitAck(answer) => answer.send(secrets, config, ends, now, tx),
            Reply::Chunk(chunk) => chunk.send(ends, tx),
        }
    }
}
