//! Pauses streams that have used up their event credit, and resumes them when the control thread has read enough events
//! ([`crate::worker::link::event_queue`]).

use crate::io::PortIo;
use crate::worker::flows::conn::Stream;
use crate::worker::{Core, Env};

impl<Io: PortIo> Core<Io> {
    /// Resumes the paused streams that have event credit again.
    pub(in crate::worker) fn resume_streams(&mut self) {
        let Some(mut waiting) = self.env.control.take_waiting() else { return };
        waiting.retain(|waiting| {
            let Some((mut stream, env)) = self.find(waiting.stream) else { return false };
            let pending = &mut stream.conn.transient;
            if pending.credit.is_waiting {
                if !env.control.has_credit(&pending.credit) {
                    return true;
                }
                pending.credit.is_waiting = false;
            }
            stream.pause(None);
            env.make_ready(&mut stream);
            false
        });
        self.env.control.restore_waiting(waiting);
    }
}

impl<Io: PortIo> Env<Io> {
    /// Charges one credit of the stream for each event sent after event number `before`. Pauses the stream if its event
    /// credit is used up.
    pub(in crate::worker) fn charge(&mut self, stream: &mut Stream<'_>, before: u64) {
        let stopping = self.is_stopping();
        let exhausted = self.control.charge(&mut stream.conn.transient.credit, before);
        if exhausted && !stopping {
            self.pause_for_credit(stream);
        }
    }

    /// Pauses the stream until it has event credit again.
    #[cold]
    fn pause_for_credit(&mut self, stream: &mut Stream<'_>) {
        let pending = stream.lower().map_or(0, |lower| lower.pending_events());
        let conn = &mut *stream.conn;
        if let Some(most) = self.control.add_waiting(conn.id, &mut conn.transient.credit, pending) {
            stream.pause(Some(most));
        }
    }
}

impl Stream<'_> {
    /// Pauses the endpoint, which then queues at most `most_events` events. `None` resumes the endpoint.
    fn pause(&mut self, most_events: Option<u32>) {
        if let Some(mut lower) = self.lower() {
            lower.pause(most_events);
        }
    }
}
