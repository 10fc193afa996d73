//! What acknowledgements say about what was sent (RFC 5681, RFC 6298, RFC 8985), and what follows for the
//! congestion window.

use core::time::Duration;

use base::Instant;

use super::config::Config;
use super::congestion::{Acked, Cause, Growth};
use super::delivery::Delivery;
use super::episode::{Episode, Proof};
use super::frto::{self, Frto, Seen, Verdict};
use super::rack::Judgement;
use super::ranges::Range;
use super::recovery::{Phase, must_recover};
use super::scoreboard::Detected;
use super::sender::Sender;
use super::seq::{ExtSeq, SeqNumber};
use super::stats::Counts;
use super::tlp::{TlpAck, TlpOutcome};

/// What a segment says about our data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckInfo<'a> {
    /// SEG.SEQ, in the peer's space.
    pub(crate) seq: ExtSeq,
    /// SEG.ACK, from SND.UNA to SND.NXT.
    pub(crate) ack: ExtSeq,
    /// The window, scaled.
    pub(crate) window: u64,
    /// It has no text, SYN or FIN.
    pub(crate) bare: bool,
    /// Its SACK blocks; none unless both sides use SACK.
    pub(crate) blocks: &'a [(SeqNumber, SeqNumber)],
    /// When the timestamp was made that it echoes, by the clock of [`Instant::as_millis`].
    pub(crate) echoed_ms: Option<u64>,
    /// New data waits.
    pub(crate) has_data: bool,
    /// It echoes a congestion mark (RFC 3168 §6.1.2).
    pub(crate) marked: bool,
}

/// What is known of an acknowledgement once the scoreboard has taken it in.
#[derive(Clone, Copy, Debug)]
struct Told {
    delivery: Delivery,
    advanced: bool,
    /// What its D-SACK is about, if it has one.
    d_sack: Option<DSack>,
    sack_news: bool,
    /// What was in flight before.
    flight: u64,
}

/// What a D-SACK is about; if nothing of this, the network has made a copy, or the peer has made it up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct DSack {
    /// What was sent again in the present loss episode.
    resent: bool,
    /// All that the tail loss probe sent again, and no more.
    probe: bool,
}

impl Sender {
    /// RFC 5961 §5: the range of acceptable acknowledgement numbers.
    pub(crate) fn is_acceptable(&self, ack: ExtSeq) -> bool {
        self.una.minus(self.max_wnd.into()) <= ack && ack <= self.nxt
    }

    /// An acceptable acknowledgement (RFC 9293 §3.10.7.4, fifth check). Returns whether it acknowledged
    /// something new.
    pub(crate) fn on_ack(
        &mut self,
        now: Instant,
        info: AckInfo<'_>,
        config: &Config,
        stats: &mut Counts,
    ) -> bool {
        if self.out.is_quiet() && self.episode.is_none() {
            self.on_ack_of_nothing(now, info, stats);
            return false;
        }
        let before = self.out.phase;
        let told = self.take_in(now, info, stats);
        self.measure(now, info, &told, config);
        let window_moved = self.update_window(now, info);
        // RFC 5681 §2
        let bare =
            !told.advanced && info.ack == self.una && told.flight > 0 && info.bare && !window_moved;
        let duplicate = if self.sack { told.sack_news } else { bare };
        if duplicate {
            self.on_duplicate(told.flight, stats);
        }
        self.judge_probe(info, &told, duplicate, stats);
        self.leave_recovery(before, &told);
        // RFC 5682 §3.1 step 3a: a peer that has no room beyond the gap refuses the new data and has
        // nothing to SACK.
        let undone = self.undo_if_spurious(info, &told, duplicate || bare, stats);
        let mut growth = Growth::None;
        if !undone {
            let lost = self.find_losses(now, config, stats);
            growth = self.adjust_window(before, &told, lost);
        }
        self.inform_controller(now, info, &told, growth, config);
        self.forget_episode();
        told.advanced
    }

    /// As [`on_ack`](Self::on_ack) while nothing is in flight: what is left to say is the window, and what
    /// came twice.
    fn on_ack_of_nothing(&mut self, now: Instant, info: AckInfo<'_>, stats: &mut Counts) {
        if let Some(twice) = self.d_sack(info) {
            self.on_d_sack(twice, stats);
        }
        self.update_window(now, info);
    }

    /// Lets the scoreboard have it.
    fn take_in(&mut self, now: Instant, info: AckInfo<'_>, stats: &mut Counts) -> Told {
        let flight = self.flight();
        let mut delivery =
            Delivery::new(now, info.echoed_ms, self.rack.min_rtt(), self.rack.fack());
        let d_sack = self.d_sack(info);
        let advanced = info.ack > self.una;
        if advanced {
            self.out.board.acknowledge(info.ack, &mut delivery);
            self.una = info.ack;
            self.progress_at = now;
            self.timeouts_in_a_row = 0;
            self.dup_acks = 0;
        }
        let sack_news = self.sack(info, &mut delivery);
        delivery.highest = delivery.highest.max(self.una);
        self.rack.on_delivery(now, &delivery);
        if let Some(episode) = &mut self.episode {
            episode.on_delivery(&delivery);
        }
        let d_sack = d_sack.map(|twice| self.on_d_sack(twice, stats));
        Told { delivery, advanced, d_sack, sack_news, flight }
    }

    /// SACK blocks; blocks that make no sense, old ones and D-SACK are skipped (RFC 2018 §5). Returns
    /// whether they told anything new.
    fn sack(&mut self, info: AckInfo<'_>, delivery: &mut Delivery) -> bool {
        let mut news = false;
        for (left, right) in info.blocks {
            let (start, end) = (self.una.near(*left), self.una.near(*right));
            if self.una <= start && start < end && end <= self.nxt {
                news |= self.out.board.sack(start, end, delivery);
            }
        }
        news
    }

    /// RFC 2883 §4: a first block below the acknowledgement number, or inside the second block, reports bytes
    /// that came twice.
    fn d_sack(&self, info: AckInfo<'_>) -> Option<Range> {
        let block = |i: usize| {
            let (left, right) = info.blocks.get(i)?;
            let (start, end) = (self.una.near(*left), self.una.near(*right));
            (start < end && end <= self.nxt).then_some(Range { start, end })
        };
        let first = block(0)?;
        let below = first.end <= info.ack;
        let inside = block(1).is_some_and(|b| b.start <= first.start && first.end <= b.end);
        // Nothing older than what the peer can still have seen.
        let recent = first.start >= self.una.minus(self.max_wnd.max(1 << 16).into());
        ((below || inside) && recent).then_some(first)
    }

    /// `twice` came twice at the peer. Only what was sent again says anything about it (RFC 3708 §3 A).
    fn on_d_sack(&mut self, twice: Range, stats: &mut Counts) -> DSack {
        stats.more().d_sacks_in += 1;
        let arrived = twice.end <= self.una || self.out.board.has_sacked(twice);
        let resent = arrived && self.episode.as_mut().is_some_and(|e| e.on_d_sack(twice));
        if resent {
            // RFC 8985 §6.2 step 4: a sign that the reordering window was too small.
            self.rack.on_d_sack(self.una, self.nxt);
        }
        let probe = arrived && self.out.tlp.is_probe(twice);
        stats.more().d_sacks_ignored += u64::from(!resent && !probe);
        DSack { resent, probe }
    }

    /// Karn's algorithm (RFC 6298 §3), or else the echoed timestamp (RFC 7323 §4.1).
    fn measure(&mut self, now: Instant, info: AckInfo<'_>, told: &Told, config: &Config) {
        if let Some(rtt) = told.delivery.shortest_rtt() {
            self.rack.measured(now, rtt);
            self.cc.on_round_trip(rtt, self.una, self.nxt);
        }
        // A peer that had it all before echoes the timestamp of what it took then, however long ago, for a
        // duplicate does not renew TS.Recent (RFC 7323 §4.3).
        let echoed = info.echoed_ms.filter(|_| told.advanced && told.d_sack.is_none());
        let echo = echoed.map(|ms| Duration::from_millis((now.as_millis() - ms).max(1)));
        if let Some(rtt) = told.delivery.rtt().or(echo) {
            let per_rtt = told.flight.div_ceil(2 * u64::from(self.emss));
            self.rtt.sample(rtt, per_rtt, config);
            self.out.tlp.measured();
        } else if told.delivery.original_end.is_some()
            || (told.advanced && told.d_sack.is_some_and(|d_sack| d_sack.resent))
        {
            // RFC 6298 §5, Karn: something that was not sent again was acknowledged, or what was came twice, so
            // that nothing was lost; but how long it took cannot be told.
            self.rtt.forget_backoff();
        }
    }

    /// Returns whether the right edge or the window changed.
    fn update_window(&mut self, now: Instant, info: AckInfo<'_>) -> bool {
        // RFC 9293 §3.10.7.4: not by old segments. A retransmission has an old number and still says
        // something new when it acknowledges more: left out, the old window would count from the new
        // SND.UNA on, beyond what the peer granted.
        let newer = self.wl2 < info.ack
            || self.wl1 < info.seq
            || (self.wl1 == info.seq && self.wl2 <= info.ack);
        if info.ack < self.una || !newer {
            return false;
        }
        let changed = u64::from(self.wnd) != info.window;
        let opened = self.wnd == 0 && info.window > 0;
        self.set_window(info.seq, info.ack, info.window);
        if self.wnd == 0 {
            self.progress_at = now; // RFC 9293 §3.8.6.1: it answers, so it lives (MUST-37)
        }
        if opened {
            self.probe_due = false;
        }
        if opened && self.probing {
            // What the peer refused while its window was closed has to go again now.
            self.probing = false;
            self.rtt.forget_backoff();
            if let Some(out) = self.out.get_mut() {
                out.board.mark_all_lost();
            }
        }
        changed
    }

    /// True when an acknowledgement of nothing new with this window says nothing at all: nothing is in
    /// flight, suspected or awaited, and the window is open and the same.
    pub(crate) fn is_quiet(&self, window: u64) -> bool {
        self.flight() == 0
            && window == u64::from(self.wnd)
            && window > 0
            && self.out.phase == Phase::Open
            && self.out.tlp.is_quiet()
            && self.episode.is_none()
    }

    /// SND.WL1, SND.WL2, by a segment that says nothing else (RFC 9293 §3.10.7.4).
    pub(crate) fn note_segment(&mut self, seq: ExtSeq, ack: ExtSeq) {
        self.wl1 = self.wl1.max(seq);
        self.wl2 = self.wl2.max(ack);
    }

    /// SND.WND, SND.WL1, SND.WL2.
    pub(crate) fn set_window(&mut self, seq: ExtSeq, ack: ExtSeq, window: u64) {
        // RFC 7323 §2.3: at most 65535 << 14.
        self.wnd = window as u32;
        self.max_wnd = self.max_wnd.max(self.wnd);
        self.wl1 = self.wl1.max(seq);
        self.wl2 = ack;
    }

    fn on_duplicate(&mut self, flight: u64, stats: &mut Counts) {
        stats.more().duplicate_acks_in += 1;
        self.dup_acks = self.dup_acks.saturating_add(1);
        if self.dup_acks == 1 {
            self.out.flight_before_dups = flight;
        }
        if !self.sack {
            // After a time-out only what was sent since can be arriving (RFC 5682 §2.1 step 3a).
            let most = match self.out.phase {
                Phase::Loss { point } => self.nxt.since(point),
                _ => self.flight().saturating_sub(u64::from(self.emss)),
            };
            self.out.reno_sacked = (self.out.reno_sacked + u64::from(self.emss)).min(most);
        }
    }

    /// RFC 8985 §7.4.2.
    fn judge_probe(&mut self, info: AckInfo<'_>, told: &Told, duplicate: bool, stats: &mut Counts) {
        let ack = TlpAck {
            ack: info.ack,
            probe_twice: told.d_sack.is_some_and(|d_sack| d_sack.probe),
            bare_duplicate: info.blocks.is_empty()
                && info.bare
                && !told.advanced
                && (duplicate || told.flight > 0),
        };
        if self.out.tlp.on_ack(ack) == TlpOutcome::Repaired && self.out.phase == Phase::Open {
            stats.more().tail_losses_repaired += 1;
            self.cc.on_loss(told.flight);
        }
    }

    // --- recovery -----------------------------------------------------------------------------------

    fn leave_recovery(&mut self, before: Phase, told: &Told) {
        self.out.phase = before.after_ack(self.una);
        if !told.advanced {
            return;
        }
        let over = before != Phase::Open && self.out.phase == Phase::Open;
        match before {
            Phase::Recovery { .. } if !over && !self.sack => {
                // RFC 6582 §3.2 (4): a partial acknowledgement; the next segment is lost too.
                let rest = told.delivery.octets.saturating_sub(u64::from(self.emss));
                self.out.reno_sacked = self.out.reno_sacked.saturating_sub(rest);
                self.out.board.mark_head_lost();
                self.force = true;
            }
            Phase::Recovery { .. } if !over => {}
            _ => self.out.reno_sacked = 0,
        }
        if over && before.is_recovering() {
            self.force = false;
            self.rack.on_recovered();
        }
        if over && before.is_reducing() {
            if self.sack || !before.is_recovering() {
                self.cc.end_reduction();
            } else {
                self.cc.on_recovered(self.flight());
            }
        }
        if over && let Some(episode) = &mut self.episode {
            episode.over_at = Some(self.nxt);
            episode.frto = Frto::Off;
        }
    }

    /// Takes a loss episode back that was none. Returns whether it did.
    fn undo_if_spurious(
        &mut self,
        info: AckInfo<'_>,
        told: &Told,
        duplicate: bool,
        stats: &mut Counts,
    ) -> bool {
        let verdict = self.ask_frto(info, told, duplicate);
        let pipe = self.pipe();
        let Some(episode) = &mut self.episode else { return false };
        let echoed = info.echoed_ms.filter(|_| told.advanced);
        let proof = episode.proof(echoed, self.out.board.resent_in_flight());
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
        match (verdict, proof) {
            (Verdict::Spurious, _) => stats.more().undone_by_frto += 1,
            (_, Some(Proof::Timestamp)) => stats.more().undone_by_timestamp += 1,
            (_, Some(Proof::DSack)) => stats.more().undone_by_d_sack += 1,
            (_, None) => return false,
        }
        self.undo();
        true
    }

    fn ask_frto(&self, info: AckInfo<'_>, told: &Told, duplicate: bool) -> Verdict {
        let Some(episode) = self.episode.as_deref() else { return Verdict::Wait };
        let Phase::Loss { point } = self.out.phase else { return Verdict::Wait };
        // Without SACK, what an acknowledgement covers together with a retransmission may have waited for
        // it at the peer.
        let sure = self.sack || !told.delivery.ambiguous;
        let seen = Seen {
            advanced: told.advanced,
            complete: self.una >= point,
            original: sure && told.delivery.original_end.is_some_and(|end| end <= point),
            duplicate,
            can_send_new: info.has_data && self.usable() > 0,
            sack: self.sack,
        };
        frto::judge(episode.frto, seen)
    }

    fn undo(&mut self) {
        let Some(episode) = &mut self.episode else { return };
        self.cc.undo(&episode.prior);
        episode.on_undone(self.nxt);
        if self.out.phase != Phase::Open {
            self.out.board.forget_losses();
        }
        self.out.phase = Phase::Open;
        self.force = false;
        self.out.reno_sacked = 0;
        self.dup_acks = 0;
        self.out.reorder_at = None;
        self.rtt.forget_backoff();
    }

    /// What is over and can no longer prove spurious is forgotten.
    fn forget_episode(&mut self) {
        let over_at = self.episode.as_ref().and_then(|e| e.over_at);
        if self.out.phase == Phase::Open && over_at.is_some_and(|at| self.una > at) {
            self.episode = None;
        }
    }

    // --- loss ---------------------------------------------------------------------------------------

    /// What RACK goes by now.
    fn judgement(&self, now: Instant) -> Judgement {
        let srtt = self.rtt.srtt().unwrap_or_default();
        self.rack.judge(now, self.out.phase.is_recovering(), self.out.board.segs_sacked(), srtt)
    }

    /// Finds losses after an acknowledgement. Returns how many segments are lost that were not before.
    fn find_losses(&mut self, now: Instant, config: &Config, stats: &mut Counts) -> u64 {
        if self.out.board.is_empty() {
            self.out.reorder_at = None;
            return 0;
        }
        if self.sack {
            return self.detect(now, config, stats);
        }
        if must_recover(self.out.phase, self.dup_acks, self.una, self.out.recover) {
            if self.out.board.head_is_probe() {
                // RFC 4821 §7.6.1: no sign of congestion.
                self.out.board.mark_head_lost();
                self.dup_acks = 0;
                return 0;
            }
            self.enter_recovery(stats);
            self.out.board.mark_head_lost();
            self.force = true;
            return 1;
        }
        0
    }

    /// RACK_detect_loss_and_arm_timer of RFC 8985 §6.2. Returns how many segments are lost that were not
    /// before.
    fn detect(&mut self, now: Instant, config: &Config, stats: &mut Counts) -> u64 {
        let judgement = self.judgement(now);
        let mut found = self.detect_losses(judgement);
        if found.congestion > 0 && !self.out.phase.is_recovering() {
            self.enter_recovery(stats);
            // In recovery the reordering window may be none (RFC 8985 §6.2 step 4).
            let judgement = self.judgement(now);
            let more = self.detect_losses(judgement);
            found.segments += more.segments;
            found.again_at = more.again_at;
        }
        let latest = now + self.rtt.rto(config);
        self.out.reorder_at = found.again_at.map(|at| at.min(latest));
        stats.add(found.segments, |s| &mut s.segments_lost);
        found.segments
    }

    fn detect_losses(&mut self, judgement: Judgement) -> Detected {
        let cc = &mut self.cc;
        let lost = |bytes, sent_at| cc.on_segment_lost(bytes, sent_at);
        self.out.board.detect_losses(judgement, lost)
    }

    /// The reordering timer expired.
    pub(crate) fn on_reorder_timeout(&mut self, now: Instant, config: &Config, stats: &mut Counts) {
        let was_open = !self.out.phase.is_reducing();
        self.detect(now, config, stats);
        if was_open && self.out.phase.is_reducing() {
            self.reduce(0, false);
        }
    }

    /// RFC 6675 §5 (4), RFC 6582 §3.2 (2), RFC 6937 §3.
    fn enter_recovery(&mut self, stats: &mut Counts) {
        let flight = self.flight();
        stats.more().fast_recoveries += 1;
        self.out.tlp.reset();
        self.out.recover = self.nxt;
        if let (Phase::Reducing { .. }, Some(episode)) = (self.out.phase, &mut self.episode) {
            // What ECN took is not given back if this proves spurious (RFC 3168 §6.1.2).
            episode.prior = self.cc.save();
            self.cc.on_loss_after_marks(flight);
        } else {
            let episode = Episode::new(self.cc.save(), flight, false);
            self.episode = Some(Box::new(episode));
            // RFC 5681 §3.2 (2): limited transmit does not count as flight.
            let limited = if self.dup_acks > 0 { self.out.flight_before_dups } else { flight };
            self.cc.on_loss(flight.min(limited.max(u64::from(self.emss))));
        }
        self.out.phase = Phase::Recovery { point: self.nxt };
    }

    /// The peer echoes that a packet of ours met congestion (RFC 3168 §6.1.2): the window comes down as for
    /// a loss, at most once per round trip. Returns whether it does: the peer has to be told (CWR).
    pub(crate) fn on_ecn_congestion(&mut self) -> bool {
        if self.out.phase != Phase::Open || self.out.board.is_empty() {
            return false; // it does already, or nothing is in flight
        }
        self.episode = Some(Box::new(Episode::new(self.cc.save(), self.flight(), false)));
        self.cc.on_marks(self.flight());
        self.out.phase = Phase::Reducing { point: self.nxt };
        true
    }

    /// The retransmission timer expired (RFC 6298 §5.4 to §5.6, RFC 6675 §5.1, RFC 8985 §6.3).
    pub(crate) fn on_timeout(&mut self, now: Instant, stats: &mut Counts) {
        stats.more().timeouts += 1;
        // What was reduced in this window is not reduced again.
        let reduced = match self.out.phase {
            _ if self.timeouts_in_a_row > 0 => Some(Cause::Timeout),
            Phase::Recovery { .. } => Some(Cause::Loss),
            Phase::Reducing { .. } => Some(Cause::Marks),
            Phase::Open | Phase::Loss { .. } => None,
        };
        self.timeouts_in_a_row += 1;
        if reduced.is_none() {
            let mut episode = Episode::new(self.cc.save(), self.flight(), true);
            episode.frto = Frto::Retransmitted;
            self.episode = Some(Box::new(episode));
        } else if let Some(episode) = &mut self.episode {
            episode.frto = Frto::Off; // RFC 5682 §2.1 step 1
            episode.over_at = None;
        }
        self.cc.on_timeout(self.flight(), reduced);
        if self.out.board.head_sacked() {
            self.out.board.forget_sacks(); // RFC 2018 §8
        }
        if self.sack {
            let judgement = self.judgement(now);
            self.out.board.mark_lost_on_timeout(judgement);
        } else {
            self.out.board.mark_all_lost();
        }
        self.out.phase = Phase::Loss { point: self.nxt };
        self.out.recover = self.nxt;
        self.out.tlp.reset();
        self.dup_acks = 0;
        self.out.reno_sacked = 0;
        self.out.reorder_at = None;
        self.force = true;
        self.rtt.back_off();
    }

    // --- window -------------------------------------------------------------------------------------

    /// The window in recovery and during a reduction. Returns whether it may grow otherwise.
    fn adjust_window(&mut self, before: Phase, told: &Told, lost: u64) -> Growth {
        if self.out.phase.is_reducing() {
            if self.sack {
                self.reduce(told.delivery.octets, told.advanced && lost == 0);
            }
            return Growth::None;
        }
        if before.is_reducing() || !told.advanced {
            return Growth::None;
        }
        let slow_start = self.cc.in_slow_start();
        if self.out.usage.is_limited(slow_start, self.cc.cwnd()) || before.is_recovering() {
            Growth::Allowed // in slow start after a time-out, RFC 5681 §3.1
        } else {
            Growth::SourceLimited
        }
    }

    fn inform_controller(
        &mut self,
        now: Instant,
        info: AckInfo<'_>,
        told: &Told,
        growth: Growth,
        config: &Config,
    ) {
        let acked = told.flight.saturating_sub(self.flight());
        self.cc.on_ack(&Acked {
            now,
            acked,
            delivered: told.delivery.octets,
            marked: if info.marked { acked } else { 0 },
            newest: told.delivery.latest.map(|latest| latest.at),
            rtt: told.delivery.shortest_rtt(),
            min_rtt: self.rack.min_rtt(),
            srtt: self.rtt.srtt().unwrap_or_else(|| self.rtt.rto(config)),
            in_flight: self.pipe(),
            growth,
            rate: None,
        });
    }

    /// The window in recovery (RFC 6937).
    fn reduce(&mut self, delivered: u64, safe: bool) {
        let pipe = self.pipe();
        let (ssthresh, smss) = (self.cc.ssthresh(), u64::from(self.emss));
        if let Some(episode) = &mut self.episode {
            let cwnd = episode.prr.on_ack(delivered, pipe, ssthresh, smss, safe);
            self.cc.set_reduced(cwnd);
        }
    }
}
