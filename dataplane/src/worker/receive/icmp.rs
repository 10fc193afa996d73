//! ICMP errors about streams, sent by routers and peers (RFC 5927).

use base::Instant;
use tcp_lite::tcp::{SeqNumber, State, TooBigOutcome};

use crate::api::{ConnectError, DropReason};
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::mesh::Message;
use crate::net::icmp::{IcmpErrorKind, Quote, Report, Unreachable};
use crate::worker::flows::conn::{Stage, Stream};
use crate::worker::flows::schedule::CarrierKind;
use crate::worker::{Core, Env};

/// Minimum IPv4 MTU, bytes, accepted from ICMP errors about ESP. Every IPv4 host accepts packets of 576 bytes (RFC 1122
/// §3.3.2).
const MIN_MTU_V4: u16 = 576;
/// Minimum IPv6 MTU, bytes, accepted from ICMP errors about ESP. Every IPv6 link carries packets of 1280 bytes (RFC
/// 8200 §5).
const MIN_MTU_V6: u16 = 1280;

impl<Io: PortIo> Core<Io> {
    /// Handles an ICMP error about a flow of this worker. The error is accepted only if it quotes a TCP sequence number
    /// in flight (RFC 5927 §4.1), the verification tag of an association, or the initiate tag of its INIT (RFC 9260
    /// §10).
    pub(in crate::worker) fn handle_icmp(&mut self, report: &Report, now: Instant) {
        match self.apply_icmp(report, now) {
            Ok(()) => self.env.control.counters().ip.icmp_errors.add(1),
            Err(reason) => self.env.control.counters().drops.count(reason),
        }
    }

    /// Applies an error about a flow, reported by a router, the peer or this host itself.
    ///
    /// # Errors
    /// The reason why the error is ignored.
    pub(in crate::worker) fn apply_icmp(
        &mut self,
        report: &Report,
        now: Instant,
    ) -> Result<(), DropReason> {
        match report.quote {
            Quote::Tcp(seq) => self.apply_icmp_to_connection(report, SeqNumber(seq), now),
            Quote::Esp(spi, sequence) => self.apply_icmp_to_esp(report, spi, sequence, now),
            quote => self.apply_icmp_to_association(report, quote, now),
        }
    }

    /// Handles an ICMP error about an ESP packet. The packet's SA may belong to any worker.
    pub(in crate::worker) fn handle_icmp_for_sa(&mut self, report: &Report, now: Instant) {
        if self.apply_icmp(report, now).is_ok() {
            return self.env.control.counters().ip.icmp_errors.add(1);
        }
        // Only the SA's owner can verify the error. The SPI alone does not identify the owner.
        let Quote::Esp(spi, _) = report.quote else { return };
        let ours = self.env.network.guard().is_some_and(|guard| guard.has_outbound_spi(spi));
        let limited = !self.env.network.may_forward_claim(now);
        match self.mesh.is_single_worker() || !ours || limited {
            true => self.env.control.counters().drops.count(DropReason::IcmpNoStream),
            false => {
                self.env.control.counters().ip.icmp_errors.add(1);
                self.mesh.send_all(|| Message::PacketTooBig(*report), self.env.control.counters());
            }
        }
    }

    /// Applies an ICMP error about an ESP packet to its SA. A smaller path MTU applies to all flows of the SA (RFC 4301
    /// §8.2.1). Each flow adopts it when the flow next sends a packet that is too long. Errors of other kinds are
    /// ignored, because an unauthenticated ICMP error must not end a protected stream (RFC 4301 §6.1.1).
    fn apply_icmp_to_esp(
        &mut self,
        report: &Report,
        spi: u32,
        sequence: u32,
        now: Instant,
    ) -> Result<(), DropReason> {
        let guard = self.env.network.guard().ok_or(DropReason::IcmpNoStream)?;
        let IcmpErrorKind::TooBig(mtu) = report.kind else { return Err(DropReason::IcmpIgnored) };
        // The path MTU has a lower bound, so that an attacker who has seen one packet cannot stall all flows of its SA.
        let min_mtu = if report.local.is_ipv4() { MIN_MTU_V4 } else { MIN_MTU_V6 };
        if !guard.handle_too_big(spi, sequence, mtu.max(min_mtu), now) {
            return Err(DropReason::IcmpNoStream);
        }
        self.env.control.counters().ipsec.ipsec_path_mtu_updates.add(1);
        Ok(())
    }

    fn apply_icmp_to_connection(
        &mut self,
        report: &Report,
        seq: SeqNumber,
        now: Instant,
    ) -> Result<(), DropReason> {
        let interface = report.interface as u16;
        let flow = FlowKey { interface, local: report.local, remote: report.remote };
        let hash = self.streams.flows().hash(&flow);
        let found = self.streams.find_connection(None, hash, &flow);
        let (slot, conn) = found.ok_or(DropReason::IcmpNoStream)?;
        let mut stream = Stream { slot, conn, association: None };
        match report.kind {
            IcmpErrorKind::TooBig(mtu) => self.env.apply_packet_too_big(&mut stream, mtu, seq, now),
            IcmpErrorKind::Unreachable(code) => self.env.apply_unreachable(&mut stream, code, seq),
        }
    }
}

impl<Io: PortIo> Env<Io> {
    fn apply_packet_too_big(
        &mut self,
        stream: &mut Stream<'_>,
        mtu: u16,
        seq: SeqNumber,
        now: Instant,
    ) -> Result<(), DropReason> {
        let carrier = stream.conn.lower.connection().ok_or(DropReason::IcmpNoStream)?;
        let counters = self.control.counters();
        match carrier.endpoint_mut().on_packet_too_big(now, mtu, seq) {
            TooBigOutcome::Applied => {
                counters.ip.path_mtu_updates.add(1);
                carrier.make_ready(stream.slot, self.schedules.get_mut(CarrierKind::Connection));
            }
            TooBigOutcome::Stored => counters.ip.path_mtu_remembered.add(1),
            TooBigOutcome::NotSmaller | TooBigOutcome::ProbeTooSmall => {
                return Err(DropReason::IcmpNoNews);
            }
            TooBigOutcome::NotInFlight => return Err(DropReason::IcmpNotInFlight),
            TooBigOutcome::BadSize => return Err(DropReason::IcmpSize),
        }
        Ok(())
    }

    /// Fails a connect after a hard error or the second soft error. Errors in later states are only counted (RFC 5927
    /// §5.2).
    fn apply_unreachable(
        &mut self,
        stream: &mut Stream<'_>,
        code: Unreachable,
        seq: SeqNumber,
    ) -> Result<(), DropReason> {
        let carrier = stream.conn.lower.connection().ok_or(DropReason::IcmpNoStream)?;
        let connection = carrier.endpoint().connection();
        if !connection.is_in_flight(seq) {
            return Err(DropReason::IcmpNotInFlight);
        }
        let opening = connection.state() == State::SynSent;
        if opening && stream.conn.stage == Stage::Starting {
            let is_second = carrier.record_soft_error();
            if code.is_hard() || is_second {
                self.fail_opening_stream(stream, ConnectError::Icmp(code));
                return Ok(());
            }
        }
        self.control.counters().ip.icmp_soft_errors.add(1);
        Ok(())
    }
}
