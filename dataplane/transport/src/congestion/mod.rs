//! Congestion control by one of several controllers. A controller bounds the bytes in flight and the rate at which they
//! are sent (RFC 5681).
//!
//! A new controller needs a file in this directory that implements [`Controller`](controller::Controller), its `mod`
//! line, and a line in [`controllers!`] below with its configuration name. [`controller`] lists the inputs of a
//! controller. All amounts are bytes. Loss recovery decides which segments are lost and when to retransmit.

mod controller;
mod cubic;
mod dctcp;
mod hystart;
mod newreno;
mod rate;
#[cfg(any(test, feature = "testing"))]
mod rate_driven;
mod window;

use base::Nanos;

use self::controller::Controller;
use self::hystart::SlowStartMode;
use self::window::Window;
use crate::pacing::{Pace, PacedPath};
use crate::seq::ExtSeq;

pub use self::controller::{AckSample, Cause, EcnEcho, Growth, LostSegment, PathSample};
pub use self::rate::{RateSample, Run};

/// Declares the controllers that are selectable by configuration name, and the controllers for tests only. The first
/// argument is the token `$`. The macros that this macro declares need it, and a macro's body cannot contain it
/// literally.
macro_rules! controllers {
    (
        $d:tt
        chosen {
            $($(#[doc = $doc:literal])*
            $name:ident = $key:literal, $controller:ty $(, $default:ident)?;)*
        }
        tests {
            $($(#[doc = $test_doc:literal])* $test:ident, $test_controller:ty;)*
        }
    ) => {
        /// Selects a congestion controller.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub enum CongestionControl {
            $($(#[doc = $doc])* $(#[$default])? $name,)*
            $($(#[doc = $test_doc])* #[cfg(any(test, feature = "testing"))] $test,)*
        }

        impl CongestionControl {
            /// The controllers that an operator may select, with their configuration names.
            pub const NAMED: &[(&str, CongestionControl)] = &[
                $(($key, CongestionControl::$name),)*
            ];
        }

        #[derive(Clone, Debug)]
        enum Algorithm {
            $($name($controller),)*
            $(#[cfg(any(test, feature = "testing"))] $test($test_controller),)*
        }

        impl Algorithm {
            fn new(choice: CongestionControl) -> Self {
                match choice {
                    $(CongestionControl::$name => Algorithm::$name(Default::default()),)*
                    $(#[cfg(any(test, feature = "testing"))]
                    CongestionControl::$test => Algorithm::$test(Default::default()),)*
                }
            }

            /// Undoes a spurious congestion event in the selected controller.
            fn undo(&mut self, prior: &Algorithm) {
                match (self, prior) {
                    $((Algorithm::$name(now), Algorithm::$name(prior)) => now.undo(prior),)*
                    $(#[cfg(any(test, feature = "testing"))]
                    (Algorithm::$test(now), Algorithm::$test(prior)) => now.undo(prior),)*
                    _ => {}
                }
            }
        }

        /// Evaluates an expression with the selected controller.
        macro_rules! each {
            ($d algorithm:expr, $d it:ident => $d do:expr) => {
                match $d algorithm {
                    $(Algorithm::$name($d it) => $d do,)*
                    $(#[cfg(any(test, feature = "testing"))] Algorithm::$test($d it) => $d do,)*
                }
            };
        }

        /// Evaluates to a constant of the selected controller.
        macro_rules! constant {
            ($d choice:expr, $d constant:ident) => {
                match $d choice {
                    $(CongestionControl::$name => <$controller>::$d constant,)*
                    $(#[cfg(any(test, feature = "testing"))]
                    CongestionControl::$test => <$test_controller>::$d constant,)*
                }
            };
        }
    };
}

controllers! { $
    chosen {
        /// CUBIC (RFC 9438).
        Cubic = "cubic", cubic::Cubic, default;
        /// Reno's additive increase (RFC 5681, RFC 9260 §7.2.2).
        NewReno = "newreno", newreno::NewReno;
        /// DCTCP (RFC 8257): needs ECN, and a network whose queues mark early.
        Dctcp = "dctcp", dctcp::Dctcp;
    }
    tests {
        /// Controller for tests that limits only the pacing rate.
        RateDriven, rate_driven::RateDriven;
    }
}

impl CongestionControl {
    /// Returns the controller with the configuration name `name`.
    pub fn from_name(name: &str) -> Option<CongestionControl> {
        CongestionControl::NAMED.iter().find(|(key, _)| *key == name).map(|(_, choice)| *choice)
    }

    /// Returns true if the controller requires ECN, with each mark echoed (RFC 8257 §3.2).
    pub const fn exact_ecn(self) -> bool {
        constant!(self, EXACT_ECN)
    }
}

/// Congestion control of a connection. All its state is in one [`CongestionState`], so that a copy
/// of the state is a snapshot.
#[derive(Debug)]
pub struct Congestion {
    state: CongestionState,
}

/// Window and controller. A snapshot is taken before a congestion event, and restored if the event
/// proves spurious.
#[derive(Clone, Debug)]
pub struct CongestionState {
    window: Window,
    algorithm: Algorithm,
}

impl Congestion {
    /// Starts with an initial window of `segments` segments of `smss` bytes (RFC 6928). The window is at most
    /// `send_window` bytes.
    pub fn new(choice: CongestionControl, send_window: u64, smss: usize, segments: u32) -> Self {
        let window = Window::new(smss, segments, send_window);
        Congestion { state: CongestionState { window, algorithm: Algorithm::new(choice) } }
    }

    /// Sets the minimum threshold to `segments` segments (RFC 9260 §7.2.3: four).
    #[must_use]
    pub fn with_floor(mut self, segments: u8) -> Self {
        self.state.window.floor = segments;
        self
    }

    /// Sets whether pacing spreads the data that an acknowledgement releases. Without pacing, an
    /// acknowledgement counts for a bounded number of segments in slow start (RFC 9406 §4.2).
    #[must_use]
    pub fn with_pacing(mut self, paced: bool) -> Self {
        self.state.window.paced = paced;
        self
    }

    // --- queries ------------------------------------------------------------------------------------

    /// Returns the congestion window: bytes that may be in flight.
    #[inline]
    pub fn cwnd(&self) -> u64 {
        self.state.window.cwnd
    }

    /// Returns the slow-start threshold, bytes.
    #[inline]
    pub fn ssthresh(&self) -> u64 {
        self.state.window.ssthresh
    }

    /// Returns true below the slow-start threshold.
    #[inline]
    pub fn in_slow_start(&self) -> bool {
        self.state.window.in_slow_start()
    }

    /// Returns the send window: the maximum number of bytes sent and not cumulatively acknowledged, SACKed or not. The
    /// send window bounds the sender's state even if the peer offers a larger window. At least two segments.
    #[inline]
    pub fn send_window(&self) -> u64 {
        self.state.window.send_window.into()
    }

    /// Returns true if pacing spreads the data that an acknowledgement releases, where the round trip is long enough.
    pub(crate) fn is_paced(&self) -> bool {
        self.state.window.paced
    }

    /// Returns the bytes of a full segment (SMSS).
    pub(crate) fn smss(&self) -> u64 {
        self.state.window.smss()
    }

    /// Returns pacing rate and burst for segments of `smss` bytes, `None` for unpaced.
    pub fn pace(&self, smss: u64, path: PacedPath) -> Option<Pace> {
        each!(&self.state.algorithm, it => it.pace(&self.state.window, smss, path))
    }

    /// Returns the fraction of sent bytes that meet congestion, if the controller keeps an estimate
    /// (RFC 8257 §3.3).
    pub fn marked_fraction(&self) -> Option<f64> {
        each!(&self.state.algorithm, it => it.marked_fraction())
    }

    /// Returns true if the controller receives transmit runs, lost segments, and every acknowledgement with its
    /// measurements.
    #[inline]
    pub fn needs_samples(&self) -> bool {
        each!(&self.state.algorithm, it => needs_samples(it))
    }

    // --- events -------------------------------------------------------------------------------------

    /// Processes a transmit run. Has no effect unless the controller [needs samples](Self::needs_samples).
    pub fn on_sent(&mut self, run: &Run) {
        let CongestionState { window, algorithm } = &mut self.state;
        each!(algorithm, it => {
            if let Some(sampler) = it.sampler() {
                sampler.on_sent(run);
                it.on_sent(window, run);
            }
        });
    }

    /// Processes a round-trip measurement for HyStart++. `una` and `nxt` are SND.UNA and SND.NXT.
    pub fn on_round_trip(&mut self, rtt: Nanos, una: ExtSeq, nxt: ExtSeq) {
        let window = &mut self.state.window;
        if window.ssthresh == u64::MAX
            && window.hystart.on_round_trip(rtt, una, nxt) == SlowStartMode::Finished
        {
            window.ssthresh = window.cwnd; // RFC 9406 §4.2: the first slow start is over
        }
    }

    /// Processes the ECN-Echo flag, set or not, of an acknowledgement of new data. Called before any other method for
    /// the same acknowledgement.
    #[inline]
    pub fn on_echo(&mut self, echo: &EcnEcho) {
        each!(&mut self.state.algorithm, it => it.on_echo(echo));
    }

    /// Records that the congestion window does not limit sending.
    #[inline]
    pub fn on_app_limited(&mut self) {
        each!(&mut self.state.algorithm, it => it.on_app_limited());
    }

    /// Processes an acknowledgement after its losses are found. Called only for acknowledgements that may raise the
    /// window, or for all if the controller [needs samples](Self::needs_samples).
    pub fn on_ack(&mut self, ack: &AckSample) {
        let CongestionState { window, algorithm } = &mut self.state;
        each!(algorithm, it => match (it.sampler(), ack.path_sample) {
            (Some(sampler), Some(measured)) => {
                let PathSample { delivered, newest, min_rtt, .. } = measured;
                let rate = sampler.on_ack(ack.now, delivered, newest, min_rtt);
                let measured = Some(PathSample { rate, ..measured });
                it.on_ack(window, &AckSample { path_sample: measured, ..*ack });
            }
            _ => it.on_ack(window, ack),
        });
    }

    /// Processes a segment that was found lost. Has no effect unless the controller [needs
    /// samples](Self::needs_samples).
    pub fn on_segment_lost(&mut self, bytes: u64, sent_at: base::Instant) {
        let CongestionState { window, algorithm } = &mut self.state;
        each!(algorithm, it => {
            if let Some(sampler) = it.sampler() {
                let in_flight = sampler.on_lost(bytes, sent_at);
                it.on_lost(window, &LostSegment { bytes, sent_at, in_flight });
            }
        });
    }

    /// Reduces the window for a loss found by duplicate or selective acknowledgements (RFC 5681 §3.2, RFC 6675 §5
    /// (4.2), RFC 9438 §4.6). `flight`: bytes outstanding.
    pub fn on_loss(&mut self, flight: u64) {
        self.reduce(Cause::Loss, flight);
    }

    /// Processes a loss in a window that was already reduced for marks. One reduction suffices
    /// (RFC 3168 §6.1.2), unless the reaction to marks is weaker than to a loss (RFC 8257 §3.5).
    pub fn on_loss_after_marks(&mut self, flight: u64) {
        if self.has_mild_ecn_response() {
            self.reduce(Cause::Loss, flight);
        }
    }

    /// Reduces the window because the peer echoed marks, with `flight` bytes outstanding (RFC 3168 §6.1.2).
    pub fn on_marks(&mut self, flight: u64) {
        self.reduce(Cause::Marks, flight);
    }

    /// Processes an expiry of the retransmission timer (RFC 5681 §3.1 (4), RFC 9438 §4.8). `reduced`: the cause of an
    /// earlier reduction of the threshold for the same window of data, if any.
    pub fn on_timeout(&mut self, flight: u64, reduced: Option<Cause>) {
        if !self.loss_based() {
            return each!(&mut self.state.algorithm, it => it.on_timeout());
        }
        let again = match reduced {
            None => false,
            Some(Cause::Marks) => !self.has_mild_ecn_response(),
            Some(_) => true,
        };
        if !again {
            self.lower_threshold(Cause::Timeout, flight);
        }
        each!(&mut self.state.algorithm, it => it.on_timeout());
        self.state.window.cwnd = self.state.window.smss();
    }

    /// Raises the window after a genuine time-out (RFC 5682 §2.1 step 3a) to `pipe` bytes plus one retransmission, at
    /// most three segments. `pipe`: bytes in the network, including F-RTO's new segments.
    pub fn on_genuine_timeout(&mut self, pipe: u64) {
        let window = &mut self.state.window;
        window.cwnd = window.cwnd.max((pipe + window.smss()).min(3 * window.smss()));
    }

    /// Sets the window at the end of a recovery with `flight` bytes outstanding: at most one segment more than
    /// `flight`, so that no burst follows (RFC 6582 §3.2 (3)).
    pub fn on_recovered(&mut self, flight: u64) {
        if self.loss_based() {
            let window = &mut self.state.window;
            let smss = window.smss();
            window.cwnd = window.ssthresh.min(flight.max(smss) + smss).max(2 * smss);
        }
    }

    /// Sets the window during a proportional reduction (RFC 6937).
    pub fn set_prr_cwnd(&mut self, cwnd: u64) {
        if self.loss_based() {
            self.state.window.cwnd = cwnd;
        }
    }

    /// Ends a proportional reduction (RFC 6937 §3).
    pub fn end_reduction(&mut self) {
        if self.loss_based() {
            self.state.window.cwnd = self.ssthresh().min(self.send_window());
        }
    }

    /// Returns a snapshot of window and controller.
    pub fn save(&self) -> CongestionState {
        self.state.clone()
    }

    /// Undoes a spurious congestion event: restores `prior`, with a window no smaller than now (RFC 4015 §3.4).
    pub fn undo(&mut self, prior: &CongestionState) {
        let window = &self.state.window;
        let (cwnd, smss) = (window.cwnd.max(prior.window.cwnd), window.smss);
        self.state.window = Window { cwnd, ..prior.window.clone() };
        self.state.algorithm.undo(&prior.algorithm);
        self.set_smss(smss.into());
    }

    /// Reduces the window to the restart window after an idle time of more than a time-out (RFC 5681 §4.1).
    /// The threshold rises to at least three quarters of the old window (RFC 2861 §3.2).
    pub fn restart_after_idle(&mut self, initial_segments: u32) {
        if self.loss_based() {
            let window = &mut self.state.window;
            window.raise_ssthresh();
            let restart = window.smss() * u64::from(initial_segments.max(1));
            window.cwnd = window.cwnd.min(restart);
        }
        self.on_app_limited();
    }

    /// Halves the window for each of `timeouts` time-outs without transmission, but not below `least`
    /// segments (RFC 9260 §7.2.1). The threshold rises to at least three quarters of the old window.
    pub fn decay(&mut self, timeouts: u32, least: u32) {
        if self.loss_based() {
            let window = &mut self.state.window;
            window.raise_ssthresh();
            let floor = window.cwnd.min(window.smss() * u64::from(least));
            window.cwnd = (window.cwnd >> timeouts.min(63)).max(floor);
        }
        self.on_app_limited();
    }

    /// Reduces the window after an RTO during which at most `used` bytes were in flight (RFC 2861 §3.2). The new
    /// window is halfway between the old window and `used`. A `used` below `initial_segments` segments is raised to
    /// that size.
    pub fn reduce_unused_cwnd(&mut self, used: u64, initial_segments: u32) {
        let window = &mut self.state.window;
        let used = used.max(window.smss() * u64::from(initial_segments.max(1)));
        if used < window.cwnd && self.loss_based() {
            let window = &mut self.state.window;
            window.raise_ssthresh();
            window.cwnd = u64::midpoint(window.cwnd, used);
        }
    }

    /// Sets the segment size. The window in bytes is unchanged, but is at least one segment.
    pub fn set_smss(&mut self, smss: usize) {
        let CongestionState { window, algorithm } = &mut self.state;
        let before = window.smss();
        window.smss = smss as u16;
        window.cwnd = window.cwnd.max(window.smss());
        window.send_window = window.send_window.max(2 * smss as u32);
        if before != window.smss() {
            each!(algorithm, it => it.on_segment_size(before, window.smss()));
        }
    }

    /// Frees state that is not needed while nothing is in flight. HyStart++ starts with a new round.
    pub fn shrink(&mut self) {
        self.state.window.hystart.release();
        each!(&mut self.state.algorithm, it => it.release());
    }

    // --- private helpers ----------------------------------------------------------------------------

    fn reduce(&mut self, cause: Cause, flight: u64) {
        if self.loss_based() {
            self.lower_threshold(cause, flight);
            self.state.window.cwnd = self.state.window.ssthresh;
        }
    }

    fn lower_threshold(&mut self, cause: Cause, flight: u64) {
        let CongestionState { window, algorithm } = &mut self.state;
        let bytes = each!(algorithm, it => it.reduce(window, cause, flight));
        window.set_threshold(bytes);
    }

    fn loss_based(&self) -> bool {
        each!(&self.state.algorithm, it => loss_based(it))
    }

    fn has_mild_ecn_response(&self) -> bool {
        each!(&self.state.algorithm, it => has_mild_ecn_response(it))
    }
}

fn needs_samples<C: Controller>(_: &C) -> bool {
    C::NEEDS_SAMPLES
}

fn loss_based<C: Controller>(_: &C) -> bool {
    C::LOSS_BASED
}

fn has_mild_ecn_response<C: Controller>(_: &C) -> bool {
    C::MILD_ECN_RESPONSE
}

#[cfg(test)]
mod tests;
