//! One loss episode: what was before it, so that it can be undone when it proves spurious (RFC 3522,
//! RFC 4015 by timestamps; RFC 3708 by D-SACK; RFC 5682 after a time-out), and the reduction it brings.
//!
//! # D-SACK
//!
//! A D-SACK, or a duplicate TSN of SCTP, reports that something arrived twice. It is credit for a range that was
//! sent again in this episode, once. Everything else is ignored, because the network duplicates packets and a
//! peer may report anything: what was sent once, what was sent again in an earlier episode, a block that covers
//! more than was sent again, and a second report of the same range. When all that was sent again is credited the
//! episode is undone (RFC 3708 §3 B.1), except
//!
//! - when a range was sent again more than once (A.3), or there were more ranges than are remembered;
//! - when a retransmission may have been needed. If the network duplicates a retransmission that repaired a loss,
//!   its D-SACK is the same as that of a needless one. The difference is when the range is first reported as
//!   received. The report of the original is on its way when the retransmission leaves, and arrives before the
//!   shortest round trip of the path has passed; the report of the retransmission arrives after it. This is the
//!   rule of RFC 8985 §6.2 step 2, and a technique of the kind that RFC 3708 §3 A.4 allows as the alternative to
//!   not using D-SACK again on a connection. It covers A.1, and a peer that receives a needed retransmission
//!   gains nothing by a forged D-SACK of it.
//!
//! The cost: an original that arrives a round trip or more after its retransmission cannot be distinguished from a
//! duplicate. Such an episode is undone only if timestamps or F-RTO prove it spurious.
//!
//! While no round trip is measured, after a time-out of the first flight, there is nothing to compare with. Then
//! D-SACKs are proof if all of them are credited (A.4) and none came with the first report of its range (A.1).
//!
//! Boxed: a connection without losses has none. Its memory is bounded by [`MAX_OWED`].

use base::Instant;

use crate::congestion::Saved;
use crate::delivery::Delivery;
use crate::frto::Frto;
use crate::prr::Prr;
use crate::ranges::{Range, Ranges};
use crate::seq::ExtSeq;

/// Most ranges that wait for their D-SACK, 16 bytes each. An episode that needs more is not undone by D-SACK.
const MAX_OWED: usize = 128;

/// From the first sign of loss until it is over and can no longer prove spurious.
#[derive(Clone, Debug)]
pub struct Episode {
    /// Congestion control as it was.
    pub prior: Saved,
    /// The proportional reduction (RFC 6937).
    pub prr: Prr,
    /// Was the time-out spurious?
    pub frto: Frto,
    /// New segments that F-RTO still sends (RFC 5682 §2.1 step 2b: two).
    pub frto_new: u8,
    /// It began with a time-out.
    pub by_timeout: bool,
    /// It is over; once this is acknowledged, no D-SACK about it can come.
    pub over_at: Option<ExtSeq>,
    /// It was undone.
    undone: bool,
    /// When the first retransmission was sent.
    first_resent: Option<Instant>,
    /// What was sent again and no D-SACK has reported.
    owed: Ranges,
    /// Not all of `owed` could be remembered, or something of it may have been needed.
    needed: bool,
    /// Something of it arrived before any round trip was measured.
    unmeasured: bool,
    /// The present acknowledgement is the first that reported it.
    just_reported: bool,
    /// Something was reported twice that was not in `owed`.
    unasked: bool,
}

/// Why an episode is undone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proof {
    /// The acknowledgement of what was sent again echoes a timestamp older than the retransmission
    /// (RFC 3522).
    Timestamp,
    /// All that was sent again had arrived before (RFC 3708).
    DSack,
}

impl Episode {
    /// Begins with `prior` in force and `flight` bytes outstanding.
    pub fn new(prior: Saved, flight: u64, by_timeout: bool) -> Self {
        Episode {
            prior,
            prr: Prr::new(flight),
            frto: Frto::Off,
            frto_new: 0,
            by_timeout,
            over_at: None,
            undone: false,
            first_resent: None,
            owed: Ranges::new(),
            needed: false,
            unmeasured: false,
            just_reported: false,
            unasked: false,
        }
    }

    /// `range` was sent again; with this it was sent `sends` times. Probes after the episode are none of it.
    pub fn on_resent(&mut self, now: Instant, range: Range, sends: u8) {
        if self.over_at.is_some() {
            return;
        }
        self.first_resent.get_or_insert(now);
        self.needed |= sends > 2; // RFC 3708 §3 A.3
        if self.owed.len() < MAX_OWED || self.owed.touches(range) {
            self.owed.insert(range);
        } else {
            self.needed = true;
        }
    }

    /// It was spurious, and over at `nxt`, which is SND.NXT. It remains for the D-SACKs that come later, by which
    /// the window for reordering widens (RFC 8985 §6.2 step 4).
    pub fn on_undone(&mut self, nxt: ExtSeq) {
        self.undone = true;
        self.over_at = Some(nxt);
        self.frto = Frto::Off;
    }

    /// What an acknowledgement delivered, before its D-SACK is examined.
    pub fn on_delivery(&mut self, delivery: &Delivery) {
        let ours = |sent_at| self.first_resent.is_some_and(|first| first <= sent_at);
        let may_be_needed = delivery.needed.is_some_and(ours);
        self.just_reported = may_be_needed && !delivery.is_measured();
        self.unmeasured |= self.just_reported;
        self.needed |= may_be_needed && delivery.is_measured();
    }

    /// `range`, which is known to have arrived, was reported to have come twice. Returns whether it was sent
    /// again in this episode and not reported before.
    pub fn on_d_sack(&mut self, range: Range) -> bool {
        let credited = self.owed.remove(range, MAX_OWED);
        self.unasked |= !credited;
        self.needed |= credited && self.just_reported; // RFC 3708 §3 A.1
        credited
    }

    /// Whether it was spurious. `echoed_ms` is the timestamp that an acknowledgement echoes which moved
    /// SND.UNA; `resent_in_flight` while a retransmission is outstanding.
    pub fn proof(&self, echoed_ms: Option<u64>, resent_in_flight: bool) -> Option<Proof> {
        let first_resent_ms = self.first_resent.filter(|_| !self.undone)?.as_millis();
        // RFC 3708 §3 B.1
        let may_be_needed = self.needed || (self.unmeasured && self.unasked);
        if !may_be_needed && self.owed.is_empty() {
            return Some(Proof::DSack);
        }
        let earlier = self.over_at.is_none() && echoed_ms.is_some_and(|ms| ms < first_resent_ms);
        (earlier && (self.by_timeout || !resent_in_flight)).then_some(Proof::Timestamp)
    }
}

#[cfg(test)]
mod tests;
