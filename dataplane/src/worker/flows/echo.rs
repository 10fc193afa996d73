//! Answers of the Echo service, and the number of unacknowledged answers.

use ddp::rdmap::WorkRequest;
use ddp::{Message, Qn};
use tcp_lite::endpoint::UlpConfig;

use crate::memory::Memory;

/// An answer of the Echo service: a received message to send back.
#[derive(Clone)]
pub(in crate::worker) enum Answer {
    Rdmap(WorkRequest<Memory>),
    /// An answer over bare DDP. The first field is the queue on which the message was received.
    Ddp(Qn, Message<Memory>),
}

/// Number of unacknowledged answers of the Echo service. Each answer holds the payload of a received message in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worker) struct EchoCount {
    /// Number of receive buffers of all queues. While at most this many answers are unacknowledged, the buffer of an
    /// answered message is reposted at once.
    buffers: u32,
    unacknowledged: u32,
}

impl EchoCount {
    /// Value for a stream without the Echo service.
    pub(in crate::worker) const NONE: EchoCount = EchoCount { buffers: 0, unacknowledged: 0 };

    /// Creates the count for a stream with the receive buffers of `ulp`.
    pub(in crate::worker) fn new(ulp: &UlpConfig) -> EchoCount {
        let buffers = match ulp {
            UlpConfig::Ddp(config) => {
                config.queues.iter().fold(0, |sum: u32, q| sum.saturating_add(q.buffers))
            }
            UlpConfig::Rdmap(config) => config.recv_buffers,
        };
        EchoCount { buffers, ..EchoCount::NONE }
    }

    /// Counts a posted answer. Returns true if a receive buffer may be reposted at once.
    pub(in crate::worker) fn add_answer(&mut self) -> bool {
        self.unacknowledged += 1;
        self.unacknowledged <= self.buffers
    }

    /// Removes an acknowledged answer from the count.
    pub(in crate::worker) fn remove_answer(&mut self) {
        self.unacknowledged = self.unacknowledged.saturating_sub(1);
    }
}
