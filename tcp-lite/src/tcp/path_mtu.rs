//! State of a connection's path MTU. `path_mtu_discovery` processes reports, losses and probes.

use transport::pmtu::PmtuSearch;
use transport::seq::SeqNumber;

use super::segment::HEADER_LEN;

/// Lengths of IP headers without options, in bytes.
const IPV4_HEADER_LEN: u16 = 20;
const IPV6_HEADER_LEN: u16 = 40;

/// Result of a report that a packet was too big (ICMP).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TooBigOutcome {
    /// The report was applied: segments are smaller from now on, or a probe is abandoned.
    Applied,
    /// The report is stored, and applied if the reported segment is lost.
    Stored,
    /// The reported size is not below the current one.
    NotSmaller,
    /// The reported segment is not in flight: never sent, or already acknowledged.
    NotInFlight,
    /// The MTU is below the accepted minimum, or not below the size of the reported segment.
    BadSize,
}

/// State of a connection's path MTU.
#[derive(Debug)]
pub(crate) struct PathMtu {
    /// Lesser MSS of the interface and the peer. In use until `discovery` is allocated.
    limit: u16,
    /// Smallest MTU of an IPv4 path that is accepted from a report, bytes.
    min_mtu: u16,
    v6: bool,
    pub(super) discovery: Option<Box<MtuDiscovery>>,
}

/// Search for the path MTU. Allocated with the first report, loss or MSS from another stream.
#[derive(Debug)]
pub(super) struct MtuDiscovery {
    pub(super) search: PmtuSearch,
    /// Unproven report: MSS, and sequence number of the reported segment.
    pub(super) pending_report: Option<(u16, SeqNumber)>,
    /// Probe in flight: first sequence number and payload length.
    pub(super) probe: Option<(SeqNumber, u16)>,
}

impl PathMtu {
    /// Creates the state without a search. `mss` is the interface's MSS.
    pub(crate) fn new(mss: u16, v6: bool, min_mtu: u16) -> Self {
        PathMtu { limit: mss, min_mtu, v6, discovery: None }
    }

    /// Limits the MSS to the peer's.
    pub(crate) fn limit_to(&mut self, mss: u16) {
        self.limit = self.limit.min(mss).max(1);
        if let Some(found) = &mut self.discovery {
            found.search.limit_to(mss);
        }
    }

    pub(super) fn headers_len(&self) -> u16 {
        let ip = if self.v6 { IPV6_HEADER_LEN } else { IPV4_HEADER_LEN };
        ip + HEADER_LEN as u16
    }

    /// Returns the MSS in use.
    pub(super) fn mss(&self) -> u16 {
        self.discovery.as_ref().map_or(self.limit, |found| found.search.size())
    }

    fn initial_search(&self) -> PmtuSearch {
        PmtuSearch::new(self.limit, self.headers_len(), self.v6, self.min_mtu)
    }

    /// Returns the smallest MSS that a report may set.
    pub(super) fn floor(&self) -> u16 {
        match &self.discovery {
            Some(found) => found.search.floor(),
            None => self.initial_search().floor(),
        }
    }

    pub(super) fn discovery_mut(&mut self) -> &mut MtuDiscovery {
        let search = self.initial_search();
        self.discovery.get_or_insert_with(|| {
            Box::new(MtuDiscovery { search, pending_report: None, probe: None })
        })
    }

    pub(super) fn pending_report(&self) -> Option<(u16, SeqNumber)> {
        self.discovery.as_ref()?.pending_report
    }

    pub(super) fn probe(&self) -> Option<(SeqNumber, u16)> {
        self.discovery.as_ref()?.probe
    }
}
