//! State of a connection's path MTU. The events that change it (reports, losses, probes) are processed in
//! `path_mtu_discovery`.

use transport::pmtu::PmtuSearch;
use transport::seq::SeqNumber;

use super::segment::HEADER_LEN;

/// Lengths of IP headers without options, in bytes.
const IPV4_HEADER_LEN: u16 = 20;
const IPV6_HEADER_LEN: u16 = 40;

/// Result of an ICMP report that a packet was too big.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TooBigOutcome {
    /// The report was applied: segments are smaller from now on, or a probe is abandoned.
    Applied,
    /// The report is stored, and applied if the reported segment is lost.
    Stored,
    /// The reported size is not below the path's current size. The report is ignored.
    NotSmaller,
    /// A probe was reported, with a size below the current size, which already passes. The report is ignored.
    ProbeTooSmall,
    /// The reported segment is not in flight: never sent, or already acknowledged.
    NotInFlight,
    /// The MTU is below the accepted minimum, or not below the size of the reported segment.
    BadSize,
}

/// Path MTU of a connection, kept as an MSS: the MTU less IP header and fixed TCP header.
#[derive(Debug)]
pub(crate) struct PathMtu {
    /// Smaller of the interface's and the peer's MSS, bytes. In use until `discovery` is allocated.
    limit: u16,
    /// Smallest MTU of an IPv4 path that is accepted from a report, bytes.
    min_mtu: u16,
    v6: bool,
    pub(super) discovery: Option<Box<MtuDiscovery>>,
}

/// Search for the path MTU. Allocated with the first report, suspected black hole, or MSS from the interface or another
/// stream.
#[derive(Debug)]
pub(super) struct MtuDiscovery {
    pub(super) search: PmtuSearch,
    /// Stored report that is not yet proven: MSS, and a sequence number in the reported segment.
    pub(super) pending_report: Option<(u16, SeqNumber)>,
    /// Probe in flight: first sequence number and payload bytes.
    pub(super) probe: Option<(SeqNumber, u16)>,
}

impl PathMtu {
    /// Creates the state without a search. `mss` is the interface's MSS, `min_mtu` the smallest MTU of an IPv4 path to
    /// accept.
    pub(crate) fn new(mss: u16, v6: bool, min_mtu: u16) -> Self {
        PathMtu { limit: mss, min_mtu, v6, discovery: None }
    }

    /// Limits the MSS to `mss`, the peer's MSS option.
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

    /// Returns the MSS in use, bytes, TCP options not deducted.
    pub(super) fn mss(&self) -> u16 {
        self.discovery.as_ref().map_or(self.limit, |found| found.search.size())
    }

    fn initial_search(&self) -> PmtuSearch {
        PmtuSearch::new(self.limit, self.headers_len(), self.v6, self.min_mtu)
    }

    /// Returns the smallest MSS that a report may set, bytes.
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
