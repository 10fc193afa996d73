//! Transmits the packets of associations, and handles their timers and next hops that do not answer.

use std::time::Duration;

use base::Instant;

use crate::api::ConnectError;
use crate::io::PortIo;
use crate::worker::Core;
use crate::worker::flows::schedule::{CarrierKind, Queue};
use crate::worker::transmit::output::ServeOutcome;

/// Interval at which an association tries to resolve an unreachable next hop again.
const RESOLVE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl<Io: PortIo> Core<Io> {
    /// Serves an association that was taken from a queue of the schedule.
    pub(in crate::worker) fn serve_association(
        &mut self,
        slot: u32,
        queue: Queue,
        now: Instant,
    ) -> ServeOutcome {
        // Received data is reported before transmission, so that a service's answer is sent together with the
        // acknowledgement.
        self.report_association(slot, now);
        let Some(association) = self.associations.get_mut(slot) else { return ServeOutcome::Done };
        association.carrier.membership_mut().clear_queued(queue);
        let outcome = self.env.poll_carrier(slot, &mut association.carrier, now);
        self.report_association(slot, now);
        self.check_evictable(slot);
        let Some(association) = self.associations.get_mut(slot) else { return ServeOutcome::Done };
        // The last packet was sent, or the transmit ring had no room for it until the time-out.
        if association.endpoint().is_done() {
            self.remove_association(slot);
            return ServeOutcome::Done;
        }
        if outcome == ServeOutcome::Unreachable {
            self.handle_association_unreachable(slot, now);
            return outcome;
        }
        self.env.requeue(slot, &mut association.carrier, outcome);
        association.carrier.set_timer(
            slot,
            self.env.schedules.get_mut(CarrierKind::Association),
            None,
        );
        if association.stalled {
            self.check_association_progress(slot, now);
        }
        outcome
    }

    /// Handles a timer of an association that has expired.
    pub(in crate::worker) fn handle_association_timer(&mut self, slot: u32, now: Instant) {
        let Some(association) = self.associations.get_mut(slot) else { return };
        let (carrier, env) = (&mut association.carrier, &mut self.env);
        carrier.clear_fired_timer(now);
        if carrier.endpoint().poll_timeout().is_some_and(|due| due <= now) {
            carrier.endpoint_mut().handle_timeout(now, &mut env.tables.session_context());
            carrier.adopt_path_mtu(&mut env.network, now);
        }
        carrier.check_neighbour(&mut env.network, now);
        carrier.make_ready(slot, env.schedules.get_mut(CarrierKind::Association));
        self.check_association_progress(slot, now);
    }

    /// Handles a next hop that does not answer. An association that is opening is aborted and removed. An established
    /// association continues until its own time-outs. Its next hop is resolved again after [`RESOLVE_RETRY_INTERVAL`].
    pub(in crate::worker) fn handle_association_unreachable(&mut self, slot: u32, now: Instant) {
        let Some(association) = self.associations.get_mut(slot) else { return };
        if association.is_opening() {
            self.fail_opening_association(slot, &ConnectError::Unreachable);
            // An ABORT cannot be sent either, so the association is removed at once.
            return self.remove_association(slot);
        }
        association.carrier.plan_retry(now + RESOLVE_RETRY_INTERVAL);
        association.carrier.set_timer(
            slot,
            self.env.schedules.get_mut(CarrierKind::Association),
            None,
        );
    }
}
