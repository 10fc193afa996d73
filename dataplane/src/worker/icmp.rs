//! What routers and peers say by ICMP about streams, and what streams of one worker find out about their
//! paths for each other.

use base::Instant;
use tcp_lite::tcp::{SeqNumber, State, TooBig};

use super::Core;
use super::conn::Stage;
use super::lower::Lower;
use crate::api::{ConnectError, DropReason};
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::net::icmp::{Quote, Report, Trouble, Unreachable};

/// Reports that there is no way to a peer, each about another SYN, after which a stream that is being
/// opened is given up. RFC 1122 §4.2.3.9 would have it wait: see RFC 5461 §4.1.
const SOFT_ERRORS: u8 = 2;

impl<Io: PortIo> Core<Io> {
    /// An ICMP error about a flow of this worker. It is believed only of a segment that is under way
    /// (RFC 5927 §4.1).
    pub(super) fn icmp(&mut self, report: &Report, now: Instant) {
        let seq = match report.quote {
            Quote::Tcp(seq) => seq,
            quote => return self.icmp_for_association(report, quote, now),
        };
        let interface = report.interface as u16;
        let flow = FlowKey { interface, local: report.local, remote: report.remote };
        let Some(slot) = self.streams.find_flow(self.streams.flows().hash(&flow), &flow) else {
            return self.control.counters().drops.count(DropReason::IcmpNoStream);
        };
        match report.trouble {
            Trouble::TooBig(mtu) => self.too_big(slot, mtu, SeqNumber(seq), now),
            Trouble::Unreachable(what) => self.icmp_unreachable(slot, what, seq),
        }
    }

    fn too_big(&mut self, slot: u32, mtu: u16, seq: SeqNumber, now: Instant) {
        let Some(conn) = self.streams.get_mut(slot) else { return };
        let Lower::Tcp(endpoint) = &mut conn.lower else { return };
        match endpoint.packet_too_big(now, mtu, seq) {
            TooBig::Believed => {
                self.control.counters().path_mtu_updates.add(1);
                self.touch(slot);
            }
            TooBig::Remembered => self.control.counters().path_mtu_remembered.add(1),
            TooBig::NoNews => self.control.counters().drops.count(DropReason::IcmpNoNews),
            TooBig::NotInFlight => self.control.counters().drops.count(DropReason::IcmpNotInFlight),
            TooBig::BadSize => self.control.counters().drops.count(DropReason::IcmpSize),
        }
    }

    /// Ends an attempt to connect; nothing more than a reset ends a stream (RFC 5927 §5.2).
    fn icmp_unreachable(&mut self, slot: u32, what: Unreachable, seq: u32) {
        let Some(conn) = self.streams.get_mut(slot) else { return };
        let Lower::Tcp(endpoint) = &conn.lower else { return };
        let connection = endpoint.connection();
        if !connection.is_in_flight(SeqNumber(seq)) {
            return self.control.counters().drops.count(DropReason::IcmpNotInFlight);
        }
        if connection.state() == State::SynSent && conn.stage == Stage::Starting {
            conn.soft_errors += 1;
            if what.is_hard() || conn.soft_errors >= SOFT_ERRORS {
                return self.give_up(slot, ConnectError::Icmp(what));
            }
        }
        self.control.counters().icmp_soft_errors.add(1);
    }

    /// A stream's path carries less, or again more, than it was known to: others are told. Not of a guess: a peer
    /// that is away for a while looks like a black hole.
    pub(super) fn look_at_path(&mut self, slot: u32, now: Instant) {
        let Some(conn) = self.streams.get_mut(slot) else { return };
        let Lower::Tcp(endpoint) = &conn.lower else { return };
        let mss = endpoint.connection().known_path_mss();
        if let Some(mss) = mss.filter(|&mss| mss != conn.path_mss) {
            conn.path_mss = mss;
            let mtu = mss + conn.path.tcp_headers();
            self.network.learn_path_mtu((conn.path.interface(), conn.peer()), mtu, now);
        }
    }

    /// A stream has timed out: perhaps another one knows why.
    pub(super) fn ask_others_for_path(&mut self, slot: u32, now: Instant) {
        let Some(conn) = self.streams.get_mut(slot) else { return };
        let peer = (conn.path.interface(), conn.peer());
        let Lower::Tcp(endpoint) = &mut conn.lower else { return };
        if !endpoint.connection().is_timing_out() {
            return;
        }
        let known = self.network.path_mtu(peer, now);
        let known = known.map(|mtu| mtu.saturating_sub(conn.path.tcp_headers()));
        if let Some(mss) = known.filter(|&mss| mss < endpoint.connection().path_mss()) {
            endpoint.path_mtu(now, mss);
            conn.path_mss = endpoint.connection().path_mss();
        }
    }

    /// As [`look_at_path`](Self::look_at_path), for an association.
    pub(super) fn look_at_association_path(&mut self, at: u32, now: Instant) {
        if let Some((peer, mtu)) = self.associations.path_news(at) {
            self.network.learn_path_mtu(peer, mtu, now);
        }
    }

    /// As [`ask_others_for_path`](Self::ask_others_for_path), for an association.
    pub(super) fn ask_for_association_path(&mut self, at: u32, now: Instant) {
        let known = self.associations.peer(at).and_then(|peer| self.network.path_mtu(peer, now));
        if let Some(mtu) = known {
            self.associations.tell_path(at, mtu, now);
        }
    }
}
