//! Sums of counters over many scenarios. Tests check that every kind of fault occurred.

use core::fmt;
use core::ops::AddAssign;

use crate::end::{End, Setup};
use crate::esp;
use crate::pair::Pair;

/// Sums over scenarios. Segments, or packets over SCTP, are counted in both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Number of scenarios run.
    pub scenarios: u64,
    /// Scenarios in which all messages had to arrive, and arrived.
    pub complete: u64,
    /// Bytes that TCP or SCTP received and accepted.
    pub bytes: u64,
    /// Segments lost by the link's loss model: random, every nth, or bursts.
    pub lost: u64,
    /// Segments lost in periods of total loss.
    pub black_holed: u64,
    /// Segments tail-dropped because a queue was full.
    pub queue_dropped: u64,
    /// Segments delayed by the link so that later segments may overtake them.
    pub reordered: u64,
    /// Additional copies of segments that the link created.
    pub duplicated: u64,
    /// Segments that the link damaged and the receiver dropped because of their checksum.
    pub corrupted: u64,
    /// Segments damaged before their checksum was computed.
    pub hidden_damage: u64,
    /// Segments marked CE (RFC 3168) because a queue was long.
    pub marked: u64,
    /// Segments split into pieces.
    pub split: u64,
    /// Segments merged with the previous segment.
    pub merged: u64,
    /// Counters of ESP on both paths.
    pub esp: esp::Counters,
    /// Packets dropped because they exceeded the path MTU.
    pub too_big: u64,
    /// Retransmitted segments or chunks.
    pub retransmitted: u64,
    /// Retransmission time-outs.
    pub timeouts: u64,
    /// TCP: bytes placed out of order. SCTP: largest number of TSN ranges beyond a gap (not bytes), summed over hosts.
    pub out_of_order_bytes: u64,
    /// Bytes (over SCTP: DATA chunks) refused, mostly for lack of room.
    pub refused: u64,
}

impl Tally {
    /// Returns the counters of one scenario. `complete`: all of its messages had to arrive.
    pub(super) fn from_pair<S: Setup>(pair: &Pair<S>, complete: bool) -> Tally {
        let mut tally = Tally { scenarios: 1, complete: u64::from(complete), ..Tally::default() };
        for path in [&pair.forward, &pair.backward] {
            let link = path.link_counters();
            tally.lost += link.lost;
            tally.black_holed += link.black_holed;
            tally.queue_dropped += link.tail_dropped;
            tally.reordered += link.reordered;
            tally.duplicated += link.duplicated;
            tally.marked += link.marked;
            tally.corrupted += path.counters().bad_checksum;
            tally.hidden_damage += path.counters().hidden_damage;
            tally.too_big += path.counters().too_big;
            tally.esp += path.esp_counters();
            tally.split += path.middlebox_counters().split;
            tally.merged += path.middlebox_counters().merged;
        }
        for host in [&pair.client, &pair.server] {
            let totals = host.totals();
            tally.bytes += totals.bytes_in;
            tally.retransmitted += totals.retransmitted;
            tally.timeouts += totals.timeouts;
            tally.out_of_order_bytes += totals.out_of_order_bytes;
            tally.refused += totals.refused;
        }
        tally
    }

    fn entries(&self) -> [(&'static str, u64); 21] {
        [
            ("scenarios", self.scenarios),
            ("complete", self.complete),
            ("bytes", self.bytes),
            ("lost", self.lost),
            ("black-holed", self.black_holed),
            ("queue-dropped", self.queue_dropped),
            ("reordered", self.reordered),
            ("duplicated", self.duplicated),
            ("corrupted", self.corrupted),
            ("damaged unseen", self.hidden_damage),
            ("marked", self.marked),
            ("split", self.split),
            ("merged", self.merged),
            ("refused by ESP", self.esp.refused),
            ("replayed", self.esp.replayed),
            ("rekeyed", self.esp.rekeyed),
            ("too big", self.too_big),
            ("retransmitted", self.retransmitted),
            ("time-outs", self.timeouts),
            ("bytes placed early", self.out_of_order_bytes),
            ("bytes refused", self.refused),
        ]
    }

    /// Returns the names of the counters that are zero.
    pub fn zero_counters(&self) -> Vec<&'static str> {
        self.entries().into_iter().filter(|(_, n)| *n == 0).map(|(name, _)| name).collect()
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.esp += other.esp;
        let fields = [
            (&mut self.scenarios, other.scenarios),
            (&mut self.complete, other.complete),
            (&mut self.bytes, other.bytes),
            (&mut self.lost, other.lost),
            (&mut self.black_holed, other.black_holed),
            (&mut self.queue_dropped, other.queue_dropped),
            (&mut self.reordered, other.reordered),
            (&mut self.duplicated, other.duplicated),
            (&mut self.corrupted, other.corrupted),
            (&mut self.hidden_damage, other.hidden_damage),
            (&mut self.marked, other.marked),
            (&mut self.split, other.split),
            (&mut self.merged, other.merged),
            (&mut self.too_big, other.too_big),
            (&mut self.retransmitted, other.retransmitted),
            (&mut self.timeouts, other.timeouts),
            (&mut self.out_of_order_bytes, other.out_of_order_bytes),
            (&mut self.refused, other.refused),
        ];
        for (sum, more) in fields {
            *sum += more;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> =
            self.entries().iter().map(|(name, n)| format!("{n} {name}")).collect();
        f.write_str(&parts.join(", "))
    }
}
