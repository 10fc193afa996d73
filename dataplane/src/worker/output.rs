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
        let before = self.control.counters().tx_frames.get();
        let mut busy = false;
        for port in 0..self.schedule.ports() {
            for _ in 0..self.schedule.blocked(port).len() {
                busy = true;
                if self.control.counters().tx_frames.get() - before >= FRAMES {
                    return true;
                }
                self.bring_next_near(self.schedule.blocked(port));
                let Some(slot) = self.schedule.take_blocked(port) else { break };
                self.report(slot, now);
                if let Some(conn) = self.streams.get_mut(slot) {
                    conn.scheduled.blocked_taken();
                }
                if self.serve(slot, now) == Turn::Blocked {
                    self.schedule.keep_first(port);
                    break;
                }
            }
        }
        self.bring_first_near(self.schedule.ready());
        for _ in 0..self.schedule.ready().len() {
            busy = true;
            self.bring_next_near(self.schedule.ready());
            let Some(slot) = self.schedule.take_ready() else { break };
            // First what has come: a service's answer to it goes in this turn, with the acknowledgement.
            self.report(slot, now);
            if let Some(conn) = self.streams.get_mut(slot) {
                conn.scheduled.ready_taken();
            }
            self.serve(slot, now);
            if self.control.counters().tx_frames.get() - before >= FRAMES {
                break;
            }
        }
        busy
    }

    fn serve(&mut self, slot: u32, now: Instant) -> Turn {
        let Some(conn) = self.streams.get(slot) else { return Turn::Done };
        let turn = match (conn.scheduled.is_waiting(), conn.scheduled.is_blocked()) {
            (true, _) => Turn::Waiting,
            // Others were before it.
            (false, true) => Turn::Blocked,
            (false, false) => self.send_segments(slot, now),
        };
        self.look_at_path(slot, now);
        let Some(conn) = self.streams.get_mut(slot) else { return Turn::Done };
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
            Turn::Blocked => self.schedule.block(slot, &mut conn.scheduled, conn.path.port()),
            Turn::Unreachable => self.unreachable(slot, now),
            Turn::Done | Turn::Waiting => {}
        }
        self.set_timer(slot);
        turn
    }

    /// Asks a stream for segments. It stands in line, so that nothing more need be done here.
    pub(super) fn send_segments(&mut self, slot: u32, now: Instant) -> Turn {
        let Some(conn) = self.streams.get_mut(slot) else { return Turn::Done };
        conn.unanswered = 0;
        match self.network.resolve(&conn.path, now) {
            Resolution::Known(mac) => conn.path.set_mac(mac),
            Resolution::Wait { solicit } => {
                self.control.counters().neighbour_solicitations.add(u64::from(solicit));
                let next_hop = (conn.path.interface(), conn.path.next_hop());
                self.schedule.wait(slot, &mut conn.scheduled, next_hop);
                return Turn::Waiting;
            }
            Resolution::Failed | Resolution::Full => return Turn::Unreachable,
        }
        let Some(PortSlot { io, facts, .. }) = self.ports.get_mut(conn.path.port()) else {
            return Turn::Done;
        };
        let before = self.control.counters().tx_frames.get();
        let (peer, kept) = (conn.peer(), conn.kept());
        let Lower::Tcp(endpoint) = &mut conn.lower else { return Turn::Done };
        let kept = self.tables.keep().count(peer, kept, endpoint.kept());
        let mut batch =
            Batch::new(io, &conn.path, facts.tx_checksum, QUOTA, self.control.counters())
                .keeping(self.tables.keep().limit(peer, kept));
        endpoint.poll_transmit(now, &mut batch);
        let ended = batch.ended();
        let kept = self.tables.keep().count(peer, kept, endpoint.kept());
        conn.set_kept(kept);
        match ended {
            None => Turn::Done,
            Some(ended) => {
                match ended {
                    Ended::RingFull => self.control.counters().tx_stalls.add(1),
                    Ended::NoBuffer => self.control.counters().tx_no_buffer.add(1),
                    Ended::Quota => {}
                }
                if self.control.counters().tx_frames.get() == before {
                    Turn::Blocked
                } else {
                    Turn::More
                }
            }
        }
    }

    /// Sets a stream's timer.
    pub(super) fn set_timer(&mut self, slot: u32) {
        let Some(conn) = self.streams.get_mut(slot) else { return };
        // Who cannot send now would be due again and again.
        let endpoint = match &conn.lower {
            Lower::Tcp(endpoint) if !conn.scheduled.is_waiting() => endpoint.poll_timeout(),
            _ => None,
        };
        let Some(at) = endpoint.into_iter().chain(conn.pending.own_deadline.get()).min() else {
            return;
        };
        self.schedule.set_timer(slot, &mut conn.scheduled, at);
    }
}
