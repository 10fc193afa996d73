//! Path MTU discovery: a range of possible MTUs, narrowed by probes and reports (RFC 4821 §7.2, §7.3).
//!
//! ```text
//!   floor          base             low                      high          limit
//!     |-------------|----------------|------------------------|--------------|
//!                   fallback in a    in use: known to pass,   the largest    interface and peer
//!                   black hole       or not refuted yet       worth a probe
//! ```
//!
//! The search is pure: it has no clock and no connection. All sizes are bytes of IP packet contents: the MTU
//! less the headers that the protocol does not count. TCP's sizes are MSSs: payload and options, without the
//! IP header and the fixed TCP header. SCTP's sizes are packets, without the headers of IP and UDP.

use core::time::Duration;

use base::Instant;

/// MTUs of common links and tunnels, probed first (RFC 4821 §7.3).
const COMMON_MTUS: [u16; 9] = [1280, 1400, 1450, 1492, 1500, 4352, 8166, 9000, 65_280];

/// MTU that nearly all IPv4 paths carry (RFC 4821 §7.2). IPv6 paths carry at least [`MIN_V6`].
const BASE_V4: u16 = 1024;
/// MTU that every IPv4 host accepts (RFC 1122 §3.3.2), for paths that do not carry the base MTU.
const MIN_V4: u16 = 576;
/// MTU that every IPv6 path carries (RFC 8200 §5).
const MIN_V6: u16 = 1280;

/// Number of isolated losses of probes with the same size after which this size counts as too big. RFC 4821 §7.6.2
/// requires one. With two, random loss is rarely mistaken for a limit.
const MAX_PROBE_LOSSES: u8 = 2;

/// Consecutive time-outs of full-sized packets after which the path counts as a black hole (RFC 4821 §7.7, RFC 8899
/// §4.3).
const BLACK_HOLE_TIMEOUTS: u32 = 4;
/// Threshold instead of [`BLACK_HOLE_TIMEOUTS`] if a shorter packet that was sent later has
/// arrived.
const EVIDENT_BLACK_HOLE_TIMEOUTS: u32 = 3;
/// Further time-outs after which the base MTU also counts as too big.
const MIN_FALLBACK_TIMEOUTS: u32 = 2;

/// A gap between `low` and `high` is worth a probe only if it exceeds `low` divided by this number.
const MIN_GAP_DIVISOR: u16 = 8;

const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Effect of an arrived probe or of a black hole on the size in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeChange {
    /// The size in use changed to this value, bytes.
    Size(u16),
    /// The size in use is unchanged.
    Unchanged,
}

/// Fallback size after a black hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallback {
    /// The base MTU (RFC 4821 §7.2), which nearly all paths carry.
    Base,
    /// The minimum that every host accepts.
    Minimum,
}

/// Returns the fallback after `timeouts` consecutive time-outs of a full-sized segment; `None` while congestion may
/// explain them. `evident`: a shorter segment sent later has arrived. `timeout_limit`: time-outs after which the peer
/// is declared unreachable, an upper bound of the threshold.
pub fn black_hole_fallback(timeouts: u32, evident: bool, timeout_limit: u32) -> Option<Fallback> {
    let threshold = if evident { EVIDENT_BLACK_HOLE_TIMEOUTS } else { BLACK_HOLE_TIMEOUTS };
    let further = timeouts.checked_sub(threshold.min(timeout_limit))?;
    Some(if further < MIN_FALLBACK_TIMEOUTS { Fallback::Base } else { Fallback::Minimum })
}

/// The search for one path's MTU: the range of sizes that the [module's diagram](self) shows, and the times of probes.
#[derive(Clone, Debug)]
pub struct PmtuSearch {
    low: u16,
    high: u16,
    limit: u16,
    floor: u16,
    /// Bytes of headers that an MTU includes and a size does not.
    headers: u16,
    /// MTU to fall back to after a black hole, bytes.
    base: u16,
    /// True if a report or a probe has shown that the path carries `low`. False if `low` is a guess or the peer's
    /// limit.
    confirmed: bool,
    /// Isolated losses of probes since the last result.
    losses: u8,
    /// Time before which no probe is sent.
    not_before: Instant,
    /// Time from which sizes above `high` are probed again; [`NEVER`] while `high` is `limit`.
    raise_at: Instant,
}

impl PmtuSearch {
    /// Creates a search with `limit` in use and nothing known about the path. `headers`: bytes that an MTU includes and
    /// a size does not. `min_mtu`: the smallest MTU accepted for IPv4 paths.
    pub fn new(limit: u16, headers: u16, v6: bool, min_mtu: u16) -> Self {
        let floor = if v6 { MIN_V6 } else { min_mtu };
        PmtuSearch {
            low: limit,
            high: limit,
            limit,
            floor: floor.saturating_sub(headers).max(1),
            headers,
            base: BASE_V4,
            confirmed: false,
            losses: 0,
            not_before: Instant::ZERO,
            raise_at: NEVER,
        }
    }

    /// Sets the MTU to which a black hole on an IPv4 path falls back, instead of 1024 (RFC 4821 §7.7).
    pub fn with_base(self, mtu: u16) -> Self {
        PmtuSearch { base: mtu, ..self }
    }

    /// Returns the size in use, bytes.
    pub fn size(&self) -> u16 {
        self.low
    }

    /// Returns true if the path is known to carry the size in use, so that other connections may use that size. False
    /// before the first result. Also false after a black hole, until a probe gives a result: the peer may only have
    /// been unreachable for a time.
    pub fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// Returns the minimum accepted size, bytes.
    pub fn floor(&self) -> u16 {
        self.floor
    }

    /// Returns true if the size in use is the largest allowed.
    pub fn is_at_limit(&self) -> bool {
        self.low >= self.limit
    }

    /// Limits the size to the largest that the peer accepts (RFC 9293 §3.7.1).
    pub fn limit_to(&mut self, size: u16) {
        self.limit = self.limit.min(size).max(1);
        self.confirmed &= self.low <= self.limit;
        self.low = self.low.min(self.limit);
        self.high = self.high.min(self.limit);
    }

    /// Sets the size known from a router's report or another connection. Larger sizes are probed from `raise_at` on.
    pub fn set_size(&mut self, size: u16, raise_at: Instant) {
        self.low = size.min(self.limit);
        self.high = self.low;
        self.confirmed = true;
        self.losses = 0;
        self.raise_at = if self.low < self.limit { raise_at } else { NEVER };
    }

    /// Processes a black hole (RFC 4821 §7.7): segments of the size in use are lost without a report. Falls back to a
    /// smaller size and searches the sizes above.
    pub fn on_black_hole(&mut self, fallback: Fallback) -> SizeChange {
        let mtu = match fallback {
            Fallback::Base => self.base,
            Fallback::Minimum => MIN_V4,
        };
        let to = mtu.saturating_sub(self.headers).max(self.floor);
        if to >= self.low {
            return SizeChange::Unchanged;
        }
        self.low = to;
        self.high = self.limit;
        self.confirmed = false;
        self.losses = 0;
        self.raise_at = NEVER;
        SizeChange::Size(to)
    }

    /// Returns the size to probe now (RFC 4821 §7.3); `None` if no size is worth a probe, or a lost probe delays the
    /// next.
    pub fn next_probe(&self, now: Instant) -> Option<u16> {
        let high = if self.raise_at <= now { self.limit } else { self.high };
        (now >= self.not_before).then(|| next_size(self.low, high, self.headers)).flatten()
    }

    /// Records that a probe is sent. If the last result has expired, all sizes from `low` to `limit` are candidates
    /// again (RFC 4821 §7.6.2).
    pub fn on_probe_sent(&mut self, now: Instant) {
        if self.raise_at <= now {
            self.high = self.limit;
            self.losses = 0;
            self.raise_at = NEVER;
        }
    }

    /// Processes the arrival of a probe of `size` (RFC 4821 §7.6.1).
    pub fn on_probe_arrived(&mut self, size: u16) -> SizeChange {
        self.losses = 0;
        if size <= self.low || size > self.limit {
            return SizeChange::Unchanged;
        }
        self.low = size;
        self.high = self.high.max(size);
        self.confirmed = true;
        SizeChange::Size(size)
    }

    /// Processes the loss of a probe of `size`. `alone`: no other packet was lost (RFC 4821 §7.6.2); with other losses
    /// the cause is unknown (§7.6.4). The next probe waits until `next`. If `size` proves too big, larger sizes are
    /// probed again from `raise_at` on.
    pub fn on_probe_lost(&mut self, size: u16, alone: bool, next: Instant, raise_at: Instant) {
        self.not_before = next;
        if !alone || size <= self.low {
            return;
        }
        self.losses += 1;
        if self.losses >= MAX_PROBE_LOSSES {
            self.losses = 0;
            self.confirmed = true;
            self.high = self.high.min(size - 1).max(self.low);
            self.raise_at = raise_at;
        }
    }

    /// Processes a router's report that a probe was too big and that `size` passes (RFC 4821 §7.6.2). Larger sizes are
    /// probed again from `raise_at` on.
    pub fn on_probe_too_big(&mut self, size: u16, raise_at: Instant) {
        self.losses = 0;
        self.confirmed = true;
        self.high = size.clamp(self.low, self.limit);
        self.raise_at = raise_at;
    }
}

/// Returns the smallest common size above `low` and at most `high`. If there is none, returns the middle of the range,
/// provided that the gap is worth a probe.
fn next_size(low: u16, high: u16, headers: u16) -> Option<u16> {
    let mut common = COMMON_MTUS.iter().map(|mtu| mtu.saturating_sub(headers));
    // Probes contain whole 32-bit words, so a gain of less than 4 bytes does not count.
    let found = common.find(|&size| size > low && size <= high && size - low >= 4);
    let gap = high.saturating_sub(low);
    let middle = || (gap > low / MIN_GAP_DIVISOR).then(|| low + gap.div_ceil(2));
    found.or_else(middle)
}

/// Returns the wait after a lost probe (RFC 4821 §7.6.2, §7.6.3): as many round trips as the congestion window has
/// segments, from 1 to 10,000; five times as long after a time-out.
pub fn probe_backoff(round_trip: Duration, segments: u64, timed_out: bool) -> Duration {
    let factor = segments.clamp(1, 10_000) as u32 * if timed_out { 5 } else { 1 };
    round_trip.saturating_mul(factor)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const V4: u16 = 40;

    fn search() -> PmtuSearch {
        PmtuSearch::new(8960, V4, false, 576)
    }

    /// Probes a path that carries sizes up to `passes` until no size is worth a probe. Returns the number of probes.
    fn settle(search: &mut PmtuSearch, passes: u16) -> u32 {
        let mut probes = 0;
        while let Some(mss) = search.next_probe(Instant::ZERO) {
            probes += 1;
            assert!(probes < 64, "{search:?}");
            search.on_probe_sent(Instant::ZERO);
            if mss <= passes {
                search.on_probe_arrived(mss);
            } else {
                search.on_probe_lost(mss, true, Instant::ZERO, NEVER);
            }
        }
        probes
    }

    // RFC 4821 §7.3, §7.7: after a black hole the search starts at the base MTU and probes the common MTUs upwards.
    #[test]
    fn search_after_black_hole_probes_common_mtus() {
        for (mtu, found) in [(1500, 1500), (1400, 1400), (1420, 1400), (9000, 9000), (1100, 1024)] {
            let mut search = search();
            assert_eq!(search.on_black_hole(Fallback::Base), SizeChange::Size(984));
            settle(&mut search, mtu - V4);
            assert!(search.size() >= found - V4, "{mtu}: {search:?}");
            assert!(search.size() <= mtu - V4);
        }
    }

    #[test]
    fn search_after_black_hole_reaches_largest_mtu() {
        for (v6, headers) in [(false, V4), (true, 60)] {
            let mut search = PmtuSearch::new(65_280 - headers, headers, v6, 576);
            search.on_black_hole(Fallback::Base);
            settle(&mut search, u16::MAX);
            assert_eq!(search.size(), 65_280 - headers);
        }
    }

    #[test]
    fn second_black_hole_falls_to_minimum_only() {
        let mut search = search();
        assert_eq!(search.on_black_hole(Fallback::Base), SizeChange::Size(984));
        assert_eq!(search.on_black_hole(Fallback::Base), SizeChange::Unchanged);
        assert_eq!(search.on_black_hole(Fallback::Minimum), SizeChange::Size(536));
        assert_eq!(search.on_black_hole(Fallback::Minimum), SizeChange::Unchanged);
        // RFC 8899 §5.1.2: the base MTU is configurable.
        let mut search = self::search().with_base(1200);
        assert_eq!(search.on_black_hole(Fallback::Base), SizeChange::Size(1160));
        // RFC 8200 §5: IPv6 carries 1280 everywhere.
        let mut search = PmtuSearch::new(1440, 60, true, 576);
        assert_eq!(search.on_black_hole(Fallback::Base), SizeChange::Size(1220));
        assert_eq!(search.on_black_hole(Fallback::Minimum), SizeChange::Unchanged);
    }

    // RFC 4821 §7.7, RFC 8899 §4.3: four time-outs show a black hole, three with evidence; two more select the minimum.
    #[test]
    fn consecutive_timeouts_select_black_hole_fallback() {
        let falls =
            |evident, limit| [2, 3, 4, 5, 6].map(|n| black_hole_fallback(n, evident, limit));
        let (base, deep) = (Some(Fallback::Base), Some(Fallback::Minimum));
        assert_eq!(falls(false, u32::MAX), [None, None, base, base, deep]);
        assert_eq!(falls(true, u32::MAX), [None, base, base, deep, deep]);
        assert_eq!(
            falls(false, 3),
            [None, base, base, deep, deep],
            "before the connection is aborted"
        );
    }

    // RFC 4821 §7.6.2, §7.6.4: one lost probe, or a probe lost together with other packets, proves nothing.
    #[test]
    fn size_is_too_big_after_two_isolated_probe_losses() {
        let mut search = search();
        search.on_black_hole(Fallback::Base);
        search.on_probe_lost(1240, false, Instant::ZERO, NEVER);
        search.on_probe_lost(1240, true, Instant::ZERO, NEVER);
        assert_eq!(search.next_probe(Instant::ZERO), Some(1240));
        search.on_probe_lost(1240, true, Instant::from_millis(5), NEVER);
        assert_eq!(search.next_probe(Instant::from_millis(4)), None, "the next probe waits");
        assert_eq!(search.next_probe(Instant::from_millis(5)), Some(984 + 128), "the middle");
    }

    // RFC 1191 §6.3, RFC 8201 §5.3: a router's report expires; afterwards larger sizes are probed again.
    #[test]
    fn reported_mtu_is_probed_again_after_it_expires() {
        let mut search = search();
        search.set_size(1360, Instant::from_millis(600));
        assert_eq!(search.next_probe(Instant::from_millis(599)), None);
        assert_eq!(search.next_probe(Instant::from_millis(600)), Some(1410));
        search.on_probe_sent(Instant::from_millis(600));
        assert_eq!(search.on_probe_arrived(1410), SizeChange::Size(1410));
        assert_eq!(search.next_probe(Instant::from_millis(600)), Some(1452));
        search.on_probe_too_big(1410, NEVER);
        assert_eq!(search.next_probe(Instant::from_millis(601)), None);
    }

    // The size in use after a black hole is a guess until a probe or a report confirms a size.
    #[test]
    fn fallback_size_is_unconfirmed_until_probe_or_report() {
        let fallen = || {
            let mut search = search();
            assert!(!search.is_confirmed(), "nothing is known");
            search.set_size(1460, NEVER);
            assert!(search.is_confirmed());
            search.on_black_hole(Fallback::Base);
            assert!(!search.is_confirmed());
            search
        };
        let mut search = fallen();
        search.on_probe_arrived(900);
        assert!(!search.is_confirmed(), "a size below the size in use confirms nothing");
        search.on_probe_arrived(1240);
        assert!(search.is_confirmed());
        assert_eq!(search.on_black_hole(Fallback::Minimum), SizeChange::Size(536));
        assert!(!search.is_confirmed());
        search.on_probe_too_big(1240, NEVER);
        assert!(search.is_confirmed());
        let mut search = fallen();
        search.on_probe_lost(1240, false, Instant::ZERO, NEVER);
        search.on_probe_lost(1240, true, Instant::ZERO, NEVER);
        assert!(!search.is_confirmed(), "it may have been lost by chance");
        search.on_probe_lost(1240, true, Instant::ZERO, NEVER);
        assert!(search.is_confirmed());
        assert_eq!(search.on_black_hole(Fallback::Base), SizeChange::Unchanged);
        assert!(search.is_confirmed(), "it is in use already");
        // RFC 9293 §3.7.1: the peer's MSS is not a measurement of the path.
        search.limit_to(984);
        assert!(search.is_confirmed());
        search.limit_to(800);
        assert!(!search.is_confirmed());
    }

    #[test]
    fn lost_probe_delays_next_probe() {
        let ms = Duration::from_millis;
        assert_eq!(probe_backoff(ms(2), 50, false), ms(100));
        assert_eq!(probe_backoff(ms(2), 50, true), ms(500));
        assert_eq!(probe_backoff(ms(2), 0, false), ms(2));
    }

    proptest! {
        // For any path, the search ends at most one worthwhile gap below the largest size that passes, and never above.
        #[test]
        fn search_converges_below_any_path_mtu(passes in 984u16..=8960, peer in 984u16..=8960) {
            let mut search = search();
            search.limit_to(peer);
            search.on_black_hole(Fallback::Base);
            settle(&mut search, passes);
            let best = passes.min(peer);
            prop_assert!(search.size() <= best);
            let near = u32::from(best) - u32::from(search.size()) <= u32::from(search.size() / MIN_GAP_DIVISOR) + 1;
            prop_assert!(near, "{} of {best}", search.size());
        }
    }

    #[test]
    fn common_mtu_is_probed_if_it_gains_a_word() {
        assert_eq!(next_size(1456, 1460, V4), Some(1460));
        assert_eq!(next_size(1458, 1460, V4), None);
    }
}
