//! What an association knows of its path's MTU. What reports, losses and probes do to it is in `pmtu`. Sizes are
//! bytes of SCTP packets.

use transport::pmtu::Search;

use super::config::{Config, MIN_PACKET};

/// MTU that is used after a black hole over IPv4 (BASE_PLPMTU, RFC 8899 §5.1.2).
const BASE: u16 = 1200;
/// Bytes of IP headers without options.
const IPV4: u16 = 20;
const IPV6: u16 = 40;

/// What an association knows of its path's MTU.
#[derive(Debug)]
pub(super) struct PathMtu {
    /// What the interface carries, which is in use while nothing else is found.
    pub(super) limit: u16,
    /// Bytes in front of an SCTP packet, those of IP included.
    pub(super) headers: u16,
    /// The least MTU of an IPv4 path that is accepted from a report.
    pub(super) min_mtu: u16,
    v6: bool,
    /// The longest packet with data since the last time-out.
    pub(super) longest: u16,
    pub(super) found: Option<Box<Found>>,
}

/// What was found out.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) search: Search,
    pub(super) probe: Option<Probe>,
}

/// A probe under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// What only its answer can know.
    pub(super) nonce: u64,
    pub(super) len: u16,
}

impl PathMtu {
    /// Nothing is known; packets of `len` bytes are what the interface carries.
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
        // RFC 5043 §9: what the largest DDP segment of any path needs.
        let least = self.min_mtu.max(self.headers + MIN_PACKET as u16);
        Search::new(self.limit, self.headers, self.v6, least).with_base(BASE)
    }

    /// The least size that is accepted.
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

    /// The peer has restarted, and answers nothing from before. The path is the same.
    pub(super) fn restart(&mut self) {
        self.longest = 0;
        if let Some(found) = &mut self.found {
            found.probe = None;
        }
    }

    /// A packet with data went out.
    pub(super) fn data_sent(&mut self, len: usize) {
        self.longest = self.longest.max(bytes(len));
    }

    /// True when something below what the interface carries is in use.
    pub(super) fn is_reduced(&self) -> bool {
        self.found.as_ref().is_some_and(|found| !found.search.is_at_limit())
    }
}

pub(super) fn bytes(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}
