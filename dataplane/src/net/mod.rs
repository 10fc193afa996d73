//! The network stack of one worker below TCP and SCTP, sans-IO over frames: Ethernet, VLAN, ARP, IPv4, IPv6,
//! neighbour discovery, ICMP.
//!
//! [`demux::demux`] classifies a frame. TCP segments and SCTP packets are passed to the worker's flow tables, all
//! other packets to [`Stack::handle_control`], which sends answers and returns a [`Notice`]. Each worker has its own
//! caches and streams, so a notice may concern this worker or another. Frames to send are appended to an [`Outbox`].
//! Segments of streams are instead written in place after the headers of a [`path::Path`].

pub mod arp;
pub mod demux;
pub mod ecn;
pub mod fragment;
pub mod header_prediction;
pub mod icmp;
pub mod interface;
pub mod link;
pub mod nd;
pub mod neighbour;
pub mod options;
pub mod path;
pub mod path_mtu;
pub mod presence;
pub mod protocol;
pub mod rate_limit;
pub mod reassembly;
pub mod sctp_path;

use std::net::IpAddr;
use std::ops::Range;

use base::Instant;
use smoltcp::wire::Icmpv6Message;

use self::demux::{Kind, Packet};
use self::icmp::{Icmp, ReceivedIcmpv6, Report};
use self::interface::Interface;
use self::neighbour::{Action, Claim, ClaimKind, ClaimOutcome, Mac, Resolution};
use self::presence::Presence;
use self::rate_limit::RateLimit;
use crate::drops::DropReason;

/// Maximum number of ARP replies, neighbour advertisements and answers to MLD queries per second, in total. The limit
/// allows an answer to every host of a large link, and the answers do not saturate the link.
const MAX_ANSWERS_PER_SECOND: u32 = 10_000;

/// The worker's interfaces with their neighbours, and the rate limits of answers.
#[derive(Debug)]
pub struct Stack {
    /// The worker's interfaces. Their positions are the interface indices of this module.
    pub interfaces: Vec<Interface>,
    icmp: RateLimit,
    errors: RateLimit,
    /// Limits ARP replies, neighbour advertisements and answers to MLD queries.
    answers: RateLimit,
    presence: Presence,
}

/// A control packet's effect on the workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A neighbour's claim on the interface at this index, for every worker's neighbour cache.
    Neighbour(usize, Claim),
    /// An ICMP error, for the worker that owns the flow.
    Icmp(Report),
    /// An echo request was answered.
    Echoed,
    /// An MLD query was accepted. Its answer is sent later.
    Query,
    /// Another host with this link-layer address uses an address of the interface at this index. The bool is true if
    /// the conflict must be reported.
    Conflict(usize, IpAddr, Mac, bool),
}

/// Frames to send, stored consecutively in one reused buffer.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    frames: Vec<(usize, Range<usize>)>,
}

impl Outbox {
    /// Queues a frame for `port`. `write` appends the frame's bytes to the buffer.
    pub fn push_frame(&mut self, port: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let begin = self.bytes.len();
        write(&mut self.bytes);
        self.frames.push((port, begin..self.bytes.len()));
    }

    /// Returns the frames with their ports.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &[u8])> + '_ {
        self.frames.iter().map(|(port, range)| (*port, &self.bytes[range.clone()]))
    }

    /// Returns the number of frames.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns true if there are no frames.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Removes all frames and keeps the buffer.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.frames.clear();
    }
}

impl Stack {
    /// Creates a stack of these interfaces. `icmp_per_second` is the maximum number of echo replies sent per second
    /// and, separately, of ICMP errors accepted per second.
    pub fn new(interfaces: Vec<Interface>, icmp_per_second: u32, now: Instant) -> Self {
        let limit = || RateLimit::new(icmp_per_second, now);
        let presence = Presence::new(&interfaces);
        let answers = RateLimit::new(MAX_ANSWERS_PER_SECOND, now);
        Stack { interfaces, icmp: limit(), errors: limit(), answers, presence }
    }

    /// Processes a packet that is neither TCP nor SCTP.
    ///
    /// # Errors
    /// The drop reason. An answer may have been sent.
    pub fn handle_control(
        &mut self,
        packet: &Packet,
        frame: &[u8],
        now: Instant,
        out: &mut Outbox,
    ) -> Result<Notice, DropReason> {
        let index = packet.interface;
        let interface = &self.interfaces[index];
        let (icmp, local, remote, message) = match &packet.kind {
            Kind::Tcp { .. } | Kind::Sctp { .. } | Kind::Fragment(_) => {
                return Err(DropReason::IpProtocol);
            }
            Kind::Arp(range) => {
                let claim =
                    arp::input(interface, &frame[range.clone()], || self.answers.take(now), out)?;
                return Ok(self.claim_notice(index, claim, now, out));
            }
            Kind::Icmp4 { source, destination, message } => {
                let message = &frame[message.clone()];
                let icmp = icmp::parse_v4(index, interface, message)?;
                (icmp, IpAddr::V4(*destination), IpAddr::V4(*source), message)
            }
            Kind::Icmp6 { source, destination, hop_limit, message } => {
                let message = &frame[message.clone()];
                let received = ReceivedIcmpv6 {
                    source: *source,
                    destination: *destination,
                    hop_limit: *hop_limit,
                    message,
                };
                if message.first().is_some_and(|&t| Icmpv6Message::from(t).is_ndisc()) {
                    let may_answer = || self.answers.take(now);
                    let claim =
                        nd::input(interface, packet.source_mac, &received, may_answer, out)?;
                    return Ok(self.claim_notice(index, claim, now, out));
                }
                if presence::is_query(message) {
                    let may_answer = || self.answers.take(now);
                    self.presence.handle_query(index, interface, &received, may_answer, now)?;
                    return Ok(Notice::Query);
                }
                // Echo requests to a group are not answered. RFC 4443 §4.2 only recommends (SHOULD) an answer.
                if destination.is_multicast() || source.is_unspecified() {
                    return Err(DropReason::IcmpIgnored);
                }
                let icmp = icmp::parse_v6(index, interface, message)?;
                (icmp, IpAddr::V6(*destination), IpAddr::V6(*source), message)
            }
        };
        match icmp {
            Icmp::Error(_) if !self.errors.take(now) => Err(DropReason::IcmpRateLimited),
            Icmp::Error(report) => Ok(Notice::Icmp(report)),
            Icmp::Echo if !self.icmp.take(now) => Err(DropReason::RateLimited),
            Icmp::Echo => {
                icmp::write_echo_reply(interface, packet.source_mac, local, remote, message, out);
                Ok(Notice::Echoed)
            }
        }
    }

    #[inline]
    fn claim_notice(&mut self, at: usize, claim: Claim, now: Instant, out: &mut Outbox) -> Notice {
        match claim.kind {
            ClaimKind::Conflict => self.handle_conflict(at, &claim, now, out),
            _ => Notice::Neighbour(at, claim),
        }
    }

    #[cold]
    fn handle_conflict(
        &mut self,
        at: usize,
        &Claim { address, mac, .. }: &Claim,
        now: Instant,
        out: &mut Outbox,
    ) -> Notice {
        let reported = self.presence.handle_conflict(at, &self.interfaces[at], address, now, out);
        Notice::Conflict(at, address, mac, reported)
    }

    /// Processes a neighbour's claim, received by this worker or another.
    ///
    /// # Errors
    /// The drop reason, if the cache ignores the claim or is full.
    pub fn handle_claim(
        &mut self,
        interface: usize,
        claim: &Claim,
        now: Instant,
    ) -> Result<ClaimOutcome, DropReason> {
        match self.interfaces[interface].neighbours.handle_claim(claim, now) {
            ClaimOutcome::Ignored => Err(DropReason::NeighbourIgnored),
            ClaimOutcome::Full => Err(DropReason::NeighbourTableFull),
            outcome => Ok(outcome),
        }
    }

    /// Resolves the neighbour `address` of the interface at index `interface`. Sends the first solicitation if needed.
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

    /// Returns the due time of the next [`poll`](Self::poll); `None` if nothing is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let neighbours = self.interfaces.iter().filter_map(|i| i.neighbours.poll_timeout());
        neighbours.chain(self.presence.poll_timeout()).min()
    }

    /// Sends the solicitations, probes, announcements and MLD reports that are due. Calls `failed` with the interface
    /// index and the address of each neighbour whose resolution has failed. Returns the number of solicitations sent.
    pub fn poll(
        &mut self,
        now: Instant,
        out: &mut Outbox,
        mut failed: impl FnMut(usize, IpAddr),
    ) -> u64 {
        if self.presence.poll_timeout().is_some_and(|at| at <= now) {
            self.presence.poll(&self.interfaces, now, out);
        }
        let mut solicited = 0;
        for index in 0..self.interfaces.len() {
            while let Some(action) = self.interfaces[index].neighbours.poll(now) {
                match action {
                    Action::Solicit(address, mac) => {
                        solicited += 1;
                        self.solicit(index, address, mac, out);
                    }
                    Action::Failed(address) => failed(index, address),
                }
            }
        }
        solicited
    }

    /// Starts the probes for other hosts that use the addresses of the interface at this index, and the announcements
    /// of the interface. [`poll`](Self::poll) sends them.
    pub fn bring_up(&mut self, interface: usize, now: Instant) {
        self.presence.start(interface, now);
    }

    fn solicit(&self, interface: usize, address: IpAddr, mac: Option<Mac>, out: &mut Outbox) {
        let interface = &self.interfaces[interface];
        match (interface.solicitation_source(address), address) {
            (Some(IpAddr::V4(s)), IpAddr::V4(t)) => arp::request(interface, s, t, mac, out),
            (Some(IpAddr::V6(s)), IpAddr::V6(t)) => nd::solicit(interface, s, t, mac, out),
            // Does not occur: an interface without an address of the neighbour's family has no route to the neighbour,
            // so no stream resolves its address.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
