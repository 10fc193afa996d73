//! State cookies (RFC 9260 §5.1.3, §5.1.5). The cookie carries all terms of an INIT ACK to the peer and back. No
//! state is kept until the peer has proved its address.
//!
//! ```text
//!   0  created, ms (64)        12  local tag       28  peer's a_rwnd     40  local tie tag
//!   8  life, ms (32)           16  peer's tag      32  streams           44  peer's tie tag
//!                              20  local TSN       36  (zero)            48  MAC (128)
//!                              24  peer's TSN
//! ```
//!
//! The MAC is SipHash-2-4 with 128 bits over the preceding bytes, both addresses and both ports. Its key changes
//! every hour; the creation time in the cookie selects the key. The contents are not secret.

use std::hash::{Hash, Hasher};

use base::Instant;
use core::time::Duration;
use siphasher::sip128::{Hasher128, SipHasher24};
use wire::sctp::{Tag, Tsn};

use super::secrets::{Ends, Purpose, Secrets, TieTags};

/// Length of this end's cookies, bytes.
pub const COOKIE_LEN: usize = field::MAC + 16;

/// Period for which a key issues cookies, milliseconds (RFC 9260 §5.1.3: hourly).
const KEY_PERIOD_MILLIS: u64 = 3_600_000;

mod field {
    pub(super) const CREATED: usize = 0;
    pub(super) const LIFE: usize = 8;
    pub(super) const LOCAL_TAG: usize = 12;
    pub(super) const PEER_TAG: usize = 16;
    pub(super) const LOCAL_TSN: usize = 20;
    pub(super) const PEER_TSN: usize = 24;
    pub(super) const PEER_RWND: usize = 28;
    pub(super) const STREAMS: usize = 32;
    pub(super) const LOCAL_TIE: usize = 40;
    pub(super) const PEER_TIE: usize = 44;
    pub(super) const MAC: usize = 48;

    const _: () = assert!(super::COOKIE_LEN == 64);
}

/// The values that both ends announce in INIT and INIT ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NegotiatedTerms {
    /// Verification tag chosen by this end.
    pub(super) local_tag: Tag,
    /// Verification tag chosen by the peer.
    pub(super) peer_tag: Tag,
    /// Initial TSN of this end.
    pub(super) local_tsn: Tsn,
    /// Initial TSN of the peer.
    pub(super) peer_tsn: Tsn,
    /// The peer's receiver window credit, bytes.
    pub(super) peer_rwnd: u32,
    /// Pairs of streams.
    pub(super) streams: u16,
}

/// An authentic cookie returned by a peer. It may have expired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cookie {
    pub(super) terms: NegotiatedTerms,
    pub(super) ties: TieTags,
    /// Time since expiry; `None` while valid.
    pub(super) staleness: Option<Duration>,
}

/// Issues a cookie that contains `terms` and is valid for `life`.
pub(super) fn issue(
    secrets: &Secrets,
    ends: &Ends,
    now: Instant,
    life: Duration,
    terms: &NegotiatedTerms,
    ties: TieTags,
) -> [u8; COOKIE_LEN] {
    let mut out = [0; COOKIE_LEN];
    let life = life.as_millis().min(u128::from(u32::MAX)) as u32;
    out[field::CREATED..field::LIFE].copy_from_slice(&now.as_millis().to_be_bytes());
    let fields = [
        (field::LIFE, life),
        (field::LOCAL_TAG, terms.local_tag.0),
        (field::PEER_TAG, terms.peer_tag.0),
        (field::LOCAL_TSN, terms.local_tsn.0),
        (field::PEER_TSN, terms.peer_tsn.0),
        (field::PEER_RWND, terms.peer_rwnd),
        (field::STREAMS, u32::from(terms.streams) << 16),
        (field::LOCAL_TIE, ties.local),
        (field::PEER_TIE, ties.peer),
    ];
    for (at, word) in fields {
        out[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }
    let mac = mac(secrets, ends, now.as_millis(), &out[..field::MAC]);
    out[field::MAC..].copy_from_slice(&mac);
    out
}

/// Authenticates a cookie returned in a packet with verification tag `tag`. Returns `None` unless a holder of `secrets`
/// issued the cookie for these ends and this tag (RFC 9260 §5.1.5 steps 1 to 3). The caller checks the expiry (step 4).
pub(super) fn check(
    secrets: &Secrets,
    ends: &Ends,
    now: Instant,
    tag: Tag,
    bytes: &[u8],
) -> Option<Cookie> {
    let bytes: &[u8; COOKIE_LEN] = bytes.try_into().ok()?;
    let (body, mac_received) = bytes.split_at(field::MAC);
    let created = u64::from_be_bytes(*body.first_chunk()?);
    // Compares all bytes, so that the duration does not reveal the position of the first difference.
    let mac_computed = mac(secrets, ends, created, body);
    if mac_computed.iter().zip(mac_received).fold(0, |differ, (a, b)| differ | a ^ b) != 0 {
        return None;
    }
    let read_u32 = |at: usize| body[at..at + 4].iter().fold(0, |word, &o| word << 8 | u32::from(o));
    let terms = NegotiatedTerms {
        local_tag: Tag(read_u32(field::LOCAL_TAG)),
        peer_tag: Tag(read_u32(field::PEER_TAG)),
        local_tsn: Tsn(read_u32(field::LOCAL_TSN)),
        peer_tsn: Tsn(read_u32(field::PEER_TSN)),
        peer_rwnd: read_u32(field::PEER_RWND),
        streams: (read_u32(field::STREAMS) >> 16) as u16,
    };
    if terms.local_tag != tag {
        return None;
    }
    let expiry = Duration::from_millis(created.saturating_add(u64::from(read_u32(field::LIFE))));
    let current = Duration::from_nanos(now.as_nanos());
    let staleness = current.checked_sub(expiry).filter(|by| !by.is_zero());
    let ties = TieTags { local: read_u32(field::LOCAL_TIE), peer: read_u32(field::PEER_TIE) };
    Some(Cookie { terms, ties, staleness })
}

impl Cookie {
    /// Returns the Measure of Staleness, microseconds, rounded up (RFC 9260 §3.3.10.3); `None` while valid.
    pub(super) fn staleness_micros(&self) -> Option<u32> {
        let staleness = self.staleness?;
        Some(staleness.as_nanos().div_ceil(1000).min(u128::from(u32::MAX)) as u32)
    }
}

fn mac(secrets: &Secrets, ends: &Ends, created: u64, body: &[u8]) -> [u8; 16] {
    let period = created / KEY_PERIOD_MILLIS;
    let half = |n: u8| secrets.draw(Purpose::Cookie, (period, n));
    let mut hasher = SipHasher24::new_with_keys(half(0), half(1));
    ends.hash(&mut hasher);
    hasher.write(body);
    hasher.finish128().as_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIFE: Duration = Duration::from_secs(60);

    fn ends() -> Ends {
        Ends { local: ([10, 0, 0, 1], 9899).into(), remote: ([10, 0, 0, 2], 4000).into() }
    }

    fn secrets() -> Secrets {
        Secrets::new([3; 16])
    }

    fn terms() -> NegotiatedTerms {
        NegotiatedTerms {
            local_tag: Tag(0x1111_1111),
            peer_tag: Tag(0x2222_2222),
            local_tsn: Tsn(3),
            peer_tsn: Tsn(u32::MAX),
            peer_rwnd: 65_536,
            streams: 300,
        }
    }

    fn issue_at(now: Instant) -> [u8; COOKIE_LEN] {
        issue(&secrets(), &ends(), now, LIFE, &terms(), TieTags { local: 5, peer: 6 })
    }

    // RFC 9260 §5.1.3: a returned cookie yields all terms and its staleness.
    #[test]
    fn cookie_round_trips_all_terms() {
        let at = Instant::from_millis(7_200_000 - 1);
        let bytes = issue_at(at);
        let check = |now| check(&secrets(), &ends(), now, terms().local_tag, &bytes);
        let ties = TieTags { local: 5, peer: 6 };
        let good = Cookie { terms: terms(), ties, staleness: None };
        // The cookie stays valid to the end of its life, across a change of keys.
        assert_eq!(check(at), Some(good));
        assert_eq!(check(at + LIFE), Some(good));
        assert_eq!(good.staleness_micros(), None);
        // §5.1.5 step 4; §3.3.10.3: the staleness is rounded up to microseconds.
        let late = check(at + LIFE + Duration::from_nanos(1001)).expect("authentic");
        assert_eq!((late.terms, late.staleness_micros()), (terms(), Some(2)));
    }

    // RFC 9260 §5.1.5 steps 2 and 3: a cookie is valid only with the addresses, ports, tag and secret for which it was
    // issued.
    #[test]
    fn cookie_for_other_ends_tag_or_secret_is_refused() {
        let now = Instant::from_millis(5);
        let bytes = issue_at(now);
        let tag = terms().local_tag;
        let others = [
            Ends { local: ([10, 0, 0, 1], 9898).into(), ..ends() },
            Ends { remote: ([10, 0, 0, 2], 4001).into(), ..ends() },
            Ends { remote: ([10, 0, 0, 3], 4000).into(), ..ends() },
        ];
        for other in others {
            assert_eq!(check(&secrets(), &other, now, tag, &bytes), None);
        }
        assert_eq!(check(&secrets(), &ends(), now, terms().peer_tag, &bytes), None);
        assert_eq!(check(&Secrets::new([4; 16]), &ends(), now, tag, &bytes), None);
        assert_eq!(check(&secrets(), &ends(), now, tag, &bytes[..COOKIE_LEN - 1]), None);
        assert_eq!(check(&secrets(), &ends(), now, tag, &[]), None);
    }

    // RFC 9260 §5.1.5 step 2: two equal changes are detected. They would cancel out if the differences were combined by
    // XOR.
    #[test]
    fn each_changed_mac_byte_is_detected() {
        let now = Instant::from_millis(5);
        for other in field::MAC + 1..COOKIE_LEN {
            let mut bytes = issue_at(now);
            bytes[field::MAC] ^= 0x40;
            bytes[other] ^= 0x40;
            assert_eq!(check(&secrets(), &ends(), now, terms().local_tag, &bytes), None);
        }
    }

    proptest! {
        // RFC 9260 §5.1.5 step 2: the MAC covers every bit.
        #[test]
        fn a_changed_cookie_is_refused(bit in 0..COOKIE_LEN * 8) {
            let now = Instant::from_millis(5);
            let mut bytes = issue_at(now);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(check(&secrets(), &ends(), now, terms().local_tag, &bytes), None);
        }
    }
}
