//! Memory windows of a program at one worker. A window gives peers rights to a part of a memory region, under a
//! separate STag, from its binding until its invalidation.
//!
//! ```text
//!  STag of a binding:  | 24 bits: window | 8 bits: key, chosen by the program |
//!
//!            type 2: only the QP that binds it               type 1: all QPs of the domain, at all workers
//!  unbound --bind--> bound --invalidation, end of QP-->      unbound --bind--> bound --bind--> bound
//!                                              unbound                  <--bind of 0 bytes--
//! ```
//!
//! Each worker has its own bindings. A type 2 window is bound only at the worker of its QP. This worker cannot detect
//! that another worker has bound the window, too. A second binding is harmless: it gives only the program's own peers
//! rights to the program's own memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ddp::{Access, PdId, RegionMemory, Stag, StagEntry, StreamId, TaggedOffset};
use verbs_layout::work::{Status, WindowAccess, WindowBind};

use crate::api::{CommandError, WindowId, WindowKind};
use crate::worker::flows::tables::Tables;

#[derive(Default)]
pub(super) struct Windows {
    windows: HashMap<WindowId, Window>,
    /// Bound windows of each region, never an empty set.
    of_regions: BTreeMap<Stag, BTreeSet<WindowId>>,
    /// Bound type 2 windows of each QP, by the QP's number, never an empty set.
    of_pairs: BTreeMap<u32, BTreeSet<WindowId>>,
    /// Number of the last request that binds a type 1 window, modulo 2³². The control thread's answer quotes the
    /// request's number, so that a QP ignores an answer to an earlier request.
    sequence: u32,
}

struct Window {
    pd: PdId,
    kind: WindowKind,
    binding: Option<Binding>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Binding {
    /// STag of the window while it is bound.
    pub(super) stag: Stag,
    region: Stag,
    /// The QP of a type 2 window, with its stream.
    pub(super) pair: Option<BoundPair>,
}

/// A QP with its stream, to which a type 2 window is bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BoundPair {
    pub(super) number: u32,
    pub(super) stream: StreamId,
}

impl Windows {
    /// Adds an unbound window.
    ///
    /// # Errors
    /// The window exists.
    pub(super) fn add(
        &mut self,
        window: WindowId,
        pd: PdId,
        kind: WindowKind,
    ) -> Result<(), CommandError> {
        if self.windows.contains_key(&window) {
            return Err(CommandError::Window);
        }
        self.windows.insert(window, Window { pd, kind, binding: None });
        Ok(())
    }

    /// Removes a window. Returns its binding, which has ended.
    ///
    /// # Errors
    /// The window does not exist.
    pub(super) fn remove(
        &mut self,
        window: WindowId,
        tables: &mut Tables,
    ) -> Result<Option<Binding>, CommandError> {
        let ended = self.unbind(window, tables);
        self.windows.remove(&window).ok_or(CommandError::Window)?;
        Ok(ended)
    }

    /// Returns a number for a request that binds a type 1 window.
    pub(super) fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    /// Returns true if the STag belongs to a window, bound or not.
    pub(super) fn contains(&self, stag: Stag) -> bool {
        !self.windows.is_empty() && self.windows.contains_key(&WindowId::of(stag))
    }

    /// Returns the domain and the type of a window; `None` if it does not exist.
    pub(super) fn find(&self, window: WindowId) -> Option<(PdId, WindowKind)> {
        self.windows.get(&window).map(|window| (window.pd, window.kind))
    }

    /// Binds a window to a part of a region. A bind of a type 1 window to 0 bytes only unbinds it. `pair`: the QP of
    /// the request for a type 2 window, `None` for a type 1 window. Returns the binding that has ended.
    ///
    /// # Errors
    /// The status of the request. The binding does not change.
    pub(super) fn bind(
        &mut self,
        bind: &WindowBind,
        pd: PdId,
        pair: Option<BoundPair>,
        tables: &mut Tables,
    ) -> Result<Option<Binding>, Status> {
        let entry = self.check(bind, pd, pair, tables)?;
        let window = WindowId::of(Stag(bind.window));
        let ended = self.unbind(window, tables);
        let Some(entry) = entry else { return Ok(ended) };
        let (stag, region) = (entry.stag, Stag(bind.region));
        // Cannot fail: `check` has accepted the request, and the STags of a window belong to no other entry.
        tables.add_stag(entry).map_err(|_| Status::WindowBind)?;
        if let Some(window) = self.windows.get_mut(&window) {
            window.binding = Some(Binding { stag, region, pair });
        }
        self.of_regions.entry(region).or_default().insert(window);
        if let Some(pair) = pair {
            self.of_pairs.entry(pair.number).or_default().insert(window);
        }
        Ok(ended)
    }

    /// Checks a bind request without changing anything. Returns the entry of the new binding; `None` to unbind only.
    pub(super) fn check(
        &self,
        bind: &WindowBind,
        pd: PdId,
        pair: Option<BoundPair>,
        tables: &Tables,
    ) -> Result<Option<StagEntry<crate::memory::Memory>>, Status> {
        let window = self.windows.get(&WindowId::of(Stag(bind.window)));
        let window = window.filter(|window| window.pd == pd).ok_or(Status::WindowBind)?;
        match (window.kind, pair) {
            (WindowKind::One, None) if bind.len == 0 => return Ok(None),
            (WindowKind::One, None) => {}
            (WindowKind::Two, Some(_)) if window.binding.is_none() && bind.len > 0 => {}
            _ => return Err(Status::WindowBind),
        }
        let region = tables.stag(Stag(bind.region));
        let region = region.filter(|region| region.pd == pd && !self.contains(region.stag));
        let region = region.ok_or(Status::WindowBind)?;
        let at = bind.address.checked_sub(region.base_to.0);
        let fits = |at: &u64| at.checked_add(bind.len).is_some_and(|end| end <= region.len);
        let at = at.filter(fits).ok_or(Status::WindowBind)?;
        let access = rights(bind.access);
        let writes = access.remote_write() || access.atomic();
        if writes && !region.memory.is_writable() {
            return Err(Status::WindowBind);
        }
        Ok(Some(StagEntry {
            stag: Stag(bind.window),
            pd,
            stream: pair.map(|pair| pair.stream),
            base_to: TaggedOffset(if bind.access.zero_based { 0 } else { bind.address }),
            len: bind.len,
            access,
            memory: region.memory.clone(),
            memory_offset: region.memory_offset + at,
        }))
    }

    /// Invalidates a type 2 window at the request of its QP `pair_number`. Returns the binding that has ended.
    ///
    /// # Errors
    /// The status of the request: `LocalProtection` if the STag does not exist in the domain `pd`, `WindowBind` if it
    /// is not the STag of a window bound to the QP.
    pub(super) fn invalidate(
        &mut self,
        stag: Stag,
        pd: PdId,
        pair_number: u32,
        tables: &mut Tables,
    ) -> Result<Option<Binding>, Status> {
        let Some(window) = self.windows.get(&WindowId::of(stag)) else {
            let is_own = tables.stag(stag).is_some_and(|entry| entry.pd == pd);
            return Err(if is_own { Status::WindowBind } else { Status::LocalProtection });
        };
        if window.pd != pd {
            return Err(Status::LocalProtection);
        }
        if !window.binding.is_some_and(|binding| binding.is_of(stag, pair_number)) {
            return Err(Status::WindowBind);
        }
        Ok(self.unbind(WindowId::of(stag), tables))
    }

    /// Unbinds a window that the peer of the QP `pair_number` has invalidated. Ignores an STag that does not belong to
    /// a window bound to this QP.
    pub(super) fn on_invalidated(&mut self, stag: Stag, pair_number: u32, tables: &mut Tables) {
        let window = self.windows.get(&WindowId::of(stag));
        let binding = window.and_then(|window| window.binding);
        if binding.is_some_and(|binding| binding.is_of(stag, pair_number)) {
            self.unbind(WindowId::of(stag), tables);
        }
    }

    /// Unbinds the windows that are bound to a QP, whose stream has ended.
    pub(super) fn release_pair(&mut self, pair_number: u32, tables: &mut Tables) {
        for window in self.of_pairs.get(&pair_number).cloned().unwrap_or_default() {
            self.unbind(window, tables);
        }
    }

    /// Unbinds the windows on a region that is being removed. Returns the bindings that have ended.
    pub(super) fn release_region(&mut self, region: Stag, tables: &mut Tables) -> Vec<Binding> {
        let windows = self.of_regions.get(&region).cloned().unwrap_or_default();
        windows.into_iter().filter_map(|window| self.unbind(window, tables)).collect()
    }

    /// Unbinds at most `most` windows. Returns true if no window is bound any more.
    pub(super) fn release_some(&mut self, most: usize, tables: &mut Tables) -> bool {
        for _ in 0..most {
            let bound = self.of_regions.first_key_value();
            let Some(&window) = bound.and_then(|(_, windows)| windows.first()) else { return true };
            self.unbind(window, tables);
        }
        self.of_regions.is_empty()
    }

    /// Returns true if a window is bound to the region.
    pub(super) fn has_windows_on(&self, region: Stag) -> bool {
        self.of_regions.contains_key(&region)
    }

    /// Ends the binding of a window, and returns it. This worker then places no further data through the binding's
    /// STag.
    fn unbind(&mut self, window: WindowId, tables: &mut Tables) -> Option<Binding> {
        let ended = self.windows.get_mut(&window)?.binding.take()?;
        // An error is impossible: the binding has put the STag into the table.
        let _entry = tables.remove_stag(ended.stag);
        if let Some(windows) = self.of_regions.get_mut(&ended.region) {
            windows.remove(&window);
            if windows.is_empty() {
                self.of_regions.remove(&ended.region);
            }
        }
        if let Some(pair) = ended.pair
            && let Some(windows) = self.of_pairs.get_mut(&pair.number)
        {
            windows.remove(&window);
            if windows.is_empty() {
                self.of_pairs.remove(&pair.number);
            }
        }
        Some(ended)
    }
}

impl Binding {
    /// Returns true for the binding of a type 2 window with this STag to the QP `pair_number`.
    fn is_of(&self, stag: Stag, pair_number: u32) -> bool {
        self.stag == stag && self.pair.is_some_and(|bound| bound.number == pair_number)
    }
}

/// Converts the access rights of a bind request to the rights of peers in an entry of the STag table.
fn rights(access: WindowAccess) -> Access {
    let WindowAccess { remote_write, remote_read, remote_atomic, zero_based: _ } = access;
    let rights = [
        (remote_write, Access::REMOTE_WRITE),
        (remote_read, Access::REMOTE_READ),
        (remote_atomic, Access::ATOMIC),
    ];
    let granted = rights.into_iter().filter(|(is_granted, _)| *is_granted);
    granted.fold(Access::NONE, |all, (_, right)| all | right)
}
