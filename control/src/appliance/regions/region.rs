//! A region: what the workers know of it, and what it serves.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use dataplane::memory::Memory;
use ddp::{Access, PdId, Stag, StagEntry, StreamId, TaggedOffset};

use crate::appliance::env::{Env, Origin};
use crate::appliance::pending::NOBODY;
use crate::files::FileId;
use api::{self, RegionInfo};
use config::{Backing, RegionSection, access_word};
use ddp::advert::Advertised;

/// A region that workers know.
pub(in crate::appliance) struct Region {
    pub(super) section: RegionSection,
    /// What peers may do now: what the section says, or less.
    pub(super) access: Access,
    /// Streams have STags of their own to pieces of it.
    pub(super) pieces: u32,
    pub(super) memory: Memory,
    pub(super) len: u64,
    pub(super) stag: Stag,
    pub(super) pd: PdId,
    pub(super) state: RegionState,
    /// The stream that an exclusive region serves.
    pub(super) bound: Option<StreamId>,
    /// Since when, and when that stream was last seen to write.
    pub(super) held: Option<(Instant, Instant)>,
    /// Streams that it was advertised to.
    pub(super) users: HashSet<StreamId>,
    pub(super) file: Option<FileId>,
    /// A stream may have written to it since it was made or cleared.
    pub(super) written: bool,
    pub(super) placed: u64,
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
    /// Serves one stream at a time.
    pub(super) fn is_exclusive(&self) -> bool {
        self.section.remote_write && !self.section.shared
    }

    /// It serves this stream alone, from now on.
    pub(super) fn bind(&mut self, stream: StreamId, now: Instant) {
        self.bound = Some(stream);
        self.held = Some((now, now));
    }

    /// The stream that has it, if it has a number, and the time since it last did something.
    pub(super) fn holder(&self, now: Instant) -> Option<(Option<StreamId>, Duration)> {
        let bound = self.bound.filter(|_| self.is_exclusive())?;
        let idle =
            self.held.map_or(Duration::ZERO, |(_, active)| now.saturating_duration_since(active));
        Some((Some(bound).filter(|stream| *stream != NOBODY), idle))
    }

    /// May be given to one more stream.
    pub(super) fn is_available(&self) -> bool {
        self.is_live() && !(self.is_exclusive() && self.bound.is_some())
    }

    /// Workers know it or are about to, and it is not going.
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

    /// What peers may do with a region at most.
    pub(super) fn registered(section: &RegionSection) -> Access {
        let rights = [
            (section.remote_write, Access::REMOTE_WRITE),
            (section.remote_read, Access::REMOTE_READ),
            (section.remote_atomic, Access::ATOMIC),
        ];
        rights.into_iter().filter(|(given, _)| *given).fold(Access::NONE, |all, (_, one)| all | one)
    }

    pub(super) fn entry(&self) -> StagEntry<Memory> {
        let stream = self.is_exclusive().then(|| self.bound.unwrap_or(NOBODY));
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

    /// Name of the shared-memory object, if it is one.
    pub(super) fn object(&self) -> Option<&str> {
        match &self.section.backing {
            Backing::SharedMemory { object } => Some(object),
            _ => None,
        }
    }

    /// As operators see it, with the listeners that name it.
    pub(super) fn info(&self, now: Instant, listeners: Vec<String>) -> RegionInfo {
        let held = self.held.filter(|_| self.bound.is_some());
        let since = |at: Instant| now.saturating_duration_since(at).as_secs_f64();
        RegionInfo {
            size: self.len,
            stag: format!("{:#010x}", self.stag.0),
            access: access_word(self.access).into(),
            bound_to: self.bound.filter(|s| *s != NOBODY).map(|s| api::StreamId(s.0)),
            held_for: held.map(|(since_then, _)| since(since_then)),
            idle_for: held.map(|(_, active)| since(active)),
            locked: self.memory.is_locked(),
            listeners,
            placed: self.placed,
            messages: self.messages,
            ..declared(&self.section, self.origin)
        }
    }
}

/// A region whose memory is being made under this number.
pub(in crate::appliance) fn preparing(
    env: &Env,
    number: u64,
    section: &RegionSection,
    origin: Origin,
) -> RegionInfo {
    let preparing = env.watch(number).map(|watch| watch.percent());
    RegionInfo { preparing, ..declared(section, origin) }
}

/// A region as its section has it.
fn declared(section: &RegionSection, origin: Origin) -> RegionInfo {
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
        access: access_word(Region::registered(section)).into(),
        shared: section.shared,
        configured: origin == Origin::Configuration,
        ..RegionInfo::default()
    }
}

/// What tests look at.
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

    /// As the workers have it.
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
