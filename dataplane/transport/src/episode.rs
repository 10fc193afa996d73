//! One loss episode: what was before it, so that it can be undone when it proves spurious (RFC 3522,
//! RFC 4015 by timestamps; RFC 3708 by D-SACK; RFC 5682 after a time-out), and the reduction it brings.
//!
//! Boxed: a connection without losses has none.

use wire::Instant;

use crate::congestion::Congestion;
use crate::frto::Frto;
use crate::prr::Prr;
use crate::seq::ExtSeq;

/// From the first sign of loss until it is over and can no longer prove spurious.
#[derive(Clone, Debug)]
pub struct Episode {
    /// Congestion control as it was.
    pub prior: Congestion,
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
    /// SND.UNA when it began.
    una: ExtSeq,
    /// When the first retransmission was sent, by the clock of timestamps.
    first_resent_ms: Option<u64>,
    /// Octets sent again of which no D-SACK has told.
    unneeded: u64,
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
    /// Begins with `prior` in force and `flight` octets outstanding from `una` on.
    pub fn new(prior: Congestion, una: ExtSeq, flight: u64, by_timeout: bool) -> Self {
        Episode {
            prior,
            prr: Prr::new(flight),
            frto: Frto::Off,
            frto_new: 0,
            by_timeout,
            over_at: None,
            una,
            first_resent_ms: None,
            unneeded: 0,
        }
    }

    /// A segment of `octets` was sent again.
    pub fn on_resent(&mut self, now: Instant, octets: u64) {
        self.first_resent_ms.get_or_insert(now.as_millis());
        self.unneeded += octets;
    }

    /// `octets` up to `end` had come twice.
    pub fn on_d_sack(&mut self, end: ExtSeq, octets: u64) {
        if end > self.una {
            self.unneeded = self.unneeded.saturating_sub(octets);
        }
    }

    /// Whether it was spurious. `echoed_ms` is the timestamp that an acknowledgement echoes which moved
    /// SND.UNA; `resent_in_flight` while a retransmission is outstanding.
    pub fn proof(&self, echoed_ms: Option<u64>, resent_in_flight: bool) -> Option<Proof> {
        let first_resent_ms = self.first_resent_ms?;
        if self.unneeded == 0 {
            return Some(Proof::DSack);
        }
        let earlier = self.over_at.is_none() && echoed_ms.is_some_and(|ms| ms < first_resent_ms);
        (earlier && (self.by_timeout || !resent_in_flight)).then_some(Proof::Timestamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Chosen;
    use crate::seq::SeqNumber;

    fn at(n: u64) -> ExtSeq {
        ExtSeq::initial(SeqNumber(0)).plus(n)
    }

    fn episode() -> Episode {
        let prior = Congestion::new(&Chosen::default(), 1000, 10);
        let mut episode = Episode::new(prior, at(1000), 10_000, false);
        assert_eq!(episode.proof(Some(0), false), None, "nothing sent again");
        episode.on_resent(Instant::from_millis(50), 1000);
        episode
    }

    // RFC 3522 §3.2: an older timestamp than that of the first retransmission; the same says nothing.
    #[test]
    fn an_older_timestamp_is_proof() {
        assert_eq!(episode().proof(Some(49), false), Some(Proof::Timestamp));
        assert_eq!(episode().proof(Some(49), true), None, "others may be lost");
        assert_eq!(episode().proof(Some(50), false), None);
        assert_eq!(episode().proof(None, false), None);
    }

    // RFC 3708 §2: every octet that was sent again has to be told of.
    #[test]
    fn d_sacks_of_all_retransmissions_are_proof() {
        let mut e = episode();
        e.on_resent(Instant::from_millis(51), 500);
        e.on_d_sack(at(1000), 1000);
        assert_eq!(e.proof(None, false), None, "of before the episode");
        e.on_d_sack(at(2000), 1000);
        assert_eq!(e.proof(None, false), None);
        e.on_d_sack(at(2500), 500);
        assert_eq!(e.proof(None, true), Some(Proof::DSack));
    }
}
