//! What others should know of a worker's IPsec, of which a bounded number is kept.

use std::collections::VecDeque;
use std::time::Duration;

use base::Instant;

use super::{Drop, Protection, SaId};
use crate::policy::Flow;

/// Notices that wait at most; what comes then is only counted.
const NOTICES: usize = 64;
/// Audit events of all kinds in a second at most.
const AUDITS: u32 = 16;

/// Something that the control thread, or an auditor (RFC 4301 §5.2, RFC 4303 §4), is to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A packet needs an SA that there is not.
    Wanted {
        /// Of this protection.
        protection: Protection,
        /// The packet's flow.
        flow: Flow,
    },
    /// The soft lifetime of an SA has ended, or its sequence numbers will soon: it is time for another.
    Soft(SaId),
    /// An SA is over: its hard lifetime has ended, or its sequence numbers are used up.
    Over(SaId),
    /// Fewer than half of the sequence numbers are left that are reserved for an SA.
    Reserve(SaId),
    /// A packet was dropped in a way that RFC 4301 and RFC 4303 call auditable.
    Audit {
        /// Why.
        why: Drop,
        /// The SA, if it came by one.
        spi: Option<u32>,
        /// Its addresses and ports, if they could be read; of what came by an SA those outside.
        flow: Option<Flow>,
        /// Its sequence number as it stands in the packet.
        sequence: Option<u32>,
    },
}

/// Notices that wait.
#[derive(Debug)]
pub(super) struct Notices {
    waiting: VecDeque<Notice>,
    /// Audits in the second that began then.
    audits: (Instant, u32),
    lost: u64,
}

impl Notices {
    pub(super) fn new() -> Notices {
        Notices { waiting: VecDeque::new(), audits: (Instant::ZERO, 0), lost: 0 }
    }

    pub(super) fn push(&mut self, notice: Notice) {
        if self.waiting.len() < NOTICES {
            self.waiting.push_back(notice);
        } else {
            self.lost += 1;
        }
    }

    /// An audit event, made by `notice` if the rate allows one more.
    pub(super) fn audit(&mut self, now: Instant, notice: impl FnOnce() -> Notice) {
        let (begin, told) = self.audits;
        if now - begin >= Duration::from_secs(1) {
            self.audits = (now, 0);
        } else if told >= AUDITS {
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
