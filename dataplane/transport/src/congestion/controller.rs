//! Interface of a congestion controller. Its inputs are acknowledgements, losses and time-outs; its outputs are the
//! window, the pacing rate and the burst length.
//!
//! Most methods of [`Controller`] have a default, which follows RFC 5681. A loss-based controller supplies only the
//! [growth](Controller::increase) and the [reduction](Controller::reduce) of the window. Any other controller sets
//! [`LOSS_BASED`](Controller::LOSS_BASED) to false and implements [`pace`](Controller::pace). In that case only the
//! controller changes the window.

use core::fmt;

use base::{Instant, Nanos};

use super::rate::{RateSample, Run, Sampler};
use super::window::Window;
use crate::pacing::{Pace, PacedPath};
use crate::seq::ExtSeq;

/// Whether an acknowledgement may raise the window (RFC 5681 §3.1, RFC 7661 §4.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// The acknowledgement covers new data outside of fast recovery, and the window limited sending.
    Allowed,
    /// The congestion window did not limit sending.
    AppLimited,
    /// The acknowledgement covers no new data, or a reduction of the window is in progress, or ends with this
    /// acknowledgement.
    None,
}

/// An acknowledgement after the scoreboard has processed it. Amounts are bytes.
#[derive(Clone, Copy, Debug)]
pub struct AckSample {
    /// Time of arrival.
    pub now: Instant,
    /// Newly acknowledged bytes that count for growth of the window.
    pub acked: u64,
    /// Bytes of `acked` that were reported as marked (ECN-Echo, RFC 8257 §3.3).
    pub marked: u64,
    /// Smoothed round-trip time; the retransmission time-out before the first measurement.
    pub srtt: Nanos,
    /// Permission to raise the window.
    pub growth: Growth,
    /// Path measurements; `Some` only with [`NEEDS_SAMPLES`](Controller::NEEDS_SAMPLES).
    pub path_sample: Option<PathSample>,
}

/// Path measurements of one acknowledgement. Amounts are bytes.
#[derive(Clone, Copy, Debug)]
pub struct PathSample {
    /// Bytes newly known to have arrived, by cumulative acknowledgement or SACK.
    pub delivered: u64,
    /// Transmission time of the newest delivered segment.
    pub newest: Option<Instant>,
    /// Age of the newest arrived segment among those sent once: an upper bound of the shortest round-trip time.
    pub rtt: Option<Nanos>,
    /// The shortest round-trip time of the last 1 to 2 minutes.
    pub min_rtt: Option<Nanos>,
    /// Bytes in flight now. For the bytes in flight when the newest delivered segment was sent, see
    /// [`rate`](Self::rate).
    pub in_flight: u64,
    /// Delivery rate from the transmit run of the newest delivered segment until this acknowledgement.
    pub rate: Option<RateSample>,
}

/// ECN-Echo of an acknowledgement, reported before any other processing (RFC 8257 §3.3).
#[derive(Clone, Copy, Debug)]
pub struct EcnEcho {
    /// SEG.ACK, above SND.UNA.
    pub ack: ExtSeq,
    /// SND.NXT.
    pub nxt: ExtSeq,
    /// Bytes from SND.UNA to SEG.ACK.
    pub acked: u64,
    /// True if ECE is set.
    pub marked: bool,
}

/// A segment that was found lost.
#[derive(Clone, Copy, Debug)]
pub struct LostSegment {
    /// Length, bytes.
    pub bytes: u64,
    /// Transmission time.
    pub sent_at: Instant,
    /// Bytes in flight when the segment was sent, including its transmit run; `None` if the run is no longer recorded.
    pub in_flight: Option<u64>,
}

/// Cause of a window reduction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Duplicate or selective acknowledgements (RFC 5681 §3.2).
    Loss,
    /// ECN-Echo (RFC 3168 §6.1.2).
    Marks,
    /// The retransmission timer (RFC 5681 §3.1 (4)).
    Timeout,
}

/// A congestion controller. The [`Window`], which bounds the bytes in flight, is stored by its caller.
pub(super) trait Controller: Clone + fmt::Debug + Default {
    /// True if the controller requires every acknowledgement with [`PathSample`], every run and every lost segment.
    /// Transmit runs are then recorded for delivery-rate samples. Other controllers receive only acknowledgements that
    /// may raise the window.
    const NEEDS_SAMPLES: bool = false;
    /// True if the controller requires the exact number of marked bytes: [`on_echo`](Self::on_echo) is called, and
    /// the receiver echoes each mark (RFC 8257 §3.2). ECN is required.
    const EXACT_ECN: bool = false;
    /// True if the reaction to marks is weaker than the reaction to a loss. A loss in the same window then reduces the
    /// window again (RFC 8257 §3.5).
    const MILD_ECN_RESPONSE: bool = false;
    /// True if the window follows RFC 5681: threshold on loss, proportional reduction (RFC 6937), one segment after a
    /// time-out, restart after idle. If false, [`Congestion`](super::Congestion)'s methods for these events leave the
    /// window unchanged, and only this controller sets the window.
    const LOSS_BASED: bool = true;

    /// Returns the growth in congestion avoidance, bytes.
    fn increase(&mut self, _window: &Window, _ack: &AckSample) -> u64 {
        0
    }

    /// Returns the threshold after a congestion event with `flight` bytes outstanding. The caller raises a
    /// lower threshold to the configured minimum.
    fn reduce(&mut self, window: &Window, _cause: Cause, _flight: u64) -> u64 {
        window.cwnd
    }

    /// Returns the store of transmit runs for delivery-rate samples. Used only with
    /// [`NEEDS_SAMPLES`](Self::NEEDS_SAMPLES).
    fn sampler(&mut self) -> Option<&mut Sampler> {
        None
    }

    /// Processes a transmit run. Called only with [`NEEDS_SAMPLES`](Self::NEEDS_SAMPLES).
    fn on_sent(&mut self, _window: &mut Window, _run: &Run) {}

    /// Processes an acknowledgement. The default is slow start, then [`increase`](Self::increase)
    /// (RFC 5681 §3.1).
    #[inline]
    fn on_ack(&mut self, window: &mut Window, ack: &AckSample) {
        match ack.growth {
            Growth::Allowed if window.in_slow_start() => window.slow_start(ack.acked),
            Growth::Allowed => {
                let bytes = self.increase(window, ack);
                window.grow(bytes);
            }
            Growth::AppLimited => self.on_app_limited(),
            Growth::None => {}
        }
    }

    /// Processes the ECN-Echo of an acknowledgement of new data, before [`reduce`](Self::reduce) for its
    /// marks and before [`on_ack`](Self::on_ack). Called only with [`EXACT_ECN`](Self::EXACT_ECN).
    fn on_echo(&mut self, _echo: &EcnEcho) {}

    /// Processes a segment that was found lost. Called only with [`NEEDS_SAMPLES`](Self::NEEDS_SAMPLES).
    fn on_lost(&mut self, _window: &mut Window, _lost: &LostSegment) {}

    /// Processes an expiry of the retransmission timer. With [`LOSS_BASED`](Self::LOSS_BASED) the caller adjusts window
    /// and threshold.
    fn on_timeout(&mut self) {}

    /// Records that the congestion window does not limit sending, or that nothing was sent for one RTO (RFC 5681 §4.1).
    fn on_app_limited(&mut self) {}

    /// Processes a change of the size of a full segment from `before` to `after` bytes; the window in bytes is
    /// unchanged.
    fn on_segment_size(&mut self, _before: u64, _after: u64) {}

    /// Called while nothing is in flight. Counts as application-limited ([`on_app_limited`](Self::on_app_limited)). A
    /// controller also frees memory that it does not need until the next transmission.
    fn release(&mut self) {
        self.on_app_limited();
    }

    /// Undoes a spurious congestion event; `prior` is the controller before the event (RFC 4015 §3.4).
    fn undo(&mut self, prior: &Self) {
        *self = prior.clone();
    }

    /// Returns the estimated fraction of sent bytes that meet congestion, if the controller keeps an estimate.
    fn marked_fraction(&self) -> Option<f64> {
        None
    }

    /// Returns pacing rate and burst for segments of `smss` bytes, `None` for unpaced.
    fn pace(&self, window: &Window, smss: u64, path: PacedPath) -> Option<Pace> {
        Pace::new(window.cwnd, smss, path, window.in_slow_start())
    }
}
