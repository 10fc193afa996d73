//! What routers and peers report by ICMP about streams (RFC 5927).

use base::Instant;
use tcp_lite::tcp::{SeqNumber, State, TooBig};

use super::conn::{Stage, Stream};
use super::schedule::CarrierKind;
use super::{Core, Env};
use crate::api::{ConnectError, DropReason};
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::net::icmp::{Quote, Report, Trouble, Unreachable};

impl<Io: PortIo> Core<Io> {
    /// An ICMP error about a flow of this worker. It is accepted only of a segment or packet that is under way
    /// (RFC 5927 §4.1).
    pub(super) fn icmp(&mut self, report: &Report, now: Instant) {
        let taken = match report.quote {
            Quote::Tcp(seq) => self.icmp_for_connection(report, SeqNumber(seq), now),
            quote => self.icmp_for_association(report, quote, now),
        };
        match taken {
            Ok(()) => self.env.control.counters().ip.icmp_errors.add(1),
            Err(reason) => self.env.control.counters().drops.count(reason),
        }
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
