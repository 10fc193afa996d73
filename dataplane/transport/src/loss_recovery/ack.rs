//! Processing of an acknowledgement: round-trip times, the end of a recovery, the undo of spurious episodes, the
//! congestion window. The owner calls the steps in the order given in the [parent module](super).

use base::{Instant, Nanos};

use super::LossRecovery;
use super::flight_state::FlightState;
use super::scoreboard::Scoreboard;
use crate::congestion::{AckSample, EcnEcho, Growth, PathSample};
use crate::delivery::{Delivery, Transmission};
use crate::episode::{Episode, Proof};
use crate::frto::{self, AckEvidence, Frto, Verdict};
use crate::parameters::Parameters;
use crate::ranges::Range;
use crate::recovery::Phase;
use crate::seq::ExtSeq;
use crate::tlp::{TlpAck, TlpOutcome};

/// An acknowledgement after the scoreboard has processed it.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// Time of arrival.
    pub now: Instant,
    /// SEG.ACK, or the number after SCTP's Cumulative TSN Ack.
    pub ack: ExtSeq,
    /// Report of the segments newly acknowledged or SACKed.
    pub delivery: Delivery,
    /// True if SND.UNA, or SCTP's Cumulative TSN Ack Point, advanced.
    pub advanced: bool,
    /// Bytes in flight before this acknowledgement. The reduction after a repaired tail loss and the weight of a
    /// round-trip sample depend on this number.
    pub flight_before: u64,
    /// Newly acknowledged bytes that count for growth of the congestion window.
    pub acked: u64,
    /// Bytes of `acked` that were reported as marked (ECN-Echo, RFC 8257 §3.3).
    pub marked: u64,
    /// Time at which this sender sent the timestamp that the acknowledgement echoes, in [`Instant::as_millis`]. `None`
    /// if no new data is acknowledged.
    pub echoed_ms: Option<u64>,
    /// The round-trip time by the echoed timestamp, if usable (RFC 7323 §4.3).
    pub echoed_rtt: Option<Nanos>,
    /// True if a D-SACK reports data that was retransmitted in this episode ([`DsackOrigin::resent`]).
    pub resent_twice: bool,
    /// True if a D-SACK reports exactly the data that the tail loss probe retransmitted: original and probe arrived
    /// ([`DsackOrigin::probe`]).
    pub probe_twice: bool,
    /// True for a duplicate acknowledgement without a SACK block (RFC 8985 §7.4.2).
    pub bare_duplicate: bool,
    /// True for a duplicate acknowledgement, and for a report of newly received data (RFC 5682 §3.1).
    pub duplicate: bool,
    /// True if new data waits and the peer's window has room for it.
    pub can_send_new: bool,
    /// True if the peer uses SACK.
    pub sack: bool,
}

impl Ack {
    /// Creates an acknowledgement of everything below `ack`. The other fields state: no bytes newly acknowledged, no
    /// timestamp echo, no report of duplicates.
    #[inline]
    pub fn new(now: Instant, ack: ExtSeq, delivery: Delivery, sack: bool) -> Self {
        Ack {
            now,
            ack,
            delivery,
            advanced: false,
            flight_before: 0,
            acked: 0,
            marked: 0,
            echoed_ms: None,
            echoed_rtt: None,
            resent_twice: false,
            probe_twice: false,
            bare_duplicate: false,
            duplicate: false,
            can_send_new: false,
            sack,
        }
    }
}

/// Transmissions of this sender that explain a report of duplicate data: a D-SACK, or a duplicate TSN in SCTP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DsackOrigin {
    /// True if the report covers data retransmitted in the present loss episode.
    pub resent: bool,
    /// True if the report covers exactly the data that the tail loss probe retransmitted.
    pub probe: bool,
}

impl DsackOrigin {
    /// Returns true if no transmission of this sender explains the report: the network duplicated a packet, or the
    /// report is false.
    pub fn is_unexplained(self) -> bool {
        !self.resent && !self.probe
    }
}

/// The proof by which a spurious episode was undone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UndoProof {
    /// F-RTO's test of a time-out (RFC 5682).
    Frto,
    /// An echoed timestamp older than the retransmission (RFC 3522).
    Timestamp,
    /// D-SACKs of all retransmitted data (RFC 3708).
    DSack,
}

impl LossRecovery {
    /// Passes the ECN-Echo, set or not, of an acknowledgement of new data to the congestion controller.
    pub fn on_echo(&mut self, echo: &EcnEcho) {
        self.cc.on_echo(echo);
    }

    /// Processes the delivery report of an acknowledgement.
    pub fn on_delivery(&mut self, now: Instant, delivery: &Delivery) {
        self.rack.on_delivery(now, delivery);
        if let Some(episode) = &mut self.episode {
            episode.on_delivery(delivery);
        }
    }

    /// Processes a report that the peer received `range` twice. `arrived`: all of `range` was acknowledged or SACKed
    /// before; otherwise the report is ignored. Only retransmitted ranges count (RFC 3708 §3 A).
    pub fn on_d_sack(
        &mut self,
        state: &FlightState,
        range: Range,
        arrived: bool,
        una: ExtSeq,
        nxt: ExtSeq,
    ) -> DsackOrigin {
        let resent = arrived && self.episode.as_mut().is_some_and(|e| e.on_d_sack(range));
        if resent {
            // RFC 8985 §6.2 step 4: a sign that the reordering window was too small.
            self.rack.on_d_sack(una, nxt);
        }
        DsackOrigin { resent, probe: arrived && state.tlp.is_probe_range(range) }
    }

    /// Measures the round-trip time by Karn's algorithm (RFC 6298 §3; RFC 9260 §6.3.1 C4, C5), or else by the
    /// echoed timestamp (RFC 7323 §4.1). Several measurements in a round trip together weigh as one.
    pub fn measure(
        &mut self,
        state: &mut FlightState,
        ack: &Ack,
        una: ExtSeq,
        nxt: ExtSeq,
        smss: u64,
        config: &impl Parameters,
    ) {
        if let Some(rtt) = ack.delivery.shortest_rtt() {
            self.rack.on_rtt_measured(ack.now, rtt);
            self.cc.on_round_trip(rtt, una, nxt);
        }
        if let Some(rtt) = ack.delivery.rtt().or(ack.echoed_rtt) {
            self.rtt.sample(rtt, ack.flight_before.div_ceil(2 * smss), config);
            state.tlp.on_rtt_measured();
        } else if ack.delivery.original_end.is_some() || ack.resent_twice {
            // RFC 6298 §3 (Karn): the sample is ambiguous, so it is not used. The backoff ends without a new sample,
            // earlier than §5 describes: an original was acknowledged, or a retransmission arrived twice.
            self.rtt.reset_backoff();
        }
    }

    /// Evaluates the outcome of a tail loss probe (RFC 8985 §7.4.2). Reduces the congestion window and returns true if
    /// the probe repaired a loss while no recovery or reduction was in progress.
    pub fn judge_probe(&mut self, state: &mut FlightState, ack: &Ack) -> bool {
        let info = TlpAck {
            ack: ack.ack,
            probe_twice: ack.probe_twice,
            bare_duplicate: ack.bare_duplicate,
        };
        let repaired = state.tlp.on_ack(info) == TlpOutcome::Repaired && state.phase == Phase::Open;
        if repaired {
            self.cc.on_loss(ack.flight_before);
        }
        repaired
    }

    /// Ends a recovery or reduction once everything below the phase's `point` is acknowledged (RFC 6675 §5 (A),
    /// §5.1; RFC 9260 §6.2.1 D iv, §7.2.4). Returns true if this acknowledgement ended the recovery or reduction.
    pub fn exit_phase(
        &mut self,
        state: &mut FlightState,
        board: &impl Scoreboard,
        before: Phase,
        ack: &Ack,
    ) -> bool {
        state.phase = before.after_ack(board.una());
        let over = ack.advanced && before != Phase::Open && state.phase == Phase::Open;
        if !over {
            return false;
        }
        if before.is_recovering() {
            state.resend_ignores_cwnd = false;
            self.rack.on_recovered();
        }
        if before.is_reducing() {
            if ack.sack || !before.is_recovering() {
                self.cc.end_reduction();
            } else {
                self.cc.on_recovered(board.flight());
            }
        }
        if let Some(episode) = &mut self.episode {
            episode.end_point = Some(board.nxt());
            episode.frto = Frto::Off;
        }
        true
    }

    /// Evaluates F-RTO's test, and undoes a loss episode that proves spurious. Returns the proof; `None` if nothing was
    /// undone.
    pub fn undo_if_spurious(
        &mut self,
        state: &mut FlightState,
        board: &mut impl Scoreboard,
        ack: &Ack,
    ) -> Option<UndoProof> {
        let episode = self.episode.as_deref_mut()?;
        let verdict = judge_timeout(episode, state.phase, board, ack);
        let proof = episode.proof(ack.echoed_ms, board.resent_in_flight());
        match verdict {
            Verdict::SendNew => {
                episode.frto = Frto::NewData;
                episode.frto_new_left = frto::NEW_SEGMENTS;
            }
            Verdict::Genuine => {
                if episode.frto == Frto::NewData {
                    self.cc.on_genuine_timeout(board.pipe());
                }
                episode.frto = Frto::Off;
            }
            Verdict::Wait | Verdict::Spurious => {}
        }
        let undone = match (verdict, proof) {
            (Verdict::Spurious, _) => UndoProof::Frto,
            (_, Some(Proof::Timestamp)) => UndoProof::Timestamp,
            (_, Some(Proof::DSack)) => UndoProof::DSack,
            (_, None) => return None,
        };
        self.cc.undo(&episode.prior);
        episode.on_undone(board.nxt());
        if state.phase != Phase::Open {
            board.clear_losses();
        }
        state.phase = Phase::Open;
        state.reorder_at = None;
        state.resend_ignores_cwnd = false;
        self.rtt.reset_backoff();
        Some(undone)
    }

    /// Sets the congestion window in recovery and during a reduction, and returns [`Growth::None`]. Otherwise returns
    /// whether the controller may raise the window. `before`: the phase before this acknowledgement. `lost`: segments
    /// newly found lost because of this acknowledgement.
    pub fn adjust_window(
        &mut self,
        state: &FlightState,
        board: &impl Scoreboard,
        before: Phase,
        ack: &Ack,
        lost: u64,
        smss: u64,
    ) -> Growth {
        if state.phase.is_reducing() {
            if ack.sack {
                self.reduce(board, ack.delivery.bytes, ack.advanced && lost == 0, smss);
            }
            return Growth::None;
        }
        // RFC 9260 §7.2.1: no growth by an acknowledgement that ends fast recovery or acknowledges no new data.
        if before.is_reducing() || !ack.advanced {
            return Growth::None;
        }
        let slow_start = self.cc.in_slow_start();
        if state.usage.is_limited(slow_start, self.cc.cwnd()) || before.is_recovering() {
            Growth::Allowed // after a time-out, even if the window was not full (RFC 5681 §3.1)
        } else {
            Growth::AppLimited
        }
    }

    /// Sets the window by proportional rate reduction (RFC 6937) after an acknowledgement that delivered `delivered`
    /// bytes. `safe`: SND.UNA advanced and no further loss was found.
    pub(super) fn reduce(
        &mut self,
        board: &impl Scoreboard,
        delivered: u64,
        safe: bool,
        smss: u64,
    ) {
        if let Some(episode) = &mut self.episode {
            let ssthresh = self.cc.ssthresh();
            let cwnd = episode.prr.on_ack(delivered, board.pipe(), ssthresh, smss, safe);
            self.cc.set_prr_cwnd(cwnd);
        }
    }

    /// Completes the processing of an acknowledgement. Reports it to the congestion controller, and frees an episode
    /// that is over and can no longer prove spurious.
    pub fn finish_ack(
        &mut self,
        state: &FlightState,
        board: &impl Scoreboard,
        ack: &Ack,
        growth: Growth,
        config: &impl Parameters,
    ) {
        if self.cc.needs_samples() {
            let measured = Some(self.path_sample(ack, board.pipe()));
            self.report_ack(state.phase, ack, growth, measured, config);
        } else {
            match growth {
                Growth::Allowed => self.report_ack(state.phase, ack, growth, None, config),
                Growth::AppLimited => self.cc.on_app_limited(),
                Growth::None => {}
            }
        }
        let over_at = self.episode.as_ref().and_then(|e| e.end_point);
        if state.phase == Phase::Open && over_at.is_some_and(|at| board.una() > at) {
            self.episode = None;
        }
    }

    fn path_sample(&self, ack: &Ack, in_flight: u64) -> PathSample {
        PathSample {
            delivered: ack.delivery.bytes,
            newest: ack.delivery.latest.map(|latest| latest.at),
            rtt: ack.delivery.shortest_rtt(),
            min_rtt: self.rack.min_rtt(),
            in_flight,
            rate: None,
        }
    }

    fn report_ack(
        &mut self,
        phase: Phase,
        ack: &Ack,
        growth: Growth,
        measured: Option<PathSample>,
        config: &impl Parameters,
    ) {
        let srtt = self.rtt.srtt().unwrap_or_else(|| self.rtt.rto(config));
        let Ack { now, marked, .. } = *ack;
        let acked = match phase {
            Phase::Loss { .. } => self.growth_bytes_after_timeout(ack),
            _ => ack.acked,
        };
        self.cc.on_ack(&AckSample { now, acked, marked, srtt, growth, path_sample: measured });
    }
}

impl LossRecovery {
    /// Returns true if [`on_single_ack`](Self::on_single_ack) has the same effect as the separate steps. For
    /// this, no loss episode may remain, no probe may be outstanding or due, and the congestion controller
    /// must not need samples.
    #[inline]
    pub fn accepts_single_ack(&self, state: &FlightState) -> bool {
        self.is_settled()
            && state.phase == Phase::Open
            && state.tlp.is_idle()
            && !self.cc.needs_samples()
    }

    /// Performs all steps for an acknowledgement, without SACK block or ECN-Echo, of the only segment in flight. The
    /// segment has `bytes` bytes and was sent once. Requires [`accepts_single_ack`](Self::accepts_single_ack).
    /// Afterwards nothing is in flight.
    #[inline]
    pub fn on_single_ack(
        &mut self,
        state: &mut FlightState,
        now: Instant,
        sent: Transmission,
        bytes: u64,
        smss: u64,
        config: &impl Parameters,
    ) {
        let rtt = now.nanos_since(sent.at);
        self.rtt.on_progress();
        self.rack.on_single_ack(now, sent);
        self.rack.on_rtt_measured(now, rtt);
        self.cc.on_round_trip(rtt, sent.end, sent.end);
        let per_rtt = if bytes <= 2 * smss { 1 } else { bytes.div_ceil(2 * smss) };
        self.rtt.sample(rtt, per_rtt, config);
        state.tlp.on_rtt_measured();
        state.reorder_at = None;
        if state.usage.is_limited(self.cc.in_slow_start(), self.cc.cwnd()) {
            let srtt = self.rtt.srtt().unwrap_or(rtt);
            let growth = Growth::Allowed;
            self.cc.on_ack(&AckSample {
                now,
                acked: bytes,
                marked: 0,
                srtt,
                growth,
                path_sample: None,
            });
        } else {
            self.cc.on_app_limited();
        }
    }

    /// Returns the acknowledged bytes that count for window growth after a time-out, until everything in flight at the
    /// time-out is acknowledged. With SACK and pacing, only bytes that were not SACKed before count: the others may
    /// have left the network before the time-out. Otherwise at most one segment counts (RFC 3465 §2.3).
    #[cold]
    pub(super) fn growth_bytes_after_timeout(&self, ack: &Ack) -> u64 {
        let most = if ack.sack && self.cc.is_paced() { ack.delivery.bytes } else { self.cc.smss() };
        ack.acked.min(most)
    }
}

/// Evaluates an acknowledgement after a time-out by F-RTO (RFC 5682).
fn judge_timeout(episode: &Episode, phase: Phase, board: &impl Scoreboard, ack: &Ack) -> Verdict {
    let Phase::Loss { point } = phase else { return Verdict::Wait };
    // Without SACK, an acknowledgement that covers a retransmission may also cover later segments that arrived before
    // the time-out. Such an acknowledgement is not evidence that the time-out was spurious.
    let sure = ack.sack || !ack.delivery.ambiguous;
    let seen = AckEvidence {
        advanced: ack.advanced,
        complete: board.una() >= point,
        original: sure && ack.delivery.original_end.is_some_and(|end| end <= point),
        duplicate: ack.duplicate,
        can_send_new: ack.can_send_new,
        sack: ack.sack,
    };
    frto::judge(episode.frto, seen)
}
