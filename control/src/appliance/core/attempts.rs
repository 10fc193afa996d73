//! Failed passive handshakes that workers report.

use dataplane::{FailedHandshake, HandshakeCount};

use super::Core;

impl Core {
    /// Reports a failed handshake to the operator. If no listener has the port, the hint names a listener with the same
    /// port over the other transport.
    pub(super) fn on_handshake_failed(&mut self, failed: &FailedHandshake) {
        let listener = failed.listener.and_then(|id| self.listeners.name_of(id));
        let elsewhere = match failed.listener {
            None => self.listeners.on_other_transport(failed.local.port(), failed.transport),
            Some(_) => None,
        };
        self.env.report_failed_handshake(listener, failed, elsewhere);
    }

    /// Adds a worker's counts of failed handshakes to the totals per listener.
    pub(super) fn count_handshakes(&mut self, counts: &[HandshakeCount]) {
        for HandshakeCount { listener, failure, count } in counts {
            let listener = listener.and_then(|id| self.listeners.name_of(id));
            self.env.handshakes.count(listener, *failure, *count);
        }
    }
}
