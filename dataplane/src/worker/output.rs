//! The send half of a turn: streams that may have something to send are asked in turn, each for a quota
//! of segments, as long as there is room in the transmit rings.

use wire::Instant;

use super::batch::{Batch, Ended};
use super::conn::Stage;
use super::lower::Lower;
use super::{Core, PortSlot};
use crate::io::PortIo;
use crate::net::neighbour::Resolution;

/// Segments that a stream may send before the next one has its turn.
pub(super) const QUOTA: usize = 32;
/// Segments of all streams in one turn of the worker.
pub(super) const FRAMES: u64 = 256;

/// How a stream's turn ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// It has nothing more to send now.
    Done,
    /// It has had its turn, may have more, and stands in line again.
    More,
    /// It had no turn because the port took nothing: it keeps its place in line.
    Blocked,
    /// It waits for the link-layer address of its next hop.
    Waiting,
    /// Its next hop does not answer.
    Unreachable,
}

impl<Io: PortIo> Core<Io> {
    /// Serves the streams in line. Returns whether there was one.
    pub(super) fn transmit(&mut self, now: Instant) -> bool {
        let in_line = self.ready.len();
        let before = self.counters.tx_frames.get();
        for _ in 0..in_line {
            let Some(slot) = self.ready.pop_front() else { break };
            self.serve(slot, now);
            if self.counters.tx_frames.get() - before >= FRAMES {
                break;
            }
        }
        while let Some(slot) = self.blocked.pop() {
            self.ready.push_front(slot);
        }
        in_line > 0
    }

    fn serve(&mut self, slot: u32, now: Instant) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        conn.queued = false;
        let turn = if conn.waiting { Turn::Waiting } else { self.send_segments(slot, now) };
        self.report(slot, now);
        self.look_at_path(slot, now);
        let Some(conn) = self.conns.get_mut(slot) else { return };
        if conn.stage == Stage::Ended
            && matches!(&conn.lower, Lower::Tcp(endpoint) if endpoint.is_done())
        {
            // Its last segment may be a reset that found no room.
            if !matches!(turn, Turn::More | Turn::Blocked) {
                return self.forget(slot);
            }
        }
        match turn {
            Turn::More => self.touch(slot),
            Turn::Blocked => {
                conn.queued = true;
                self.blocked.push(slot);
            }
            Turn::Unreachable => self.unreachable(slot, now),
            Turn::Done | Turn::Waiting => {}
        }
        self.set_timer(slot);
    }

    /// Asks a stream for segments. It stands in line, so that nothing more need be done here.
    pub(super) fn send_segments(&mut self, slot: u32, now: Instant) -> Turn {
        let Some(conn) = self.conns.get_mut(slot) else { return Turn::Done };
        conn.unanswered = 0;
        let (interface, next_hop) = (conn.path.interface, conn.path.next_hop);
        match self.stack.resolve(interface, next_hop, now, &mut self.outbox) {
            Resolution::Known(mac) => conn.path.set_mac(mac),
            Resolution::Wait { solicit } => {
                self.counters.neighbour_solicitations.add(u64::from(solicit));
                conn.waiting = true;
                self.waiting.entry((interface, next_hop)).or_default().push(slot);
                return Turn::Waiting;
            }
            Resolution::Failed | Resolution::Full => return Turn::Unreachable,
        }
        let Some(Some(PortSlot { io, facts })) = self.ports.get_mut(conn.path.port) else {
            return Turn::Done;
        };
        let before = self.counters.tx_frames.get();
        let Lower::Tcp(endpoint) = &mut conn.lower else { return Turn::Done };
        let mut batch = Batch::new(io, &conn.path, facts.tx_checksum, QUOTA, &self.counters);
        endpoint.poll_transmit(now, &mut batch);
        match batch.ended() {
            None => Turn::Done,
            Some(ended) => {
                match ended {
                    Ended::RingFull => self.counters.tx_stalls.add(1),
                    Ended::NoBuffer => self.counters.tx_no_buffer.add(1),
                    Ended::Quota => {}
                }
                if self.counters.tx_frames.get() == before { Turn::Blocked } else { Turn::More }
            }
        }
    }

    /// Sets a stream's timer in the wheel. A timer that is set for an earlier time stays: it finds
    /// nothing to do when it fires, which is cheaper than to move it with every acknowledgement.
    pub(super) fn set_timer(&mut self, slot: u32) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        // Who cannot send now would be due again and again.
        let endpoint = match &conn.lower {
            Lower::Tcp(endpoint) if !conn.waiting => endpoint.poll_timeout(),
            _ => None,
        };
        let Some(at) = endpoint.into_iter().chain(conn.own_deadline).min() else { return };
        if conn.timer.is_none_or(|set| at < set) {
            conn.timer = Some(at);
            self.wheel.set(slot, at);
        }
    }
}
