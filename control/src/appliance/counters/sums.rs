//! Sums of many streams' counters. Values are stored in the order of the tables, without names, because there may be
//! thousands of streams.

use api::Counters;
use base::metric::{Descriptor, Kind};
use dataplane::{AssociationStats, StreamStats};
use ddp::rdmap;

use super::sctp::{ASSOCIATION, SESSION, put_association, put_session};
use super::table::{CounterSink, MergeSink};
use super::tcp::{TCP, put_tcp};
use super::ulp::{DDP, RDMAP, put_ddp, put_errors, put_rdmap};

/// Sums over streams and associations; for a maximum, the largest value.
#[derive(Clone, Debug)]
pub(in crate::appliance) struct Sums {
    tcp: Block,
    session: Block,
    association: Block,
    ddp: Block,
    rdmap: Block,
    ddp_errors: [u64; ddp::ErrorCode::ALL.len()],
    rdmap_errors: [u64; rdmap::ErrorCode::ALL.len()],
}

impl Default for Sums {
    fn default() -> Sums {
        Sums {
            tcp: Block::new(TCP),
            session: Block::new(SESSION),
            association: Block::new(ASSOCIATION),
            ddp: Block::new(DDP),
            rdmap: Block::new(RDMAP),
            ddp_errors: [0; _],
            rdmap_errors: [0; _],
        }
    }
}

impl Sums {
    /// Adds the counters of a stream, without those of its association.
    pub(in crate::appliance) fn add_stream(&mut self, stats: &StreamStats) {
        let (ddp, rdmap) = match stats {
            StreamStats::Tcp(stats) => {
                put_tcp(&mut self.tcp.adder(), stats);
                (&stats.ddp, &stats.rdmap)
            }
            StreamStats::Sctp(stats, _) => {
                put_session(&mut self.session.adder(), stats);
                (&stats.ddp, &stats.rdmap)
            }
        };
        put_ddp(&mut self.ddp.adder(), ddp);
        put_rdmap(&mut self.rdmap.adder(), rdmap);
        add(&mut self.ddp_errors, ddp.errors.map(u64::from));
        add(&mut self.rdmap_errors, rdmap.errors);
    }

    pub(in crate::appliance) fn add_association(&mut self, stats: &AssociationStats) {
        put_association(&mut self.association.adder(), stats);
    }

    pub(in crate::appliance) fn merge(&mut self, other: &Sums) {
        for (own, others) in self.blocks_mut().into_iter().zip(other.blocks()) {
            own.merge(others);
        }
        add(&mut self.ddp_errors, other.ddp_errors);
        add(&mut self.rdmap_errors, other.rdmap_errors);
    }

    /// Subtracts sums that were merged before. Maxima are unchanged.
    pub(in crate::appliance) fn subtract(&mut self, other: &Sums) {
        for (own, others) in self.blocks_mut().into_iter().zip(other.blocks()) {
            own.subtract(others);
        }
        subtract(&mut self.ddp_errors, other.ddp_errors);
        subtract(&mut self.rdmap_errors, other.rdmap_errors);
    }

    /// Returns the sums by name. A name used for both connections and associations has one sum.
    pub(in crate::appliance) fn counters(&self) -> Counters {
        let mut counters = Counters::new();
        for block in self.blocks() {
            for (counter, &value) in block.table.iter().zip(&block.values) {
                MergeSink(&mut counters).put(counter, value);
            }
        }
        put_errors(&mut counters, self.ddp_errors, self.rdmap_errors);
        counters
    }

    fn blocks(&self) -> [&Block; 5] {
        [&self.tcp, &self.session, &self.association, &self.ddp, &self.rdmap]
    }

    fn blocks_mut(&mut self) -> [&mut Block; 5] {
        let Sums { tcp, session, association, ddp, rdmap, .. } = self;
        [tcp, session, association, ddp, rdmap]
    }
}

/// The sums of one table of counters.
#[derive(Clone, Debug)]
struct Block {
    table: &'static [Descriptor],
    /// One value per counter of the table.
    values: Box<[u64]>,
}

impl Block {
    fn new(table: &'static [Descriptor]) -> Block {
        Block { table, values: vec![0; table.len()].into() }
    }

    fn adder(&mut self) -> Adder<'_> {
        Adder(self.values.iter_mut())
    }

    fn merge(&mut self, other: &Block) {
        let mut adder = Adder(self.values.iter_mut());
        for (counter, &value) in self.table.iter().zip(&other.values) {
            adder.put(counter, value);
        }
    }

    fn subtract(&mut self, other: &Block) {
        let pairs = self.values.iter_mut().zip(&other.values);
        for (counter, (sum, value)) in self.table.iter().zip(pairs) {
            if counter.kind != Kind::Maximum {
                *sum = sum.saturating_sub(*value);
            }
        }
    }
}

/// Adds one value to each sum, in the order of the table.
struct Adder<'a>(std::slice::IterMut<'a, u64>);

impl CounterSink for Adder<'_> {
    fn put(&mut self, counter: &'static Descriptor, value: u64) {
        let sum = self.0.next();
        debug_assert!(sum.is_some(), "{} is beyond its table", counter.name);
        if let Some(sum) = sum {
            *sum = counter.kind.merge(*sum, value);
        }
    }
}

fn add<const N: usize>(sums: &mut [u64; N], values: [u64; N]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.saturating_add(value));
}

fn subtract<const N: usize>(sums: &mut [u64; N], values: [u64; N]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.saturating_sub(value));
}

#[cfg(test)]
mod tests {
    use sctp_lite::endpoint::SessionStats;
    use tcp_lite::endpoint::EndpointStats;

    use super::*;
    use crate::appliance::counters::stream_counters;

    /// Returns statistics with seven different counters that are not 0.
    fn tcp() -> StreamStats {
        let mut stats = EndpointStats::default();
        stats.tcp.segments_in = 3;
        stats.tcp.loss.bytes_retransmitted = 10;
        stats.mpa_rx.held_max = 7;
        stats.ddp.placed_in_order_bytes = 100;
        stats.ddp.errors[4] = 1;
        stats.rdmap.sends_received = 5;
        stats.rdmap.errors[2] = 2;
        StreamStats::Tcp(stats)
    }

    #[test]
    fn sums_have_names_and_values_of_their_streams() {
        let mut sums = Sums::default();
        sums.add_stream(&tcp());
        let all = sums.counters();
        for (name, value) in stream_counters(&tcp()) {
            assert_eq!(all[&name], value, "{name}");
        }
        assert_eq!(all.values().filter(|value| **value > 0).count(), 7);
    }

    #[test]
    fn subtract_reverts_merge_of_sums() {
        let mut sums = Sums::default();
        sums.add_stream(&tcp());
        let (once, mut other) = (sums.counters(), Sums::default());
        other.add_stream(&tcp());
        other.add_stream(&StreamStats::Sctp(SessionStats::default(), AssociationStats::default()));
        sums.merge(&other);
        assert_eq!(sums.counters()["retransmitted_bytes"], 20);
        assert_eq!(sums.counters()["held_bytes_max"], 7);
        sums.subtract(&other);
        assert_eq!(sums.counters(), once);
    }
}
