//! One loss episode: the reduction of the window, and the state before it. The episode is undone if it proves spurious
//! (by timestamps: RFC 3522, RFC 4015; by D-SACK: RFC 3708; after a time-out: RFC 5682).
//!
//! # D-SACK
//!
//! A D-SACK, or a duplicate TSN of SCTP, reports data that arrived twice. The first report of a range that was
//! retransmitted in this episode credits that range. Other reports are ignored, because the network duplicates packets
//! and a peer may report anything: reports of data sent once, of data retransmitted in an earlier episode, of more than
//! was retransmitted, or of a range already credited. When all retransmitted ranges are credited, the episode is undone
//! (RFC 3708 §3 B.1), except
//!
//! - when a range was retransmitted more than once (A.3), or there were more ranges than are recorded;
//! - when a retransmission may have been needed. If the network duplicates a retransmission that repaired a loss, the
//!   D-SACK of this duplicate equals the D-SACK of a needless retransmission. Only the time of the first report of the
//!   range differs. The report of the original is in flight when the retransmission is sent, and arrives within the
//!   shortest round trip of the path. The report of the retransmission arrives later. RFC 8985 §6.2 step 2 has the same
//!   rule. RFC 3708 §3 A.4 allows such a technique as an alternative to ignoring D-SACK on the connection. The rule
//!   covers A.1: a peer that receives a needed retransmission gains nothing by a forged D-SACK of it.
//!
//! The cost: an original that arrives a round trip or more after its retransmission cannot be distinguished from a
//! duplicate. Such an episode is undone only if timestamps or F-RTO prove it spurious.
//!
//! If the first flight times out, no round trip has been measured yet, so the shortest is unknown. D-SACKs are then
//! proof under two conditions: each D-SACK credits a range (A.4), and no D-SACK is in the acknowledgement that first
//! reports a retransmitted segment as received (A.1).
//!
//! An episode is stored in a `Box`, because a connection without losses has none. Memory is bounded by
//! [`MAX_AWAITING_DSACK`].

use base::Instant;

use crate::congestion::CongestionState;
use crate::delivery::Delivery;
use crate::frto::Frto;
use crate::prr::Prr;
use crate::ranges::{Range, Ranges};
use crate::seq::ExtSeq;

/// Maximum number of ranges per episode that await a D-SACK, 16 bytes each. An episode with more ranges is not undone
/// by D-SACK.
const MAX_AWAITING_DSACK: usize = 128;

/// A loss episode, from the first sign of loss until it has ended and can no longer prove spurious.
#[derive(Clone, Debug)]
pub struct Episode {
    /// The state of congestion control before the episode.
    pub prior: CongestionState,
    /// The proportional reduction (RFC 6937).
    pub prr: Prr,
    /// State of F-RTO: the test for a spurious time-out.
    pub frto: Frto,
    /// New segments that F-RTO still sends (RFC 5682 §2.1 step 2b: two).
    pub frto_new_left: u8,
    /// True if the episode began with a time-out.
    pub by_timeout: bool,
    /// SND.NXT when the episode ended. Once SND.UNA is above this number, no further D-SACK for the episode can
    /// arrive.
    pub end_point: Option<ExtSeq>,
    /// True once the episode was undone. It is not undone again.
    undone: bool,
    /// Time of the first retransmission.
    first_resent: Option<Instant>,
    /// Retransmitted ranges that no D-SACK has reported yet.
    awaiting_dsack: Ranges,
    /// True if `awaiting_dsack` is incomplete, or if the retransmission of one of its ranges may have been needed.
    resend_needed: bool,
    /// True if a retransmitted segment arrived before any round trip was measured.
    unmeasured: bool,
    /// True while the acknowledgement is processed that first reports a retransmitted segment as arrived, if no round
    /// trip was measured before.
    first_report: bool,
    /// True if a D-SACK reported a range that was not in `awaiting_dsack`.
    uncredited_dsack: bool,
}

/// The proof that undoes an episode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proof {
    /// The acknowledgement of a retransmission echoes a timestamp older than the retransmission (RFC 3522).
    Timestamp,
    /// D-SACKs report that all retransmitted data arrived twice (RFC 3708).
    DSack,
}

impl Episode {
    /// Begins an episode with `flight` bytes outstanding. `prior` is the congestion control state before it.
    pub fn new(prior: CongestionState, flight: u64, by_timeout: bool) -> Self {
        Episode {
            prior,
            prr: Prr::new(flight),
            frto: Frto::Off,
            frto_new_left: 0,
            by_timeout,
            end_point: None,
            undone: false,
            first_resent: None,
            awaiting_dsack: Ranges::new(),
            resend_needed: false,
            unmeasured: false,
            first_report: false,
            uncredited_dsack: false,
        }
    }

    /// Records that `range` was retransmitted. `sends`: transmissions of the range so far, the first included. Probes
    /// after the end of the episode do not count.
    pub fn on_resent(&mut self, now: Instant, range: Range, sends: u8) {
        if self.end_point.is_some() {
            return;
        }
        self.first_resent.get_or_insert(now);
        self.resend_needed |= sends > 2; // RFC 3708 §3 A.3: ambiguous if retransmitted more than once
        if self.awaiting_dsack.len() < MAX_AWAITING_DSACK || self.awaiting_dsack.touches(range) {
            self.awaiting_dsack.insert(range);
        } else {
            self.resend_needed = true;
        }
    }

    /// Ends a spurious episode at `nxt`, which is SND.NXT. The episode remains for later D-SACKs, which widen
    /// the reordering window (RFC 8985 §6.2 step 4).
    pub fn on_undone(&mut self, nxt: ExtSeq) {
        self.undone = true;
        self.end_point = Some(nxt);
        self.frto = Frto::Off;
    }

    /// Processes the delivery report of an acknowledgement, before its D-SACK is examined.
    pub fn on_delivery(&mut self, delivery: &Delivery) {
        let ours = |sent_at| self.first_resent.is_some_and(|first| first <= sent_at);
        let may_be_needed = delivery.needed_resent_at.is_some_and(ours);
        self.first_report = may_be_needed && !delivery.is_measured();
        self.unmeasured |= self.first_report;
        self.resend_needed |= may_be_needed && delivery.is_measured();
    }

    /// Processes a report that `range` has arrived a second time. Returns true if the range was retransmitted in this
    /// episode and not reported before.
    pub fn on_d_sack(&mut self, range: Range) -> bool {
        let credited = self.awaiting_dsack.remove(range, MAX_AWAITING_DSACK);
        self.uncredited_dsack |= !credited;
        self.resend_needed |= credited && self.first_report; // RFC 3708 §3 A.1: the D-SACK came with the first report
        credited
    }

    /// Returns the proof that the episode was spurious, if there is one. `echoed_ms` is the timestamp echoed
    /// by an acknowledgement that moved SND.UNA; `resent_in_flight` is true while a retransmission is
    /// outstanding.
    pub fn proof(&self, echoed_ms: Option<u64>, resent_in_flight: bool) -> Option<Proof> {
        let first_resent_ms = self.first_resent.filter(|_| !self.undone)?.as_millis();
        // RFC 3708 §3 B.1: proof once all retransmitted ranges are credited, unless a retransmission may have been
        // needed.
        let may_be_needed = self.resend_needed || (self.unmeasured && self.uncredited_dsack);
        if !may_be_needed && self.awaiting_dsack.is_empty() {
            return Some(Proof::DSack);
        }
        let earlier = self.end_point.is_none() && echoed_ms.is_some_and(|ms| ms < first_resent_ms);
        (earlier && (self.by_timeout || !resent_in_flight)).then_some(Proof::Timestamp)
    }
}

#[cfg(test)]
mod tests;
