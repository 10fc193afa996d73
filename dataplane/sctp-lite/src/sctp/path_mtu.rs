//! State of path MTU discovery. `path_mtu_discovery` processes reports, losses and probes. Sizes are bytes of SCTP
//! packets.

use transport::pmtu::PmtuSearch;

use super::config::{Config, MIN_PACKET};

/// MTU to fall back to after a black hole over IPv4, bytes (BASE_PLPMTU, RFC 8899 §5.1.2).
const BASE: u16 = 1200;
/// Length of IP headers without options, bytes.
const IPV4_HEADER_LEN: u16 = 20;
const IPV6_HEADER_LEN: u16 = 40;

/// State of path MTU discovery of an association.
#[derive(Debug)]
pub(super) struct PathMtu {
    /// Largest SCTP packet of the interface, in use until discovery finds another size.
    pub(super) limit: u16,
    /// Bytes in front of an SCTP packet, IP header included.
    pub(super) headers_len: u16,
    /// Minimum MTU accepted from a report for an IPv4 path, bytes.
    pub(super) min_mtu: u16,
    v6: bool,
    /// Length of the longest packet with data sent since the last time-out, bytes.
    pub(super) longest_since_timeout: u16,
    pub(super) discovery: Option<Box<MtuDiscovery>>,
}

/// State of the search, allocated at the first report, black hole or size known from another association.
#[derive(Debug)]
pub(super) struct MtuDiscovery {
    pub(super) search: PmtuSearch,
    pub(super) probe: Option<Probe>,
}

/// A probe in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// Nonce of the HEARTBEAT in the probe.
    pub(super) nonce: u64,
    /// Length of the probe, bytes.
    pub(super) len: u16,
}

impl PathMtu {
    /// Creates the state. `len`: the interface's limit, which is in use at first.
    pub(super) fn new(len: usize, v6: bool, config: &Config) -> Self {
        PathMtu {
            limit: clamp_len(len),
            headers_len: if v6 { IPV6_HEADER_LEN } else { IPV4_HEADER_LEN },
            min_mtu: config.min_path_mtu,
            v6,
            longest_since_timeout: 0,
            discovery: None,
        }
    }

    pub(super) fn initial_search(&self) -> PmtuSearch {
        // RFC 5043 §9: a packet always has room for the minimum MULPDU.
        let min_mtu = self.min_mtu.max(self.headers_len + MIN_PACKET as u16);
        PmtuSearch::new(self.limit, self.headers_len, self.v6, min_mtu).with_base(BASE)
    }

    /// Returns the smallest packet size that discovery adopts.
    pub(super) fn floor(&self) -> u16 {
        self.discovery
            .as_ref()
            .map_or_else(|| self.initial_search().floor(), |found| found.search.floor())
    }

    pub(super) fn discovery_mut(&mut self) -> &mut MtuDiscovery {
        let search = self.initial_search();
        self.discovery.get_or_insert_with(|| Box::new(MtuDiscovery { search, probe: None }))
    }

    pub(super) fn probe(&self) -> Option<Probe> {
        self.discovery.as_ref()?.probe
    }

    /// Processes a restart of the peer, which does not answer earlier probes. The path is unchanged.
    pub(super) fn restart(&mut self) {
        self.longest_since_timeout = 0;
        if let Some(found) = &mut self.discovery {
            found.probe = None;
        }
    }

    /// Records the transmission of a packet of `len` bytes with data.
    pub(super) fn on_data_sent(&mut self, len: usize) {
        self.longest_since_timeout = self.longest_since_timeout.max(clamp_len(len));
    }

    /// Returns true if the size in use is below the interface's limit.
    pub(super) fn is_reduced(&self) -> bool {
        self.discovery.as_ref().is_some_and(|found| !found.search.is_at_limit())
    }
}

pub(super) fn clamp_len(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}
