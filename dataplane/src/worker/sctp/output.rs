//! The send half of a turn for associations, as for streams over TCP: in turn, each for a quota of packets.

use std::net::IpAddr;
use std::time::Duration;

use base::Instant;
use sctp_lite::seam::TxBatch;

use super::Associations;
use crate::api::{ConnectError, Counters};
use crate::io::{Frame, PortIo};
use crate::net::carrier::Carrier;
use crate::net::demux::UDP_HEADER;
use crate::net::fragment::{self, Identifications};
use crate::net::neighbour::Resolution;
use crate::net::path::TxChecksum;
use crate::worker::batch::Ended;
use crate::worker::output::{FRAMES, QUOTA, Turn};
use crate::worker::{Core, PortSlot};

/// After this an association asks again for a next hop that did not answer.
const RETRY: Duration = Duration::from_secs(1);

/// A turn of one association at a port's transmit queue.
pub(super) struct Packets<'a, Io: PortIo> {
    io: &'a mut Io,
    carrier: &'a Carrier,
    how: TxChecksum,
    counters: &'a Counters,
    /// Octets of the longest packet that goes whole.
    whole: usize,
    /// For those that do not.
    ids: Option<&'a mut Identifications>,
    /// The packet being written goes whole whatever it is.
    probe: bool,
    frame: Option<Io::Frame>,
    sent: usize,
    quota: usize,
    /// See [`TxBatch::keep_limit`].
    keep_limit: u64,
    ended: Option<Ended>,
}

impl<'a, Io: PortIo> Packets<'a, Io> {
    /// Up to `quota` packets along `carrier`.
    pub(super) fn new(
        io: &'a mut Io,
        carrier: &'a Carrier,
        how: TxChecksum,
        quota: usize,
        counters: &'a Counters,
    ) -> Self {
        let how = Carrier::offload(how);
        let (frame, ids, probe) = (None, None, false);
        let (whole, sent, keep_limit, ended) = (usize::MAX, 0, u64::MAX, None);
        Packets {
            io,
            carrier,
            how,
            counters,
            whole,
            ids,
            probe,
            frame,
            sent,
            quota,
            keep_limit,
            ended,
        }
    }

    /// The association may keep so many bytes of what it sends.
    fn keeping(mut self, limit: u64) -> Self {
        self.keep_limit = limit;
        self
    }

    /// Packets of more than `whole` octets are cut: the path does not carry them (RFC 9260 §6.9).
    fn cut_above(mut self, whole: usize, ids: &'a mut Identifications) -> Self {
        self.whole = whole;
        self.ids = Some(ids);
        self
    }

    /// True when some packet went out.
    pub(super) fn has_sent(&self) -> bool {
        self.sent > 0
    }

    /// Frames that a packet of `len` octets takes at most: one, but for what is cut. Pieces are of whole units of
    /// eight octets, and one has the UDP header, each that of a fragment.
    fn frames(&self, len: usize) -> usize {
        let least = self.whole.saturating_sub(15).max(8);
        if len <= self.whole { 1 } else { (len + UDP_HEADER).div_ceil(least) }
    }

    /// Sends a packet in pieces. Without a buffer for one of them it is lost, as on the way.
    #[cold]
    fn send_cut(&mut self, mut frame: Io::Frame) {
        let path = &self.carrier.path;
        let Some(ids) = &mut self.ids else { return };
        self.carrier.finish(frame.octets_mut(), TxChecksum::SOFTWARE);
        let id = ids.next(path.addresses());
        let whole = frame.octets();
        let mtu = self.carrier.ip_len() + self.whole;
        for piece in fragment::pieces(path, whole.len() - path.header_len(), mtu) {
            let room = self.io.room() > 0;
            let len = fragment::frame_len(path, &piece);
            let Some(mut out) = room.then(|| self.io.allocate(len)).flatten() else {
                return self.counters.tx_no_buffer.add(1);
            };
            fragment::emit(path, whole, &piece, id, out.octets_mut());
            self.counters.tx_frames.add(1);
            self.counters.tx_octets.add(len as u64);
            self.io.send(out);
        }
        self.counters.tx_cut.add(1);
    }
}

impl<Io: PortIo> TxBatch for Packets<'_, Io> {
    fn packet(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.sent == self.quota {
            self.ended = Some(Ended::Quota);
            return None;
        }
        if self.io.room() < self.frames(len) {
            self.ended = Some(Ended::RingFull);
            return None;
        }
        self.probe = false;
        let header = self.carrier.header_len();
        let unused = self.frame.take().filter(|f| f.octets().len() >= header + len);
        self.frame = unused.or_else(|| self.io.allocate(header + len));
        match &mut self.frame {
            Some(frame) => Some(&mut frame.octets_mut()[header..header + len]),
            None => {
                self.ended = Some(Ended::NoBuffer);
                None
            }
        }
    }

    fn whole(&mut self) {
        self.probe = true;
    }

    fn keep_limit(&self) -> u64 {
        self.keep_limit
    }

    fn keep_limited(&mut self) {
        self.counters.keep_waits.add(1);
    }

    fn commit(&mut self, len: usize) {
        let Some(mut frame) = self.frame.take() else { return };
        frame.truncate(self.carrier.header_len() + len);
        if len > self.whole && !self.probe {
            self.sent += 1;
            return self.send_cut(frame);
        }
        self.carrier.finish(frame.octets_mut(), self.how);
        if self.how.needs_device() {
            let path = &self.carrier.path;
            frame.offload(self.how, path.l2_len(), path.l3_len(), path.is_v6());
        }
        self.counters.tx_frames.add(1);
        self.counters.tx_octets.add(frame.octets().len() as u64);
        self.sent += 1;
        self.io.send(frame);
    }
}

impl<Io: PortIo> Core<Io> {
    /// Serves the associations in line. Returns whether there was one.
    pub(in crate::worker) fn transmit_associations(&mut self, now: Instant) -> bool {
        let before = self.control.counters().tx_frames.get();
        let mut busy = false;
        for port in 0..self.associations.schedule.ports() {
            for _ in 0..self.associations.schedule.blocked(port).len() {
                busy = true;
                if self.control.counters().tx_frames.get() - before >= FRAMES {
                    return true;
                }
                let Some(at) = self.associations.schedule.take_blocked(port) else { break };
                self.report_association(at, now);
                if let Some(association) = self.associations.all.get_mut(at) {
                    association.scheduled.blocked_taken();
                }
                if self.serve_association(at, now) == Turn::Blocked {
                    self.associations.schedule.keep_first(port);
                    break;
                }
            }
        }
        for _ in 0..self.associations.schedule.ready().len() {
            busy = true;
            let Some(at) = self.associations.schedule.take_ready() else { break };
            // First what has come, so that what its owner answers at once goes with the acknowledgement.
            self.report_association(at, now);
            if let Some(association) = self.associations.all.get_mut(at) {
                association.scheduled.ready_taken();
            }
            self.serve_association(at, now);
            if self.control.counters().tx_frames.get() - before >= FRAMES {
                break;
            }
        }
        busy
    }

    fn serve_association(&mut self, at: u32, now: Instant) -> Turn {
        let Some(association) = self.associations.all.get(at) else { return Turn::Done };
        let scheduled = association.scheduled;
        let turn = match (scheduled.is_waiting(), scheduled.is_blocked()) {
            (true, _) => Turn::Waiting,
            // Others were before it.
            (false, true) => Turn::Blocked,
            (false, false) => self.send_packets(at, now),
        };
        self.look_at_association_path(at, now);
        self.report_association(at, now);
        self.look_whether_leaving(at);
        let Associations { all, schedule, .. } = &mut self.associations;
        let Some(association) = all.get_mut(at) else { return Turn::Done };
        // Its last packet was sent, or found no room for too long.
        if association.endpoint.is_done() {
            self.forget_association(at);
            return Turn::Done;
        }
        match turn {
            Turn::More => self.associations.touch(at),
            Turn::Blocked => {
                let port = association.carrier.path.port();
                schedule.block(at, &mut association.scheduled, port);
            }
            Turn::Unreachable => self.association_unreachable(at, now),
            Turn::Done | Turn::Waiting => {}
        }
        self.associations.set_timer(at);
        turn
    }

    /// Asks an association for packets. It stands in line, so that nothing more need be done here.
    pub(super) fn send_packets(&mut self, at: u32, now: Instant) -> Turn {
        let Associations { all, schedule, .. } = &mut self.associations;
        let Some(association) = all.get_mut(at) else { return Turn::Done };
        association.unanswered = 0;
        let path = &association.carrier.path;
        let port = path.port();
        match self.network.resolve(path, now) {
            Resolution::Known(mac) => association.carrier.set_mac(mac),
            Resolution::Wait { solicit } => {
                self.control.counters().neighbour_solicitations.add(u64::from(solicit));
                let next_hop = (path.interface(), path.next_hop());
                schedule.wait(at, &mut association.scheduled, next_hop);
                return Turn::Waiting;
            }
            Resolution::Failed | Resolution::Full => return Turn::Unreachable,
        }
        let Some(PortSlot { io, facts, .. }) = self.ports.get_mut(port) else {
            return Turn::Done;
        };
        let (carrier, how) = (&association.carrier, facts.tx_checksum);
        let whole = association.endpoint.association().path_len();
        let packets = Packets::new(io, carrier, how, QUOTA, self.control.counters());
        let peer = association.key.remote.ip();
        let kept = self.tables.keep().count(peer, association.kept, association.endpoint.kept());
        let packets = packets.keeping(self.tables.keep().limit(peer, kept));
        let mut packets = packets.cut_above(whole, self.network.identifications());
        association.endpoint.poll_transmit(now, &mut packets);
        association.kept = self.tables.keep().count(peer, kept, association.endpoint.kept());
        match packets.ended {
            None => Turn::Done,
            Some(ended) => {
                match ended {
                    Ended::RingFull => self.control.counters().tx_stalls.add(1),
                    Ended::NoBuffer => self.control.counters().tx_no_buffer.add(1),
                    Ended::Quota => {}
                }
                if packets.has_sent() { Turn::More } else { Turn::Blocked }
            }
        }
    }

    /// Timers of associations that are due; at most so many. Returns how many fired.
    pub(in crate::worker) fn fire_association_timers(
        &mut self,
        most: usize,
        now: Instant,
    ) -> usize {
        let mut fired = 0;
        while fired < most {
            let Some(at) = self.associations.schedule.take_due(now) else { break };
            fired += 1;
            let Some(association) = self.associations.all.get_mut(at) else { continue };
            association.scheduled.timer_fired();
            if association.own_deadline.is_some_and(|deadline| deadline <= now) {
                association.own_deadline = None;
            }
            if association.endpoint.poll_timeout().is_some_and(|due| due <= now) {
                association.endpoint.handle_timeout(now, &mut self.tables.session_context());
                if association.endpoint.association().is_timing_out() {
                    self.ask_for_association_path(at, now);
                }
            }
            let Some(association) = self.associations.all.get(at) else { continue };
            let path = &association.carrier.path;
            if association.endpoint.path_suspect() {
                // RFC 9293 §3.8.3 R1 as well as here: perhaps the neighbour has moved.
                self.network.doubt(path, now);
            }
            self.associations.touch(at);
        }
        fired
    }

    /// A neighbour is known now.
    pub(in crate::worker) fn neighbour_of_associations_found(
        &mut self,
        interface: usize,
        address: IpAddr,
    ) {
        for at in self.associations.schedule.take_waiting((interface, address)) {
            if let Some(association) = self.associations.all.get_mut(at) {
                association.scheduled.waiting_taken();
            }
            self.associations.touch(at);
        }
    }

    /// Nobody answers for a next hop.
    pub(in crate::worker) fn neighbour_of_associations_failed(
        &mut self,
        interface: usize,
        address: IpAddr,
        now: Instant,
    ) {
        for at in self.associations.schedule.take_waiting((interface, address)) {
            if let Some(association) = self.associations.all.get_mut(at) {
                association.scheduled.waiting_taken();
                self.association_unreachable(at, now);
            }
        }
    }

    /// There is no way to a next hop now: what is being opened is given up, the rest waits for its own
    /// time-outs and asks again.
    fn association_unreachable(&mut self, at: u32, now: Instant) {
        let Some(association) = self.associations.all.get_mut(at) else { return };
        if association.is_opening() {
            self.give_up_association(at, &ConnectError::Unreachable);
            // Its ABORT cannot be sent either.
            return self.forget_association(at);
        }
        association.own_deadline = Some(now + RETRY);
        self.associations.set_timer(at);
    }
}

impl Associations {
    /// Sets an association's timer.
    pub(super) fn set_timer(&mut self, at: u32) {
        let Some(association) = self.all.get_mut(at) else { return };
        // Who cannot send now would be due again and again.
        let waits = association.scheduled.is_waiting() || association.own_deadline.is_some();
        let endpoint = if waits { None } else { association.endpoint.poll_timeout() };
        let due = endpoint.into_iter().chain(association.own_deadline).min();
        let Some(due) = due else { return };
        self.schedule.set_timer(at, &mut association.scheduled, due);
    }
}
