//! Frees empty allocations of idle streams: queues of segments in flight, of held and of awaited data. A stream that
//! exchanges requests and replies needs them again soon, so over TCP they are freed only after [`IDLE_TIME`].
//!
//! A cursor visits a thousandth of the slots per millisecond, at least one. The cost is thus spread evenly over time.

use std::time::Duration;

use base::Instant;

use super::lower_layer::LowerLayer;
use crate::io::PortIo;
use crate::worker::Core;

/// Minimum interval between steps.
const STEP_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum number of steps of one round over all slots.
const STEPS_PER_ROUND: usize = 1000;
/// Time without input after which a TCP endpoint's unused allocations are freed.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// Position of the cursor in the current round.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::worker) struct Cursor {
    next_slot: usize,
    next_step_at: Instant,
}

impl<Io: PortIo> Core<Io> {
    /// Performs a step, if one is due.
    pub(in crate::worker) fn reclaim(&mut self, now: Instant) {
        if now < self.reclaim.next_step_at {
            return;
        }
        let places = self.streams.slot_count();
        if places == 0 {
            return;
        }
        self.reclaim.next_step_at = now + STEP_INTERVAL;
        for _ in 0..places.div_ceil(STEPS_PER_ROUND) {
            let slot = self.reclaim.next_slot % places;
            self.reclaim.next_slot = slot + 1;
            let Some(conn) = self.streams.get_mut(slot as u32) else { continue };
            // The state of segments in flight over SCTP belongs to the association, and the idle time of a session is
            // not known. A busy session therefore allocates its queues again, at most once per round.
            if let LowerLayer::Tcp(carrier) = &mut conn.lower {
                let endpoint = carrier.endpoint_mut();
                if now.saturating_since(endpoint.idle_since()) < IDLE_TIME {
                    continue;
                }
                endpoint.shrink(now);
            }
            conn.shrink(self.env.control.events_read());
        }
    }
}
