//! Chunks other than DATA that an association has to send: those due, and answers.

use base::Instant;

use super::config::Config;
use super::error_causes::Causes;
use super::listener::InitAck;
use super::secrets::{Ends, Secrets};
use super::single_chunk::{SendOutcome, SingleChunkPacket};
use crate::seam::TxBatch;

/// Chunks due to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct DueChunks {
    /// INIT or COOKIE ECHO.
    pub(super) setup: bool,
    pub(super) cookie_ack: bool,
    pub(super) heartbeat: bool,
    /// SHUTDOWN or SHUTDOWN ACK.
    pub(super) shutdown: bool,
}

impl DueChunks {
    pub(super) const NONE: DueChunks =
        DueChunks { setup: false, cookie_ack: false, heartbeat: false, shutdown: false };
}

/// Answers that wait for a packet, and the last packet.
#[derive(Debug, Default)]
pub(super) struct PendingReplies {
    /// A packet independent of the association's present state.
    pub(super) reply: Option<Box<Reply>>,
    /// The last packet.
    pub(super) last_packet: Option<Box<SingleChunkPacket>>,
    /// Error causes for an ERROR chunk.
    pub(super) causes: Causes,
    /// Values of HEARTBEATs to answer.
    pub(super) heartbeats: Vec<Box<[u8]>>,
}

impl PendingReplies {
    /// Drops all waiting answers.
    pub(super) fn drop_replies(&mut self) {
        self.reply = None;
        self.causes.clear();
        self.heartbeats = Vec::new();
    }
}

/// An answer with another tag or state than the association's, in a packet of its own.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// INIT ACK, in answer to an INIT.
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
