//! [`End`] for the TCP host: it delegates to [`Host`].

use base::Instant;
use ddp::{Cookie, Message, VecMemory};
use tcp_lite::endpoint::State;
use tcp_lite::tcp::SeqNumber;

use super::{Host, HostConfig};
use crate::dialogue::Batch;
use crate::end::{End, Setup, Totals};
use crate::packet::{Packet, Protocol};

impl Setup for HostConfig {
    type Host = Host;

    fn host(self, passive: bool) -> Host {
        Host::new(self, passive)
    }
}

impl End for Host {
    const PROTOCOL: Protocol = Protocol::Tcp;

    fn connect(&mut self, now: Instant) -> Result<(), String> {
        Host::connect(self, now).map_err(|e| e.to_string())
    }

    fn shutdown(&mut self, now: Instant) {
        Host::shutdown(self, now);
    }

    fn abort(&mut self, now: Instant) {
        Host::abort(self, now);
    }

    fn input(&mut self, now: Instant, packet: &Packet, tx: &mut Batch) {
        Host::input(self, now, packet, tx);
    }

    fn work(&mut self, now: Instant, tx: &mut Batch) {
        Host::work(self, now, tx);
    }

    fn timeout(&self) -> Option<Instant> {
        Host::timeout(self)
    }

    fn packet_too_big(&mut self, now: Instant, mtu: usize, dropped: &[u8]) {
        let seq = dropped.get(4..8).and_then(|seq| seq.try_into().ok()).map(u32::from_be_bytes);
        if let Some(seq) = seq {
            self.too_big(now, mtu, SeqNumber(seq));
        }
    }

    fn stream_count(&self) -> usize {
        1
    }

    fn send(&mut self, _stream: usize, message: Message<VecMemory>) {
        Host::send(self, message);
    }

    fn delivered(&self, _stream: usize) -> Vec<(u64, u64)> {
        Host::delivered(self)
    }

    fn received(&self, _stream: usize) -> Vec<&[u8]> {
        Host::received(self)
    }

    fn sent(&self, _stream: usize) -> Vec<Cookie> {
        Host::sent(self)
    }

    fn region(&self) -> Vec<u8> {
        Host::region(self)
    }

    fn is_guard_untouched(&self) -> bool {
        Host::is_guard_untouched(self)
    }

    fn in_use(&self) -> (u64, u64) {
        Host::in_use(self)
    }

    fn is_unopened(&self) -> bool {
        self.state().is_none()
    }

    fn is_established(&self) -> bool {
        self.state() == Some(State::Established)
    }

    fn closed(&self) -> Option<bool> {
        Host::closed(self).map(tcp_lite::endpoint::CloseReason::is_graceful)
    }

    fn is_done(&self) -> bool {
        Host::is_done(self)
    }

    fn totals(&self) -> Totals {
        let stats = self.stats();
        Totals {
            tagged_delivered: stats.ddp.tagged_delivered,
            untagged_delivered: stats.ddp.untagged_delivered,
            bytes_in: stats.tcp.recv.bytes,
            bytes_acknowledged: stats.tcp.bytes_acknowledged,
            retransmitted: stats.tcp.loss.segments_retransmitted,
            timeouts: stats.tcp.loss.timeouts,
            out_of_order_bytes: stats.mpa_rx.placed_out_of_order,
            refused: stats.mpa_rx.refused,
        }
    }

    fn fault(&self) -> Option<String> {
        let (held, budget) = (self.stats().mpa_rx.held_max, self.config.hold);
        // In addition to the budget, one FPDU in order may be held.
        let limit = budget + u64::from(self.config.endpoint.mpa.max_fpdu);
        (held > limit).then(|| format!("{held} bytes held, budget {budget}"))
    }

    fn describe_state(&self) -> String {
        let tcp = self.endpoint().map(|e| e.connection().info());
        let stats = self.stats();
        format!(
            "{:?} closed {:?}, delivered {}+{}, TCP {tcp:?} {:?} held {}",
            self.state(),
            Host::closed(self),
            stats.ddp.tagged_delivered,
            stats.ddp.untagged_delivered,
            stats.tcp,
            stats.mpa_rx.held,
        )
    }

    fn show(bytes: &[u8]) -> Option<String> {
        crate::segment::Segment::parse(bytes).map(|segment| format!("{segment:?}"))
    }
}
