//! Received TCP segments: for a stream, for a listener, or answered with a reset.

use std::net::IpAddr;

use base::Instant;
use tcp_lite::mpa::looks_like_one_fpdu;
use tcp_lite::tcp::{Flags, Segment, reset_for};
use wire::crc32c::{self, Digest, Sum};
use wire::mpa::CRC_LEN;

use super::arrival::Arrival;
use super::batch::Batch;
use super::conn::Conn;
use super::event::MANY;
use super::listen::Progress;
use super::lower::Lower;
use super::schedule::CarrierKind;
use super::{Core, Env};
use crate::api::DropReason;
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::net::checksum;
use crate::net::demux::TCP;
use crate::net::neighbour::Mac;
use crate::net::path::Path;

impl<Io: PortIo> Core<Io> {
    /// A segment, looked up.
    pub(super) fn segment(
        &mut self,
        arrival: &Arrival<Io::Frame>,
        ce: bool,
        unverified: bool,
        now: Instant,
    ) {
        let bytes = &arrival.frame.bytes()[arrival.span.clone()];
        let (source, destination) = (arrival.flow.remote.ip(), arrival.flow.local.ip());
        let mut segment = Segment { ce, ..Segment::default() };
        if unverified {
            match verify(source, destination, bytes) {
                Some(text_crc) => segment.text_crc = text_crc,
                None => return self.env.control.counters().drops.count(DropReason::L4Checksum),
            }
        }
        if let Err(reason) = segment.read(bytes) {
            return self.env.control.counters().drops.count_tcp(reason);
        }
        // The burst itself may have opened or ended the stream meanwhile, and another's hash may be the same.
        let found = self.streams.connection(arrival.slot, arrival.hash, &arrival.flow);
        let Some((slot, conn)) = found else {
            if self.is_the_hosts(arrival) {
                return self.env.give_host(arrival.flow.interface.into(), arrival.frame.bytes());
            }
            return self.no_stream(arrival.flow, arrival.source_mac, &segment, None, now);
        };
        let Some(carrier) = conn.lower.connection() else { return };
        if carrier.endpoint().connection().may_reopen(&segment) {
            // RFC 9293 §3.6.1: a new incarnation may take TIME-WAIT's place. The burst that brought this
            // SYN may have ended the old one, which is not reported yet.
            let last = carrier.endpoint().connection().snd_nxt();
            self.report_all(slot, now);
            self.forget(slot);
            let source_mac = arrival.source_mac;
            return self.no_stream(arrival.flow, source_mac, &segment, Some(last), now);
        }
        let taken = self.env.take_segment(slot, conn, &segment, now);
        self.after_segment(slot, taken, now);
    }

    /// A segment that had no stream when it was looked up. It is examined if it may begin one, while there are
    /// `answers` left, or if it may be answered with a reset.
    pub(super) fn strange_segment(
        &mut self,
        arrival: &Arrival<Io::Frame>,
        (ce, unverified): (bool, bool),
        answers: &mut usize,
        now: Instant,
    ) {
        let flags = Segment::flags_of(&arrival.frame.bytes()[arrival.span.clone()]);
        // The burst may have opened its stream meanwhile.
        if let Some(flags) = flags.filter(|_| !self.streams.flows().has(arrival.hash)) {
            if self.is_the_hosts(arrival) {
                return self.env.give_host(arrival.flow.interface.into(), arrival.frame.bytes());
            }
            let counters = self.env.control.counters();
            if self.may_open(flags, now) {
                if *answers == 0 {
                    return counters.drops.count(DropReason::Overload);
                }
                *answers -= 1;
            } else if flags.has(Flags::RST) {
                return counters.drops.count(DropReason::NoStream);
            } else if self.env.network.resets().is_exhausted(now) {
                self.env.control.counters().drops.count(DropReason::NoStream);
                return self.env.control.counters().frames.answers_limited.add(1);
            }
        }
        self.segment(arrival, ce, unverified, now);
    }

    /// A segment without a stream with these flags may begin one: a SYN, or what may bring a cookie back.
    fn may_open(&self, flags: Flags, now: Instant) -> bool {
        if flags.has(Flags::SYN) {
            return !flags.any(Flags::ACK.with(Flags::RST).with(Flags::FIN));
        }
        flags.has(Flags::ACK)
            && !flags.has(Flags::RST)
            && self.env.admission.cookies().are_awaited(now)
    }

    /// What a segment that was taken calls for at once.
    #[inline]
    pub(super) fn after_segment(&mut self, slot: u32, taken: Taken, now: Instant) {
        if taken.reports {
            // Of a stream without credit nothing more is taken, before it has more of them.
            self.report(slot, now);
        }
        if taken.answer
            && let Some(carrier) = self.streams.carrier_mut(slot)
        {
            self.env.send(slot, carrier, now);
        }
    }

    /// Answers a segment without a stream with a reset, to the link-layer address that it came from. Returns whether it
    /// did.
    pub(super) fn refuse(
        &mut self,
        flow: &FlowKey,
        mac: Mac,
        segment: &Segment<'_>,
        now: Instant,
    ) -> bool {
        if segment.flags.has(Flags::RST) {
            return false;
        }
        if !self.env.network.resets().take(flow.remote.ip(), now) {
            self.env.control.counters().frames.answers_limited.add(1);
            return false;
        }
        let at = usize::from(flow.interface);
        let interface = self.env.network.interface(at);
        let (local, remote) = (flow.local.ip(), flow.remote.ip());
        let Some(mut path) = Path::by(at, interface, local, remote, remote) else { return false };
        path.set_mac(mac);
        let Some(slot) = self.env.ports.get_mut(interface.port) else { return false };
        let how = slot.facts.tx_checksum;
        let mut batch = Batch::new(&mut slot.io, &path, how, 1, self.env.control.counters());
        let answered = reset_for(segment, &mut batch);
        if answered {
            self.env.control.counters().streams.resets_sent.add(1);
        } else {
            self.env.control.counters().frames.answers_lost.add(1);
        }
        answered
    }
}

/// Verifies the checksum of a segment. If it is right, the CRC of its text but the last four bytes, where the text looks
/// like an FPDU so long that both in one pass take less time than one after the other.
#[inline]
fn verify(source: IpAddr, destination: IpAddr, bytes: &[u8]) -> Option<Option<u32>> {
    if !Digest::is_one_pass(bytes.len()) {
        return (checksum::segment(source, destination, TCP, bytes) == 0).then_some(None);
    }
    verify_long(source, destination, bytes)
}

/// The same of a segment of which header and text may be so long.
fn verify_long(source: IpAddr, destination: IpAddr, bytes: &[u8]) -> Option<Option<u32>> {
    let header = Segment::header_len_of(bytes);
    let text = header.and_then(|len| bytes.get(len..)).unwrap_or_default();
    if !Digest::is_one_pass(text.len()) || !looks_like_one_fpdu(text) {
        return (checksum::segment(source, destination, TCP, bytes) == 0).then_some(None);
    }
    let (text, field) = text.split_at(text.len() - CRC_LEN);
    let head = &bytes[..bytes.len() - text.len() - CRC_LEN];
    let (crc, sum) = crc32c::crc_sum(0, Sum::default().with(head), text);
    let addresses = checksum::addresses(source, destination);
    let sum = sum.with(field).value();
    (checksum::segment_of(addresses, TCP, bytes.len(), sum) == 0).then_some(Some(crc))
}

/// What a segment that was taken calls for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    /// Its stream has many events.
    reports: bool,
    /// Its stream is to answer now.
    answer: bool,
}

impl<Io: PortIo> Env<Io> {
    /// Gives a segment to its stream.
    #[inline]
    pub(super) fn take_segment(
        &mut self,
        slot: u32,
        conn: &mut Conn,
        segment: &Segment<'_>,
        now: Instant,
    ) -> Taken {
        let Lower::Tcp(carrier) = &mut conn.lower else {
            return Taken { reports: false, answer: false };
        };
        let acknowledged = carrier.bytes_acknowledged();
        let taken = carrier.endpoint_mut().input(now, segment, &mut self.tables.context());
        match taken {
            Ok(()) => self.control.counters().streams.segments.add(1),
            Err(reason) => self.control.counters().drops.count_tcp(reason),
        }
        if conn.accepted.is_unproven() && carrier.endpoint().connection().state().is_synchronized()
        {
            conn.accepted.advance(Progress::Starting);
            self.admission.listeners_mut().proven(carrier.peer(), conn.id);
        }
        let answer = carrier.packet_taken(acknowledged, &mut self.network, now);
        let reports = carrier.endpoint().pending_events() >= MANY;
        carrier.make_ready(slot, self.schedules.of(CarrierKind::Connection));
        Taken { reports, answer }
    }
}
