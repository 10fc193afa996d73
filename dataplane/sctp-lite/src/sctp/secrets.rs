//! Numbers that an off-path attacker cannot guess: tags, initial TSNs, tie tags, heartbeat nonces (RFC 9260 §5.3.1),
//! and the cookie keys. A keyed hash derives all these numbers from one secret, so that protocol code needs no random
//! source.

use std::hash::{Hash, Hasher};
use std::net::SocketAddr;

use siphasher::sip::SipHasher24;
use wire::sctp::{Ports, Tag};

/// The two ends of an association: IP address and SCTP port of each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ends {
    /// Address and port of this end.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
}

impl Ends {
    /// Returns the ports of a packet to the peer.
    pub fn ports(&self) -> Ports {
        Ports { source: self.local.port(), destination: self.remote.port() }
    }
}

/// Use of a derived number. Numbers of different uses are independent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Purpose {
    /// Initiate Tag and initial TSN of an association.
    Identity,
    /// Tie tags of the cookie for an unexpected INIT.
    TieTags,
    /// Nonces and jitter of heartbeats.
    Heartbeat,
    /// Keys of the MAC in cookies.
    Cookie,
}

/// The secret of an appliance, shared by its workers.
#[derive(Clone)]
pub struct Secrets {
    key: [u8; 16],
}

impl core::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secrets") // the key is secret
    }
}

impl Secrets {
    /// Creates the secret from `key`, which must come from a cryptographic random source and have no other use. All
    /// workers that may receive a returned cookie need the same key.
    pub const fn new(key: [u8; 16]) -> Secrets {
        Secrets { key }
    }

    /// Returns the number for `purpose` and `subject`. Deterministic for equal arguments.
    pub(super) fn draw(&self, purpose: Purpose, subject: impl Hash) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        (purpose as u8).hash(&mut hasher);
        subject.hash(&mut hasher);
        hasher.finish()
    }

    /// Returns a nonzero tag and an independent 32-bit number for `subject`.
    pub(super) fn draw_tag(&self, purpose: Purpose, subject: impl Hash) -> (Tag, u32) {
        let number = self.draw(purpose, subject);
        // RFC 9260 §5.3.1: a tag is 1 to 2^32 - 1.
        (Tag(((number >> 32) as u32).max(1)), number as u32)
    }

    /// Returns the tie tags of an association with these tags; neither is zero (RFC 9260 §5.2.2).
    pub(super) fn tie_tags(&self, local: Tag, peer: Tag) -> TieTags {
        let (first, second) = self.draw_tag(Purpose::TieTags, (local.0, peer.0));
        TieTags { local: first.0, peer: second.max(1) }
    }
}

/// Tie tags. They bind the cookie for an unexpected INIT to the existing association (RFC 9260 §5.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct TieTags {
    pub(super) local: u32,
    pub(super) peer: u32,
}

impl TieTags {
    /// Tie tags of a cookie that was issued without an existing association.
    pub(super) const NONE: TieTags = TieTags { local: 0, peer: 0 };
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 9260 §5.3.1: numbers depend on the secret and on their use; tags are never zero.
    #[test]
    fn numbers_depend_on_key_purpose_and_subject() {
        let secrets = Secrets::new([7; 16]);
        let number = secrets.draw(Purpose::Identity, 1);
        assert_eq!(number, secrets.draw(Purpose::Identity, 1));
        assert_ne!(number, secrets.draw(Purpose::Identity, 2));
        assert_ne!(number, secrets.draw(Purpose::Heartbeat, 1));
        assert_ne!(number, Secrets::new([8; 16]).draw(Purpose::Identity, 1));
        let ties = secrets.tie_tags(Tag(1), Tag(2));
        assert_ne!(ties, secrets.tie_tags(Tag(2), Tag(1)));
        assert!(ties.local != 0 && ties.peer != 0);
        assert!(!format!("{secrets:?}").contains('7'));
    }
}
