//! What the simulated network carries: a TCP segment, the congestion field of its IP header, and whose
//! it is.

use link::Frame;

/// Bytes of an IPv4 header, which count against the MTU.
pub const IP_HEADER: usize = 20;
/// Bytes that Ethernet adds on the wire: header, check sequence, preamble and gap.
pub const ETHERNET: usize = 14 + 4 + 8 + 12;

/// The ECN field of an IP header (RFC 3168 §5).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Ecn {
    /// The ends do not understand congestion marks.
    #[default]
    NotEct,
    /// They do: ECT(0), or ECT(1), which means the same.
    Ect,
    /// Congestion was met.
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
    /// The TCP segment, checksum filled in.
    pub bytes: Vec<u8>,
    /// The ECN field.
    pub ecn: Ecn,
    /// Which pair of hosts it belongs to, where several share a link.
    pub flow: usize,
}

impl Frame for Packet {
    /// Bytes on the wire: what a slow link is busy with.
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

    // RFC 3168 §5: only packets of ends that understand it are marked, and a mark stays.
    #[test]
    fn only_what_says_so_is_marked() {
        let marked = |ecn| {
            let mut packet = Packet { bytes: vec![0; 20], ecn, flow: 0 };
            (packet.mark(), packet.ecn)
        };
        assert_eq!(marked(Ecn::NotEct), (false, Ecn::NotEct));
        assert_eq!(marked(Ecn::Ect), (true, Ecn::Ce));
        assert_eq!(marked(Ecn::Ce), (true, Ecn::Ce));
    }
}
