//! The transmit half of a turn. Carriers that may have something to send are polled round robin, each for a quota of
//! segments, while the transmit rings have room. A carrier that finds its ring full moves to the port's queue, which
//! is not scanned until the ring has room. The cost of a turn does not grow with the number of blocked carriers.

use std::time::Duration;

use base::Instant;

use crate::io::PortIo;
use crate::net::neighbour::Resolution;
use crate::worker::flows::carrier::{Carrier, CarrierEndpoint, Refusal, Transmit};
use crate::worker::flows::conn::Stage;
use crate::worker::flows::lower::Lower;
use crate::worker::flows::schedule::{CarrierKind, Queue};
use crate::worker::ports::PortSlot;
use crate::worker::{Core, Env};

/// Segments that a carrier may send before the next one is served.
const QUOTA: usize = 32;
/// Segments that all carriers of one kind may send in one pass of [`Core::transmit`]; the last carrier served may
/// exceed it by less than its quota.
const FRAMES: u64 = 256;

/// Time that a stream's last segment waits for room in the transmit ring. The stream is then removed without it: a
/// lost reset is not retransmitted either.
const LAST_SEGMENT: Duration = Duration::from_secs(5);

/// Outcome of serving a carrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worker) enum Turn {
    /// The carrier has nothing more to send now.
    Done,
    /// The carrier has used up its quota, may have more to send, and is requeued.
    More,
    /// The port's transmit ring was full: the carrier waits in the port's queue.
    Blocked,
    /// The carrier waits for the link-layer address of its next hop.
    Waiting,
    /// The carrier's next hop does not answer.
    Unreachable,
}

impl<Io: PortIo> Core<Io> {
    /// Serves the queued carriers of one kind: first blocked ones, by port in their order, then ready ones. Returns
    /// whether there was one.
    #[inline(always)]
    pub(in crate::worker) fn transmit(&mut self, kind: CarrierKind, now: Instant) -> bool {
        let before = self.env.control.counters().frames.tx_frames.get();
        self.env.schedules.set_carriers(self.streams.len() + self.associations.len());
        let mut busy = false;
        for port in 0..self.env.schedules.get(kind).ports() {
            for _ in 0..self.env.schedules.get(kind).blocked(port).len() {
                busy = true;
                if self.env.control.counters().frames.tx_frames.get() - before >= FRAMES {
                    return true;
                }
                if kind == CarrierKind::Connection {
                    self.streams.prefetch_next(self.env.schedules.get(kind).blocked(port));
                }
                let Some(slot) = self.env.schedules.of(kind).take_blocked(port) else { break };
                if self.serve(kind, slot, Queue::Blocked, now) == Turn::Blocked {
                    self.env.schedules.of(kind).keep_first(port);
                    break;
                }
            }
        }
        if kind == CarrierKind::Connection {
            self.streams.prefetch_first(self.env.schedules.get(kind).ready());
        }
        for _ in 0..self.env.schedules.get(kind).ready().len() {
            busy = true;
            if kind == CarrierKind::Connection {
                self.streams.prefetch_next(self.env.schedules.get(kind).ready());
            }
            let Some(slot) = self.env.schedules.of(kind).take_ready() else { break };
            self.serve(kind, slot, Queue::Ready, now);
            if self.env.control.counters().frames.tx_frames.get() - before >= FRAMES {
                break;
            }
        }
        busy
    }

    /// Serves the queued connections. Returns whether there was one.
    pub(in crate::worker) fn transmit_connections(&mut self, now: Instant) -> bool {
        self.transmit(CarrierKind::Connection, now)
    }

    #[inline]
    fn serve(&mut self, kind: CarrierKind, slot: u32, queue: Queue, now: Instant) -> Turn {
        match kind {
            CarrierKind::Connection => self.serve_connection(slot, queue, now),
            CarrierKind::Association => self.serve_association(slot, queue, now),
        }
    }

    #[inline]
    fn serve_connection(&mut self, slot: u32, queue: Queue, now: Instant) -> Turn {
        let Some(mut conn) = self.streams.get_mut(slot) else { return Turn::Done };
        // Received data are reported first: a service's answer to them is then sent in this turn, with the
        // acknowledgement.
        if let Some(ended) = self.env.report(slot, conn, now) {
            self.stream_ended(slot, ended, now);
            self.report(slot, now);
            conn = match self.streams.get_mut(slot) {
                Some(conn) => conn,
                None => return Turn::Done,
            };
        }
        let deadline = conn.opening_deadline();
        let Lower::Tcp(carrier) = &mut conn.lower else { return Turn::Done };
        carrier.scheduled().taken(queue);
        let turn = self.env.poll(slot, carrier, now);
        if conn.stage == Stage::Ended && carrier.endpoint().is_done() {
            // The last segment may be a reset that found no room: it may wait for `LAST_SEGMENT`.
            if !matches!(turn, Turn::More | Turn::Blocked) {
                self.forget(slot);
                return Turn::Done;
            }
            if turn == Turn::Blocked && !carrier.is_to_retry() {
                carrier.retry_at(now + LAST_SEGMENT);
            }
        }
        if turn == Turn::Unreachable {
            self.unreachable(slot, now);
            return turn;
        }
        self.env.queue(slot, carrier, turn);
        carrier.set_timer(slot, self.env.schedules.of(CarrierKind::Connection), deadline);
        if conn.pending.stalled {
            self.check_progress(slot, now);
        }
        turn
    }
}

impl<Io: PortIo> Env<Io> {
    /// Polls a carrier, which was taken out of its queue, for segments, unless it cannot send now.
    #[inline]
    pub(in crate::worker) fn poll<E: CarrierEndpoint>(
        &mut self,
        slot: u32,
        carrier: &mut Carrier<E>,
        now: Instant,
    ) -> Turn {
        let turn = if carrier.is_waiting() {
            Turn::Waiting
        } else if carrier.is_blocked() {
            // Other blocked carriers of the port are served before it.
            Turn::Blocked
        } else {
            self.send(slot, carrier, now)
        };
        carrier.share_path_mtu(&mut self.network, now);
        turn
    }

    /// Requeues a carrier according to the outcome of serving it.
    #[inline]
    pub(in crate::worker) fn queue<E: CarrierEndpoint>(
        &mut self,
        slot: u32,
        carrier: &mut Carrier<E>,
        turn: Turn,
    ) {
        match turn {
            Turn::More => carrier.make_ready(slot, self.schedules.of(E::KIND)),
            Turn::Blocked => carrier.block(slot, self.schedules.of(E::KIND)),
            Turn::Done | Turn::Waiting | Turn::Unreachable => {}
        }
    }

    /// Polls a carrier for segments. Does not requeue it: the carrier is queued already, or the caller requeues it.
    pub(in crate::worker) fn send<E: CarrierEndpoint>(
        &mut self,
        slot: u32,
        carrier: &mut Carrier<E>,
        now: Instant,
    ) -> Turn {
        carrier.answered();
        match self.network.resolve(carrier.path().as_ref(), now) {
            Resolution::Known(mac) => carrier.set_mac(mac),
            Resolution::Wait { solicit } => {
                self.control.counters().ip.neighbour_solicitations.add(u64::from(solicit));
                carrier.wait(slot, self.schedules.of(E::KIND));
                return Turn::Waiting;
            }
            Resolution::Failed | Resolution::Full => return Turn::Unreachable,
        }
        let port = carrier.path().as_ref().port();
        let Some(PortSlot { io, facts, .. }) = self.ports.get_mut(port) else { return Turn::Done };
        let counters = self.control.counters();
        let out = Transmit {
            io,
            checksum: facts.tx_checksum,
            counters,
            identifications: self.network.identifications(),
            quota: QUOTA,
            keep_limit: u64::MAX,
            shared: self.schedules.are_shared(),
            // The last frames of a pass are offered to the device at once: the rest of the turn overlaps with their
            // transmission.
            offers: self.schedules.get(E::KIND).ready().is_empty(),
            least: carrier.least(),
        };
        let transmitted = carrier.transmit(out, self.tables.keep(), now);
        let Some(ended) = transmitted.refused else { return Turn::Done };
        match ended {
            Refusal::RingFull => counters.frames.tx_stalls.add(1),
            Refusal::NoBuffer => counters.frames.tx_no_buffer.add(1),
            Refusal::Quota => {}
        }
        if transmitted.any { Turn::More } else { Turn::Blocked }
    }
}
