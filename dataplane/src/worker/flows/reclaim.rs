//! Frees empty allocations of streams that have been idle for a while (state of segments in flight, held or awaited).
//! Not at once, because a stream with requests and replies uses them again for the next request.
//!
//! A cursor visits at most a thousandth of the slots each millisecond, one at least, so that the cost is spread evenly
//! over time.

use std::time::Duration;

use base::Instant;

use super::lower::Lower;
use crate::io::PortIo;
use crate::worker::Core;

/// Interval between steps, at least.
const STEP: Duration = Duration::from_millis(1);
/// Steps of one round, at most.
const ROUND: usize = 1000;
/// Time without input after which a TCP endpoint frees unused allocations.
const SILENCE: Duration = Duration::from_secs(1);

/// Position in the current round.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::worker) struct Cursor {
    next: usize,
    moves_at: Instant,
}

impl<Io: PortIo> Core<Io> {
    /// Moves the cursor, if a step is due.
    pub(in crate::worker) fn reclaim(&mut self, now: Instant) {
        if now < self.reclaim.moves_at {
            return;
        }
        let places = self.streams.places();
        if places == 0 {
            return;
        }
        self.reclaim.moves_at = now + STEP;
        for _ in 0..places.div_ceil(ROUND) {
            let slot = self.reclaim.next % places;
            self.reclaim.next = slot + 1;
            let Some(conn) = self.streams.get_mut(slot as u32) else { continue };
            // State in flight over SCTP belongs to the association, and a session's idle time is unknown. A busy
            // session allocates its queues again, at most once a round.
            if let Lower::Tcp(carrier) = &mut conn.lower {
                let endpoint = carrier.endpoint_mut();
                if now.saturating_since(endpoint.idle_since()) < SILENCE {
                    continue;
                }
                endpoint.shrink(now);
            }
            conn.shrink(self.env.control.events_taken());
        }
    }
}
