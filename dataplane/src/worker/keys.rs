//! Keys of a worker's keyed hashes and generators, all derived from the data plane's secret.

use siphasher::sip::SipHasher13;

/// Purpose of a key. Keys for different purposes differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyPurpose {
    /// The flow table of streams.
    Flows,
    /// The flow table of associations.
    Associations,
    /// The neighbour caches.
    Neighbours,
    /// The table of peers with the counts of their streams.
    Peers,
    /// The table that limits the rate of resets per peer.
    ResetLimit,
    /// The table that limits the rate of INIT ACKs per peer.
    InitLimit,
    /// The hashes of reassembly: by packet and by peer.
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

impl KeyPurpose {
    /// Returns the purpose's label, an input of the key derivation.
    fn label(self) -> u8 {
        match self {
            KeyPurpose::Flows => b'f',
            KeyPurpose::Associations => b's',
            KeyPurpose::Neighbours => b'n',
            KeyPurpose::Peers => b'p',
            KeyPurpose::ResetLimit => b'l',
            KeyPurpose::InitLimit => b'a',
            KeyPurpose::Fragments => b'g',
            KeyPurpose::Identifications => b'd',
            KeyPurpose::Random => b'r',
            KeyPurpose::SequenceNumbers => b'i',
            KeyPurpose::SynCookies => b'c',
            KeyPurpose::SctpSecrets => b'k',
        }
    }

    /// Returns true if all workers have the same key, because the response to one worker's packet may arrive at
    /// another.
    fn is_shared(self) -> bool {
        match self {
            KeyPurpose::SequenceNumbers | KeyPurpose::SynCookies | KeyPurpose::SctpSecrets => true,
            KeyPurpose::Flows
            | KeyPurpose::Associations
            | KeyPurpose::Neighbours
            | KeyPurpose::Peers
            | KeyPurpose::ResetLimit
            | KeyPurpose::InitLimit
            | KeyPurpose::Fragments
            | KeyPurpose::Identifications
            | KeyPurpose::Random => false,
        }
    }
}

/// Derives the key for a purpose. `worker` is the worker's index, ignored if all workers have the same key.
pub(super) fn derive_key(secret: &[u8; 32], worker: u16, purpose: KeyPurpose) -> [u8; 16] {
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

    const ALL: [KeyPurpose; 12] = [
        KeyPurpose::Flows,
        KeyPurpose::Associations,
        KeyPurpose::Neighbours,
        KeyPurpose::Peers,
        KeyPurpose::ResetLimit,
        KeyPurpose::InitLimit,
        KeyPurpose::Fragments,
        KeyPurpose::Identifications,
        KeyPurpose::Random,
        KeyPurpose::SequenceNumbers,
        KeyPurpose::SynCookies,
        KeyPurpose::SctpSecrets,
    ];

    #[test]
    fn derived_keys_differ_by_purpose_and_unless_shared_by_worker() {
        let secret = [7; 32];
        for worker in [0, 1] {
            let mut keys = ALL.map(|purpose| derive_key(&secret, worker, purpose)).to_vec();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), ALL.len(), "worker {worker}");
        }
        for purpose in ALL {
            let same = derive_key(&secret, 0, purpose) == derive_key(&secret, 1, purpose);
            assert_eq!(same, purpose.is_shared(), "{purpose:?}");
        }
    }
}
