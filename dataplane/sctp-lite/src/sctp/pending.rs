//! Stands for the send half until it lands: nothing is sent.
use core::time::Duration;
use wire::Instant;
use wire::sctp::{PacketBuilder, Sack, Tsn};

use crate::seam::MessageSource;

/// The parameters of the send half.
#[derive(Clone, Debug)]
pub struct SendConfig {
    /// RTO.Initial.
    pub initial_rto: Duration,
    /// RTO.Min.
    pub min_rto: Duration,
    /// RTO.Max.
    pub max_rto: Duration,
}

impl Default for SendConfig {
    fn default() -> Self {
        SendConfig {
            initial_rto: Duration::from_secs(1),
            min_rto: Duration::from_millis(200),
            max_rto: Duration::from_secs(60),
        }
    }
}

/// What an acknowledgement brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acknowledged {
    /// Something new.
    Progress,
    /// Nothing new.
    Nothing,
    /// Older than one before.
    Stale,
    /// Something that was never sent.
    NeverSent,
}

/// The send half of an association.
#[derive(Debug)]
pub struct Sender {
    next: Tsn,
    packet_len: usize,
    rto: Duration,
}

impl Sender {
    /// New.
    pub fn new(
        config: &SendConfig,
        initial_tsn: Tsn,
        _a_rwnd: u32,
        packet_len: usize,
        _now: Instant,
    ) -> Sender {
        Sender { next: initial_tsn, packet_len, rto: config.initial_rto }
    }

    /// A SACK.
    pub fn sack(
        &mut self,
        _now: Instant,
        sack: &Sack<'_>,
        source: &mut impl MessageSource,
    ) -> Acknowledged {
        self.cumulative(_now, sack.header.cumulative, source)
    }

    /// The cumulative TSN of a SHUTDOWN.
    pub fn cumulative(
        &mut self,
        _now: Instant,
        tsn: Tsn,
        _source: &mut impl MessageSource,
    ) -> Acknowledged {
        if tsn.add(1) == self.next { Acknowledged::Nothing } else { Acknowledged::NeverSent }
    }

    /// Adds DATA chunks to a packet.
    pub fn fill(
        &mut self,
        _now: Instant,
        _packet: &mut PacketBuilder<'_>,
        _source: &mut impl MessageSource,
    ) {
    }

    /// True when `fill` would add something to an empty packet.
    pub fn is_ready(&self, _now: Instant, _source: &impl MessageSource) -> bool {
        false
    }

    /// True when everything that was sent is acknowledged.
    pub fn is_idle(&self) -> bool {
        true
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Time has passed: true when T3 has expired without an answer.
    pub fn handle_timeout(&mut self, _now: Instant, _source: &mut impl MessageSource) -> bool {
        false
    }

    /// A round trip measured by other means.
    pub fn measured(&mut self, rtt: Duration) {
        self.rto = (rtt * 3).max(Duration::from_millis(200));
    }

    /// RTO now.
    pub fn rto(&self) -> Duration {
        self.rto
    }

    /// The path carries packets of `len` octets from now on.
    pub fn set_packet_len(&mut self, len: usize) {
        self.packet_len = len;
    }

    /// Most octets of a packet.
    pub fn packet_len(&self) -> usize {
        self.packet_len
    }
}
