//! A region: its registration at the workers, and the streams that use it.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use api::{self, RegionInfo};
use config::{Backing, RegionSection, access_word};
use dataplane::memory::Memory;
use ddp::advert::Advertised;
use ddp::{Access, PdId, Stag, StagEntry, StreamId, TaggedOffset};

use crate::appliance::env::{Env, Origin};
use crate::appliance::pending::NO_STREAM;
use crate::files::FileId;

/// A region that is registered with the workers.
pub(in crate::appliance) struct Region {
    pub(super) section: RegionSection,
    /// Current access of peers: the access of the section, or a part of it.
    pub(super) access: Access,
    /// Number of slots in use, each with its own STag.
    pub(super) slots: u32,
    pub(super) memory: Memory,
    /// Length, bytes.
    pub(super) len: u64,
    pub(super) stag: Stag,
    pub(super) pd: PdId,
    pub(super) state: RegionState,
    /// Stream to which an exclusive region is bound, or `NO_STREAM` while the region is reserved for a stream whose
    /// number is not known yet. `None` if the region is available.
    pub(super) bound: Option<StreamId>,
    /// Time at which the stream was bound, and time of its last delivery to the region. Both are equal before the first
    /// delivery.
    pub(super) held_since: Option<(Instant, Instant)>,
    /// Streams that use the region: it was advertised to them, or they have a slot of it.
    pub(super) users: HashSet<StreamId>,
    /// File of a file-backed region.
    pub(super) file: Option<FileId>,
    /// True once the region was bound to a stream whose peer may write, or a job has written to it. Never reset, so
    /// that the region is cleared before each further peer.
    pub(super) written: bool,
    /// Bytes of delivered tagged messages.
    pub(super) placed: u64,
    /// Number of delivered tagged messages.
    pub(super) messages: u64,
    pub(super) origin: Origin,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RegionState {
    Adding,
    Active,
    Removing,
    Closing,
}

impl Region {
    /// Returns true if the region serves one stream at a time.
    pub(super) fn is_exclusive(&self) -> bool {
        self.section.remote_write && !self.section.shared
    }

    /// Binds the region to a stream.
    pub(super) fn bind(&mut self, stream: StreamId, now: Instant) {
        self.bound = Some(stream);
        self.held_since = Some((now, now));
    }

    /// Returns the stream to which the region is bound (`None` if its number is not known yet), and the time since its
    /// last activity. Returns `None` if the region is not exclusive or not bound.
    pub(super) fn holder(&self, now: Instant) -> Option<(Option<StreamId>, Duration)> {
        let bound = self.bound.filter(|_| self.is_exclusive())?;
        let idle = self
            .held_since
            .map_or(Duration::ZERO, |(_, active)| now.saturating_duration_since(active));
        Some((Some(bound).filter(|stream| *stream != NO_STREAM), idle))
    }

    /// Returns true if another stream can use the region now.
    pub(super) fn is_available(&self) -> bool {
        self.is_live() && !(self.is_exclusive() && self.bound.is_some())
    }

    /// Returns true if the region is registered or being registered with the workers.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, RegionState::Adding | RegionState::Active)
    }

    pub(super) fn advertised(&self) -> Advertised {
        Advertised {
            name: self.section.name.clone(),
            stag: self.stag.0,
            base_to: self.section.base_to,
            len: self.len,
            remote_write: self.access.remote_write(),
            remote_read: self.access.remote_read(),
            remote_atomic: self.access.atomic(),
            busy: false,
        }
    }

    /// Returns the maximum access of peers: the access of the section.
    pub(super) fn max_access(section: &RegionSection) -> Access {
        let rights = [
            (section.remote_write, Access::REMOTE_WRITE),
            (section.remote_read, Access::REMOTE_READ),
            (section.remote_atomic, Access::ATOMIC),
        ];
        rights.into_iter().filter(|(given, _)| *given).fold(Access::NONE, |all, (_, one)| all | one)
    }

    pub(super) fn entry(&self) -> StagEntry<Memory> {
        let stream = self.is_exclusive().then(|| self.bound.unwrap_or(NO_STREAM));
        StagEntry {
            stag: self.stag,
            pd: self.pd,
            stream,
            base_to: TaggedOffset(self.section.base_to),
            len: self.len,
            access: self.access,
            memory: self.memory.clone(),
            memory_offset: 0,
        }
    }

    /// Returns the name of the shared-memory object, if the region is backed by such an object.
    pub(super) fn object_name(&self) -> Option<&str> {
        match &self.section.backing {
            Backing::SharedMemory { object } => Some(object),
            _ => None,
        }
    }

    /// Describes the region for the API. `listeners`: names of the listeners that list it.
    pub(super) fn info(&self, now: Instant, listeners: Vec<String>) -> RegionInfo {
        let held = self.held_since.filter(|_| self.bound.is_some());
        let since = |at: Instant| now.saturating_duration_since(at).as_secs_f64();
        RegionInfo {
            size: self.len,
            stag: format!("{:#010x}", self.stag.0),
            access: access_word(self.access).into(),
            bound_to: self.bound.filter(|s| *s != NO_STREAM).map(|s| api::StreamId(s.0)),
            held_for: held.map(|(since_then, _)| since(since_then)),
            idle_for: held.map(|(_, active)| since(active)),
            locked: self.memory.is_locked(),
            listeners,
            placed: self.placed,
            messages: self.messages,
            ..declared_info(&self.section, self.origin)
        }
    }
}

/// Describes a region whose memory is being created by request `number`.
pub(in crate::appliance) fn preparing_info(
    env: &Env,
    number: u64,
    section: &RegionSection,
    origin: Origin,
) -> RegionInfo {
    let preparing = env.watch(number).map(|watch| watch.percent());
    RegionInfo { preparing, ..declared_info(section, origin) }
}

/// Describes a region by its section alone.
fn declared_info(section: &RegionSection, origin: Origin) -> RegionInfo {
    let (backing, path) = match &section.backing {
        Backing::Anonymous => ("anonymous", None),
        Backing::Hugepages => ("hugepages", None),
        Backing::SharedMemory { object } => ("shared-memory", Some(object.clone())),
        Backing::File { path, .. } => ("file", Some(path.display().to_string())),
    };
    RegionInfo {
        name: section.name.clone(),
        size: section.size.unwrap_or(0),
        backing: backing.into(),
        path,
        stag: "-".into(),
        base_to: section.base_to.to_string(),
        access: access_word(Region::max_access(section)).into(),
        shared: section.shared,
        configured: origin == Origin::Configuration,
        ..RegionInfo::default()
    }
}

/// Accessors for tests.
#[cfg(test)]
impl Region {
    pub(in crate::appliance) fn section(&self) -> &RegionSection {
        &self.section
    }

    pub(in crate::appliance) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(in crate::appliance) fn stag(&self) -> Stag {
        self.stag
    }

    pub(in crate::appliance) fn pd(&self) -> PdId {
        self.pd
    }

    pub(in crate::appliance) fn bound(&self) -> Option<StreamId> {
        self.bound
    }

    pub(in crate::appliance) fn messages(&self) -> u64 {
        self.messages
    }

    /// Returns the access in the entry that the workers use.
    pub(in crate::appliance) fn known_access(&self) -> Access {
        self.entry().access
    }

    pub(in crate::appliance) fn serves_one_stream(&self) -> bool {
        self.is_exclusive()
    }

    pub(in crate::appliance) fn is_written(&self) -> bool {
        self.written
    }
}
