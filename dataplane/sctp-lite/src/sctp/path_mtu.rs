//! State of path MTU discovery. `pmtu` processes reports, losses and probes. Sizes are bytes of SCTP packets.

use transport::pmtu::Search;

use super::config::{Config, MIN_PACKET};

/// MTU to fall back to after a black hole over IPv4 (BASE_PLPMTU, RFC 8899 §5.1.2).
const BASE: u16 = 1200;
/// Length of IP headers without options, bytes.
const IPV4: u16 = 20;
const IPV6: u16 = 40;

/// State of path MTU discovery of an association.
#[derive(Debug)]
pub(super) struct PathMtu {
    /// Largest packet of the interface, in use until another size is found.
    pub(super) limit: u16,
    /// Bytes in front of an SCTP packet, IP header included.
    pub(super) headers: u16,
    /// Minimum MTU accepted from a report for an IPv4 path.
    pub(super) min_mtu: u16,
    v6: bool,
    /// Longest packet with data since the last time-out.
    pub(super) longest: u16,
    pub(super) found: Option<Box<Found>>,
}

/// State allocated with the first report or black hole.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) search: Search,
    pub(super) probe: Option<Probe>,
}

/// A probe in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// Nonce that only the answer can contain.
    pub(super) nonce: u64,
    pub(super) len: u16,
}

impl PathMtu {
    /// Starts with packets of `len` bytes, the interface's limit, and no report.
    pub(super) fn new(len: usize, v6: bool, config: &Config) -> Self {
        PathMtu {
            limit: bytes(len),
            headers: if v6 { IPV6 } else { IPV4 },
            min_mtu: config.min_path_mtu,
            v6,
            longest: 0,
            found: None,
        }
    }

    pub(super) fn nothing(&self) -> Search {
        // RFC 5043 §9: room for the least MULPDU, required on any path.
        let least = self.min_mtu.max(self.headers + MIN_PACKET as u16);
        Search::new(self.limit, self.headers, self.v6, least).with_base(BASE)
    }

    /// Returns the least accepted size.
    pub(super) fn floor(&self) -> u16 {
        self.found.as_ref().map_or_else(|| self.nothing().floor(), |found| found.search.floor())
    }

    pub(super) fn found(&mut self) -> &mut Found {
        let search = self.nothing();
        self.found.get_or_insert_with(|| Box::new(Found { search, probe: None }))
    }

    pub(super) fn probe(&self) -> Option<Probe> {
        self.found.as_ref()?.probe
    }

    /// The peer restarted, and does not answer earlier probes. The path is the same.
    pub(super) fn restart(&mut self) {
        self.longest = 0;
        if let Some(found) = &mut self.found {
            found.probe = None;
        }
    }

    /// A packet of `len` bytes with data was sent.
    pub(super) fn data_sent(&mut self, len: usize) {
        self.longest = self.longest.max(bytes(len));
    }

    /// True if the size in use is below the interface's limit.
    pub(super) fn is_reduced(&self) -> bool {
        self.found.as_ref().is_some_and(|found| !found.search.is_at_limit())
    }
}

pub(super) fn bytes(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}
