//! What the operator should know at this moment: one sentence for each cause, which goes with its cause.

use std::net::IpAddr;
use std::time::Instant;

use dataplane::InterfaceId;

use crate::files::FileId;

/// What a sentence is about. There are as many at most as the appliance has of these things.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// What was found at the start, and stays.
    Start,
    /// The memory of a region, while there is the region.
    Region(String),
    /// A port whose link is down.
    Link(String),
    /// A port whose interface of Linux is not as it was.
    Device(String),
    /// A host whose frames come in by a port without checksums.
    Checksums(IpAddr),
    /// Keys of the configuration file that need a restart, until they are in force or no longer in the file.
    Restart,
    /// A file that cannot be written.
    File(FileId),
    /// Another host has an address of an interface.
    Conflict(InterfaceId, IpAddr),
}

/// Hosts that have a note at a time, at most.
const HOSTS: usize = 8;

/// All sentences, the oldest first.
#[derive(Default)]
pub(super) struct Notes(Vec<Note>);

struct Note {
    cause: Cause,
    sentence: String,
    /// When it goes by itself.
    until: Option<Instant>,
}

impl Notes {
    /// Adds a sentence.
    pub(super) fn add(&mut self, cause: Cause, sentence: String) {
        self.0.push(Note { cause, sentence, until: None });
    }

    /// The one sentence about this, instead of those before. It goes at `until`, if not before.
    pub(super) fn set(&mut self, cause: Cause, sentence: String, until: Option<Instant>) {
        match self.0.iter_mut().find(|note| note.cause == cause) {
            Some(note) => (note.sentence, note.until) = (sentence, until),
            None => self.0.push(Note { cause, sentence, until }),
        }
    }

    /// As [`set`](Self::set) for hosts, of which there may be any number: [`HOSTS`] notes are kept.
    pub(super) fn set_bounded(&mut self, cause: Cause, sentence: String, until: Instant) {
        let hosts = self.0.iter().filter(|note| matches!(note.cause, Cause::Checksums(_)));
        if hosts.count() < HOSTS || self.0.iter().any(|note| note.cause == cause) {
            self.set(cause, sentence, Some(until));
        }
    }

    /// True if there is a sentence about this now. Forgets those that are over.
    pub(super) fn has(&mut self, cause: &Cause, now: Instant) -> bool {
        self.0.retain(|note| note.until.is_none_or(|until| now < until));
        self.0.iter().any(|note| note.cause == *cause)
    }

    /// The cause is gone.
    pub(super) fn clear(&mut self, cause: &Cause) {
        self.0.retain(|note| note.cause != *cause);
    }

    /// Those that hold now.
    pub(super) fn sentences(&self, now: Instant) -> Vec<String> {
        let holds = |note: &&Note| note.until.is_none_or(|until| now < until);
        self.0.iter().filter(holds).map(|note| note.sentence.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn sentences_come_and_go_with_their_causes() {
        let (mut notes, start) = (Notes::default(), Instant::now());
        let region = |name: &str| Cause::Region(name.to_owned());
        notes.add(Cause::Start, "ordinary pages".into());
        notes.add(region("a"), "a is in swap".into());
        notes.add(region("a"), "a is slow".into());
        notes.add(region("b"), "b is slow".into());
        notes.set(Cause::Restart, "a key".into(), None);
        notes.set(Cause::Restart, "two keys".into(), None);
        let soon = start + Duration::from_secs(5);
        notes.set(Cause::Link("p".into()), "down".into(), Some(soon));
        let all = ["ordinary pages", "a is in swap", "a is slow", "b is slow", "two keys", "down"];
        assert_eq!(notes.sentences(start), all);
        notes.clear(&region("a"));
        notes.clear(&Cause::Restart);
        assert_eq!(notes.sentences(start), ["ordinary pages", "b is slow", "down"]);
        assert_eq!(notes.sentences(soon), ["ordinary pages", "b is slow"]);
    }
}
