//! Limits on the number of a server's connections, and the selection of the connection to close for a new connection.
//!
//! A client that connects and sends no request must not lock out other clients. At a limit, the connection that has
//! been idle longest is closed for the new connection. If all connections that count towards the limit have open
//! requests, the new connection is refused.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Limits on the number of connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionBounds {
    /// Maximum number of connections.
    pub(super) total: usize,
    /// Number of the `total` connections that are reserved for privileged peers.
    pub(super) reserved: usize,
    /// Maximum number of connections of one peer that is not privileged.
    pub(super) per_peer: usize,
}

/// Peer of a connection, for the limits of [`ConnectionBounds`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Peer {
    /// Identity for [`ConnectionBounds::per_peer`]: a user id, an IPv4 address, or the /64 prefix of an IPv6 address.
    pub(super) key: u128,
    /// True if [`ConnectionBounds::total`] is the only limit on the peer's connections.
    pub(super) privileged: bool,
}

/// Activity of a connection: the number of open requests, or the time at which the connection became idle.
#[derive(Debug)]
pub(super) struct Activity(Mutex<ActivityState>);

#[derive(Debug)]
struct ActivityState {
    /// Number of requests whose response is not complete.
    open_requests: usize,
    /// Number of requests since the accept.
    requests: u64,
    /// Time at which the last response was complete, or time of the accept.
    idle_since: Instant,
}

/// An open request of a connection. Dropping this value marks the response as complete.
#[derive(Debug)]
pub(super) struct OpenRequest(Arc<Activity>);

impl Activity {
    pub(super) fn new(now: Instant) -> Arc<Activity> {
        Arc::new(Activity(Mutex::new(ActivityState {
            open_requests: 0,
            requests: 0,
            idle_since: now,
        })))
    }

    pub(super) fn begin_request(self: &Arc<Activity>) -> OpenRequest {
        self.with(|state| {
            state.open_requests += 1;
            state.requests += 1;
        });
        OpenRequest(Arc::clone(self))
    }

    /// Returns the number of requests since the accept.
    fn requests(&self) -> u64 {
        self.with(|state| state.requests)
    }

    /// Returns the time at which the connection became idle; `None` while a request is open.
    fn idle_since(&self) -> Option<Instant> {
        self.with(|state| (state.open_requests == 0).then_some(state.idle_since))
    }

    fn with<T>(&self, f: impl FnOnce(&mut ActivityState) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.with(|state| {
            state.open_requests -= 1;
            state.idle_since = Instant::now();
        });
    }
}

/// The connections of a server by identifier, each with the handle that closes the connection.
#[derive(Debug)]
pub(super) struct ConnectionSlots<I, H> {
    bounds: ConnectionBounds,
    slots: HashMap<I, Slot<H>>,
}

#[derive(Debug)]
struct Slot<H> {
    peer: Peer,
    activity: Arc<Activity>,
    handle: H,
}

/// Predicate that returns true if the connections of a peer count towards a limit.
type CountsTowards<'c> = &'c dyn Fn(&Peer) -> bool;

/// Result of [`ConnectionSlots::admit`].
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Admission<H> {
    /// The new connection is admitted. The caller must close the connections with these handles.
    Admitted(Vec<H>),
    /// The new connection is refused, because all connections that count towards a limit have open requests.
    Full,
}

impl<I: Copy + Eq + Hash, H> ConnectionSlots<I, H> {
    pub(super) fn new(bounds: ConnectionBounds) -> ConnectionSlots<I, H> {
        ConnectionSlots { bounds, slots: HashMap::new() }
    }

    /// Makes room for a new connection of `peer`. For each limit that is reached, frees the slot of the connection that
    /// has been idle longest.
    pub(super) fn admit(&mut self, peer: Peer) -> Admission<H> {
        let ConnectionBounds { total, reserved, per_peer } = self.bounds;
        let of_peer = |other: &Peer| !other.privileged && other.key == peer.key;
        let unprivileged = |other: &Peer| !other.privileged;
        let all = |_: &Peer| true;
        let bounds: &[(CountsTowards<'_>, usize)] = match peer.privileged {
            true => &[(&all, total)],
            false => &[(&of_peer, per_peer), (&unprivileged, total - reserved), (&all, total)],
        };
        let mut closed = Vec::new();
        for (counts, most) in bounds {
            let counted = || self.slots.iter().filter(|(_, place)| counts(&place.peer));
            if counted().count() < *most {
                continue;
            }
            let idle =
                counted().filter_map(|(id, place)| Some((place.activity.idle_since()?, *id)));
            let Some((_, id)) = idle.min_by_key(|(since, _)| *since) else {
                return Admission::Full;
            };
            closed.extend(self.slots.remove(&id).map(|place| place.handle));
        }
        Admission::Admitted(closed)
    }

    pub(super) fn insert(&mut self, id: I, peer: Peer, activity: Arc<Activity>, handle: H) {
        self.slots.insert(id, Slot { peer, activity, handle });
    }

    /// Frees the slot of a connection that has ended. Returns the number of requests of the connection; `None` if the
    /// slot was freed before.
    pub(super) fn remove(&mut self, id: &I) -> Option<u64> {
        Some(self.slots.remove(id)?.activity.requests())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const BOUNDS: ConnectionBounds = ConnectionBounds { total: 4, reserved: 1, per_peer: 2 };

    fn user(key: u128) -> Peer {
        Peer { key, privileged: false }
    }

    const ADMIN: Peer = Peer { key: 0, privileged: true };

    /// Inserts connection `id`, idle since `id` seconds after `start`.
    fn insert_connection(
        places: &mut ConnectionSlots<u32, u32>,
        id: u32,
        peer: Peer,
        start: Instant,
    ) -> Arc<Activity> {
        let activity = Activity::new(start + Duration::from_secs(id.into()));
        places.insert(id, peer, Arc::clone(&activity), id);
        activity
    }

    #[test]
    fn longest_idle_connection_of_peer_is_evicted() {
        let (mut places, start) = (ConnectionSlots::new(BOUNDS), Instant::now());
        let _other = insert_connection(&mut places, 1, user(8), start);
        let first = insert_connection(&mut places, 2, user(7), start);
        let _second = insert_connection(&mut places, 3, user(7), start);
        let busy = first.begin_request();
        assert_eq!(places.admit(user(7)), Admission::Admitted(vec![3]));
        assert_eq!((first.requests(), places.slots.len()), (1, 2));
        let third = insert_connection(&mut places, 4, user(7), start);
        let _more = third.begin_request();
        assert_eq!(places.admit(user(7)), Admission::Full);
        drop(busy);
        assert_eq!(places.admit(user(7)), Admission::Admitted(vec![2]));
    }

    #[test]
    fn unprivileged_peers_cannot_use_reserved_connections() {
        let (mut places, start) = (ConnectionSlots::new(BOUNDS), Instant::now());
        let held: Vec<_> =
            (1..=3).map(|id| insert_connection(&mut places, id, user(id.into()), start)).collect();
        let busy: Vec<_> = held.iter().map(Activity::begin_request).collect();
        assert_eq!(places.admit(user(9)), Admission::Full);
        assert_eq!(places.admit(ADMIN), Admission::Admitted(vec![]));
        let admin = insert_connection(&mut places, 4, ADMIN, start);
        let at_work = admin.begin_request();
        assert_eq!(places.admit(ADMIN), Admission::Full);
        drop(busy);
        assert!(matches!(places.admit(ADMIN), Admission::Admitted(closed) if closed.len() == 1));
        drop(at_work);
    }

    #[test]
    fn ended_connection_frees_its_slot() {
        let (mut places, start) = (ConnectionSlots::new(BOUNDS), Instant::now());
        let busy: Vec<_> = (1..=2)
            .map(|id| insert_connection(&mut places, id, user(7), start).begin_request())
            .collect();
        assert_eq!(places.admit(user(7)), Admission::Full);
        assert_eq!((places.remove(&1), places.remove(&1)), (Some(1), None));
        assert_eq!(places.admit(user(7)), Admission::Admitted(vec![]));
        drop(busy);
    }
}
