//! Handles received TCP segments. A segment is passed to its stream, opens a stream, or is answered with a reset.

use base::Instant;
use tcp_lite::mpa::looks_like_one_fpdu;
use tcp_lite::tcp::{Flags, HEADER_LEN, Segment, TIMESTAMPS_LEN, reset_for};
use wire::crc32c::{self, Digest, Sum};
use wire::mpa::CRC_LEN;

use crate::api::DropReason;
use crate::checksum;
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::net::demux::L4Check;
use crate::net::neighbour::Mac;
use crate::net::path::Path;
use crate::net::protocol::TCP;
use crate::worker::arrival::{Arrival, ArrivalKind};
use crate::worker::flows::conn::Conn;
use crate::worker::flows::listeners::AcceptProgress;
use crate::worker::flows::lower_layer::LowerLayer;
use crate::worker::flows::schedule::CarrierKind;
use crate::worker::link::event_queue::EVENT_BATCH;
use crate::worker::receive::partial_checksums;
use crate::worker::transmit::segment_batch::SegmentBatch;
use crate::worker::{Core, Env};

impl<Io: PortIo> Core<Io> {
    /// Handles one or more successive segments of one flow after their look-up. Calls `prefetch` with the index of each
    /// segment before it is handled. Returns the number of handled segments. Handling stops after a segment if an
    /// acknowledgement must be sent now, if the endpoint has at least [`EVENT_BATCH`] pending events, or if the segment
    /// replaced a connection in TIME-WAIT.
    pub(in crate::worker) fn input_segment_run(
        &mut self,
        run: &[Arrival<Io::Frame>],
        prefetch: impl Fn(usize),
        now: Instant,
    ) -> usize {
        let Some(first) = run.first() else { return 0 };
        let (source, destination) = (first.flow.remote.ip(), first.flow.local.ip());
        let addresses = checksum::sum_addresses(source, destination);
        // Earlier frames of the burst may have opened or ended the stream since the look-up, and flows may share a
        // hash.
        let found = self.streams.find_connection(first.slot, first.hash, &first.flow);
        let Some((slot, conn)) = found else {
            prefetch(0);
            self.input_segment_without_stream(first, addresses, now);
            return 1;
        };
        for (at, arrival) in run.iter().enumerate() {
            prefetch(at);
            let Some(carrier) = conn.lower.connection() else { return at + 1 };
            if arrival.strength < carrier.min_strength() {
                self.env.control.counters().drops.count(DropReason::NotProtected);
                continue;
            }
            let mut segment = Segment::default();
            if !self.env.read_segment(&mut segment, arrival, addresses) {
                continue;
            }
            if carrier.endpoint().connection().may_reopen(&segment) {
                // RFC 9293 §3.6.1: a new incarnation may replace a connection in TIME-WAIT. The old connection may have
                // ended in this burst, so its remaining events are reported first.
                let last = carrier.endpoint().connection().snd_nxt();
                self.report_all(slot, now);
                self.remove_stream(slot);
                let Arrival { flow, source_mac, strength, .. } = *arrival;
                self.open_or_refuse(flow, source_mac, strength, &segment, Some(last), now);
                return at + 1;
            }
            let follow_up = self.env.input_segment(slot, conn, &segment, now);
            if follow_up.is_needed() {
                self.finish_segment(slot, follow_up, now);
                return at + 1;
            }
        }
        run.len()
    }

    /// Handles a segment whose flow has no stream.
    fn input_segment_without_stream(
        &mut self,
        arrival: &Arrival<Io::Frame>,
        addresses: u16,
        now: Instant,
    ) {
        let mut segment = Segment::default();
        if !self.env.read_segment(&mut segment, arrival, addresses) {
            return;
        }
        if self.is_for_host(arrival) {
            return self.env.send_to_host(arrival.flow.interface.into(), arrival.frame.bytes());
        }
        let Arrival { flow, source_mac, strength, .. } = *arrival;
        self.open_or_refuse(flow, source_mac, strength, &segment, None, now);
    }

    /// Handles a segment that matched no stream at its look-up. A segment for the host's kernel is passed on. A segment
    /// that may open a stream is examined within the budget for unmatched frames. A reset is dropped. Other segments
    /// are examined while the reset rate limit permits an answer.
    pub(in crate::worker) fn input_unmatched_segment(
        &mut self,
        arrival: &Arrival<Io::Frame>,
        now: Instant,
    ) {
        let flags = Segment::flags_of(&arrival.frame.bytes()[arrival.span.clone()]);
        // An earlier frame of the burst may have opened the stream since the look-up.
        if let Some(flags) = flags.filter(|_| !self.streams.flows().contains(arrival.hash)) {
            if self.is_for_host(arrival) {
                return self.env.send_to_host(arrival.flow.interface.into(), arrival.frame.bytes());
            }
            if self.may_open(flags, now) {
                if !self.unmatched_budget.take(now) {
                    return self.env.control.counters().drops.count(DropReason::Overload);
                }
            } else if flags.has(Flags::RST) {
                return self.env.control.counters().drops.count(DropReason::NoStream);
            } else if self.env.network.reset_limit_mut().is_exhausted(now) {
                self.env.control.counters().drops.count(DropReason::NoStream);
                return self.env.control.counters().frames.answers_limited.add(1);
            }
        }
        self.input_segment_run(core::slice::from_ref(arrival), |_| {}, now);
    }

    /// Returns true if a segment with these flags may open a stream: a SYN without ACK, RST and FIN, or, while cookies
    /// are outstanding, an ACK without RST.
    fn may_open(&self, flags: Flags, now: Instant) -> bool {
        if flags.has(Flags::SYN) {
            return !flags.intersects(Flags::ACK.with(Flags::RST).with(Flags::FIN));
        }
        flags.has(Flags::ACK)
            && !flags.has(Flags::RST)
            && self.env.admission.cookies().are_outstanding(now)
    }

    /// Reports the stream's events and sends its acknowledgement, as `follow_up` requires.
    #[inline]
    pub(in crate::worker) fn finish_segment(
        &mut self,
        slot: u32,
        follow_up: FollowUp,
        now: Instant,
    ) {
        if follow_up.has_events {
            // The events are reported before further segments cause more events, so that a stream without credit is
            // paused in time.
            self.report_events(slot, now);
        }
        if follow_up.answer_now
            && let Some(carrier) = self.streams.carrier_mut(slot)
        {
            self.env.transmit_carrier(slot, carrier, now);
        }
    }

    /// Answers a segment without a stream with a reset to the MAC address of the segment's sender, within the rate
    /// limit. A received reset is not answered. Returns true if the reset was queued.
    pub(in crate::worker) fn send_reset(
        &mut self,
        flow: &FlowKey,
        mac: Mac,
        segment: &Segment<'_>,
        now: Instant,
    ) -> bool {
        if segment.flags.has(Flags::RST) {
            return false;
        }
        if !self.env.network.reset_limit_mut().take(flow.remote.ip(), now) {
            self.env.control.counters().frames.answers_limited.add(1);
            return false;
        }
        let interface_index = usize::from(flow.interface);
        let interface = self.env.network.interface(interface_index);
        let (local, remote) = (flow.local.ip(), flow.remote.ip());
        let Some(mut path) = Path::via(interface_index, interface, local, remote, remote) else {
            return false;
        };
        path.set_mac(mac);
        let Some(slot) = self.env.ports.get_mut(interface.port) else { return false };
        let checksum_mode = slot.facts.tx_checksum;
        let mut batch =
            SegmentBatch::new(&mut slot.io, &path, checksum_mode, 1, self.env.control.counters());
        let answered = reset_for(segment, &mut batch);
        if answered {
            self.env.control.counters().streams.resets_sent.add(1);
        } else {
            self.env.control.counters().frames.answers_lost.add(1);
        }
        answered
    }
}

/// Verifies a segment's checksum. `addresses` is the sum of source and destination address. Also returns the CRC of the
/// text without its last four bytes, if the text looks like one FPDU and a single pass for checksum and CRC is faster.
/// This function does not look up the stream. The stream ignores the CRC if it uses no CRCs or the segment is out of
/// order.
#[inline]
fn verify_checksum(addresses: u16, bytes: &[u8]) -> Result<Option<u32>, DropReason> {
    let (crc, sum) = match Digest::is_one_pass(bytes.len()).then(|| split_fpdu(bytes)).flatten() {
        Some((head, text, field)) => {
            let (crc, sum) = crc32c::crc_sum(0, sum_header(head), text);
            (Some(crc), sum.add_bytes(field).value())
        }
        None => (None, checksum::sum(bytes)),
    };
    match checksum::segment_with_sum(addresses, TCP, bytes.len(), sum) {
        0 => Ok(crc),
        _ => Err(DropReason::L4Checksum),
    }
}

/// Returns the sum of a segment's header. Most headers have the timestamps option only: the compiler unrolls the sum of
/// this fixed length.
#[inline]
fn sum_header(head: &[u8]) -> Sum {
    match <&[u8; HEADER_LEN + TIMESTAMPS_LEN]>::try_from(head) {
        Ok(head) => Sum::default().add_bytes(head),
        Err(_) => Sum::default().add_bytes(head),
    }
}

/// Splits a long segment whose text looks like one FPDU into header, text without the CRC field, and CRC field.
#[inline]
fn split_fpdu(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8; CRC_LEN])> {
    let (head, text) = bytes.split_at_checked(Segment::header_len_of(bytes)?)?;
    if !looks_like_one_fpdu(text) {
        return None;
    }
    let (text, field) = text.split_last_chunk()?;
    Some((head, text, field))
}

/// Work that remains for the worker after a stream has processed a segment.
#[derive(Clone, Copy, Debug)]
pub(in crate::worker) struct FollowUp {
    /// True if the stream has at least [`EVENT_BATCH`] events to report.
    has_events: bool,
    /// True if the stream is to send an acknowledgement now: too many segments are unacknowledged.
    answer_now: bool,
}

impl FollowUp {
    #[inline]
    fn is_needed(self) -> bool {
        self.has_events || self.answer_now
    }
}

impl<Io: PortIo> Env<Io> {
    /// Reads the segment of an arrival into `segment`, which must be a default value. Verifies its checksum unless the
    /// device has verified it. `addresses` is the sum of source and destination address. Returns false and counts the
    /// drop if the segment is malformed or its checksum is wrong.
    #[inline]
    fn read_segment<'a>(
        &mut self,
        segment: &mut Segment<'a>,
        arrival: &'a Arrival<Io::Frame>,
        addresses: u16,
    ) -> bool {
        let ArrivalKind::Segment { ce, check } = arrival.kind else { return false };
        let bytes = &arrival.frame.bytes()[arrival.span.clone()];
        segment.ce = ce;
        if check == L4Check::Unknown {
            match verify_checksum(addresses, bytes) {
                Ok(text_crc) => segment.text_crc = text_crc,
                Err(reason) => {
                    self.control.counters().drops.count(reason);
                    if partial_checksums::has_partial_tcp_checksum(addresses, bytes) {
                        self.record_partial_checksum(arrival.port, arrival.flow.remote.ip());
                    }
                    return false;
                }
            }
        }
        if let Err(reason) = segment.read(bytes) {
            self.control.counters().drops.count_tcp(reason);
            return false;
        }
        true
    }

    /// Passes a segment to its stream. Returns the work that remains.
    #[inline]
    pub(in crate::worker) fn input_segment(
        &mut self,
        slot: u32,
        conn: &mut Conn,
        segment: &Segment<'_>,
        now: Instant,
    ) -> FollowUp {
        let LowerLayer::Tcp(carrier) = &mut conn.lower else {
            return FollowUp { has_events: false, answer_now: false };
        };
        let acknowledged = carrier.bytes_acknowledged();
        let result = carrier.endpoint_mut().input(now, segment, &mut self.tables.context());
        match result {
            Ok(()) => self.control.counters().streams.segments.add(1),
            Err(reason) => self.control.counters().drops.count_tcp(reason),
        }
        if conn.accepted.is_unproven() && carrier.endpoint().connection().state().is_synchronized()
        {
            conn.accepted.advance(AcceptProgress::Starting);
            self.admission.listeners_mut().mark_proven(carrier.peer(), conn.id);
        }
        let answer = carrier.record_packet(acknowledged, &mut self.network, now);
        let reports = carrier.endpoint().pending_events() >= EVENT_BATCH;
        carrier.make_ready(slot, self.schedules.get_mut(CarrierKind::Connection));
        FollowUp { has_events: reports, answer_now: answer }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    /// Builds a segment of 20 + `text` bytes with data offset `offset`, in words of four bytes. The text after the data
    /// offset begins with `ulpdu`, the length field of an FPDU.
    fn segment(ends: (IpAddr, IpAddr), offset: u8, ulpdu: u16, text: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..20 + text).map(|i| (i * 31 + i / 7) as u8).collect();
        bytes[12] = offset << 4;
        if let Some(length) = bytes.get_mut(usize::from(offset) * 4..).and_then(|t| t.get_mut(..2))
        {
            length.copy_from_slice(&ulpdu.to_be_bytes());
        }
        bytes[16..18].fill(0);
        let sum = checksum::segment(ends.0, ends.1, TCP, &bytes);
        bytes[16..18].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// Verification with and without CRC accepts the same segments and detects every flipped bit. A returned CRC covers
    /// the text without its last four bytes.
    #[test]
    fn one_pass_crc_and_plain_checksum_accept_the_same_segments() {
        let v4 = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let v6 = (IpAddr::from([7; 16]), IpAddr::from([9; 16]));
        let mut with_crc = 0;
        for (ends, other) in [(v4, v6), (v6, v4)] {
            for (offset, ulpdu, text) in [
                (5, 1414, 1420),
                (8, 1414, 1432),
                (15, 230, 276),
                (5, 1413, 1420),
                (5, 1413, 1419),
                (5, 1400, 1420),
                (5, 100, 106),
                (0, 1414, 1420),
                (4, 1414, 1416),
                (15, 1, 3),
            ] {
                let bytes = segment(ends, offset, ulpdu, text);
                let crc = verify_checksum(checksum::sum_addresses(ends.0, ends.1), &bytes)
                    .expect("the checksum is right");
                if let Some(crc) = crc {
                    let text = &bytes[usize::from(offset) * 4..bytes.len() - CRC_LEN];
                    assert_eq!(crc, crc32c::update(0, text), "{offset} {ulpdu}");
                    with_crc += 1;
                }
                let wrong = Err(DropReason::L4Checksum);
                assert_eq!(
                    verify_checksum(checksum::sum_addresses(other.0, other.1), &bytes),
                    wrong,
                    "{offset} {ulpdu}"
                );
                let end = bytes.len();
                for at in [0, 4, 13, 17, 20, 21, 24, 100, 300, end / 2, end - 5, end - 4, end - 1] {
                    let mut bytes = bytes.clone();
                    let Some(byte) = bytes.get_mut(at) else { continue };
                    *byte ^= 0x10;
                    assert_eq!(
                        verify_checksum(checksum::sum_addresses(ends.0, ends.1), &bytes),
                        wrong,
                        "{offset} {ulpdu} {at}"
                    );
                }
            }
        }
        assert!(with_crc >= 6 || !Digest::is_one_pass(1420), "{with_crc}");
    }
}
