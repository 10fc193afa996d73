//! Path MTU discovery of a connection (RFC 1191, RFC 8201, RFC 4821): ICMP reports of routers, checked against the data
//! in flight (RFC 5927 §7), black holes, and probes.
//!
//! A report is applied at once if no segment longer than the reported size was ever acknowledged. Otherwise the report
//! is stored, and applied only if the reported segment is lost. An off-path attacker cannot cause that loss, and an
//! acknowledgement of the segment proves the report wrong (RFC 5927 §7.2).
//!
//! Not included: checks that need no connection (addresses, quoted lengths). The ICMP parser performs them.

use core::time::Duration;

use base::Instant;
use transport::pmtu::{SizeChange, black_hole_fallback, probe_backoff};
use transport::recorder::Kind;
use transport::recovery::Phase;
use transport::seq::{ExtSeq, SeqNumber};

use super::connection::Connection;
use super::path_mtu::TooBigOutcome;
use super::scoreboard::ProbeFate;

impl Connection {
    /// Sets the MSS of the path (MTU less IP and fixed TCP header), bytes. The value comes from the interface or from
    /// other streams on the same path. The configured minimum and the peer's MSS limit it. Larger sizes are probed
    /// again after [`PathMtuConfig::raise`](super::PathMtuConfig::raise).
    pub fn set_path_mss(&mut self, now: Instant, mss: u16) {
        self.apply_path_mss(now, mss.max(self.config.min_mss));
    }

    /// Processes a router's report that the packet with the segment at `seq` was too big. `mtu`: MTU of the next hop,
    /// bytes (RFC 1191 §4, RFC 4443 §3.2). The caller finds the connection by the quoted addresses and ports.
    pub fn on_packet_too_big(&mut self, now: Instant, mtu: u16, seq: SeqNumber) -> TooBigOutcome {
        let mss = mtu.saturating_sub(self.path.headers_len());
        let seq = self.send.una.nearest(seq);
        // RFC 5927 §4.1: the quoted segment must be in flight.
        if seq < self.send.una || seq >= self.send.nxt {
            return TooBigOutcome::NotInFlight;
        }
        if mss < self.path.floor() {
            return TooBigOutcome::BadSize;
        }
        let payload = self.send.size.payload_for_mss(mss);
        let probe = self.path.probe().map(|(start, len)| (self.send.una.nearest(start), len));
        if probe.is_some_and(|(start, len)| start <= seq && seq.since(start) < u64::from(len)) {
            return self.on_probe_too_big(now, mss, payload);
        }
        if mss >= self.path.mss() {
            return TooBigOutcome::NotSmaller;
        }
        if self.send.outstanding.board.len_at(seq).is_some_and(|len| usize::from(len) <= payload) {
            return TooBigOutcome::BadSize;
        }
        // RFC 5927 §7.2: the report is plausible if no segment longer than the reported size was ever acknowledged. The
        // loss of the reported segment proves the report.
        let (longest, lost) = (self.send.longest_acked(), self.send.outstanding.board.is_lost(seq));
        if usize::from(longest) <= payload || lost {
            self.apply_path_mss(now, mss);
            return TooBigOutcome::Applied;
        }
        self.path.discovery_mut().pending_report = Some(match self.path.pending_report() {
            Some((before, at)) => {
                (before.min(mss), if at.before(seq.wire()) { seq.wire() } else { at })
            }
            None => (mss, seq.wire()),
        });
        TooBigOutcome::Stored
    }

    /// Returns the MSS that the path is assumed to carry, bytes: MTU less IP and fixed TCP header.
    pub fn path_mss(&self) -> u16 {
        self.path.mss()
    }

    /// Returns the path's MSS, bytes, if a report, a probe or another stream confirms it. The size chosen after a black
    /// hole is a guess and not confirmed.
    pub fn confirmed_path_mss(&self) -> Option<u16> {
        let search = &self.path.discovery.as_ref()?.search;
        search.is_confirmed().then(|| search.size())
    }

    fn on_probe_too_big(&mut self, now: Instant, mss: u16, payload: usize) -> TooBigOutcome {
        if payload < self.send.emss() {
            return TooBigOutcome::ProbeTooSmall;
        }
        let found = self.path.discovery_mut();
        found.probe = None;
        found.search.on_probe_too_big(mss, now + self.config.path_mtu.raise);
        let emss = self.send.emss();
        self.send.outstanding.board.mark_longer_lost(emss);
        TooBigOutcome::Applied
    }

    fn apply_path_mss(&mut self, now: Instant, mss: u16) {
        let found = self.path.discovery_mut();
        found.pending_report = None;
        found.search.set_size(mss, now + self.config.path_mtu.raise);
        self.use_path_mss(now);
    }

    /// Updates the effective MSS, and with it MPA's MULPDU, after a possible change of the path's MSS (RFC 5044 §4.5).
    fn use_path_mss(&mut self, now: Instant) {
        let before = self.send.emss();
        if self.send.set_path_mss(self.path.mss()) {
            self.stats.cold_stats().path_mtu.reductions += 1;
        } else if self.send.emss() > before {
            self.stats.cold_stats().path_mtu.raises += 1;
        } else {
            return;
        }
        self.note(now, Kind::PathMtu, before as u32, self.send.emss() as u32);
    }

    // --- losses -------------------------------------------------------------------------------------

    /// Processes, after an acknowledgement, the fate of the path MTU probe and of the segment in a stored report.
    pub(super) fn update_path_after_ack(&mut self, now: Instant) {
        self.process_probe_fate(now, false);
        let Some((mss, seq)) = self.path.pending_report() else { return };
        let seq = self.send.una.nearest(seq);
        if seq < self.send.una {
            self.path.discovery_mut().pending_report = None; // RFC 5927 §7.2: the segment arrived, so it was not too big
        } else if self.send.outstanding.board.is_lost(seq) {
            self.apply_path_mss(now, mss);
        }
    }

    /// Processes a retransmission time-out: applies a stored report, or detects a black hole.
    pub(super) fn update_path_after_timeout(&mut self, now: Instant) {
        self.process_probe_fate(now, true);
        if let Some((mss, _)) = self.path.pending_report() {
            return self.apply_path_mss(now, mss);
        }
        if !self.config.path_mtu.probing {
            return;
        }
        let evident = self.send.outstanding.board.has_shorter_arrived();
        let fallback =
            black_hole_fallback(self.send.recovery.consecutive_timeouts(), evident, u32::MAX);
        let longest = self.send.outstanding.board.head().map_or(0, |head| head.len);
        let is_long = longest > self.send.size.payload_for_mss(self.path.floor());
        let Some(fallback) = fallback.filter(|_| is_long) else { return };
        if let SizeChange::Size(_) = self.path.discovery_mut().search.on_black_hole(fallback) {
            self.stats.cold_stats().path_mtu.black_holes += 1;
            self.use_path_mss(now);
            // The retransmission is shorter than the segments that timed out, so their backoff does not apply (RFC 6298
            // §5.5). A black hole changes the size at most twice in a row: to the base, then to the minimum.
            self.send.recovery.rtt_mut().reset_backoff();
        }
    }

    fn process_probe_fate(&mut self, now: Instant, timed_out: bool) {
        let Some(out) = self.send.outstanding.get_mut() else { return };
        let Some(fate) = out.board.take_probe_fate() else { return };
        self.path.discovery_mut().probe = None;
        match fate {
            ProbeFate::Arrived(payload) => {
                let mss = self.send.size.mss_for_payload(payload);
                if let SizeChange::Size(_) = self.path.discovery_mut().search.on_probe_arrived(mss)
                {
                    self.use_path_mss(now);
                }
            }
            ProbeFate::Lost(payload) => {
                self.stats.cold_stats().path_mtu.probes_lost += 1;
                // RFC 4821 §7.6.4: with other losses at the same time, the probe's size may not be the cause of its
                // loss.
                let alone = self.send.outstanding.state.phase() == Phase::Open
                    || self.send.outstanding.board.len() == 1;
                let segments = self.send.recovery.cc().cwnd() / self.send.emss().max(1) as u64;
                let srtt = self.send.recovery.rtt().srtt();
                let round_trip = srtt.map_or(Duration::from_secs(1), Duration::from);
                let next = now + probe_backoff(round_trip, segments, timed_out);
                let raise_at = now + self.config.path_mtu.raise;
                let mss = self.send.size.mss_for_payload(payload);
                self.path.discovery_mut().search.on_probe_lost(mss, alone, next, raise_at);
            }
        }
    }

    // --- probes -------------------------------------------------------------------------------------

    /// Returns the payload bytes of a path MTU probe if one may be sent now (RFC 4821 §7.4). The conditions: no data is
    /// lost, no probe is in flight, and the congestion window and the usable window have room.
    pub(super) fn due_probe_len(&self, now: Instant) -> Option<usize> {
        // Without a search, the largest MSS that interface and peer allow is in use, so there is nothing to probe.
        let found = self.path.discovery.as_ref()?;
        if !self.config.path_mtu.probing
            || found.probe.is_some()
            || self.send.outstanding.state.phase() != Phase::Open
            || found.search.is_at_limit()
        {
            return None;
        }
        let payload = self.send.size.payload_for_mss(found.search.next_probe(now)?);
        let open = self.send.pipe() + payload as u64 <= self.send.recovery.cc().cwnd();
        let usable = self.send.usable_window() >= payload as u64;
        (payload > self.send.emss() && open && usable).then_some(payload)
    }

    /// Records that the last segment sent, at `start`, was a path MTU probe with `len` bytes of payload.
    pub(super) fn on_path_probe_sent(&mut self, now: Instant, start: ExtSeq, len: usize) {
        self.stats.cold_stats().path_mtu.probes += 1;
        let found = self.path.discovery_mut();
        found.search.on_probe_sent(now);
        found.probe = Some((start.wire(), len as u16));
        self.send.outstanding.board.mark_last_as_probe();
    }
}
