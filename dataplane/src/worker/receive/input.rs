//! The receive half of a turn. Frames from ports and from other workers are processed in bursts, each in three stages:
//! parse and hash, look up, process. Unmatched frames of a burst are processed last. Each received frame is counted
//! exactly once, with its outcome.
//!
//! Not included: processing of matched segments and packets ([`tcp`](crate::worker::tcp),
//! [`sctp`](crate::worker::sctp)).

use std::net::SocketAddr;

use arrayvec::ArrayVec;
use base::Instant;
use ipsec::strength::Strength;

use crate::api::{DropReason, Event, InterfaceId};
use crate::flow::FlowKey;
use crate::io::{BURST, Frame, PortIo};
use crate::mesh::{IpsecState, Message};
use crate::net::Notice;
use crate::net::demux::{self, Kind, L4Check, demux};
use crate::net::ecn;
use crate::net::icmp::Quote;
use crate::net::neighbour::{Claim, ClaimOutcome};
use crate::net::reassembly::Outcome;
use crate::worker::arrival::{
    Arrival, ArrivalKind, Arrivals, Forwarding, Packet, Received, push_if_predicted,
};
use crate::worker::receive::host::Recipient;
use crate::worker::{Core, MAX_MESSAGES};

/// Number of frames per stage. The table look-ups of a stage overlap, and its frames stay in the CPU cache.
const STAGE_FRAMES: usize = 8;

/// Distance, in frames, between the frame in processing and the prefetched frame.
const PREFETCH_DISTANCE: usize = 2;

/// Maximum number of bursts received from a port per turn. A burst with at least `MIN_MATCHED` matched frames is the
/// port's last burst of the turn.
const MAX_BURSTS: usize = 4;
const MIN_MATCHED: usize = BURST / 4;

impl<Io: PortIo> Core<Io> {
    /// Receives a burst from each port, and the looped frames. A flooded port is polled for further bursts, so that
    /// several frames of a stream share the cost of serving the stream once per turn. Returns true if there were any
    /// frames.
    pub(in crate::worker) fn receive_frames(&mut self, now: Instant) -> bool {
        let mut busy = false;
        for port in 0..self.env.ports.count() {
            for _ in 0..MAX_BURSTS {
                let Some(slot) = self.env.ports.get_mut(port) else { break };
                if !slot.receive(now) {
                    break;
                }
                busy = true;
                let frames = slot.take_received();
                let full = frames.is_full();
                let matched = match slot.io.tap() {
                    None => self.input_burst(port, frames, now),
                    Some(_) => self.input_captured_burst(port, frames, now),
                };
                if matched >= MIN_MATCHED || !full || self.unmatched_load_is_heavy() {
                    break;
                }
            }
            busy |= self.receive_looped(port, now);
        }
        busy
    }

    /// Processes a burst of received frames. Returns the number of frames that matched a stream or an association.
    #[inline]
    fn input_burst(
        &mut self,
        port: usize,
        frames: ArrayVec<Io::Frame, BURST>,
        now: Instant,
    ) -> usize {
        match self.env.network.is_guarded() {
            false => self.input_burst_with::<false>(port, frames, now),
            true => self.input_guarded_burst(port, frames, now),
        }
    }

    /// Processes a burst if IPsec is configured. Not inlined, so that other configurations have no cost.
    #[inline(never)]
    fn input_guarded_burst(
        &mut self,
        port: usize,
        frames: ArrayVec<Io::Frame, BURST>,
        now: Instant,
    ) -> usize {
        self.input_burst_with::<true>(port, frames, now)
    }

    #[inline(always)]
    fn input_burst_with<const GUARDED: bool>(
        &mut self,
        port: usize,
        frames: ArrayVec<Io::Frame, BURST>,
        now: Instant,
    ) -> usize {
        let (mut matched, mut unmatched) = (0, Arrivals::new());
        self.take_posted_receives(now);
        self.begin_burst(frames.is_full());
        let mut frames = frames.into_iter();
        frames.as_slice().iter().take(STAGE_FRAMES).for_each(Frame::prefetch_headers);
        frames.as_slice().iter().take(PREFETCH_DISTANCE).for_each(Frame::prefetch);
        self.env.control.counters().burst_frames.record(frames.len() as u64);
        while frames.len() > 0 {
            let later = frames.as_slice().iter().skip(STAGE_FRAMES).take(STAGE_FRAMES);
            later.for_each(Frame::prefetch_headers);
            let mut arrivals = Arrivals::new();
            let stage = frames.as_slice().iter().take(STAGE_FRAMES);
            let (count, bytes) = stage.fold((0, 0), |(n, sum), f| (n + 1, sum + f.bytes().len()));
            self.env.control.counters().frames.rx_frames.add(count);
            self.env.control.counters().frames.rx_bytes.add(bytes as u64);
            if GUARDED {
                for _ in 0..STAGE_FRAMES {
                    let Some(frame) = frames.next() else { break };
                    // Decryption reads the whole frame in this stage, so the frame is prefetched here.
                    frames
                        .as_slice()
                        .get(PREFETCH_DISTANCE - 1)
                        .into_iter()
                        .for_each(Frame::prefetch);
                    self.admit(port, Packet::Frame(frame), now, &mut arrivals);
                }
            } else {
                for frame in frames.by_ref().take(STAGE_FRAMES) {
                    self.classify_in_clear(port, Packet::Frame(frame), now, &mut arrivals);
                }
            }
            matched +=
                self.look_up_and_input(&mut arrivals, frames.as_slice(), &mut unmatched, now);
        }
        self.input_unmatched(&unmatched, now);
        matched
    }

    /// Returns true if the next turn has input. Frames that this call receives are kept for the next turn.
    pub(in crate::worker) fn has_input(&mut self, now: Instant) -> bool {
        self.env.control.has_commands()
            || self.mesh.has_messages()
            || self.env.host.has_frames()
            || self.env.programs.have_work()
            || self.env.ports.receive_all(now)
    }

    /// Processes the messages of other workers. Returns true if a message was received.
    pub(in crate::worker) fn input_messages(&mut self, now: Instant) -> bool {
        if !self.mesh.has_messages() {
            return false;
        }
        self.begin_burst(true);
        let mut arrivals = Arrivals::new();
        let mut taken = 0;
        while taken < MAX_MESSAGES && !arrivals.is_full() {
            let Some(message) = self.mesh.receive() else { break };
            taken += 1;
            let frames = &self.env.control.counters().frames;
            match message {
                Message::Neighbour { .. } => frames.mesh_news_in.add(1),
                Message::Seal { .. } | Message::PacketTooBig(_) => {
                    self.env.control.counters().ipsec.mesh_seal_in.add(1);
                }
                _ => frames.mesh_in.add(1),
            }
            match message {
                Message::Frame { port, frame, ipsec } => {
                    self.input_forwarded(port, Packet::Frame(frame), ipsec, now, &mut arrivals);
                }
                Message::Reassembled { port, bytes, ipsec } => {
                    self.input_forwarded(
                        port,
                        Packet::Reassembled(bytes),
                        ipsec,
                        now,
                        &mut arrivals,
                    );
                }
                Message::Seal { port, frame, min_strength: least } => {
                    self.env.hold_for_seal(port, frame, least)
                }
                Message::Neighbour { interface, claim } => {
                    self.handle_claim(interface, &claim, now)
                }
                Message::Icmp(report) => self.handle_icmp(&report, now),
                // An error without a match is not counted: its flow may have ended, or its SA may belong to another
                // worker.
                Message::PacketTooBig(report) => drop(self.apply_icmp(&report, now)),
            }
        }
        let (full, mut unmatched) = (arrivals.is_full(), Arrivals::new());
        self.take_posted_receives(now);
        self.look_up_and_input(&mut arrivals, &[], &mut unmatched, now);
        if !full {
            self.unmatched_budget.begin_burst(false);
        }
        self.input_unmatched(&unmatched, now);
        taken > 0
    }

    /// Processes a packet that another worker has received and forwarded, in IPsec state `ipsec`.
    #[inline]
    fn input_forwarded(
        &mut self,
        port: usize,
        packet: Packet<Io::Frame>,
        ipsec: IpsecState,
        now: Instant,
        arrivals: &mut Arrivals<Io::Frame>,
    ) {
        match ipsec {
            IpsecState::Sealed => self.admit(port, packet, now, arrivals),
            IpsecState::Passed(strength) => {
                let received = Received { packet, strength };
                self.classify(port, received, now, Forwarding::Done, arrivals)
            }
        }
    }

    /// Classifies a packet that was received from a port without IPsec protection.
    #[inline]
    pub(in crate::worker) fn classify_in_clear(
        &mut self,
        port: usize,
        packet: Packet<Io::Frame>,
        now: Instant,
        arrivals: &mut Arrivals<Io::Frame>,
    ) {
        self.classify(port, Received::in_clear(packet), now, Forwarding::Allowed, arrivals);
    }

    /// First stage: parses the headers of a packet and computes its flow hash. Packets other than TCP and SCTP are
    /// handled at once. If another worker owns the flow and `forwarding` allows it, the packet is forwarded to that
    /// worker.
    #[inline]
    pub(in crate::worker) fn classify(
        &mut self,
        port: usize,
        received: Received<Io::Frame>,
        now: Instant,
        forwarding: Forwarding,
        arrivals: &mut Arrivals<Io::Frame>,
    ) {
        let Received { packet: frame, strength } = received;
        let Some(slot) = self.env.ports.get(port) else {
            return self.env.control.counters().drops.count(DropReason::NoPort);
        };
        // Only the headers are read in this stage. The last stage verifies the checksum of a segment.
        let sctp = slot.facts.rx_sctp_checksum;
        let check = match frame.l4_check(slot.facts.rx_checksum) {
            Some(check) => check,
            None if self.is_not_tcp(port, frame.bytes()) => L4Check::Unknown,
            None => return self.env.control.counters().drops.count(DropReason::L4Checksum),
        };
        let Some(frame) = push_if_predicted(port, frame, check, strength, sctp, arrivals) else {
            return;
        };
        let packet = match demux(frame.bytes(), port, L4Check::Good, self.env.network.interfaces())
        {
            Ok(packet) => packet,
            // Fast path in a flood: unless a port is shared with the kernel, a refused frame only increments a counter.
            Err(reason) if self.env.host.is_empty() && reason != DropReason::L4Checksum => {
                return self.env.control.counters().drops.count(reason);
            }
            Err(reason) => return self.handle_refused_frame(port, frame.bytes(), reason),
        };
        match packet.kind {
            Kind::Tcp { .. } => {
                let received = Received { packet: frame, strength };
                self.classify_segment(port, &packet, received, check, forwarding, arrivals);
            }
            Kind::Sctp { .. } => {
                let received = Received { packet: frame, strength };
                self.classify_sctp(port, &packet, received, forwarding, arrivals);
            }
            Kind::Fragment(_) => {
                self.classify_fragment(port, &packet, frame, now, forwarding, arrivals);
            }
            _ => self.input_control_packet(port, &packet, &frame, now),
        }
    }

    /// Returns true if the frame parses and is not TCP. A bad checksum that the device reports for such a frame is not
    /// TCP's, and is ignored here.
    #[cold]
    #[inline(never)]
    fn is_not_tcp(&self, port: usize, frame: &[u8]) -> bool {
        let found = demux(frame, port, L4Check::Good, self.env.network.interfaces());
        found.is_ok_and(|packet| !matches!(packet.kind, Kind::Tcp { .. }))
    }

    /// Appends a demultiplexed TCP segment to the arrivals, or forwards it to the worker that owns its flow.
    #[inline]
    pub(super) fn classify_segment(
        &mut self,
        port: usize,
        found: &demux::Packet,
        received: Received<Io::Frame>,
        check: L4Check,
        forwarding: Forwarding,
        arrivals: &mut Arrivals<Io::Frame>,
    ) {
        let Received { packet: frame, strength } = received;
        let Kind::Tcp { source, destination, ref segment } = found.kind else { return };
        let Some(slot) = self.env.ports.get(port) else { return };
        let facts = &slot.facts;
        if forwarding == Forwarding::Allowed && facts.steering.single_worker().is_none() {
            let owner = match frame.hash().filter(|_| facts.device_hash) {
                Some(hash) => facts.steering.owner_of_hash(hash),
                None => facts.steering.owner(source, destination),
            };
            if owner.0 != self.env.index {
                let message = frame.into_message(port, IpsecState::Passed(strength));
                return self.mesh.send(usize::from(owner.0), message, self.env.control.counters());
            }
        }
        let interface = found.interface as u16;
        let flow = FlowKey { interface, local: destination, remote: source };
        // Successive frames often belong to the same flow.
        let same = arrivals.last().filter(|last| last.flow == flow && !last.is_sctp());
        let follows = same.is_some();
        let hash = match same {
            Some(last) => last.hash,
            // With request/response traffic, a burst is often a single segment of the same flow as the previous burst.
            // `Streams::hash` has cached the hash of that flow.
            None if arrivals.is_empty() => self.streams.hash(&flow),
            None => self.streams.flows().hash(&flow),
        };
        let (span, source_mac) = (segment.clone(), found.source_mac);
        let ce = ecn::is_marked(frame.bytes());
        let carries = ArrivalKind::Segment { ce, check };
        let (port, slot) = (port as u16, None);
        arrivals.push(Arrival {
            frame,
            port,
            flow,
            hash,
            span,
            source_mac,
            kind: carries,
            same_flow: follows,
            slot,
            strength,
        });
    }

    /// Passes a fragment to reassembly. A complete packet passes through the same stages as a frame.
    fn classify_fragment(
        &mut self,
        port: usize,
        found: &demux::Packet,
        frame: Packet<Io::Frame>,
        now: Instant,
        forwarding: Forwarding,
        arrivals: &mut Arrivals<Io::Frame>,
    ) {
        let Kind::Fragment(ref fragment) = found.kind else { return };
        let Some(slot) = self.env.ports.get(port) else { return };
        let (source, destination) = (fragment.source, fragment.destination);
        // Only the first fragment contains ports. All fragments of a packet therefore go to the worker that owns the
        // address pair with both ports zero.
        let (source, destination) = (SocketAddr::new(source, 0), SocketAddr::new(destination, 0));
        let steering = &slot.facts.steering;
        if forwarding == Forwarding::Allowed && steering.single_worker().is_none() {
            let owner = steering.owner(source, destination);
            if owner.0 != self.env.index {
                // Fragments inside tunnels are refused, so this fragment arrived in clear.
                let message = frame.into_message(port, IpsecState::Passed(Strength::CLEAR));
                return self.mesh.send(usize::from(owner.0), message, self.env.control.counters());
            }
        }
        match self.env.network.reassemble(found.interface, fragment, frame.bytes(), now) {
            Ok((outcome, evicted)) => {
                self.env.control.counters().ip.reassembly_evicted.add(evicted);
                match outcome {
                    Outcome::Waiting => self.env.control.counters().ip.fragments.add(1),
                    Outcome::Complete(bytes) => {
                        self.env.control.counters().ip.reassembled.add(1);
                        self.input_packet(port, Packet::Reassembled(bytes), now, arrivals);
                    }
                }
            }
            Err(reason) => self.env.control.counters().drops.count(reason),
        }
    }

    /// Handles a packet other than TCP, SCTP and fragments: ARP, ICMP or neighbour discovery.
    fn input_control_packet(
        &mut self,
        port: usize,
        found: &demux::Packet,
        frame: &Packet<Io::Frame>,
        now: Instant,
    ) {
        if !self.env.host.is_empty() {
            match self.recipient(found, frame.bytes()) {
                Recipient::Worker => {}
                Recipient::Both => self.env.copy_to_host(found.interface, frame.bytes()),
                Recipient::Host => return self.env.send_to_host(found.interface, frame.bytes()),
            }
        }
        let (notice, answers) = self.env.network.input_control(found, frame.bytes(), now);
        if notice != Ok(Notice::Echoed) {
            self.env.control.counters().ip.neighbour_answers.add(answers);
        }
        match notice {
            Ok(notice) => self.handle_notice(port, notice, now),
            Err(reason) => self.env.control.counters().drops.count(reason),
        }
    }

    /// Second and third stage: looks up the arrivals, and processes the matched arrivals. The others are moved to
    /// `unmatched`, to be processed at the end of the burst. `next` has the frames of the burst that follow, for
    /// prefetch. Returns the number of matched arrivals.
    pub(in crate::worker) fn look_up_and_input(
        &mut self,
        arrivals: &mut Arrivals<Io::Frame>,
        next: &[Io::Frame],
        unmatched: &mut Arrivals<Io::Frame>,
        now: Instant,
    ) -> usize {
        let mut last = None;
        for arrival in arrivals.iter_mut() {
            let sctp = arrival.is_sctp();
            let flows = if sctp { self.associations.flows() } else { self.streams.flows() };
            arrival.slot = if arrival.same_flow { last } else { flows.candidate(arrival.hash) };
            last = arrival.slot;
        }
        let segments = arrivals.iter().filter(|arrival| !arrival.is_sctp());
        self.streams.prefetch(segments.filter_map(|arrival| arrival.slot));
        let prefetch = |at: usize| match arrivals.get(at + PREFETCH_DISTANCE) {
            Some(later) => later.frame.prefetch(),
            None => {
                let later = next.get(at + PREFETCH_DISTANCE - arrivals.len());
                later.into_iter().for_each(Frame::prefetch);
            }
        };
        let (mut unmatched_count, mut at) = (0, 0);
        while let Some(arrival) = arrivals.get(at) {
            if arrival.slot.is_none() {
                prefetch(at);
                unmatched_count += 1;
                at += 1;
                continue;
            }
            match arrival.kind {
                ArrivalKind::Segment { .. } => {
                    let behind = arrivals[at + 1..].iter().take_while(|arrival| arrival.same_flow);
                    let run = &arrivals[at..=at + behind.count()];
                    at += self.input_segment_run(run, |i| prefetch(at + i), now);
                }
                ArrivalKind::Packet { .. } => {
                    let behind = arrivals[at + 1..].iter().take_while(|arrival| arrival.same_flow);
                    let run = &arrivals[at..=at + behind.count()];
                    at += self.input_sctp_run(run, |i| prefetch(at + i), now);
                }
            }
        }
        let matched = arrivals.len() - unmatched_count;
        if unmatched_count > 0 {
            unmatched.extend(arrivals.drain(..).filter(|arrival| arrival.slot.is_none()));
        }
        matched
    }

    /// Processes the unmatched packets of a burst, in the order of arrival.
    pub(super) fn input_unmatched(&mut self, unmatched: &Arrivals<Io::Frame>, now: Instant) {
        for arrival in unmatched {
            self.input_unmatched_arrival(arrival, now);
        }
    }

    pub(in crate::worker) fn input_unmatched_arrival(
        &mut self,
        arrival: &Arrival<Io::Frame>,
        now: Instant,
    ) {
        match arrival.kind {
            ArrivalKind::Segment { .. } => self.input_unmatched_segment(arrival, now),
            ArrivalKind::Packet { .. } => self.input_unmatched_packet(arrival, now),
        }
    }

    fn handle_notice(&mut self, port: usize, notice: Notice, now: Instant) {
        match notice {
            Notice::Echoed => self.env.control.counters().ip.echo_replies.add(1),
            Notice::Query => self.env.control.counters().ip.group_queries.add(1),
            Notice::Conflict(interface, address, mac, reported) => {
                self.env.control.counters().drops.count(DropReason::AddressConflict);
                if reported && !self.env.control.is_congested() {
                    let interface = InterfaceId(interface as u16);
                    self.env.control.send(Event::AddressConflict { interface, address, mac });
                }
            }
            Notice::Neighbour(interface, claim) => {
                if self.env.network.may_forward_claim(now) {
                    let message = || Message::Neighbour { interface, claim };
                    self.mesh.send_all(message, self.env.control.counters());
                } else {
                    // If streams of other workers wait for this neighbour, their workers will solicit it again.
                    self.env.control.counters().frames.mesh_news_limited.add(1);
                }
                self.handle_claim(interface, &claim, now);
            }
            Notice::Icmp(report) => {
                if matches!(report.quote, Quote::Esp(..)) {
                    return self.handle_icmp_for_sa(&report, now);
                }
                let Some(owner) = self.env.ports.report_owner(port, &report) else {
                    return self.env.control.counters().drops.count(DropReason::NoPort);
                };
                if owner.0 == self.env.index {
                    self.handle_icmp(&report, now);
                } else {
                    let message = Message::Icmp(report);
                    self.mesh.send(usize::from(owner.0), message, self.env.control.counters());
                }
            }
        }
    }

    /// Updates the neighbour cache from an announcement, and resumes the carriers that wait for the address.
    fn handle_claim(&mut self, interface: usize, claim: &Claim, now: Instant) {
        match self.env.network.apply_claim(interface, claim, now) {
            Ok(outcome) => {
                self.env.control.counters().ip.neighbour_claims.add(1);
                if outcome == ClaimOutcome::Resolved {
                    self.handle_neighbour_resolved(interface, claim.address);
                }
            }
            Err(reason) => self.env.control.counters().drops.count(reason),
        }
    }
}
