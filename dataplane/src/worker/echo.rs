//! What an Echo has to send back, and how many of its answers are not acknowledged.

use ddp::rdmap::WorkRequest;
use ddp::{Message, Qn};
use tcp_lite::endpoint::UlpConfig;

use crate::memory::Memory;

/// What an Echo sends back.
#[derive(Clone)]
pub(super) enum Answer {
    /// Over RDMAP.
    Rdmap(WorkRequest<Memory>),
    /// Over bare DDP, to a message of this queue.
    Ddp(Qn, Message<Memory>),
}

/// The answers of an Echo that are not acknowledged: they hold what the peer sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Echoed {
    /// Buffers of all queues, which is how many answers hold their bytes beside them.
    buffers: u32,
    unacknowledged: u32,
}

impl Echoed {
    /// Of a stream without an Echo.
    pub(super) const NOTHING: Echoed = Echoed { buffers: 0, unacknowledged: 0 };

    /// Of a stream with the queues of `ulp`.
    pub(super) fn of(ulp: &UlpConfig) -> Echoed {
        let buffers = match ulp {
            UlpConfig::Ddp(config) => {
                config.queues.iter().fold(0, |sum: u32, q| sum.saturating_add(q.buffers))
            }
            UlpConfig::Rdmap(config) => config.recv_buffers,
        };
        Echoed { buffers, ..Echoed::NOTHING }
    }

    /// An answer is posted; returns whether to post a buffer again at once.
    pub(super) fn posted(&mut self) -> bool {
        self.unacknowledged += 1;
        self.unacknowledged <= self.buffers
    }

    /// The oldest is acknowledged.
    pub(super) fn acknowledged(&mut self) {
        self.unacknowledged = self.unacknowledged.saturating_sub(1);
    }
}
