//! The transmit half of a turn. Carriers (TCP connections and SCTP associations) that may have something to send are
//! served round robin while the transmit rings have free space. Each may send up to a quota of segments. A carrier
//! whose ring is full moves to the port's queue of blocked carriers. A pass serves that queue only until one of its
//! carriers is blocked again, so the cost of a turn does not grow with the number of blocked carriers.

use std::time::Duration;

use base::Instant;

use crate::io::PortIo;
use crate::net::neighbour::Resolution;
use crate::worker::flows::carrier::{Carrier, CarrierEndpoint, Refusal, TransmitContext};
use crate::worker::flows::conn::Stage;
use crate::worker::flows::lower_layer::LowerLayer;
use crate::worker::flows::schedule::{CarrierKind, Queue};
use crate::worker::ports::PortSlot;
use crate::worker::{Core, Env};

/// Maximum segments or packets of a carrier before the next carrier is served.
const CARRIER_QUOTA: usize = 32;
/// Maximum frames of all carriers of one kind per pass of [`Core::transmit`]. The limit is checked between carriers, so
/// the last carrier served may exceed it.
const MAX_FRAMES_PER_PASS: u64 = 256;

/// Maximum time that a stream's last segment, a reset, waits for free space in the transmit ring. The stream is then
/// removed, and the reset is not sent. The peer's state is then the same as if the reset were lost on the path: a reset
/// is never retransmitted.
const LAST_SEGMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Result of serving a carrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worker) enum ServeOutcome {
    /// The carrier has nothing more to send now.
    Done,
    /// At least one packet was sent, and a further packet was refused because of the quota, the ring or the pool. The
    /// carrier is requeued.
    More,
    /// No packet was sent: the port's transmit ring (on a loopback path, the loopback queue) is full, its buffer pool
    /// is empty, or its other blocked carriers are served first. The carrier waits in the port's queue.
    Blocked,
    /// The link-layer address of the carrier's next hop is being resolved.
    Waiting,
    /// The carrier's next hop does not answer, or the neighbour cache is full.
    Unreachable,
}

impl<Io: PortIo> Core<Io> {
    /// Serves the queued carriers of one kind, up to [`MAX_FRAMES_PER_PASS`] frames: first the blocked carriers of each
    /// port, then the ready carriers. Returns true if a carrier was queued.
    #[inline(always)]
    pub(in crate::worker) fn transmit(&mut self, kind: CarrierKind, now: Instant) -> bool {
        let before = self.env.control.counters().frames.tx_frames.get();
        self.env.schedules.set_carriers(self.streams.len() + self.associations.len());
        let mut busy = false;
        for queue in 0..self.env.schedules.get(kind).blocked_queues() {
            for _ in 0..self.env.schedules.get(kind).blocked(queue).len() {
                busy = true;
                if self.env.control.counters().frames.tx_frames.get() - before
                    >= MAX_FRAMES_PER_PASS
                {
                    return true;
                }
                if kind == CarrierKind::Connection {
                    self.streams.prefetch_next(self.env.schedules.get(kind).blocked(queue));
                }
                let Some(slot) = self.env.schedules.get_mut(kind).take_blocked(queue) else {
                    break;
                };
                if self.serve(kind, slot, Queue::Blocked, now) == ServeOutcome::Blocked {
                    self.env.schedules.get_mut(kind).restore_first(queue);
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
            let Some(slot) = self.env.schedules.get_mut(kind).take_ready() else { break };
            self.serve(kind, slot, Queue::Ready, now);
            if self.env.control.counters().frames.tx_frames.get() - before >= MAX_FRAMES_PER_PASS {
                break;
            }
        }
        busy
    }

    /// Serves the queued TCP connections. Returns true if a connection was queued.
    pub(in crate::worker) fn transmit_connections(&mut self, now: Instant) -> bool {
        self.transmit(CarrierKind::Connection, now)
    }

    #[inline]
    fn serve(&mut self, kind: CarrierKind, slot: u32, queue: Queue, now: Instant) -> ServeOutcome {
        match kind {
            CarrierKind::Connection => self.serve_connection(slot, queue, now),
            CarrierKind::Association => self.serve_association(slot, queue, now),
        }
    }

    #[inline]
    fn serve_connection(&mut self, slot: u32, queue: Queue, now: Instant) -> ServeOutcome {
        let Some(mut conn) = self.streams.get_mut(slot) else { return ServeOutcome::Done };
        // Received data are reported first, so that a service's answer is sent in this turn, with the acknowledgement.
        if let Some(action) = self.env.report_events(slot, conn, now) {
            self.handle_stream_end(slot, action, now);
            self.report_events(slot, now);
            conn = match self.streams.get_mut(slot) {
                Some(conn) => conn,
                None => return ServeOutcome::Done,
            };
        }
        let deadline = conn.connect_deadline();
        let LowerLayer::Tcp(carrier) = &mut conn.lower else { return ServeOutcome::Done };
        carrier.membership_mut().clear_queued(queue);
        let outcome = self.env.poll_carrier(slot, carrier, now);
        if conn.stage == Stage::Ended && carrier.endpoint().is_done() {
            // The last segment may be a reset that did not fit into the ring. Such a reset waits for at most
            // `LAST_SEGMENT_TIMEOUT`.
            if !matches!(outcome, ServeOutcome::More | ServeOutcome::Blocked) {
                self.remove_stream(slot);
                return ServeOutcome::Done;
            }
            if outcome == ServeOutcome::Blocked && !carrier.has_planned_retry() {
                carrier.plan_retry(now + LAST_SEGMENT_TIMEOUT);
            }
        }
        if outcome == ServeOutcome::Unreachable {
            self.handle_unreachable(slot, now);
            return outcome;
        }
        self.env.requeue(slot, carrier, outcome);
        carrier.set_timer(slot, self.env.schedules.get_mut(CarrierKind::Connection), deadline);
        if conn.transient.stalled {
            self.check_stream_progress(slot, now);
        }
        outcome
    }
}

impl<Io: PortIo> Env<Io> {
    /// Transmits the segments of a carrier that was taken from its queue, unless it cannot send now.
    #[inline]
    pub(in crate::worker) fn poll_carrier<E: CarrierEndpoint>(
        &mut self,
        slot: u32,
        carrier: &mut Carrier<E>,
        now: Instant,
    ) -> ServeOutcome {
        let outcome = if carrier.is_waiting() {
            ServeOutcome::Waiting
        } else if carrier.is_blocked() {
            // The port's other blocked carriers are served first.
            ServeOutcome::Blocked
        } else {
            self.transmit_carrier(slot, carrier, now)
        };
        carrier.share_path_mtu(&mut self.network, now);
        outcome
    }

    /// Requeues a carrier according to the result of serving it.
    #[inline]
    pub(in crate::worker) fn requeue<E: CarrierEndpoint>(
        &mut self,
        slot: u32,
        carrier: &mut Carrier<E>,
        outcome: ServeOutcome,
    ) {
        match outcome {
            ServeOutcome::More => carrier.make_ready(slot, self.schedules.get_mut(E::KIND)),
            ServeOutcome::Blocked => carrier.block(slot, self.schedules.get_mut(E::KIND)),
            ServeOutcome::Done | ServeOutcome::Waiting | ServeOutcome::Unreachable => {}
        }
    }

    /// Transmits the segments of a carrier. Does not requeue the carrier, which is still queued or is requeued by the
    /// caller.
    pub(in crate::worker) fn transmit_carrier<E: CarrierEndpoint>(
        &mut self,
        slot: u32,
        carrier: &mut Carrier<E>,
        now: Instant,
    ) -> ServeOutcome {
        carrier.clear_unacknowledged();
        match self.network.resolve(carrier.path().as_ref(), now) {
            Resolution::Known(mac) => carrier.set_mac(mac),
            Resolution::Wait { solicit } => {
                self.control.counters().ip.neighbour_solicitations.add(u64::from(solicit));
                carrier.suspend(slot, self.schedules.get_mut(E::KIND));
                return ServeOutcome::Waiting;
            }
            Resolution::Failed | Resolution::Full => return ServeOutcome::Unreachable,
        }
        let port = carrier.path().as_ref().port();
        let Some(PortSlot { io, facts, .. }) = self.ports.get_mut(port) else {
            return ServeOutcome::Done;
        };
        let counters = self.control.counters();
        let out = TransmitContext {
            io,
            checksum: facts.tx_checksum,
            counters,
            identifications: self.network.identifications(),
            quota: CARRIER_QUOTA,
            keep_limit: u64::MAX,
            shared: self.schedules.are_shared(),
            // The last frames of a pass are passed to the device at once, so that their transmission overlaps with the
            // rest of the turn.
            offer_last: self.schedules.get(E::KIND).ready().is_empty(),
            min_strength: carrier.min_strength(),
        };
        let transmitted = carrier.transmit(out, self.tables.keep_budget_mut(), now);
        let Some(refusal) = transmitted.refusal else { return ServeOutcome::Done };
        match refusal {
            Refusal::RingFull => counters.frames.tx_stalls.add(1),
            Refusal::NoBuffer => counters.frames.tx_no_buffer.add(1),
            Refusal::Quota => {}
        }
        if transmitted.has_sent { ServeOutcome::More } else { ServeOutcome::Blocked }
    }
}
