//! Notices from a worker's IPsec to the control thread and to auditors, bounded in number.

use std::collections::VecDeque;
use std::time::Duration;

use base::Instant;

use super::{IpsecDrop, Protection, SaId};
use crate::policy::Flow;

/// Maximum number of pending notices. Further notices are only counted.
const MAX_NOTICES: usize = 64;
/// Maximum number of audit events of all kinds per second.
const MAX_AUDITS: u32 = 16;

/// A notice to the control thread, or to an auditor (RFC 4301 §5.2, RFC 4303 §4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A packet needs an SA that does not exist.
    Acquire {
        /// Protection that lacks the SA.
        protection: Protection,
        /// The packet's flow.
        flow: Flow,
    },
    /// The soft lifetime of an SA has expired, or its sequence numbers are nearly exhausted: a successor is needed.
    SoftExpired(SaId),
    /// An SA has ended: its hard lifetime has expired, or its sequence numbers are exhausted.
    HardExpired(SaId),
    /// Fewer than half of a reservation's sequence numbers are left for an SA. Repeated at most once per second, as
    /// long as packets are to be sealed and the reservation is not renewed.
    SequencesLow(SaId),
    /// A packet was dropped for a reason that RFC 4301 and RFC 4303 call auditable.
    Audit {
        /// Reason of the drop.
        reason: IpsecDrop,
        /// SPI of the packet's SA, for ESP packets and for packets opened from them.
        spi: Option<u32>,
        /// Flow of the packet, if the packet could be parsed: from the outer header, or from the inner packet if
        /// the packet was opened.
        flow: Option<Flow>,
        /// Sequence number in the packet, the low 32 bits; `None` for packets in clear.
        sequence: Option<u32>,
    },
}

/// Notices that the control thread has not taken, at most [`MAX_NOTICES`]. Audit events are also limited to
/// [`MAX_AUDITS`] per second. Notices above either limit are dropped and counted in `lost`.
#[derive(Debug)]
pub(super) struct Notices {
    waiting: VecDeque<Notice>,
    /// Time of the first audit event of the current second, and number of audit events since.
    audits: (Instant, u32),
    lost: u64,
}

impl Notices {
    pub(super) fn new() -> Notices {
        Notices { waiting: VecDeque::new(), audits: (Instant::ZERO, 0), lost: 0 }
    }

    pub(super) fn push(&mut self, notice: Notice) {
        if self.waiting.len() < MAX_NOTICES {
            self.waiting.push_back(notice);
        } else {
            self.lost += 1;
        }
    }

    /// Adds the audit event that `notice` creates, if the rate allows one more. Otherwise counts it as lost.
    pub(super) fn audit(&mut self, now: Instant, notice: impl FnOnce() -> Notice) {
        let (begin, count) = self.audits;
        if now - begin >= Duration::from_secs(1) {
            self.audits = (now, 0);
        } else if count >= MAX_AUDITS {
            self.lost += 1;
            return;
        }
        self.audits.1 += 1;
        self.push(notice());
    }

    pub(super) fn pop(&mut self) -> Option<Notice> {
        self.waiting.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }
}
