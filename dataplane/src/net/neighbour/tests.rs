//! Tests the states of a neighbour, unsolicited announcements, and eviction under floods.

use super::*;

const A: Mac = [2, 0, 0, 0, 0, 0xa];
const B: Mac = [2, 0, 0, 0, 0, 0xb];

fn ip(n: u16) -> IpAddr {
    IpAddr::from([10, 0, (n >> 8) as u8, n as u8])
}

fn secs(s: u64) -> Instant {
    Instant::from_millis(s * 1000)
}

fn cache(capacity: usize) -> NeighbourCache {
    NeighbourCache::new(capacity, [7; 16])
}

fn claim(
    cache: &mut NeighbourCache,
    n: u16,
    mac: Mac,
    kind: ClaimKind,
    now: Instant,
) -> ClaimOutcome {
    cache.handle_claim(&Claim { address: ip(n), mac, kind }, now)
}

const ANSWER: ClaimKind = ClaimKind::Answer { overrides: true };

fn state(cache: &NeighbourCache, n: u16) -> &'static str {
    cache.iter().find(|found| found.address == ip(n)).map_or("none", |found| found.state)
}

/// Returns a cache that has resolved neighbour 1 to `A` at time 0.
fn resolved() -> NeighbourCache {
    let mut cache = cache(8);
    assert_eq!(cache.resolve(ip(1), secs(0)), Resolution::Wait { solicit: true });
    assert_eq!(claim(&mut cache, 1, A, ANSWER, secs(0)), ClaimOutcome::Resolved);
    cache
}

fn poll_all(cache: &mut NeighbourCache, now: Instant) -> Vec<Action> {
    std::iter::from_fn(|| cache.poll(now)).collect()
}

#[test]
fn resolution_fails_after_three_solicitations() {
    let mut cache = cache(8);
    assert_eq!(cache.resolve(ip(1), secs(0)), Resolution::Wait { solicit: true });
    assert_eq!(cache.resolve(ip(1), secs(0)), Resolution::Wait { solicit: false });
    assert_eq!(cache.poll_timeout(), Some(secs(1)));
    assert_eq!(poll_all(&mut cache, secs(1)), [Action::Solicit(ip(1), None)]);
    assert_eq!(poll_all(&mut cache, secs(2)), [Action::Solicit(ip(1), None)]);
    assert_eq!(poll_all(&mut cache, secs(3)), [Action::Failed(ip(1))]);
    assert_eq!(cache.resolve(ip(1), secs(3)), Resolution::Failed);
    assert_eq!(cache.resolve(ip(1), secs(4)), Resolution::Wait { solicit: true });
}

#[test]
fn used_entry_passes_all_states_until_confirmed() {
    // RFC 4861 §7.3.3: reachable, stale, delay, probe, and reachable again after an answer.
    let mut cache = resolved();
    assert_eq!(state(&cache, 1), "reachable");
    assert_eq!(poll_all(&mut cache, secs(30)), []);
    assert_eq!(state(&cache, 1), "stale");
    assert_eq!(cache.resolve(ip(1), secs(31)), Resolution::Known(A));
    assert_eq!(state(&cache, 1), "delay");
    assert_eq!(poll_all(&mut cache, secs(36)), [Action::Solicit(ip(1), Some(A))]);
    assert_eq!(state(&cache, 1), "probe");
    assert_eq!(claim(&mut cache, 1, A, ANSWER, secs(36)), ClaimOutcome::Noted);
    assert_eq!(state(&cache, 1), "reachable");
}

#[test]
fn silent_neighbour_is_probed_then_resolved_again() {
    let mut cache = resolved();
    poll_all(&mut cache, secs(30));
    cache.resolve(ip(1), secs(31));
    for s in 36..39 {
        assert_eq!(poll_all(&mut cache, secs(s)), [Action::Solicit(ip(1), Some(A))], "at {s}");
        assert_eq!(cache.resolve(ip(1), secs(s)), Resolution::Known(A));
    }
    assert_eq!(poll_all(&mut cache, secs(39)), [Action::Solicit(ip(1), None)]);
    assert_eq!(cache.resolve(ip(1), secs(39)), Resolution::Wait { solicit: false });
    assert_eq!(claim(&mut cache, 1, B, ANSWER, secs(39)), ClaimOutcome::Resolved);
    assert_eq!(cache.get(ip(1)), Some(B));
}

#[test]
fn stream_progress_confirms_neighbour_without_probe() {
    // RFC 4861 §7.3.1: confirmation by a stream ends the delay without a probe.
    let mut cache = resolved();
    poll_all(&mut cache, secs(30));
    cache.resolve(ip(1), secs(31));
    cache.confirm(ip(1), secs(32));
    assert_eq!(state(&cache, 1), "reachable");
    assert_eq!(poll_all(&mut cache, secs(36)), []);
}

#[test]
fn unsolicited_announcement_does_not_change_cache() {
    let mut cache = resolved();
    for kind in [ANSWER, ClaimKind::Announcement] {
        assert_eq!(claim(&mut cache, 2, B, kind, secs(1)), ClaimOutcome::Ignored);
    }
    for kind in [ANSWER, ClaimKind::Announcement, ClaimKind::Solicitation] {
        let mut cache = resolved();
        claim(&mut cache, 1, B, kind, secs(1));
        assert_eq!(cache.get(ip(1)), Some(A), "{kind:?}");
        // The announcement causes a probe of the known address. The host at this address answers, so the entry stays.
        assert_eq!(poll_all(&mut cache, secs(1)), [Action::Solicit(ip(1), Some(A))]);
        claim(&mut cache, 1, A, ANSWER, secs(1));
        assert_eq!(state(&cache, 1), "reachable");
    }
}

#[test]
fn solicitation_of_us_creates_stale_entry() {
    let mut cache = cache(8);
    assert_eq!(claim(&mut cache, 5, A, ClaimKind::Solicitation, secs(0)), ClaimOutcome::Noted);
    assert_eq!(state(&cache, 5), "stale");
    assert_eq!(cache.resolve(ip(5), secs(0)), Resolution::Known(A));
}

#[test]
fn foreign_answer_does_not_replace_probed_address() {
    let mut cache = resolved();
    claim(&mut cache, 1, B, ClaimKind::Announcement, secs(1));
    assert_eq!(poll_all(&mut cache, secs(1)), [Action::Solicit(ip(1), Some(A))]);
    for overrides in [false, true] {
        let answer = ClaimKind::Answer { overrides };
        assert_eq!(claim(&mut cache, 1, B, answer, secs(1)), ClaimOutcome::Ignored);
    }
    assert_eq!(cache.get(ip(1)), Some(A));
    // After three probes without an answer, the solicitation is broadcast, and another host may answer.
    for s in 2..=4 {
        poll_all(&mut cache, secs(s));
    }
    assert_eq!(state(&cache, 1), "incomplete");
    assert_eq!(claim(&mut cache, 1, B, ANSWER, secs(4)), ClaimOutcome::Resolved);
    assert_eq!(cache.get(ip(1)), Some(B));
}

#[test]
fn unknown_destinations_do_not_evict_used_entries() {
    let mut cache = cache(64);
    cache.resolve(ip(0xffff), secs(0));
    claim(&mut cache, 0xffff, A, ANSWER, secs(0));
    let waiting = (0..1000)
        .filter(|&n| matches!(cache.resolve(ip(n), secs(1)), Resolution::Wait { .. }))
        .count();
    assert_eq!(waiting, 16);
    assert_eq!(cache.resolve(ip(0xffff), secs(1)), Resolution::Known(A));
    // Failed entries are evicted.
    for s in 2..8 {
        poll_all(&mut cache, secs(s));
    }
    assert!(matches!(cache.resolve(ip(2000), secs(9)), Resolution::Wait { solicit: true }));
}

#[test]
fn solicitation_flood_evicts_only_oldest_idle_entries() {
    let mut cache = cache(64);
    cache.resolve(ip(0xffff), secs(0));
    claim(&mut cache, 0xffff, A, ANSWER, secs(0));
    for n in 0..10_000 {
        assert_eq!(claim(&mut cache, n, B, ClaimKind::Solicitation, secs(1)), ClaimOutcome::Noted);
    }
    // Unsolicited entries take at most half of the capacity of 64.
    assert_eq!(cache.len(), 33);
    assert_eq!(cache.get(ip(0xffff)), Some(A));
    assert_eq!(cache.get(ip(9_999)), Some(B));
}

#[test]
fn unsolicited_entries_never_evict_contacted_neighbour() {
    let mut cache = cache(64);
    // All entries are stale neighbours to which packets were sent long ago.
    for n in 0..64 {
        cache.resolve(ip(n), secs(0));
        claim(&mut cache, n, A, ANSWER, secs(0));
    }
    poll_all(&mut cache, secs(60));
    for n in 100..10_000 {
        assert_eq!(claim(&mut cache, n, B, ClaimKind::Solicitation, secs(61)), ClaimOutcome::Full);
    }
    assert!((0..64).all(|n| cache.get(ip(n)) == Some(A)));
}

#[test]
fn a_pinned_neighbour_is_never_evicted() {
    let mut cache = resolved();
    assert!(cache.pin(ip(1)) && cache.pin(ip(1)));
    assert!(!cache.pin(ip(77)), "a neighbour without an entry cannot be pinned");
    let speak = |cache: &mut NeighbourCache, from: u16| {
        for n in from..from + 200 {
            let at = secs(100 * u64::from(n));
            poll_all(cache, at);
            cache.resolve(ip(n), at);
            claim(cache, n, B, ANSWER, at);
        }
        cache.get(ip(1))
    };
    assert_eq!(speak(&mut cache, 1000), Some(A));
    cache.unpin(ip(1));
    assert_eq!(speak(&mut cache, 2000), Some(A), "another stream still pins it");
    cache.unpin(ip(1));
    assert_eq!(speak(&mut cache, 3000), None);
    assert!(cache.len() <= 8);
}
