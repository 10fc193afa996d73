//! Packets of the simulated network: a TCP segment or SCTP packet, its flow, and the ECN field of its IP header.

use link::Frame;

pub use ::dialogue::segment::Ecn;

/// Length of an IPv4 header, bytes; counts against the MTU.
pub const IP_HEADER: usize = 20;
/// Bytes that Ethernet adds on the wire: header, check sequence, preamble and gap.
pub const ETHERNET: usize = 14 + 4 + 8 + 12;

/// Transport protocol of the packets of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// TCP segments. The path computes their checksum.
    Tcp,
    /// SCTP packets, complete with checksum. They bypass hidden damage and the middlebox of a [path](crate::path).
    Sctp,
}

/// A packet on a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// TCP segment or SCTP packet with its checksum.
    pub bytes: Vec<u8>,
    /// ECN field of the packet's IP header.
    pub ecn: Ecn,
    /// Index of the pair of hosts if several pairs share a link; otherwise 0.
    pub flow: usize,
}

impl Frame for Packet {
    /// Returns the bytes on the wire, which determine the serialization time on a slow link.
    fn len(&self) -> usize {
        self.bytes.len() + IP_HEADER + ETHERNET
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn duplicate(&self) -> Option<Self> {
        Some(self.clone())
    }

    fn mark(&mut self) -> bool {
        let understood = self.ecn != Ecn::NotEct;
        if understood {
            self.ecn = Ecn::Ce;
        }
        understood
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 3168 §5: only packets of ECN-capable transports are marked, and a mark is never removed.
    #[test]
    fn only_ect_packets_are_ce_marked() {
        let marked = |ecn| {
            let mut packet = Packet { bytes: vec![0; 20], ecn, flow: 0 };
            (packet.mark(), packet.ecn)
        };
        assert_eq!(marked(Ecn::NotEct), (false, Ecn::NotEct));
        assert_eq!(marked(Ecn::Ect), (true, Ecn::Ce));
        assert_eq!(marked(Ecn::Ce), (true, Ecn::Ce));
    }
}
