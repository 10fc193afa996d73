//! The network stack of one worker below TCP and SCTP, sans-IO over frames: Ethernet, VLAN, ARP, IPv4, IPv6,
//! neighbour discovery, ICMP.
//!
//! [`demux::demux`] classifies a frame. TCP and SCTP go to the worker's flow tables; the rest is for
//! [`Stack::control`], which answers by itself and returns what concerns the worker (or another worker:
//! caches and streams belong to each of them). Frames to send are left in an [`Outbox`]; segments of
//! streams are not: they are written in place behind the headers of a [`path::Path`].

pub mod alike;
pub mod arp;
pub mod checksum;
pub mod demux;
pub mod ecn;
pub mod fragment;
pub mod icmp;
pub mod interface;
pub mod limit;
pub mod nd;
pub mod neighbour;
pub mod path;
pub mod path_mtu;
pub mod reassembly;
pub mod sctp_path;

use std::net::IpAddr;
use std::ops::Range;

use base::Instant;
use smoltcp::wire::Icmpv6Message;

use self::demux::{Kind, Packet};
use self::icmp::{Icmp, Report};
use self::interface::Interface;
use self::limit::RateLimit;
use self::neighbour::{Action, Claim, ClaimOutcome, Resolution};
use crate::api::DropReason;

/// ARP replies and neighbour advertisements that are sent in a second at most: enough for every host of a
/// large link, too few to fill it.
const ANSWERS: u32 = 10_000;

/// Interfaces with their neighbours, and the bounds on what is answered.
#[derive(Debug)]
pub struct Stack {
    /// The interfaces, by place.
    pub interfaces: Vec<Interface>,
    icmp: RateLimit,
    errors: RateLimit,
    /// Bounds ARP replies and neighbour advertisements.
    answers: RateLimit,
}

/// What a frame that is not TCP's means to the workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// An announcement by a neighbour of the interface at this place, for every worker.
    Neighbour(usize, Claim),
    /// For the worker that owns the flow.
    Icmp(Report),
    /// An echo was answered.
    Echoed,
}

/// Frames to send, one behind the other in one buffer that is used again and again.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    frames: Vec<(usize, Range<usize>)>,
}

impl Outbox {
    /// Adds the frame that `write` puts behind what is in its buffer, to be sent by `port`.
    pub fn frame(&mut self, port: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let begin = self.bytes.len();
        write(&mut self.bytes);
        self.frames.push((port, begin..self.bytes.len()));
    }

    /// The frames with their ports.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &[u8])> + '_ {
        self.frames.iter().map(|(port, range)| (*port, &self.bytes[range.clone()]))
    }

    /// Frames to send.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// True when there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Forgets what was in it.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.frames.clear();
    }
}

impl Stack {
    /// A stack of these interfaces that sends at most so many ICMP messages a second, and accepts at most
    /// as many.
    pub fn new(interfaces: Vec<Interface>, icmp_per_second: u32, now: Instant) -> Self {
        let limit = || RateLimit::new(icmp_per_second, now);
        Stack { interfaces, icmp: limit(), errors: limit(), answers: RateLimit::new(ANSWERS, now) }
    }

    /// Takes a packet that is neither TCP's nor SCTP's.
    ///
    /// # Errors
    /// Why it was dropped; it may have been answered all the same.
    pub fn control(
        &mut self,
        packet: &Packet,
        frame: &[u8],
        now: Instant,
        out: &mut Outbox,
    ) -> Result<Notice, DropReason> {
        let index = packet.interface;
        let interface = &self.interfaces[index];
        let (icmp, addresses, message) = match &packet.kind {
            Kind::Tcp { .. } | Kind::Sctp { .. } | Kind::Fragment(_) => {
                return Err(DropReason::IpProtocol);
            }
            Kind::Arp(range) => {
                let claim =
                    arp::input(interface, &frame[range.clone()], || self.answers.take(now), out)?;
                return Ok(Notice::Neighbour(index, claim));
            }
            Kind::Icmp4 { source, destination, message } => {
                let message = &frame[message.clone()];
                let icmp = icmp::parse_v4(index, interface, message)?;
                (icmp, (IpAddr::V4(*destination), IpAddr::V4(*source)), message)
            }
            Kind::Icmp6 { source, destination, hop_limit, message } => {
                let message = &frame[message.clone()];
                if message.first().is_some_and(|&t| Icmpv6Message::from(t).is_ndisc()) {
                    let ends = (*source, *destination);
                    let claim = nd::input(
                        interface,
                        ends,
                        *hop_limit,
                        message,
                        || self.answers.take(now),
                        out,
                    )?;
                    return Ok(Notice::Neighbour(index, claim));
                }
                // Echo requests to groups are not answered (RFC 4443 §4.2 allows it, SHOULD-less).
                if destination.is_multicast() || source.is_unspecified() {
                    return Err(DropReason::IcmpIgnored);
                }
                let icmp = icmp::parse_v6(index, interface, message)?;
                (icmp, (IpAddr::V6(*destination), IpAddr::V6(*source)), message)
            }
        };
        match icmp {
            Icmp::Error(_) if !self.errors.take(now) => Err(DropReason::IcmpRateLimited),
            Icmp::Error(report) => Ok(Notice::Icmp(report)),
            Icmp::Echo if !self.icmp.take(now) => Err(DropReason::RateLimited),
            Icmp::Echo => {
                icmp::echo(interface, packet.source_mac, addresses, message, out);
                Ok(Notice::Echoed)
            }
        }
    }

    /// Processes an announcement by a neighbour that this or another worker received.
    ///
    /// # Errors
    /// Why it was ignored.
    pub fn claim(
        &mut self,
        interface: usize,
        claim: &Claim,
        now: Instant,
    ) -> Result<ClaimOutcome, DropReason> {
        match self.interfaces[interface].neighbours.claim(claim, now) {
            ClaimOutcome::Ignored => Err(DropReason::NeighbourIgnored),
            ClaimOutcome::Full => Err(DropReason::NeighbourTableFull),
            outcome => Ok(outcome),
        }
    }

    /// Where to send what goes to the neighbour `address`; asks for it if need be.
    pub fn resolve(
        &mut self,
        interface: usize,
        address: IpAddr,
        now: Instant,
        out: &mut Outbox,
    ) -> Resolution {
        let resolution = self.interfaces[interface].neighbours.resolve(address, now);
        if resolution == (Resolution::Wait { solicit: true }) {
            self.solicit(interface, address, None, out);
        }
        resolution
    }

    /// When [`poll`](Self::poll) is to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.interfaces.iter().filter_map(|i| i.neighbours.poll_timeout()).min()
    }

    /// Asks again for neighbours; calls `failed` with interface and address of those that do not
    /// answer. Returns how many were asked for.
    pub fn poll(
        &mut self,
        now: Instant,
        out: &mut Outbox,
        mut failed: impl FnMut(usize, IpAddr),
    ) -> u64 {
        let mut asked = 0;
        for index in 0..self.interfaces.len() {
            while let Some(action) = self.interfaces[index].neighbours.poll(now) {
                match action {
                    Action::Solicit(address, mac) => {
                        asked += 1;
                        self.solicit(index, address, mac, out);
                    }
                    Action::Failed(address) => failed(index, address),
                }
            }
        }
        asked
    }

    /// Announces an interface's addresses on its link.
    pub fn announce(&self, interface: usize, out: &mut Outbox) {
        let interface = &self.interfaces[interface];
        for address in interface.addresses() {
            match address {
                IpAddr::V4(address) => arp::announce(interface, address, out),
                IpAddr::V6(address) => nd::announce(interface, address, out),
            }
        }
    }

    fn solicit(
        &self,
        interface: usize,
        address: IpAddr,
        mac: Option<neighbour::Mac>,
        out: &mut Outbox,
    ) {
        let interface = &self.interfaces[interface];
        match (interface.asking_for(address), address) {
            (Some(IpAddr::V4(s)), IpAddr::V4(t)) => arp::ask(interface, s, t, mac, out),
            (Some(IpAddr::V6(s)), IpAddr::V6(t)) => nd::ask(interface, s, t, mac, out),
            // Without an address of its family there is no route to it, and it is never resolved.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
