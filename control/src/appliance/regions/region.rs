//! A region: what the workers know of it, and what it serves.

use std::collections::HashSet;

use dataplane::memory::Memory;
use ddp::{Access, PdId, Stag, StagEntry, StreamId, TaggedOffset};

use crate::advert::Advertised;
use crate::api::{self, RegionInfo};
use crate::appliance::env::Origin;
use crate::appliance::pending::NOBODY;
use crate::config::{Backing, RegionSection};
use crate::files::FileId;

/// A region that workers know.
pub(in crate::appliance) struct Region {
    pub(super) section: RegionSection,
    pub(super) memory: Memory,
    pub(super) len: u64,
    pub(super) stag: Stag,
    pub(super) pd: PdId,
    pub(super) state: RegionState,
    /// The stream that an exclusive region serves.
    pub(super) bound: Option<StreamId>,
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
            remote_write: self.section.remote_write,
            remote_read: self.section.remote_read,
            remote_atomic: self.section.remote_atomic,
        }
    }

    pub(super) fn entry(&self) -> StagEntry<Memory> {
        let mut access = Access::NONE;
        if self.section.remote_write {
            access |= Access::REMOTE_WRITE;
        }
        if self.section.remote_read {
            access |= Access::REMOTE_READ;
        }
        if self.section.remote_atomic {
            access |= Access::ATOMIC;
        }
        let stream = self.is_exclusive().then(|| self.bound.unwrap_or(NOBODY));
        StagEntry {
            stag: self.stag,
            pd: self.pd,
            stream,
            base_to: TaggedOffset(self.section.base_to),
            len: self.len,
            access,
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
    pub(super) fn info(&self, listeners: Vec<String>) -> RegionInfo {
        let section = &self.section;
        let (backing, path) = match &section.backing {
            Backing::Anonymous => ("anonymous", None),
            Backing::Hugepages => ("hugepages", None),
            Backing::SharedMemory { object } => ("shared-memory", Some(object.clone())),
            Backing::File { path, .. } => ("file", Some(path.display().to_string())),
        };
        RegionInfo {
            name: section.name.clone(),
            size: self.len,
            backing: backing.into(),
            path,
            stag: format!("{:#010x}", self.stag.0),
            base_to: section.base_to.to_string(),
            access: section.access_word().into(),
            shared: section.shared,
            bound_to: self.bound.filter(|s| *s != NOBODY).map(|s| api::StreamId(s.0)),
            locked: self.memory.is_locked(),
            listeners,
            placed: self.placed,
            messages: self.messages,
            configured: self.origin == Origin::Configuration,
        }
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

    pub(in crate::appliance) fn is_written(&self) -> bool {
        self.written
    }
}
