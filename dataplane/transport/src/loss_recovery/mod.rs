//! Loss recovery, shared by TCP and SCTP (RFC 5681, RFC 6675, RFC 8985, RFC 6937, RFC 5682). [`LossRecovery`] applies
//! acknowledgements and time-outs to the congestion window, begins and ends loss episodes, and undoes spurious
//! episodes. The segments in flight are in a [`Scoreboard`], which each protocol implements.
//!
//! For each acknowledgement the owner updates the scoreboard, then calls, in this order:
//!
//! ```text
//!  on_delivery, on_d_sack    records delivered bytes and duplicates
//!  measure                   measures the round-trip time
//!  judge_probe               evaluates a tail loss probe
//!  exit_phase                ends a recovery that is complete
//!  undo_if_spurious          undoes a spurious recovery
//!  find_losses               searches with RACK, begins recovery    (only if nothing was undone)
//!  adjust_window             sets the congestion window             (only if nothing was undone)
//!  finish_ack                reports to the congestion controller
//! ```
//!
//! Between acknowledgements the owner calls `on_sent`, `on_new_sent`, `on_resent` and `note_usage` for sent data. It
//! calls `on_reorder_timeout` and `on_timeout` when these timers expire, and `on_marks` for an echoed ECN mark. Amounts
//! are bytes.
//!
//! State needed only while data is in flight is in [`FlightState`], which an idle stream does not have.

mod ack;
mod flight_state;
mod losses;
mod scoreboard;

use base::{Instant, Nanos};

use crate::congestion::Congestion;
use crate::delivery::Delivery;
use crate::episode::Episode;
use crate::frto::{self, Frto};
use crate::pacing::{Pace, PacedPath};
use crate::parameters::Parameters;
use crate::rack::Rack;
use crate::ranges::Range;
use crate::rtt::RttEstimator;

pub use self::ack::{Ack, DsackOrigin, UndoProof};
pub use self::flight_state::FlightState;
pub use self::losses::LossesFound;
pub use self::scoreboard::{DetectedLosses, Scoreboard};

/// Loss recovery of one connection or association.
#[derive(Debug)]
pub struct LossRecovery {
    cc: Congestion,
    rtt: RttEstimator,
    rack: Rack,
    /// The current loss episode, or the last episode while it can still prove spurious.
    episode: Option<Box<Episode>>,
}

base::prefetch!(LossRecovery: rack);

impl LossRecovery {
    /// Creates the state before the first transmission.
    pub fn new(cc: Congestion, config: &impl Parameters) -> Self {
        LossRecovery { cc, rtt: RttEstimator::new(config), rack: Rack::new(), episode: None }
    }

    /// Replaces the congestion controller. Requires that no data is in flight.
    pub fn restart(&mut self, cc: Congestion) {
        self.cc = cc;
    }

    // --- queries -------------------------------------------------------------------------------------

    /// Returns the congestion controller.
    #[inline]
    pub fn cc(&self) -> &Congestion {
        &self.cc
    }

    /// Returns the congestion controller for updates of idle time, segment size and transmit runs. Losses are reported
    /// to [`LossRecovery`] instead.
    #[inline]
    pub fn cc_mut(&mut self) -> &mut Congestion {
        &mut self.cc
    }

    /// Returns the round-trip estimator.
    #[inline]
    pub fn rtt(&self) -> &RttEstimator {
        &self.rtt
    }

    /// Returns the round-trip estimator for updates other than acknowledgements of data: measurements by handshake or
    /// heartbeat, and timer backoff.
    #[inline]
    pub fn rtt_mut(&mut self) -> &mut RttEstimator {
        &mut self.rtt
    }

    /// Returns an empty delivery report for one acknowledgement. `echoed_ms`: the time at which this sender sent the
    /// timestamp that the acknowledgement echoes, in [`Instant::as_millis`].
    #[inline]
    pub fn new_delivery(&self, now: Instant, echoed_ms: Option<u64>) -> Delivery {
        Delivery::new(now, echoed_ms, self.rack.min_rtt(), self.rack.fack())
    }

    /// Returns the shortest known round-trip time: the minimum over the last 1 to 2 minutes, or SRTT if that is
    /// shorter.
    pub fn base_rtt(&self) -> Option<Nanos> {
        [self.rack.min_rtt(), self.rtt.srtt()].into_iter().flatten().min()
    }

    /// Returns the shortest round-trip time of the last 1 to 2 minutes, which excludes most of the queueing delay that
    /// this sender causes.
    #[inline]
    pub fn min_rtt(&self) -> Option<Nanos> {
        self.rack.min_rtt()
    }

    /// Returns the pacing rate and burst for segments of `smss` bytes; `None` if the flow is not paced. `shared`: many
    /// streams share the port.
    pub fn pace(&self, smss: u64, shared: bool) -> Option<Pace> {
        let path = PacedPath { srtt: self.rtt.srtt(), min_rtt: self.rack.min_rtt(), shared };
        self.cc.pace(smss, path)
    }

    /// Returns the number of consecutive time-outs without progress.
    #[inline]
    pub fn consecutive_timeouts(&self) -> u32 {
        self.rtt.consecutive_timeouts().into()
    }

    /// Returns true if no episode remains that could still prove spurious.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.episode.is_none()
    }

    /// Returns the number of new segments that F-RTO may still send to test whether a time-out was spurious.
    /// Retransmissions wait during the test (RFC 5682 §2.1 step 2b). `None` if no test sends new data.
    #[inline]
    pub fn frto_new_left(&self) -> Option<u8> {
        let episode = self.episode.as_ref().filter(|e| e.frto == Frto::NewData);
        episode.map(|episode| episode.frto_new_left)
    }

    // --- events from the owner ----------------------------------------------------------------------

    /// Records that `bytes` were sent, new or retransmitted.
    #[inline]
    pub fn on_sent(&mut self, bytes: u64) {
        if let Some(episode) = &mut self.episode {
            episode.prr.on_sent(bytes);
        }
    }

    /// Records that a segment of new data was sent, which counts for [`frto_new_left`](Self::frto_new_left).
    #[inline]
    pub fn on_new_sent(&mut self) {
        if let Some(episode) = &mut self.episode {
            episode.frto_new_left = episode.frto_new_left.saturating_sub(1);
        }
    }

    /// Records that `range` was retransmitted. `sends`: transmissions of the range so far, the first included.
    pub fn on_resent(&mut self, now: Instant, range: Range, sends: u8) {
        if let Some(episode) = &mut self.episode {
            episode.on_resent(now, range, sends);
        }
    }

    /// Ends F-RTO's test if there is no new data to send and none of its new segments was sent. Recovery then continues
    /// with retransmissions. Returns true if the test was ended.
    pub fn cancel_frto(&mut self) -> bool {
        let pending = self.frto_new_left() == Some(frto::NEW_SEGMENTS);
        if pending && let Some(episode) = &mut self.episode {
            episode.frto = Frto::Off;
        }
        pending
    }

    /// Records that the peer acknowledged new data.
    #[inline]
    pub fn on_progress(&mut self) {
        self.rtt.on_progress();
    }

    /// Records an unanswered transmission: counts a consecutive time-out and doubles the retransmission time-out.
    /// `on_timeout` includes this step. The owner calls this method for other timers.
    pub fn on_unanswered(&mut self) {
        self.rtt.on_unanswered();
    }

    /// Records the use of the congestion window after data was sent, or after a full window stopped transmission
    /// (`limited`). An unused window is reduced, but not below `least` segments (RFC 2861 §3.2, RFC 7661 §4.3).
    pub fn note_usage(
        &mut self,
        state: &mut FlightState,
        board: &impl Scoreboard,
        now: Instant,
        limited: bool,
        least: impl FnOnce() -> u32,
        config: &impl Parameters,
    ) {
        state.usage.note(now, limited, board.pipe(), board.una(), board.nxt());
        if let Some(used) = state.usage.poll_underuse(now, self.rtt.rto(config)) {
            self.cc.reduce_unused_cwnd(used, least());
        }
    }

    /// Frees state needed only while data is in flight. Requires that no data is in flight.
    pub fn shrink(&mut self) {
        self.rack.shrink();
        self.cc.shrink();
    }
}

#[cfg(test)]
mod tests;
