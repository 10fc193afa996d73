//! Translation of the layers' statistics to counters of the API, whose names are stable.
//!
//! Each counter is one line of a table: name, kind, unit, help, and the source of its value. `counters!` declares the
//! tables of this crate; `dataplane` declares the workers' table.

mod control;
mod objects;
mod port;
mod sctp;
mod sums;
mod table;
mod tcp;
mod ulp;

use api::Counters;
use base::ErrorNumbers;
use base::metric::Kind;
use dataplane::{AssociationStats, CloseReason, Counters as WorkerCounters, StreamStats};
use tcp_lite::mpa::MpaError;

pub(super) use self::control::{
    ObjectCounts, ProgramCounts, ProgramTally, Tally, put_control, put_gauges, put_losses,
};
pub(super) use self::objects::{put_listener, put_region};
pub(super) use self::port::port_counters;
pub(super) use self::sctp::association_counters;
use self::sctp::session_counters;
pub(super) use self::sums::Sums;
use self::table::counters;
use self::tcp::tcp_counters;
use self::ulp::error_name;

/// MPA's error numbers for a TCP connection that was lost, reset or closed too early (RFC 5044 §8, code 1).
const CONNECTION_LOST: ErrorNumbers = ErrorNumbers::new(MpaError::LAYER, MpaError::ETYPE, 1);

/// Totals over streams: the sum of each counter, the largest value of each maximum, and the numbers of ended streams by
/// error and by reason.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    sums: Sums,
    errors: Counters,
    ends: Counters,
}

impl Totals {
    pub(super) fn add(&mut self, stats: &StreamStats, reason: &CloseReason) {
        self.sums.add_stream(stats);
        *self.ends.entry(reason.name().into()).or_default() += 1;
        // Lost, reset and closed connections also have an error number (RFC 5044 §8, code 1). It is not counted as a
        // protocol error, because aborting clients cause it.
        if let Some(numbers) = reason.numbers().filter(|numbers| *numbers != CONNECTION_LOST) {
            *self.errors.entry(error_name(reason.transport(), numbers).into()).or_default() += 1;
        }
    }

    pub(super) fn add_association(&mut self, stats: &AssociationStats) {
        self.sums.add_association(stats);
    }

    pub(super) fn sums_mut(&mut self) -> &mut Sums {
        &mut self.sums
    }

    pub(super) fn merge(&mut self, other: &Totals) {
        self.sums.merge(&other.sums);
        for (own, others) in [(&mut self.errors, &other.errors), (&mut self.ends, &other.ends)] {
            for (name, value) in others {
                *own.entry(name.clone()).or_default() += value;
            }
        }
    }

    /// Returns the sums and maxima by name, without gauges.
    pub(super) fn counters(&self) -> Counters {
        self.sums.counters()
    }

    /// Returns, per protocol error, the number of streams that the error has ended.
    pub(super) fn errors(&self) -> &Counters {
        &self.errors
    }

    /// Returns, per reason, the number of streams that have ended for it.
    pub(super) fn ends(&self) -> &Counters {
        &self.ends
    }
}

/// Returns all counters of a stream. Over SCTP they include the association's counters.
pub(super) fn stream_counters(stats: &StreamStats) -> Counters {
    match stats {
        StreamStats::Tcp(stats) => tcp_counters(stats),
        StreamStats::Sctp(session, association) => {
            let mut counters = session_counters(session);
            counters.extend(association_counters(association));
            counters
        }
    }
}

/// Returns all counters and gauges of a live stream.
pub(super) fn live_counters(stats: &StreamStats) -> Counters {
    let mut counters = stream_counters(stats);
    put_held(&mut counters, &held_bytes(stats));
    counters
}

counters! { HELD, fn put_held(held: &HeldBytes) {
    /// Received bytes held in a buffer, because their FPDU is incomplete or not located.
    held_bytes: Gauge Bytes = held.held,
    /// Held bytes whose FPDU boundaries are unknown.
    unlocatable_bytes: Gauge Bytes = held.unlocatable,
}}

/// Bytes that streams hold at present.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct HeldBytes {
    /// Received bytes that wait in a buffer, because their FPDU is incomplete, not located, or refused by DDP.
    pub held: u64,
    /// Part of `held` whose FPDU boundaries are unknown, because the FPDU's start is missing.
    pub unlocatable: u64,
    /// Sent bytes that are kept for retransmission.
    pub kept: u64,
}

impl HeldBytes {
    /// Adds the bytes of another stream.
    pub(super) fn add(&mut self, other: &HeldBytes) {
        self.held += other.held;
        self.unlocatable += other.unlocatable;
        self.kept += other.kept;
    }
}

/// Returns the bytes that a stream holds. Over SCTP received data is placed on arrival, so none is held.
pub(super) fn held_bytes(stats: &StreamStats) -> HeldBytes {
    match stats {
        StreamStats::Tcp(stats) => HeldBytes {
            held: stats.mpa_rx.held,
            unlocatable: stats.mpa_rx.unlocatable,
            kept: stats.mpa_tx.kept,
        },
        StreamStats::Sctp(stats, _) => {
            HeldBytes { held: 0, unlocatable: 0, kept: stats.session.tx.kept }
        }
    }
}

/// Returns a worker's counters, and its gauges.
pub(super) fn worker_values(counters: &WorkerCounters) -> (Counters, Counters) {
    let (mut growing, mut gauges) = (Counters::new(), Counters::new());
    counters.for_each(|counter, value| {
        let out = if counter.kind == Kind::Counter { &mut growing } else { &mut gauges };
        out.insert(counter.into(), value);
    });
    (growing, gauges)
}

#[cfg(test)]
mod tests {
    use ddp::rdmap;
    use tcp_lite::endpoint::EndpointStats;

    use super::*;

    #[test]
    fn totals_add_sums_and_keep_maxima() {
        let mut stats = EndpointStats::default();
        stats.tcp.loss.bytes_retransmitted = 10;
        stats.mpa_rx.held_max = 7;
        let mut totals = Totals::default();
        totals.add(
            &StreamStats::Tcp(stats),
            &tcp_lite::endpoint::CloseReason::from(tcp_lite::endpoint::TcpReason::PeerReset).into(),
        );
        stats.mpa_rx.held_max = 5;
        totals.sums_mut().add_stream(&StreamStats::Tcp(stats));
        let mut sum = Totals::default();
        sum.merge(&totals);
        assert_eq!(sum.counters()["retransmitted_bytes"], 20);
        assert_eq!(sum.counters()["held_bytes_max"], 7);
        assert_eq!((sum.ends()["peer_reset"], sum.errors().len()), (1, 0));
    }

    /// Aborting clients close their connections at any point, even inside an FPDU.
    #[test]
    fn client_abort_is_not_counted_as_protocol_error() {
        use tcp_lite::endpoint::{CloseReason, TcpReason};
        use tcp_lite::mpa::Fault;
        let mut totals = Totals::default();
        let mut ends = |reason: TcpReason| {
            let reason = CloseReason::from(reason).into();
            totals.add(&StreamStats::Tcp(EndpointStats::default()), &reason);
            (totals.ends().values().sum::<u64>(), totals.errors().values().sum::<u64>())
        };
        let at = |fault| TcpReason::Mpa(MpaError { at: ddp::llp::OrderKey(0), fault });
        assert_eq!(ends(TcpReason::PeerReset), (1, 0));
        assert_eq!(ends(TcpReason::TcpTimeout), (2, 0));
        assert_eq!(ends(at(Fault::Truncated)), (3, 0));
        assert_eq!(ends(at(Fault::Crc { expected: 1, seen: 2 })), (4, 1));
    }

    /// Counters named `bytes` have that unit, only maxima end in `_max`, and every counter has a sentence of help.
    #[test]
    fn descriptor_unit_and_kind_match_counter_name() {
        let tables = [
            WorkerCounters::DESCRIPTORS,
            tcp::TCP,
            ulp::DDP,
            ulp::RDMAP,
            sctp::SESSION,
            sctp::ASSOCIATION,
            HELD,
            port::QUEUE,
            port::LINK,
            port::DEVICE,
            port::POOL,
            control::CONTROL,
            control::LOSSES,
            control::GAUGES,
        ];
        for counter in tables.into_iter().flatten() {
            let name = counter.name;
            let bytes = name.contains("bytes");
            assert!(!bytes || counter.unit == base::metric::Unit::Bytes, "{name}");
            assert_eq!(counter.kind == Kind::Maximum, name.ends_with("_max"), "{name}");
            assert!(counter.help.ends_with('.'), "{name}: {}", counter.help);
        }
        let of_a_stream = live_counters(&StreamStats::Tcp(EndpointStats::default()));
        for name in of_a_stream.keys() {
            assert!(name.descriptor().is_some(), "{name}");
        }
    }

    #[test]
    fn error_names_are_layer_and_code() {
        use dataplane::Transport::{Sctp, Tcp};
        assert_eq!(error_name(Tcp, ErrorNumbers::new(1, 2, 4)), "ddp_2_04");
        assert_eq!(error_name(Tcp, ErrorNumbers::new(0, 1, 9)), "rdmap_1_09");
        assert_eq!(error_name(Tcp, ErrorNumbers::new(2, 0, 3)), "mpa_3");
        assert_eq!(error_name(Sctp, ErrorNumbers::new(2, 0, 3)), "session_3");
    }

    /// All placement statistics of a stream must be visible to the operator.
    #[test]
    fn live_stream_has_placement_counters() {
        let mut stats = EndpointStats::default();
        let rx = &mut stats.mpa_rx;
        (rx.held, rx.held_max, rx.unlocatable, rx.unlocatable_max) = (1, 2, 3, 4);
        (rx.refused, rx.alignment_lost, rx.bad_crc_dropped) = (5, 6, 7);
        (stats.ddp.placed_in_order_bytes, stats.ddp.placed_out_of_order_bytes) = (8, 9);
        let counters = live_counters(&StreamStats::Tcp(stats));
        let shown = [
            "held_bytes",
            "held_bytes_max",
            "unlocatable_bytes",
            "unlocatable_bytes_max",
            "mpa_bytes_refused",
            "mpa_alignment_lost",
            "mpa_bad_crc_dropped",
            "placed_in_order_bytes",
            "placed_out_of_order_bytes",
        ];
        assert_eq!(shown.map(|name| counters[name]), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        // Gauges must not be in totals.
        assert!(!stream_counters(&StreamStats::Tcp(stats)).contains_key("held_bytes"));
    }

    /// All RDMAP statistics must be visible to the operator.
    #[test]
    fn stream_has_rdmap_counters() {
        let mut errors = [0; rdmap::ErrorCode::ALL.len()];
        errors[rdmap::ErrorCode::CannotInvalidate.index()] = 17;
        let stats = EndpointStats {
            rdmap: rdmap::Counters {
                sends_received: 1,
                immediates_received: 2,
                writes_received: 3,
                written_bytes: 4,
                reads_received: 5,
                reads_served: 6,
                read_bytes_served: 7,
                atomics_served: 8,
                invalidations: 9,
                completed: 10,
                flushed: 11,
                read_bytes: 12,
                ord_waits: 13,
                requests_max: 14,
                terminates_sent: 15,
                terminates_received: 16,
                errors,
            },
            ..EndpointStats::default()
        };
        let counters = stream_counters(&StreamStats::Tcp(stats));
        let shown = counters.iter().filter(|(name, _)| name.starts_with("rdmap_"));
        let mut values: Vec<u64> = shown.map(|(_, &value)| value).collect();
        values.sort_unstable();
        assert_eq!(values, (1..=16).collect::<Vec<_>>());
        assert_eq!(counters["rdmap_read_bytes_served"], 7);
        assert_eq!(counters["error_rdmap_1_09"], 17);
    }
}
