//! Peers that deviate from the specifications.
//!
//! | peer | private data, bytes | markers | ready-to-receive message | other |
//! |---|---|---|---|---|
//! | standard | 512 | yes | Write, Read, Send | |
//! | siw (Linux's soft iWARP) | 252 | rejects a request for them | Write, Read; STag 1 | its own layout of Terminates |
//! | cxgb4 (Chelsio T-series) | 252 | yes | Read, Write; refuses STag 0 | |
//! | irdma (Intel) | 512 | yes | Read, Write | |
//! | smb-direct | 512 | yes | none | its own IRD and ORD in revision 1 |
//!
//! FPDUs directly after a start-up frame are handled alike for all kinds of peers. This end never sends them: an
//! initiator waits for the reply, a responder for the initiator's first FPDU (RFC 5044 §7.1.2 (3), (4)). siw would
//! reset the connection on such FPDUs. Such FPDUs of a peer are always accepted.

use ddp::Stag;
use ddp::enhanced::Rtr;
use wire::mpa::MAX_PRIVATE_DATA;

/// Maximum ULP private data for siw and Chelsio, bytes: 256 less 4 of enhanced data.
const SMALL_PRIVATE_DATA: usize = 252;

/// Kind of peer, by its deviations from the specifications.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Peer {
    /// A peer that follows the specifications.
    #[default]
    Standard,
    /// Linux's soft iWARP (siw).
    Siw,
    /// Chelsio's adapters (T-series).
    Cxgb4,
    /// Intel's adapters.
    Irdma,
    /// SMB Direct over revision 1. Its private data begins with IRD and ORD, 32 bits each.
    SmbDirect,
}

impl Peer {
    /// All kinds of peers.
    pub const ALL: [Peer; 5] =
        [Peer::Standard, Peer::Siw, Peer::Cxgb4, Peer::Irdma, Peer::SmbDirect];

    /// Returns the name used in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Peer::Standard => "standard",
            Peer::Siw => "siw",
            Peer::Cxgb4 => "cxgb4",
            Peer::Irdma => "irdma",
            Peer::SmbDirect => "smb-direct",
        }
    }

    /// Returns the kind with this name; `None` if there is none.
    pub fn from_name(name: &str) -> Option<Peer> {
        Peer::ALL.into_iter().find(|peer| peer.name() == name)
    }

    /// Returns the maximum bytes of ULP private data that the peer accepts.
    pub const fn private_data_limit(self) -> usize {
        match self {
            Peer::Siw | Peer::Cxgb4 => SMALL_PRIVATE_DATA,
            Peer::Standard | Peer::Irdma | Peer::SmbDirect => MAX_PRIVATE_DATA,
        }
    }

    /// Returns true if the peer accepts a request for markers (bit M).
    pub const fn has_markers(self) -> bool {
        !matches!(self, Peer::Siw)
    }

    /// Returns the STag of a ready-to-receive RDMA Write, and of the sink buffer in a ready-to-receive RDMA Read. The
    /// message has no payload, so the STag need not be valid (RFC 5041 §5.2). Chelsio's adapters refuse 0 nevertheless.
    pub const fn rtr_stag(self) -> Stag {
        match self {
            Peer::Siw | Peer::Cxgb4 => Stag(1),
            Peer::Standard | Peer::Irdma | Peer::SmbDirect => Stag(0),
        }
    }

    /// Returns the ready-to-receive messages, in the initiator's order of preference for this peer.
    pub const fn rtr_preference(self) -> [Rtr; 3] {
        match self {
            Peer::Cxgb4 | Peer::Irdma => [Rtr::Read, Rtr::Write, Rtr::Send],
            Peer::Standard | Peer::Siw | Peer::SmbDirect => [Rtr::Write, Rtr::Read, Rtr::Send],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_names_round_trip() {
        for peer in Peer::ALL {
            assert_eq!(Peer::from_name(peer.name()), Some(peer));
        }
        assert_eq!(Peer::from_name("mellanox"), None);
    }

    #[test]
    fn peer_profiles_match_observed_requirements() {
        let limits = Peer::ALL.map(Peer::private_data_limit);
        assert_eq!(limits, [512, 252, 252, 512, 512]);
        let stags = Peer::ALL.map(Peer::rtr_stag);
        assert_eq!(stags, [Stag(0), Stag(1), Stag(1), Stag(0), Stag(0)]);
        let markers = Peer::ALL.map(Peer::has_markers);
        assert_eq!(markers, [true, false, true, true, true]);
        assert_eq!(Peer::Irdma.rtr_preference()[0], Rtr::Read);
        assert_eq!(Peer::Siw.rtr_preference()[0], Rtr::Write);
    }
}
