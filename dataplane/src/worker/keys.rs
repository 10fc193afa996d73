//! Keys of a worker's keyed hashes and generators, all derived from the data plane's secret.

use siphasher::sip::SipHasher13;

/// Purpose of a key. Each purpose has a key of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// The flow table of streams.
    Flows,
    /// The flow table of associations.
    Associations,
    /// The neighbour caches.
    Neighbours,
    /// The table of peers with their open streams.
    Peers,
    /// The table that limits resets per peer.
    ResetLimit,
    /// The table that limits INIT ACKs per peer.
    InitLimit,
    /// The reassembly table and its peers.
    Fragments,
    /// IP identifications of sent fragments (RFC 7739).
    Identifications,
    /// The worker's random numbers.
    Random,
    /// Initial sequence numbers (RFC 6528).
    SequenceNumbers,
    /// SYN cookies.
    SynCookies,
    /// Verification tags and state cookies of SCTP.
    SctpSecrets,
}

impl Purpose {
    /// Derivation label, distinct for each purpose.
    fn label(self) -> u8 {
        match self {
            Purpose::Flows => b'f',
            Purpose::Associations => b's',
            Purpose::Neighbours => b'n',
            Purpose::Peers => b'p',
            Purpose::ResetLimit => b'l',
            Purpose::InitLimit => b'a',
            Purpose::Fragments => b'g',
            Purpose::Identifications => b'd',
            Purpose::Random => b'r',
            Purpose::SequenceNumbers => b'i',
            Purpose::SynCookies => b'c',
            Purpose::SctpSecrets => b'k',
        }
    }

    /// True if all workers have the same key, because the response to one worker's packet may arrive at another.
    fn is_shared(self) -> bool {
        match self {
            Purpose::SequenceNumbers | Purpose::SynCookies | Purpose::SctpSecrets => true,
            Purpose::Flows
            | Purpose::Associations
            | Purpose::Neighbours
            | Purpose::Peers
            | Purpose::ResetLimit
            | Purpose::InitLimit
            | Purpose::Fragments
            | Purpose::Identifications
            | Purpose::Random => false,
        }
    }
}

/// Derives the key for a purpose of the worker with this index.
pub(super) fn derive(secret: &[u8; 32], worker: u16, purpose: Purpose) -> [u8; 16] {
    let worker = if purpose.is_shared() { 0 } else { worker };
    let (a, b) = secret.split_at(16);
    let half = |key: &[u8], n: u8| {
        let key: &[u8; 16] = key.try_into().expect("16 bytes");
        let [hi, lo] = worker.to_be_bytes();
        SipHasher13::new_with_key(key).hash(&[purpose.label(), n, hi, lo]).to_be_bytes()
    };
    let mut out = [0; 16];
    out[..8].copy_from_slice(&half(a, 0));
    out[8..].copy_from_slice(&half(b, 1));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Purpose; 11] = [
        Purpose::Flows,
        Purpose::Associations,
        Purpose::Neighbours,
        Purpose::Peers,
        Purpose::ResetLimit,
        Purpose::Fragments,
        Purpose::Identifications,
        Purpose::Random,
        Purpose::SequenceNumbers,
        Purpose::SynCookies,
        Purpose::SctpSecrets,
    ];

    #[test]
    fn no_two_purposes_share_a_key_and_workers_share_only_what_must_agree() {
        let secret = [7; 32];
        for worker in [0, 1] {
            let mut keys = ALL.map(|purpose| derive(&secret, worker, purpose)).to_vec();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), ALL.len(), "worker {worker}");
        }
        for purpose in ALL {
            let same = derive(&secret, 0, purpose) == derive(&secret, 1, purpose);
            assert_eq!(same, purpose.is_shared(), "{purpose:?}");
        }
    }
}
