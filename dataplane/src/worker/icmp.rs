//! What routers and peers report by ICMP about streams (RFC 5927).

use base::Instant;
use tcp_lite::tcp::{SeqNumber, State, TooBig};

use super::conn::{Stage, Stream};
use super::schedule::CarrierKind;
use super::{Core, Env};
use crate::api::{ConnectError, DropReason};
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::mesh::Message;
use crate::net::icmp::{Quote, Report, Trouble, Unreachable};

/// A report about ESP of less than this is taken for this: what every host takes (RFC 1122 §3.3.2), and what every link of
/// IPv6 carries (RFC 8200 §5).
const LEAST_MTU_V4: u16 = 576;
/// See [`LEAST_MTU_V4`].
const LEAST_MTU_V6: u16 = 1280;

impl<Io: PortIo> Core<Io> {
    /// An ICMP error about a flow of this worker. It is accepted only of a segment or packet that is under way
    /// (RFC 5927 §4.1).
    pub(super) fn icmp(&mut self, report: &Report, now: Instant) {
        match self.reported(report, now) {
            Ok(()) => self.env.control.counters().ip.icmp_errors.add(1),
            Err(reason) => self.env.control.counters().drops.count(reason),
        }
    }

    /// What a router, or this host itself, reports about a flow.
    ///
    /// # Errors
    /// Why it is not believed.
    pub(super) fn reported(&mut self, report: &Report, now: Instant) -> Result<(), DropReason> {
        match report.quote {
            Quote::Tcp(seq) => self.icmp_for_connection(report, SeqNumber(seq), now),
            Quote::Esp(spi, sequence) => self.icmp_for_esp(report, (spi, sequence), now),
            quote => self.icmp_for_association(report, quote, now),
        }
    }

    /// A report about ESP, whose SA any of the workers may have.
    pub(super) fn icmp_for_sa(&mut self, report: &Report, now: Instant) {
        if self.reported(report, now).is_ok() {
            return self.env.control.counters().ip.icmp_errors.add(1);
        }
        // Only its owner can judge; who it is the SPI alone does not tell.
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

    /// RFC 4301 §8.2.1: what the path carries less counts for all flows of the SA, which are told when they send what is
    /// too long. Nothing else ends a stream (RFC 5042 §5.4.5).
    fn icmp_for_esp(
        &mut self,
        report: &Report,
        (spi, sequence): (u32, u32),
        now: Instant,
    ) -> Result<(), DropReason> {
        let guard = self.env.network.guard().ok_or(DropReason::IcmpNoStream)?;
        let Trouble::TooBig(mtu) = report.trouble else { return Err(DropReason::IcmpIgnored) };
        // Who has seen one packet must not silence all flows of its SA.
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

    /// Ends an attempt to connect; nothing more than a reset ends a stream (RFC 5927 §5.2).
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
