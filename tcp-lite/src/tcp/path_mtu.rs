//! What a connection knows of its path's MTU. What reports, losses and probes do to it is in `pmtu`.

use transport::pmtu::Search;
use transport::seq::SeqNumber;

use super::segment::HEADER_LEN;

/// Bytes of IP headers without options.
const IPV4: u16 = 20;
const IPV6: u16 = 40;

/// What a connection makes of the report that a packet of its was too big.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TooBig {
    /// Segments are smaller from now on.
    Believed,
    /// It is acted upon if the segment turns out to be lost.
    Remembered,
    /// It asks for no less than what is used already.
    NoNews,
    /// The segment it is about is not under way: never sent, or acknowledged.
    NotInFlight,
    /// The MTU is below what is accepted, or larger than the segment it is about.
    BadSize,
}

/// What a connection knows of its path's MTU.
#[derive(Debug)]
pub(crate) struct PathMtu {
    /// What the interface and the peer carry, which is in use while nothing else is found.
    limit: u16,
    /// The least MTU of an IPv4 path that is accepted from a report.
    min_mtu: u16,
    v6: bool,
    pub(super) found: Option<Box<Found>>,
}

/// What was found out.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) search: Search,
    /// A report that waits for proof: the size, and the segment that it is about.
    pub(super) pending: Option<(u16, SeqNumber)>,
    /// The probe under way: where it begins, and its payload.
    pub(super) probe: Option<(SeqNumber, u16)>,
}

impl PathMtu {
    /// Nothing is known; `mss` is what the interface carries.
    pub(crate) fn new(mss: u16, v6: bool, min_mtu: u16) -> Self {
        PathMtu { limit: mss, min_mtu, v6, found: None }
    }

    /// The peer's MSS is known.
    pub(crate) fn limit_to(&mut self, mss: u16) {
        self.limit = self.limit.min(mss).max(1);
        if let Some(found) = &mut self.found {
            found.search.limit_to(mss);
        }
    }

    pub(super) fn headers(&self) -> u16 {
        let ip = if self.v6 { IPV6 } else { IPV4 };
        ip + HEADER_LEN as u16
    }

    /// The size in use.
    pub(super) fn mss(&self) -> u16 {
        self.found.as_ref().map_or(self.limit, |found| found.search.size())
    }

    fn nothing(&self) -> Search {
        Search::new(self.limit, self.headers(), self.v6, self.min_mtu)
    }

    /// The least size that is accepted.
    pub(super) fn floor(&self) -> u16 {
        match &self.found {
            Some(found) => found.search.floor(),
            None => self.nothing().floor(),
        }
    }

    pub(super) fn found(&mut self) -> &mut Found {
        let search = self.nothing();
        self.found.get_or_insert_with(|| Box::new(Found { search, pending: None, probe: None }))
    }

    pub(super) fn pending(&self) -> Option<(u16, SeqNumber)> {
        self.found.as_ref()?.pending
    }

    pub(super) fn probe(&self) -> Option<(SeqNumber, u16)> {
        self.found.as_ref()?.probe
    }
}
