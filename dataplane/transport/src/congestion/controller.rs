//! What a congestion controller is given, and what it answers: window, pacing rate and send quantum.
//!
//! Most of [`Controller`] has a default, which is the frame of RFC 5681: such a controller gives how much the
//! window [grows](Controller::increase) and to what it is [reduced](Controller::reduce). One that does not
//! follow that frame sets [`LOSS_BASED`](Controller::LOSS_BASED) to false; then nothing but itself changes its
//! window, and it answers [`pace`](Controller::pace).

use core::fmt;

use base::{Instant, Nanos};

use super::rate::{RateSample, Run, Sampler};
use super::window::Window;
use crate::pacing::{Pace, PacedPath};
use crate::seq::ExtSeq;

/// Whether an acknowledgement may raise the window (RFC 5681 §3.1, RFC 7661 §4.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// It acknowledges new data outside of fast recovery, and the window is what limited sending.
    Allowed,
    /// Something else than the window limited sending.
    SourceLimited,
    /// During a reduction, or nothing new is acknowledged.
    None,
}

/// An acknowledgement, once the scoreboard has taken it in. Amounts are bytes.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    /// When it came.
    pub now: Instant,
    /// What it acknowledged, as the protocol counts that for growth.
    pub acked: u64,
    /// Of `acked`, the bytes reported as marked (ECN-Echo, RFC 8257 §3.3).
    pub marked: u64,
    /// The smoothed round trip; the time-out before there is one.
    pub srtt: Nanos,
    /// Whether the window may grow.
    pub growth: Growth,
    /// Measurements of the path: only for a controller that [measures](Controller::MEASURES).
    pub measured: Option<Measured>,
}

/// What an acknowledgement measures of the path. Amounts are bytes.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// What it showed to have arrived, by SACK or not, that was not known to have.
    pub delivered: u64,
    /// When the newest of the segments that it delivered was sent.
    pub newest: Option<Instant>,
    /// The round trip that it measured.
    pub rtt: Option<Nanos>,
    /// The shortest round trip of the path.
    pub min_rtt: Option<Nanos>,
    /// What is in flight now. What was when its newest segment was sent is in the rate sample.
    pub in_flight: u64,
    /// The delivery rate, over the run of its newest segment.
    pub rate: Option<RateSample>,
}

/// ECN-Echo as an acknowledgement carries it, before anything else is made of it (RFC 8257 §3.3).
#[derive(Clone, Copy, Debug)]
pub struct Echo {
    /// SEG.ACK, which is in front of SND.UNA.
    pub ack: ExtSeq,
    /// SND.NXT.
    pub nxt: ExtSeq,
    /// Bytes from SND.UNA to SEG.ACK.
    pub acked: u64,
    /// ECE is set.
    pub marked: bool,
}

/// A segment that was found lost.
#[derive(Clone, Copy, Debug)]
pub struct Lost {
    /// Its bytes.
    pub bytes: u64,
    /// When it was sent.
    pub sent_at: Instant,
    /// Bytes in flight when it was sent, if that is remembered.
    pub in_flight: Option<u64>,
}

/// Why the window is to be reduced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Duplicate or selective acknowledgements (RFC 5681 §3.2).
    Loss,
    /// ECN-Echo (RFC 3168 §6.1.2).
    Marks,
    /// The retransmission timer (RFC 5681 §3.1 (4)).
    Timeout,
}

/// A congestion controller. Its window, which is passed along, is the answer to how much may be in flight.
pub(super) trait Controller: Clone + fmt::Debug + Default {
    /// It wants every acknowledgement, [`Measured`], and every run and lost segment. Then transmit runs are remembered
    /// for samples of the delivery rate. Others get the acknowledgements that may raise the window.
    const MEASURES: bool = false;
    /// It wants to know which bytes met congestion: [`on_echo`](Self::on_echo) is called, and the receiver
    /// echoes the marks one by one (RFC 8257 §3.2). ECN is required.
    const EXACT_ECN: bool = false;
    /// The reaction to marks is less than that to a loss: a loss in the same window reduces again (RFC 8257
    /// §3.5).
    const MARKS_ARE_MILD: bool = false;
    /// The window follows RFC 5681: the threshold on loss, proportional reduction (RFC 6937), one segment after
    /// a time-out, restart after idle. If not, the methods about these do nothing, and the window is this
    /// controller's alone.
    const LOSS_BASED: bool = true;

    /// Growth in congestion avoidance, bytes.
    fn increase(&mut self, _window: &Window, _ack: &Acked) -> u64 {
        0
    }

    /// The threshold after a congestion event with `flight` bytes outstanding; a floor is kept beside.
    fn reduce(&mut self, window: &Window, _cause: Cause, _flight: u64) -> u64 {
        window.cwnd
    }

    /// Where it keeps transmit runs, for samples of the delivery rate. Only with [`MEASURES`](Self::MEASURES).
    fn sampler(&mut self) -> Option<&mut Sampler> {
        None
    }

    /// A run was sent. Only with [`MEASURES`](Self::MEASURES).
    fn on_sent(&mut self, _window: &mut Window, _run: &Run) {}

    /// An acknowledgement. The default is slow start, then [`increase`](Self::increase) (RFC 5681 §3.1).
    #[inline]
    fn on_ack(&mut self, window: &mut Window, ack: &Acked) {
        match ack.growth {
            Growth::Allowed if window.in_slow_start() => window.slow_start(ack.acked),
            Growth::Allowed => {
                let bytes = self.increase(window, ack);
                window.grow(bytes);
            }
            Growth::SourceLimited => self.on_limited_by_source(),
            Growth::None => {}
        }
    }

    /// An acknowledgement of new data came, before [`reduce`](Self::reduce) for its marks and before
    /// [`on_ack`](Self::on_ack). Only with [`EXACT_ECN`](Self::EXACT_ECN).
    fn on_echo(&mut self, _echo: &Echo) {}

    /// A segment was found lost. Only with [`MEASURES`](Self::MEASURES).
    fn on_lost(&mut self, _window: &mut Window, _lost: &Lost) {}

    /// The retransmission timer expired, beyond what happens to window and threshold.
    fn on_timeout(&mut self) {}

    /// Something else than the window limits sending, or nothing was sent for a time-out (RFC 5681 §4.1).
    fn on_limited_by_source(&mut self) {}

    /// Full segments are of `after` bytes now; the window has its bytes.
    fn on_segment_size(&mut self, _before: u64, _after: u64) {}

    /// Nothing is in flight: memory that is not needed now can go.
    fn release(&mut self) {
        self.on_limited_by_source();
    }

    /// The last congestion event was spurious; `prior` is the controller before it (RFC 4015 §4).
    fn undo(&mut self, prior: &Self) {
        *self = prior.clone();
    }

    /// An estimate of the fraction of what is sent that meets congestion, if it keeps one.
    fn marked_fraction(&self) -> Option<f64> {
        None
    }

    /// Pacing rate and burst for segments of `smss` bytes, `None` for unpaced.
    fn pace(&self, window: &Window, smss: u64, path: PacedPath) -> Option<Pace> {
        Pace::new(window.cwnd, smss, path, window.in_slow_start())
    }
}
