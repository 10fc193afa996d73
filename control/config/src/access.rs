//! Rights of peers on a region, and the words for them.

use ddp::Access;

/// Words for the rights in the configuration. The API shows `-` for `none`.
pub(super) const ACCESS_WORDS: [(&str, Access); 5] = [
    ("rw", AccessFlags { read: true, write: true, ..AccessFlags::NONE }.access()),
    ("r", AccessFlags { read: true, ..AccessFlags::NONE }.access()),
    ("w", AccessFlags { write: true, ..AccessFlags::NONE }.access()),
    ("rwa", AccessFlags { read: true, write: true, atomic: true }.access()),
    ("none", Access::NONE),
];

/// List of the words for error messages.
pub const ACCESS_CHOICES: &str = "\"r\", \"w\", \"rw\", \"rwa\" (with atomics) or \"none\"";

/// Rights of peers, as separate flags.
#[derive(Clone, Copy, Debug)]
pub struct AccessFlags {
    /// Peers may send RDMA Read Requests.
    pub read: bool,
    /// Peers may send RDMA Writes and other tagged segments.
    pub write: bool,
    /// Peers may send atomic operations.
    pub atomic: bool,
}

impl AccessFlags {
    const NONE: AccessFlags = AccessFlags { read: false, write: false, atomic: false };

    /// Returns the rights as a set.
    pub const fn access(self) -> Access {
        let bits = if self.read { Access::REMOTE_READ.bits() } else { 0 }
            | if self.write { Access::REMOTE_WRITE.bits() } else { 0 }
            | if self.atomic { Access::ATOMIC.bits() } else { 0 };
        match Access::from_bits(bits) {
            Some(access) => access,
            None => Access::NONE,
        }
    }
}

/// Returns the words for the rights in the configuration: `rw`, `r`, `w`, `rwa` and `none`.
pub fn access_words() -> Vec<&'static str> {
    ACCESS_WORDS.iter().map(|(word, _)| *word).collect()
}

/// Returns the rights of a word; `None` for an unknown word.
pub fn access_from_word(word: &str) -> Option<Access> {
    ACCESS_WORDS.iter().find(|(known, _)| *known == word).map(|(_, access)| *access)
}

/// Returns the word for these rights. Atomics without both read and write have no word and are omitted.
pub(super) fn nearest_word(access: Access) -> &'static str {
    let (read, write) = (access.remote_read(), access.remote_write());
    let without = AccessFlags { read, write, atomic: false }.access();
    let word = |of| ACCESS_WORDS.iter().find(|(_, access)| *access == of).map(|(word, _)| *word);
    word(access).or(word(without)).unwrap_or("none")
}

/// Returns the word for these rights in the API: as in the configuration, but `-` for no rights.
pub fn access_word(access: Access) -> &'static str {
    match nearest_word(access) {
        "none" => "-",
        word => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_words_round_trip_and_are_listed() {
        for (word, access) in ACCESS_WORDS {
            assert_eq!((access_from_word(word), nearest_word(access)), (Some(access), word));
            assert!(ACCESS_CHOICES.contains(&format!("\"{word}\"")), "{word}");
        }
        assert_eq!(
            ACCESS_WORDS.map(|(_, access)| access_word(access)),
            ["rw", "r", "w", "rwa", "-"]
        );
        assert_eq!(access_from_word("-"), None);
        assert_eq!(access_from_word("rwa").map(Access::bits), Some(7));
        // Atomics without write have no word and are omitted.
        let read_and_atomic = AccessFlags { read: true, write: false, atomic: true };
        assert_eq!(nearest_word(read_and_atomic.access()), "r");
        assert_eq!(nearest_word(Access::ATOMIC), "none");
    }
}
