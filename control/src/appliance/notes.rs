//! Notes about present faults, for the operator: a note is removed with its cause.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Instant;

use api::explain::NoteKind;
use dataplane::{InterfaceId, ProgramId};

use super::objects::Objects;
use crate::files::FileId;

/// Cause of a note. The number of causes is bounded by the number of the appliance's objects, except for `Checksums`,
/// which has a separate bound.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Cause {
    /// A fault found at the start. The note is never removed.
    Start,
    /// A deficiency of a region's memory, such as ordinary pages instead of hugepages. Removed with the region.
    Region(String),
    /// A port whose link is down.
    Link(String),
    /// A port with a changed or missing Linux interface.
    Device(String),
    /// A host whose frames arrive without checksums.
    Checksums(IpAddr),
    /// Keys in the configuration file that need a restart. Removed when a reload finds none.
    Restart,
    /// A file that cannot be written.
    File(FileId),
    /// Another host that uses an interface's address.
    Conflict(InterfaceId, IpAddr),
    /// A limit that a local program has reached. Removed with the program.
    ProgramLimit(ProgramId),
    /// Memory of a local program that is not locked. Removed with the program.
    ProgramMemory(ProgramId),
}

impl Cause {
    fn kind(&self) -> NoteKind {
        match self {
            Cause::Start => NoteKind::AtStart,
            Cause::Region(_) => NoteKind::RegionMemory,
            Cause::Link(_) => NoteKind::LinkDown,
            Cause::Device(_) => NoteKind::Device,
            Cause::Checksums(_) => NoteKind::UnfinishedChecksums,
            Cause::Restart => NoteKind::Restart,
            Cause::File(_) => NoteKind::File,
            Cause::Conflict(..) => NoteKind::AddressConflict,
            Cause::ProgramLimit(_) => NoteKind::ProgramLimit,
            Cause::ProgramMemory(_) => NoteKind::ProgramMemory,
        }
    }
}

/// Maximum number of hosts with a note about checksums at a time.
const MAX_CHECKSUM_HOSTS: usize = 8;

#[derive(Default)]
pub(super) struct Notes {
    /// Notes by number, oldest first.
    notes: Objects<u64, Note>,
    /// Numbers of the notes of each cause.
    by_cause: HashMap<Cause, BTreeSet<u64>>,
    /// Numbers of the notes that expire, with the expiry.
    expiring: BTreeSet<(Instant, u64)>,
    next_number: u64,
}

struct Note {
    cause: Cause,
    sentence: String,
    /// Expiry of the note, if any.
    expires_at: Option<Instant>,
}

impl Notes {
    /// Adds a note that does not expire.
    pub(super) fn add(&mut self, cause: Cause, sentence: String) {
        self.insert(Note { cause, sentence, expires_at: None });
    }

    fn insert(&mut self, note: Note) {
        let number = self.next_number;
        self.next_number += 1;
        self.by_cause.entry(note.cause.clone()).or_default().insert(number);
        self.expiring.extend(note.expires_at.map(|at| (at, number)));
        self.notes.insert(number, note);
    }

    /// Sets the only note of a cause, and replaces an earlier note. Without `expires_at` the note does not expire.
    pub(super) fn set(&mut self, cause: Cause, sentence: String, expires_at: Option<Instant>) {
        let number = self.by_cause.get(&cause).and_then(BTreeSet::first).copied();
        let Some((number, note)) = number.and_then(|n| Some((n, self.notes.get_mut(&n)?))) else {
            return self.insert(Note { cause, sentence, expires_at });
        };
        if let Some(at) = note.expires_at {
            self.expiring.remove(&(at, number));
        }
        self.expiring.extend(expires_at.map(|at| (at, number)));
        (note.sentence, note.expires_at) = (sentence, expires_at);
    }

    /// Sets a note like [`set`](Self::set). A note about checksums of a further host is dropped if
    /// [`MAX_CHECKSUM_HOSTS`] hosts have a note, because the number of hosts is not bounded.
    pub(super) fn set_bounded(&mut self, cause: Cause, sentence: String, expires_at: Instant) {
        let expiring = self.expiring.iter().filter_map(|(_, number)| self.notes.get(number));
        let hosts = expiring.filter(|note| matches!(note.cause, Cause::Checksums(_)));
        if hosts.count() < MAX_CHECKSUM_HOSTS || self.by_cause.contains_key(&cause) {
            self.set(cause, sentence, Some(expires_at));
        }
    }

    /// Removes expired notes. Returns true if the cause has a note.
    pub(super) fn has(&mut self, cause: &Cause, now: Instant) -> bool {
        while let Some(&(at, number)) = self.expiring.first()
            && at <= now
        {
            self.remove(number);
        }
        self.by_cause.contains_key(cause)
    }

    pub(super) fn clear(&mut self, cause: &Cause) {
        for number in self.by_cause.get(cause).cloned().unwrap_or_default() {
            self.remove(number);
        }
    }

    fn remove(&mut self, number: u64) {
        let Some(note) = self.notes.remove(&number) else { return };
        if let Some(at) = note.expires_at {
            self.expiring.remove(&(at, number));
        }
        if let Some(numbers) = self.by_cause.get_mut(&note.cause) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_cause.remove(&note.cause);
            }
        }
    }

    /// Returns the notes that have not expired, oldest first, with their kinds.
    pub(super) fn current(&self, now: Instant) -> impl Iterator<Item = (NoteKind, String)> {
        let holds = move |note: &&Note| note.expires_at.is_none_or(|until| now < until);
        self.notes.values().filter(holds).map(|note| (note.cause.kind(), note.sentence.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn notes_are_set_and_cleared_by_cause() {
        let (mut notes, start) = (Notes::default(), Instant::now());
        let region = |name: &str| Cause::Region(name.to_owned());
        let sentences = |notes: &Notes, now| -> Vec<String> {
            notes.current(now).map(|(_, sentence)| sentence).collect()
        };
        notes.add(Cause::Start, "ordinary pages".into());
        notes.add(region("a"), "a is in swap".into());
        notes.add(region("a"), "a is slow".into());
        notes.add(region("b"), "b is slow".into());
        notes.set(Cause::Restart, "a key".into(), None);
        notes.set(Cause::Restart, "two keys".into(), None);
        let soon = start + Duration::from_secs(5);
        notes.set(Cause::Link("p".into()), "down".into(), Some(soon));
        let all = ["ordinary pages", "a is in swap", "a is slow", "b is slow", "two keys", "down"];
        assert_eq!(sentences(&notes, start), all);
        notes.clear(&region("a"));
        notes.clear(&Cause::Restart);
        assert_eq!(sentences(&notes, start), ["ordinary pages", "b is slow", "down"]);
        assert_eq!(sentences(&notes, soon), ["ordinary pages", "b is slow"]);
        assert!(!notes.has(&Cause::Link("p".into()), soon), "an expired note is removed");
        assert_eq!((notes.notes.len(), notes.expiring.len(), notes.by_cause.len()), (2, 0, 2));
        let kinds: Vec<NoteKind> = notes.current(soon).map(|(kind, _)| kind).collect();
        assert_eq!(kinds, [NoteKind::AtStart, NoteKind::RegionMemory]);
    }
}
