//! Congestion control: how much may be in flight (RFC 5681), by CUBIC (RFC 8312) or Reno's increase.
//!
//! All amounts are octets. What was lost and when to retransmit is the business of loss recovery.

mod cubic;
mod newreno;

use core::time::Duration;

use wire::Instant;

use self::cubic::Cubic;
use self::newreno::NewReno;
use super::config::{Config, CongestionControl};

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
pub(crate) struct Congestion {
    algorithm: Algorithm,
    cwnd: u64,
    ssthresh: u64,
    smss: u64,
    max_cwnd: u64,
    /// In the slow start that follows a time-out, one segment per acknowledgement (RFC 3465 §2.3).
    after_timeout: bool,
}

impl Congestion {
    /// With an initial window of `segments` segments of `smss` octets (RFC 6928).
    pub(crate) fn new(config: &Config, smss: usize, segments: u32) -> Self {
        let smss = smss as u64;
        Congestion {
            algorithm: match config.congestion {
                CongestionControl::NewReno => Algorithm::NewReno(NewReno::default()),
                CongestionControl::Cubic => Algorithm::Cubic(Cubic::default()),
            },
            cwnd: smss * u64::from(segments.max(1)),
            ssthresh: u64::MAX, // RFC 5681 §3.1: arbitrarily high
            smss,
            max_cwnd: config.max_cwnd,
            after_timeout: false,
        }
    }

    /// Octets that may be in flight.
    pub(crate) fn cwnd(&self) -> u64 {
        self.cwnd
    }

    /// Slow-start threshold.
    pub(crate) fn ssthresh(&self) -> u64 {
        self.ssthresh
    }

    /// New data was acknowledged outside of fast recovery, `acked` octets of it, while the window was what
    /// limited sending.
    pub(crate) fn on_ack(&mut self, now: Instant, acked: u64, srtt: Duration) {
        if self.cwnd < self.ssthresh {
            // RFC 5681 §3.1, slow start.
            let segments = if self.after_timeout { 1 } else { SLOW_START_SEGMENTS_PER_ACK };
            self.cwnd += acked.min(segments * self.smss);
        } else {
            self.after_timeout = false;
            self.cwnd += match &mut self.algorithm {
                Algorithm::NewReno(reno) => reno.increase(self.cwnd, self.smss, acked),
                Algorithm::Cubic(cubic) => cubic.increase(now, self.cwnd, self.smss, acked, srtt),
            };
        }
        self.cwnd = self.cwnd.min(self.max_cwnd.max(2 * self.smss));
    }

    /// Something else than the window limited sending: it does not grow.
    pub(crate) fn on_limited_by_source(&mut self) {
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.pause();
        }
    }

    /// Loss was found by duplicate or selective acknowledgements with `flight` octets outstanding
    /// (RFC 5681 §3.2, RFC 6675 §5 (4.2), RFC 8312 §4.5).
    pub(crate) fn on_loss(&mut self, flight: u64) {
        self.ssthresh = self.reduced(flight);
        self.cwnd = self.ssthresh;
    }

    /// The retransmission timer expired (RFC 5681 §3.1 (4), RFC 8312 §4.7); `again` when it did so for the
    /// same segment before.
    pub(crate) fn on_timeout(&mut self, flight: u64, again: bool) {
        if !again {
            self.ssthresh = self.reduced(flight);
        }
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.on_timeout();
        }
        self.cwnd = self.smss;
        self.after_timeout = true;
    }

    /// Recovery is over with `flight` octets outstanding: no burst (RFC 6582 §3.2 (3)).
    pub(crate) fn on_recovered(&mut self, flight: u64) {
        self.cwnd = self.ssthresh.min(flight.max(self.smss) + self.smss).max(2 * self.smss);
    }

    /// Nothing was sent for more than a time-out (RFC 5681 §4.1).
    pub(crate) fn after_idle(&mut self, initial_segments: u32) {
        self.cwnd = self.cwnd.min(self.smss * u64::from(initial_segments.max(1)));
        self.on_limited_by_source();
    }

    /// The segment size changed; the window keeps its octets, but holds at least one segment.
    pub(crate) fn set_smss(&mut self, smss: usize) {
        self.smss = smss as u64;
        self.cwnd = self.cwnd.max(self.smss);
    }

    fn reduced(&mut self, flight: u64) -> u64 {
        let reduced = match &mut self.algorithm {
            Algorithm::NewReno(_) => NewReno::reduce(flight),
            Algorithm::Cubic(cubic) => cubic.reduce(self.cwnd, self.smss),
        };
        reduced.max(2 * self.smss) // RFC 5681 §3.1 (4), RFC 8312 §4.5
    }
}

#[cfg(test)]
mod tests;
