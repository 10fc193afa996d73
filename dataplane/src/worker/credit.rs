//! Streams pause while the control thread has not taken their events ([`super::event`]).

use super::Core;
use super::lower::Lower;
use crate::io::PortIo;

impl<Io: PortIo> Core<Io> {
    /// The events since number `before` are of this stream, which is paused if it may send no more.
    pub(super) fn charge(&mut self, slot: u32, before: u64) {
        let stopping = self.is_stopping();
        let Some(conn) = self.streams.get_mut(slot) else { return };
        let credit = &mut conn.pending.credit;
        if stopping {
            self.control.charge_unbounded(credit, before);
        } else if self.control.charge(conn.id, credit, before) {
            self.pause(slot, true);
        }
    }

    /// Streams for whose events the control thread has made room go on.
    pub(super) fn resume_streams(&mut self) {
        let Some(mut waiting) = self.control.waiting_streams() else { return };
        waiting.retain(|&id| {
            let Some(slot) = self.streams.find(id) else { return false };
            let Some(conn) = self.streams.get_mut(slot) else { return false };
            if conn.pending.credit.waits && !self.control.has_credit(&conn.pending.credit) {
                return true;
            }
            if conn.pending.credit.waits {
                conn.pending.credit.waits = false;
            }
            self.pause(slot, false);
            self.touch(slot);
            false
        });
        self.control.keep_waiting(waiting);
    }

    /// The worker takes no events of a stream, or does again.
    fn pause(&mut self, slot: u32, paused: bool) {
        let Some(conn) = self.streams.get_mut(slot) else { return };
        match &mut conn.lower {
            Lower::Tcp(endpoint) => endpoint.pause(paused),
            Lower::Sctp(session) => {
                if let Some(endpoint) = self.associations.endpoint_mut(session.association) {
                    endpoint.pause_session(session.id, paused);
                }
            }
        }
    }
}
