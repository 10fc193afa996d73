//! Frames that streams of this worker have sent to addresses of their own interface. The device does not send these
//! frames: the worker moves them to the port's loopback queue, and receives them from there in a later turn. Both ends
//! of a connection are streams of this worker. Checksums are neither computed nor verified, and IPsec policies do not
//! apply.

use arrayvec::ArrayVec;
use base::Instant;
use ipsec::strength::Strength;

use crate::io::{BURST, Frame, PortIo};
use crate::net::demux::{Kind, L4Check, demux_looped};
use crate::port::ChecksumSite;
use crate::worker::Core;
use crate::worker::arrival::{Arrivals, Forwarding, Packet, Received, push_if_predicted};

impl<Io: PortIo> Core<Io> {
    /// Processes the frames that are in a port's loopback queue now. Frames that are looped back during the call wait
    /// for the next turn. Returns true if a frame was in the queue.
    #[inline]
    pub(in crate::worker) fn receive_looped(&mut self, port: usize, now: Instant) -> bool {
        let count = self.env.ports.get(port).map_or(0, |slot| slot.io.looped());
        if count > 0 {
            self.input_looped(port, count, now);
        }
        count > 0
    }

    #[cold]
    #[inline(never)]
    fn input_looped(&mut self, port: usize, mut count: usize, now: Instant) {
        while count > 0 {
            let Some(slot) = self.env.ports.get_mut(port) else { return };
            let frames = slot.io.take_looped(count);
            count -= frames.len();
            self.input_looped_burst(port, frames, now);
        }
    }

    fn input_looped_burst(
        &mut self,
        port: usize,
        frames: ArrayVec<Io::Frame, BURST>,
        now: Instant,
    ) {
        let (mut arrivals, mut unmatched) = (Arrivals::new(), Arrivals::new());
        self.take_posted_receives(now);
        self.begin_burst(false);
        let bytes: usize = frames.iter().map(|frame| frame.bytes().len()).sum();
        self.env.control.counters().frames.rx_frames.add(frames.len() as u64);
        self.env.control.counters().frames.rx_bytes.add(bytes as u64);
        for frame in frames {
            self.classify_looped(port, frame, &mut arrivals);
        }
        self.look_up_and_input(&mut arrivals, &[], &mut unmatched, now);
        self.input_unmatched(&unmatched, now);
    }

    /// Parses the headers of a looped frame and computes its flow hash.
    fn classify_looped(
        &mut self,
        port: usize,
        frame: Io::Frame,
        arrivals: &mut Arrivals<Io::Frame>,
    ) {
        let (check, strength, sctp) = (L4Check::Good, Strength::MAX, ChecksumSite::Skipped);
        let frame = Packet::Frame(frame);
        let Some(packet) = push_if_predicted(port, frame, check, strength, sctp, arrivals) else {
            return;
        };
        let interfaces = self.env.network.interfaces();
        let found = match demux_looped(packet.bytes(), port, interfaces) {
            Ok(found) => found,
            Err(reason) => return self.env.control.counters().drops.count(reason),
        };
        let (received, forwarding) = (Received { packet, strength }, Forwarding::Looped);
        match found.kind {
            Kind::Sctp { .. } => self.classify_sctp(port, &found, received, forwarding, arrivals),
            _ => self.classify_segment(port, &found, received, check, forwarding, arrivals),
        }
    }
}
