//! Tables of the appliance's objects, ordered by key.
//!
//! The work of an operation on one object must not grow with the number of objects. Tests therefore count each entry
//! that an iteration visits ([`visits`]). A look-up by key does not count.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Bound;

/// A map of objects, sorted by key. In tests it counts the entries that iterations visit.
#[derive(Debug)]
pub(super) struct Objects<K, V>(BTreeMap<K, V>);

impl<K, V> Default for Objects<K, V> {
    fn default() -> Self {
        Objects(BTreeMap::new())
    }
}

impl<K: Ord, V> Objects<K, V> {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.get(key)
    }

    pub(super) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.0.get_mut(key)
    }

    pub(super) fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.0.contains_key(key)
    }

    /// Inserts an object. Returns the previous object of the key. `None` if there was none.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.0.insert(key, value)
    }

    pub(super) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.0.remove(key)
    }

    /// Returns all objects, ordered by key.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().inspect(|_| count_visit())
    }

    /// Returns the objects whose keys are greater than `after`, ordered by key.
    pub(super) fn after<'a, Q: Ord + ?Sized>(
        &'a self,
        after: Option<&Q>,
    ) -> impl Iterator<Item = (&'a K, &'a V)> + use<'a, K, V, Q>
    where
        K: Borrow<Q>,
    {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.0.range((begin, Bound::Unbounded)).inspect(|_| count_visit())
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

#[cfg(not(test))]
fn count_visit() {}

#[cfg(test)]
thread_local! {
    static VISITS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
fn count_visit() {
    VISITS.with(|visits| visits.set(visits.get() + 1));
}

/// Returns the number of entries that iterations of this thread have visited.
#[cfg(test)]
pub(super) fn visits() -> u64 {
    VISITS.with(std::cell::Cell::get)
}
