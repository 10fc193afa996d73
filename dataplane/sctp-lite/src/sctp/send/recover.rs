//! What follows from an acknowledgement for loss recovery and the congestion window (RFC 8985, RFC 6937,
//! RFC 5682; RFC 9260 §7.2), and from a time-out (§6.3.3).

use base::Instant;

use transport::congestion::{Acked, Cause, Growth};
use transport::delivery::Delivery;
use transport::episode::{Episode, Proof};
use transport::frto::{self, Frto, Seen, Verdict};
use transport::rack::Judgement;
use transport::recovery::Phase;
use transport::seq::ExtSeq;
use transport::tlp::{TlpAck, TlpOutcome};

use super::Sender;
use super::detect::Detected;

/// What is known of an acknowledgement once the board has taken it in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    /// The number after the cumulative TSN.
    pub(super) una: ExtSeq,
    /// New data waits.
    pub(super) has_data: bool,
    pub(super) delivery: Delivery,
    pub(super) advanced: bool,
    /// What its duplicate TSNs are about.
    pub(super) duplicates: Duplicates,
    /// Its Gap Ack Blocks told something new.
    pub(super) sack_news: bool,
    /// It acknowledges nothing new and has no block.
    pub(super) bare: bool,
    /// Chunks outstanding before.
    pub(super) flight: u64,
    /// Octets in the network before.
    pub(super) pipe: u64,
}

/// What was reported to have come twice and was sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Duplicates {
    /// Chunks of the present loss episode.
    pub(super) resent: bool,
    /// That of the tail loss probe.
    pub(super) probe: bool,
}

impl Sender {
    /// The board has taken an acknowledgement in.
    pub(super) fn after_ack(&mut self, now: Instant, told: &Told) {
        let before = self.phase;
        self.measure(now, told);
        self.judge_probe(told);
        self.leave_recovery(before, told);
        let mut growth = Growth::None;
        if !self.undo_if_spurious(told) {
            let lost = self.find_losses(now);
            growth = self.adjust_window(before, told, lost);
        }
        self.inform_controller(now, told, growth);
        self.forget_episode();
        let packets = told.delivery.octets.div_ceil(self.smss() as u64);
        if packets > 0 {
            // RFC 9260 §6.1 D, as if sending had followed each SACK: several may come before it does.
            self.burst = self.burst.max(u64::from(self.config.max_burst)) + packets;
        }
        self.timer_after_ack(now, told.advanced);
    }

    /// Karn's algorithm (RFC 9260 §6.3.1 C4, C5), weighed so that several in a round trip count as one.
    fn measure(&mut self, now: Instant, told: &Told) {
        if let Some(rtt) = told.delivery.shortest_rtt() {
            self.rack.measured(now, rtt);
            self.cc.on_round_trip(rtt, self.board.una, self.board.nxt());
        }
        if let Some(rtt) = told.delivery.rtt() {
            let per_rtt = told.pipe.div_ceil(2 * self.smss() as u64);
            self.rtt.sample(rtt, per_rtt, &self.config);
            self.tlp.measured();
        } else if told.delivery.original_end.is_some() || told.duplicates.resent {
            // Nothing was lost of something; but how long it took cannot be told.
            self.rtt.forget_backoff();
        }
    }

    /// RFC 8985 §7.4.2.
    fn judge_probe(&mut self, told: &Told) {
        let probe_twice = told.duplicates.probe;
        let ack = TlpAck { ack: told.una, probe_twice, bare_duplicate: told.bare };
        if self.tlp.on_ack(ack) == TlpOutcome::Repaired && self.phase == Phase::Open {
            self.stats.tail_losses_repaired += 1;
            self.cc.on_loss(told.pipe);
        }
    }

    // --- recovery -----------------------------------------------------------------------------------

    /// RFC 9260 §6.2.1 D iv, §7.2.4.
    fn leave_recovery(&mut self, before: Phase, told: &Told) {
        self.phase = before.after_ack(self.board.una);
        if !told.advanced || before == Phase::Open || self.phase != Phase::Open {
            return;
        }
        self.force = false;
        self.rack.on_recovered();
        if before.is_reducing() {
            self.cc.end_reduction();
        }
        if let Some(episode) = &mut self.episode {
            episode.over_at = Some(self.board.nxt());
            episode.frto = Frto::Off;
        }
    }

    /// Takes a loss episode back that was none. Returns whether it did.
    fn undo_if_spurious(&mut self, told: &Told) -> bool {
        let verdict = self.ask_frto(told);
        let pipe = self.board.pipe();
        let Some(episode) = &mut self.episode else { return false };
        match verdict {
            Verdict::SendNew => {
                episode.frto = Frto::NewData;
                episode.frto_new = frto::NEW_SEGMENTS;
            }
            Verdict::Genuine => {
                if episode.frto == Frto::NewData {
                    self.cc.after_new_data(pipe);
                }
                episode.frto = Frto::Off;
            }
            Verdict::Wait | Verdict::Spurious => {}
        }
        match (verdict, episode.proof(None, self.board.resent_in_flight())) {
            (Verdict::Spurious, _) => self.stats.undone_by_frto += 1,
            (_, Some(Proof::DSack | Proof::Timestamp)) => self.stats.undone_by_duplicates += 1,
            (_, None) => return false,
        }
        self.undo();
        true
    }

    fn ask_frto(&self, told: &Told) -> Verdict {
        let Some(episode) = self.episode.as_deref() else { return Verdict::Wait };
        let Phase::Loss { point } = self.phase else { return Verdict::Wait };
        let seen = Seen {
            advanced: told.advanced,
            complete: self.board.una >= point,
            original: told.delivery.original_end.is_some_and(|end| end <= point),
            duplicate: told.sack_news || told.bare,
            can_send_new: told.has_data && self.room_for_new() > 0,
            sack: true,
        };
        frto::judge(episode.frto, seen)
    }

    fn undo(&mut self) {
        let Some(episode) = &mut self.episode else { return };
        self.cc.undo(&episode.prior);
        episode.on_undone(self.board.nxt());
        if self.phase != Phase::Open {
            self.board.forget_losses();
        }
        self.phase = Phase::Open;
        self.force = false;
        self.timers.reorder = None;
        self.rtt.forget_backoff();
    }

    /// What is over and can no longer prove spurious is forgotten.
    fn forget_episode(&mut self) {
        let over_at = self.episode.as_ref().and_then(|e| e.over_at);
        if self.phase == Phase::Open && over_at.is_some_and(|at| self.board.una > at) {
            self.episode = None;
        }
    }

    // --- loss ---------------------------------------------------------------------------------------

    /// What RACK goes by now.
    fn judgement(&self, now: Instant) -> Judgement {
        let srtt = self.rtt.srtt().unwrap_or_default();
        self.rack.judge(now, self.phase.is_recovering(), self.board.sacked_packets(), srtt)
    }

    /// RACK_detect_loss_and_arm_timer of RFC 8985 §6.2. Returns how many chunks are lost that were not
    /// before.
    fn find_losses(&mut self, now: Instant) -> u64 {
        if self.board.is_empty() {
            self.timers.reorder = None;
            return 0;
        }
        let mut found = self.detect_losses(self.judgement(now));
        if found.chunks > 0 && !self.phase.is_recovering() {
            self.enter_recovery();
            // In recovery the reordering window may be none (RFC 8985 §6.2 step 4).
            let more = self.detect_losses(self.judgement(now));
            found.chunks += more.chunks;
            found.again_at = more.again_at;
        }
        self.timers.reorder = found.again_at.map(|at| at.min(now + self.rtt.rto(&self.config)));
        self.stats.lost += found.chunks;
        found.chunks
    }

    fn detect_losses(&mut self, judgement: Judgement) -> Detected {
        let cc = &mut self.cc;
        self.board.detect_losses(judgement, |bytes, sent_at| cc.on_segment_lost(bytes, sent_at))
    }

    /// The reordering timer expired.
    pub(super) fn on_reorder_timeout(&mut self, now: Instant) {
        let was_open = !self.phase.is_reducing();
        self.find_losses(now);
        if was_open && self.phase.is_reducing() {
            self.reduce(0, false);
        }
    }

    /// RFC 9260 §7.2.4 (2), (3), (6); RFC 6937 §3.
    fn enter_recovery(&mut self) {
        self.stats.fast_recoveries += 1;
        self.tlp.reset();
        let flight = self.board.flight();
        let episode = Episode::new(self.cc.save(), flight, false);
        self.episode = Some(Box::new(episode));
        self.cc.on_loss(flight);
        self.phase = Phase::Recovery { point: self.board.nxt() };
        self.force = true; // RFC 9260 §7.2.4 (3)
    }

    /// T3-rtx expired (RFC 9260 §6.3.3, §7.2.3).
    pub(super) fn on_timeout(&mut self, now: Instant) {
        self.stats.timeouts += 1;
        // What was reduced in this window is not reduced again.
        let reduced = match self.phase {
            _ if self.timeouts_in_a_row > 0 => Some(Cause::Timeout),
            phase => phase.is_reducing().then_some(Cause::Loss),
        };
        self.timeouts_in_a_row = self.timeouts_in_a_row.saturating_add(1);
        let flight = self.board.flight();
        if reduced.is_none() {
            let mut episode = Episode::new(self.cc.save(), flight, true);
            episode.frto = Frto::Retransmitted;
            self.episode = Some(Box::new(episode));
        } else if let Some(episode) = &mut self.episode {
            episode.frto = Frto::Off; // RFC 5682 §2.1 step 1
            episode.over_at = None;
        }
        self.cc.on_timeout(flight, reduced); // E1
        if self.board.head_sacked() {
            self.stats.reneged += 1;
            self.board.forget_sacks();
        }
        self.board.mark_lost_on_timeout(self.judgement(now));
        self.phase = Phase::Loss { point: self.board.nxt() };
        self.tlp.reset();
        self.timers.reorder = None;
        self.force = true; // E3
        self.rtt.back_off(); // E2
    }

    // --- window -------------------------------------------------------------------------------------

    /// The window in recovery. Returns whether it may grow otherwise.
    fn adjust_window(&mut self, before: Phase, told: &Told, lost: u64) -> Growth {
        if self.phase.is_reducing() {
            self.reduce(told.delivery.octets, told.advanced && lost == 0);
            return Growth::None;
        }
        // RFC 9260 §7.2.1: not in fast recovery, and only while the window is used.
        if before.is_reducing() || !told.advanced {
            return Growth::None;
        }
        let slow_start = self.cc.in_slow_start();
        if self.usage.is_limited(slow_start, self.cc.cwnd()) || before.is_recovering() {
            Growth::Allowed
        } else {
            Growth::SourceLimited
        }
    }

    fn inform_controller(&mut self, now: Instant, told: &Told, growth: Growth) {
        self.cc.on_ack(&Acked {
            now,
            acked: told.delivery.octets,
            delivered: told.delivery.octets,
            marked: 0,
            newest: told.delivery.latest.map(|latest| latest.at),
            rtt: told.delivery.shortest_rtt(),
            min_rtt: self.rack.min_rtt(),
            srtt: self.rtt.srtt().unwrap_or_else(|| self.rtt.rto(&self.config)),
            in_flight: self.board.pipe(),
            growth,
            rate: None,
        });
    }

    /// The window in recovery (RFC 6937).
    fn reduce(&mut self, delivered: u64, safe: bool) {
        let pipe = self.board.pipe();
        let (ssthresh, smss) = (self.cc.ssthresh(), self.smss() as u64);
        if let Some(episode) = &mut self.episode {
            let cwnd = episode.prr.on_ack(delivered, pipe, ssthresh, smss, safe);
            self.cc.set_reduced(cwnd);
        }
    }
}
