//! Congestion control: how much may be in flight (RFC 5681), by CUBIC (RFC 8312) or Reno's increase.
//!
//! All amounts are octets. What was lost and when to retransmit is the business of loss recovery.

mod cubic;
mod hystart;
mod newreno;

use core::time::Duration;

use base::{Instant, Lazy};

use self::cubic::Cubic;
use self::hystart::{Growth, HyStart};
use self::newreno::NewReno;
use crate::parameters::{CongestionControl, Parameters};
use crate::seq::ExtSeq;

/// One acknowledgement counts for at most this many segments in slow start. RFC 3465 (appropriate byte
/// counting) says 2; a worker acknowledges a burst of up to 8 segments at once.
const SLOW_START_SEGMENTS_PER_ACK: u64 = 8;

#[derive(Clone, Debug)]
enum Algorithm {
    NewReno(NewReno),
    Cubic(Cubic),
}

/// The congestion state of a connection.
#[derive(Clone, Debug)]
pub struct Congestion {
    algorithm: Algorithm,
    cwnd: u64,
    ssthresh: u64,
    smss: u16,
    send_window: u32,
    /// In the slow start that follows a time-out, one segment per acknowledgement (RFC 3465 §2.3).
    after_timeout: bool,
    /// Segments below which the threshold does not come.
    floor: u8,
    /// When the first slow start ends.
    hystart: Lazy<HyStart>,
}

impl Congestion {
    /// With an initial window of `segments` segments of `smss` octets (RFC 6928).
    pub fn new(config: &impl Parameters, smss: usize, segments: u32) -> Self {
        Congestion {
            algorithm: match config.congestion() {
                CongestionControl::NewReno => Algorithm::NewReno(NewReno::default()),
                CongestionControl::Cubic => Algorithm::Cubic(Cubic::default()),
            },
            cwnd: smss as u64 * u64::from(segments.max(1)),
            ssthresh: u64::MAX, // RFC 5681 §3.1: arbitrarily high
            smss: smss as u16,
            send_window: u32::try_from(config.send_window())
                .unwrap_or(u32::MAX)
                .max(2 * smss as u32),
            after_timeout: false,
            floor: 2, // RFC 5681 §3.1 (4), RFC 8312 §4.5
            hystart: Lazy::new(),
        }
    }

    fn smss(&self) -> u64 {
        self.smss.into()
    }

    /// Most bytes that may be sent and not acknowledged, reported by SACK or not: what is kept of them is
    /// bounded, whatever window the peer offers. Two segments at least.
    #[inline]
    pub fn send_window(&self) -> u64 {
        self.send_window.into()
    }

    /// Nothing is in flight: the next round trip is measured anew.
    pub fn relax(&mut self) {
        self.hystart.release();
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.relax();
        }
    }

    /// With a threshold of at least `segments` segments (RFC 9260 §7.2.3: four).
    #[must_use]
    pub fn with_floor(self, segments: u8) -> Self {
        Congestion { floor: segments, ..self }
    }

    /// Octets that may be in flight.
    pub fn cwnd(&self) -> u64 {
        self.cwnd
    }

    /// Slow-start threshold.
    pub fn ssthresh(&self) -> u64 {
        self.ssthresh
    }

    /// True below the slow-start threshold.
    pub fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// A round trip was measured; `una` and `nxt` are SND.UNA and SND.NXT.
    pub fn on_round_trip(&mut self, rtt: Duration, una: ExtSeq, nxt: ExtSeq) {
        if self.ssthresh == u64::MAX && self.hystart.on_round_trip(rtt, una, nxt) == Growth::Over {
            self.ssthresh = self.cwnd; // RFC 9406 §4.2
        }
    }

    /// New data was acknowledged outside of fast recovery, `acked` octets of it, while the window was what
    /// limited sending.
    pub fn on_ack(&mut self, now: Instant, acked: u64, srtt: Duration) {
        if self.cwnd < self.ssthresh {
            // RFC 5681 §3.1, slow start.
            let segments = if self.after_timeout { 1 } else { SLOW_START_SEGMENTS_PER_ACK };
            let divisor = if self.ssthresh == u64::MAX { self.hystart.divisor() } else { 1 };
            let grown = self.cwnd + acked.min(segments * self.smss()) / divisor;
            self.cwnd = grown.min(self.ssthresh.max(self.cwnd));
        } else {
            self.after_timeout = false;
            let (cwnd, smss) = (self.cwnd, self.smss());
            self.cwnd += match &mut self.algorithm {
                Algorithm::NewReno(reno) => reno.increase(cwnd, smss, acked),
                Algorithm::Cubic(cubic) => cubic.increase(now, cwnd, smss, acked, srtt),
            };
        }
        self.cwnd = self.cwnd.min(self.send_window());
    }

    /// Something else than the window limited sending: it does not grow.
    pub fn on_limited_by_source(&mut self) {
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.pause();
        }
    }

    /// Loss was found by duplicate or selective acknowledgements with `flight` octets outstanding
    /// (RFC 5681 §3.2, RFC 6675 §5 (4.2), RFC 8312 §4.5).
    pub fn on_loss(&mut self, flight: u64) {
        self.ssthresh = self.reduced(flight);
        self.cwnd = self.ssthresh;
    }

    /// The retransmission timer expired (RFC 5681 §3.1 (4), RFC 8312 §4.7); `again` when it did so for the
    /// same segment before.
    pub fn on_timeout(&mut self, flight: u64, again: bool) {
        if !again {
            self.ssthresh = self.reduced(flight);
        }
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.on_timeout();
        }
        self.cwnd = self.smss();
        self.after_timeout = true;
    }

    /// The time-out was genuine, and segments of new data are out that asked, `pipe` octets with all else:
    /// there must be room for a retransmission besides (RFC 5682 §2.1 step 3a).
    pub fn after_new_data(&mut self, pipe: u64) {
        self.cwnd = self.cwnd.max((pipe + self.smss()).min(3 * self.smss()));
    }

    /// Recovery is over with `flight` octets outstanding: no burst (RFC 6582 §3.2 (3)).
    pub fn on_recovered(&mut self, flight: u64) {
        self.cwnd = self.ssthresh.min(flight.max(self.smss()) + self.smss()).max(2 * self.smss());
    }

    /// The window during a proportional reduction (RFC 6937).
    pub fn set_reduced(&mut self, cwnd: u64) {
        self.cwnd = cwnd;
    }

    /// A proportional reduction is over (RFC 6937 §3).
    pub fn end_reduction(&mut self) {
        self.cwnd = self.ssthresh.min(self.send_window.into());
    }

    /// What was taken for loss was none: as it was in `prior`, unless it is more now (RFC 4015 §4).
    pub fn undo(&mut self, prior: &Congestion) {
        let cwnd = self.cwnd.max(prior.cwnd);
        let smss = self.smss;
        *self = prior.clone();
        self.cwnd = cwnd;
        self.set_smss(smss as usize);
    }

    /// Nothing was sent for more than a time-out (RFC 5681 §4.1). The threshold remembers the window
    /// (RFC 2861 §3.2).
    pub fn after_idle(&mut self, initial_segments: u32) {
        self.remember();
        self.cwnd = self.cwnd.min(self.smss() * u64::from(initial_segments.max(1)));
        self.on_limited_by_source();
    }

    /// Nothing was sent for so many time-outs: by half for each, but not below `least` segments (RFC 9260
    /// §7.2.1). The threshold remembers the window.
    pub fn decay(&mut self, timeouts: u32, least: u32) {
        self.remember();
        let floor = self.cwnd.min(self.smss() * u64::from(least));
        self.cwnd = (self.cwnd >> timeouts.min(63)).max(floor);
        self.on_limited_by_source();
    }

    /// No more than `used` octets of the window were used for a time-out (RFC 2861 §3.2).
    pub fn on_unused(&mut self, used: u64, initial_segments: u32) {
        let used = used.max(self.smss() * u64::from(initial_segments.max(1)));
        if used < self.cwnd {
            self.remember();
            self.cwnd = u64::midpoint(self.cwnd, used);
        }
    }

    /// Three quarters of the window: from there it grows slowly again.
    fn remember(&mut self) {
        self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
    }

    /// The segment size changed; the window keeps its octets, but holds at least one segment.
    pub fn set_smss(&mut self, smss: usize) {
        self.smss = smss as u16;
        self.cwnd = self.cwnd.max(self.smss());
        self.send_window = self.send_window.max(2 * smss as u32);
    }

    fn reduced(&mut self, flight: u64) -> u64 {
        let (cwnd, smss) = (self.cwnd, self.smss());
        let reduced = match &mut self.algorithm {
            Algorithm::NewReno(_) => NewReno::reduce(flight),
            Algorithm::Cubic(cubic) => cubic.reduce(cwnd, smss),
        };
        reduced.max(u64::from(self.floor) * self.smss())
    }
}

#[cfg(test)]
mod tests;
