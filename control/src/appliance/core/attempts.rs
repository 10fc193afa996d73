//! Handshakes of peers that failed: what workers report of them.

use dataplane::{HandshakeCount, HandshakeFailed};

use super::Core;

impl Core {
    /// A worker reports one.
    pub(super) fn on_handshake_failed(&mut self, failed: &HandshakeFailed) {
        let listener = failed.listener.and_then(|id| self.listeners.name_of(id));
        let elsewhere = match failed.listener {
            None => self.listeners.elsewhere(failed.local.port(), failed.transport),
            Some(_) => None,
        };
        self.env.handshake_failed(listener, failed, elsewhere);
    }

    /// A worker's counts.
    pub(super) fn count_handshakes(&mut self, counts: &[HandshakeCount]) {
        for HandshakeCount { listener, failure, count } in counts {
            let listener = listener.and_then(|id| self.listeners.name_of(id));
            self.env.handshakes.count(listener, *failure, *count);
        }
    }
}
