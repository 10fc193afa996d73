//! The send half of a turn: streams that may have something to send are asked in turn, each for a quota
//! of segments, as long as there is room in the transmit rings. Who finds none waits in the line of the port,
//! which costs nothing until there is room: a turn looks at what has happened, not at all who wait.

use std::time::Duration;

use base::Instant;

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

/// A last segment waits for room in the transmit ring for this long, then its stream is forgotten without it: a reset
/// that is lost is not sent again either.
const LAST_SEGMENT: Duration = Duration::from_secs(5);

/// How a stream's turn ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// It has nothing more to send now.
    Done,
    /// It has had its turn, may have more, and stands in line again.
    More,
    /// It had no turn because the port took nothing: it waits in the port's line.
    Blocked,
    /// It waits for the link-layer address of its next hop.
    Waiting,
    /// Its next hop does not answer.
    Unreachable,
}

impl<Io: PortIo> Core<Io> {
    /// Serves the streams in line: first those that found no room before, each port's in their order, then
    /// those to which something has happened. Returns whether there was one.
    pub(super) fn transmit(&mut self, now: Instant) -> bool {
        let before = self.counters.tx_frames.get();
        let mut busy = false;
        for port in 0..self.blocked.len() {
            for _ in 0..self.blocked[port].len() {
                busy = true;
                if self.counters.tx_frames.get() - before >= FRAMES {
                    return true;
                }
                self.bring_next_near(&self.blocked[port]);
                let Some(slot) = self.blocked[port].pop_front() else { break };
                self.report(slot, now);
                if let Some(conn) = self.conns.get_mut(slot) {
                    conn.blocked = false;
                }
                if self.serve(slot, now) == Turn::Blocked {
                    self.keep_place(port);
                    break;
                }
            }
        }
        self.bring_first_near(&self.ready);
        for _ in 0..self.ready.len() {
            busy = true;
            self.bring_next_near(&self.ready);
            let Some(slot) = self.ready.pop_front() else { break };
            // First what has come: a service's answer to it goes in this turn, with the acknowledgement.
            self.report(slot, now);
            if let Some(conn) = self.conns.get_mut(slot) {
                conn.queued = false;
            }
            self.serve(slot, now);
            if self.counters.tx_frames.get() - before >= FRAMES {
                break;
            }
        }
        busy
    }

    /// The first of a port's line found no room again, and now stands behind all others: that is undone.
    fn keep_place(&mut self, port: usize) {
        if let Some(slot) = self.blocked[port].pop_back() {
            self.blocked[port].push_front(slot);
        }
    }

    fn serve(&mut self, slot: u32, now: Instant) -> Turn {
        let Some(conn) = self.conns.get(slot) else { return Turn::Done };
        let turn = match (conn.waiting, conn.blocked) {
            (true, _) => Turn::Waiting,
            // Others were before it.
            (false, true) => Turn::Blocked,
            (false, false) => self.send_segments(slot, now),
        };
        self.look_at_path(slot, now);
        let Some(conn) = self.conns.get_mut(slot) else { return Turn::Done };
        if conn.stage == Stage::Ended
            && matches!(&conn.lower, Lower::Tcp(endpoint) if endpoint.is_done())
        {
            // Its last segment may be a reset that found no room; for a while.
            if !matches!(turn, Turn::More | Turn::Blocked) {
                self.forget(slot);
                return Turn::Done;
            }
            if turn == Turn::Blocked && conn.pending.own_deadline.get().is_none() {
                conn.pending.own_deadline = Some(now + LAST_SEGMENT).into();
            }
        }
        match turn {
            Turn::More => self.touch(slot),
            Turn::Blocked if !conn.blocked => {
                conn.blocked = true;
                self.blocked[conn.path.port()].push_back(slot);
            }
            Turn::Unreachable => self.unreachable(slot, now),
            Turn::Blocked | Turn::Done | Turn::Waiting => {}
        }
        self.set_timer(slot);
        turn
    }

    /// Asks a stream for segments. It stands in line, so that nothing more need be done here.
    pub(super) fn send_segments(&mut self, slot: u32, now: Instant) -> Turn {
        let Some(conn) = self.conns.get_mut(slot) else { return Turn::Done };
        conn.unanswered = 0;
        let (interface, next_hop) = (conn.path.interface(), conn.path.next_hop());
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
        let Some(Some(PortSlot { io, facts, .. })) = self.ports.get_mut(conn.path.port()) else {
            return Turn::Done;
        };
        let before = self.counters.tx_frames.get();
        let (peer, kept) = (conn.peer(), conn.kept());
        let Lower::Tcp(endpoint) = &mut conn.lower else { return Turn::Done };
        let kept = self.keep.count(peer, kept, endpoint.kept());
        let mut batch = Batch::new(io, &conn.path, facts.tx_checksum, QUOTA, &self.counters)
            .keeping(self.keep.limit(peer, kept));
        endpoint.poll_transmit(now, &mut batch);
        let ended = batch.ended();
        let kept = self.keep.count(peer, kept, endpoint.kept());
        conn.set_kept(kept);
        match ended {
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
        let Some(at) = endpoint.into_iter().chain(conn.pending.own_deadline.get()).min() else {
            return;
        };
        if conn.timer.get().is_none_or(|set| at < set) {
            conn.timer = Some(at).into();
            self.wheel.set(slot, at);
        }
    }
}
