//! Path MTU discovery of an association (RFC 9260 §7.3, RFC 8899 §6.2): reports of routers, black holes, and probes.
//! TCP uses the same search ([`transport::pmtu`]). A probe is a separate packet without data:
//!
//! ```text
//!  | common header | HEARTBEAT: a nonce | PAD (RFC 4820) up to the size that is tried |
//! ```
//!
//! The interface's limit is in use until a report, a black hole or another association shows a smaller size. Then
//! larger sizes are probed, one at a time and only while data is in flight. Sizes that failed are probed again after
//! [`path_mtu_raise`](super::Config::path_mtu_raise). Sizes are bytes of SCTP packets.
//!
//! Not supported: paths that carry less than [`MIN_PACKET`](super::MIN_PACKET). Packets of up to this size are sent on
//! any path.

use core::time::Duration;

use base::Instant;
use transport::pmtu::{SizeChange, black_hole_fallback, probe_backoff};
use transport::recorder::Kind;
use wire::sctp::{CHUNK_HEADER_LEN, COMMON_HEADER_LEN, PacketBuilder, chunk_type};

use super::association::Association;
use super::path_mtu::{Probe, clamp_len};
use super::timers::Timer;
use crate::seam::TxBatch;

/// Minimum time-out of a probe (PROBE_TIMER, RFC 8899 §5.1.1).
const PROBE_TIMER: Duration = Duration::from_secs(1);

impl Association {
    /// Sets the length of the headers in front of SCTP packets, bytes: IP, and UDP if SCTP is encapsulated. The default
    /// is an IP header without options.
    pub fn set_headers(&mut self, bytes: u16) {
        self.path.headers_len = bytes;
    }

    /// Sets the size in use to `len` bytes, known from the interface's MTU, a report or another association. The size
    /// is at least [`MIN_PACKET`](super::MIN_PACKET) and `min_path_mtu` minus headers. Larger sizes are probed after
    /// [`path_mtu_raise`](super::Config::path_mtu_raise).
    pub fn set_path_mtu(&mut self, now: Instant, len: usize) {
        let len = clamp_len(len).max(self.path.floor());
        let raise_at = now + self.config.path_mtu_raise;
        self.path.discovery_mut().search.set_size(len, raise_at);
        self.apply_path_len(now);
    }

    /// Returns the smallest size that [`set_path_mtu`](Self::set_path_mtu) accepts, bytes of SCTP packets.
    pub fn min_path_len(&self) -> usize {
        self.path.floor().into()
    }

    /// Returns the size in use if reports, probes or other associations have confirmed it. Returns `None` before any
    /// discovery, and after a black hole while the size is a guess.
    pub fn confirmed_path_len(&self) -> Option<usize> {
        let search = &self.path.discovery.as_ref()?.search;
        search.is_confirmed().then(|| search.size().into())
    }

    /// Processes a router's report that the path carries packets of at most `len` bytes. Returns true if the report
    /// changed the state of the search.
    pub fn on_packet_too_big(&mut self, now: Instant, len: usize) -> bool {
        if let Some(probe) = self.path.probe()
            && len >= self.packet_len
        {
            // RFC 8899 §4.6.2, §6.2.1.4: a report of at least the size in use can only be about the probe.
            let is_new = len < usize::from(probe.len);
            if is_new {
                self.timers.stop(Timer::Probe);
                let raise_at = now + self.config.path_mtu_raise;
                let found = self.path.discovery_mut();
                found.probe = None;
                found.search.on_probe_too_big(clamp_len(len), raise_at);
            }
            return is_new;
        }
        let is_new = len < self.packet_len && self.packet_len > usize::from(self.path.floor());
        if is_new {
            self.set_path_mtu(now, len);
        }
        is_new
    }

    /// Adopts the size found by the search, if it has changed.
    fn apply_path_len(&mut self, now: Instant) {
        let len = self.path.discovery.as_ref().map_or(self.path.limit, |found| found.search.size());
        let len = usize::from(len);
        match len.cmp(&self.packet_len) {
            core::cmp::Ordering::Less => self.stats.path_mtu_reductions += 1,
            core::cmp::Ordering::Equal => return,
            core::cmp::Ordering::Greater => self.stats.path_mtu_raises += 1,
        }
        self.sender.note(now, Kind::PathMtu, self.packet_len as u32, len as u32);
        self.packet_len = len;
        self.sender.set_packet_len(len);
    }

    // --- black holes --------------------------------------------------------------------------------

    /// Processes a time-out of T3-rtx (RFC 8899 §4.3). Returns true if the packet length is the suspected cause;
    /// shorter packets are then sent from now on.
    pub(super) fn update_path_after_timeout(&mut self, now: Instant) -> bool {
        let longest = core::mem::take(&mut self.path.longest_since_timeout);
        if !self.config.path_mtu_probing {
            return false;
        }
        let evident = self.sender.shorter_arrived();
        let fallback = black_hole_fallback(
            self.sender.timeouts_in_a_row(),
            evident,
            self.config.max_retransmits,
        );
        let is_long = usize::from(longest).min(self.packet_len) > self.path.floor().into();
        let Some(fallback) = fallback.filter(|_| is_long) else { return false };
        let found = self.path.discovery_mut();
        let SizeChange::Size(_) = found.search.on_black_hole(fallback) else { return false };
        found.probe = None;
        self.timers.stop(Timer::Probe);
        self.stats.path_mtu_black_holes += 1;
        self.apply_path_len(now);
        // The lost packets were too long. Shorter packets are new to the path and need not wait for the backoff of
        // earlier time-outs (RFC 9260 §6.3.3). The backoff is reset at most twice in a row, because a black hole
        // changes the size first to the base, then to the minimum.
        self.sender.reset_backoff();
        true
    }

    // --- probes -------------------------------------------------------------------------------------

    /// Sends a probe if one is due: no probe is in flight and no chunk is lost. The caller checks that data is in
    /// flight (RFC 8899 §5.1.1).
    pub(super) fn send_probe(&mut self, now: Instant, tx: &mut impl TxBatch) {
        if !self.config.path_mtu_probing || !self.state.sends_data() || !self.sender.is_lossless() {
            return;
        }
        let Some(found) = &self.path.discovery else { return };
        let due = found.probe.is_none().then(|| found.search.next_probe(now)).flatten();
        let Some(len) = due.filter(|len| usize::from(*len) > self.packet_len) else { return };
        let checksum = tx.needs_checksum();
        let Some(out) = tx.reserve_packet(len.into()) else { return };
        let nonce = self.next_nonce();
        let mut packet =
            PacketBuilder::new(out, self.identity.ends.ports(), self.identity.peer_tag);
        // RFC 8899 §6.2.1.2: the probe consists of HEARTBEAT and PAD. The smallest probe has room for both chunks.
        let written = packet.heartbeat(&nonce.to_be_bytes()).is_ok();
        let pad = (packet.remaining() & !3).checked_sub(CHUNK_HEADER_LEN);
        let Some(pad) = pad.filter(|_| written) else { return };
        if packet.padding(chunk_type::PAD, pad).is_err() {
            return;
        }
        let sent = packet.finish_with(checksum);
        debug_assert!(sent > COMMON_HEADER_LEN && sent + 4 > usize::from(len));
        tx.forbid_fragmentation();
        tx.commit(sent);
        self.stats.packets_out += 1;
        self.stats.path_mtu_probes += 1;
        self.timers.set(Timer::Probe, now + self.sender.rto().max(PROBE_TIMER));
        let found = self.path.discovery_mut();
        found.search.on_probe_sent(now);
        found.probe = Some(Probe { nonce, len });
    }

    /// Processes a HEARTBEAT ACK with this nonce. Returns true if it answers the probe in flight.
    pub(super) fn on_probe_acknowledged(&mut self, now: Instant, nonce: u64) -> bool {
        let Some(probe) = self.path.probe().filter(|probe| probe.nonce == nonce) else {
            return false;
        };
        self.timers.stop(Timer::Probe);
        let found = self.path.discovery_mut();
        found.probe = None;
        let change = found.search.on_probe_arrived(probe.len);
        // RFC 8899 §6.2.1.2: the reply to a probe clears the error count, like the reply to any HEARTBEAT.
        self.errors = 0;
        if change != SizeChange::Unchanged {
            self.apply_path_len(now);
        }
        true
    }

    /// Processes the time-out of a probe, which is neither a sign of congestion nor an error (RFC 8899 §6.2.1.2).
    pub(super) fn on_probe_timeout(&mut self, now: Instant) {
        let Some(probe) = self.path.discovery.as_mut().and_then(|found| found.probe.take()) else {
            return;
        };
        self.stats.path_mtu_probes_lost += 1;
        // RFC 4821 §7.6.4: if other packets were also lost, the size of the probe need not be the cause of its loss.
        let is_isolated_loss = self.sender.is_lossless();
        let packets = self.sender.cwnd() / self.packet_len.max(1) as u64;
        let round_trip = self.sender.srtt().unwrap_or(PROBE_TIMER);
        let next = now + probe_backoff(round_trip, packets, false);
        let raise_at = now + self.config.path_mtu_raise;
        self.path.discovery_mut().search.on_probe_lost(probe.len, is_isolated_loss, next, raise_at);
    }
}
