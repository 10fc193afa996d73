//! Frees empty allocations of streams that have been idle for a while (state of segments in flight, held or awaited).
//! Not at once, because a stream with requests and replies uses them again for the next request.
//!
//! A cursor visits at most a thousandth of the slots each millisecond, one at least, so that the cost is spread evenly
//! over time.

use std::time::Duration;

use base::Instant;

use super::lower_layer::LowerLayer;
use crate::io::PortIo;
use crate::worker::Core;

/// Interval between steps, at least.
const STEP_INTERVAL: Duration = Duration::from_millis(1);
/// Steps of one round, at most.
const STEPS_PER_ROUND: usize = 1000;
/// Time without input after which a TCP endpoint frees unused allocations.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// Position in the current round.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::worker) struct Cursor {
    next_slot: usize,
    next_step_at: Instant,
}

impl<Io: PortIo> Core<Io> {
    /// Moves the cursor, if a step is due.
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
            // State in flight over SCTP belongs to the association, and a session's idle time is unknown. A busy
            // session allocates its queues again, at most once a round.
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
