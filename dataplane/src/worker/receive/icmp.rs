//! ICMP errors that routers and peers send about streams (RFC 5927).

use base::Instant;
use tcp_lite::tcp::{SeqNumber, State, TooBig};

use crate::api::{ConnectError, DropReason};
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::mesh::Message;
use crate::net::icmp::{Quote, Report, Trouble, Unreachable};
use crate::worker::flows::conn::{Stage, Stream};
use crate::worker::flows::schedule::CarrierKind;
use crate::worker::{Core, Env};

/// Lower bound of the MTU in reports about ESP: every IPv4 host accepts 576 bytes (RFC 1122 §3.3.2), every IPv6
/// link carries 1280 (RFC 8200 §5).
const LEAST_MTU_V4: u16 = 576;
/// See [`LEAST_MTU_V4`].
const LEAST_MTU_V6: u16 = 1280;

impl<Io: PortIo> Core<Io> {
    /// Handles an ICMP error about a flow of this worker. Accepted only if it quotes a segment or packet in flight
    /// (RFC 5927 §4.1).
    pub(in crate::worker) fn icmp(&mut self, report: &Report, now: Instant) {
        match self.reported(report, now) {
            Ok(()) => self.env.control.counters().ip.icmp_errors.add(1),
            Err(reason) => self.env.control.counters().drops.count(reason),
        }
    }

    /// Applies a report about a flow, from a router or from this host itself.
    ///
    /// # Errors
    /// Returns the reason for which the report is ignored.
    pub(in crate::worker) fn reported(
        &mut self,
        report: &Report,
        now: Instant,
    ) -> Result<(), DropReason> {
        match report.quote {
            Quote::Tcp(seq) => self.icmp_for_connection(report, SeqNumber(seq), now),
            Quote::Esp(spi, sequence) => self.icmp_for_esp(report, (spi, sequence), now),
            quote => self.icmp_for_association(report, quote, now),
        }
    }

    /// Handles a report about ESP. Any worker may have the SA.
    pub(in crate::worker) fn icmp_for_sa(&mut self, report: &Report, now: Instant) {
        if self.reported(report, now).is_ok() {
            return self.env.control.counters().ip.icmp_errors.add(1);
        }
        // Only the SA's owner can verify the report, and the SPI alone does not identify the owner.
        let Quote::Esp(spi, _) = report.quote else { return };
        let ours = self.env.network.guard().is_some_and(|guard| guard.sends_by(spi));
        let limited = !self.env.network.may_pass_on(now);
        match self.mesh.is_alone() || !ours || limited {
            true => self.env.control.counters().drops.count(DropReason::IcmpNoStream),
            false => {
                self.env.control.counters().ip.icmp_errors.add(1);
                self.mesh.send_all(|| Message::TooLong(*report), self.env.control.counters());
            }
        }
    }

    /// RFC 4301 §8.2.1: a smaller path MTU applies to all flows of the SA. A flow is notified when it sends a
    /// packet that is too long. Other errors are ignored: ICMP must not end a protected stream (RFC 5042 §5.4.5).
    fn icmp_for_esp(
        &mut self,
        report: &Report,
        (spi, sequence): (u32, u32),
        now: Instant,
    ) -> Result<(), DropReason> {
        let guard = self.env.network.guard().ok_or(DropReason::IcmpNoStream)?;
        let Trouble::TooBig(mtu) = report.trouble else { return Err(DropReason::IcmpIgnored) };
        // An attacker who has seen one packet must not stall all flows of its SA.
        let least = if report.local.is_ipv4() { LEAST_MTU_V4 } else { LEAST_MTU_V6 };
        if !guard.too_big(spi, sequence, mtu.max(least), now) {
            return Err(DropReason::IcmpNoStream);
        }
        self.env.control.counters().ipsec.ipsec_path_mtu_updates.add(1);
        Ok(())
    }

    fn icmp_for_connection(
        &mut self,
        report: &Report,
        seq: SeqNumber,
        now: Instant,
    ) -> Result<(), DropReason> {
        let interface = report.interface as u16;
        let flow = FlowKey { interface, local: report.local, remote: report.remote };
        let hash = self.streams.flows().hash(&flow);
        let found = self.streams.connection(None, hash, &flow);
        let (slot, conn) = found.ok_or(DropReason::IcmpNoStream)?;
        let mut stream = Stream { slot, conn, association: None };
        match report.trouble {
            Trouble::TooBig(mtu) => self.env.too_big(&mut stream, mtu, seq, now),
            Trouble::Unreachable(what) => self.env.icmp_unreachable(&mut stream, what, seq),
        }
    }
}

impl<Io: PortIo> Env<Io> {
    fn too_big(
        &mut self,
        stream: &mut Stream<'_>,
        mtu: u16,
        seq: SeqNumber,
        now: Instant,
    ) -> Result<(), DropReason> {
        let carrier = stream.conn.lower.connection().ok_or(DropReason::IcmpNoStream)?;
        let counters = self.control.counters();
        match carrier.endpoint_mut().packet_too_big(now, mtu, seq) {
            TooBig::Believed => {
                counters.ip.path_mtu_updates.add(1);
                carrier.make_ready(stream.slot, self.schedules.of(CarrierKind::Connection));
            }
            TooBig::Remembered => counters.ip.path_mtu_remembered.add(1),
            TooBig::NoNews => return Err(DropReason::IcmpNoNews),
            TooBig::NotInFlight => return Err(DropReason::IcmpNotInFlight),
            TooBig::BadSize => return Err(DropReason::IcmpSize),
        }
        Ok(())
    }

    /// Fails a connect after a hard error or the second soft one. Later states only count them (RFC 5927 §5.2).
    fn icmp_unreachable(
        &mut self,
        stream: &mut Stream<'_>,
        what: Unreachable,
        seq: SeqNumber,
    ) -> Result<(), DropReason> {
        let carrier = stream.conn.lower.connection().ok_or(DropReason::IcmpNoStream)?;
        let connection = carrier.endpoint().connection();
        if !connection.is_in_flight(seq) {
            return Err(DropReason::IcmpNotInFlight);
        }
        let opening = connection.state() == State::SynSent;
        if opening && stream.conn.stage == Stage::Starting {
            let last = carrier.soft_error();
            if what.is_hard() || last {
                self.give_up(stream, ConnectError::Icmp(what));
                return Ok(());
            }
        }
        self.control.counters().ip.icmp_soft_errors.add(1);
        Ok(())
    }
}
