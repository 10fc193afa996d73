//! Streams pause while the control thread has not taken their events ([`super::event`]).

use super::conn::Stream;
use super::{Core, Env};
use crate::io::PortIo;

impl<Io: PortIo> Core<Io> {
    /// Streams for whose events the control thread has made room go on.
    pub(super) fn resume_streams(&mut self) {
        let Some(mut waiting) = self.env.control.waiting_streams() else { return };
        waiting.retain(|waiting| {
            let Some((mut stream, env)) = self.find(waiting.stream) else { return false };
            let pending = &mut stream.conn.pending;
            if pending.credit.waits {
                if !env.control.has_credit(&pending.credit) {
                    return true;
                }
                pending.credit.waits = false;
            }
            stream.pause(None);
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
        let exhausted = self.control.charge(&mut stream.conn.pending.credit, before);
        if exhausted && !stopping {
            self.wait(stream);
        }
    }

    /// The stream waits for credit.
    #[cold]
    fn wait(&mut self, stream: &mut Stream<'_>) {
        let pending = stream.lower().map_or(0, |lower| lower.pending_events());
        let conn = &mut *stream.conn;
        if let Some(most) = self.control.wait(conn.id, &mut conn.pending.credit, pending) {
            stream.pause(Some(most));
        }
    }
}

impl Stream<'_> {
    /// The worker takes no events of the stream, of which so many may wait, or does again.
    fn pause(&mut self, most_events: Option<u32>) {
        if let Some(mut lower) = self.lower() {
            lower.pause(most_events);
        }
    }
}
