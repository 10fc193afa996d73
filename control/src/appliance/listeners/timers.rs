//! Timers of the listeners' services, one per listener.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use dataplane::ListenerId;

/// Expiry of each set timer, by the first number of its listener, which identifies the listener.
#[derive(Default)]
pub(super) struct ServiceTimers {
    timers: HashMap<ListenerId, Instant>,
    /// The set timers, earliest first.
    order: BTreeSet<(Instant, ListenerId)>,
}

impl ServiceTimers {
    /// Sets or clears the timer of a listener.
    pub(super) fn set(&mut self, id: ListenerId, expiry: Option<Instant>) {
        let old = match expiry {
            Some(expiry) => self.timers.insert(id, expiry),
            None => self.timers.remove(&id),
        };
        if old != expiry {
            if let Some(old) = old {
                self.order.remove(&(old, id));
            }
            self.order.extend(expiry.map(|expiry| (expiry, id)));
        }
    }

    /// Returns the earliest expiry. `None` if no timer is set.
    pub(super) fn next(&self) -> Option<Instant> {
        self.order.first().map(|&(expiry, _)| expiry)
    }

    /// Clears the timers that have expired by `now`. Returns their listeners, earliest first.
    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<ListenerId> {
        let mut expired = Vec::new();
        while let Some(&(expiry, id)) = self.order.first()
            && expiry <= now
        {
            self.order.pop_first();
            self.timers.remove(&id);
            expired.push(id);
        }
        expired
    }
}
