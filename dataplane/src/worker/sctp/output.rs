//! Serving an association, and the follow-up for its sessions.

use std::time::Duration;

use base::Instant;

use crate::api::ConnectError;
use crate::io::PortIo;
use crate::worker::Core;
use crate::worker::flows::schedule::{CarrierKind, Queue};
use crate::worker::transmit::output::Turn;

/// Time after which an association resolves an unreachable next hop again.
const RETRY: Duration = Duration::from_secs(1);

impl<Io: PortIo> Core<Io> {
    /// Serves an association that was taken out of a queue.
    pub(in crate::worker) fn serve_association(
        &mut self,
        at: u32,
        queue: Queue,
        now: Instant,
    ) -> Turn {
        // Received data are reported first: a service's answer to them is then sent with the acknowledgement.
        self.report_association(at, now);
        let Some(association) = self.associations.get_mut(at) else { return Turn::Done };
        association.carrier.scheduled().taken(queue);
        let turn = self.env.poll(at, &mut association.carrier, now);
        self.report_association(at, now);
        self.check_leaving(at);
        let Some(association) = self.associations.get_mut(at) else { return Turn::Done };
        // The last packet was sent, or found no room for too long.
        if association.endpoint().is_done() {
            self.forget_association(at);
            return Turn::Done;
        }
        if turn == Turn::Unreachable {
            self.association_unreachable(at, now);
            return turn;
        }
        self.env.queue(at, &mut association.carrier, turn);
        association.carrier.set_timer(at, self.env.schedules.of(CarrierKind::Association), None);
        if association.stalled {
            self.check_progress_of(at, now);
        }
        turn
    }

    /// Handles an association's timer that is due.
    pub(in crate::worker) fn association_timer(&mut self, at: u32, now: Instant) {
        let Some(association) = self.associations.get_mut(at) else { return };
        let (carrier, env) = (&mut association.carrier, &mut self.env);
        carrier.timer_fired(now);
        if carrier.endpoint().poll_timeout().is_some_and(|due| due <= now) {
            carrier.endpoint_mut().handle_timeout(now, &mut env.tables.session_context());
            carrier.timed_out(&mut env.network, now);
        }
        carrier.check_neighbour(&mut env.network, now);
        carrier.make_ready(at, env.schedules.of(CarrierKind::Association));
        self.check_progress_of(at, now);
    }

    /// Handles a next hop that does not answer: an association that is opening is given up; an established one waits
    /// for its own time-outs, and its next hop is resolved again after [`RETRY`].
    pub(in crate::worker) fn association_unreachable(&mut self, at: u32, now: Instant) {
        let Some(association) = self.associations.get_mut(at) else { return };
        if association.is_opening() {
            self.give_up_association(at, &ConnectError::Unreachable);
            // The ABORT cannot be sent either.
            return self.forget_association(at);
        }
        association.carrier.retry_at(now + RETRY);
        association.carrier.set_timer(at, self.env.schedules.of(CarrierKind::Association), None);
    }
}
