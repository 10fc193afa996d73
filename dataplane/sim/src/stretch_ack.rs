//! Stretch ACKs: one direction of a path forwards only some of the acknowledgements.
//!
//! A host that merges received segments (GRO, interrupt moderation), or a path that thins acknowledgements, has this
//! effect. A pure acknowledgement without a gap report is held back, and the next such acknowledgement replaces it.
//! The held acknowledgement is forwarded once [`Config::hold`] has passed, directly before a packet of another kind, or
//! when it acknowledges [`Config::segments`] more segments than the last forwarded acknowledgement.

use core::time::Duration;

use base::Instant;
use wire::sctp::{Chunk, Packet as SctpPacket};

use crate::packet::{Packet, Protocol};
use crate::segment::{Flags, Segment};

/// Limits of stretch ACKs: newly acknowledged segments, and hold time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Number of newly acknowledged full segments (over SCTP: chunks) at which an acknowledgement is forwarded.
    pub segments: u32,
    /// Maximum time for which an acknowledgement is held back.
    pub hold: Duration,
}

/// Payload that counts as a full segment, bytes.
const SEGMENT_LEN: u32 = 1400;

/// State of stretch ACKs for one direction of a path.
#[derive(Debug)]
pub struct Stretch {
    config: Config,
    held: Option<(Instant, Packet)>,
    /// Acknowledgement number from which newly acknowledged segments are counted. Initially the number of the first
    /// acknowledgement, later the number of the last acknowledgement forwarded by count or by time.
    last_ack: Option<u32>,
}

/// A pure acknowledgement: its number, and the increase of this number per segment (TCP: 1400 bytes, SCTP: 1 TSN).
struct PureAck {
    number: u32,
    unit: u32,
}

impl Stretch {
    /// Creates the state of a direction. No acknowledgement is held.
    pub fn new(config: Config) -> Self {
        Stretch { config, held: None, last_ack: None }
    }

    /// Returns the time until which an acknowledgement is held; `None` if none is held.
    pub fn next_time(&self) -> Option<Instant> {
        self.held.as_ref().map(|(until, _)| *until)
    }

    /// Returns the held packet if its hold time has expired.
    pub fn expire(&mut self, now: Instant, protocol: Protocol) -> Option<Packet> {
        let (_, packet) = self.held.take_if(|(until, _)| *until <= now)?;
        self.last_ack = PureAck::parse(&packet.bytes, protocol).map(|a| a.number);
        Some(packet)
    }

    /// Processes a packet. Returns the packets to forward now, in order.
    pub fn push(
        &mut self,
        now: Instant,
        packet: Packet,
        protocol: Protocol,
    ) -> [Option<Packet>; 2] {
        let Some(PureAck { number, unit }) = PureAck::parse(&packet.bytes, protocol) else {
            return [self.held.take().map(|(_, packet)| packet), Some(packet)];
        };
        let until = self.held.take().map_or(now + self.config.hold, |(until, _)| until);
        let newly_acked = number.wrapping_sub(*self.last_ack.get_or_insert(number));
        if newly_acked >= self.config.segments * unit || until <= now {
            self.last_ack = Some(number);
            return [Some(packet), None];
        }
        self.held = Some((until, packet));
        [None, None]
    }
}

impl PureAck {
    /// Parses a pure acknowledgement. Returns `None` if the packet carries anything else or reports a gap.
    fn parse(bytes: &[u8], protocol: Protocol) -> Option<PureAck> {
        match protocol {
            Protocol::Tcp => {
                let segment = Segment::parse(bytes)?;
                let pure = segment.flags == Flags::ACK
                    && segment.payload.is_empty()
                    && segment.options.sack.is_empty();
                pure.then_some(PureAck { number: segment.ack, unit: SEGMENT_LEN })
            }
            Protocol::Sctp => {
                let packet = SctpPacket::new(bytes).ok()?;
                let mut chunks = packet.chunks();
                let Chunk::Sack(sack) = Chunk::parse(chunks.next()?.ok()?).ok()? else {
                    return None;
                };
                let pure = chunks.is_empty() && sack.gaps().len() + sack.duplicates().len() == 0;
                pure.then_some(PureAck { number: sack.header.cumulative.0, unit: 1 })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Ecn;

    fn ack(number: u32) -> Packet {
        let segment = Segment { ack: number, flags: Flags::ACK, ..Segment::default() };
        Packet { bytes: segment.emit(), ecn: Ecn::NotEct, flow: 0 }
    }

    fn at(micros: u64) -> Instant {
        Instant::from_micros(1000 + micros)
    }

    #[test]
    fn held_ack_is_forwarded_on_count_time_or_data() {
        let config = Config { segments: 4, hold: Duration::from_micros(20) };
        let mut stretch = Stretch::new(config);
        let mut push = |micros, packet| stretch.push(at(micros), packet, Protocol::Tcp);
        assert_eq!(push(0, ack(0)), [None, None]);
        assert_eq!(push(1, ack(2 * SEGMENT_LEN)), [None, None]);
        assert_eq!(push(2, ack(4 * SEGMENT_LEN)), [Some(ack(4 * SEGMENT_LEN)), None]);
        assert_eq!(push(3, ack(5 * SEGMENT_LEN)), [None, None]);
        let data = Segment { flags: Flags::ACK, payload: vec![1], ..Segment::default() };
        let data = Packet { bytes: data.emit(), ecn: Ecn::NotEct, flow: 0 };
        assert_eq!(push(4, data.clone()), [Some(ack(5 * SEGMENT_LEN)), Some(data)]);
        assert_eq!(push(5, ack(6 * SEGMENT_LEN)), [None, None]);
        assert_eq!(push(6, ack(7 * SEGMENT_LEN)), [None, None]);
        assert_eq!(stretch.next_time(), Some(at(25)));
        assert_eq!(stretch.expire(at(24), Protocol::Tcp), None);
        assert_eq!(stretch.expire(at(25), Protocol::Tcp), Some(ack(7 * SEGMENT_LEN)));
    }
}
