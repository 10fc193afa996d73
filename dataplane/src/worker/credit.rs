//! Streams pause while the control thread has not taken their events ([`super::event`]).

use super::conn::Stream;
use super::{Core, Env};
use crate::io::PortIo;

impl<Io: PortIo> Core<Io> {
    /// Streams for whose events the control thread has made room go on.
    pub(super) fn resume_streams(&mut self) {
        let Some(mut waiting) = self.env.control.waiting_streams() else { return };
        waiting.retain(|&id| {
            let Some((mut stream, env)) = self.find(id) else { return false };
            let pending = &mut stream.conn.pending;
            if pending.credit.waits {
                if !env.control.has_credit(&pending.credit) {
                    return true;
                }
                pending.credit.waits = false;
            }
            stream.pause(false);
            env.make_ready(&mut stream);
            false
        });
        self.env.control.keep_waiting(waiting);
    }
}

impl<Io: PortIo> Env<Io> {
    /// The events since number `before` are of this stream, which is paused if it may send no more.
    pub(super) fn charge(&mut self, stream: &mut Stream<'_>, before: u64) {
        let stopping = self.is_stopping();
        let conn = &mut *stream.conn;
        let credit = &mut conn.pending.credit;
        if stopping {
            self.control.charge_unbounded(credit, before);
        } else if self.control.charge(conn.id, credit, before) {
            stream.pause(true);
        }
    }
}

impl Stream<'_> {
    /// The worker takes no events of the stream, or does again.
    fn pause(&mut self, paused: bool) {
        if let Some(mut lower) = self.lower() {
            lower.pause(paused);
        }
    }
}
