//! The send half: what is in flight, what the peer lets us send, what its acknowledgements mean.

use core::time::Duration;

use wire::Instant;

use super::config::Config;
use super::congestion::Congestion;
use super::recovery::Phase;
use super::rtt::RttEstimator;
use super::scoreboard::Scoreboard;
use super::segment::TIMESTAMPS_LEN;
use super::seq::{ExtSeq, SeqNumber};
use super::stats::Stats;

/// Records reserved when a connection is established; more come as the window grows.
const RESERVED_RECORDS: usize = 64;

/// A segment that overtakes another by more than the round trip divided by this says that it is lost
/// (RFC 8985 §6.2: a quarter).
const REORDERING_DIVISOR: u32 = 4;

/// The send half of a connection.
#[derive(Debug)]
pub(crate) struct Sender {
    /// SND.UNA.
    pub(crate) una: ExtSeq,
    /// SND.NXT.
    pub(crate) nxt: ExtSeq,
    /// SND.WND, octets beyond SND.UNA.
    pub(crate) wnd: u64,
    /// MAX.SND.WND (RFC 5961 §5).
    pub(crate) max_wnd: u64,
    pub(crate) board: Scoreboard,
    pub(crate) phase: Phase,
    pub(crate) cc: Congestion,
    pub(crate) rtt: RttEstimator,
    /// Effective MSS: octets of payload in a segment.
    pub(crate) emss: usize,
    /// The peer uses SACK.
    pub(crate) sack: bool,
    /// The first retransmission of a recovery goes whatever the congestion window.
    pub(crate) force: bool,
    /// The congestion window is what stopped sending last, not the source or the peer.
    pub(crate) cwnd_limited: bool,
    /// A probe of a closed window, or a small segment against silly window avoidance, is due.
    pub(crate) probe_due: bool,
    /// The window was probed and has not opened since.
    pub(crate) probing: bool,
    /// A FIN follows the data.
    pub(crate) fin_queued: bool,
    pub(crate) fin_sent: bool,
    /// The upper layer has to hear of the effective MSS.
    pub(crate) emss_news: bool,
    /// Time-outs in a row without progress.
    pub(crate) timeouts_in_a_row: u32,
    /// When data was sent last.
    pub(crate) last_sent: Instant,
    /// When the peer acknowledged something new last, or something was sent with nothing in flight.
    pub(crate) progress_at: Instant,
    /// Shift of the peer's window field.
    pub(crate) shift: u8,
    iss: ExtSeq,
    /// SND.WL1, SND.WL2.
    wl1: ExtSeq,
    wl2: ExtSeq,
    dup_acks: u32,
    /// Octets that duplicate acknowledgements without SACK say have left the network.
    reno_sacked: u64,
    /// What was in flight before the first duplicate acknowledgement (RFC 5681 §3.2 (2)).
    flight_before_dups: u64,
    /// MSS of the peer and of the path, options not deducted.
    peer_mss: u16,
    path_mss: u16,
    options_len: usize,
    /// SND.NXT at the last reduction by ECN: none below it counts again.
    ecn_point: ExtSeq,
}

/// What a segment says about our data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckInfo {
    /// SEG.SEQ, in the peer's space.
    pub(crate) seq: ExtSeq,
    /// SEG.ACK, at most SND.NXT.
    pub(crate) ack: ExtSeq,
    /// The window, scaled.
    pub(crate) window: u64,
    /// It has no text, SYN or FIN.
    pub(crate) bare: bool,
    /// Its SACK blocks said something new.
    pub(crate) sack_news: bool,
    /// Age of the timestamp it echoes.
    pub(crate) echo: Option<Duration>,
}

impl Sender {
    pub(crate) fn new(iss: SeqNumber, mss: u16, config: &Config, now: Instant) -> Self {
        let iss = ExtSeq::initial(iss);
        Sender {
            una: iss,
            nxt: iss,
            wnd: 0,
            max_wnd: 0,
            board: Scoreboard::new(iss.plus(1), 0),
            phase: Phase::Open,
            cc: Congestion::new(config, usize::from(mss), config.initial_window),
            rtt: RttEstimator::new(config),
            emss: usize::from(mss),
            sack: false,
            force: false,
            cwnd_limited: false,
            probe_due: false,
            probing: false,
            fin_queued: false,
            fin_sent: false,
            emss_news: false,
            timeouts_in_a_row: 0,
            last_sent: now,
            progress_at: now,
            shift: 0,
            iss,
            wl1: ExtSeq::default(),
            wl2: iss,
            dup_acks: 0,
            reno_sacked: 0,
            flight_before_dups: 0,
            peer_mss: mss,
            path_mss: mss,
            options_len: 0,
            ecn_point: iss,
        }
    }

    /// Our SYN is acknowledged: data may flow.
    pub(crate) fn established(&mut self, config: &Config, syn_lost: bool) {
        self.una = self.iss.plus(1);
        self.nxt = self.una;
        self.board = Scoreboard::new(self.una, RESERVED_RECORDS.min(config.max_records));
        if syn_lost {
            self.rtt.after_syn_loss();
        }
        // RFC 5681 §3.1: one segment when the SYN was lost.
        let segments = if syn_lost { 1 } else { config.initial_window };
        self.cc = Congestion::new(config, self.emss, segments);
        self.emss_news = true;
    }

    /// ISS.
    pub(crate) fn iss(&self) -> ExtSeq {
        self.iss
    }

    /// Stream offset of a sequence number: zero for the first octet after the SYN.
    pub(crate) fn offset(&self, seq: ExtSeq) -> u64 {
        seq.since(self.iss.plus(1))
    }

    /// Octets acknowledged, the FIN not counted.
    pub(crate) fn acknowledged_offset(&self) -> u64 {
        self.offset(self.una) - u64::from(self.fin_sent && self.una == self.nxt)
    }

    /// Sequence space sent and not acknowledged.
    pub(crate) fn flight(&self) -> u64 {
        self.nxt.since(self.una)
    }

    /// What is thought to be in the network.
    pub(crate) fn pipe(&self) -> u64 {
        self.board.pipe().saturating_sub(self.reno_sacked)
    }

    /// The right edge of the peer's window.
    pub(crate) fn right_edge(&self) -> ExtSeq {
        self.una.plus(self.wnd)
    }

    /// The usable window; none when the peer shrank it below what is in flight (RFC 9293 §3.8.6 MUST-34).
    pub(crate) fn usable(&self) -> u64 {
        self.right_edge().since(self.nxt)
    }

    /// True when the congestion window takes a full segment (RFC 6675 §5 (C)).
    pub(crate) fn cwnd_open(&self) -> bool {
        let pipe = self.pipe();
        pipe == 0 || pipe + self.emss as u64 <= self.cc.cwnd()
    }

    /// Sequence number of a segment without data: SND.NXT, or where the peer's window ends when that is
    /// less, so that it is acceptable there (RFC 9293 appendix A.2).
    pub(crate) fn control_seq(&self) -> ExtSeq {
        if self.una == self.iss {
            return self.nxt; // the SYN, which needs no window
        }
        self.nxt.min(self.right_edge()).max(self.una)
    }

    // --- segment size -------------------------------------------------------------------------------

    /// What the SYNs settled (RFC 9293 §3.7.1).
    pub(crate) fn set_mss(&mut self, peer_mss: u16, timestamps: bool) {
        self.peer_mss = peer_mss;
        self.options_len = if timestamps { TIMESTAMPS_LEN } else { 0 };
        self.emss = self.computed_emss();
    }

    /// The path takes segments of `mss` (RFC 1191). Returns whether the effective MSS shrank.
    pub(crate) fn set_path_mss(&mut self, mss: u16) -> bool {
        self.path_mss = mss;
        let emss = self.computed_emss();
        let shrank = emss < self.emss;
        if emss != self.emss {
            self.emss = emss;
            self.cc.set_smss(emss);
            self.emss_news = true;
        }
        if shrank {
            self.board.mark_longer_lost(emss);
        }
        shrank
    }

    /// Payload octets of a segment of this MSS.
    pub(crate) fn payload_of(&self, mss: u16) -> usize {
        usize::from(mss).saturating_sub(self.options_len).max(1)
    }

    /// The other way round.
    pub(crate) fn mss_of(&self, payload: u16) -> u16 {
        payload.saturating_add(self.options_len as u16)
    }

    /// Options of data segments are deducted; SACK blocks never ride on them (RFC 9293 §3.7.1).
    fn computed_emss(&self) -> usize {
        self.payload_of(self.peer_mss.min(self.path_mss))
    }

    // --- acknowledgements ---------------------------------------------------------------------------

    /// RFC 5961 §5: the range of acceptable acknowledgement numbers.
    pub(crate) fn is_acceptable(&self, ack: ExtSeq) -> bool {
        self.una.minus(self.max_wnd) <= ack && ack <= self.nxt
    }

    /// SACK blocks of a segment that acknowledges everything below `ack`; blocks that make no sense, old
    /// ones and D-SACK are skipped (RFC 2018 §5). Returns whether they told anything new.
    pub(crate) fn sack(&mut self, ack: ExtSeq, blocks: &[(SeqNumber, SeqNumber)]) -> bool {
        let mut news = false;
        for (left, right) in blocks {
            let (start, end) = (self.una.near(*left), self.una.near(*right));
            if ack <= start && start < end && end <= self.nxt {
                news |= self.board.sack(start, end);
            }
        }
        news
    }

    /// An acceptable acknowledgement (RFC 9293 §3.10.7.4, fifth check; RFC 5681, RFC 6675 §5). Returns
    /// whether it acknowledged something new.
    pub(crate) fn on_ack(
        &mut self,
        now: Instant,
        info: AckInfo,
        config: &Config,
        stats: &mut Stats,
    ) -> bool {
        let advanced = info.ack > self.una;
        let flight = self.flight();
        if advanced {
            self.advance(now, info, config, stats);
        }
        let window_moved = self.update_window(now, info);
        let duplicate = if self.sack {
            info.sack_news
        } else {
            // RFC 5681 §2
            !advanced && info.ack == self.una && flight > 0 && info.bare && !window_moved
        };
        if duplicate {
            self.on_duplicate(flight, stats);
        }
        if self.sack && !self.board.is_empty() {
            self.board.mark_lost(self.emss as u64);
        }
        self.find_lost_retransmission();
        let head_lost = self.sack && self.board.head_lost_by_sack();
        if !self.board.is_empty() && self.phase.must_recover(self.dup_acks, head_lost) {
            self.enter_recovery(stats);
        }
        advanced
    }

    fn advance(&mut self, now: Instant, info: AckInfo, config: &Config, stats: &mut Stats) {
        let octets = info.ack.since(self.una);
        stats.octets_acknowledged += octets;
        let per_rtt = self.flight().div_ceil(2 * self.emss as u64);
        let acked = self.board.acknowledge(info.ack);
        self.una = info.ack;
        self.progress_at = now;
        self.timeouts_in_a_row = 0;
        self.dup_acks = 0;
        // Karn's algorithm (RFC 6298 §3), or else the echoed timestamp (RFC 7323 §4.1).
        if let Some(rtt) = acked.sent_at.map(|at| now.saturating_since(at)).or(info.echo) {
            self.rtt.sample(rtt, per_rtt, config);
        }
        let before = self.phase;
        self.phase = before.after_ack(self.una);
        match before {
            Phase::Open => {
                self.reno_sacked = 0;
                self.grow(now, octets, config);
            }
            Phase::Loss { .. } => {
                self.reno_sacked = 0;
                self.grow(now, octets, config); // slow start, RFC 5681 §3.1
            }
            Phase::Recovery { .. } if self.phase == Phase::Open => {
                self.reno_sacked = 0;
                self.force = false;
                self.cc.on_recovered(self.flight());
            }
            Phase::Recovery { .. } if !self.sack => {
                // RFC 6582 §3.2 (4): a partial acknowledgement; the next segment is lost too.
                let rest = octets.saturating_sub(self.emss as u64);
                self.reno_sacked = self.reno_sacked.saturating_sub(rest);
                self.board.mark_head_lost();
                self.force = true;
            }
            Phase::Recovery { .. } => {}
        }
    }

    fn grow(&mut self, now: Instant, octets: u64, config: &Config) {
        if self.cwnd_limited || matches!(self.phase, Phase::Loss { .. }) {
            let srtt = self.rtt.srtt().unwrap_or_else(|| self.rtt.rto(config));
            self.cc.on_ack(now, octets, srtt);
        } else {
            self.cc.on_limited_by_source();
        }
    }

    /// Returns whether the right edge or the window changed.
    fn update_window(&mut self, now: Instant, info: AckInfo) -> bool {
        // RFC 9293 §3.10.7.4: not by old segments. A retransmission has an old number and still says
        // something new when it acknowledges more: left out, the old window would count from the new
        // SND.UNA on, beyond what the peer granted.
        let newer = self.wl2 < info.ack
            || self.wl1 < info.seq
            || (self.wl1 == info.seq && self.wl2 <= info.ack);
        if info.ack < self.una || !newer {
            return false;
        }
        let changed = self.wnd != info.window;
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
            self.board.mark_all_lost();
        }
        changed
    }

    /// SND.WND, SND.WL1, SND.WL2.
    pub(crate) fn set_window(&mut self, seq: ExtSeq, ack: ExtSeq, window: u64) {
        self.wnd = window;
        self.max_wnd = self.max_wnd.max(window);
        self.wl1 = self.wl1.max(seq);
        self.wl2 = ack;
    }

    fn on_duplicate(&mut self, flight: u64, stats: &mut Stats) {
        stats.duplicate_acks_in += 1;
        self.dup_acks = self.dup_acks.saturating_add(1);
        if self.dup_acks == 1 {
            self.flight_before_dups = flight;
        }
        if !self.sack && !matches!(self.phase, Phase::Loss { .. }) {
            let most = self.flight().saturating_sub(self.emss as u64);
            self.reno_sacked = (self.reno_sacked + self.emss as u64).min(most);
        }
    }

    /// A retransmission that was lost goes again without waiting for the time-out, and without another
    /// reduction of the window.
    fn find_lost_retransmission(&mut self) {
        let reordering = self.rtt.srtt().unwrap_or_default() / REORDERING_DIVISOR;
        if self.sack && self.phase != Phase::Open && self.board.head_lost_again(reordering) {
            self.board.mark_head_lost();
            self.force = true;
        }
    }

    /// RFC 6675 §5 (4), RFC 6582 §3.2 (2).
    fn enter_recovery(&mut self, stats: &mut Stats) {
        if self.board.head_is_probe() {
            self.board.mark_head_lost(); // RFC 4821 §7.6.1: no sign of congestion
            self.dup_acks = 0;
            return;
        }
        stats.fast_recoveries += 1;
        self.phase = Phase::Recovery { point: self.nxt, rescue_above: self.board.head_end() };
        // RFC 5681 §3.2 (2): limited transmit does not count as flight.
        self.cc.on_loss(self.flight().min(self.flight_before_dups.max(self.emss as u64)));
        self.board.mark_head_lost();
        self.force = true;
    }

    /// The peer echoes that a packet of ours met congestion (RFC 3168 §6.1.2): the window is reduced as for
    /// a loss, at most once per round trip. Returns whether it was: the peer has to be told (CWR).
    #[allow(dead_code, reason = "ECN is its user")]
    pub(crate) fn on_ecn_congestion(&mut self) -> bool {
        if self.phase != Phase::Open || self.una < self.ecn_point {
            return false; // reduced in this round trip
        }
        self.ecn_point = self.nxt;
        self.cc.on_loss(self.flight());
        true
    }

    /// The retransmission timer expired (RFC 6298 §5.4 to §5.6, RFC 6675 §5.1).
    pub(crate) fn on_timeout(&mut self, stats: &mut Stats) {
        stats.timeouts += 1;
        let again = self.timeouts_in_a_row > 0;
        self.timeouts_in_a_row += 1;
        if self.board.head_sacked() {
            self.board.forget_sacks(); // RFC 2018 §8
        }
        self.cc.on_timeout(self.flight(), again);
        self.board.mark_all_lost();
        self.phase = Phase::Loss { point: self.nxt };
        self.dup_acks = 0;
        self.reno_sacked = 0;
        self.force = false;
        self.rtt.back_off();
    }
}
