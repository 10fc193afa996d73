//! Packets of the simulated network: a TCP segment or SCTP packet, the ECN field of its IP header, and its
//! flow.

use link::Frame;

/// Bytes of an IPv4 header, which count against the MTU.
pub const IP_HEADER: usize = 20;
/// Bytes that Ethernet adds on the wire: header, check sequence, preamble and gap.
pub const ETHERNET: usize = 14 + 4 + 8 + 12;

/// The ECN field of an IP header (RFC 3168 §5).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Ecn {
    /// Transport without ECN.
    #[default]
    NotEct,
    /// ECN-capable transport: ECT(0) or ECT(1), which are equivalent.
    Ect,
    /// Congestion experienced.
    Ce,
}

/// Transport protocol of the packets of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// TCP segments, whose checksum the path fills in.
    Tcp,
    /// SCTP packets, complete: no middlebox can cut them, and CRC32c finds hidden damage, too.
    Sctp,
}

/// A packet on a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// TCP segment or SCTP packet, checksum filled in.
    pub bytes: Vec<u8>,
    /// The ECN field.
    pub ecn: Ecn,
    /// Index of the pair of hosts, if several pairs share a link.
    pub flow: usize,
}

impl Frame for Packet {
    /// Bytes on the wire, which determine the serialization time of a slow link.
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

    // RFC 3168 §5: only packets of ECN-capable transports are marked, and a mark is not removed.
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
