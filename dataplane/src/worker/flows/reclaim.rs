//! Frees empty allocations of idle streams: queues of segments in flight, of received data, and of operations. A stream
//! that exchanges requests and replies needs these queues again soon, so over TCP they are freed only after
//! [`IDLE_TIME`].
//!
//! Each millisecond, a cursor visits a thousandth of the slots, at least one. The cost is thus spread evenly over time.

use std::time::Duration;

use base::Instant;

use super::lower_layer::LowerLayer;
use crate::io::PortIo;
use crate::worker::Core;

/// Minimum interval between two steps of the cursor.
const STEP_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum number of steps in which the cursor visits all slots.
const STEPS_PER_ROUND: usize = 1000;
/// Time without input after which the unused allocations of a TCP endpoint are freed.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// Next slot to visit, and the time of the next step.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::worker) struct Cursor {
    next_slot: usize,
    next_step_at: Instant,
}

impl<Io: PortIo> Core<Io> {
    /// Visits the next slots, if a step is due.
    pub(in crate::worker) fn reclaim(&mut self, now: Instant) {
        if now < self.reclaim.next_step_at {
            return;
        }
        let slots = self.streams.slot_count();
        if slots == 0 {
            return;
        }
        self.reclaim.next_step_at = now + STEP_INTERVAL;
        for _ in 0..slots.div_ceil(STEPS_PER_ROUND) {
            let slot = self.reclaim.next_slot % slots;
            self.reclaim.next_slot = slot + 1;
            let Some(conn) = self.streams.get_mut(slot as u32) else { continue };
            // Over SCTP, segments in flight belong to the association, and the idle time of a session is unknown. Empty
            // queues are therefore freed even if the session is busy. A busy session allocates them again, at most once
            // per round.
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
